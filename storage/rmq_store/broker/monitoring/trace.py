"""Traces messages through a store: the events of each, and the state of each group. It writes nothing.

`trace_records` finds the records, `trace_life` reads them. Other facts come from offsets, queue entries, the markers of
transactions and, if given, an archive of dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from rmq_store.broker.delay.recalled import offset_in
from rmq_store.broker.dlq.archive_files import ArchiveFile, ArchiveFiles, read
from rmq_store.broker.dlq.archive_schema import ARCHIVE_SCHEMA
from rmq_store.broker.monitoring.message_track import Tracker, TrackType
from rmq_store.broker.monitoring.trace_life import SEEN, Event, Step, steps_of, with_archived
from rmq_store.broker.monitoring.trace_records import Copies
from rmq_store.errors import CorruptIndexError, OffsetOutOfRangeError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

SCAN_MAX: Final = 1_000_000
"""The most messages that are read if the index cannot answer."""

_TIMER_TOPICS = (names.TIMER_TOPIC, names.PYRMQ_TIMER_TOPIC)
_COPIES = (Event.FAILED, Event.RETRY, Event.DEAD, Event.RESTORED, Event.REDRIVEN)


class State(StrEnum):
    """The state of a message for one group, or for all groups."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    PULL = "PULL"
    UNKNOWN = "UNKNOWN"
    WAITING = "WAITING"
    DEAD = "DEAD"
    REDRIVEN = "REDRIVEN"
    HALF = "HALF"
    ROLLED_BACK = "ROLLED_BACK"
    RECALLED = "RECALLED"


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a message for a group (None: no group sees it yet). `attempt` is the one that succeeded, is next, or
    was the last; `due_ms`: time of the next delivery.
    """

    group: str | None
    state: State
    topic: str
    attempt: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """The known facts of one message: `steps` in their order, `standings` by group.

    `complete`: False if some records were not read (`scan_max`, or more than a thousand copies).
    """

    msg_id: str
    steps: tuple[Step, ...]
    standings: tuple[Standing, ...]
    complete: bool


class Readers(Protocol):
    """The groups that read a topic, and how far each of them has come."""

    def groups(self, topic: str) -> list[str]:
        """The groups that committed an offset on the topic, sorted."""

    def track_type(self, group: str, message: StoredMessage) -> TrackType:
        """Say how far the group is with this message."""


class Trace:
    """Follows messages of one open store. A read-only one is enough."""

    def __init__(self, store: Store, *, archive: str | Path | None = None, scan_max: int = SCAN_MAX) -> None:
        """`archive`: a directory that `DeadLetterArchive` wrote, to be searched too."""
        self._store = store
        self._archive = None if archive is None else ArchiveFiles(Path(archive))
        self._scan_max = scan_max
        self._copies = Copies(store, scan_max)
        self._tracker = Tracker(store)

    def by_unique_keys(self, unique_keys: Sequence[str], topic: str | None = None) -> list[Life]:
        """The lives of the found messages with these unique ids, in the order of the ids.

        `topic`: where the originals are, which is read if the index cannot answer.

        Raises:
            UsageError: one is not found, the store keeps no index, and no `topic` was given that could be read instead.
            CorruptIndexError: the same, if the index is damaged or may be incomplete.
            CorruptionError: a record, a queue or a config file is damaged.
        """
        wanted = list(dict.fromkeys(unique_keys))
        not_asked: UsageError | CorruptIndexError | None = None
        try:
            found, complete = self._copies.by_index(wanted)
        except (UsageError, CorruptIndexError) as error:
            found, complete = self._copies.scan(wanted, [], topic, 0)
            not_asked = error
        by_key: dict[str, list[StoredMessage]] = {key: [] for key in wanted}
        for record in found:
            by_key.get(record.properties.get(keys.UNIQUE_KEY, ""), []).append(record)
        lives = [self._life(key, records, complete) for key, records in by_key.items()]
        if not_asked is not None and topic is None and not all(life.steps for life in lives):
            raise not_asked
        return [life for life in lives if life.steps]

    def by_offset_id(self, msg_id: str) -> Life | None:
        """The life of the message with this offset id, or of which a copy has it, also if only later copies are left;
        None if there are none. UsageError: not an offset id. Raises as `by_unique_keys`.
        """
        parse_offset_message_id(msg_id)
        first = self._copies.original(msg_id)
        if first is None:
            copies, complete = self._copies.scan([], [msg_id.upper()], None, 0)
            if not copies:
                return None
            first = copies[0]
        else:
            copies, complete = [first], True
        unique_key = first.properties.get(keys.UNIQUE_KEY)
        origin = first.properties.get(keys.ORIGIN_MESSAGE_ID, msg_id.upper())
        if unique_key is None:
            copies, complete = self._copies.scan([], [origin], None, first.born_timestamp_ms)
            records = {record.commit_log_offset: record for record in [first, *copies]}
            return self._life(msg_id, list(records.values()), complete)
        lives = self.by_unique_keys([unique_key], first.properties.get(keys.RETRY_TOPIC, first.topic))
        return lives[0] if lives else self._life(unique_key, copies, complete)

    def by_key(self, topic: str, key: str) -> list[Life]:
        """The lives of the newest 64 messages of the topic with this key, of delayed and half messages for it, and of
        messages of which only retries, dead letters or archived ones are left. Raises as `Query.by_key`.
        """
        found = self._copies.by_key(topic, key)
        with_id = [record.properties[keys.UNIQUE_KEY] for record in found if keys.UNIQUE_KEY in record.properties]
        with_id += self._archived_keys(topic, key)
        lives = self.by_unique_keys(with_id, topic) if with_id else []
        without = dict.fromkeys(
            record.properties.get(keys.ORIGIN_MESSAGE_ID, record.offset_msg_id)
            for record in found
            if keys.UNIQUE_KEY not in record.properties
        )
        return [*lives, *(life for msg_id in without if (life := self.by_offset_id(msg_id)) is not None)]

    # -- lives ------------------------------------------------------------------------------------------------------

    def _life(self, msg_id: str, records: Sequence[StoredMessage], complete: bool) -> Life:
        due_ms = {record.commit_log_offset: due for record in records if (due := self._due_ms(record)) is not None}
        steps = with_archived(steps_of(records, due_ms), self._archived(msg_id))
        if not steps:
            return Life(msg_id, (), (), complete)
        steps = with_gone(steps)
        if steps[-1].event in (Event.HALF, Event.CHECKED) and (ended := self._rolled_back(steps[-1])) is not None:
            steps.append(ended)
        if steps[-1].event is Event.TIMED and (ended := self._recalled(steps[-1])) is not None:
            steps.append(ended)
        return Life(msg_id, tuple(steps), tuple(standings_of(steps, self._tracker)), complete)

    def _archive_files(self) -> list[ArchiveFile]:
        if self._archive is None:
            return []
        return [file for group in self._archive.groups() for file in self._archive.of(group)]

    def _archived_keys(self, topic: str, key: str) -> list[str]:
        """The unique keys of archived dead letters of the topic with a key."""
        found = []
        for file in self._archive_files():
            for batch in read(file, ARCHIVE_SCHEMA, ["msgId", "keys", "originTopic"]):
                may_have_it = pc.match_substring(pc.coalesce(batch.column("keys"), ""), key)
                rows = batch.filter(pc.and_(may_have_it, pc.equal(batch.column("originTopic"), topic)))
                found += [row["msgId"] for row in rows.to_pylist() if key in row["keys"].split(" ")]
        return found

    def _archived(self, msg_id: str) -> list[Step]:
        """The dead letters of the message in the archive."""
        columns = ["queueOffset", "msgId", "storeTimestamp", "reconsumeTimes"]
        found = []
        for file in self._archive_files():
            for batch in read(file, ARCHIVE_SCHEMA, columns):
                rows = batch.filter(pc.equal(batch.column("msgId"), msg_id))
                times = rows.column("storeTimestamp").cast(pa.int64()).to_pylist()
                for row, time_us in zip(rows.to_pylist(), times, strict=True):
                    found.append(
                        Step(
                            (time_us or 0) // 1000, Event.ARCHIVED, names.dlq_topic(file.group), file.queue_id,
                            row["queueOffset"], file.group, row["reconsumeTimes"], note=str(file.path),
                        )
                    )  # fmt: skip
        return found

    def _due_ms(self, record: StoredMessage) -> int | None:
        """The due time (ms) of a waiting message. A timer's property is used, because a broker may have rebuilt its
        queue entry.
        """
        if record.topic in _TIMER_TOPICS:
            text = record.properties.get(keys.TIMER_OUT_MS, "")
            return int(text) if text.isascii() and text.isdigit() else None
        if record.topic != names.SCHEDULE_TOPIC:
            return None
        try:
            return self._store.tags_code(record.topic, record.queue_id, record.queue_offset)
        except OffsetOutOfRangeError:
            return None

    def _rolled_back(self, half: Step) -> Step | None:
        """The rollback of a half message, if the broker recorded one: the queue of markers has one record for several
        half messages, with their queue offsets in its body ("0,1,").
        """
        wanted = str(half.queue_offset).encode()
        place = names.OP_HALF_TOPIC, 0
        return self._ended(Event.ROLLED_BACK, *place, half.time_ms, lambda body: wanted in body.split(b","))

    def _recalled(self, timed: Step) -> Step | None:
        """The recall of a timer, if there is one."""
        record = timed.message
        if record is None or record.topic != names.PYRMQ_TIMER_TOPIC:
            return None
        offset, place = record.queue_offset, (names.PYRMQ_RECALLED_TOPIC, record.queue_id)
        return self._ended(Event.RECALLED, *place, timed.time_ms, lambda body: offset_in(body) == offset)

    def _ended(
        self, event: Event, name: str, queue_id: int, since_ms: int, is_named: Callable[[bytes], bool]
    ) -> Step | None:
        """The event, if a record of this queue names the message."""
        first, last = self._store.queue_range(name, queue_id)
        start = self._store.offset_by_time(name, queue_id, since_ms) if first < last else last
        end = min(last, start + self._scan_max)
        columns = ["body", "storeTimestamp"]
        for batch in self._store.read(name, queue_id, start, end, columns=columns) if start < end else ():
            times = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
            for body, time_us in zip(batch.column("body").to_pylist(), times, strict=True):
                if is_named(body or b""):
                    return Step(time_us // 1000, event, name, queue_id)
        return None


def standings_of(steps: Sequence[Step], readers: Readers) -> list[Standing]:
    """The states of a message by group, sorted; one without a group if nobody reads it. `steps`: at least one."""
    last_of = {step.group: step for step in steps if step.group is not None}
    seen = next((step for step in reversed(steps) if step.event in SEEN), None)
    reading = readers.groups(seen.topic) if seen else []
    found = []
    for group in sorted({*last_of, *reading}):
        if group in last_of:
            found.append(_standing(group, last_of[group], readers))
        elif seen is not None and seen.message is not None:
            state = State(readers.track_type(group, seen.message))
            found.append(Standing(group, state, seen.topic, attempt=1))
    if not found:
        found.append(_nobody(steps[-1]))
    return found


def _standing(group: str, last: Step, readers: Readers) -> Standing:
    if last.event is Event.FAILED:
        return Standing(group, State.WAITING, last.topic, (last.attempt or 0) + 1, last.due_ms)
    if last.event in (Event.DEAD, Event.RESTORED) or last.message is None:
        return Standing(group, State.DEAD, last.topic, last.attempt)
    found = readers.track_type(group, last.message)
    if last.event is Event.REDRIVEN and found is not TrackType.CONSUMED:
        return Standing(group, State.REDRIVEN, last.topic, last.attempt)
    return Standing(group, State(found), last.topic, last.attempt)


def with_gone(steps: list[Step]) -> list[Step]:
    """The steps behind one for lost earlier records, if the first record that is left is a copy."""
    first = steps[0].message
    if first is None or steps[0].event not in _COPIES:
        return steps
    topic = first.properties.get(keys.RETRY_TOPIC, "")
    origin = first.properties.get(keys.ORIGIN_MESSAGE_ID, "")
    return [Step(first.born_timestamp_ms, Event.GONE, topic, note=origin), *steps]


def _nobody(last: Step) -> Standing:
    """The state of a message that no group has read."""
    states = {
        Event.DELAYED: State.WAITING, Event.TIMED: State.WAITING, Event.HALF: State.HALF, Event.CHECKED: State.HALF,
        Event.ROLLED_BACK: State.ROLLED_BACK, Event.RECALLED: State.RECALLED,
    }  # fmt: skip
    return Standing(None, states.get(last.event, State.NOT_CONSUME_YET), last.topic, due_ms=last.due_ms)
