"""A queue on each of two sides, mirrors between them, and a group: a model that knows of each message where it went.

For tests of `rmq_store.bridge.offsets`, which see it by `link` as a pair of sides. Side 0 and side 1 are alike. Every
message has an id; `places[side][id]` is where it is, or was, on a side. A group has consumed on a side what lies below
its position there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.side import Extent, MirroredQueue, MirroredTopic, MirrorPositions, Origin
from rmq_store.bridge.offsets.side import Queue as Place
from rmq_store.bridge.offsets.translate import OTHER, RETURNED, Offsets, Origins


@dataclass
class Entry:
    """A record: its message, where it was copied from (an offset of the other side, OTHER or RETURNED)."""

    message: int
    source_offset: int
    is_too_large: bool = False


@dataclass
class Queue:
    """Records by offset in [start, next); offsets without one are gaps."""

    compacted: bool
    start: int = 0
    next: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)

    def append(self, entry: Entry) -> int:
        """Put it at the end."""
        self.entries[self.next] = entry
        self.next += 1
        return self.next - 1

    def visible(self, first: int, end: int) -> list[tuple[int, Entry]]:
        """Records that are still there, in order."""
        return [(at, self.entries[at]) for at in range(max(first, self.start), end) if at in self.entries]

    def read(self, first: int, end: int, chunk: int) -> Iterator[Origins]:
        """As the translation reads them, `chunk` at a time."""
        found = self.visible(first, end)
        for begin in range(0, len(found), chunk):
            part = found[begin : begin + chunk]
            yield Origins(
                np.array([at for at, _ in part], np.int64),
                np.array([entry.source_offset for _, entry in part], np.int64),
            )


@dataclass
class Mirror:
    """From one side to the other: began at `start`, stands at `next`; `letters` are offsets that it could not copy."""

    start: int
    next: int
    letters: set[int] = field(default_factory=set)


class Pair:
    """Both sides. `mirrors[side]` reads that side."""

    def __init__(self, compacted: tuple[bool, bool] = (False, False)) -> None:
        self.queues = [Queue(compacted[0]), Queue(compacted[1])]
        self.mirrors: list[Mirror | None] = [None, None]
        self.places: list[dict[int, int]] = [{}, {}]
        self.positions: list[int | None] = [None, None]
        self.consumed: set[int] = set()
        self.superseded: set[int] = set()
        self._message_count = 0

    def produce(self, side: int, count: int, *, is_too_large: bool = False) -> None:
        """Somebody writes to a side."""
        for _ in range(count):
            message, self._message_count = self._message_count, self._message_count + 1
            self.places[side][message] = self.queues[side].append(Entry(message, OTHER, is_too_large))

    def gap(self, side: int, count: int) -> None:
        """Markers, or aborted records."""
        self.queues[side].next += count

    def bring_round(self, side: int, pick: int) -> None:
        """A record of the other side comes over a third cluster."""
        natives = [entry for _, entry in self.queues[1 - side].visible(0, self.queues[1 - side].next)
                   if entry.source_offset == OTHER]  # fmt: skip
        if natives:
            self.queues[side].append(Entry(natives[pick % len(natives)].message, RETURNED))

    def start(self, side: int, at: int) -> None:
        """Start a mirror that reads this side."""
        if self.mirrors[side] is None:
            queue = self.queues[side]
            at = min(max(at, queue.start), queue.next)
            self.mirrors[side] = Mirror(at, at)

    def copy(self, side: int, count: int) -> None:
        """A mirror goes on by up to `count` offsets."""
        mirror = self.mirrors[side]
        if mirror is None:
            return
        queue = self.queues[side]
        mirror.next = max(mirror.next, queue.start)
        for offset in range(mirror.next, min(mirror.next + count, queue.next)):
            mirror.next = offset + 1
            entry = queue.entries.get(offset)
            if entry is None or entry.source_offset != OTHER:
                continue
            if entry.is_too_large:
                mirror.letters.add(offset)
                continue
            self.places[1 - side][entry.message] = self.queues[1 - side].append(Entry(entry.message, offset))

    def retain(self, side: int, count: int) -> None:
        """Retention takes `count` offsets."""
        queue = self.queues[side]
        for offset in range(queue.start, min(queue.start + count, queue.next)):
            queue.entries.pop(offset, None)
            queue.start = offset + 1

    def compact(self, side: int, every: int) -> None:
        """Compaction takes each `every`-th record, but the newest."""
        queue = self.queues[side]
        if queue.compacted:
            for offset in sorted(queue.entries)[:-1:every]:
                self.superseded.add(queue.entries.pop(offset).message)

    def consume(self, side: int, count: int) -> None:
        """The group consumes up to `count` offsets on a side, from where retention has left something on."""
        queue = self.queues[side]
        begin = max(self.positions[side] or 0, queue.start)
        self.move(side, min(begin + count, queue.next))

    def move(self, side: int, position: int) -> None:
        """The group's position on a side is moved, and everything below it counts as consumed."""
        self.positions[side] = position
        self.consumed |= {message for message, at in self.places[side].items() if at < position}

    def letters(self, side: int) -> Offsets:
        """Offsets of this side that its mirror could not copy."""
        mirror = self.mirrors[side]
        return np.array(sorted(mirror.letters) if mirror else [], np.int64)

    def link(self, side: int, chunk: int, between: Callable[[], None] = lambda: None) -> Link:
        """Both sides as a translation from `side` sees them; `between` is called before each look at something."""
        source, target = (ModelSide(self, each, chunk, between) for each in (side, 1 - side))
        return Link(
            source, target, self._mirror_positions(side, between), self._mirror_positions(1 - side, between),
            lambda: lambda queue: self.letters(1 - side), lambda: lambda queue: self.letters(side),
        )  # fmt: skip

    def _mirror_positions(self, side: int, between: Callable[[], None]) -> MirrorPositions:
        mirror = self.mirrors[side]
        if mirror is None:
            return dict

        def now() -> dict[str, MirroredTopic]:
            between()
            queue = MirroredQueue(mirror.next, mirror.start, self.queues[1 - side].next)
            return {f"T{side}": MirroredTopic(f"T{1 - side}", {0: queue})}

        return now


