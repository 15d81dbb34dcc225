"""The public methods of a store for messages, ranges and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store import kinds
from rmq_store.arguments import checked_methods
from rmq_store.broker.delay.backlog import Backlog, backlog_by_topic, backlogs
from rmq_store.broker.dlq.archive import DeadLetterArchive
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedriveLedger
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.read.query import Query
from rmq_store.broker.read.queue_frames import FrameRange
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.read.records import message_at, raw_bytes
from rmq_store.broker.store.topics_and_groups import TopicsAndGroups
from rmq_store.broker.transactions.transactions import Transactions
from rmq_store.files.segments.pin import Pin
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol.results import QueueRange


@checked_methods()
class Reading(TopicsAndGroups):
    """The part of `Store` that reads."""

    def redriven(self, group: str) -> Mapping[int, OffsetRanges]:
        """The dead letters in each queue of `%DLQ%group` that were redriven until now, as offset ranges.
        CorruptionError: a record of the redrive ledger is damaged.
        """
        self._reading()
        if self._redrive_ledger is None:
            self._redrive_ledger = RedriveLedger(self._log, lambda: self.log_range()[1])
        return self._redrive_ledger.moved(group)

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """The queue offsets [min, max) that can be read; (0, 0) for a queue that was never used. TopicKindError: the
        topic has a kind of queue that this engine does not read.
        """
        queues = self._reading_ends()
        self._refuse_unreadable(topic)
        return queues.range(topic, queue_id)

    def queue_ranges(self, topic: str) -> dict[int, QueueRange]:
        """`queue_range` of each read queue. UnknownTopicError."""
        queues, known = self._reading_ends(), self.topic(topic)
        kinds.refuse_to_read_topic(topic, known.kind)
        return queues.ranges(topic, range(known.read_queue_nums))

    def read(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        columns: Sequence[str] = tuple(MESSAGE_SCHEMA.names),
        tags: str | None = None,
        raw_body: bool = False,
        only: np.ndarray | None = None,
        two_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield messages [start, end) of a queue as batches, in queue order; schema MESSAGE_SCHEMA restricted to
        `columns`.

        `tags` ("TagA || TagB") leaves out messages with other tags. Compressed bodies are decompressed unless
        `raw_body`; one that cannot be inflated stays as it lies, and its `sysFlag` keeps the COMPRESSED bit.

        `only`: read just these queue offsets of the range, (n,) int64, ascending. `two_threads`: a second thread
        decodes the next batch ahead, which holds one batch more (9 MiB of stored bytes, or one larger message). Switch
        it off if every processor has a reader already.

        Raises:
            OffsetOutOfRangeError: [start, end) is not within the queue's range.
            CorruptionError: a record or entry is damaged; all batches before it are valid.
            UsageError: unknown column. TopicKindError: the topic has a kind of queue that this engine does not read.
        """
        self._refuse_unreadable(topic)
        # One thread for single messages.
        both = two_threads and only is None
        return self._reading().read(ReadRequest(topic, queue_id, start, end, columns, tags, raw_body, only, both))

    def read_frames(
        self,
        topic: str,
        queue_id: int,
        start: int,
        *,
        entries_max: int,
        count_max: int,
        bytes_max: int,
        tags: str | None = None,
        settings: TopicConfig | None = None,
    ) -> FrameRange:
        """A queue's range, and messages from `start` on as the frames that lie in the log: at most `count_max`, and at
        most `bytes_max` of frames, but one at least, from the next `entries_max` messages
        (DefaultMessageStore#getMessage); none if `start` lies outside the range. Tags are compared by their hashes
        only. Messages in accepted damage are left out. `settings`: those of the topic, if `find_topic` has just
        returned them; without, they are looked up.

        Raises:
            OffsetOutOfRangeError: retention was faster.
            CorruptionError: an entry points to no frame of this queue and offset.
            UsageError: a tag expression without a tag. TopicKindError: the topic has a kind of queue that this engine
                does not read. StoreReplacedError: the directory was moved or replaced.
        """
        queues = self._reading_ends()
        if settings is None:
            self._refuse_unreadable(topic)
        else:
            kinds.refuse_to_read_topic(topic, settings.kind)
        return queues.frames(
            topic, queue_id, start, entries_max=entries_max, count_max=count_max, bytes_max=bytes_max,
            tags=TagFilter.parse(tags),
        )  # fmt: skip

    def queue_entries(self, topic: str, queue_id: int, start: int, end: int) -> np.ndarray:
        """Entries [start, end) of a queue, dtype ENTRY: commit_log_offset, frame_size, tags_code.
        OffsetOutOfRangeError, TopicKindError.
        """
        self._refuse_unreadable(topic)
        return self._reading().entries(topic, queue_id, start, end)

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if the queue has none there (any more)."""
        return self._reading().commit_log_offset_before(topic, queue_id, queue_offset)

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Stored bytes of messages [start, end), from the queue entries alone. OffsetOutOfRangeError."""
        return self._reading().bytes_between(topic, queue_id, start, end)

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """The largest offset in [start, end] up to which messages from `start` on have at most `limit_bytes`; at
        least one message.
        """
        return self._reading().offset_after_bytes(topic, queue_id, start, end, limit_bytes)

    def lost_offsets(self, topic: str, queue_id: int, start: int, end: int, *, tags: str | None = None) -> np.ndarray:
        """Queue offsets of the messages in [start, end) that `read` with these tags cannot return, (n,) int64,
        ascending: their segment is missing, or they lie in accepted damage. Only queue entries are read.
        OffsetOutOfRangeError.
        """
        return self._reading().lost_offsets(topic, queue_id, start, end, tags=tags)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """storeTimestamp in ms of one message. OffsetOutOfRangeError, CorruptRecordError."""
        return self._reading().store_timestamp(topic, queue_id, queue_offset)

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The tags code in the queue's entry of one message: the hash of its tag, or the due time (ms) of a delayed
        message. OffsetOutOfRangeError.
        """
        return self._reading().tags_code(topic, queue_id, queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "lower") -> int:
        """The queue offset that RocketMQ finds for a time (ConsumeQueue#getOffsetInQueueByTime): `lower` or `upper`."""
        return self._reading().offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def message_at(self, commit_log_offset: int) -> StoredMessage:
        """The message whose record begins at `commit_log_offset`, with all fields and the body as stored.

        Raises:
            UsageError: no record begins there (any more).
            CorruptRecordError: the record is damaged.
        """
        return message_at(self._log, self._reading().end(), commit_log_offset)

    def frame_at(self, commit_log_offset: int) -> bytes:
        """The frame of `message_at` as it lies in the log; its checksums are checked. Raises as `message_at`."""
        size = self.message_at(commit_log_offset).total_size
        frame = raw_bytes(self._log, commit_log_offset, size)
        assert frame is not None
        return frame

    @property
    def query(self) -> Query:
        """Finds messages by key, unique key, id, queue offset and time."""
        self._reading()
        return self._query

    @property
    def transactions(self) -> Transactions:
        """Half messages: stored, ended, asked for. A read-only store lists them."""
        self._reading()
        return self._transactions

    def log_range(self) -> tuple[int, int]:
        """[start, end) of the commit log as this store sees it now."""
        queues = self._reading_ends()
        return self._log.start(), queues.end()

    def has_not_grown(self, end: int) -> bool:
        """Cheap check without a system call. True: nothing was appended since `end`. False: unknown, call
        `log_range`.

        It does not notice that files were replaced, or that a broker took over the store. A caller that polls must
        also call `refresh` or `log_range` now and then.
        """
        return self._reading().has_not_grown(end)

    def delay_backlogs(self) -> list[Backlog]:
        """The undelivered messages of each delay level, and those with a time of their own, at this moment.
        CorruptionError.
        """
        newest_unit = None if self._writer is None else self._writer.newest_unit
        return backlogs(self._log, newest_unit, self._reading().end())

    def backlog_by_topic(self) -> dict[str, int]:
        """{target topic: number of delayed messages for it}; the target of a failed message is a `%RETRY%` topic. Reads
        every delayed message. CorruptionError: a queue is damaged.
        """
        newest_unit = None if self._writer is None else self._writer.newest_unit
        return backlog_by_topic(self._log, newest_unit, self._reading().end())

    def broker_backlog(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages that a broker left, with their due times: timers of its wheel, and half messages
        of transactions. Schema BROKER_BACKLOG_SCHEMA of `rmq_store.broker.delay.broker_backlog`; reads three system
        topics. Raises as `read`, and as `committed_offsets`.
        """
        self._reading()
        return self._broker_backlog.rows()

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep retention from deleting [start_offset, end_offset) of the commit log, until the pin is released or the
        process dies. Retention waits at most `destroyMapedFileIntervalForcibly` (2 min) from its first attempt.
        """
        self._reading()
        return Pin(self._log.segments, start_offset, end_offset)

    def archive(self, directory: str | Path) -> DeadLetterArchive:
        """The archive of this store's dead letters in `directory`, which the first write makes."""
        return DeadLetterArchive(self._log, self._reading(), self._topics, Path(directory).absolute())

    def refresh(self) -> None:
        """Read the end of the log from disk again, for a read-only store that no process of this engine has open for
        writing. StoreReplacedError: the directory was moved or replaced.
        """
        self._reading_ends().refresh()

    def unpin(self) -> None:
        """Release this store's pins, so that retention can delete any segment. The next read pins again."""
        self._log.files.unpin()
