"""What a store must be when it comes back from a power cut: compared with the log that was written, byte for byte.

Not asked of the engine but read off the files, so that a mistake of its readers hides nothing: the log, the entries of
the queues and those of the index must be those of a prefix of the log that was written, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from crash.part import Counters

_ENTRY = 20  # bytes, of a queue and of the index alike
_BLANK_MAGIC = (-875286124).to_bytes(4, "big", signed=True)
_HASH_SLOTS_AT = 40


@dataclass(slots=True)
class Written:
    """A whole log and its views, and between which offsets units lie (a unit is there wholly, or not at all)."""

    log: bytes
    queues: dict[str, bytes]
    index: bytes
    units: list[tuple[int, int]] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    message_ends: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path, end: int, slots: int, units: list[tuple[int, int]]) -> Written:
        """The store as it is now; its log ends at `end`."""
        found = cls(_log(root)[:end], _queues(root), _index(root, slots), units)
        offset = 0
        while offset < end:
            found.boundaries.append(offset)
            is_blank = found.log[offset + 4 : offset + 8] == _BLANK_MAGIC
            size = int.from_bytes(found.log[offset : offset + 4], "big")
            assert size > 0, f"no frame at {offset}, the log ends at {end}"
            offset += size
            if not is_blank:
                found.message_ends.append(offset)
        found.boundaries.append(end)
        return found

    def may_end_at(self, end: int) -> bool:
        """Whether a frame ends there, and no unit is half there."""
        at = bisect_left(self.boundaries, end)
        whole = at < len(self.boundaries) and self.boundaries[at] == end
        return whole and not any(start < end < stop for start, stop in self.units)

    def messages_between(self, start: int, end: int) -> int:
        """How many messages end in (start, end]."""
        return bisect_right(self.message_ends, end) - bisect_right(self.message_ends, start)

    def entries_below(self, end: int, topics: tuple[str, ...]) -> int:
        """How many queue entries of these topics belong to records below `end`."""
        queues = [entries for name, entries in self.queues.items() if name.partition("/")[0] in topics]
        return sum(len(_below(entries, 0, end)) // _ENTRY for entries in queues)


def compare(root: Path, written: Written, slots: int, end: int) -> Counters:
    """Count how the store at `root`, which says that its log ends at `end`, differs from what was written up to there.

    Log, queues and index; what was lost is asked elsewhere, of `end`.
    """
    found = Counters()
    if not written.may_end_at(end):
        found.broken += 1
        found.note(f"the log ends at {end}: within a frame, a unit, or behind all that was ever written")
        end = max((boundary for boundary in written.boundaries if boundary <= end), default=0)
    log = _log(root)
    if log[:end] != written.log[:end]:
        found.altered += 1
        found.note(f"the log below its end {end} is not what was written")
    if log[end:].strip(b"\0"):
        found.broken += 1
        found.note(f"bytes behind the end {end} of the log")
    queues = _queues(root)
    for name in written.queues.keys() | queues.keys():
        expected = _below(written.queues.get(name, b""), 0, end)
        actual = queues.get(name, b"")
        if actual[: len(expected)] != expected or actual[len(expected) :].strip(b"\0"):
            found.broken += 1
            found.note(f"queue {name} is unlike the log that ends at {end}")
    if _index(root, slots) != _below(written.index, 4, end):
        found.broken += 1
        found.note(f"the index is unlike the log that ends at {end}")
    return found


def _below(entries: bytes, offset_at: int, end: int) -> bytes:
    """The entries of records below `end`; each has the record's offset at byte `offset_at`."""
    starts = [
        int.from_bytes(entries[place + offset_at : place + offset_at + 8], "big")
        for place in range(0, len(entries), _ENTRY)
    ]
    return entries[: _ENTRY * bisect_left(starts, end)]


def _numbered(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.isdigit()) if directory.is_dir() else []


def _log(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in _numbered(root / "commitlog"))


def _queues(root: Path) -> dict[str, bytes]:
    found = {}
    for topic in sorted((root / "consumequeue").iterdir()) if (root / "consumequeue").is_dir() else ():
        for queue in _numbered(topic):
            data = b"".join(path.read_bytes() for path in _numbered(queue))
            entries = len(data) // _ENTRY
            while entries and data[_ENTRY * entries - 12 : _ENTRY * entries - 8] == bytes(4):
                entries -= 1  # an entry in use has a size
            found[f"{topic.name}/{queue.name}"] = data[: _ENTRY * entries] + data[_ENTRY * entries :].rstrip(b"\0")
    return {name: data for name, data in found.items() if data}


def _index(root: Path, slots: int) -> bytes:
    """All entries of all files, in order."""
    entries = b""
    for path in _numbered(root / "index"):
        data = path.read_bytes()
        count = max(int.from_bytes(data[36:40], "big"), 1)
        first = _HASH_SLOTS_AT + 4 * slots + _ENTRY  # number 0 is not used
        entries += data[first : first + _ENTRY * (count - 1)]
        if data[first + _ENTRY * (count - 1) :].strip(b"\0"):
            entries += b"?"  # behind the last entry there is something: nobody's
    return entries
