"""The records that transactions write: half messages and their copies, committed messages, op records (data plane).

Sources: TransactionalMessageBridge (parseHalfMessageInner, makeOpMessageInner), EndTransactionProcessor
(endMessageTransaction), DefaultTransactionalMessageCheckListener (toMessageExtBrokerInner).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.rules import transaction as rules
from rmq_store.broker.rules.delay import DelayRules, destination_of
from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.broker.write.single_copy import CopiedMessage, property_string, record_of
from rmq_store.broker.write.system_records import system_records
from rmq_store.errors import ResponseError
from rmq_store.format.batches.frame_parts import encoded_rows
from rmq_store.format.frames.frame_check import TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties.property_string import CRC32, CRC_PROPERTY_BYTES
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC
from rmq_store.log.append.append import OneRecord
from rmq_store.log.core.commit_log import CommitLog

_QUEUE = 0
_SYSTEM_ERROR = 1


class HalfRecords:
    """Makes records for one store."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config

    def half(self, message: CopiedMessage) -> OneRecord:
        """A new half message. UsageError: a field does not fit."""
        return self._record(message, HALF_TOPIC, _QUEUE)

    def copy(self, half: StoredMessage, first: int | None, check_times: int) -> pa.RecordBatch:
        """A half message once more, as `copy_properties`: ENCODED_SCHEMA."""
        properties = rules.copy_properties(half.properties, first, check_times)
        return self._encoded(self._record(_copied(half, properties), HALF_TOPIC, _QUEUE))

    def committed(self, half: StoredMessage) -> pa.RecordBatch:
        """The message for its real queue, or for the queue in which it waits: ENCODED_SCHEMA. Only brokers take half
        messages with a time.

        Raises:
            ResponseError: the half message names no queue.
            UsageError: its time is none, or too far ahead.
        """
        target = rules.real_queue(half.properties)
        if target is None:
            raise ResponseError(_SYSTEM_ERROR, f"the half message at {half.commit_log_offset} names no queue")
        properties = rules.final_properties(half.properties)
        goes = destination_of(properties, *target, self._log.clock(), DelayRules.of(self._config))
        copied = _copied(half, goes.properties, int(SysFlag.TRANSACTION_COMMIT))
        record = self._record(copied, goes.topic, goes.queue_id, half.commit_log_offset, half.reconsume_times)
        tags_code = record.tags_code if goes.tags_code is None else goes.tags_code
        return self._encoded(record._replace(tags_code=tags_code, delay_ms=goes.delay_ms))

    def given_up(self, half: StoredMessage) -> pa.RecordBatch:
        """The record of a half message that nobody has ended after all questions: ENCODED_SCHEMA."""
        copied = _copied(half, rules.final_properties(half.properties))
        return self._encoded(self._record(copied, TRANSACTION_CHECK_MAX_TIME_TOPIC, _QUEUE, 0, half.reconsume_times))

    def op(self, queue_offset: int) -> pa.RecordBatch:
        """The op record that a half message is done: ENCODED_SCHEMA."""
        host = Host.parse(self._config.broker_host)
        body = str(queue_offset).encode()
        return system_records(self._log, host, OP_HALF_TOPIC, _QUEUE, rules.REMOVED_TAG, [body])

    def _record(
        self, message: CopiedMessage, topic: str, queue_id: int, prepared_offset: int = 0, reconsume_times: int = 0
    ) -> OneRecord:
        return record_of(
            message, topic, queue_id, reconsume_times=reconsume_times, delay_ms=0, config=self._config,
            prepared_transaction_offset=prepared_offset,
        )  # fmt: skip

    def _encoded(self, record: OneRecord) -> pa.RecordBatch:
        frame = bytes(record.frame)
        crc = zlib.crc32(frame[:-CRC_PROPERTY_BYTES]) if self._log.crc_property else 0
        batch = encoded_rows(
            pa.array([frame], pa.large_binary()),
            pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([record.topic])),
            np.array([record.queue_id], np.int32),
            np.zeros(1, np.int32),  # a half message and a committed one both get an entry
            np.array([crc], np.uint32),
            np.array([record.tags_code], np.int64),
            pa.array([_signed(record.key_hashes)], pa.list_(pa.int32())),
        )
        column = ENCODED_SCHEMA.get_field_index("delay_ms")
        return batch.set_column(column, ENCODED_SCHEMA.field(column), pa.array([record.delay_ms], pa.int64()))


def shown_frame(half: PendingHalf, message: StoredMessage) -> bytes:
    """The record of a half message as its producer sees it in a question: of its real queue."""
    properties = {name: value for name, value in rules.final_properties(message.properties).items() if name != CRC32}
    real = replace(
        message, topic=half.topic, queue_id=half.queue_id, properties=properties,
        properties_raw=property_string(properties),
    )  # fmt: skip
    return real.encode()


def _copied(half: StoredMessage, properties: dict[str, str], transaction_bits: int = 0) -> CopiedMessage:
    kept = {name: value for name, value in properties.items() if name != CRC32}
    sys_flag = half.sys_flag & ~TRANSACTION_MASK | transaction_bits
    return CopiedMessage(half.body, half.flag, sys_flag, half.born_timestamp_ms, half.born_host, kept)


def _signed(hashes: Sequence[int]) -> list[int]:
    return [(code + (1 << 31)) % (1 << 32) - (1 << 31) for code in hashes]
