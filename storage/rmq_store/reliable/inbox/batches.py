"""A micro-batch of a streaming query, written with its inbox records in one transaction: a repeated `foreachBatch`
writes nothing.

    B0  high-water marks, in a transaction of their own   for the resend: which offsets the group has seen
    B1  BEGIN; the row (query, group, target, batch)      it exists with the same messages: nothing happens
    B2  per chunk: inbox rows of all its ids              rows whose id existed are dropped, as are repetitions; if they
                                                          are other messages, they are put on the manual list
    B3             their stubs are confirmed              rows whose stub is void are dropped (stubs of this database)
    B4             write(connection, the rest)            in a savepoint; it may neither commit nor roll back
    B5             log rows of all its ids are deleted    an earlier consumer of the group may have failed on them
    B6  COMMIT
    B7  stubs of another database are confirmed in a transaction of its own: a lost one costs a resend

The inbox decides which rows are written, as for any other consumer of the group. The row of the batch saves the work of
a repetition, and still recognises one when the inbox is purged. A checkpoint that was set back or copied brings other
messages under an old batch number: those that the inbox does not have are written.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.drivers import require_engine
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.message_id import copied_id_of
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.database.trouble import is_duplicate
from rmq_store.reliable.inbox import delivery_log, inbox
from rmq_store.reliable.inbox.deliveries import OF_ROW, Queue, fingerprints_of, id_properties, own_id
from rmq_store.reliable.inbox.delivery_log import UNCLEAR
from rmq_store.reliable.inbox.handler_connection import HandlerRunner
from rmq_store.reliable.inbox.high_water import write_marks
from rmq_store.reliable.outbox.stub import Confirmation, confirm_all

_log = logging.getLogger(__name__)

BATCHES_KEPT: Final = 1_000
"""Per query. Spark keeps 100 (spark.sql.streaming.minBatchesToRetain), and can repeat the newest."""

_DIGEST_MASK = (1 << 63) - 1

Chunk = tuple[list[str], pa.RecordBatch]
"""Message ids, and a row for each of them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: `query_id` stays with its checkpoint, `batch_id` counts up. `row_count` and `digest` identify its
    messages, in any order.
    """

    query_id: str
    batch_id: int
    row_count: int = 0
    digest: int = 0

    def with_ids(self, message_ids: Collection[str]) -> Batch:
        """The same batch, with more messages."""
        added = sum(zlib.crc32(message_id.encode()) for message_id in message_ids)
        rows = self.row_count + len(message_ids)
        return Batch(self.query_id, self.batch_id, rows, (self.digest + added) & _DIGEST_MASK)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """`written_before`: an earlier run has written the batch, and nothing was done. Otherwise: the number of rows
    `written`, rows `dropped` because the group had done their messages before, and rows whose messages are `void`.
    """

    written_before: bool
    written: int = 0
    dropped: int = 0
    void: int = 0


class _WrittenBeforeError(Exception):
    """The row of the batch exists; the transaction has done nothing."""


class BatchWriter:
    """Writes the batches of streaming queries for one group.

    `write(connection, rows)` is called for each chunk with rows that are not done, in the transaction that has the
    inbox rows. It uses only `connection`, because the transaction may run again from its start, and neither commits nor
    rolls back. `target` names the table or function, in at most 64 characters: one batch may be written to several
    targets. `stub_engine`: the database of the stubs, if it is another one.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        group: str,
        write: Callable[[sa.Connection, pa.RecordBatch], object],
        *,
        target: str = "",
        stub_engine: sa.Engine | None = None,
    ) -> None:
        self._engine = require_engine(engine)
        self._tables = tables
        self._group = group
        self._write = write
        self._key = {"group_name": group, "target": target}
        self._stub_engine = stub_engine
        self._handlers = HandlerRunner(engine)

    def close(self) -> None:
        """Stop listening to the engine's events; nothing can be written afterwards."""
        self._handlers.close()

    def write(
        self, batch: Batch, chunks: Callable[[], Iterable[Chunk]], marks: Mapping[Queue, int] | None = None
    ) -> BatchResult:
        """Write a batch, all or nothing; durable in the database on return. `chunks` is called for each attempt.

        `marks`: {(broker name, topic, queue id): the largest offset of first deliveries}. Without them the relay does
        not notice that the group has missed a message. It then sends the message again only when its stub is reported
        as stuck. The number of statements per chunk is constant, if that of `write` is.

        Raises (nothing is written then):
            HandlerTransactionError: `write` has ended the transaction, or has tried to.
            sqlalchemy.exc.SQLAlchemyError: an error that a retry cannot help.
            Errors of `write` and `chunks`.
        """
        if marks:
            transact(self._engine, partial(write_marks, tables=self._tables, group=self._group, marks=marks))
        result = self._write_or_skip(batch, chunks)
        if self._stub_engine is not None:
            self._confirm_elsewhere(self._stub_engine, chunks())
        return result

    def _write_or_skip(self, batch: Batch, chunks: Callable[[], Iterable[Chunk]]) -> BatchResult:
        try:
            return transact(self._engine, lambda connection: self._write_new(connection, batch, chunks))
        except _WrittenBeforeError:
            pass
        if read(self._engine, lambda connection: self._has_same_messages(connection, batch)):
            return BatchResult(written_before=True)
        _log.warning(
            "group %r: batch %d of query %s was written before with other messages: its checkpoint was set back or "
            "copied. Messages that the group has not done are written now",
            self._group, batch.batch_id, batch.query_id,
        )  # fmt: skip
        return transact(self._engine, lambda connection: self._write_again(connection, batch, chunks))

    def _write_new(self, connection: sa.Connection, batch: Batch, chunks: Callable[[], Iterable[Chunk]]) -> BatchResult:
        table = self._tables.batch
        row = {"query_id": batch.query_id, **self._key, "batch_id": batch.batch_id, **_facts(batch)}
        try:
            connection.execute(sa.insert(table), row)
        except sa.exc.IntegrityError as error:
            if not is_duplicate(error):
                raise
            raise _WrittenBeforeError from error
        old = table.c.batch_id <= batch.batch_id - BATCHES_KEPT
        connection.execute(sa.delete(table).where(self._is_of_query(batch), old))
        return self._write_chunks(connection, chunks())

    def _write_again(
        self, connection: sa.Connection, batch: Batch, chunks: Callable[[], Iterable[Chunk]]
    ) -> BatchResult:
        connection.execute(sa.update(self._tables.batch).where(self._is(batch)).values(_facts(batch)))
        return self._write_chunks(connection, chunks())

    def _has_same_messages(self, connection: sa.Connection, batch: Batch) -> bool:
        table = self._tables.batch
        found = connection.execute(sa.select(table.c.row_count, table.c.digest).where(self._is(batch))).one_or_none()
        return found is not None and tuple(found) == (batch.row_count, batch.digest)

    def _is(self, batch: Batch) -> sa.ColumnElement[bool]:
        return sa.and_(self._is_of_query(batch), self._tables.batch.c.batch_id == batch.batch_id)

    def _is_of_query(self, batch: Batch) -> sa.ColumnElement[bool]:
        columns = self._tables.batch.c
        return sa.and_(
            columns.query_id == batch.query_id, *(columns[name] == value for name, value in self._key.items())
        )

    def _write_chunks(self, connection: sa.Connection, chunks: Iterable[Chunk]) -> BatchResult:
        written = dropped = void = 0
        for message_ids, rows in chunks:
            at_ms = now_ms()
            fingerprints = fingerprints_of(rows, OF_ROW)
            first = dict(zip(reversed(message_ids), reversed(fingerprints), strict=True))
            unclear = self._unclear(connection, message_ids, rows)
            new = inbox.insert_set(connection, self._tables, self._group, first.keys() - unclear, at_ms, first)
            done = inbox.known(connection, self._tables, self._group, first.keys() - new)
            first.update(done)
            others = {
                own_id(message_id, fingerprint): f"another message with its id {message_id} is done"
                for message_id, fingerprint in zip(message_ids, fingerprints, strict=True)
                if inbox.is_other(first[message_id], fingerprint)
            }
            self._list(connection, others | dict.fromkeys(unclear - done.keys(), UNCLEAR), at_ms)
            to_do = new if self._stub_engine is not None else new - self._confirm(connection, new, at_ms)
            kept = _first_places(message_ids, to_do)
            written += len(kept)
            void += len(new - to_do)
            dropped += len(message_ids) - len(kept) - len(new - to_do)
            if kept:
                left = rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))
                self._handlers.run(connection, partial(self._write, connection, left))
            delivery_log.delete(connection, self._tables, self._group, set(message_ids))
        return BatchResult(written_before=False, written=written, dropped=dropped, void=void)

    def _unclear(self, connection: sa.Connection, message_ids: list[str], rows: pa.RecordBatch) -> set[str]:
        """Messages that a worker of version 1 may have done under the id that they were copied with."""
        if "properties" not in rows.schema.names:
            return set()
        given = zip(message_ids, id_properties(rows.column("properties")), strict=True)
        copied = {message_id: copied_id for message_id, each in given if (copied_id := copied_id_of(each)) is not None}
        done = inbox.known(connection, self._tables, self._group, set(copied.values()))
        return {message_id for message_id, copied_id in copied.items() if done.get(copied_id, "") is None}

    def _list(self, connection: sa.Connection, details: Mapping[str, str], at_ms: int) -> None:
        """Put messages that are dropped without being done on the manual list."""
        entries = [
            manual_list.ManualEntry(message_id, self._group, manual_list.SAME_ID, detail, at_ms)
            for message_id, detail in details.items()
        ]
        if entries:
            _log.warning(
                "group %r: %d rows are left out and are on the manual list: others with their ids are done",
                self._group, len(entries),
            )  # fmt: skip
            manual_list.add_all(connection, self._tables, entries)

    def _confirm(self, connection: sa.Connection, message_ids: Collection[str], at_ms: int) -> set[str]:
        """Confirm the stubs that are not void; returns the ids of void ones."""
        answers = confirm_all(connection, self._tables, self._group, message_ids, at_ms)
        return {message_id for message_id, answer in answers.items() if answer is Confirmation.VOID}

    def _confirm_elsewhere(self, stub_engine: sa.Engine, chunks: Iterable[Chunk]) -> None:
        for message_ids, _ in chunks:
            try:
                transact(stub_engine, partial(self._confirm, message_ids=message_ids, at_ms=now_ms()))
            except sa.exc.SQLAlchemyError as error:
                _log.warning(
                    "group %r: stubs of a written batch are not confirmed (%s): their messages are sent again, and "
                    "recognised as done",
                    self._group, type(getattr(error, "orig", error)).__name__,
                )  # fmt: skip
                return


def _facts(batch: Batch) -> dict[str, int]:
    return {"done_ms": now_ms(), "row_count": batch.row_count, "digest": batch.digest}


def _first_places(message_ids: list[str], to_do: set[str]) -> list[int]:
    """The places at which the ids of `to_do` occur first."""
    left = set(to_do)
    places = []
    for place, message_id in enumerate(message_ids):
        if message_id in left:
            left.remove(message_id)
            places.append(place)
    return places
