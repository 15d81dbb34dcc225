"""Pulling from a store, as PullMessageProcessor.java and DefaultMessageStore.java (getMessage) answer it."""

from __future__ import annotations

import pyarrow as pa

from rmq_store import kinds
from rmq_store.broker.processor.local_answers import Answers
from rmq_store.broker.store.store import Store
from rmq_store.errors import CorruptionError, OffsetOutOfRangeError
from rmq_store.format.bytes.gather import repeated
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue, PullBatchResult, PullStatus
from rmq_store.protocol.stored_messages import body_bytes

# MessageStoreConfig.java: maxTransferBytesOnMessageInMemory, maxFilterMessageSize.
PULL_BYTES_MAX = 256 << 10
# Of rows for which a consumer has room: 2,000 messages of 1 KiB share a read.
PULL_ROOM_BYTES_MAX = 2 << 20
FILTERED_ENTRIES_MAX = 16_000
# A read costs the same for a row and for a thousand: 1,024 rows of 4 KiB share one.
PULL_BATCH_BYTES_MAX = 4 << 20
# Entries per read where it is not known how many of them will do: few match a filter, or bodies were compressed.
_STEP = 256
_BROKER_NAME = MESSAGE_SCHEMA.get_field_index("brokerName")


class LocalPull:
    """Pulls from one store on behalf of a broker; `answers` makes that broker's answers."""

    def __init__(self, name: str, store: Store, answers: Answers) -> None:
        self._name = name
        self._store = store
        self._answers = answers
        # Of the bodies that the last pull of a queue has found, on average: how many are not too many for the next one.
        self._body_bytes: dict[tuple[str, int], float] = {}

    def pull_batch(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        tags: str | None,
        bytes_max: int,
        room: int = 0,
    ) -> PullBatchResult:
        """See `Broker.pull_batch`, and `Broker.pull` for `room`. At most `bytes_max` of stored messages, but at least
        one; a filter looks at FILTERED_ENTRIES_MAX entries at most. Raises what `Store.read` raises, and MQBrokerError.
        """
        self._check(group, queue)
        first, last = self._store.queue_range(queue.topic, queue.queue_id)
        if not first <= offset <= last:
            return PullBatchResult(PullStatus.OFFSET_ILLEGAL, first if offset < first else last, first, last)
        most = max(max_count, room)
        try:
            try:
                found, at = self._read(queue, offset, last, max_count, most, tags, bytes_max)
            except CorruptionError:
                if most == max_count:
                    raise
                # The damage may lie behind what was asked for.
                found, at = self._read(queue, offset, last, max_count, max_count, tags, bytes_max)
        except OffsetOutOfRangeError as error:  # retention was faster
            return PullBatchResult(PullStatus.OFFSET_ILLEGAL, error.minimum, error.minimum, error.maximum)
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MSG if at > offset else PullStatus.NO_NEW_MSG
        return PullBatchResult(status, at, first, last, [self._named(batch) for batch in found])

    def _read(
        self, queue: MessageQueue, offset: int, last: int, count: int, most: int, tags: str | None, bytes_max: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """Messages from `offset` on, and the next offset. It looks for `count` messages and adds more, up to `most`.
        Without a filter it reads on while the decompressed bodies are smaller than `bytes_max`.
        """
        place = (queue.topic, queue.queue_id)
        found: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        at, limit = offset, min(last, offset + FILTERED_ENTRIES_MAX)
        while at < limit and row_count < most:
            step = _STEP
            if tags is None:
                row_bytes = size_bytes / row_count if row_count else self._body_bytes.get(place, bytes_max)
                step = min(most - row_count, max(int((bytes_max - size_bytes) / max(row_bytes, 1)) + 1, _STEP))
            wanted = min(at + step, limit)
            end = self._store.offset_after_bytes(*place, at, wanted, bytes_max)
            for batch in self._store.read(*place, at, end, tags=tags):
                found.append(batch)
                row_count += batch.num_rows
                size_bytes += body_bytes(batch)
                if size_bytes >= bytes_max:  # a few of these bodies fill a batch
                    end = batch.column("queueOffset")[-1].as_py() + 1
                    break
            at = end
            enough = end < wanted if tags is None else row_count >= count
            if found and (enough or size_bytes >= bytes_max):
                break
        if row_count:
            self._body_bytes[place] = size_bytes / row_count
        if row_count > most:
            found = _first_rows(found, most)
            at = found[-1].column("queueOffset")[-1].as_py() + 1
        return _joined(found, size_bytes), at

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the cluster's name for the store, which may differ from the name at its opening."""
        if self._name == self._store.broker_name:
            return batch
        return batch.set_column(_BROKER_NAME, MESSAGE_SCHEMA.field(_BROKER_NAME), repeated(self._name, batch.num_rows))

    def _check(self, group: str, queue: MessageQueue) -> None:
        """PullMessageProcessor's checks."""
        settings = self._store.groups().get(group)
        if settings is not None and not settings.consume_enable:
            raise self._answers.error(ResponseCode.NO_PERMISSION, f"group {group!r} may not consume (consumeEnable)")
        topic = self._store.find_topic(queue.topic)
        if topic is None:
            raise self._answers.error(ResponseCode.TOPIC_NOT_EXIST, f"no topic {queue.topic!r}")
        kinds.refuse_to_read_topic(queue.topic, topic.kind)
        if not topic.readable:
            reason = f"topic {queue.topic!r} may not be read (perm {topic.perm})"
            raise self._answers.error(ResponseCode.NO_PERMISSION, reason)
        if not 0 <= queue.queue_id < topic.read_queue_nums:
            raise self._answers.error(
                ResponseCode.SYSTEM_ERROR,
                f"topic {queue.topic!r} has no queue {queue.queue_id}: it has {topic.read_queue_nums} queues",
            )


def _first_rows(batches: list[pa.RecordBatch], count: int) -> list[pa.RecordBatch]:
    """The batches, cut after the first `count` rows."""
    kept = []
    for batch in batches:
        if count > 0:
            kept.append(batch.slice(0, count))
            count -= batch.num_rows
    return kept


def _joined(batches: list[pa.RecordBatch], size_bytes: int) -> list[pa.RecordBatch]:
    """Batches of a few rows each (a selective filter, the end of a segment) joined to one. Batches with more than 2 *
    PULL_BATCH_BYTES_MAX of decompressed bodies stay separate: one column cannot address them all.
    """
    if len(batches) < 2 or size_bytes > 2 * PULL_BATCH_BYTES_MAX:
        return batches
    return [pa.concat_batches(batches)]
