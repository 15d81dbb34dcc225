"""`store.retry`: sends failed messages back (CONSUMER_SEND_MSG_BACK).

A failed message is copied into the group's retry topic, after a delay level, or into its dead letters. The rules are in
`send_back`. Sources: AbstractSendMessageProcessor#consumerSendMsgBack,
SendMessageProcessor#handleRetryAndDLQ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.group_topics import MESSAGE_ILLEGAL, SYSTEM_ERROR, GroupTopics
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.read.records import message_at
from rmq_store.broker.retry.send_back_batch import ANSWER_SCHEMA, SEND_BACK_SCHEMA, SendBackEncoder, normalise
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules.failure import size_bytes, with_reasons
from rmq_store.broker.rules.resend import resent_hop, resent_properties
from rmq_store.broker.rules.send_back import (
    Hop,
    SendBackRules,
    Source,
    check_storable,
    copied_properties,
    given_properties,
    origin,
    properties_bytes_max,
)
from rmq_store.broker.write.single_copy import CopiedMessage, record_of
from rmq_store.broker.write.staged_files import StagedFile, content_sum_of
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS
from rmq_store.format.frames.message import Message
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord

__all__ = ["ANSWER_SCHEMA", "SEND_BACK_SCHEMA", "Retry", "SentBack"]


@dataclass(frozen=True, slots=True)
class SentBack:
    """The target of a failed message. `topic`: `%RETRY%g` (by way of the delay level `delay_level`), `%DLQ%g`, or ""
    when the group has no retry queues and the message was dropped (retryQueueNums 0), as RocketMQ does.
    """

    topic: str
    delay_level: int
    reconsume_times: int
    commit_log_offset: int

    @property
    def is_dead(self) -> bool:
        """True if the message went to the dead letters."""
        return self.topic.startswith(names.DLQ_PREFIX)


_DROPPED = SentBack("", 0, 0, -1)


@checked_methods("set_max_reconsume_times")
class Retry:
    """Sends failed messages back to one store that is open for writing. Safe for threads and processes."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        groups: GroupTable,
        topics: TopicTable,
        writer: Writer,
        visible_end: Callable[[], int],
    ) -> None:
        self._log = log
        self._config = config
        self._groups = groups
        self._group_topics = GroupTopics(config, groups, topics)
        self._writer = writer
        self._visible_end = visible_end
        self._properties_bytes_max = properties_bytes_max(config.enabled_append_prop_crc)
        self._random = random.Random()

    def send_back(
        self,
        group: str,
        commit_log_offset: int,
        *,
        delay_level: int = 0,
        max_reconsume_times: int | None = None,
        msg_id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SentBack:
        """Send back one message that a consumer of `group` failed on, and return its target.

        `delay_level`: with 0 the broker chooses (3 + reconsumeTimes); below 0 the message goes straight to the dead
        letters; a level above the table counts as its last one. `max_reconsume_times` counts for this message only,
        None: the group's retryMaxTimes; a message that was retried that often becomes a dead letter, and with 0 or less
        every message does. `msg_id` must be the message's, if given. `properties` are set on the copy (see `failure`);
        with them, {} included, the copy also names topic, queue and offset of its original. The original stays. Durable
        as `Store.send`.

        Raises:
            ResponseError: 26, no such group and none is made; 1, no message at that offset, or its properties do not
                fit; 16, the retry topic may not be written. Nothing was written, so the caller still has to handle the
                message.
            UsageError: the message at that offset is not `msg_id`; a property that cannot be set.
            CorruptRecordError: the message is damaged.
        """
        rules, queues = self._rules(group, max_reconsume_times)
        if not queues:
            return _DROPPED
        try:
            found = message_at(self._log, self._visible_end(), commit_log_offset)
        except UsageError as error:
            raise ResponseError(SYSTEM_ERROR, f"look message by offset failed, {commit_log_offset}") from error
        if msg_id is not None and found.msg_id != msg_id:
            raise UsageError(f"the message at {commit_log_offset} is {found.msg_id!r}, not {msg_id!r}")
        if not found.is_dispatchable:
            raise ResponseError(SYSTEM_ERROR, f"{commit_log_offset} is a half message: no consumer gets it")
        hop = rules.hop(found.reconsume_times, delay_level)
        queue_id = self._random.randrange(queues)
        source = Source(found.topic, found.queue_id, found.queue_offset, found.offset_msg_id)
        given = {} if properties is None else {**origin(found.properties, source), **given_properties(properties)}
        copied = with_reasons(
            copied_properties(found.properties, source, hop, group, queue_id),
            given,
            self._properties_bytes_max,
        )
        if copied is None:
            raise ResponseError(SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED")
        copy = CopiedMessage(found.body, found.flag, found.sys_flag, found.born_timestamp_ms, found.born_host, copied)
        if hop.is_dead:
            self._group_topics.make_dlq(group)
        return self._put(group, copy, hop, queue_id)

    def send_back_all(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        max_reconsume_times: int | None = None,
        key: str | None = None,
        value: int | None = None,
        reconsume_times: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """Send many messages back (SEND_BACK_SCHEMA) as one unit, all or none of them, across a power cut too.

        With `key` and `value` a repetition of the newest value of the key adds nothing. `reconsume_times` per row: the
        number of retries so far, if the records do not hold it (`pop`). Returns ANSWER_SCHEMA in the order of the rows;
        `commitLogOffset` is that of the new record, null if none was added. Durable as `Store.send`.

        Raises:
            ResponseError, UsageError, CorruptRecordError: as `send_back`, naming row and offset; nothing was written.
            MarkerError: a smaller value than the newest of this key, or the same value with other rows.
        """
        if (key is None) != (value is None):
            raise UsageError("a unit has a key and a value, or neither")
        rows = normalise(rows)
        rules, queues = self._rules(group, max_reconsume_times)
        if not queues:
            return _answers(pa.array([""] * rows.num_rows, pa.string()), None, None, None)
        host = Host.parse(self._config.broker_host)
        copies = SendBackEncoder(self._log, host, rules, queues).encode(rows, self._visible_end(), reconsume_times)
        if copies.dead:
            self._group_topics.make_dlq(group)
        offsets = None
        if rows.num_rows:
            unit = UnitRecord(purposes.SEND_BACK, key, value, rows.num_rows, content_sum_of(copies.batches))
            appended = self._writer.append_once(copies.batches, unit)
            if appended is not None:
                offsets = pa.array(appended.offsets).take(pa.array(copies.rows.argsort()))
        return _answers(copies.topics, copies.delay_levels, copies.reconsume_times, offsets)

    def send_to_retry(
        self,
        group: str,
        message: Message,
        reconsume_times: int,
        max_reconsume_times: int | None = None,
        *,
        n_plus_one: bool = True,
        delay_level: int | None = None,
        sys_flag: int = 0,
        born_host: Host | None = None,
    ) -> SentBack:
        """Send a message to `%RETRY%group` (SEND_MESSAGE). Clients do this after a failed send-back, or for an ordered
        message that was tried too often. `message` is the one that the listener got: its topic is the original one.
        `sys_flag`: the compression of its body, which is stored unchanged. `born_host` None: the store's own.

        `reconsume_times`: with `n_plus_one` the number of the reported failure, as clients from 5.1.1 on send it; above
        the maximum the message becomes a dead letter. Otherwise the number of retries so far; at the maximum the
        message becomes a dead letter. A dead letter is never delayed. `delay_level`: the level that the client asks
        for, 0 for no delay; None: the level of the retry. Durable as `Store.send`.

        Raises:
            ResponseError: 26, no such group and none is made; 16, the topic may not be written; 13, the body or the
                properties are too large. Nothing was written.
            UsageError: the message breaks another rule, or `sys_flag` has other bits.
        """
        if sys_flag & ~COMPRESSION_FLAGS:
            bits = f"{COMPRESSION_FLAGS:#x}"
            raise UsageError(f"sys_flag={sys_flag:#x}: only the bits {bits} of compression can be given")
        settings = self._group_topics.group(group)
        maximum = settings.retry_max_times if max_reconsume_times is None else max_reconsume_times
        if not isinstance(message.body, bytes) or len(message.body) > self._config.max_message_size:
            raise ResponseError(MESSAGE_ILLEGAL, f"no body, or one of more than {self._config.max_message_size} bytes")
        hop = resent_hop(
            group, reconsume_times, maximum, self._log.delay_levels_ms, n_plus_one=n_plus_one, delay_level=delay_level
        )
        if hop.is_dead:
            self._group_topics.make_dlq(group)
            queue_id = 0
        else:
            # Nobody asks here whether the group wants retry queues: the topic gets one (SendMessageProcessor).
            settings = replace(settings, retry_queue_nums=max(settings.retry_queue_nums, 1))
            queue_id = self._random.randrange(self._group_topics.retry_queues(settings))
        own = message.stored_properties()
        check_storable({keys.RETRY_TOPIC: message.topic, **own})
        properties = resent_properties(own, message.topic, hop, group, queue_id, max_reconsume_times)
        if size_bytes(properties) > self._properties_bytes_max:
            raise ResponseError(MESSAGE_ILLEGAL, "PROPERTIES_SIZE_EXCEEDED")
        born = born_host or Host(Host.parse(self._config.broker_host).address, 0)
        born_ms = self._log.clock() if message.born_timestamp_ms is None else message.born_timestamp_ms
        copy = CopiedMessage(message.body, message.flag, sys_flag, born_ms, born, properties)
        return self._put(group, copy, hop, queue_id)

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        """Make `times` the group's retryMaxTimes, durably; the last writer wins. Makes the group if it is missing.

        It does not affect a consumer that gives its own maximum with each send-back.

        Raises:
            UsageError: no name of a group, or no 32-bit number.
            ResponseError: 26, no such group and none is made.
        """
        if type(times) is not int or not -(1 << 31) <= times < 1 << 31:
            raise UsageError(f"maxReconsumeTimes {times!r} is no 32-bit integer")
        if self._group_topics.group(group).retry_max_times != times:
            self._groups.change(group, lambda known: replace(known, retry_max_times=times))

    def prepare(self, group: str, max_reconsume_times: int | None = None) -> None:
        """Make the group and its retry topic if they are missing. Tasks that stage send-backs need both
        (`SendBackArea`). With `max_reconsume_times`, as `set_max_reconsume_times`.

        Raises:
            ResponseError: 26, 16, as `send_back`.
        """
        if max_reconsume_times is not None:
            self.set_max_reconsume_times(group, max_reconsume_times)
        settings = self._group_topics.group(group)
        if settings.retry_queue_nums > 0:
            self._group_topics.retry_queues(settings)

    def make_topics(self, files: Sequence[StagedFile]) -> None:
        """Make the dead-letter topics that staged send-backs go to. The commit itself would make them with too many
        queues.
        """
        for topic in sorted({topic for file in files for topic, _ in file.topics}):
            if topic.startswith(names.DLQ_PREFIX):
                self._group_topics.make_dlq(topic.removeprefix(names.DLQ_PREFIX))

    def _rules(self, group: str, asked_maximum: int | None) -> tuple[SendBackRules, int]:
        """Steps 1 to 5: the rules, and the number of retry queues; 0: messages are dropped."""
        settings = self._group_topics.group(group)
        rules = SendBackRules.of(settings, asked_maximum, self._log.delay_levels_ms)
        return rules, self._group_topics.retry_queues(settings) if settings.retry_queue_nums > 0 else 0

    def _put(self, group: str, copy: CopiedMessage, hop: Hop, retry_queue: int) -> SentBack:
        queue_id = retry_queue if hop.queue_id is None else hop.queue_id
        record = record_of(
            copy, hop.topic, queue_id,
            reconsume_times=hop.reconsume_times, delay_ms=hop.delay_ms, config=self._config,
        )  # fmt: skip
        offset, _ = self._writer.put(record)
        topic = names.dlq_topic(group) if hop.is_dead else names.retry_topic(group)
        return SentBack(topic, max(hop.delay_level, 0), hop.reconsume_times, offset)


def _answers(
    topics: pa.Array, levels: np.ndarray | None, times: np.ndarray | None, offsets: pa.Array | None
) -> pa.RecordBatch:
    count = len(topics)
    zeros = np.zeros(count, np.int32)
    columns = [
        topics,
        pa.array(zeros if levels is None else levels),
        pa.array(zeros if times is None else times),
        pa.nulls(count, pa.int64()) if offsets is None else offsets,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ANSWER_SCHEMA)
