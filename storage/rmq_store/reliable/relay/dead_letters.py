"""Dead letters of consumer groups, from `%DLQ%group` to the manual list (H08: "people look").

A dead letter whose message the group has done needs nobody: another worker was faster, or somebody redrove it. Its stub
is confirmed instead. Any other one gets an entry, and a dead row of `log`: from then on no relay sends it again. The
entry is removed when the group has done the message, after `rmq dlq redrive` or `rmq resend retry`.

A message that dies again after people were notified gets a new entry, so they are notified again.

`high_water` has, under the dead-letter topic, how far a queue was collected. The mark moves in the transaction that
writes the entries, and only from the offset at which this collector has read it. So of two collectors only one goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.client import Backend, MessageQueue, MQClientError
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.drivers import require_engine
from rmq_store.reliable.database.inserting import insert_new
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.manual_list import DEAD_LETTER, NO_ID, ManualEntry
from rmq_store.reliable.database.tables import VOID, Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.outbox.stub import confirm_all, status_of
from rmq_store.reliable.relay.dead_letter_pages import DeadLetter, DeadLetterPage, count_gone, pages

DLQ_PREFIX: Final = "%DLQ%"
SAME_DEATH_MS: Final = 60_000
NOTHING_READ: Final = -1

@dataclass(frozen=True, slots=True)
class CollectReport:
    """The counts of a collection: `read` dead letters in all, of which `listed` are on the manual list now, `done` were
    done by their group, `void` were voided, and `without_id` have no id (listed as no_id). `gone` were deleted by
    retention before they were read.
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


class DeadLetters:
    """Collects dead letters into the consumers' database `engine`. `stubs`: the senders', if it is another one."""

    def __init__(
        self, backend: Backend, engine: sa.Engine, tables: Tables | None = None, *, stubs: sa.Engine | None = None
    ) -> None:
        self._backend = backend
        self._engine = require_engine(engine)
        self._tables = Tables() if tables is None else tables
        self._stubs = stubs if stubs is not None and stubs is not engine else None

    def groups(self) -> list[str]:
        """The groups that consume with this database, by name: those that have a high-water mark."""
        marks = self._tables.high_water
        asked = sa.select(marks.c.group_name).distinct().order_by(marks.c.group_name)
        return read(self._engine, lambda connection: list(connection.scalars(asked)))

    def collect_all(self, groups: Sequence[str] | None = None) -> CollectReport:
        """`collect` for each of the groups; by default for all groups that `groups()` returns."""
        return sum((self.collect(group) for group in (self.groups() if groups is None else groups)), CollectReport())

    def collect(self, group: str) -> CollectReport:
        """Put the dead letters that came since the last call on the manual list; durable on return.

        Raises:
            UsageError: the group's dead letters may not be read (dlqPerm).
            ClientError, CorruptionError: the broker does not answer, or a record is damaged. Dead letters before it are
                collected.
        """
        topic = DLQ_PREFIX + group
        exists = bool(self._backend.publish_queues(topic))  # asked first: the first letter may make the topic meanwhile
        queues = self._backend.subscribe_queues(topic)
        if exists and not queues and self._backend.publish_queues(topic):  # somebody may delete it meanwhile, too
            raise UsageError(
                f"the dead letters of {group} may not be read: give {topic} the permission 6, as "
                f"`rmq updateTopicPerm -t {topic} -p 6` does"
            )
        return sum((self._collect_queue(group, queue) for queue in queues), CollectReport())

    def _collect_queue(self, group: str, queue: MessageQueue) -> CollectReport:
        broker = self._backend.brokers().get(queue.broker_name)
        if broker is None:  # a route may know a broker, or know it still, that the list of brokers does not have
            raise MQClientError(f"The broker[{queue.broker_name}] not exist")
        mark = self._mark(group, queue)
        first = broker.min_offset(queue)
        report = CollectReport(gone=0 if mark is None else count_gone(queue, mark + 1, first))
        for page in pages(group, broker, queue, mark):
            due = first if mark is None else max(first, mark + 1)
            write = partial(self._write, group=group, queue=queue, page=page, mark=mark)
            moved, found = transact(self._engine, write)
            if not moved:  # another collector is at it
                return report
            if self._stubs is not None:
                self._confirm_elsewhere(group, found.done_ids)
            count, without_id = len(page.letters) + len(page.nameless), len(page.nameless)
            gone = 0
            if page.begin > due:  # retention may have been faster than the reading
                first = broker.min_offset(queue)
                gone = count_gone(queue, due, min(first, page.begin))
            report += CollectReport(count, found.listed, len(found.done_ids), found.void, without_id, gone)
            mark = page.end - 1
        return report

    def _mark(self, group: str, queue: MessageQueue) -> int | None:
        marks = self._tables.high_water
        asked = sa.select(marks.c.queue_offset).where(*self._of_queue(group, queue))
        return read(self._engine, lambda connection: connection.scalar(asked))

    def _write(
        self,
        connection: sa.Connection,
        group: str,
        queue: MessageQueue,
        page: DeadLetterPage,
        mark: int | None,
    ) -> tuple[bool, _Found]:
        """Write entries and log rows of letters that are not done, and move the mark from `mark` to the page's end.
        False: another collector has moved the mark.
        """
        if not self._move_mark(connection, group, queue, mark, page.end - 1):
            return False, _Found()
        tables, at_ms = self._tables, now_ms()
        ids = sorted({letter.message_id for letter in page.letters})
        inbox = tables.inbox
        asked = sa.select(inbox.c.message_id).where(inbox.c.group_name == group, inbox.c.message_id.in_(ids))
        done = set(connection.scalars(asked)) if ids else set()
        if self._stubs is None:
            confirm_all(connection, tables, group, sorted(done), at_ms)
        open_ids = [message_id for message_id in ids if message_id not in done]
        void = {message_id for message_id, status in self._statuses(connection, open_ids).items() if status == VOID}
        open_letters = {
            letter.message_id: letter
            for letter in page.letters
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
            (ManualEntry(letter.message_id, group, NO_ID, letter.detail, at_ms) for letter in page.nameless),
        )
        self._write_log(connection, group, [open_letters[message_id] for message_id in sorted(open_letters)], at_ms)
        return True, _Found(len(open_letters), len(void), tuple(sorted(done)))

    def _forget_told(self, connection: sa.Connection, group: str, letters: Mapping[str, DeadLetter]) -> None:
        """Remove entries of earlier deaths. If a worker has given the message up and listed it, its dead letter follows
        right after: that is the same death.
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

    def _write_log(self, connection: sa.Connection, group: str, letters: Sequence[DeadLetter], at_ms: int) -> None:
        """From now on people decide: a relay sends no message that is dead for a group."""
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
            mark = NOTHING_READ  # nobody else sees it: a row of another collector has the end of its page
            row = {
                "group_name": group,
                "broker_name": queue.broker_name,
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "queue_offset": mark,
            }
            insert_new(connection, marks, [row])
        moved = sa.update(marks).where(*self._of_queue(group, queue), marks.c.queue_offset == mark)
        return connection.execute(moved.values(queue_offset=to_offset)).rowcount == 1

    def _of_queue(self, group: str, queue: MessageQueue) -> tuple[sa.ColumnElement[bool], ...]:
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


def _log_row(group: str, letter: DeadLetter, at_ms: int) -> dict[str, Any]:
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
