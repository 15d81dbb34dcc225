"""The store: one directory, opened. Wiring only; the rules are in the modules that it calls.

with Store.open("/data/store", create=True) as store:
    store.create_topic("Orders", queue_count=4)
    store.send(Message("Orders", b"..."))
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import pyarrow as pa

from rmq_store import kinds
from rmq_store.arguments import checked_methods, integer
from rmq_store.broker.delay.backlog import Backlog, backlog_by_topic, backlogs
from rmq_store.broker.delay.broker_backlog import BrokerBacklog
from rmq_store.broker.delay.scheduler import Schedule
from rmq_store.broker.dlq.archive import DeadLetterArchive
from rmq_store.broker.dlq.redrive import DeadLetters
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedrivenTable
from rmq_store.broker.metadata.group_topics import GroupTopics
from rmq_store.broker.metadata.groups import GroupTable, SubscriptionGroup
from rmq_store.broker.metadata.json_table import Stamp
from rmq_store.broker.metadata.leases import Lease
from rmq_store.broker.metadata.offsets import OffsetTable, flush_below
from rmq_store.broker.metadata.store_config import CHANGEABLE, DEFAULTS, StoreConfig, StoreFile
from rmq_store.broker.metadata.topic_use import TopicLease
from rmq_store.broker.metadata.topics import DEFAULT_TOPICS, TopicConfig, TopicTable, topics_with_batch_queues
from rmq_store.broker.pop.pop import Pop
from rmq_store.broker.read.query import Query
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.read.records import message_at
from rmq_store.broker.retry.retry import Retry
from rmq_store.broker.rules.send_back import PURPOSE as SEND_BACK_PURPOSE
from rmq_store.broker.store.administration import Administration
from rmq_store.broker.store.retention import Retention
from rmq_store.broker.store.unlisted_topics import UnlistedTopics
from rmq_store.broker.write.flusher import Flusher
from rmq_store.broker.write.staged_files import StagedFile
from rmq_store.broker.write.writer import Writer
from rmq_store.clock import store_clock
from rmq_store.errors import (
    CorruptConfigError,
    CorruptIndexError,
    CorruptionError,
    NotAStoreError,
    ReadOnlyError,
    StoreError,
    StoreKindError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.files.rooted import Root
from rmq_store.files.segments.pin import Pin
from rmq_store.files.segments.spread_log import parse_paths
from rmq_store.format.frames.message import Message, StoredMessage
from rmq_store.format.properties.light_queues import is_light
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.names import is_system_topic, validate_topic
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, Clock, CommitLog, leaves_no_lock
from rmq_store.log.core.file_sizes import size_of_files
from rmq_store.log.core.geometry import infer
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.integrity.index_gaps import has_no_index
from rmq_store.log.recovery import opening
from rmq_store.log.recovery.delay_inference import infer_delays, warn_of_assumed
from rmq_store.log.recovery.index_repair import indexes_tags
from rmq_store.log.recovery.rebuilt_queues import RebuiltViews
from rmq_store.log.recovery.recovery import RecoveryReport, Wishes
from rmq_store.log.recovery.starting_point import OUR_LOCK_TEXT
from rmq_store.log.views.index_search import damaged_index
from rmq_store.protocol.results import AppendResult, CommitResult, QueueRange, SendResult

_LOG = logging.getLogger(__name__)

_INDEX_SIZES = frozenset({"max_hash_slot_num", "max_index_num"})

# TopicConfigManager: a 5.x broker makes a topic of this prefix and its own name.
_SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@checked_methods("send")
class Store:
    """A RocketMQ store. Made by `Store.open`; close it, or use it in a `with` block. Safe for threads, not across
    fork.
    """

    def __init__(self, log: CommitLog, file: StoreFile, broker_name: str, recovery: RecoveryReport | None) -> None:
        self.path = Path(str(log.root))
        self.read_only = not log.writable
        self.config = file.config
        self.identity = file.identity
        self.broker_name = broker_name
        self.clock = log.clock
        self.recovery = recovery
        self._log = log
        self._topics = TopicTable(log.root, clock=log.clock)
        self._groups = GroupTable(log.root, clock=log.clock)
        self._queues = Queues(log, broker_name, file.config.max_message_size)
        self._offsets = OffsetTable(
            log.root, clock=log.clock, flush_below=functools.partial(flush_below, log, self._queues),
            enable_lmq=file.config.enable_lmq,
        )
        self._unlisted = UnlistedTopics(log.root, self._topics, self._queues)
        self._query = Query(log, self._queues)
        self._broker_backlog = BrokerBacklog(log.root, self._queues, self._offsets)
        self._flusher = Flusher(log, file.config) if log.writable else None
        self._writer = Writer(log, file.config, self._topics, self._flusher) if self._flusher else None
        self._schedule = Schedule(log, self._writer, self._queues) if self._writer else None
        self._retry = None
        self._dead_letters = None
        self._pop = None
        if self._writer is not None:
            tables = self._groups, self._topics
            self._retry = Retry(log, file.config, *tables, self._writer, self._queues.end)
            self._dead_letters = DeadLetters(log, file.config, *tables, self._queues, self._writer)
            groups = GroupTopics(file.config, self._groups, self._topics)
            self._pop = Pop(
                log, broker_name, self._topics, groups, self._offsets, self._queues, self._writer, self._retry
            )
        self._retention = Retention(log, file.config, self._queues, self._topics)
        self._admin = Administration(log, self._topics, self._groups, self._offsets, self._queues, self._unlisted)
        self._pid = os.getpid()
        self._closers: dict[object, None] = {}
        self._closed = False
        if self._flusher is not None:
            self._flusher.start()

    @classmethod
    @durable.permitted()
    def open(
        cls,
        path: str | Path,
        *,
        read_only: bool = False,
        create: bool = False,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        broker_name: str | None = None,
        on_corruption: Literal["refuse", "keep"] = "refuse",
        rebuild_views: bool | Callable[[int, int, int], None] = False,
        commit_log_paths: str = "",
    ) -> Store:
        """Open the store at `path`; with `create`, make one if the directory is missing or empty.

        `config` names the settings of a new store, or of one that a broker made; of a store of ours it must not
        contradict them: its own settings stay, and fields with their default value ask for nothing. What may change in
        the life of a store (when messages are deleted, say: `Retention.configure`; and messageDelayLevel) is replaced,
        for every process. Messages that wait already stay due when they are. If nobody told messageDelayLevel of a
        store that a broker wrote, its delayed messages tell it, a level at a time.
        `read_only` changes nothing on disk, whoever wrote the store. For writing, the
        first process to open a store that was not stopped cleanly recovers it: see `recovery`.

        If it finds records damaged or missing that were on disk for certain, it refuses, unless `on_corruption="keep"`:
        then nothing is truncated, the damage is written down (pyrmq/kept.json: later openers accept it, and no other)
        and named in `recovery.bad_ranges`, what lies before and behind it can be read, and reading a lost message
        raises CorruptRecordError. `rebuild_views` scans the whole log and writes queues and index again; a function is
        told (records so far, bytes so far, bytes in all).

        `commit_log_paths`: where the log is, if not in the store: storePathCommitLog of the broker, one directory or
        several that commas separate. Only with `read_only`.

        Raises:
            NotAStoreError: no store at `path`, or one of a newer version.
            StoreKindError: a store of a kind that cannot be read, or not be written (docs/stores.md).
            StoreLockedError: a RocketMQ broker runs on it (for writing).
            UsageError: `config` contradicts the store, or no permission.
            CorruptionError: files that contradict each other, or store.json is damaged or lost; nothing was changed.
        """
        root = Path(path).absolute()
        if on_corruption not in ("refuse", "keep"):
            raise UsageError(f"on_corruption={on_corruption!r}: refuse or keep")
        if read_only and (create or rebuild_views or on_corruption == "keep"):
            raise UsageError("a read-only open writes nothing: it goes with neither create, rebuild_views nor keep")
        wishes = Wishes(
            on_corruption == "keep", bool(rebuild_views), lambda: _consumed(root),
            progress=rebuild_views if callable(rebuild_views) else lambda records, done_bytes, total_bytes: None,
        )  # fmt: skip
        paths = parse_paths(commit_log_paths) if commit_log_paths else ()
        if paths and not read_only:
            raise ReadOnlyError(f"{root}: a log that is not in the store (storePathCommitLog) is only read: open it so")
        if paths and not (root / "config").is_dir():
            raise NotAStoreError(str(root), "no store of a broker is here: it has no config/")
        if create and not _is_store(root):
            _make_root(root)
        elif not paths and not _is_store(root):
            raise NotAStoreError(str(root), _no_store(root))
        durable.warn_of_shared_directory(root)
        with durable.typed_reading(root):
            if read_only:
                kinds.refuse_to_read(root)
            else:
                kinds.refuse_to_write(root)
        if not read_only:
            with durable.typed(root):
                root = Root(root).path
        ours = _is_ours(root)  # first: who is about to say so has written what follows from it
        known = StoreFile.load(root) or _none_lost(root)
        damage: list[CorruptIndexError] = []
        settings = _settings(root, known, config, damage, ours=ours, paths=paths)
        log = CommitLog(
            root,
            settings.geometry(),
            writable=not read_only,
            index_enabled=settings.message_index_enable and not damage,
            index_tags=settings.message_index_tags,
            clock=clock or store_clock(root),
            sync_flush=settings.flush_disk_type == "SYNC_FLUSH",
            crc_property=settings.enabled_append_prop_crc,
            delay_levels_ms=settings.delay_levels_ms(),
            paths=paths,
        )
        recovery = None
        is_open = False
        try:
            if read_only:
                log.held = Root(root)
                log.held.watch()
                if kinds.queues_are_in(root) == "RocksDB":
                    log.views = RebuiltViews(log)
                if (tables := kinds.tables_are_in_rocksdb(root)) is not None:
                    _warn(f"{root}: {tables.text}")
            log.index_damage = damage[0] if damage and settings.message_index_enable else None
            if log.index_damage is not None and not read_only:
                _LOG.warning("%s: what is stored now will not be found by its keys: %s", root, log.index_damage)
            if known is None and log.segments.bases() and not read_only:
                if log.views.index is not None and has_no_index(log):
                    settings, log.views.index = replace(settings, message_index_enable=False), None
                settings = replace(settings, message_index_tags=indexes_tags(log))
                log.index_tags = settings.message_index_tags
            log.views.elsewhere |= topics_with_batch_queues(root)
            if not read_only:
                if not settings.tells_delays() and _has_brokers_records(log, ours=ours):
                    settings = replace(settings, message_delay_level="")
                if not settings.message_delay_level:
                    rocketmqs_own = log.delay_levels_ms
                    infer_delays(log, rocketmqs_own)
                    warn_of_assumed(log, rocketmqs_own)
                wishes = replace(wishes, describe=functools.partial(_describe_first, root, settings))
                recovery = opening.open_for_writing(log, wishes=wishes)
                is_open = True
                if rebuild_views and recovery is None:
                    raise StoreLockedError(f"{root}: its views can be rebuilt only while nobody else has it open")
                known = _describe(log, known, settings)
                if known.config != settings:
                    # Another process was faster to make the store, with other settings: those hold.
                    is_open = False
                    opening.close(log)
                    again = cls.open(
                        path, create=create, config=config, clock=clock, broker_name=broker_name,
                        on_corruption=on_corruption, rebuild_views=rebuild_views,
                    )  # fmt: skip
                    again.recovery = recovery or again.recovery
                    return again
            name = broker_name or _broker_name(root, settings)
            if not settings.message_delay_level:
                settings = settings.with_delays(log.delay_levels_ms)
            return cls(log, StoreFile(known.identity if known else "", settings), name, recovery)
        except BaseException:
            try:
                if is_open:  # nothing is wrong with the log: it is stopped as cleanly as it was
                    with contextlib.suppress(StoreError):
                        opening.close(log)
            finally:
                log.close()
            raise

    def close(self) -> None:
        """Flush, and let go of files and locks, when the other threads are through with what they append; the last
        writer to close leaves a cleanly stopped store. Does nothing if another thread is at it. After an interrupt
        (Ctrl-C) while it waits the store is open, and is to be closed again.

        Raises:
            StoreFailedError: a flush failed; the next opener recovers the store.
            StoreLockedError: another process, or another thread, appends for too long.
            UsageError: a signal handler calls it in the middle of an append or a flush of this very thread. Nothing
                was let go of.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._log.refuse_reentry()
        # The first one in it closes. A dict, because to leave it is one step that no signal handler can come between.
        closer = object()
        try:
            self._closers[closer] = None
            first, *_ = self._closers
            if first is closer:
                self._close()
        finally:
            self._closers.pop(closer, None)

    @leaves_no_lock
    def _close(self) -> None:
        try:
            self._let_go()
        finally:
            # Also after an error; a read-only store never has it.
            self._closed = self._log.store_lock.held == "free"

    def _let_go(self) -> None:
        self._retention.close()
        if self._flusher is not None:
            self._flusher.stop()
            try:
                if self._schedule is not None:
                    self._schedule.close()
                if self._pop is not None:
                    self._pop.close()
            finally:
                opening.close(self._log)
        else:
            self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """Look at the disk again, if this is a read-only store that nobody of us writes. StoreReplacedError: the store
        is not in its place any more.
        """
        self._looking().refresh()

    def unpin(self) -> None:
        """Keep nothing from retention until something is read again."""
        self._log.files.unpin()

    # -- topics and groups ------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics of the table by name."""
        return self._topics.all()

    def topic(self, name: str) -> TopicConfig:
        """One topic, as `find_topic`; UnknownTopicError names some that the table lacks."""
        topic = self.find_topic(name)
        if topic is None:
            told = self._unlisted.told()
            if is_light(name) and kinds.queues_are_in(self.path) != "files":
                told = ": light message queues that its broker keeps in RocksDB are not read here"
            raise UnknownTopicError(f"no topic {str(name)[:255]!r} in {self.path}{told}")
        return topic

    def find_topic(self, name: str) -> TopicConfig | None:
        """The topic of exactly this name, also one that has queues and that the table does not name: it can be read.
        None if there is none. CorruptionError: a queue of such a topic is damaged.
        """
        self._reading()
        return self._topics.all().get(name) or self._unlisted.get(name)

    def unlisted_topics(self) -> Mapping[str, TopicConfig]:
        """Topics that have queues and that the table does not name, by name: it, or their entries, were lost, or a
        broker never writes them there (system topics, `%LMQ%` queues). Raises as `find_topic`.
        """
        self._reading()
        return self._unlisted.all()

    def create_topic(self, name: str, queue_count: int = 4, perm: int = 6, *, exist_ok: bool = False) -> TopicConfig:
        """Create a topic durably. UsageError if the name is bad, a system topic's, or taken (unless `exist_ok`)."""
        self._changing()
        validate_topic(name)
        if is_system_topic(name):
            raise UsageError(f"{name!r} is the name of a system topic: choose another one")
        return self._topics.create(TopicConfig(name, queue_count, queue_count, perm), exist_ok=exist_ok)

    def groups(self) -> Mapping[str, SubscriptionGroup]:
        """All consumer groups with a configuration, by name."""
        return self._groups.all()

    def create_group(self, group: SubscriptionGroup, *, exist_ok: bool = False) -> SubscriptionGroup:
        """Add a consumer group's settings durably and return them; with `exist_ok`, return those that are there
        unchanged. UsageError if a value is bad, or the group is there.
        """
        self._changing()
        return self._groups.create(group, exist_ok=exist_ok)

    def update_group(self, group: SubscriptionGroup) -> None:
        """Replace the settings of a group durably. UsageError if a value is bad, or there is no such group."""
        self._changing()
        self._groups.update(group)

    def committed_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """{(topic, queue id): offset of the next message to consume}; {} for a group that never committed.

        Raises:
            UsageError: consumerOffset.json and lmqConsumerOffset.json say different things of the group, and
                `enable_lmq` is not set.
            CorruptConfigError: of the result, if an offset is asked for that stands in the file and cannot be used.
        """
        return self._offsets.committed(group)

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """`committed_offsets` of every group; without those for which that is an error: see `offset_conflicts`."""
        return self._offsets.all()

    def offset_conflicts(self) -> list[str]:
        """Of which groups consumerOffset.json and lmqConsumerOffset.json say different things, as sentences; none if
        `enable_lmq` is set.
        """
        return [str(conflict.error()) for conflict in self._offsets.conflicts()]

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set offsets of a group, forwards or backwards; other offsets stay. Durable on return, and so are the messages
        below them: if some of these wait for their flush, it is made first.

        Raises:
            UsageError: a name, queue id or offset that cannot be one.
            StoreLockedError, StoreFullError, StoreFailedError: nothing was committed.
        """
        self._changing()
        self._offsets.commit(group, offsets)

    def lease(self, group: str, topic: str, owner: str, *, alone: bool = True) -> Lease:
        """Take the lease of `group` on `topic`, as a stream does: no other stream and no consumer of the group can read
        the topic until it is released or the process dies. Not `alone`: consumers can.

        Raises:
            LeaseHeldError: somebody has it, or consumers share the topic's queues; names them.
        """
        self._changing()
        lease = (TopicLease if alone else Lease)(self._log.root, group, topic, clock=self._log.clock)
        lease.acquire(owner)
        return lease

    # -- reading ----------------------------------------------------------------------------------------------------

    def redriven(self, group: str) -> Mapping[int, OffsetRanges]:
        """Which dead letters in each queue of `%DLQ%group` were moved on up to now. CorruptionError: a record of what
        was moved is damaged.
        """
        self._reading()
        return RedrivenTable(self._log, lambda: self.log_range()[1]).moved(group)

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """The messages that can be read; (0, 0) for a queue that was never used. TopicKindError: none of them can."""
        queues = self._looking()
        self._refuse_unreadable(topic)
        return queues.range(topic, queue_id)

    def queue_ranges(self, topic: str) -> dict[int, QueueRange]:
        """`queue_range` of each read queue. UnknownTopicError."""
        queues, known = self._looking(), self.topic(topic)
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
        `raw_body`. `only`: of the range, just these queue offsets, (n,) int64, ascending; nothing else is touched.
        `two_threads`: a second thread makes every other batch, before the one in front of it is yielded; not for who
        has a reader for each processor. It holds one batch more (9 MiB of stored bytes; one message if that is larger).

        Raises:
            OffsetOutOfRangeError: [start, end) is not within the queue's range.
            CorruptionError: a record or entry is damaged; what was yielded before is right.
            UsageError: unknown column. TopicKindError: the topic is kept in a way that is not read here.
        """
        self._refuse_unreadable(topic)
        # One thread for single messages.
        both = two_threads and only is None
        return self._reading().read(ReadRequest(topic, queue_id, start, end, columns, tags, raw_body, only, both))

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

    def lost_offsets(
        self, topic: str, queue_id: int, start: int, end: int, *, tags: str | None = None
    ) -> np.ndarray:
        """The messages of [start, end) that `read` of these tags cannot have, as far as the queue entries tell: their
        segment is missing, or they lie in damage that was kept. Queue offsets (n,) int64, ascending.
        OffsetOutOfRangeError.
        """
        return self._reading().lost_offsets(topic, queue_id, start, end, tags=tags)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """storeTimestamp in ms of one message. OffsetOutOfRangeError, CorruptRecordError."""
        return self._reading().store_timestamp(topic, queue_id, queue_offset)

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """What the queue's entry holds beside the place of one message: the hash of its tag; for a message that waits
        for its delay, when it is due (ms). OffsetOutOfRangeError.
        """
        return self._reading().tags_code(topic, queue_id, queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "lower") -> int:
        """The queue offset that RocketMQ finds for a time (ConsumeQueue#getOffsetInQueueByTime): `lower` or `upper`."""
        return self._reading().offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def message_at(self, commit_log_offset: int) -> StoredMessage:
        """The message whose record begins there, with all its fields; its body as stored. UsageError if none begins
        there (any more), CorruptRecordError if it is damaged.
        """
        return message_at(self._log, self._reading().end(), commit_log_offset)

    @property
    def query(self) -> Query:
        """Finds messages by key, unique key, id, queue offset and time."""
        self._reading()
        return self._query

    def log_range(self) -> tuple[int, int]:
        """[start, end) of the commit log as this store sees it now."""
        queues = self._looking()
        return self._log.start(), queues.end()

    def has_not_grown(self, end: int) -> bool:
        """Whether the log still ends at `end`, as far as mapped memory tells: for who asks all the time, and looks
        properly (`refresh`, `log_range`) now and then. What was appended is always seen; that files were replaced, or
        that a broker took the store over from a writer of ours, only by that other look. False is no answer.
        """
        return self._reading().has_not_grown(end)

    def delay_backlogs(self) -> list[Backlog]:
        """What waits for each delay level, and for times of their own: as it is at the moment. CorruptionError."""
        newest_unit = None if self._writer is None else self._writer.newest_unit
        return backlogs(self._log, newest_unit, self._reading().end())

    def backlog_by_topic(self) -> dict[str, int]:
        """How many messages wait for a delay or a time before they come to each topic; failed ones come to a `%RETRY%`
        topic. Each of them is looked at. CorruptionError: a queue is damaged.
        """
        newest_unit = None if self._writer is None else self._writer.newest_unit
        return backlog_by_topic(self._log, newest_unit, self._reading().end())

    def broker_backlog(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages that only a broker delivers, with their due times: timers of its wheel, and half messages
        of transactions. Schema BROKER_BACKLOG_SCHEMA of `rmq_store.broker.delay.broker_backlog`; reads three system
        topics. Raises as `read`, and as `committed_offsets`.
        """
        self._reading()
        return self._broker_backlog.rows()

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep retention from deleting [start_offset, end_offset) of the commit log, until the pin is released or the
        process dies; for at most `destroyMapedFileIntervalForcibly` (2 min) once it wants to.
        """
        self._reading()
        return Pin(self._log.segments, start_offset, end_offset)

    def archive(self, directory: str | Path) -> DeadLetterArchive:
        """The archive of this store's dead letters in `directory`, which is made when it is first written to."""
        return DeadLetterArchive(self._log, self._reading(), self._topics, Path(directory).absolute())

    # -- writing ----------------------------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        sys_flag: int = 0,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        flush_timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message. Under SYNC_FLUSH it is on disk on return; under ASYNC_FLUSH it survives this process,
        not the machine. `sys_flag` says how a body is compressed that the caller has compressed.

        Waits so long for other writers (StoreLockedError), and under SYNC_FLUSH for the fsync of another one
        (FLUSH_DISK_TIMEOUT; None: the setting syncFlushTimeout); its own takes as long as the disk does. A message
        whose property WAIT is "false" does not wait for the disk.

        Raises:
            UsageError: the message breaks a rule (name, size, properties); nothing was written.
            StoreFullError, StoreLockedError: nothing was written; may work later.
            StoreFailedError: whether it is stored is unknown.
        """
        if type(sys_flag) is not int or type(lock_timeout_ms) is not int or flush_timeout_ms is not None:
            sys_flag = integer("sys_flag", sys_flag)
            lock_timeout_ms = integer("lock_timeout_ms", lock_timeout_ms)
            if flush_timeout_ms is not None:
                flush_timeout_ms = integer("flush_timeout_ms", flush_timeout_ms)
        return self._writing().send(message, sys_flag, lock_timeout_ms, flush_timeout_ms)

    def send_all(
        self,
        messages: Sequence[Message],
        *,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        flush_timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Store a few messages, visible as one, in their order; for many there is `append`. Durable, waits and raises
        as `send`.
        """
        return self._writing().send_all(messages, lock_timeout_ms, flush_timeout_ms)

    def append(self, batch: pa.RecordBatch, topic: str | None = None) -> AppendResult:
        """Store a batch of any number of messages (columns of INPUT_SCHEMA), visible as one. Durable and raises as
        `send`; UsageError names row, column and value of what cannot be stored.
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

        With `key` and `value` a repetition of the newest value of the key adds nothing. `repeatable=False` accepts a
        repetition whose rows differ from those committed under this value (a query that is not deterministic).
        `consume_files=True` gives the memory of the files back while they are read: faster, but if it fails, they
        cannot be committed a second time. Nobody else may commit them.

        Raises:
            StagingError: a file is missing or altered; nothing was written.
            UsageError: two rows of files of `SendBackArea` name one message; nothing was written.
            MarkerError: a smaller value than the newest of this key, or the same value with other rows.
            UsageError, StoreFullError, StoreLockedError, StoreFailedError: as `send`.
        """
        if purpose == SEND_BACK_PURPOSE:
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
        and key (None: as the first one): all of them and the value, or nothing, across a power cut too. Value and
        `detail` are remembered as long as the store has the key. `keep_unique_key`: a property UNIQ_KEY stays, and a
        column `reconsumeTimes` may say how often a message failed.

        Returns None, and appends nothing, if the newest value is another one: somebody else was faster. Durable and
        raises as `append`.
        """
        unit = UnitRecord(purpose, key, value, sum(batch.num_rows for batch in batches), 0, dict(detail or {}))
        return self._writing().append_rows(batches, unit, expect=expect, keep_unique_key=keep_unique_key)

    def last_unit(self, purpose: str, key: str) -> int | None:
        """The newest committed value of a unit key; None if there is none."""
        return self._writing().last_unit(purpose, key)

    def newest_unit(self, purpose: str, key: str) -> UnitRecord | None:
        """The newest unit of a key with all that it says; None if there is none."""
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
        """Moves dead letters to where they are consumed again. ReadOnlyError."""
        self._writing()
        assert self._dead_letters is not None
        return self._dead_letters

    @property
    def pop(self) -> Pop:
        """Receive, acknowledge and hide messages one by one. ReadOnlyError."""
        self._writing()
        assert self._pop is not None
        return self._pop

    @property
    def retention(self) -> Retention:
        """Deletes old messages; of a read-only store it only says which."""
        self._reading()
        return self._retention

    @property
    def admin(self) -> Administration:
        """Changes and deletes topics and groups; of a read-only store it only says what would go."""
        self._reading()
        return self._admin

    def flush(self) -> None:
        """Make everything stored so far durable. StoreFailedError."""
        self._writing().flush()

    def flush_async(self) -> None:
        """Have a thread of the store make durable what is stored so far, at once and beside the caller. That it cannot
        is logged, and the next call that writes is told: StoreFailedError.
        """
        self._changing().flush_async()

    def _reading(self) -> Queues:
        if self._closed:
            raise UsageError(f"{self.path} is closed; open it again")
        return self._queues

    def _refuse_unreadable(self, topic: str) -> None:
        known = self._topics.all().get(topic)
        if known is not None and known.kind is not None:
            kinds.refuse_to_read_topic(topic, known.kind)

    def _looking(self) -> Queues:
        """As `_reading`, for what looks where queues and log end: StoreReplacedError if the store is not in its place.
        """
        queues = self._reading()
        self._log.held_root.refuse_if_replaced()
        return queues

    def _writing(self) -> Writer:
        if self._writer is None:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        if self._closed or self._log.store_lock.held == "free":  # a forked child holds nothing
            raise UsageError(f"{self.path} is closed in this process; open it again")
        return self._writer

    def _changing(self) -> Writer:
        """As `_writing`, for what does not append: StoreReplacedError if the store is not in its place."""
        writer = self._writing()
        self._log.held_root.refuse_if_replaced()
        return writer


def _is_store(root: Path) -> bool:
    """Whether a store is there.

    Raises:
        StoreKindError: it is, but its log is not: it was made first, so no store is without. Whoever took it for an
            empty one would begin anew in its place. Or its log is of another kind.
    """
    log = root / "commitlog"
    if log.is_dir():
        return True
    with durable.typed_reading(root):
        missing = kinds.missing_log(root)
        if missing is not None:
            raise StoreKindError(str(root), missing.text, missing.kind.name)
        kinds.refuse_to_read(root)
    return (root / "pyrmq" / "store.json").is_file()


@functools.lru_cache(maxsize=64)
def _warn(text: str) -> None:
    """Once: every task of Spark opens the store."""
    _LOG.warning("%s", text)


def _no_store(root: Path) -> str:
    reason = "no RocketMQ store is here (no commitlog/ and no pyrmq/store.json)"
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        return reason
    return f"{reason}; check the path, or make a store with `rmq init` or Store.open(path, create=True)"


def _is_ours(root: Path) -> bool:
    """Whether no broker wrote the store since we did."""
    try:
        return durable.read_limited(root / "lock", 4096).startswith(OUR_LOCK_TEXT)
    except FileNotFoundError:
        return False


def _make_root(root: Path) -> None:
    # Looked at last whether it is a store: another process may be creating it at this moment.
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not _is_store(root))):
        raise NotAStoreError(str(root), "not an empty directory, and no store: create one in a directory of its own")
    missing = [path for path in [root, *root.parents] if not path.is_dir()]
    try:
        for path in reversed(missing):
            durable.make_directory(path)
        durable.make_directory(root / "commitlog")
    except OSError as error:
        raise durable.translate(error, root) from error


def _has_brokers_records(log: CommitLog, *, ours: bool) -> bool:
    """Whether a broker has written into the store, whose delays nobody told us."""
    if not ours:
        return bool(log.segments.bases())
    known = log.progress.load()
    return known is not None and bool(known[0].crc_from)


def _settings(
    root: Path,
    known: StoreFile | None,
    config: StoreConfig | None,
    damage: list[CorruptIndexError],
    *,
    ours: bool,
    paths: Sequence[Path] = (),
) -> StoreConfig:
    """The settings that hold: those in store.json; of a store without one, `config` and what its files say. What is
    wrong with the index goes to `damage`: the messages can be had without it.
    """
    wanted = config or DEFAULTS
    given = {field.name for field in fields(StoreConfig) if getattr(wanted, field.name) != field.default}
    if wanted.dlq_archive_path:
        durable.refuse_inside(wanted.dlq_archive_path, root)
    if known is None:
        asked = wanted.geometry()
        return wanted.with_geometry(infer(root, asked, frozenset(given), without_index=damage, log_paths=paths))
    made_with = known.config.geometry()
    found = infer(root, made_with, ours=ours, without_index=damage, log_paths=paths)
    if found.of_index() != made_with.of_index():
        # A broker with other settings has used the store, or the files are of another one.
        reason = f"the files have maxHashSlotNum, maxIndexNum = {found.of_index()}"
        damage.append(damaged_index(str(root / "index"), 0, f"{reason}, store.json says {made_with.of_index()}"))
        found = found.with_index(made_with)
    if damage and given >= _INDEX_SIZES:  # nobody knew them before
        damage.clear()
        made_with = made_with.with_index(wanted.geometry())
        found = infer(root, made_with, _INDEX_SIZES)
        known = StoreFile(known.identity, known.config.with_geometry(made_with))
    for name in sorted(given - set(CHANGEABLE)):
        asked, made = getattr(wanted, name), getattr(known.config, name)
        if asked != made:
            raise UsageError(f"{name}={asked!r} was asked for, but {root} was made with {made!r}")
    if found != made_with:
        # For example a file that was cut: nothing may be written at places computed from that.
        raise CorruptionError(str(root), 0, f"the files are of {found}, store.json says {made_with}")
    return known.config.with_operational(wanted)


def _consumed(root: Path) -> dict[tuple[str, int], list[int]]:
    """Up to where each group has consumed each queue: these offsets were given out."""
    consumed: dict[tuple[str, int], list[int]] = {}
    for key, offset in OffsetTable(root).given_out():
        consumed.setdefault(key, []).append(offset)
    return consumed


def _none_lost(root: Path) -> StoreFile | None:
    """The store.json of a store that has none now: None if there was none to lose, or that of who was just making it.

    Who makes a store, or is the first of ours to open a broker's, writes it before anything says that the store is
    ours. If that is said, and there are messages, it is lost: to go on with the defaults (ASYNC_FLUSH!) and as another
    store is for `rmq repair`, which asks first.
    """
    is_described = _is_ours(root) and (root / "pyrmq" / "progress").exists()
    if not is_described or size_of_files(root / "commitlog") is None:
        return None
    known = StoreFile.load(root)
    if known is None:
        reason = "missing, and so is its backup, although this is a store of ours; see `rmq repair`"
        raise CorruptConfigError(str(root / "pyrmq" / "store.json"), 0, reason)
    return known


def _describe_first(root: Path, settings: StoreConfig) -> None:
    """Write store.json if the store has none. The caller holds byte 0 of `lock` exclusively."""
    if StoreFile.load(root) is None:
        StoreFile(str(uuid.uuid4()), settings).save(root)


def _describe(log: CommitLog, known: StoreFile | None, settings: StoreConfig) -> StoreFile:
    """Write store.json if the store has none, or if settings were given that may change; another opener may have been
    faster.
    """
    root = log.root
    if known is None or known.config != settings:
        with log.append_lock.exclusive(LOCK_TIMEOUT_MS):
            found = StoreFile.load(root)
            if found is None:
                found = StoreFile(str(uuid.uuid4()), settings)
                found.save(root)
            elif known is not None and found == known:
                found = StoreFile(known.identity, settings)
                found.save(root)
            known = found
    if not (root / "config" / "topics.json").exists():
        TopicTable(root).create_all(DEFAULT_TOPICS, exist_ok=True)
    return known


def _broker_name(root: Path, settings: StoreConfig) -> str:
    """5.x brokers leave a topic that carries their name; otherwise the store's own setting."""
    return _name_left(root, TopicTable(root).stamp()) or settings.broker_name


@functools.lru_cache(maxsize=16)
def _name_left(root: Path, stamp: Stamp) -> str | None:
    """Found once for each state of the table: every task of Spark opens the store, and there may be many topics."""
    for name in TopicTable(root).all():
        if name.startswith(_SYNC_MEMBER_PREFIX):
            return name.removeprefix(_SYNC_MEMBER_PREFIX)
    return None
