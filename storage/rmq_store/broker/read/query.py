"""The query service: messages by key, unique key, id, queue offset and time.

`find` returns all messages, for many keys at once (`key_search`). `by_key` and `by_unique_key` answer as RocketMQ's
client does, with its limits and its times of whole seconds. Only messages in the visible log are found. Sources:
DefaultMessageStore.java (queryMessage), IndexService.java (queryOffset), MQAdminImpl.java (queryMessage).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.read.index_lookup import KeyRows
from rmq_store.broker.read.key_search import KeySearch
from rmq_store.broker.read.queue_reader import damaged_entry, damaged_message
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import message_at
from rmq_store.errors import CorruptionError, CorruptRecordError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.format.text.ids import UNBOUNDED_MS, parse_offset_message_id, unique_id_window_ms
from rmq_store.format.text.names import validate_topic
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog

# MessageStoreConfig: maxMsgsNumBatch; BrokerConfig: defaultQueryMaxNum.
KEY_MESSAGES_MAX = 64
UNIQUE_KEY_MESSAGES_MAX = 32

_LOG_END = 1 << 62


@checked_methods()
class Query:
    """Queries of one open store, also a read-only one. Times are ms, and windows include both ends."""

    def __init__(self, log: CommitLog, queues: Queues) -> None:
        self._log = log
        self._queues = queues
        self._keys = KeySearch(log, queues)
        self._key_rows = KeyRows(log, queues, self._keys)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = UNBOUNDED_MS,
        max_num: int = KEY_MESSAGES_MAX,
    ) -> list[StoredMessage]:
        """The newest `max_num` messages of the topic, at most 64, with this key among their KEYS; newest first (a
        broker returns them oldest first).

        The index holds times in whole seconds. So a message up to one second after `begin_ms` may be missing, and one
        up to a second after `end_ms` may be included. Bodies are as stored.

        Raises:
            UsageError: `max_num` below 1, or the store keeps no index (messageIndexEnable=false).
            CorruptIndexError: the index is damaged, or may be incomplete after an unclean stop.
            CorruptRecordError: one of the messages is damaged.
        """
        window = (begin_ms, end_ms)
        return self._newest(
            topic, key, window, min(max_num, KEY_MESSAGES_MAX), lambda found: key in (found.keys or "").split(" ")
        )

    def by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max_num: int = UNIQUE_KEY_MESSAGES_MAX,
    ) -> list[StoredMessage]:
        """The newest `max_num` messages of the topic, at most 32, with this UNIQ_KEY; newest first. Raises as `by_key`.

        Messages of a 5.x Java client's batch have two: their own, which is their `msgId`, and that of the batch, which
        Java shows and indexes. Both find the message. For its own id, the search tries the ids that the producer made
        up to a second later, because that of the batch is among them.

        Without `begin_ms` the window begins at the time in the id (`unique_id_window_ms`), which is valid for a month;
        mqadmin passes `begin_ms=0`.
        """
        begin, end = unique_id_window_ms(unique_key, self._log.clock())
        window = (begin if begin_ms is None else begin_ms, end if end_ms is None else end_ms)

        def has_key(found: StoredMessage) -> bool:
            return unique_key in (found.properties.get(names.UNIQUE_KEY), found.java_unique_key)

        limit = min(max_num, UNIQUE_KEY_MESSAGES_MAX)
        found = self._newest(topic, unique_key, window, limit, has_key)
        if not found:
            rows = self.find(topic, [unique_key], begin_ms=window[0], end_ms=window[1], unique=True, of_batches=True)
            log_offsets, log_end = rows.column("commit_log_offset").to_pylist(), self._queues.end()
            messages = (self._message(log_offset, log_end) for log_offset in reversed(log_offsets))
            found = [message for message in messages if message is not None][:limit]
        return found

    def by_offset_id(self, msg_id: str) -> StoredMessage:
        """The message of an offset id, which holds its store host and its commit-log offset there.

        Raises:
            UsageError: not an offset id; no message begins at that offset (any more); or the message there has another
                store host, so the id belongs to another store. (mqadmin would ask that host.)
            CorruptRecordError: the message is damaged.
        """
        host, offset = parse_offset_message_id(msg_id)
        try:
            found = message_at(self._log, self._queues.end(), offset)
        except UsageError as error:
            raise UsageError(f"{error} (if {msg_id} is a unique id, search its topic for that)") from error
        if found.store_host != host:
            raise UsageError(
                f"{msg_id} is an id of the broker {host}; the message at {offset} of {self._log.root} was stored by "
                f"{found.store_host}: search the other store"
            )
        return found

    def by_queue_offset(self, topic: str, queue_id: int, offset: int) -> StoredMessage:
        """One message by its queue offset.

        Raises:
            OffsetOutOfRangeError: the queue does not have it (any more).
            CorruptQueueError, CorruptRecordError: the queue's entry or the message is damaged.
        """
        found = self._at_entry(topic, queue_id, offset)
        if found is not None:
            return found
        log_offset = self._queues.commit_log_offset(topic, queue_id, offset)
        try:
            found = message_at(self._log, self._queues.end(), log_offset)
        except (UsageError, CorruptRecordError) as error:
            self._queues.commit_log_offset(topic, queue_id, offset)  # tells if retention was faster
            if isinstance(error, CorruptRecordError):
                raise damaged_message(self._log, topic, queue_id, offset, error) from error
            what = f"points at byte {log_offset} of the log, where no message begins"
            raise damaged_entry(self._log, topic, queue_id, offset, what) from error
        if (found.topic, found.queue_id, found.queue_offset) != (topic, queue_id, offset):
            raise damaged_entry(self._log, topic, queue_id, offset, f"points at another message ({log_offset})")
        return found

    def _at_entry(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """The message, if the queue entry leads to it. This proves that the queue has it, without the queue's range,
        which takes longer to find. None: the caller must find out what is wrong.
        """
        validate_topic(topic)
        if queue_id < 0 or offset < 0:
            return None
        try:
            log_offset, size, _ = self._log.views.queue(topic, queue_id).entry(offset)
            if not 0 < size != PRE_BLANK_SIZE:
                return None
            found = message_at(self._log, self._queues.end(), log_offset, size)
        except (FileNotFoundError, UsageError, CorruptionError):
            return None
        return found if (found.topic, found.queue_id, found.queue_offset) == (topic, queue_id, offset) else None

    def by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "lower") -> int:
        """As `Store.offset_by_time`."""
        return self._queues.offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def find(
        self,
        topic: str,
        keys: Sequence[str],
        *,
        begin_ms: int = 0,
        end_ms: int = UNBOUNDED_MS,
        unique: bool = False,
        of_batches: bool = False,
        within: tuple[int, int] = (0, _LOG_END),
    ) -> pa.Table:
        """All messages of the topic that have one of `keys` among their KEYS (or, if `unique`, as their UNIQ_KEY) and
        were stored in [begin_ms, end_ms], both included: FOUND_SCHEMA, sorted by the order of `keys`, then by
        commit-log offset. A message comes once for each of its keys. `of_batches`: an id that is not found is searched
        as the id of a message in a batch, see `by_unique_key`; this costs some ms for each.

        Thousands of keys are looked up together. Memory: the result and one block of candidates. `within`: only records
        that begin in [start, end) of the log; index files without any are skipped.

        Raises:
            UsageError: the store keeps no index.
            CorruptIndexError, CorruptRecordError: as `by_key`.
        """
        return self._keys.find(topic, keys, within, (begin_ms, end_ms), unique=unique, of_batches=of_batches)

    @property
    def rows(self) -> KeyRows:
        """Looks up messages of queues by keys, and the ranges that must be read instead."""
        return self._key_rows

    def _newest(
        self, topic: str, key: str, window: tuple[int, int], limit: int, has_key: Callable[[StoredMessage], bool]
    ) -> list[StoredMessage]:
        if not key:
            raise UsageError("an empty key: no message has it")
        if limit < 1:
            raise UsageError(f"max_num={limit}: must be at least 1")
        search = self._keys.index()
        log_range = (self._log.start(), self._queues.end())
        last = end = log_range[1]
        found: list[StoredMessage] = []
        for offset in search.newest_first(index_hash(java_hash(f"{topic}#{key}")), *window, log_range):
            if offset >= last:
                continue  # seen: a record may be indexed twice
            last = offset
            message = self._message(offset, end)
            if message is not None and message.topic == topic and has_key(message):
                found.append(message)
                if len(found) == limit:
                    break
        return found

    def _message(self, offset: int, end: int) -> StoredMessage | None:
        """The message at a commit-log offset; None if retention deleted it, or if it lies in accepted damage."""
        if self._log.accepted_damage.covering(offset):
            return None
        try:
            return message_at(self._log, end, offset)
        except (UsageError, CorruptRecordError) as error:
            if offset < self._log.start():
                return None
            if isinstance(error, UsageError):
                raise self._keys.untrue_entry(offset) from error
            raise
