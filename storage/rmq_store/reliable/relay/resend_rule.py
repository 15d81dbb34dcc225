"""Whether a message that was sent and is not confirmed is sent again: the five conditions of H09, pure.

    the article                           here
    unconfirmed                           a group is left that has neither confirmed nor done it
    sent less often than allowed          else a person decides: MAXIMUM
    resend time                           is past (the document reads the other way), and is after the last send
    offset below the largest received     at or below it, for this group, broker, topic and queue, by first deliveries
                                          only; not needed for a message whose offset is unknown (delayed, timed, half),
                                          that the log says has come, or that its broker has lost
    id not in the log                     no worker has it now, no retry of RocketMQ is due, and it is not dead

The mark and the log row are written in one transaction. So a message at the mark without a row of the log was done, or
the broker has lost it and has given its offset to another message. With "below" the last message of a queue would never
be sent again. If a message waits in its queue for too long (the group is gone, or nobody can read its inbox), people
decide, too: STUCK.

One group for which all five hold is enough. A message with a sharding key would come after later messages of its key,
because a later message has moved the mark. So a person decides (ORDERED), or the relay's `resend_out_of_order` allows
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.leases import is_live

STUCK_AFTER_MS: Final = 24 * 3_600_000
LOG_WAIT_MS_MAX: Final = 12 * 3_600_000
"""No lease and no retry of a group is longer: so long may a simple consumer hide a message. The ladder ends at 2 h."""


class Action(StrEnum):
    """The decision about a stub. WAIT_...: it is not sent again now, and the rest of the name is the reason."""

    RESEND = "resend"
    MAXIMUM = "maximum"
    ORDERED = "ordered"
    # Every group has done it, and a confirmation was lost.
    CONFIRM = "confirm"
    # The clock was set back since it was sent: its time counts from now.
    COUNT_AGAIN = "count_again"
    STUCK = "stuck"
    WAIT_NOT_DUE = "not_due"
    WAIT_IN_QUEUE = "in_queue"
    WAIT_IN_WORK = "in_work"
    WAIT_DEAD = "dead_letter"
    WAIT_UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class SentStub:
    """The facts about a stub. Times in ms since 1970; `queue_offset` None: not comparable. `max_offset`: the broker's
    end of this queue; None: the broker was not asked.
    """

    send_count: int
    sent_ms: int
    resend_ms: int
    queue_offset: int | None
    has_sharding_key: bool
    max_offset: int | None = None


@dataclass(frozen=True, slots=True)
class LogState:
    """The row of the log of one group."""

    lease_until_ms: int
    blocks_until_ms: int
    is_dead: bool


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of the message in a group that has not confirmed. `high_water`: the largest offset of the message's
    queue that the group received as a first delivery; None: none. `is_unreachable`: its database does not answer.
    """

    is_done: bool = False
    high_water: int | None = None
    log: LogState | None = None
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`done_groups` have done the message, and their lost confirmation is written now, whatever `action` is."""

    action: Action
    done_groups: tuple[str, ...] = ()


def decide(
    stub: SentStub,
    groups: Mapping[str, GroupState],
    now_ms: int,
    *,
    max_send_count: int,
    resend_out_of_order: bool,
    stuck_after_ms: int = STUCK_AFTER_MS,
) -> Decision:
    """Apply the rule to a stub and the groups that have not confirmed it."""
    done = tuple(group for group, state in groups.items() if state.is_done)
    left = [state for state in groups.values() if not state.is_done]
    action = _action(stub, left, now_ms)
    if action is Action.RESEND:
        if stub.has_sharding_key and not resend_out_of_order:
            action = Action.ORDERED
        elif stub.send_count >= max_send_count:
            action = Action.MAXIMUM
    elif action in (Action.WAIT_IN_QUEUE, Action.WAIT_UNREACHABLE) and now_ms - stub.resend_ms > stuck_after_ms:
        action = Action.STUCK
    return Decision(action, done)


def _action(stub: SentStub, left: list[GroupState], now_ms: int) -> Action:
    if not left:
        return Action.CONFIRM
    if stub.sent_ms > now_ms:
        return Action.COUNT_AGAIN
    if stub.resend_ms > now_ms:
        return Action.WAIT_NOT_DUE
    waits = [_wait_of(stub, state, now_ms) for state in left]
    if None not in waits:
        # The most hopeful of them: what is dead for one group may still be on its way to another.
        for wait in (Action.WAIT_IN_WORK, Action.WAIT_UNREACHABLE, Action.WAIT_IN_QUEUE):
            if wait in waits:
                return wait
        return Action.WAIT_DEAD
    return Action.RESEND


def _wait_of(stub: SentStub, state: GroupState, now_ms: int) -> Action | None:
    """Why this group does not need the message again now; None: it needs it."""
    if state.is_unreachable:
        return Action.WAIT_UNREACHABLE
    if state.log is not None:
        if state.log.is_dead:
            return Action.WAIT_DEAD
        if any(
            is_live(until_ms, now_ms, LOG_WAIT_MS_MAX)
            for until_ms in (state.log.lease_until_ms, state.log.blocks_until_ms)
        ):
            return Action.WAIT_IN_WORK
    elif stub.queue_offset is not None and not _is_past(stub.queue_offset, stub.max_offset, state.high_water):
        return Action.WAIT_IN_QUEUE
    return None


def _is_past(offset: int, max_offset: int | None, high_water: int | None) -> bool:
    """True if the group will not receive the offset any more."""
    if max_offset is not None:
        if offset >= max_offset:
            return True  # the broker has it no more
        if high_water is not None and high_water >= max_offset:
            return False  # the mark is of an earlier topic of this name
    return high_water is not None and offset <= high_water
