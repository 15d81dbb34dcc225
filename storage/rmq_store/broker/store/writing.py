"""The public methods of a store that append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from rmq_store.arguments import checked_methods, integer
from rmq_store.broker.delay.scheduler import Schedule
from rmq_store.broker.dlq.redrive import DeadLetters
from rmq_store.broker.pop.pop import Pop
from rmq_store.broker.retry.retry import Retry
from rmq_store.broker.store.parts import StoreParts
from rmq_store.broker.write.sent_requests import SentRequests
from rmq_store.broker.write.staged_copies import staged_rows
from rmq_store.broker.write.staged_files import StagedFile
from rmq_store.errors import UsageError
from rmq_store.format.frames.message import Message, Origin
from rmq_store.format.properties.new_message import of_new_message
from rmq_store.format.text.host import Host
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS
from rmq_store.log.core.units import UnitRecord
from rmq_store.protocol.results import AppendResult, CommitResult, SendResult


@checked_methods("send")
class Writing(StoreParts):
    """The part of `Store` that appends."""

    def send(
        self,
        message: Message,
        *,
        sys_flag: int = 0,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        flush_timeout_ms: int | None = None,
        replica_timeout_ms: int | None = None,
        born_host: Host | None = None,
        as_given: bool = False,
    ) -> SendResult:
        """Store one message. Under SYNC_FLUSH it is on disk on return; under ASYNC_FLUSH it survives this process, not
        the machine. `sys_flag` holds the compression of a body that the caller has compressed.
        `born_host` is the sender's; None: that of the store.

        It is a new message, with a new UNIQ_KEY: of the properties of a stored message, which its maker hands on, those
        are left out that belong to that message (docs/columns.md). `as_given`: all properties stay, as a broker stores
        what a client sends.

        Waits at most `lock_timeout_ms` for other writers (StoreLockedError). Under SYNC_FLUSH it waits at most
        `flush_timeout_ms` for the fsync of another writer (FLUSH_DISK_TIMEOUT; None: the setting syncFlushTimeout). Its
        own fsync takes as long as the disk does. A message whose property WAIT is "false" does not wait for the disk.
        Under ASYNC_FLUSH a send flushes when the store's own thread is late (`is_flush_late`), except with a
        `flush_timeout_ms` of 0.

        In a store that a SYNC_MASTER serves (`rmq broker run --role SYNC_MASTER`), it also waits until a slave has the
        message, at most `replica_timeout_ms` (None: the server's slaveTimeout; 0: it only looks). FLUSH_SLAVE_TIMEOUT:
        not in that time; SLAVE_NOT_AVAILABLE: no slave is connected, or the server does not run. WAIT as above.

        Raises:
            UsageError: the message breaks a rule (name, size, properties); nothing was written.
            StoreFullError, StoreLockedError: nothing was written; a later call may succeed.
            StoreFailedError: it is unknown whether the message is stored.
        """
        if (
            type(sys_flag) is not int or type(lock_timeout_ms) is not int
            or flush_timeout_ms is not None or replica_timeout_ms is not None
        ):  # fmt: skip
            sys_flag = integer("sys_flag", sys_flag)
            lock_timeout_ms = integer("lock_timeout_ms", lock_timeout_ms)
            if flush_timeout_ms is not None:
                flush_timeout_ms = integer("flush_timeout_ms", flush_timeout_ms)
            if replica_timeout_ms is not None:
                replica_timeout_ms = integer("replica_timeout_ms", replica_timeout_ms)
        message = message if as_given else _new(message)
        return self._writing().send(
            message, sys_flag, lock_timeout_ms, flush_timeout_ms, born_host, replica_timeout_ms
        )

    def send_all(
        self,
        messages: Sequence[Message],
        *,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        flush_timeout_ms: int | None = None,
        replica_timeout_ms: int | None = None,
        origins: Sequence[Origin] | None = None,
        as_given: bool = False,
    ) -> list[SendResult]:
        """Store a few messages in their order; all become visible at once. For many messages use `append`. Durable,
        waits and raises as `send`, and `as_given` is that of `send`. `origins`: one for each message that came over the
        network.
        """
        if origins is not None and len(origins) != len(messages):
            raise UsageError(f"{len(origins)} origins for {len(messages)} messages")
        messages = messages if as_given else [_new(message) for message in messages]
        return self._writing().send_all(messages, lock_timeout_ms, flush_timeout_ms, origins, replica_timeout_ms)

    def send_batch(
        self,
        topic: str,
        body: bytes,
        queue_id: int,
        *,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        flush_timeout_ms: int | None = None,
        replica_timeout_ms: int | None = None,
        born_host: Host | None = None,
    ) -> SendResult:
        """Store the messages of a batch in one queue, in their order; all become visible at once. `body` is that of
        SEND_BATCH_MESSAGE (MessageDecoder#encodeMessages). `sys_flag` says how the bodies of all of them are
        compressed. `born_timestamp_ms` None means now.

        Returns the result of the first message, with `msg_id` and `offset_msg_id` as comma lists of all. Durable and
        waits as `send`; the property WAIT of the first message counts for all.

        Raises:
            UsageError: the body is torn or has no message, or a message breaks a rule; nothing was written.
            ResponseError: 1, the whole body has more than maxMessageSize bytes (MessageExtEncoder#encode).
            StoreFullError, StoreLockedError, StoreFailedError: as `send`.
        """
        return self._writing().send_batch(
            topic, body, queue_id, sys_flag, born_timestamp_ms, lock_timeout_ms, flush_timeout_ms, born_host,
            replica_timeout_ms,
        )  # fmt: skip

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a message with a delivery time back, by the handle of its `SendResult`, and return its unique key: it is
        never delivered. Also if it is due, as long as it was not delivered; a repetition does nothing. Durable as
        `send`, across a crash at any point: the recall holds, or this call has not returned.

        Raises:
            UsageError: no such handle. UnknownTopicError: no such topic.
            ResponseError: 604, the message does not wait here (any more), or the handle is of another topic or broker.
            StoreFullError, StoreLockedError, StoreFailedError: as `send`.
            CorruptionError: the queue of timers, or of recalls, is damaged.
        """
        self._writing()
        assert self._recalls is not None
        self._topics.get(topic)
        return self._recalls.recall(topic, RecallHandle.parse(recall_handle))

    def append(self, batch: pa.RecordBatch, topic: str | None = None) -> AppendResult:
        """Store a batch of any number of messages (columns of INPUT_SCHEMA); all become visible at once. Durable and
        raises as `send`. A UsageError names row, column and value. They are new messages: properties that belong to
        other messages are left out, as `send` does, but DELAY and the like stay.
        """
        return self._writing().append(batch, topic)

    def commit_staged(
        self,
        files: Sequence[StagedFile],
        *,
        purpose: str = "sink",
        key: str | None = None,
        value: int | None = None,
        repeatable: bool = True,
        consume_files: bool = False,
    ) -> CommitResult:
        """Append staged files as one unit: all of them or nothing, across a power cut too.

        With `key` and `value`, a repetition of the newest value of the key adds nothing. `repeatable=False` accepts a
        repetition with other rows than those committed under this value (a query that is not deterministic).
        `consume_files=True` releases the memory of the files while they are read. It is faster, but after an error the
        files cannot be committed a second time. No other process may commit them.

        Raises:
            StagingError: a file is missing or altered; nothing was written.
            UsageError: two rows of files of `SendBackArea` name one message; nothing was written.
            MarkerError: a smaller value than the newest of this key, or the same value with other rows.
            UsageError, StoreFullError, StoreLockedError, StoreFailedError: as `send`.
        """
        if staged_rows(purpose).are_of_groups:
            self.retry.make_topics(files)
        return self._writing().commit_staged(
            files, purpose=purpose, key=key, value=value, repeatable=repeatable, consume_files=consume_files
        )

    def append_unit(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        purpose: str,
        key: str,
        value: int,
        expect: int | None,
        detail: Mapping[str, int] | None = None,
        keep_unique_key: bool = False,
    ) -> AppendResult | None:
        """Append batches (columns of INPUT_SCHEMA; perhaps none) as the unit that follows value `expect` of its purpose
        and key; `expect` None: as the first unit. All rows and the value are stored, or nothing, even across a power
        cut. The store keeps value and `detail` as long as it has the key. `keep_unique_key`: a property UNIQ_KEY stays,
        and a column `reconsumeTimes` may give the number of failures.

        Returns None, and appends nothing, if the newest value is not `expect`: another writer was faster. Durable and
        raises as `append`.
        """
        unit = UnitRecord(purpose, key, value, sum(batch.num_rows for batch in batches), 0, dict(detail or {}))
        return self._writing().append_rows(batches, unit, expect=expect, keep_unique_key=keep_unique_key)

    def last_unit(self, purpose: str, key: str) -> int | None:
        """The newest committed value of a unit key; None if there is none."""
        return self._writing().last_unit(purpose, key)

    def newest_unit(self, purpose: str, key: str) -> UnitRecord | None:
        """The newest unit of a key, with value, row count and detail; None if there is none."""
        return self._writing().newest_unit(purpose, key)

    @property
    def schedule(self) -> Schedule:
        """Delayed messages and their delivery. ReadOnlyError."""
        self._writing()
        assert self._schedule is not None
        return self._schedule

    @property
    def retry(self) -> Retry:
        """Sends failed messages back: retry topics and dead letters. ReadOnlyError."""
        self._writing()
        assert self._retry is not None
        return self._retry

    @property
    def dead_letters(self) -> DeadLetters:
        """Redrives and restores dead letters. ReadOnlyError."""
        self._writing()
        assert self._dead_letters is not None
        return self._dead_letters

    @property
    def pop(self) -> Pop:
        """Receive, acknowledge and hide messages one by one. ReadOnlyError."""
        self._writing()
        assert self._pop is not None
        return self._pop

    def flush(self) -> None:
        """Make everything stored so far durable. StoreFailedError."""
        self._writing().flush()

    @property
    def is_flush_late(self) -> bool:
        """Whether the store's own thread is late with its flush, so that the next send makes it (ASYNC_FLUSH), unless
        it has a `flush_timeout_ms` of 0. ReadOnlyError.
        """
        return self._writing().is_flush_late

    def sent_requests(self, answer: tuple[bytes, ...]) -> SentRequests:
        """Sends of single messages as a server reads them, for one thread of it. `answer`: the header of an answer,
        between whose parts stand msgId, queueId, queueOffset, transactionId and opaque. ReadOnlyError.
        """
        return self._writing().sent_requests(answer)

    def flush_async(self) -> None:
        """Start a flush of everything stored so far in a thread of the store, and return. A failure is logged, and the
        next call that writes raises StoreFailedError.
        """
        self._changing().flush_async()


def _new(message: Message) -> Message:
    """The message without properties of another one. Whatever is no message is left to its check."""
    properties = message.properties if isinstance(message, Message) else None
    if not isinstance(properties, Mapping) or not properties:
        return message
    own = of_new_message(properties)
    return message if own is properties else replace(message, properties=own)
