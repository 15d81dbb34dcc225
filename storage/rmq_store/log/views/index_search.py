"""Finds commit-log offsets by key hash, newest first: one key as RocketMQ walks, thousands at once with arrays.

A search walks all files, newest first, each mapped whole (`IndexMap`). While a writer appends or undoes an append, a
slot may briefly point at an entry of another slot. The search then reads the slot again. A search finds only
candidates, because other keys can have the same hash: the caller compares the records.

Source: IndexService.java (queryOffset), IndexFile.java (isTimeMatched).
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptIndexError, CorruptionError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import OpenFile, OpenFiles
from rmq_store.format.text.ids import UNBOUNDED_MS
from rmq_store.format.views import index as layout
from rmq_store.log.views.hash_index import HashIndex
from rmq_store.log.views.index_map import BrokenChainError, IndexMap, newest_entries

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

_TRIES = 5


class IndexSearch:
    """Reads the files of one index. Entries at or above the caller's end of the log are passed over."""

    def __init__(self, index: HashIndex, files: OpenFiles) -> None:
        self.index = index
        self._files = files
        self._file_bytes = layout.file_size(index.slot_count, index.entry_max)
        # Names and files, newest first, when all were last looked at one by one. It is not for us to keep files open.
        self._known: tuple[Sequence[int], list[weakref.ref[OpenFile]]] | None = None

    def newest_first(self, key_hash: int, begin_ms: int, end_ms: int, log_range: tuple[int, int]) -> Iterator[int]:
        """Log offsets in [start, end) of the entries with this hash whose store time, by RocketMQ's rule, lies in
        [begin_ms, end_ms]; newest first. An offset may come twice.

        The time of an entry is exact to a second only, counted from the file's first. So RocketMQ may count a message
        as too old if it is less than a second younger than `begin_ms`. Raises as `candidates`.
        """
        begin_ms, end_ms = (min(max(time_ms, -1), UNBOUNDED_MS) for time_ms in (begin_ms, end_ms))
        maps = self._known_maps()
        if maps is not None:
            geometry = self.index.slot_count, self.index.entry_max
            found = newest_entries(maps, geometry, key_hash, (begin_ms, end_ms), log_range)
            if found is not None:
                yield from found
                return
        if begin_ms <= 0 and end_ms == UNBOUNDED_MS:
            for path, view in self._newest_views():  # no header is looked at: a page of each file less
                yield from _settled(path, partial(view.chain, key_hash, (begin_ms, end_ms, 0), log_range))
            return
        for path, view in self._newest_views():
            header = view.header()
            first_ms, last_ms = header.begin_timestamp, header.end_timestamp
            inside = first_ms <= begin_ms <= last_ms or first_ms <= end_ms <= last_ms
            if inside or (begin_ms < first_ms and end_ms > last_ms):
                window = (begin_ms, end_ms, first_ms)
                yield from _settled(path, partial(view.chain, key_hash, window, log_range))
            if first_ms < begin_ms:
                return

    def candidates(self, key_hashes: Int32, log_range: tuple[int, int]) -> Iterator[Int64]:
        """Log offsets in [start, end) of all entries with one of these hashes, (n,) int64 each; an offset may come
        twice. Times are ignored: those in the files are wrong if a clock was ever set back.

        Raises:
            CorruptIndexError: a file is damaged.
        """
        # In the order of their slots, which is the same in each file: a page of slots is looked at once.
        key_hashes = key_hashes[np.argsort(key_hashes % self.index.slot_count)]
        for path, view in self._newest_views():
            header = view.header()
            if header.end_phy_offset < log_range[0] or header.begin_phy_offset >= log_range[1]:
                continue
            yield from _settled(path, partial(view.chains, key_hashes, log_range))

    def covered(self) -> list[tuple[int, int]]:
        """The log offsets of the first and of the last record that have entries, of each file; newest file first.

        The begin offset in a file's header does not help: Java writes the end of the previous file there. Raises as
        `candidates`.
        """
        return [
            (view.first_offset(), view.header().end_phy_offset)
            for _, view in self._newest_views()
            if view.header().index_count > 1
        ]

    def _newest_views(self) -> Iterator[tuple[str, IndexMap]]:
        """The files there are now, newest first. Of those that come later no record is visible to the caller yet."""
        names = self.index.names()
        seen: list[weakref.ref[OpenFile]] = []
        for name in reversed(names):
            path = self.index.name(name)
            file = self._open(path, being_made=name == names[-1])
            if file is not None:
                if not isinstance(file.view, IndexMap):
                    file.view = IndexMap(file.map, self.index.slot_count, self.index.entry_max)
                seen.append(weakref.ref(file))
                yield path, file.view
        self._known = (names, seen) if len(seen) == len(names) else None

    def _known_maps(self) -> tuple[mmap.mmap, ...] | None:
        """The maps of all files, newest first, if they are the same as when all were last looked at one by one."""
        known = self._known  # read once: another thread forgets it while files come or go
        if known is None or self.index.names() is not known[0]:
            return None
        files = [file for reference in known[1] if (file := reference()) is not None]
        return tuple(file.map for file in files) if len(files) == len(known[1]) else None

    def _open(self, path: str, *, being_made: bool) -> OpenFile | None:
        """None if the file is gone (retention took it, or the append that it was made for was taken back), or has no
        size yet: its first entries are of an append under way, or of one that was killed.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._files.get(
                    path, self._file_bytes, writable=False, pin=False, directory=self.index.directory
                )
            except FileNotFoundError:
                return None
            except OSError as error:
                raise durable.translate(error, path) from error
            except CorruptionError as error:
                if being_made and _is_blank(path):
                    return None
                if not left:
                    raise damaged_index(path, error.offset, error.reason) from error
        raise AssertionError


def damaged_index(path: str, offset: int, reason: str) -> CorruptIndexError:
    """The error for a damaged index, with the command that repairs it."""
    return CorruptIndexError(path, offset, f"{reason}; `rmq repair --index` builds the index again")


def _is_blank(path: str) -> bool:
    """Whether nothing was written into the file yet."""
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return not any(os.pread(fd, layout.HEADER_BYTES, 0))
    finally:
        os.close(fd)


def _settled(path: str, walk: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Walk; again from the start if the chain was changed meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            yield from walk()
            return
        except BrokenChainError as error:
            if not left:
                raise damaged_index(path, 0, f"entry {error.number} is not of the chain that leads to it") from error
