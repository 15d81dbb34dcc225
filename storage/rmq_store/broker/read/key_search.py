"""Searches the index for many keys at once, and decides if the index can be trusted (data plane).

The index stores hashes. So the records of all candidates are read together, and their keys are compared as text.
Sources: IndexService.java (queryOffset), DefaultMessageStore.java (queryMessage).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import FrameRun, StoredFrames
from rmq_store.errors import CorruptIndexError, CorruptionError, UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_columns import LAST_WINS
from rmq_store.format.text.hashing import topic_key_hashes
from rmq_store.format.text.ids import UNBOUNDED_MS
from rmq_store.format.views.batch_ids import batch_id_hashes
from rmq_store.format.views.index_keys import split_keys
from rmq_store.lazy.arrow_compute import pc
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

# Candidates whose records are read together.
_BLOCK_ROWS = 1 << 16
_TRIES = 3

Int64 = npt.NDArray[np.int64]


class KeySearch:
    """Finds messages of one open store by many keys at once, also in a read-only one."""

    def __init__(self, log: CommitLog, queues: Queues) -> None:
        self._log = log
        self._queues = queues
        self._frames = StoredFrames(log)
        self._whole_end = -1  # the end of the log for which a read-only store's index was found to be whole
        self._is_index_checked = False
        self._search: IndexSearch | None = None

    def find(
        self,
        topic: str,
        keys: Sequence[str],
        within: tuple[int, int],
        window: tuple[int, int] = (0, UNBOUNDED_MS),
        *,
        unique: bool,
        of_batches: bool,
    ) -> pa.Table:
        """See `Query.find`. `window` is its [begin_ms, end_ms]."""
        try:
            wanted = pa.array(list(dict.fromkeys(keys)), pa.string())
        except (UnicodeEncodeError, pa.ArrowTypeError) as error:
            raise UsageError(f"a key is no text that can be stored: {error}") from error
        search = self.index()
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

    def index(self) -> IndexSearch:
        """The index, ready for a search.

        Raises:
            UsageError: the store keeps no index.
            CorruptIndexError: the index is damaged, or may be incomplete after an unclean stop.
        """
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
        """Warn once about lost index files: a search for a key in them finds nothing, as if no message had it."""
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
        raise self.untrue_entry(int(offsets[int(sizes.argmin())]))

    def untrue_entry(self, offset: int) -> CorruptionError:
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
