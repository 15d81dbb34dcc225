"""`consume(..., idempotency=...)`: each message of a query takes effect once, by `rmq_store.reliable`. Executors.

Each Python worker makes its own engine and its own `Idempotency`, from references; neither is pickled.
`rmq_store.reliable.inbox.exactly_once` decides which rows are done. This module passes the rows to it, and handles the
answers of the handler:

    all rows are done         the transaction with their effects and inbox records commits
    some failed by an answer  it is rolled back, and the handler is called again with the others
    an exception              rolled back; the rows are halved until the guilty ones stand alone

All attempts of a task have the lease token of its batch, also two that run at the same time by speculation. So they do
not wait for each other's lease, and each sees the effects of the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from pyspark_rmq.position.position import refuse
from pyspark_rmq.retry.failure_reason import Reason, reason_of
from pyspark_rmq.schema.message_ids import message_ids

if TYPE_CHECKING:
    from rmq_store.reliable import Idempotency

# Columns that say which message a row is, where it lies, and whether it came before.
NEEDED: Final = {
    "brokerName": "string", "topic": "string", "queueId": "int", "queueOffset": "bigint", "reconsumeTimes": "int",
    "properties": "map<string,string>",
}  # fmt: skip

CONSUMER_TABLES: Final = ("log", "inbox", "high_water", "manual")
STUB_TABLES: Final = ("stub", "stub_group")

NOT_DONE = Reason(
    "NotDone",
    "another worker has the message, or the database has failed; the log of the executor says which",
    "0" * 16,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkIdempotency:
    """The settings with which `consume` does each message once. Texts and numbers only, because Spark sends them to the
    executors.

    `database`: the database of the effects, which has the tables of `rmq_store.reliable`: `env:NAME`, `file:/path`, or
    a URL. Each Python worker resolves it. `redis`: a Redis server, given in the same way; None: none. `stub_database`:
    the database of the stubs, if that is another one. `outside`: effects are outside of the database, so they happen at
    least once; only for mode "row". `prefix`, `schema`: of the tables. The other fields are those of
    `rmq_store.reliable.Idempotency`.

    Raises:
        UsageError: a value of the wrong kind.
    """

    database: str
    redis: str | None = None
    stub_database: str | None = None
    outside: bool = False
    prefix: str = "rmq_"
    schema: str | None = None
    redis_prefix: str = "rmq:"
    lease_ms: int = 60_000
    retry_slack_ms: int = 60_000
    busy_wait_ms: int = 30_000
    inbox_retention: timedelta = timedelta(days=30)

    def __post_init__(self) -> None:
        for name in ("database", "redis", "stub_database", "schema"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "database"):
                refuse(
                    f"{name} of SparkIdempotency is a {type(value).__name__}: env:NAME, file:/path or a URL is "
                    "expected. Engines and clients do not go to executors"
                )
        if not isinstance(self.outside, bool):
            refuse(f"outside={self.outside!r} of SparkIdempotency is neither True nor False")


@dataclass(frozen=True, slots=True)
class TaskIdempotency:
    """The same settings for the tasks of one batch, which share `lease_token`."""

    settings: SparkIdempotency
    group: str
    retry_ladder_ms: tuple[int, ...]
    max_reconsume_times: int
    lease_token: str

    def in_this_process(self) -> Idempotency:
        """The group's `Idempotency` of this worker.

        Raises:
            UsageError: a reference cannot be resolved.
            SchemaMismatchError: the database does not have the tables.
        """
        # A forked child has another process id, and makes its own.
        key = (os.getpid(), self.settings, self.group, self.retry_ladder_ms, self.max_reconsume_times)
        with _lock:
            if key not in _made:
                _made[key] = self._make()
            return _made[key]

    def _make(self) -> Idempotency:
        from rmq_store.reliable import Idempotency, Tables, shared_engine, validate_schema

        settings = self.settings
        tables = Tables(prefix=settings.prefix, schema=settings.schema)
        engine = shared_engine(settings.database)
        # Without them each message would fail, and become a dead letter.
        stubs = STUB_TABLES if settings.stub_database is None else ()
        validate_schema(engine, tables, only=(*CONSUMER_TABLES, *stubs))
        return Idempotency(
            self.group,
            engine,
            tables,
            redis=settings.redis,
            stubs=None if settings.stub_database is None else shared_engine(settings.stub_database),
            lease_ms=settings.lease_ms,
            retry_ladder_ms=self.retry_ladder_ms,
            retry_slack_ms=settings.retry_slack_ms,
            max_reconsume_times=self.max_reconsume_times,
            inbox_retention=settings.inbox_retention,
            redis_prefix=settings.redis_prefix,
            busy_wait_ms=settings.busy_wait_ms,
        )


_made: dict[tuple[Any, ...], Idempotency] = {}
_lock = threading.Lock()


@dataclass(slots=True)
class Rows:
    """The rows of a batch while they are processed. `levels_of(result, count)` turns the handler's answer into delay
    levels; `done` is the level of a row that is done.
    """

    batch: pa.RecordBatch
    levels_of: Callable[[Any, int], Any]
    done: int
    # The failures of messages, as the handler told them: by an answer, after which it does not see them again, or by an
    # exception, of which the newest counts.
    levels: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    _wrong_answer: Exception | None = None

    def run(self, task: TaskIdempotency, handler: Callable[[Any, pa.RecordBatch], Any]) -> list[bool]:
        """Process all rows with `handler(connection, some of them)`; returns a flag for each row: True if it is done.

        Raises:
            UsageError: the handler returned an invalid result. Its call had no effect.
        """
        idempotency = task.in_this_process()
        return self._of_topics(
            lambda rows, topic: idempotency.apply(
                rows, topic, lambda connection, some: self._call(some, lambda: handler(connection, some)),
                lease_token=task.lease_token,
            )
        )  # fmt: skip

    def run_outside(self, task: TaskIdempotency, handler: Callable[[], Any]) -> bool:
        """Process the only row of the batch with `handler()`. Raises as `run`."""
        idempotency = task.in_this_process()
        (done,) = self._of_topics(
            lambda row, topic: [idempotency.apply_outside(row, topic, lambda: self._call(row, handler))]
        )
        return done

    def _of_topics(self, apply: Callable[[pa.RecordBatch, str], list[bool]]) -> list[bool]:
        """Most often there is one: a task reads one queue."""
        topics = self.batch.column("storeTopic" if "storeTopic" in self.batch.schema.names else "topic")
        done = np.zeros(self.batch.num_rows, np.bool_)
        codes = topics.dictionary_encode()
        for code, topic in enumerate(codes.dictionary.to_pylist()):
            row_numbers = np.flatnonzero(codes.indices.to_numpy(zero_copy_only=False) == code)
            rows = self.batch if len(row_numbers) == self.batch.num_rows else self.batch.take(pa.array(row_numbers))
            done[row_numbers] = apply(rows, topic)
        if self._wrong_answer is not None:
            raise self._wrong_answer
        return [bool(is_done) for is_done in done]

    def _call(self, rows: pa.RecordBatch, call: Callable[[], Any]) -> None:
        from rmq_store.errors import UsageError
        from rmq_store.reliable import RowsFailedError

        if self._wrong_answer is not None:
            raise self._wrong_answer
        ids = message_ids(rows)
        try:
            result = call()
        except Exception as error:
            self.reasons.update(dict.fromkeys(ids, reason_of(error)))
            raise
        try:
            levels = self.levels_of(result, rows.num_rows).tolist()
        except UsageError as error:
            self._wrong_answer = error
            raise
        failed = {message_id: level for message_id, level in zip(ids, levels, strict=True) if level != self.done}
        if failed:
            self.levels.update(failed)
            raise RowsFailedError(failed)
