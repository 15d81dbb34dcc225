"""Why a stub is not sent now, in one line for a person, by the relay's own rule (`resend_rule`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.leases import is_live
from rmq_store.reliable.database.tables import CONFIRMED, VOID
from rmq_store.reliable.outbox.resend_times import WAIT_MS_MAX
from rmq_store.reliable.relay.group_rows import LogRow
from rmq_store.reliable.relay.resend_rule import Action, GroupState, SentStub, decide

UNSENT: Final = "unsent"
WAITING: Final = "waiting"
DUE: Final = "due"
MANUAL: Final = "manual"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group that must confirm a stub. `high_water`: the largest offset of the stub's queue that the group has
    received; None if it has received none, or if the stub's offset is unknown.
    """

    name: str
    confirmed_ms: int | None
    done_ms: int | None
    log: LogRow | None
    high_water: int | None
    is_known: bool = True
    """False: the database of its inbox does not answer, and nothing but `confirmed_ms` is true."""
    is_readable: bool = True
    """False: its row of the log cannot be read."""


def judge(
    row: sa.Row[Any], groups: Sequence[GroupStatus], older: sa.Row[Any] | None, now_ms: int, fault: str | None = None
) -> tuple[str, str]:
    """The state of a stub and the reason. `older`: the older message of the same sharding key for which it waits.
    `fault`: why its row cannot be read.
    """
    if row.status == VOID:
        return VOID, "taken back: it has no effect any more"
    if row.status == CONFIRMED:
        return CONFIRMED, "every group has done it"
    if row.is_manual:
        wrong = "" if fault is None else f"; {fault}: correct it first"
        return MANUAL, f"on the manual list: void it, or retry it{wrong}"
    if fault is not None:
        return DUE if row.sent_ms is not None else UNSENT, f"{fault}: the next round puts it on the manual list"
    is_claimed = row.claim_token is not None and is_live(row.claim_until_ms, now_ms, WAIT_MS_MAX)
    if row.sent_ms is None:
        if is_claimed:
            return UNSENT, "a process is sending it"
        if is_live(row.resend_ms, now_ms, WAIT_MS_MAX):
            return UNSENT, "its time is not there yet"
        if older is not None:
            listed = ", which is on the manual list" if older.is_manual else ""
            return UNSENT, f"its key waits for {older.message_id}{listed}"
        return UNSENT, "the next round sends it"
    if is_claimed:
        return WAITING, "a process is sending it again"
    stub = SentStub(row.send_count, row.sent_ms, row.resend_ms, row.queue_offset, row.sharding_key is not None)
    left = [group for group in groups if group.confirmed_ms is None]
    action = _decide(stub, left, now_ms)
    if action is Action.RESEND:
        lost = [group.name for group in left if _decide(stub, [group], now_ms) is Action.RESEND]
        ordered = "; it has a sharding key: only with --resend-out-of-order, else to the manual list"
        return DUE, f"lost for {', '.join(lost)}{ordered if stub.has_sharding_key else ''}"
    if action in (Action.WAIT_NOT_DUE, Action.COUNT_AGAIN):
        return WAITING, "its time is not there yet"
    if not left:
        return WAITING, "every group has done it, and its status follows"
    reasons = "; ".join(
        f"{group.name}: {_reason(row, group, now_ms, _decide(stub, [group], now_ms))}" for group in left
    )
    if action is Action.STUCK:
        return DUE, f"stuck, the next round puts it on the manual list: {reasons}"
    return WAITING, reasons


def _decide(stub: SentStub, groups: Sequence[GroupStatus], now_ms: int) -> Action:
    """The decision of the relay's rule, without the limits of a relay's settings, and without asking a broker."""
    states = {
        group.name: GroupState(
            group.done_ms is not None,
            group.high_water,
            group.log,
            not (group.is_known and group.is_readable),
        )
        for group in groups
    }
    return decide(stub, states, now_ms, max_send_count=sys.maxsize, resend_out_of_order=True).action


def _reason(row: sa.Row[Any], group: GroupStatus, now_ms: int, action: Action) -> str:
    if not group.is_known:
        return "the database of its inbox does not answer"
    if not group.is_readable:
        return "its row of the log cannot be read"
    if action is Action.CONFIRM:
        return "has done it, the confirmation follows"
    if action is Action.WAIT_DEAD:
        return "a dead letter, people decide"
    if action is Action.WAIT_IN_WORK:
        if group.log is not None and group.log.lease_until_ms > now_ms:
            return f"a worker has it, for {_seconds(group.log.lease_until_ms - now_ms)} s at most"
        return (
            f"has failed, its retry comes within {_seconds(group.log.blocks_until_ms - now_ms if group.log else 0)} s"
        )
    received = "nothing" if group.high_water is None else f"up to offset {group.high_water}"
    return f"has received {received} of this queue, the message is at {row.queue_offset}"


def _seconds(time_ms: int) -> int:
    return -(-time_ms // 1000)
