"""Dead letters of consumer groups, from `%DLQ%group` to the manual list (H08: "people look").

A dead letter that its group has done is none: another worker was faster, or somebody redrove it. Its stub is confirmed
instead. Any other one gets an entry, and a row of `log` that is dead: from then on nobody sends it again by itself, and
the entry goes when the group has done the message, by `rmq dlq redrive` or `rmq resend retry`.

A message that dies again after people were told of it is a new entry, so that they are told again.

How far a queue was collected stands in `high_water`, under the dead-letter topic. It moves in the transaction that
writes the entries, and only from where this collector has read it: of two collectors one goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.client import Backend, Broker, MessageQueue, PullStatus
from rmq_store.errors import NoMessageIdError, UsageError
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.manual_list import DEAD_LETTER, NO_ID, ManualEntry
from rmq_store.reliable.database.message_id import message_id_of
from rmq_store.reliable.database.new_rows import insert_new
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX, VOID, Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.outbox.stub import confirm_all, status_of

DLQ_PREFIX: Final = "%DLQ%"
ROWS_PER_TRANSACTION: Final = 256
SAME_DEATH_MS: Final = 60_000

_log = logging.getLogger(__name__)

# Properties that Spark and `rmq consume` write when they send a message back: why it failed.
_ERROR_CLASS, _ERROR_MESSAGE = "PYRMQ_ERROR_CLASS", "PYRMQ_ERROR_MESSAGE"
# The topic that a retried message came from (MessageConst.PROPERTY_RETRY_TOPIC).
_ORIGINAL_TOPIC = "RETRY_TOPIC"


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The counts of a collection: `read` dead letters in all, of which `listed` are on the manual list now, `done` were
    done by their group, `void` were taken back, and `without_id` can be recognised by nobody (listed as no_id).
    `gone` were deleted by retention before they were read.
    """

    read: int = 0
    listed: int = 0
    done: int = 0
    void: int = 0
    without_id: int = 0
    gone: int = 0

    def __add__(self, other: CollectReport) -> CollectReport:
        return CollectReport(
            self.read + other.read,
            self.listed + other.listed,
            self.done + other.done,
            self.void + other.void,
            self.without_id + other.without_id,
            self.gone + other.gone,
        )


@dataclass(frozen=True, slots=True)
class _DeadLetter:
    message_id: str
    topic: str
    queue: MessageQueue
    queue_offset: int
    reconsume_times: int
    stored_ms: int
    detail: str


