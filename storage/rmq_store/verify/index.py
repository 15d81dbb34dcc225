"""Hash index files against the log: the log's keys in order are the index's entries in order.

Chains and slots of each file are rebuilt while its entries are read and compared with what is stored.

Source of the rules: IndexFile#putKey, IndexService#buildIndex.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .files import Bytes, numbered_files
from .records import POSITIVE, Frame, key_hashes, read_frame, tag_hash
from .report import Ledger

HEADER = struct.Struct(">qqqqii")  # begin ms, end ms, begin log offset, end log offset, slots in use, next number
ENTRY = struct.Struct(">iqii")  # key hash, log offset, seconds since the header's begin, previous number


class _Entry(NamedTuple):
    path: str
    position: int
    number: int
    last_number: int
    key_hash: int
    log_offset: int
    seconds: int
    begin_ms: int
    end_ms: int
    previous_end_ms: int | None


def slot_count(index: Bytes, keys_at: Callable[[int], list[tuple[int, ...]]]) -> int | None:
    """The number of slots of an index file, derived from the position of its first or last entry; None if neither is
    found.

    The size of the file alone does not determine it. `keys_at(log_offset)`: the hashes of the message there, [] if it
    is gone.
    """
    if len(index) < HEADER.size:
        return None
    _, _, begin, end, _, next_number = HEADER.unpack_from(index)
    candidates = []
    for number, log_offset, nearest in ((1, begin, min), (next_number - 1, end, max)) if next_number > 1 else ():
        patterns = [struct.pack(">iq", key_hash, log_offset) for group in keys_at(log_offset) for key_hash in group]
        # A message has several keys: the first entry of the first message, the last entry of the last one.
        search = index.find if nearest is min else index.rfind
        position = nearest((at for at in (search(p, HEADER.size) for p in patterns) if at != -1), default=-1)
        slots, rest = divmod(position - HEADER.size - ENTRY.size * number, 4)
        if slots > 0 and rest == 0 and (len(index) - HEADER.size - 4 * slots) % ENTRY.size == 0:
            places = (HEADER.size + 4 * slots + ENTRY.size * n for n in (1, next_number - 1))
            fits = [ENTRY.unpack_from(index, place)[1] for place in places if place + ENTRY.size <= len(index)] == [
                begin,
                end,
            ]
            candidates.append((not fits, slots))
    return min(candidates)[1] if candidates else None


class IndexCheck:
    """Compares the index with the log. Call `check` with every message in log order, then `finish`."""

    def __init__(self, ledger: Ledger, segments: list[tuple[int, str]]) -> None:
        self.ledger = ledger
        self.segments = segments
        self.last_offset, self.last_hashes = -1, list[tuple[int, ...]]()
        self.lost, self.behind = 0, 0  # keys that must have an entry and have none: in front of one, and behind all
        self.entries = self._read_all()
        self.entry = next(self.entries, None)

    def _keys_at(self, log_offset: int) -> list[tuple[int, ...]]:
        for base, path in self.segments:
            log = self.ledger.map(path)
            if base <= log_offset < base + len(log):
                frame = read_frame(log, log_offset - base, base)
                return [*key_hashes(frame), (tag_hash(frame),)] if isinstance(frame, Frame) else []
        return []

    def _read_all(self) -> Iterator[_Entry]:
        directory = self.ledger.root / "index"
        listed = sorted(directory.iterdir()) if directory.is_dir() else []
        for name in (path for path in listed if path.name.isdigit()):
            self.ledger.no_file(name, "`rmq repair --index` builds the index again")
        paths = [f"index/{path.name}" for path in numbered_files(directory)] if listed else []
        self.ledger.report.index_files = len(paths)
        found = (slot_count(self.ledger.map(path), self._keys_at) for path in paths)
        votes = Counter(slots for slots in found if slots).most_common(1)  # all files of a store have one geometry
        slots = votes[0][0] if votes else 0
        previous_end_ms = None
        for path in paths:
            index = self.ledger.map(path)
            if len(index) < HEADER.size:
                self.ledger.problem(path, 0, f"{len(index)} bytes, too small for an index file")
                continue
            used, next_number = HEADER.unpack_from(index)[4:]
            if 0 <= next_number <= 1:
                if used and not (used == 1 and self.ledger.unclean):
                    self.ledger.problem(path, 32, f"header says {used} slots are in use by no entry")
            elif slots and len(index) >= HEADER.size + 4 * slots:
                yield from self._read(path, index, slots, previous_end_ms)
                previous_end_ms = int(HEADER.unpack_from(index)[1])
            elif next_number < 0 or not self.ledger.is_gone(HEADER.unpack_from(index)[3]):
                self.ledger.problem(path, 0, "its first and last entry are at the place of no number of slots")

    def _read(self, path: str, index: Bytes, slots: int, previous_end_ms: int | None) -> Iterator[_Entry]:
        """The entries of one file. An unclean stop may have left one incomplete put."""
        begin_ms, end_ms, begin, end, used, next_number = HEADER.unpack_from(index)
        problem, table = self.ledger.problem, HEADER.size + 4 * slots
        count = min(max(1, next_number), (len(index) - table) // ENTRY.size)
        if count < next_number:
            problem(path, 36, f"indexCount {next_number} is more than the file can hold")
        newest = array("i", bytes(4 * slots))
        first_offset = log_offset = -1
        for number in range(1, count):
            position = table + ENTRY.size * number
            key_hash, log_offset, seconds, previous = ENTRY.unpack_from(index, position)
            first_offset = log_offset if number == 1 else first_offset
            slot = key_hash % slots
            if previous != newest[slot]:
                problem(path, position + 16, f"entry {number} is chained to {previous}, not to {newest[slot]}", 4)
            newest[slot] = number
            yield _Entry(
                path, position, number, count - 1, key_hash, log_offset, seconds, begin_ms, end_ms, previous_end_ms
            )
        stored = array("i", index[HEADER.size : table])
        if sys.byteorder == "little":
            stored.byteswap()
        for slot in (i for i in range(slots) if stored[i] != newest[i]) if stored != newest else ():
            if not (self.ledger.unclean and stored[slot] >= count):  # of an append under way
                problem(path, HEADER.size + 4 * slot, f"slot {slot} holds {stored[slot]}, not {newest[slot]}", 4)
        if count > 1 and (begin != first_offset or (end != log_offset and not self.ledger.unclean)):
            problem(path, 16, f"header says log offsets {begin} to {end}, entries {first_offset} to {log_offset}")
        # Brokers up to 4.7.0 count each entry; a later one goes on with their number.
        in_use, most = slots - newest.count(0), count - 1 + self.ledger.unclean
        if not in_use <= used <= max(most, in_use):
            problem(path, 32, f"header says {used} slots are in use, {in_use} are")

    def _next(self) -> None:
        self.ledger.report.index_entries += 1
        self.lost, self.behind = self.lost + self.behind, 0
        self.entry = next(self.entries, None)

    def check(self, log_offset: int, frame: Frame) -> None:
        """Compare the keys of the message at `log_offset` with the next entries."""
        hashes = key_hashes(frame)
        self._skip(log_offset)
        tag = (tag_hash(frame),)
        for number, expected in enumerate(hashes, start=1):
            entry = self.entry
            is_here = entry is not None and entry.log_offset == log_offset
            if entry and entry.key_hash not in expected:
                is_here = is_here and not any(entry.key_hash in group for group in [*hashes[number:], tag])
            if entry and (is_here or (entry.key_hash in expected and entry.number > 1)):
                self._compare(entry, expected, log_offset, frame.store_ms)
                self._next()
            elif entry and 1 < entry.number:
                text = f"log offset {log_offset} has a key that is not in front of entry {entry.number}"
                self.ledger.problem(entry.path, entry.position, text, ENTRY.size)
            else:
                self.ledger.report.unindexed_keys += 1  # between two files, or outside of all
                self.behind += self.ledger.progress.has_index and self.ledger.is_ours(log_offset)
        if self.entry and self.entry.log_offset == log_offset and self.entry.key_hash in tag:
            self._compare(self.entry, tag, log_offset, frame.store_ms)
            self._next()
        self.last_offset, self.last_hashes = log_offset, [*hashes, tag]
        self._skip(log_offset + 1)

    def _compare(self, entry: _Entry, expected: tuple[int, ...], log_offset: int, store_ms: int) -> None:
        seconds = [max(0, min(POSITIVE, int((store_ms - entry.begin_ms) / 1000)))]
        if entry.number == 1:  # counted from the end of the file before, which may have been deleted since
            before = entry.previous_end_ms
            seconds = [entry.seconds] if before is None else [0, max(0, min(POSITIVE, int((store_ms - before) / 1000)))]
        header_is_right = (entry.number > 1 or entry.begin_ms == store_ms) and (
            entry.number < entry.last_number or entry.end_ms == store_ms or self.ledger.unclean
        )
        if entry.key_hash not in expected or entry.log_offset != log_offset or entry.seconds not in seconds:
            found = f"(hash {entry.key_hash}, log offset {entry.log_offset}, {entry.seconds} s)"
            text = f"entry {entry.number} is {found}, expected (hash {expected[0]}, {log_offset}, {seconds[0]} s)"
            self.ledger.problem(entry.path, entry.position, text, ENTRY.size)
        elif not header_is_right:
            self.ledger.problem(entry.path, 0, f"header's times are not those of the first and last entry ({store_ms})")

    def _skip(self, log_offset: int) -> None:
        """Judge the entries below `log_offset` that no message claimed."""
        while (entry := self.entry) and entry.log_offset < log_offset:
            # Java indexes the last message of a file again when it dispatches it a second time.
            again = entry.log_offset == self.last_offset and any(entry.key_hash in group for group in self.last_hashes)
            if not again and not self.ledger.is_gone(entry.log_offset):
                text = f"entry {entry.number} points at {entry.log_offset}, which has no such key"
                self.ledger.problem(entry.path, entry.position, text, ENTRY.size)
            self._next()

    def finish(self) -> None:
        """Judge the entries after the log's end, and the keys that have no entry."""
        report = self.ledger.report
        self._skip(report.log_end)
        if self.entry and not self.ledger.is_new(self.entry.log_offset):
            text = f"entry {self.entry.number} and those behind it point behind the log's end"
            self.ledger.repairable(self.entry.path, self.entry.position, text, ENTRY.size)
        while self.entry:
            self._next()
        self._judge_unindexed()

    def _judge_unindexed(self) -> None:
        """Judge keys without an entry. A broker may have kept no index for a time; this engine indexes every key that
        it writes.
        """
        for count, tell in ((self.lost, self.ledger.problem), (self.behind, self.ledger.repairable)):
            if count:
                text = f"{count} keys of messages are in no index file: `rmq repair --index` builds the index again"
                tell("index", 0, text)
        if others := self.ledger.report.unindexed_keys - self.lost - self.behind:
            self.ledger.report.notes.append(f"{others} keys of messages are in no index file")
