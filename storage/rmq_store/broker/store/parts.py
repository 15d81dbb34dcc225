"""The parts of an open store, and their connections: wiring only.

Every public method first calls one of the gates at the end, which refuse a closed or a read-only store.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from rmq_store import kinds
from rmq_store.broker.delay.broker_backlog import BrokerBacklog
from rmq_store.broker.delay.recalls import Recalls
from rmq_store.broker.delay.scheduler import Schedule
from rmq_store.broker.dlq.redrive import DeadLetters
from rmq_store.broker.dlq.redrive_ledger import RedriveLedger
from rmq_store.broker.metadata.group_topics import GroupTopics
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.offsets import OffsetTable, flush_below
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.pop.pop import Pop
from rmq_store.broker.read.query import Query
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.retry.retry import Retry
from rmq_store.broker.store.administration import Administration
from rmq_store.broker.store.retention import Retention
from rmq_store.broker.store.unlisted_topics import UnlistedTopics
from rmq_store.broker.transactions.transactions import Transactions
from rmq_store.broker.write.flusher import Flusher
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import (
    ReadOnlyError,
    UsageError,
)
from rmq_store.format.text.host import Host
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.recovery.recovery import RecoveryReport


class StoreParts:
    """One open store as its parts. `_writer` and the parts that append are None in a store opened for reading."""

    def __init__(self, log: CommitLog, file: StoreFile, broker_name: str, recovery: RecoveryReport | None) -> None:
        self.path = Path(str(log.root))
        self.read_only = not log.writable
        self.config = file.config
        self.identity = file.identity
        self.replica = file.replica
        """The master that the store is a replica of, and how it began; None if it is a store of its own."""
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
        self._writer = None
        if self._flusher is not None:
            self._writer = Writer(log, file.config, self._topics, self._flusher, broker_name)
        self._schedule = Schedule(log, self._writer, self._queues) if self._writer else None
        # Made by the first one who asks: it reads its records once, for all groups.
        self._redrive_ledger: RedriveLedger | None = None
        self._recalls = None
        self._retry = None
        self._dead_letters = None
        self._pop = None
        if self._writer is not None:
            self._recalls = Recalls(log, self._writer, broker_name, Host.parse(file.config.broker_host))
            tables = self._groups, self._topics
            self._retry = Retry(log, file.config, *tables, self._writer, self._queues.end)
            self._dead_letters = DeadLetters(log, file.config, *tables, self._queues, self._writer)
            groups = GroupTopics(file.config, self._groups, self._topics)
            self._pop = Pop(
                log, broker_name, self._topics, groups, self._offsets, self._queues, self._writer, self._retry
            )
        self._transactions = Transactions(
            log, file.config, self._topics, self._queues, self._query, self._offsets, self._writer
        )
        self._retention = Retention(
            log, file.config, self._queues, self._topics, self._transactions.carry, is_replica=file.replica is not None
        )
        self._admin = Administration(log, self._topics, self._groups, self._offsets, self._queues, self._unlisted)
        self._pid = os.getpid()
        self._closers: dict[object, None] = {}
        self._closed = False
        if self._flusher is not None:
            self._flusher.start()

    def _reading(self) -> Queues:
        """The queues, for a method that reads. UsageError: the store is closed."""
        if self._closed:
            raise UsageError(f"{self.path} is closed; open it again")
        return self._queues

    def _refuse_unreadable(self, topic: str) -> None:
        """TopicKindError: the topic has a kind of queue that this engine does not read."""
        known = self._topics.all().get(topic)
        if known is not None and known.kind is not None:
            kinds.refuse_to_read_topic(topic, known.kind)

    def _reading_ends(self) -> Queues:
        """As `_reading`, for a method that returns ends of queues or log. StoreReplacedError: the directory was moved
        or replaced.
        """
        queues = self._reading()
        self._log.held_root.refuse_if_replaced()
        return queues

    def _writing(self) -> Writer:
        """The writer, for a method that appends. ReadOnlyError. UsageError: the store is closed in this process."""
        if self._writer is None:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        if self._closed or self._log.store_lock.held == "free":  # a forked child holds nothing
            raise UsageError(f"{self.path} is closed in this process; open it again")
        return self._writer

    def _changing(self) -> Writer:
        """As `_writing`, for a method that changes other files. StoreReplacedError: the directory was moved or
        replaced.
        """
        writer = self._writing()
        self._log.held_root.refuse_if_replaced()
        return writer