class DeadLetters:
    """Collects into the consumers' database `engine`. `stubs`: the senders' database, if it is another one."""

    def __init__(
        self, backend: Backend, engine: sa.Engine, tables: Tables | None = None, *, stubs: sa.Engine | None = None
    ) -> None:
        self._backend = backend
        self._engine = engine
        self._tables = Tables() if tables is None else tables
        self._stubs = stubs if stubs is not None and stubs is not engine else None

    def groups(self) -> list[str]:
        """The groups that consume with this database, by name: those that have a high-water mark."""
        marks = self._tables.high_water
        asked = sa.select(marks.c.group_name).distinct().order_by(marks.c.group_name)
        return read(self._engine, lambda connection: list(connection.scalars(asked)))

    def collect_all(self, groups: Sequence[str] | None = None) -> CollectReport:
        """`collect` for each of the groups, by default for all that `groups` has."""
        return sum((self.collect(group) for group in (self.groups() if groups is None else groups)), CollectReport())

    def collect(self, group: str) -> CollectReport:
        """Bring the dead letters that came since the last time to the manual list; durable when it returns.

        Raises:
            UsageError: the group's dead letters may not be read (dlqPerm). ClientError, CorruptionError: the broker
            does not answer, or a record is damaged. Dead letters before it are collected.
        """
        topic = DLQ_PREFIX + group
        queues = self._backend.subscribe_queues(topic)
        if not queues and self._backend.publish_queues(topic):
            raise UsageError(
                f"the dead letters of {group} may not be read: give {topic} the permission 6, as "
                f"`rmq updateTopicPerm -t {topic} -p 6` does"
            )
        return sum((self._collect_queue(group, queue) for queue in queues), CollectReport())

    def _collect_queue(self, group: str, queue: MessageQueue) -> CollectReport:
        broker = self._backend.brokers()[queue.broker_name]
        mark = self._mark(group, queue)
        report = CollectReport(gone=self._gone(broker, queue, mark))
        for letters, nameless, end in self._batches(group, broker, queue, mark):
            write = partial(
                self._write, group=group, queue=queue, letters=letters, nameless=nameless, mark=mark, end=end
            )
            moved, found = transact(self._engine, write)
            if not moved:  # another collector is at it
                return report
            if self._stubs is not None:
                self._confirm_elsewhere(group, found.done_ids)
            report += CollectReport(
                len(letters) + len(nameless), found.listed, len(found.done_ids), found.void, len(nameless)
            )
            mark = end - 1
        return report

    def _gone(self, broker: Broker, queue: MessageQueue, mark: int | None) -> int:
        """How many dead letters retention has taken unseen."""
        gone = 0 if mark is None else broker.min_offset(queue) - mark - 1
        if gone > 0:
            _log.warning(
                "%s queue %d at %s: %d dead letters were deleted before they were collected: collect more often, or "
                "keep them longer (fileReservedTime, rmq dlq archive)",
                queue.topic, queue.queue_id, queue.broker_name, gone,
            )  # fmt: skip
        return max(gone, 0)

    def _batches(
        self, group: str, broker: Broker, queue: MessageQueue, mark: int | None
    ) -> Iterator[tuple[list[_DeadLetter], list[_DeadLetter], int]]:
        """Dead letters behind `mark`, a transaction's worth at a time; those without an id; where to go on."""
        last = broker.max_offset(queue)
        # A mark behind the end is of a topic that was deleted, or of another store: begin again.
        offset = broker.min_offset(queue) if mark is None or mark >= last else mark + 1
        if mark is not None and mark == last - 1:
            return
        while offset < last:
            pulled = broker.pull_batch(group, queue, offset, ROWS_PER_TRANSACTION)
            if pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_begin_offset <= offset:
                return
            for batch in pulled.batches:
                for start in range(0, batch.num_rows, ROWS_PER_TRANSACTION):
                    rows = batch.slice(start, ROWS_PER_TRANSACTION).drop_columns(["body"]).to_pylist()
                    yield *_letters(queue, rows), int(rows[-1]["queueOffset"]) + 1
            if pulled.next_begin_offset <= offset:
                return
            offset = pulled.next_begin_offset

    def _mark(self, group: str, queue: MessageQueue) -> int | None:
        marks = self._tables.high_water
        asked = sa.select(marks.c.queue_offset).where(*self._place(group, queue))
        return read(self._engine, lambda connection: connection.scalar(asked))

    def _write(
        self,
        connection: sa.Connection,
        group: str,
        queue: MessageQueue,
        letters: Sequence[_DeadLetter],
        nameless: Sequence[_DeadLetter],
        mark: int | None,
        end: int,
    ) -> tuple[bool, _Found]:
        """Entries and log rows of what is not done, and the mark from `mark` to `end`. False: it stands elsewhere."""
        if not self._move_mark(connection, group, queue, mark, end - 1):
            return False, _Found()
        tables, at_ms = self._tables, now_ms()
        ids = sorted({letter.message_id for letter in letters})
        inbox = tables.inbox
        asked = sa.select(inbox.c.message_id).where(inbox.c.group_name == group, inbox.c.message_id.in_(ids))
        done = set(connection.scalars(asked)) if ids else set()
        if self._stubs is None:
            confirm_all(connection, tables, group, sorted(done), at_ms)
        open_ids = [message_id for message_id in ids if message_id not in done]
        void = {message_id for message_id, status in self._statuses(connection, open_ids).items() if status == VOID}
        open_letters = {
            letter.message_id: letter
            for letter in letters
            if letter.message_id not in done and letter.message_id not in void
        }
        self._forget_told(connection, group, open_letters)
        manual_list.add_all(
            connection,
            tables,
            (
                ManualEntry(letter.message_id, group, DEAD_LETTER, letter.detail, at_ms)
                for letter in open_letters.values()
            ),
        )
        manual_list.add_all(
            connection,
            tables,
            (ManualEntry(letter.message_id, group, NO_ID, letter.detail, at_ms) for letter in nameless),
        )
        self._write_log(connection, group, [open_letters[message_id] for message_id in sorted(open_letters)], at_ms)
        return True, _Found(len(open_letters), len(void), tuple(sorted(done)))

    def _forget_told(self, connection: sa.Connection, group: str, letters: Mapping[str, _DeadLetter]) -> None:
        """Remove entries of earlier deaths. Right behind the entry of a worker that gave a message up comes its dead
        letter: that is the same death.
        """
        earlier = manual_list.list_entries(
            connection,
            self._tables,
            limit=len(letters) or 1,
            group_name=group,
            reason=DEAD_LETTER,
            message_ids=list(letters),
        )
        told = [
            entry.message_id
            for entry in earlier
            if entry.notified_ms is not None
            and letters[entry.message_id].stored_ms > max(entry.notified_ms, entry.created_ms + SAME_DEATH_MS)
        ]
        manual_list.remove_all(connection, self._tables, told, group, DEAD_LETTER)

    def _statuses(self, connection: sa.Connection, message_ids: Sequence[str]) -> Mapping[str, str]:
        if self._stubs is None:
            return status_of(connection, self._tables, message_ids)
        return read(self._stubs, partial(status_of, tables=self._tables, message_ids=message_ids))

    def _write_log(self, connection: sa.Connection, group: str, letters: Sequence[_DeadLetter], at_ms: int) -> None:
        """From now on people decide: a relay sends nothing that is dead for a group."""
        log = self._tables.log
        insert_new(connection, log, [_log_row(group, letter, at_ms) for letter in letters])
        ids = [letter.message_id for letter in letters]
        if ids:
            connection.execute(
                sa.update(log).where(log.c.group_name == group, log.c.message_id.in_(ids)).values(is_dead=True)
            )

    def _move_mark(
        self, connection: sa.Connection, group: str, queue: MessageQueue, mark: int | None, to_offset: int
    ) -> bool:
        marks = self._tables.high_water
        if mark is None:
            row = {
                "group_name": group,
                "broker_name": queue.broker_name,
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "queue_offset": to_offset,
            }
            insert_new(connection, marks, [row])
            there = connection.scalar(
                sa.select(marks.c.queue_offset).where(*self._place(group, queue)).with_for_update()
            )
            return there == to_offset
        moved = sa.update(marks).where(*self._place(group, queue), marks.c.queue_offset == mark)
        return connection.execute(moved.values(queue_offset=to_offset)).rowcount == 1

    def _place(self, group: str, queue: MessageQueue) -> tuple[sa.ColumnElement[bool], ...]:
        marks = self._tables.high_water
        return (
            marks.c.group_name == group,
            marks.c.broker_name == queue.broker_name,
            marks.c.topic == queue.topic,
            marks.c.queue_id == queue.queue_id,
        )

    def _confirm_elsewhere(self, group: str, done_ids: Sequence[str]) -> None:
        assert self._stubs is not None
        if done_ids:
            transact(self._stubs, lambda connection: confirm_all(connection, self._tables, group, done_ids, now_ms()))


