"""Sends of single messages as a server reads them: from the bytes of a connection to the bytes of the answers by one
call of the C extension (native/sent_requests.c), if nothing is unusual. The rest is decoded, and answered by the
processors of the server (rmq_store.server.processors.sending). docs/adr/0038 has the conditions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.broker.rules.timer import TIMER_PROPERTY_SET
from rmq_store.broker.write.disk_space import DiskSpace
from rmq_store.broker.write.flusher import Flusher
from rmq_store.errors import StoreFullError
from rmq_store.format.properties.property_string import (
    CRC32,
    DELAY_TIME_LEVEL,
    REPLY_TO_CLIENT,
    TRANSACTION_PREPARED,
)
from rmq_store.format.text.host import Host
from rmq_store.log.append.lone_append import LoneAppend, QueueTable
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.replication import Replication
from rmq_store.log.views.views import QueueKey

_SPECIAL = tuple(
    name.encode()
    for name in sorted(TIMER_PROPERTY_SET | {DELAY_TIME_LEVEL, TRANSACTION_PREPARED, REPLY_TO_CLIENT, CRC32})
)


class _Rules(NamedTuple):
    """The C function takes these fields, in this order. `answer`: the header of an answer, between whose parts stand
    msgId, queueId, queueOffset, transactionId and opaque. `special`: properties with which a message is none of the
    usual.
    """

    store_host: bytes
    answer: tuple[bytes, ...]
    special: tuple[bytes, ...]
    body_bytes_max: int
    index_tags: bool


class Served(NamedTuple):
    """`end`: behind the last request that was answered. `stored`: the queues that got messages."""

    end: int
    answers: bytes
    stored: list[QueueKey]


class SentRequests:
    """Answers requests to one open store, in one thread. `answer` as `_Rules` has it."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        topics: TopicTable,
        flusher: Flusher,
        space: DiskSpace,
        lone_append: LoneAppend,
        answer: tuple[bytes, ...],
        replication: Replication,
    ) -> None:
        self._log = log
        self._topics = topics
        self._flusher = flusher
        self._space = space
        self._lone_append = lone_append
        self._replication = replication
        self._rules = _Rules(
            Host.parse(config.broker_host).pack(), answer, _SPECIAL, config.max_message_size,
            config.message_index_tags,
        )  # fmt: skip
        # Queues to which messages may be sent by these settings of the topics, and whose files are there.
        self._queues: QueueTable = {}
        self._queues_of: Mapping[str, TopicConfig] | None = None

    def learn(self, topic: str, queue_id: int, topics: Mapping[str, TopicConfig]) -> None:
        """Note that a usual message was sent to this queue, by these settings of the topics."""
        if topics is not self._queues_of:
            self._queues, self._queues_of = {}, topics
        if (topic, queue_id) not in self._queues:
            self._lone_append.tell(topic, queue_id, self._queues)

    def serve(self, data: memoryview, born_host: str) -> Served | None:
        """Answer the requests at the beginning of `data` that are usual and whole, 64 at most. `born_host`: `ip:port`
        of the client. On return the messages are stored, as by `Store.send` under ASYNC_FLUSH. None: nothing was done.
        """
        if not self._queues or self._log.sync_flush or self._replication.is_sync or self._flusher.is_late:
            return None
        if self._topics.all() is not self._queues_of:
            self._queues.clear()
            return None
        try:
            self._space.check()
        except StoreFullError:  # the processor tells the sender
            return None
        served = self._lone_append.serve(self._queues, self._rules, data, _packed(born_host), self._log.clock())
        if served is None or not served[2]:
            return None
        end, answers, stored = served
        self._flusher.appended(may_flush=False)
        return Served(end, answers, stored)


@functools.lru_cache(maxsize=1024)
def _packed(host: str) -> bytes:
    """A client sends all its messages from one address."""
    return Host.parse(host).pack()
