"""The plan and the report of a retention pass, and which segments a pass deletes (pure functions). `retention` has the
rules.
"""

from __future__ import annotations

import time
from dataclasses import replace

from rmq_store.broker.delay.backlog import SegmentBacklog
from rmq_store.lazy.dataclasses import dataclass

KEPT = "a reader keeps it"


@dataclass(frozen=True, slots=True)
class SegmentFate:
    """The decision about the segment [`start`, `end`) of the log: whether a pass deletes it, and why (not).

    `modified_ms`: time of the last write to its file. `waiting`: number of its delayed messages that are not delivered
    yet. `is_kept`: a reader keeps it.
    """

    start: int
    end: int
    modified_ms: int
    goes: bool
    reason: str
    waiting: SegmentBacklog | None = None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The plan of a pass. `trigger` is time, disk, manual or retry; "": it would do nothing.

    `segments`: those that it would check, oldest first; it deletes none after the first one that stays.
    `usage_percent`: of the disk; None if unknown. `log_start`: present start of the log.
    """

    trigger: str
    usage_percent: int | None
    log_start: int
    segments: tuple[SegmentFate, ...]

    @property
    def going(self) -> tuple[SegmentFate, ...]:
        """The segments that the pass would delete."""
        return tuple(fate for fate in self.segments if fate.goes)


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of a pass: segments deleted (their first offsets), files of queues and index, units and half messages
    written again.

    `stopped`: why it deleted fewer segments than the rules allow; "" if it deleted all of them.
    """

    plan: RetentionPlan
    removed: tuple[int, ...] = ()
    queue_files: int = 0
    index_files: int = 0
    units: int = 0
    half_messages: int = 0
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Refusals:
    """{first offset of a segment: time of the first refusal}, and the time of the last attempt; ms."""

    since_ms: dict[int, int]
    tried_ms: int = 0

    def left_ms(self, base: int, now_ms: int, patience_ms: int) -> int:
        """The time (ms) for which readers may still keep a segment; 0 or less: no longer."""
        since = self.since_ms.get(base, now_ms)
        return patience_ms - max(now_ms - since, 0)


def hold_delayed(fate: SegmentFate, waiting: SegmentBacklog | None, now_ms: int) -> SegmentFate:
    """The decision with the segment's delayed messages: while one is not delivered, the segment stays."""
    if waiting is None or not fate.goes:
        return replace(fate, waiting=waiting)
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(waiting.until_ms / 1000))
    many = "delayed messages in it are" if waiting.messages > 1 else "delayed message in it is"
    reason = f"{waiting.messages} {many} not delivered yet; the last one is due at {until} UTC"
    if waiting.until_ms <= now_ms:
        reason += ", nobody has delivered: `rmq broker run` does"
    return replace(fate, goes=False, reason=reason, waiting=waiting)


def hold_units(fate: SegmentFate, units: int) -> SegmentFate:
    """The decision about a segment of a replica below whose end there are so many newest units."""
    if not units:
        return fate
    many = f"{units} newest units that are" if units > 1 else "1 newest unit that is"
    reason = f"a sink knows by {many} stored in it which commits were written; the master has not written it again"
    return replace(fate, goes=False, reason=reason)


def up_to_first_kept(fates: list[SegmentFate]) -> tuple[SegmentFate, ...]:
    """The segments up to the first one that stays, and of those after it only the kept ones, which now stay too."""
    first = next((number for number, fate in enumerate(fates) if not fate.goes), len(fates))
    behind = [replace(fate, goes=False) for fate in fates[first + 1 :] if fate.is_kept]
    return (*fates[: first + 1], *behind)
