"""Appending: one message, a batch, a commit of staged files, a unit."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import QUEUE_COUNT_MAX, TopicConfig, TopicTable
from rmq_store.broker.rules.routing import AUTO_CREATE_QUEUE_MAX, Router
from rmq_store.broker.write.disk_space import DiskSpace
from rmq_store.broker.write.encoder import MessageEncoder
from rmq_store.broker.write.flusher import Flusher
from rmq_store.broker.write.page_release import PageRelease
from rmq_store.broker.write.sent_requests import SentRequests
from rmq_store.broker.write.single_record import OneMessageEncoder
from rmq_store.broker.write.staged_copies import staged_rows
from rmq_store.broker.write.staged_files import CONTENT_SUM_MASK, StagedFile, discard_staged, open_all_staged
from rmq_store.broker.write.system_records import system_records
from rmq_store.broker.write.units import UnitTable
from rmq_store.errors import (
    MarkerError,
    ResponseError,
    StagingError,
    StoreError,
    StoreFailedError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.format.frames.message import Message, Origin, check_message
from rmq_store.format.frames.message_batch import read_batch
from rmq_store.format.properties.property_string import WAIT_STORE_MSG_OK
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id, offset_message_id_list
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.log.append.append import Appended, OneRecord, Unit, append, append_lock, append_one
from rmq_store.log.append.append_frames import append_batch, append_records
from rmq_store.log.append.flush import flush
from rmq_store.log.append.group_append import GroupAppend
from rmq_store.log.append.lone_append import LoneAppend
from rmq_store.log.core.commit_log import CommitLog, leaves_no_lock
from rmq_store.log.core.units import BEGIN_TAG, END_TAG, UNITS_QUEUE, UNITS_TOPIC, UnitRecord
from rmq_store.log.replication import Replicated, Replication
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.results import AppendResult, CommitResult, SendResult, SendStatus, result_of_batch

# Without a slash, which stands between purpose and key in the unit table.
_PURPOSE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_REPLICA_STATUS = {
    Replicated.LATE: SendStatus.FLUSH_SLAVE_TIMEOUT, Replicated.NO_SLAVE: SendStatus.SLAVE_NOT_AVAILABLE,
}  # fmt: skip

# Rows encoded at a time: bounds what a large batch needs besides itself.
_ENCODE_ROWS = 65_536


class Writer:
    """The writing half of a store."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, topics: TopicTable, flusher: Flusher, broker_name: str
    ) -> None:
        self._log = log
        self._broker_name = broker_name
        self._flusher = flusher
        self._config = config
        self._topics = topics
        self._units = UnitTable(log)
        self._lone_append = LoneAppend(log)
        self._group_append = GroupAppend(log, self._lone_append)
        self._replication = Replication(log)
        self._space = DiskSpace(log.root, config)
        # A signal handler may send in the middle of a send of its own thread, so each lock can be taken twice.
        self._lock = threading.RLock()
        # Apart: to encode a large batch takes seconds, and a send must not wait for that.
        self._encoding = threading.RLock()
        self._encoders: dict[tuple[str | None, bool], MessageEncoder] = {}
        self._encoders_for: object = None
        self._one = OneMessageEncoder(config)
        self._router = Router({}, config)
        self._router_for: object = None
        self._host = Host.parse(config.broker_host)

    @leaves_no_lock
    def send(
        self,
        message: Message,
        sys_flag: int,
        lock_timeout_ms: int,
        flush_timeout_ms: int | None,
        born_host: Host | None = None,
        replica_timeout_ms: int | None = None,
    ) -> SendResult:
        """See `Store.send`."""
        check_message(message)
        self._space.check()
        with self._lock:
            topics = self._topics.all()
            queue_id = self._routed(topics).route_one(message.topic, message.sharding_key, message.queue_id)
        now_ms = self._log.clock()
        record, unique_id = self._one.encode(message, queue_id, now_ms, sys_flag, born_host)
        if message.topic not in topics:
            self._create_topics([(message.topic, queue_id + 1)])
        is_late = False
        if self._log.sync_flush and _waits(message):
            timeout_ms = self._config.sync_flush_timeout if flush_timeout_ms is None else flush_timeout_ms
            offset, queue_offset, is_late = self._group_append.append(record, lock_timeout_ms, timeout_ms)
        elif (placed := self._lone_append.append(record, now_ms)) is not None:
            offset, queue_offset = placed
        else:
            with append_lock(self._log, lock_timeout_ms):
                offset, queue_offset = append_one(self._log, record)
                self._lone_append.learn(record[:2])
        end = offset + record.size
        status = SendStatus.FLUSH_DISK_TIMEOUT if is_late else self._send_status(end, flush_timeout_ms, message)
        if self._replication.is_sync and _waits(message):
            status = self._replicated(end, replica_timeout_ms, status)
        return SendResult(
            message.topic, queue_id, queue_offset, offset, unique_id, offset_message_id(self._host, offset), status,
            recall_handle=self._recall_handle_of(message.topic, record, unique_id), end_offset=end,
        )  # fmt: skip

    @leaves_no_lock
    def send_all(
        self,
        messages: Sequence[Message],
        lock_timeout_ms: int,
        flush_timeout_ms: int | None,
        origins: Sequence[Origin] | None = None,
        replica_timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """See `Store.send_all`."""
        for number, message in enumerate(messages):
            try:
                check_message(message)
            except UsageError as error:
                raise UsageError(f"message {number}: {error}") from error
        self._space.check()
        encoded, missing = self._encoded(messages, [Origin()] * len(messages) if origins is None else origins)
        self._create_topics(missing)
        with append_lock(self._log, lock_timeout_ms):
            places = append_records(self._log, [record for record, _, _ in encoded])
            end = self._log.writing_page.appended_end
            for key in {record[:2] for record, _, _ in encoded}:
                self._lone_append.learn(key)
        # MessageBatch#generateFromList: the first message speaks for all.
        status = self._send_status(end, flush_timeout_ms, messages[0] if messages else None)
        if self._replication.is_sync and messages and _waits(messages[0]):
            status = self._replicated(end, replica_timeout_ms, status)
        return [
            SendResult(
                message.topic, queue_id, queue_offset, offset, unique_id, offset_message_id(self._host, offset), status,
                recall_handle=self._recall_handle_of(message.topic, record, unique_id), end_offset=offset + record.size,
            )
            for message, (record, unique_id, queue_id), (offset, queue_offset) in zip(
                messages, encoded, places, strict=True
            )
        ]  # fmt: skip

    @leaves_no_lock
    def send_batch(
        self,
        topic: str,
        body: bytes,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int | None,
        lock_timeout_ms: int,
        flush_timeout_ms: int | None,
        born_host: Host | None = None,
        replica_timeout_ms: int | None = None,
    ) -> SendResult:
        """See `Store.send_batch`."""
        if len(body) > self._config.max_message_size:
            remark = f"message body size exceeded: {len(body)} bytes, maxMessageSize={self._config.max_message_size}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
        now_ms = self._log.clock()
        batch = None
        if not sys_flag:  # Java's producers compress no batch
            batch = self._one.encode_batch(topic, body, queue_id, now_ms, born_timestamp_ms or now_ms, born_host)
        if batch is None:
            messages = list(read_batch(body, topic, queue_id, born_timestamp_ms))
            if not messages:
                raise UsageError("a batch without a message")
            origins = [Origin(born_host, sys_flag)] * len(messages)
            results = self.send_all(messages, lock_timeout_ms, flush_timeout_ms, origins, replica_timeout_ms)
            return result_of_batch(results)
        self._space.check()
        with self._lock:
            topics = self._topics.all()
            self._routed(topics).route_one(topic, None, queue_id)
        if topic not in topics:
            self._create_topics([(topic, queue_id + 1)])
        with append_lock(self._log, lock_timeout_ms):
            offsets, queue_offset = append_batch(self._log, topic, queue_id, batch)
            end = self._log.writing_page.appended_end
        status = self._replicated(end, replica_timeout_ms, self._send_status(end, flush_timeout_ms, None))
        ids = offset_message_id_list(self._host, offsets)
        return SendResult(
            topic, queue_id, queue_offset, int(offsets[0]), batch.unique_keys, ids, status, end_offset=end
        )

    def _encoded(
        self, messages: Sequence[Message], origins: Sequence[Origin]
    ) -> tuple[list[tuple[OneRecord, str, int]], list[tuple[str, int]]]:
        """The record, the unique id and the queue of each message; and topics that are missing, with the queues that
        they need. UsageError: names the message.
        """
        now_ms = self._log.clock()
        encoded, missing = [], []
        with self._lock:
            topics = self._topics.all()
            router = self._routed(topics)
            try:
                for message, (born_host, sys_flag) in zip(messages, origins, strict=True):
                    queue_id = router.route_one(message.topic, message.sharding_key, message.queue_id)
                    encoded.append((*self._one.encode(message, queue_id, now_ms, sys_flag, born_host), queue_id))
                    if message.topic not in topics:
                        missing.append((message.topic, queue_id + 1))
            except UsageError as error:
                raise type(error)(f"message {len(encoded)}: {error}") from error
        return encoded, missing

    def _recall_handle_of(self, topic: str, record: OneRecord, unique_id: str) -> str | None:
        """How a message of `topic` is taken back; None: it does not wait for a time of its own."""
        if record.topic != PYRMQ_TIMER_TOPIC:
            return None
        return str(RecallHandle(topic, self._broker_name, record.tags_code, unique_id))

    def _send_status(self, end: int, timeout_ms: int | None, message: Message | None) -> SendStatus:
        """Under SYNC_FLUSH, wait for the disk up to `end`, unless the message has WAIT=false. The message is stored, so
        that no error may say that nothing was.
        """
        try:
            return self._status_at(end, timeout_ms, message)
        except StoreFailedError:
            raise
        except StoreError as error:
            raise StoreFailedError(f"the messages are stored, but perhaps not on disk: {error}") from error

    def _status_at(self, end: int, timeout_ms: int | None, message: Message | None) -> SendStatus:
        if not self._log.sync_flush:
            self._flusher.appended(may_flush=timeout_ms != 0)
        elif message is not None and not _waits(message):
            self._flusher.flush_async()  # it can be seen only when it is on disk
        else:
            try:
                flush(self._log, end, self._config.sync_flush_timeout if timeout_ms is None else timeout_ms)
            except StoreLockedError:
                return SendStatus.FLUSH_DISK_TIMEOUT
        return SendStatus.SEND_OK

    @leaves_no_lock
    def put(self, record: OneRecord) -> tuple[int, int]:
        """Append one record to any topic, system topics too. Returns its commit-log offset and its queue offset.
        Durable and raises as `append`.
        """
        self._space.check()
        with append_lock(self._log):
            offset, queue_offset = append_one(self._log, record)
        self._flush_appended(offset + record.size)
        return offset, queue_offset

    @leaves_no_lock
    def append(self, batch: pa.RecordBatch, topic: str | None) -> AppendResult:
        """See `Store.append`."""
        self._space.check()
        with self._encoding:
            encoder = self._encoder(topic)
            starts = range(0, batch.num_rows, _ENCODE_ROWS)
            encoded = [encoder.encode_all(batch.slice(first, _ENCODE_ROWS), first_row=first) for first in starts]
        needed = {name: 1 for part in encoded for name in part.queues}
        self._create_topics(list(needed.items()))
        appended = self._append([part.frames for part in encoded])
        return AppendResult(batch.num_rows, appended.start, appended.end, self._all_replicated(appended.end))

    @leaves_no_lock
    def commit_staged(
        self,
        files: Sequence[StagedFile],
        *,
        purpose: str,
        key: str | None,
        value: int | None,
        repeatable: bool,
        consume_files: bool,
    ) -> CommitResult:
        """See `Store.commit_staged`."""
        if (key is None) != (value is None):
            raise UsageError("a unit has a key and a value, or neither")
        if not _PURPOSE.fullmatch(purpose):
            raise UsageError(f"{purpose!r} cannot be the purpose of a unit: letters, digits, _ and - can")
        rows = sum(file.row_count for file in files)
        content = sum(file.content_sum for file in files) & CONTENT_SUM_MASK
        unit = UnitRecord(purpose, key, value, rows, content)
        # Before the files are looked at: a repeated commit may come after they were swept.
        if self._is_done(unit, repeatable):
            return self._acknowledged(CommitResult(0, committed=False))
        self._space.check()
        used = PageRelease()
        staged = staged_rows(purpose)
        try:
            batches = open_all_staged(self._log.root, files, used if consume_files else None, staged.schema)
        except StagingError:
            # Of two who commit the same at once, the faster one uses the files up: nothing is wrong with them then.
            if self._is_done(unit, repeatable):
                return self._acknowledged(CommitResult(0, committed=False))
            raise
        staged.check(files, batches)
        needed: dict[str, int] = {}
        for file in files:
            for topic, queues in file.topics:
                needed[topic] = max(needed.get(topic, 0), queues)
        self._create_topics(list(needed.items()))
        with append_lock(self._log):
            if key is not None and self._already_done(unit, repeatable):
                return self._acknowledged(CommitResult(0, committed=False))
            append(self._log, batches, self._bracket(unit), return_offsets=False, on_copied=used.give_back)
        result = self._acknowledged(CommitResult(rows, committed=True))
        discard_staged(self._log.root, files)
        return result

    @leaves_no_lock
    def append_unit(
        self, batches: Sequence[pa.RecordBatch], unit: UnitRecord, *, expect: int | None, makes_room: bool = False
    ) -> Appended | None:
        """Append encoded batches (ENCODED_SCHEMA; any topic, system topics too) as the unit that follows value `expect`
        of its purpose and key, None: as the first one; all or nothing, across a power cut too.

        Returns None, and appends nothing, if the newest value is another one: another writer was faster. On return the
        records are visible, and durable under SYNC_FLUSH. Raises as `append`. `makes_room`: retention asks, which goes
        on above diskSpaceWarningLevelRatio.
        """
        assert unit.key is not None and unit.value is not None
        if not makes_room:
            self._space.check()
        with append_lock(self._log):
            found = self._units.newest(unit.purpose, unit.key, self._log.writing_page.appended_end)
            if (found.value if found else None) != expect:
                return None
            appended = append(self._log, batches, self._bracket(unit))
        self._flush_appended(appended.end)
        return appended

    def append_rows(
        self, batches: Sequence[pa.RecordBatch], unit: UnitRecord, *, expect: int | None, keep_unique_key: bool
    ) -> AppendResult | None:
        """See `Store.append_unit`."""
        if not _PURPOSE.fullmatch(unit.purpose):
            raise UsageError(f"{unit.purpose!r} cannot be the purpose of a unit: letters, digits, _ and - can")
        with self._encoding:
            encoder = self._encoder(None, keep_unique_key)
            encoded = [
                encoder.encode_all(batch.slice(first, _ENCODE_ROWS), first_row=first)
                for batch in batches
                for first in range(0, batch.num_rows, _ENCODE_ROWS)
            ]
        needed: dict[str, int] = {}
        for part in encoded:
            for topic, queues in part.queues.items():
                needed[topic] = max(needed.get(topic, 0), queues)
        self._create_topics(list(needed.items()))
        appended = self.append_unit([part.frames for part in encoded], unit, expect=expect)
        if appended is None:
            return None
        return AppendResult(unit.row_count, appended.start, appended.end, self._all_replicated(appended.end))

    @leaves_no_lock
    def append_once(self, batches: Sequence[pa.RecordBatch], unit: UnitRecord) -> Appended | None:
        """Append encoded batches (ENCODED_SCHEMA) as a unit; None, and nothing is appended, if it repeats the newest
        unit of its key. All or nothing, durable and raises as `append_unit`; MarkerError as `commit_staged`.
        """
        with append_lock(self._log):
            done = unit.key is not None and self._already_done(unit, repeatable=True)
            if not done:
                self._space.check()
            appended = None if done else append(self._log, batches, self._bracket(unit))
        # Also for a repetition: the first attempt may have died between its append and its flush.
        self._flush_appended(appended.end if appended else self._log.writing_page.appended_end)
        return appended

    @leaves_no_lock
    def newest_unit(self, purpose: str, key: str) -> UnitRecord | None:
        """The newest unit of this purpose and key; None if there is none."""
        with append_lock(self._log):
            return self._units.newest(purpose, key, self._log.writing_page.appended_end)

    def last_unit(self, purpose: str, key: str) -> int | None:
        """See `Store.last_unit`."""
        found = self.newest_unit(purpose, key)
        return found.value if found else None

    def sent_requests(self, answer: tuple[bytes, ...]) -> SentRequests:
        """See `Store.sent_requests`."""
        return SentRequests(
            self._log, self._config, self._topics, self._flusher, self._space, self._lone_append, answer,
            self._replication,
        )  # fmt: skip

    def forget_files(self) -> None:
        """Let go of the files that it knows: the store is closed."""
        self._lone_append.forget()

    @leaves_no_lock
    def flush(self) -> None:
        """See `Store.flush`."""
        flush(self._log)
        self._log.held_root.refuse_if_replaced()

    @property
    def is_flush_late(self) -> bool:
        """See `Store.is_flush_late`."""
        return self._flusher.is_late

    def flush_async(self) -> None:
        """See `Store.flush_async`."""
        self._flusher.flush_async()

    def _append(self, encoded: Sequence[pa.RecordBatch]) -> Appended:
        with append_lock(self._log):
            appended = append(self._log, encoded)
        self._flush_appended(appended.end)
        return appended

    def _flush_appended(self, end: int) -> None:
        """Under SYNC_FLUSH, wait for the disk. The messages are stored already, so no error may suggest to send them
        again.
        """
        if not self._log.sync_flush:
            self._flusher.appended()
            return
        try:
            flush(self._log, end)
        except StoreLockedError as error:
            raise StoreFailedError(f"the messages are stored, but perhaps not on disk: {error}") from error

    def _acknowledged(self, result: CommitResult) -> CommitResult:
        # Also for a repetition: the first attempt may have died between its append and its flush, or its slave.
        end = self._log.writing_page.appended_end
        self._flush_appended(end)
        return replace(result, status=self._all_replicated(end))

    def _replicated(self, end: int, timeout_ms: int | None, status: SendStatus) -> SendStatus:
        """Wait for slaves. If they lack it, that counts more than `status` (CommitLog#handleDiskFlushAndHA)."""
        return _REPLICA_STATUS.get(self._replication.wait(end, timeout_ms), status)

    def _all_replicated(self, end: int) -> SendStatus:
        """Wait for slaves, as long as they go on: a batch may have gigabytes."""
        return _REPLICA_STATUS.get(self._replication.wait(end, while_it_grows=True), SendStatus.SEND_OK)

    def _is_done(self, unit: UnitRecord, repeatable: bool) -> bool:
        """True if the unit was committed before; waits for an append that is under way. MarkerError."""
        if unit.key is None:
            return False
        with append_lock(self._log):
            return self._already_done(unit, repeatable)

    def _already_done(self, unit: UnitRecord, repeatable: bool) -> bool:
        assert unit.key is not None and unit.value is not None
        found = self._units.newest(unit.purpose, unit.key, self._log.writing_page.appended_end)
        if found is None or found.value is None or found.value < unit.value:
            return False
        what = f"{self._log.root}: {unit.purpose} {unit.key!r}"
        if found.value > unit.value:
            raise MarkerError(
                f"{what} has committed {found.value} already, and comes with {unit.value} again: was its checkpoint "
                "rewound or copied? Start it with a new checkpoint"
            )
        if repeatable and (found.row_count, found.content_sum) != (unit.row_count, unit.content_sum):
            raise MarkerError(
                f"{what} comes with {unit.value} again, but with other rows ({unit.row_count} now, {found.row_count} "
                "committed); nothing was added. If its checkpoint was rewound or copied, start with a new one. If it "
                "is the same batch, of a query that gives other rows each time it runs, or whose source has lost "
                "messages of it since, say so by its option"
            )
        return True

    def _bracket(self, unit: UnitRecord) -> Unit:
        now_ms = self._log.clock()

        def record(tag: str, body: bytes) -> pa.RecordBatch:
            return system_records(self._log, self._host, UNITS_TOPIC, UNITS_QUEUE, tag, [body], now_ms)

        def encode(start: int, end: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
            first, last = unit.bodies(start, end)
            return record(BEGIN_TAG, first), record(END_TAG, last)

        return encode

    def _encoder(self, topic: str | None, keep_unique_key: bool = False) -> MessageEncoder:
        """An encoder for the present topics; the caller holds the lock of the encoders."""
        topics = self._topics.all()
        if topics is not self._encoders_for:
            self._encoders, self._encoders_for = {}, topics
        encoder = self._encoders.get((topic, keep_unique_key))
        if encoder is None:
            encoder = self._encoders[topic, keep_unique_key] = MessageEncoder(
                self._config, topics, self._log.clock, default_topic=topic, keep_unique_key=keep_unique_key,
                in_threads=True,
            )  # fmt: skip
        return encoder

    def _routed(self, topics: Mapping[str, TopicConfig]) -> Router:
        """The router for these topics; the caller holds the lock."""
        if topics is not self._router_for:
            self._router, self._router_for = Router(topics, self._config), topics
        return self._router

    def _create_topics(self, needed: Sequence[tuple[str, int]]) -> None:
        """Make missing topics, with at least the needed number of queues (autoCreateTopicEnable)."""
        known = self._topics.all()
        count = min(self._config.default_topic_queue_nums, AUTO_CREATE_QUEUE_MAX)
        new = [TopicConfig(name, self._read_queues(name, count), count) for name, _ in needed if name not in known]
        if new and not self._config.auto_create_topic_enable:
            raise UnknownTopicError(f"no topic {new[0].topic_name!r}, and autoCreateTopicEnable is false")
        if new:
            self._topics.create_all(new, exist_ok=True)
            known = self._topics.all()
        for name, queues in needed:
            if known[name].write_queue_nums < queues:
                raise StagingError(
                    f"topic {name!r} has {known[name].write_queue_nums} queues now, the rows count on {queues}"
                )

    def _read_queues(self, topic: str, count: int) -> int:
        """The number of queues of a new topic. If the table has lost the topic, existing queues count, so that their
        messages stay readable.
        """
        ids = (queue_id for queue_id in self._log.views.queue_ids(topic) if queue_id < QUEUE_COUNT_MAX)
        return max(count, 1 + max(ids, default=-1))


def _waits(message: Message) -> bool:
    """Whether its send waits for the disk, and for slaves (Message#isWaitStoreMsgOK)."""
    return message.properties.get(WAIT_STORE_MSG_OK, "true").lower() == "true"
