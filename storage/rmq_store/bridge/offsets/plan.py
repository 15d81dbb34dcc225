"""Moves groups to their translated positions: first a plan, a row for each queue, which changes nothing; then a commit.

The reads have a fixed order, so that a mirror or consumer that runs meanwhile cannot falsify the plan: the group's
position, the positions of the mirrors, the end of the target, the end of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Final

from rmq_store.bridge.offsets.pair import Link, Pair, PairReader
from rmq_store.bridge.offsets.side import Extent, MirroredTopic, Origin, Queue
from rmq_store.bridge.offsets.translate import Stop
from rmq_store.errors import GroupInUseError, MirrorSourceError, UsageError
from rmq_store.lazy.dataclasses import dataclass


class Status(Enum):
    """The outcome for a queue. Only with `MOVE`, `BACK` and `STAYS` the group gets all records."""

    MOVE = "move"
    BACK = "move back"
    STAYS = "stays"
    BEHIND = "behind"
    """The mirror has not come as far as the group."""
    MISSING = "missing"
    """The target does not have what the group has not consumed."""
    UNCOMMITTED = "uncommitted"
    """The group has no position in the source."""
    AHEAD = "ahead"
    """The group's position in the target is beyond what it has consumed in the source."""


CLEAN: Final = (Status.MOVE, Status.BACK, Status.STAYS)


@dataclass(frozen=True, slots=True)
class Rules:
    """Risks that a person may allow. `from_start`: a queue without a position counts as consumed up to its start.
    `accept_missing`: move although records are missing. `force_back`: move back a group that is ahead in the target.
    `pass_letters`: dead letters of the way back, which no group of the source has seen, do not hold a position up.
    """

    from_start: bool = False
    accept_missing: bool = False
    force_back: bool = False
    pass_letters: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One queue of the source, for a group. `position`: the group's position there. `old`, `new`: its positions in the
    target queue; None: none. `redelivered` records come again, `missing` ones never come, `letters_passed` are dead
    letters of the way back below `new`. `ahead`: records that the group has passed in the target, and not consumed in
    the source. `stop`: why `new` is not further.
    """

    source: Queue
    target: Queue
    status: Status
    position: int | None = None
    old: int | None = None
    new: int | None = None
    redelivered: int = 0
    missing: int = 0
    letters_passed: int = 0
    ahead: int = 0
    stop: Stop | None = None

    @property
    def is_change(self) -> bool:
        """True if there is a position to commit."""
        return self.new is not None and self.new != self.old


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


@dataclass(slots=True)
class _Extents:
    source: Mapping[Queue, Extent] = field(default_factory=dict)
    target: Mapping[Queue, Extent] = field(default_factory=dict)


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


def plan_group(link: Link, source_group: str, target_group: str, rules: Rules) -> list[Move]:
    """Translate a group's positions, ordered by topic and queue of the source. Topics on which it has none, or that no
    mirror of the link copies, are left out.

    Raises:
        UsageError: a target topic does not exist, or has fewer queues than the source.
        MirrorSourceError: a topic was created again, and its mirror does not know it yet.
        KafkaUnavailableError, KafkaRefusedError, CorruptionError, OffsetOutOfRangeError: a side cannot be read.
    """
    positions = link.source.group_positions(source_group)
    present = link.target.group_positions(target_group)
    mirrored, ways_back = link.mirror(), link.way_back()
    pairs = [
        pair
        for topic in sorted({queue.topic for queue in positions})
        for pair in _pairs_of_topic(link, topic, mirrored, ways_back)
    ]
    for pair in pairs:
        if pair.mirror is not None and pair.mirror.target_end > 0:
            link.target.wait_for_end(pair.target, pair.mirror.target_end)
    extents = _Extents()
    extents.target = link.target.extents([pair.target for pair in pairs])
    extents.source = link.source.extents([pair.source for pair in pairs])
    letters, mirror_letters = link.letters(), link.mirror_letters()
    return [
        _plan_queue(
            PairReader(
                link, pair, extents.source[pair.source], extents.target[pair.target], letters, mirror_letters
            ),
            positions.get(pair.source), present.get(pair.target), rules,
        )
        for pair in pairs
    ]  # fmt: skip


def _pairs_of_topic(
    link: Link, topic: str, mirrored: Mapping[str, MirroredTopic], ways_back: Mapping[str, MirroredTopic]
) -> Iterator[Pair]:
    forward = mirrored.get(topic)
    if forward is not None:
        target = forward.target
    else:
        found = [name for name, back in ways_back.items() if back.target == topic]
        if len(found) != 1:
            return
        target = found[0]
    back = ways_back.get(target)
    if back is not None and back.target != topic:
        back = None
    if (forward is not None and forward.is_replaced) or (back is not None and back.is_replaced):
        raise MirrorSourceError(
            f"topic {topic!r} or {target!r} was deleted and made again since its mirror last ran: first let the "
            "mirror start the new topic"
        )
    count, target_count = link.source.queue_count(topic), link.target.queue_count(target)
    if not count or target_count < count:
        missing = f"{target_count} queues" if target_count else "no such topic"
        raise UsageError(
            f"topic {topic!r} has {count} queues in {link.source.name}, and {target!r} in {link.target.name} "
            f"{missing}: positions cannot be translated. Let the mirror make or enlarge it "
            "(--create-topics), or do it by hand"
        )
    source_id, target_id = link.source.topic_id(topic), link.target.topic_id(target)
    for queue_id in range(count):
        source, goal = Queue(topic, queue_id), Queue(target, queue_id)
        yield Pair(
            source, goal, Origin(link.target.cluster_id, goal, target_id),
            Origin(link.source.cluster_id, source, source_id),
            None if forward is None else forward.queues.get(queue_id), forward is not None,
            None if back is None else back.queues.get(queue_id),
        )  # fmt: skip


def _plan_queue(queue: PairReader, position: int | None, old: int | None, rules: Rules) -> Move:
    pair, source, target = queue.pair, queue.source, queue.target
    move = Move(pair.source, pair.target, Status.UNCOMMITTED, position, old)
    if position is None:
        if not rules.from_start:
            return move
        position = source.start
        move = replace(move, position=position)
    if pair.is_mirrored and (pair.mirror is None or pair.mirror.next < position):
        return replace(move, status=Status.BEHIND, stop=Stop.BEHIND)
    ahead = queue.count_ahead(position, old)
    begin = max(old or 0, target.start)
    if ahead and rules.force_back:
        begin = target.start
    found = queue.translate(position, begin, pass_letters=rules.pass_letters)
    assert found.position is not None
    move = replace(
        move, new=found.position, redelivered=found.redelivered, letters_passed=found.letters_passed, ahead=ahead,
        stop=found.stop,
    )  # fmt: skip
    if ahead and not rules.force_back:
        return replace(move, status=Status.AHEAD, new=None)
    missing = queue.count_missing(position, found, 0 if ahead else old or 0)
    if missing and not rules.accept_missing:
        return replace(move, status=Status.MISSING, new=None, missing=missing)
    if not move.is_change:
        return replace(move, status=Status.STAYS, missing=missing)
    status = Status.BACK if old is not None and found.position < old else Status.MOVE
    return replace(move, status=status, missing=missing)
