"""The life of one message, from its records (pure functions).

Every hop of a message is a full copy of it in the log. The properties of a copy say how it came there: RocketMQ's are
set by AbstractSendMessageProcessor#consumerSendMsgBack and ScheduleMessageService#messageTimeUp, ours by `failure` and
`redrive_batch`. Deliveries to a listener leave no record. A copy shows that an attempt failed; the group's offset shows
that one succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from rmq_store.broker.rules.failure import DEAD_LETTER, ERROR_CLASS, ERROR_MESSAGE, REPLAYS
from rmq_store.format.frames.frame_check import TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass

_WAITING_TOPICS = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.PYRMQ_TIMER_TOPIC)


class Event(StrEnum):
    """The kinds of steps in a life, each shown by a record or its absence."""

    GONE = "GONE"
    STORED = "STORED"
    DELAYED = "DELAYED"
    TIMED = "TIMED"
    RECALLED = "RECALLED"
    DELIVERED = "DELIVERED"
    HALF = "HALF"
    CHECKED = "CHECKED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    FAILED = "FAILED"
    RETRY = "RETRY"
    DEAD = "DEAD"
    REDRIVEN = "REDRIVEN"
    RESTORED = "RESTORED"
    ARCHIVED = "ARCHIVED"


MEANINGS: Mapping[Event, str] = {
    Event.GONE: "the original record was deleted by retention; later ones are still there",
    Event.STORED: "the producer's message was stored",
    Event.DELAYED: "it waits for the delay level that its producer asked for",
    Event.TIMED: "it waits for the time that its producer asked for",
    Event.RECALLED: "it was taken back: nobody will ever see it",
    Event.DELIVERED: "its delay is over: consumers of the topic see it",
    Event.HALF: "the half message of a transaction: no consumer sees it",
    Event.CHECKED: "the producer was asked whether to commit",
    Event.COMMITTED: "the transaction was committed: consumers of the topic see it",
    Event.ROLLED_BACK: "the transaction was rolled back: nobody will ever see it",
    Event.FAILED: "an attempt failed; the message waits until it is due",
    Event.RETRY: "it is in the group's retry topic, for the attempt that is named",
    Event.DEAD: "the last attempt failed: a dead letter",
    Event.REDRIVEN: "the dead letter was moved back, to be consumed again",
    Event.RESTORED: "the dead letter was put back out of an archive",
    Event.ARCHIVED: "the dead letter is in an archive",
}
"""A line for each event, for people."""

SEEN = (Event.STORED, Event.DELIVERED, Event.COMMITTED)
"""After these, every group of the topic sees the message."""


@dataclass(frozen=True, slots=True)
class Step:
    """An event at `time_ms`. `attempt` counts from 1; `due_ms`: time of the next delivery; `message`: the record of the
    event, None for GONE, RECALLED, ROLLED_BACK and
    ARCHIVED.
    """

    time_ms: int
    event: Event
    topic: str
    queue_id: int | None = None
    queue_offset: int | None = None
    group: str | None = None
    attempt: int | None = None
    due_ms: int | None = None
    note: str = ""
    message: StoredMessage | None = None


def steps_of(records: Iterable[StoredMessage], due_ms: Mapping[int, int]) -> list[Step]:
    """The steps in the records of one message, in the order of the log.

    `due_ms`: due times of waiting messages, by commit-log offset.
    """
    steps: list[Step] = []
    for record in sorted(records, key=lambda record: record.commit_log_offset):
        steps.append(_step(record, due_ms.get(record.commit_log_offset), steps))
    return steps


def with_archived(steps: list[Step], archived: Iterable[Step]) -> list[Step]:
    """The steps with those of an archive, each after the step of its dead letter; at the front if that is gone."""
    merged = list(steps)
    for step in archived:
        place = (step.topic, step.queue_id, step.queue_offset, step.time_ms)
        at = next(
            (i for i, old in enumerate(merged) if (old.topic, old.queue_id, old.queue_offset, old.time_ms) == place), -1
        )
        merged.insert(at + 1, step)
    return merged


def group_of_retry(topic: str, properties: Mapping[str, str]) -> str:
    """The group of a retry topic. A retry topic of POP has the name %RETRY%group_topic, or one with a `+`; its records
    name the group.
    """
    return properties.get(keys.ORIGIN_GROUP) or names.retry_group(topic)


def _step(record: StoredMessage, due_ms: int | None, before: list[Step]) -> Step:
    own = record.properties
    step = Step(
        record.store_timestamp_ms, Event.STORED, record.topic, record.queue_id, record.queue_offset, message=record
    )
    if record.topic in _WAITING_TOPICS:
        return _waiting(step, record, due_ms)
    if record.topic == names.HALF_TOPIC:
        checks = own.get(keys.TRANSACTION_CHECK_TIMES)
        if checks is not None:
            return replace(step, event=Event.CHECKED, note=f"check {checks}")
        return replace(step, event=Event.HALF, note=f"producer group {own.get(keys.PRODUCER_GROUP, '')}")
    if record.topic.startswith(names.DLQ_PREFIX):
        return _dead(step, record, before)
    if DEAD_LETTER in own and not _has_level(own):
        return replace(
            step, event=Event.REDRIVEN, group=_redriven_group(record, before), attempt=record.reconsume_times + 1,
            note=f"replay {own.get(REPLAYS, '1')} of dead letter {own[DEAD_LETTER]}",
        )  # fmt: skip
    if record.topic.startswith(names.RETRY_PREFIX):
        group = group_of_retry(record.topic, own)
        return replace(step, event=Event.RETRY, group=group, attempt=record.reconsume_times + 1)
    if record.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
        return replace(step, event=Event.COMMITTED)
    if own.get(keys.REAL_TOPIC) == record.topic:
        return replace(step, event=Event.DELIVERED)
    if any(earlier.event is Event.STORED and earlier.topic == record.topic for earlier in before):
        return replace(step, note="again, with the same unique key: its producer repeated the send")
    return step


def _waiting(step: Step, record: StoredMessage, due_ms: int | None) -> Step:
    own = record.properties
    target = own.get(keys.REAL_TOPIC, "")
    step = replace(step, due_ms=due_ms, note=f"goes to {target}")
    if target.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        prefix = names.RETRY_PREFIX if target.startswith(names.RETRY_PREFIX) else names.DLQ_PREFIX
        return replace(
            step, event=Event.FAILED, group=target.removeprefix(prefix), attempt=record.reconsume_times,
            note=f"level {own.get(keys.DELAY_TIME_LEVEL, '?')}" + _reason(own),
        )  # fmt: skip
    return replace(step, event=Event.DELAYED if record.topic == names.SCHEDULE_TOPIC else Event.TIMED)


def _dead(step: Step, record: StoredMessage, before: list[Step]) -> Step:
    group = record.topic.removeprefix(names.DLQ_PREFIX)
    ours = [earlier for earlier in before if earlier.group == group]
    event = Event.RESTORED if ours and ours[-1].event in (Event.DEAD, Event.RESTORED) else Event.DEAD
    return replace(
        step, event=event, group=group, attempt=record.reconsume_times, note=_reason(record.properties).lstrip(": ")
    )


def _redriven_group(record: StoredMessage, before: list[Step]) -> str | None:
    """The group of a redriven dead letter: the property has its queue and offset in the dead-letter topic, not the
    topic.
    """
    if record.topic.startswith(names.RETRY_PREFIX):
        return group_of_retry(record.topic, record.properties)
    place = record.properties[DEAD_LETTER]
    for earlier in reversed(before):
        if earlier.event in (Event.DEAD, Event.RESTORED) and f"{earlier.queue_id}:{earlier.queue_offset}" == place:
            return earlier.group
    return None


def _has_level(properties: Mapping[str, str]) -> bool:
    """True if a send-back came after the redrive: the redrive removes the delay level."""
    return keys.DELAY_TIME_LEVEL in properties


def _reason(properties: Mapping[str, str]) -> str:
    found = [properties[name] for name in (ERROR_CLASS, ERROR_MESSAGE) if name in properties]
    return f": {': '.join(found)}" if found else ""