class ModelSide:
    """`offsets.side.Side` of a side of the model: a topic with one queue, and one group."""

    def __init__(self, pair: Pair, side: int, chunk: int, between: Callable[[], None] = lambda: None) -> None:
        self._pair = pair
        self._between = between
        self._side = side
        self._queue = pair.queues[side]
        self._chunk = chunk
        self.name = self.cluster_id = f"C{side}"
        self.member_names = ""
        self.waiting = 0
        self.waited_for: list[int] = []
        self.reads: list[tuple[int, int]] = []

    def topics(self) -> list[str]:
        return [f"T{self._side}"]

    def queue_count(self, topic: str) -> int:
        return 1

    def topic_id(self, topic: str) -> str:
        return ""

    def extents(self, queues: Collection[Place]) -> dict[Place, Extent]:
        self._between()
        return {place: Extent(self._queue.start, self._queue.next, self._queue.compacted) for place in queues}

    def wait_for_end(self, queue: Place, end: int) -> None:
        self.waited_for.append(end)

    def origins(self, queue: Place, first: int, end: int, other: Origin) -> Iterator[Origins]:
        assert (self._queue.start <= first and end <= self._queue.next) or first >= end
        self._between()
        self.reads.append((first, end))
        return self._queue.read(first, end, self._chunk)

    def groups(self) -> list[str]:
        return ["g"]

    def group_positions(self, group: str) -> dict[Place, int]:
        self._between()
        position = self._pair.positions[self._side]
        return {} if position is None else {Place(f"T{self._side}", 0): position}

    def members(self, group: str) -> str:
        return self.member_names

    def waiting_count(self, group: str) -> int:
        return self.waiting

    def commit(self, group: str, positions: Mapping[Place, int], *, force: bool) -> None:
        for position in positions.values():
            self._pair.move(self._side, position)
