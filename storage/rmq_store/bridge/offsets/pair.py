"""Two queues that mirrors connect, and the reads of both that a translation needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_store.bridge.offsets.copies import Copies, Lost, WayBack, count_missing, nothing_copied, seek
from rmq_store.bridge.offsets.side import (
    Extent,
    MirroredQueue,
    MirrorPositions,
    Origin,
    Queue,
    Side,
    no_positions,
)
from rmq_store.bridge.offsets.translate import (
    NO_OFFSETS,
    Consumed,
    NothingConsumed,
    Offsets,
    Origins,
    Translation,
    translate,
)
from rmq_store.lazy.dataclasses import dataclass

_LOOK_BACK: Final = 256

LettersOf = Callable[[Queue], Offsets]


@dataclass(frozen=True, slots=True)
class Link:
    """A source and a target with the mirrors between them, by their positions. `letters()` is called once for each
    plan, after the positions were read. It returns positions, ascending, of records of a target queue that the way back
    could not copy. `mirror_letters()` returns those of a source queue that the mirror could not copy.
    """

    source: Side
    target: Side
    mirror: MirrorPositions = no_positions
    way_back: MirrorPositions = no_positions
    letters: Callable[[], LettersOf] = lambda: lambda queue: NO_OFFSETS
    mirror_letters: Callable[[], LettersOf] = lambda: lambda queue: NO_OFFSETS


@dataclass(frozen=True, slots=True)
class Pair:
    """A queue of the source, its counterpart, and the mirrors between them."""

    source: Queue
    target: Queue
    seen_from_source: Origin
    seen_from_target: Origin
    mirror: MirroredQueue | None
    is_mirrored: bool
    way_back: MirroredQueue | None


class PairReader:
    """Reads both queues of a pair as far as a translation needs it."""

    def __init__(
        self, link: Link, pair: Pair, source: Extent, target: Extent, letters: LettersOf, mirror_letters: LettersOf
    ) -> None:
        self.pair = pair
        self.source = source
        self.target = target
        self._link = link
        self._letters = letters
        self._mirror_letters = mirror_letters

    def translate(self, position: int, begin: int, *, pass_letters: bool) -> Translation:
        """Translate a position, with the reads that this needs."""
        mirror, way_back = self.pair.mirror, self.pair.way_back
        end = max(self.target.end, begin)
        others: Consumed = NothingConsumed()
        letters = NO_OFFSETS
        if way_back is not None:
            others = _WhenAsked(lambda: self._copies(position, begin), way_back.next)
            letters = self._letters(self.pair.target) if pass_letters else NO_OFFSETS
        return translate(
            position, None if mirror is None else mirror.next, self._target_origins(begin, end), end, others, letters
        )

    def count_ahead(self, position: int, old: int | None) -> int:
        """Count copies below `old` in the target that the group has not consumed in the source, and positions below it
        that do not exist yet. Copies ascend, so it reads back only to the first consumed one.
        """
        end = min(old or 0, self.target.end)
        ahead, width = (old or 0) - end, _LOOK_BACK
        while end > self.target.start:
            begin = max(self.target.start, end - width)
            offsets = [chunk.source_offsets for chunk in self._target_origins(begin, end)]
            copied = np.concatenate(offsets) if offsets else np.empty(0, np.int64)
            copied = copied[copied >= 0]
            ahead += int(np.count_nonzero(copied >= position))
            if (copied < position).any():
                break
            end, width = begin, width * 2
        return ahead

    def count_missing(self, position: int, found: Translation, old: int) -> int:
        """As `offsets.copies.count_missing`: both queues are read, up to the mirror's position."""
        mirror, source, target = self.pair.mirror, self.source, self.target
        assert found.position is not None
        gone = range(old, max(target.start, old))
        if mirror is None:
            return count_missing(self._source_origins(position, source.end), source.end, nothing_copied, gone)
        end = min(mirror.next, source.end)
        # Only the mirror's letters tell a record that was never copied from one whose copy compaction deleted.
        start = max(mirror.start, found.source_offset) if gone else mirror.start
        copies = Copies(
            self._target_origins(found.position, target.end),
            WayBack(start, mirror.next),
            Lost.ANY if target.is_compacted else Lost.NONE,
            lambda: mirror.next,
            self._mirror_letters(self.pair.source) if target.is_compacted else NO_OFFSETS,
        )
        records = self._source_origins(position, source.end if gone else end)
        return count_missing(records, end, copies.consumed, gone)

    def _copies(self, position: int, begin: int) -> Copies:
        source, way_back = self.source, self.pair.way_back
        assert way_back is not None
        end = min(position, source.end)
        copies_start = seek(self._source_origins, source.start, end, begin)
        lost = Lost.NONE
        if source.is_compacted:
            lost = Lost.ANY
        elif source.start > 0 and not copies_start.seen_before:
            lost = Lost.OLDEST

        def next_copy() -> int:
            if position < source.end and (source.is_compacted or position < source.start):
                return 0
            for chunk in self._source_origins(position, source.end):
                copied = chunk.source_offsets[chunk.source_offsets >= 0]
                if len(copied):
                    return int(copied[0])
            return way_back.next

        copies = self._source_origins(copies_start.position, end)
        letters = NO_OFFSETS if lost is Lost.NONE else self._letters(self.pair.target)
        return Copies(copies, WayBack(way_back.start, way_back.next), lost, next_copy, letters)

    def _source_origins(self, first: int, end: int) -> Iterator[Origins]:
        first = max(first, self.source.start)
        return self._link.source.origins(self.pair.source, first, end, self.pair.seen_from_source)

    def _target_origins(self, first: int, end: int) -> Iterator[Origins]:
        first, end = max(first, self.target.start), min(end, self.target.end)
        return self._link.target.origins(self.pair.target, first, end, self.pair.seen_from_target)


class _WhenAsked:
    """`Copies` that are read only if a record of others may be consumed: one below `next_offset`, the position of the
    way back. Otherwise the source is not read.
    """

    def __init__(self, make: Callable[[], Copies], next_offset: int) -> None:
        self._make = make
        self._next_offset = next_offset

    @functools.cached_property
    def _copies(self) -> Copies:
        return self._make()

    def consumed(self, positions: Offsets) -> npt.NDArray[np.bool_]:
        """As `translate.Consumed.consumed`."""
        if not len(positions) or positions[0] >= self._next_offset:
            return np.zeros(len(positions), np.bool_)
        return self._copies.consumed(positions)

    def none_from(self, position: int) -> bool:
        """As `translate.Consumed.none_from`."""
        return position >= self._next_offset or self._copies.none_from(position)
