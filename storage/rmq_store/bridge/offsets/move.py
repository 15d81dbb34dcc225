"""Moves groups to their translated positions."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.plan import CLEAN, Move, Rules, plan_group
from rmq_store.errors import GroupInUseError, UsageError
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group's moves. `waiting_count`: messages that the source will redeliver, besides its positions."""

    source_group: str
    target_group: str
    moves: Sequence[Move]
    waiting_count: int

    @property
    def is_clean(self) -> bool:
        """True if the group would get all records that it has not consumed."""
        return bool(self.moves) and all(move.status in CLEAN for move in self.moves)

    @property
    def change_count(self) -> int:
        """The number of positions to commit."""
        return sum(move.is_change for move in self.moves)


def plan_move(
    link: Link, source_group: str, target_group: str, rules: Rules, *, force: bool = False, ignore_waiting: bool = False
) -> GroupPlan:
    """Plan `apply_move`; changes nothing. Without moves, the group has no position on a mirrored topic.

    Raises:
        GroupInUseError: the group has members in the target, without `force`.
        UsageError: messages will be redelivered to it in the source, without `ignore_waiting`.
        As `plan_group`.
    """
    moves = plan_group(link, source_group, target_group, rules)
    if not moves:
        return GroupPlan(source_group, target_group, moves, 0)
    if not force and (members := link.target.members(target_group)):
        raise GroupInUseError(
            f"group {target_group!r} has running members in {link.target.name}, which would overwrite this: stop them "
            f"first: {members}"
        )
    waiting_count = link.source.waiting_count(source_group)
    if waiting_count and not ignore_waiting:
        raise UsageError(
            f"group {source_group!r} has {waiting_count} retries pending in {link.source.name}, which its positions do "
            "not cover: let it consume them first, or leave them there with --ignore-waiting"
        )
    return GroupPlan(source_group, target_group, moves, waiting_count)


def apply_move(link: Link, plan: GroupPlan, *, force: bool = False) -> int:
    """Commit a plan's changes, durably; returns their number.

    Raises:
        GroupInUseError: the group has members in the target now, without `force`; nothing was committed.
        KafkaUnavailableError, KafkaRefusedError; as `Store.commit_offsets`.
    """
    changes = {move.target: move.new for move in plan.moves if move.new is not None and move.is_change}
    if changes:
        link.target.commit(plan.target_group, changes, force=force)
    return len(changes)