@dataclass(frozen=True, slots=True)
class _Found:
    listed: int = 0
    void: int = 0
    done_ids: tuple[str, ...] = ()


def _letters(queue: MessageQueue, rows: Sequence[Mapping[str, Any]]) -> tuple[list[_DeadLetter], list[_DeadLetter]]:
    """Those with an id, and those without one, which have their place instead."""
    letters: list[_DeadLetter] = []
    nameless: list[_DeadLetter] = []
    for row in rows:
        properties = dict(row["properties"])
        place = f"{queue.broker_name}/{queue.topic}/{queue.queue_id}/{row['queueOffset']}"
        try:
            message_id, kind = message_id_of(properties, place), letters
        except NoMessageIdError:
            message_id, kind = place[-MESSAGE_ID_CHARACTERS_MAX:], nameless
        kind.append(
            _DeadLetter(
                message_id,
                properties.get(_ORIGINAL_TOPIC) or queue.topic,
                queue,
                row["queueOffset"],
                row["reconsumeTimes"],
                int(row["storeTimestamp"].timestamp() * 1000),
                _detail(queue, row, properties),
            )
        )
    return letters, nameless


def _detail(queue: MessageQueue, row: Mapping[str, Any], properties: Mapping[str, str]) -> str:
    """Why it died, if anybody has written that down, and where it lies."""
    why = ": ".join(filter(None, (properties.get(_ERROR_CLASS), properties.get(_ERROR_MESSAGE))))
    origin = properties.get(_ORIGINAL_TOPIC)
    where = f"{queue.topic} queue {queue.queue_id} offset {row['queueOffset']} at {queue.broker_name}"
    parts = (why, f"from {origin}" if origin else "", f"reconsumeTimes {row['reconsumeTimes']}", f"in {where}")
    return ", ".join(filter(None, parts))


def _log_row(group: str, letter: _DeadLetter, at_ms: int) -> dict[str, Any]:
    return {
        "group_name": group,
        "message_id": letter.message_id,
        "broker_name": letter.queue.broker_name,
        "topic": letter.topic,
        "queue_id": letter.queue.queue_id,
        "queue_offset": letter.queue_offset,
        "received_ms": at_ms,
        "reconsume_times": letter.reconsume_times,
        "lease_token": None,
        "lease_until_ms": 0,
        "blocks_until_ms": 0,
        "is_dead": True,
    }
