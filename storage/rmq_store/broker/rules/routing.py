"""The queue of a message: the one that it names, the one of its sharding key, or the next one (data plane).

Messages with one sharding key go to one queue: |hash| mod number of queues, as RocketMQ's SelectMessageQueueByHash.
Messages without a key go round the queues of the topic, from a random queue on
(TopicPublishInfo#selectOneMessageQueue). Rows keep their order within a queue.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from rmq_store import kinds
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.errors import UnknownTopicError, UsageError, did_you_mean
from rmq_store.format.text.hashing import java_hash, java_hashes
from rmq_store.format.text.names import is_sent_by_broker_only, validate_topic
from rmq_store.lazy.arrow_compute import pc
from rmq_store.log.core.layout import ranks

# A topic made from TBW102 gets no more queues than that has (TopicConfigManager#createTopicInSendMessageMethod).
AUTO_CREATE_QUEUE_MAX = 8


class Router:
    """Chooses queues for one writer; not thread-safe."""

    def __init__(self, topics: Mapping[str, TopicConfig], config: StoreConfig) -> None:
        self._topics = topics
        self._config = config
        self._turn: dict[str, int] = {}
        # Of topics that were asked for: they are as long the same as this object.
        self._counts: dict[str, int] = {}
        self._named_counts: dict[str, int] = {}

    def queue_count(self, topic: str) -> int:
        """How many queues of `topic` may be written; for a topic that will be created on first use, the default.

        Raises:
            UsageError: bad name, a system topic, or a topic without write permission.
            TopicKindError: the topic has a kind of queue that this engine does not write.
            UnknownTopicError: it does not exist and autoCreateTopicEnable is off.
        """
        if (count := self._counts.get(topic)) is not None:
            return count
        known = self._writable(topic)
        if known is None:
            return min(self._config.default_topic_queue_nums, AUTO_CREATE_QUEUE_MAX)
        if known.write_queue_nums < 1:
            raise UsageError(
                f"topic {topic!r} has 0 write queues, so it takes no messages: set its writeQueueNums "
                "(rmq updateTopic -w)"
            )
        return self._counts.setdefault(topic, known.write_queue_nums)

    def named_count(self, topic: str) -> int:
        """As `queue_count`, for a message that names its queue: it may be one that is only read. A producer has an old
        route for up to 30 s after a topic got fewer write queues (AbstractSendMessageProcessor#msgCheck).
        """
        if (count := self._named_counts.get(topic)) is not None:
            return count
        known = self._writable(topic)
        if known is None:
            return self.queue_count(topic)
        return self._named_counts.setdefault(topic, max(known.write_queue_nums, known.read_queue_nums))

    def _writable(self, topic: str) -> TopicConfig | None:
        """The settings of a topic that may be written; None: it will be created. Raises as `queue_count`."""
        known = self._topics.get(topic)
        if known is not None and not is_sent_by_broker_only(topic):
            kinds.refuse_to_write_topic(topic, known.kind)
            if not known.writable:
                raise UsageError(f"topic {topic!r} may not be written (perm {known.perm})")
            return known
        validate_topic(topic)
        if is_sent_by_broker_only(topic):
            raise UsageError(f"{topic!r} is a system topic: only the store itself writes to it")
        if not self._config.auto_create_topic_enable:
            raise UnknownTopicError(
                f"no topic {topic!r}, and autoCreateTopicEnable is false: create it first"
                f"{did_you_mean(topic, self._topics)}"
            )
        return None

    def route(
        self, topics: pa.DictionaryArray, sharding_keys: pa.Array | None, queue_ids: pa.Array | None
    ) -> np.ndarray:
        """int32 (n,): a queue for each row. A null in `sharding_keys` or `queue_ids`, or an empty key, requests
        nothing.

        Raises:
            UsageError: a requested queue that the topic does not have; and as `queue_count`. Names the row.
        """
        count = len(topics)
        codes = topics.indices.to_numpy(zero_copy_only=False)
        names = topics.dictionary.to_pylist()
        used = np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist()
        counts = np.ones(max(len(names), 1), dtype=np.int64)
        for code in used:
            try:
                counts[code] = self.queue_count(names[code])
            except UsageError as error:
                raise type(error)(f"row {topics.indices.index(code).as_py()}: {error}") from error
        if sharding_keys is None and queue_ids is None:
            return self._in_turn(codes, names, counts)
        chosen = np.empty(count, dtype=np.int32)
        free = np.ones(count, dtype=bool)
        if sharding_keys is not None and sharding_keys.null_count < count:
            keyed = pc.greater(pc.binary_length(sharding_keys), 0).fill_null(False).to_numpy(zero_copy_only=False)
            hashes = np.abs(java_hashes(sharding_keys).astype(np.int64))
            chosen[keyed] = (hashes % counts[codes])[keyed]
            free &= ~keyed
        if queue_ids is not None and queue_ids.null_count < count:
            wished = queue_ids.is_valid().to_numpy(zero_copy_only=False)
            ids = queue_ids.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            bad = wished & ((ids < 0) | (ids >= counts[codes]))
            if bad.any():
                row = int(bad.argmax())
                topic = names[codes[row]]
                raise UsageError(
                    f"row {row}: topic {topic!r} has no queue {ids[row]}: it has {counts[codes[row]]} queues"
                )
            chosen[wished] = ids[wished]
            free &= ~wished
        chosen[free] = self._in_turn(codes[free], names, counts)
        return chosen

    def _in_turn(self, codes: np.ndarray, names: list[str], counts: np.ndarray) -> np.ndarray:
        """int32 (n,): the next queues of the topics `names[codes[i]]`, which have `counts[codes[i]]` of them."""
        rank, taken = ranks(codes, len(names))
        firsts = np.zeros(len(counts), np.int64)
        for code in np.flatnonzero(taken).tolist():
            topic, queues = names[code], int(counts[code])
            turn = self._turn.get(topic)
            firsts[code] = random.randrange(queues) if turn is None else turn
            self._turn[topic] = (int(firsts[code]) + int(taken[code])) % queues
        # Of one topic the same for all rows, which costs less than to look each of them up.
        of_row = slice(0, 1) if len(names) == 1 else codes
        queues_of_rows: np.ndarray = (rank + firsts[of_row]) % counts[of_row]
        return queues_of_rows.astype(np.int32)

    def route_one(self, topic: str, sharding_key: str | None, queue_id: int | None) -> int:
        """As `route`, for one message, which may name any queue of `named_count`."""
        if queue_id is not None:
            count = self.named_count(topic)
            if not 0 <= queue_id < count:
                raise UsageError(f"topic {topic!r} has no queue {queue_id}: it has {count} queues")
            return queue_id
        count = self.queue_count(topic)
        if sharding_key:
            return abs(java_hash(sharding_key)) % count
        turn = self._turn.get(topic)
        turn = random.randrange(count) if turn is None else turn % count
        self._turn[topic] = (turn + 1) % count
        return turn
