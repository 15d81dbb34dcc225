"""`store.transactions`: half messages are stored, ended, given up and taken up again.

A commit is one unit of the store: the message in its real queue, and the op record that ends its half message. Units of
one key follow each other, so of two ends only one is stored, whichever process it comes to; and a crash leaves both
records, or none. Sources: EndTransactionProcessor.java, TransactionalMessageServiceImpl.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.broker.read.query import Query
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.read.records import message_at
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules import transaction as rules
from rmq_store.broker.transactions.half_queue import HalfQueue, PendingHalf
from rmq_store.broker.transactions.half_records import HalfRecords
from rmq_store.broker.write.single_copy import CopiedMessage
from rmq_store.broker.write.single_record import OneMessageEncoder
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import CorruptionError, OffsetOutOfRangeError, ReadOnlyError, ResponseError, UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS, TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.message import Message, check_message
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties.property_string import (
    CRC_PROPERTY_BYTES,
    DELAY_TIME_LEVEL,
    PRODUCER_GROUP,
    PROPERTIES_BYTES_MAX,
    REAL_TOPIC,
    encode_properties,
)
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.format.text.names import (
    HALF_TOPIC,
    PYRMQ_TIMER_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    validate_group,
    validate_topic,
)
from rmq_store.log.append.flush import flush
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord
from rmq_store.protocol.results import SendResult

_log: Final = logging.getLogger(__name__)

_OFFSET_MAX = (1 << 63) - 1
_KEY = "0"  # the queue of half messages
_QUEUE = 0
_SYSTEM_ERROR, _MESSAGE_ILLEGAL, _ILLEGAL_OPERATION = 1, 13, 604
_TIMERS = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")

Records = Callable[[StoredMessage, PendingHalf], Sequence[pa.RecordBatch]]


@checked_methods()
class Transactions:
    """The transactions of one store; one that is open for reading only lists them. Safe for threads and processes."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        topics: TopicTable,
        queues: Queues,
        query: Query,
        offsets: OffsetTable,
        writer: Writer | None,
    ) -> None:
        self._log = log
        self._config = config
        self._topics = topics
        self._queues = queues
        self._query = query
        self._offsets = offsets
        self._written = writer
        self._records = HalfRecords(log, config)
        self._one = OneMessageEncoder(config)
        self._halves = HalfQueue(queues, offsets)
        self._lock = threading.RLock()
        self._saved: dict[tuple[str, int], int] = {}

    def prepare(
        self, message: Message, queue_id: int, group: str, *, sys_flag: int = 0, born_host: Host | None = None
    ) -> SendResult:
        """Store a half message of producer group `group`, for queue `queue_id` of its topic; no consumer gets it. The
        result has the real topic, and the queue offset of the half message, as a broker's. Durable as `Store.append`.

        Raises:
            ResponseError: 13, the body is too large, or the message has a delay; nothing was written.
            UsageError: another rule is broken. CorruptionError: as `pending`, on the first call only. StoreFullError,
                StoreLockedError, StoreFailedError as `Store.append`.
        """
        check_message(message)
        validate_topic(message.topic)
        validate_group(group)
        if len(message.body) > self._config.max_message_size:
            raise ResponseError(_MESSAGE_ILLEGAL, f"the body has more than {self._config.max_message_size} bytes")
        now_ms = self._log.clock()
        unique_id = self._one.unique_id(message, now_ms)
        stored = message.stored_properties(unique_id)
        if any(name in stored for name in (DELAY_TIME_LEVEL, *_TIMERS)):
            raise ResponseError(_MESSAGE_ILLEGAL, "a transactional message cannot be delayed, too")
        properties = rules.half_properties(stored, message.topic, queue_id, group)
        # Refuses what no property may hold, and what has no room for the properties of a copy.
        copied_bytes = len(encode_properties(rules.copy_properties(properties, _OFFSET_MAX, rules.CHECK_MAX)))
        if copied_bytes + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
            limit = PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES
            raise UsageError(f"properties of a copy take {copied_bytes} bytes, more than {limit} beside a checksum")
        born = born_host or Host(Host.parse(self._config.broker_host).address, 0)
        born_ms = now_ms if message.born_timestamp_ms is None else message.born_timestamp_ms
        copied = CopiedMessage(message.body, message.flag, sys_flag & COMPRESSION_FLAGS, born_ms, born, properties)
        self._begin()
        offset, queue_offset = self._writer.put(self._records.half(copied))
        offset_id = offset_message_id(Host.parse(self._config.broker_host), offset)
        return SendResult(message.topic, queue_id, queue_offset, offset, unique_id, offset_id)

    def end(
        self,
        group: str,
        queue_offset: int,
        commit_log_offset: int,
        *,
        commit: bool,
        from_check: bool = False,
        topic: str | None = None,
        unique_key: str | None = None,
    ) -> PendingHalf | None:
        """End a transaction: commit its message, or roll it back. `from_check`: a producer answers a question.
        `topic` and `unique_key` (UNIQ_KEY): those of the message that is meant, where the caller's right or knowledge
        is about them.

        Returns the half message; None: nothing was written, because the transaction has ended before, by a commit if
        `commit` is wanted.
        An earlier copy of a half message stands for its newest one. Durable as `Store.append`; the message and the end
        of its half message are stored together, or not at all.

        Raises:
            ResponseError: 1, no half message lies there, or it is that of another group, queue offset, topic or key;
                604, its time CHECK_IMMUNITY_TIME_IN_SECONDS is over, so that only an answer to a question counts; or a
                commit comes too late: the transaction was rolled back or given up. A broker answers that with success.
            UsageError: a time that a broker's half message asks for is none, or too far ahead.
            CorruptionError: the half message is damaged. Others as `Store.append`.
        """
        half = self._half_at(commit_log_offset)
        if half.properties.get(PRODUCER_GROUP) != group:
            raise ResponseError(_SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != queue_offset:
            raise ResponseError(_SYSTEM_ERROR, "The transaction state table offset wrong")
        if topic not in (None, half.properties.get(REAL_TOPIC)) or unique_key not in (None, half.msg_id):
            raise ResponseError(_SYSTEM_ERROR, "The half message is another one")
        age_ms = self._log.clock() - half.born_timestamp_ms
        if not from_check and rules.is_too_late(half.properties, age_ms):
            raise ResponseError(_ILLEGAL_OPERATION, "the time for this end is over: the producer will be asked")
        first = rules.number(half.properties.get(rules.HALF_OF))
        ended = self._finish(
            queue_offset if first < 0 else first,
            lambda message, copy: self._committed(message, copy) if commit else [],
            named=half,
        )
        if ended is None and commit:
            self._refuse_late_commit(half)
        return ended

    def pending(self) -> list[PendingHalf]:
        """The half messages that nobody has ended, in the order of their queue. CorruptionError."""
        with self._lock:
            self._halves.read_on()
            return list(self._halves.pending.values())

    def given_up(self) -> Iterator[StoredMessage]:
        """The messages of TRANS_CHECK_MAX_TIME_TOPIC, whose producers have not answered. CorruptionError."""
        low, high = self._queues.range(TRANSACTION_CHECK_MAX_TIME_TOPIC, _QUEUE)
        request = ReadRequest(TRANSACTION_CHECK_MAX_TIME_TOPIC, _QUEUE, low, high, ("commitLogOffset",))
        for batch in self._queues.read(request):
            for offset in batch.column("commitLogOffset").to_pylist():
                yield message_at(self._log, self._queues.end(), offset)

    def half_message(self, half: PendingHalf) -> StoredMessage:
        """The stored record of a half message. CorruptRecordError, UsageError: it is not there any more."""
        return message_at(self._log, self._queues.end(), half.commit_log_offset)

    def asked(self, half: PendingHalf) -> PendingHalf | None:
        """Count a question that a producer was sent: the half message is stored again with a higher
        TRANSACTION_CHECK_TIMES, as a broker does. None: its transaction has ended meanwhile. Durable as `end`.
        """
        return self._replace(half, half.check_times + 1)

    def renew(self, half: PendingHalf) -> PendingHalf | None:
        """Store a half message again as it is, before retention deletes it; otherwise as `asked`."""
        return self._replace(half, half.check_times)

    def carry(self, log_offset: int) -> int:
        """Keep the pending half messages below `log_offset`, which retention is about to delete: store them again, as
        `renew`. One that a broker has left is given up, because nobody may be asked for it before it is resumed. A
        damaged one is logged. Returns how many were kept. Durable after a flush; a disk that is too full for senders is
        no reason to refuse. Raises as `pending`; StoreFullError, StoreLockedError, StoreFailedError.
        """
        kept = 0
        for half in self.pending():
            if half.commit_log_offset < log_offset:
                try:
                    done = self._carried(half)
                except (CorruptionError, ResponseError, UsageError) as error:
                    text = "half message %d of group %s cannot be kept, its transaction never ends: %s"
                    _log.error(text, half.queue_offset, half.group, error)
                else:
                    kept += done is not None
        return kept

    def _carried(self, half: PendingHalf) -> PendingHalf | None:
        if half.is_ours:
            return self._replace(half, half.check_times, makes_room=True)
        _log.error("transaction %s of group %s: its segment is deleted", half.transaction_id, half.group)
        return self._give_up(half, makes_room=True)

    def give_up(self, half: PendingHalf) -> PendingHalf | None:
        """Move a half message to TRANS_CHECK_MAX_TIME_TOPIC; None: its transaction has ended. Durable as `end`."""
        return self._give_up(half, makes_room=False)

    def _give_up(self, half: PendingHalf, *, makes_room: bool) -> PendingHalf | None:
        if TRANSACTION_CHECK_MAX_TIME_TOPIC not in self._topics.all():
            self._topics.create_all([TopicConfig(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1, 1)], exist_ok=True)
        return self._finish(
            half.first_offset,
            lambda message, _: [self._records.given_up(message)],
            only=half,
            makes_room=makes_room,
        )

    def take_over(self, half: PendingHalf) -> bool:
        """Begin to ask for a half message that a broker has left; False: its transaction has ended, or it is ours.
        Durable as `end`.
        """
        return not half.is_ours and self._replace(half, 0) is not None

    def resume(self, message: StoredMessage) -> bool:
        """Put a message of `given_up` back into checking, from the first question on; False: this was done before.
        Durable as `end`. ResponseError: it names no queue or no producer group.
        """
        if rules.real_queue(message.properties) is None or PRODUCER_GROUP not in message.properties:
            raise ResponseError(_SYSTEM_ERROR, f"{message.msg_id} names no queue or no producer group")
        unit = UnitRecord(purposes.TRANSACTION, _resumed(message), 1, 1)
        return self._writer.append_unit([self._records.copy(message, None, 0)], unit, expect=None) is not None

    def save_progress(self) -> None:
        """Commit the offsets of CID_RMQ_SYS_TRANS, where a broker and the next opener begin. Raises as
        `OffsetTable.commit`.
        """
        with self._lock:
            if not self._halves.is_read:
                return
            self._halves.read_on()
            progress = self._halves.progress()
            if progress != self._saved:
                self._offsets.commit(rules.TRANSACTION_GROUP, progress)
                self._saved = progress

    @property
    def _writer(self) -> Writer:
        if self._written is None:
            raise ReadOnlyError(f"{self._log.root} was opened with read_only=True")
        return self._written

    def _begin(self) -> None:
        """Read the topics before this process stores its first half message. Offsets that lie beyond the log are
        mended now: later the log has grown past them, and nobody can tell.
        """
        with self._lock:
            if not self._halves.is_read:
                self._halves.read_on()
                if self._halves.is_progress_wrong:
                    self.save_progress()

    def _committed(self, half: StoredMessage, copy: PendingHalf) -> list[pa.RecordBatch]:
        """The message of a commit; none if it is stored already, and the op record that says so cannot be read."""
        if copy.commit_log_offset < self._halves.lost_op_offset:
            try:
                if self._is_committed(half):
                    return []
            except (CorruptionError, UsageError) as error:
                _log.warning("transaction %s may be committed twice, the index does not tell: %s", half.msg_id, error)
        return [self._records.committed(half)]

    def _is_committed(self, half: StoredMessage) -> bool:
        """True if the index finds the message of an earlier commit. CorruptionError, UsageError: it does not tell."""
        group = half.properties.get(PRODUCER_GROUP)
        return any(
            found.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
            and found.properties.get(PRODUCER_GROUP) == group
            for topic in (half.properties.get(REAL_TOPIC, ""), PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC)
            for found in self._query.by_unique_key(topic, half.msg_id, begin_ms=0)
        )

    def _refuse_late_commit(self, half: StoredMessage) -> None:
        """ResponseError 604, unless the index finds the message of an earlier commit."""
        unique_id = half.msg_id
        try:
            if self._is_committed(half):
                return
            given_up = self._query.by_unique_key(TRANSACTION_CHECK_MAX_TIME_TOPIC, unique_id, begin_ms=0)
        except (CorruptionError, UsageError) as error:
            remark = f"transaction {unique_id} has ended before, and the index does not tell how: {error}"
            raise ResponseError(_ILLEGAL_OPERATION, remark) from error
        waiting = [one for one in given_up if not self._writer.newest_unit(purposes.TRANSACTION, _resumed(one))]
        remark = f"transaction {unique_id} was rolled back; or it was committed, and its message is deleted by now"
        if waiting:
            asked = rules.check_times(waiting[-1].properties)
            remark = f"transaction {unique_id} was given up after {asked} questions and is not committed: "
            remark += f"`rmq transactions resume {unique_id}` asks its producers again"
        raise ResponseError(_ILLEGAL_OPERATION, remark)

    def _half_at(self, commit_log_offset: int) -> StoredMessage:
        try:
            found = message_at(self._log, self._queues.end(), commit_log_offset)
            entry = self._queues.commit_log_offset(HALF_TOPIC, _QUEUE, found.queue_offset)
        except (UsageError, OffsetOutOfRangeError) as error:
            raise ResponseError(_SYSTEM_ERROR, "Find prepared transaction message failed") from error
        # A sender can write a body that is a sound record of a half message; but no queue entry points into a body.
        if found.topic != HALF_TOPIC or entry != commit_log_offset:
            raise ResponseError(_SYSTEM_ERROR, "Find prepared transaction message failed")
        return found

    def _replace(self, half: PendingHalf, check_times: int, *, makes_room: bool = False) -> PendingHalf | None:
        return self._finish(
            half.first_offset,
            lambda message, place: [self._records.copy(message, place.first_offset, check_times)],
            only=half,
            makes_room=makes_room,
        )

    def _finish(
        self, first: int, records: Records, *, only: PendingHalf | None = None, named: StoredMessage | None = None,
        makes_room: bool = False,
    ) -> PendingHalf | None:  # fmt: skip
        """End the newest copy of a half message, together with `records`; `only`: unless there is a newer copy. `named`
        is the one that a producer names, perhaps a copy that a broker has left behind.
        """
        with self._lock:
            while True:
                newest = self._writer.newest_unit(purposes.TRANSACTION, _KEY)
                if self._log.sync_flush:
                    flush(self._log)  # what waits for the disk is not visible; and a repetition must be durable
                self._halves.read_on()
                half = self._halves.newest_copy(first)
                if half is None and named is not None:
                    half = self._halves.copy_of(named)
                if half is None or (only is not None and half.queue_offset != only.queue_offset):
                    return None
                batches = [*records(self.half_message(half), half), self._records.op(half.queue_offset)]
                expect = None if newest is None else newest.value
                unit = UnitRecord(purposes.TRANSACTION, _KEY, (expect or 0) + 1, len(batches))
                if self._writer.append_unit(batches, unit, expect=expect, makes_room=makes_room) is not None:
                    return half


def _resumed(message: StoredMessage) -> str:
    return f"resumed-{message.queue_offset}"
