"""The query service: messages by key, unique key, id, queue offset and time.

The index stores hashes, so the text of each record found is compared with the key before it is returned. `find` returns
all messages, for many keys at once. `by_key` and `by_unique_key` answer as RocketMQ's client does, with its limits and
its times of whole seconds. Only messages in the visible log are found. Sources: DefaultMessageStore.java
(queryMessage), IndexService.java (queryOffset), MQAdminImpl.java (queryMessage).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arguments import checked_methods
from rmq_store.broker.read.index_lookup import KeyRows
from rmq_store.broker.read.queue_reader import damaged_entry, damaged_message
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import FrameRun, StoredFrames, message_at
from rmq_store.errors import (
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    UsageError,
)
from rmq_store.format.frames.message import StoredMessage
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_columns import LAST_WINS
from rmq_store.format.text.hashing import index_hash, java_hash, topic_key_hashes
from rmq_store.format.text.ids import UNBOUNDED_MS, parse_offset_message_id, unique_id_window_ms
from rmq_store.format.text.names import validate_topic
from rmq_store.format.views.batch_ids import batch_id_hashes
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.format.views.index_keys import split_keys
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import distinct
from rmq_store.log.integrity.index_gaps import lost_keys
from rmq_store.log.recovery.read_only_end import index_is_whole
from rmq_store.log.recovery.starting_point import log_is_ours
from rmq_store.log.views.index_search import IndexSearch, damaged_index

_LOG = logging.getLogger(__name__)

FOUND_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("commit_log_offset", pa.int64(), nullable=False),
        pa.field("queue_id", pa.int32(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
    ]
)
"""The result of `Query.find`."""

# MessageStoreConfig: maxMsgsNumBatch; BrokerConfig: defaultQueryMaxNum.
KEY_MESSAGES_MAX = 64
UNIQUE_KEY_MESSAGES_MAX = 32

# Candidates that are looked at together.
_BLOCK_ROWS = 1 << 16
_LOG_END = 1 << 62
_TRIES = 3

Int64 = npt.NDArray[np.int64]


@checked_methods()
class Query:
    """Queries of one open store, also a read-only one. Times are ms, and windows include both ends."""

    def __init__(self, log: CommitLog, queues: Queues) -> None:
        self._log = log
        self._queues = queues
        self._frames = StoredFrames(log)
        self._key_rows = KeyRows(log, queues, self)
        self._whole_end = -1  # the end of the log for which a read-only store's index was found to be whole
        self._is_index_checked = False
        self._search: IndexSearch | None = None

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
        try:
            wanted = pa.array(list(dict.fromkeys(keys)), pa.string())
        except (UnicodeEncodeError, pa.ArrowTypeError) as error:
            raise UsageError(f"a key is no text that can be stored: {error}") from error
        window = (begin_ms, end_ms)
        search = self.search()
        log_range = (max(self._log.start(), within[0]), min(self._queues.end(), within[1]))
        hashes = distinct(topic_key_hashes(topic, wanted))
        found = [np.empty((4, 0), np.int64)]
        for offsets in _blocks(search.candidates(hashes, log_range)):
            found += self._matches(topic, offsets, wanted, window, unique)
        for number in self._not_found(found, len(wanted)) if unique and of_batches else ():
            hashes = batch_id_hashes(topic, wanted[number].as_py())
            for offsets in _blocks(search.candidates(hashes, log_range)):
                matches = self._matches(topic, offsets, wanted, window, unique)
                found += [rows[:, rows[0] == number] for rows in matches]
        # Rows: number of the key, log offset, queue id, queue offset. A broker may index its last record twice.
        rows = np.concatenate(found, axis=1)
        rows = rows[:, np.lexsort((rows[1], rows[0]))]
        again = (rows[:2, 1:] == rows[:2, :-1]).all(axis=0)
        rows = np.delete(rows, np.flatnonzero(again), axis=1)
        columns = [wanted.take(pa.array(rows[0])), rows[1], rows[2].astype(np.int32), rows[3]]
        return pa.Table.from_arrays(columns, schema=FOUND_SCHEMA)

    @staticmethod
    def _not_found(found: list[Int64], count: int) -> list[int]:
        """The numbers of the keys without a row."""
        seen = np.zeros(count, np.bool_)
        for rows in found:
            seen[rows[0]] = True
        return np.flatnonzero(~seen).tolist()

    @property
    def rows(self) -> KeyRows:
        """Looks up messages of queues by keys, and the ranges that must be read instead."""
        return self._key_rows

    def search(self) -> IndexSearch:
        """The index, ready for a search; raises as `find`."""
        index, damage = self._log.views.index, self._log.index_damage
        if damage is not None:
            raise CorruptIndexError(damage.path, damage.offset, damage.reason) from damage
        if index is None or (self._is_a_brokers() and not index.names()):
            raise UsageError(
                f"{self._log.root} keeps no index (messageIndexEnable=false): no message can be found by key; read the "
                "topic instead"
            )
        end = self._queues.end()
        if not self._log.writable and end != self._whole_end:
            if not index_is_whole(self._log):
                reason = "the store was not stopped cleanly, its index may lack keys: open it for writing once"
                raise CorruptIndexError(str(index.directory), 0, reason)
            self._whole_end = end
        if self._search is None or self._search.index is not index:
            self._search = IndexSearch(index, self._log.files)
        self._warn_of_lost_files(self._search)
        return self._search

    def _warn_of_lost_files(self, search: IndexSearch) -> None:
        """Warn once about lost index files: a search for a key in them finds nothing, as if there was no such message.
        """
        if self._is_index_checked:
            return
        self._is_index_checked = True
        with contextlib.suppress(CorruptionError):  # who needs that file is told
            if (lost := lost_keys(self._log, search.covered())) is not None:
                _LOG.warning(
                    "%s: a file of the index is lost: messages at bytes %d to %d of the log are not found by their "
                    "keys before `rmq repair --index`", self._log.root, *lost,
                )  # fmt: skip

    def _is_a_brokers(self) -> bool:
        """True if a broker wrote the log last, and this engine has not recovered its views since."""
        return not self._log.writable and not log_is_ours(self._log) and bool(self._log.segments.bases())

    def _newest(
        self, topic: str, key: str, window: tuple[int, int], limit: int, has_key: Callable[[StoredMessage], bool]
    ) -> list[StoredMessage]:
        if not key:
            raise UsageError("an empty key: no message has it")
        if limit < 1:
            raise UsageError(f"max_num={limit}: must be at least 1")
        search = self.search()
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
                raise self._untrue_entry(offset) from error
            raise

    def _matches(
        self, topic: str, offsets: Int64, wanted: pa.StringArray, window: tuple[int, int], unique: bool
    ) -> list[Int64]:
        """The matching records at `offsets` (n,): (4, m) arrays as in `find`."""
        end = self._queues.end()
        offsets = offsets[~self._log.accepted_damage.mask(offsets)]
        for _ in range(_TRIES):
            offsets = offsets[offsets >= self._log.start()]
            sizes = self._frames.sizes(offsets, end)
            if sizes.all():
                try:
                    runs = self._frames.runs(offsets, sizes)
                    return _matching([_candidates(run, topic, window, unique) for run in runs], wanted)
                except FileNotFoundError:
                    continue  # retention was faster
        raise self._untrue_entry(int(offsets[int(sizes.argmin())]))

    def _untrue_entry(self, offset: int) -> CorruptionError:
        """The error for an index entry that points at an offset where no message begins."""
        if not self._log.segments.exists(self._log.segments.base_of(offset)):
            return self._log.missing_segment(offset)
        assert self._log.views.index is not None
        reason = f"an entry points at {offset} of the log, where no message begins"
        return damaged_index(str(self._log.views.index.directory), 0, reason)


def _blocks(pieces: Iterator[Int64]) -> Iterator[Int64]:
    """Pieces joined to blocks that are large enough to read their records together; each block is sorted and has no
    offset twice.
    """
    block: list[Int64] = []
    rows = 0
    for piece in pieces:
        block.append(piece)
        rows += len(piece)
        if rows >= _BLOCK_ROWS:
            yield distinct(np.concatenate(block))
            block, rows = [], 0
    if rows:
        yield distinct(np.concatenate(block))


def _candidates(run: FrameRun, topic: str, window: tuple[int, int], unique: bool) -> tuple[pa.Array, Int64]:
    """Keys of the records of a run that have the topic and a time in the window; and, (3, n), log offset, queue id and
    queue offset for each key.
    """
    headers = run.headers
    times_ms = headers.store_timestamp
    # A message without a queue entry (a half one, a rollback) is at no queue offset.
    good = headers.dispatchable & (times_ms >= window[0]) & (times_ms <= window[1])
    good &= pc.equal(headers.topics(), topic).to_numpy(zero_copy_only=False)
    if unique:
        rows = np.flatnonzero(good)
        keys = run.pieces.column(names.UNIQUE_KEY).take(pa.array(rows))
        last = headers.properties((names.UNIQUE_KEY,), first_wins=LAST_WINS).column(names.UNIQUE_KEY)
        last = last.take(pa.array(rows))
        others = np.flatnonzero(pc.not_equal(keys, last).fill_null(False).to_numpy(zero_copy_only=False))
        keys, rows = pa.concat_arrays([keys, last.take(pa.array(others))]), np.concatenate([rows, rows[others]])
    else:
        keys, rows = split_keys(run.pieces.column(names.KEYS), good)
    return keys, np.stack([headers.physical_offset[rows], headers.queue_id[rows], headers.queue_offset[rows]])


def _matching(candidates: Sequence[tuple[pa.Array, Int64]], wanted: pa.StringArray) -> list[Int64]:
    """The candidates with one of the `wanted` keys: (4, m) arrays as in `find`. One call for all, because Arrow makes a
    hash table of the wanted keys in each call.
    """
    if not candidates:
        return []
    keys = pa.chunked_array([keys for keys, _ in candidates])
    places = pc.index_in(keys, value_set=wanted).combine_chunks()
    hits = places.is_valid().to_numpy(zero_copy_only=False)
    found = np.concatenate([places for _, places in candidates], axis=1)[:, hits]
    return [np.concatenate([places.drop_null().to_numpy()[None, :], found])]
