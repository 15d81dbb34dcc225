"""The sizes of a store's files. They are properties of the store: read off existing files, chosen for a new store.

With wrong sizes a Java broker refuses the store; a wrong index geometry is not even noticed (MappedFileQueue#doLoad).
The size of an index file alone fits several geometries, so its content decides: the number of used slots must equal the
number of chain ends. The header's count does not help: brokers up to 4.7.0 increase it with each entry.

If the expected geometry is checked, only the first and the last entry are read: a writer may be adding entries at this
moment, or may have died while it did. A file of the size of RocketMQ's own settings is taken to have those. If several
geometries still fit, the chains decide: only in the right geometry does every link lead to an entry of its slot. One
corrupt entry changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptIndexError, CorruptionError, UsageError
from rmq_store.files import durable
from rmq_store.files.progress import Progress
from rmq_store.format.text.names import is_index_file_name
from rmq_store.format.views import index as layout
from rmq_store.format.views.consume_queue import ENTRY_BYTES
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.file_sizes import size_of_files
from rmq_store.log.views.hash_index import UNKNOWN

# Entries are 20 bytes and slots 4: five slots weigh as much as one entry.
_SLOTS_PER_ENTRY = layout.ENTRY_BYTES // layout.SLOT_BYTES
_ROCKETMQS_OWN = (5_000_000, 20_000_000)  # MessageStoreConfig: maxHashSlotNum, maxIndexNum
_OFFSET_IN_ENTRY = int(layout.ENTRY.fields["phy_offset"][1]) if layout.ENTRY.fields else 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """File sizes, in RocketMQ's terms (MessageStoreConfig)."""

    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int

    def __post_init__(self) -> None:
        if self.mapped_file_size_commit_log < 4096:
            raise UsageError(f"mappedFileSizeCommitLog={self.mapped_file_size_commit_log}: at least 4096 bytes")
        if self.mapped_file_size_commit_log >= 1 << 31:
            raise UsageError(f"mappedFileSizeCommitLog={self.mapped_file_size_commit_log}: less than 2 GiB, as in Java")
        if self.mapped_file_size_consume_queue < ENTRY_BYTES or self.mapped_file_size_consume_queue % ENTRY_BYTES:
            raise UsageError(
                f"mappedFileSizeConsumeQueue={self.mapped_file_size_consume_queue}: a multiple of {ENTRY_BYTES}"
            )
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise UsageError("maxHashSlotNum must be at least 1, maxIndexNum at least 2")

    def of_index(self) -> tuple[int, int]:
        """(maxHashSlotNum, maxIndexNum)."""
        return self.max_hash_slot_num, self.max_index_num

    def with_index(self, other: Geometry) -> Geometry:
        """These sizes, with the index sizes of `other`."""
        return replace(self, max_hash_slot_num=other.max_hash_slot_num, max_index_num=other.max_index_num)


def infer(
    root: Path,
    otherwise: Geometry,
    named: frozenset[str] = frozenset(),
    *,
    ours: bool = False,
    without_index: list[CorruptIndexError] | None = None,
    log_paths: Sequence[Path] = (),
) -> Geometry:
    """The geometry of the files under `root`; `otherwise` gives the sizes of file kinds that the store does not have
    yet.

    `named`: the fields of `otherwise` that the user gave; they must agree with the files. `ours`: the store was made
    with `otherwise`, and no broker has written to it since. Then an index file of the right size is accepted without a
    check, and one of another size (after a power cut) decides nothing: recovery repairs it.

    Raises:
        UsageError: a given size differs from that of the files.
        CorruptionError: files of one kind differ in size.
        CorruptIndexError: no geometry, or more than one, fits the index files and the user gave none.
    """
    found: dict[str, int] = {}
    for directory in log_paths or (root / "commitlog",):
        size = size_of_files(directory)
        known = found.setdefault("mapped_file_size_commit_log", size) if size is not None else None
        if size != known:
            raise CorruptionError(str(directory), 0, f"the files have {size} bytes, those of another path {known}")
    if (size := _queue_file_bytes(root / "consumequeue")) is not None:
        found["mapped_file_size_consume_queue"] = size
    given = (otherwise.max_hash_slot_num, otherwise.max_index_num)
    try:
        found.update(_index_geometry(root / "index", given, {"max_hash_slot_num", "max_index_num"} <= named, ours))
    except CorruptIndexError as error:
        if without_index is None:
            raise
        without_index.append(error)
    for name, value in found.items():
        if name in named and getattr(otherwise, name) != value:
            raise UsageError(f"{name}={getattr(otherwise, name)} was asked for, but the store's files have {value}")
    return Geometry(**{name: found.get(name, getattr(otherwise, name)) for name in Geometry.__slots__})


def _queue_file_bytes(directory: Path) -> int | None:
    for topic in _directories(directory):
        for queue in _directories(topic):
            if (size := size_of_files(queue)) is not None:
                return size
    return None


def _directories(directory: Path) -> list[Path]:
    """The directories in a directory, sorted by name; [] without one."""
    try:
        with os.scandir(directory) as entries:
            return [directory / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _index_geometry(directory: Path, given: tuple[int, int], is_named: bool, ours: bool) -> dict[str, int]:
    listed = directory.iterdir() if directory.is_dir() else ()
    names = sorted(path.name for path in listed if is_index_file_name(path.name))
    candidates: set[tuple[int, int]] | None = None
    # A full file is unambiguous about the number of entries; the newest ones are enough to decide. One that a broker
    # is writing, or left torn, fits nothing: older ones speak for it.
    for name in reversed(names[-4:]):
        try:
            if ours and (directory / name).lstat().st_size == layout.file_size(*given):
                return {}
            fits = _fitting(directory / name, given)
        except FileNotFoundError:
            continue  # taken by retention meanwhile
        if fits is None or (ours and not fits):
            continue
        candidates = candidates & fits if candidates and fits else candidates or fits
        if len(candidates) == 1:
            break
    if candidates is None and not (ours and names and _was_left_alone(directory.parent)):
        if ours or all(_has_size_of(directory / name, given) for name in names):
            return {}
        # Empty files of other sizes: nothing in them says how many of their bytes are slots.
    candidates = candidates or set()
    if given in candidates:
        candidates = {given}
    if not candidates and all(_has_size_of(directory / name, _ROCKETMQS_OWN) for name in names):
        candidates = {_ROCKETMQS_OWN}
    if len(candidates) != 1:
        what = "no geometry fits" if not candidates else f"{len(candidates)} geometries fit"
        advice = "give maxHashSlotNum and maxIndexNum (or the broker's broker.conf)"
        if not candidates:
            advice += ", or if the files are damaged, `rmq repair --index` makes them anew"
        raise CorruptIndexError(str(directory / names[-1]), 0, f"{what}: {advice}")
    slots, entries = candidates.pop()
    if is_named and (slots, entries) != given:
        raise UsageError(
            f"maxHashSlotNum, maxIndexNum = {given} were asked for, but the index files have {slots}, {entries}"
        )
    return {"max_hash_slot_num": slots, "max_index_num": entries}


def _was_left_alone(root: Path) -> bool:
    """Whether the last writer of ours kept no index: it could not use the files that are there."""
    known = Progress(root / "pyrmq" / "progress").load_for_repair()
    return known is not None and known[0].index_file == UNKNOWN


def _has_size_of(path: Path, geometry: tuple[int, int]) -> bool:
    try:
        return path.lstat().st_size == layout.file_size(*geometry)
    except FileNotFoundError:
        return True  # taken by retention meanwhile


def _fitting(path: Path, given: tuple[int, int]) -> set[tuple[int, int]] | None:
    """All (slots, entries) that a file's size, header and content allow; None if it is empty and says nothing."""
    fd = durable.open_nofollow(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size < layout.HEADER_BYTES:
            return None
        header = layout.IndexHeader.unpack(os.pread(fd, layout.HEADER_BYTES, 0))
        if header.index_count <= 1 or header.end_phy_offset <= 0:
            return None  # nothing in it, or nothing but the log's very first record: zeros fit everywhere
        units = (size - layout.HEADER_BYTES) // layout.SLOT_BYTES
        count = header.index_count
        fits = set()
        for slots in _slot_counts(fd, header, units, count):
            entries = (units - slots) // _SLOTS_PER_ENTRY
            if (slots, entries) == given or _content_fits(fd, slots, count):
                fits.add((slots, entries))
        return _best_chained(fd, fits, count) if len(fits) > 1 else fits
    finally:
        os.close(fd)


def _slot_counts(fd: int, header: layout.IndexHeader, units: int, count: int) -> list[int]:
    """Slot counts at which the last entry names the header's last record, and entry 1 its first one."""
    most = units - count * _SLOTS_PER_ENTRY
    first_record, last_record = (
        offset.to_bytes(8, "big", signed=True) for offset in (header.begin_phy_offset, header.end_phy_offset)
    )
    found = []
    step = 1 << 18
    for low in range(1, most + 1, step):
        length = min(step, most + 1 - low) * layout.SLOT_BYTES + 4
        data = os.pread(fd, length, layout.entry_position(low, count - 1) + _OFFSET_IN_ENTRY)
        at = data.find(last_record)
        while at >= 0:
            slots = low + at // layout.SLOT_BYTES
            if at % layout.SLOT_BYTES == 0 and (units - slots) % _SLOTS_PER_ENTRY == 0:
                if os.pread(fd, 8, layout.entry_position(slots, 1) + _OFFSET_IN_ENTRY) == first_record:
                    found.append(slots)
            at = data.find(last_record, at + 1)
    return found


def _content_fits(fd: int, slots: int, count: int) -> bool:
    values, entries = _slots_and_entries(fd, slots, count)
    if len(entries) < count - 1 or np.count_nonzero(values) != np.count_nonzero(entries["previous"] == 0):
        return False
    numbers = np.arange(1, count)
    return bool(
        (entries["previous"] < numbers).all() and (entries["key_hash"] >= 0).all() and int(values.max()) < count
    )


def _slots_and_entries(fd: int, slots: int, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.void]]:
    """(slots,) SLOT, and entries 1 .. count - 1 (ENTRY)."""
    values = os.pread(fd, slots * layout.SLOT_BYTES, layout.HEADER_BYTES)
    entries = os.pread(fd, (count - 1) * layout.ENTRY_BYTES, layout.entry_position(slots, 1))
    return np.frombuffer(values, layout.SLOT), np.frombuffer(entries, layout.ENTRY)


def _best_chained(fd: int, fits: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """Those with the most sound links: more than one only if the chains do not tell them apart."""
    sound = {(slots, entries): _sound_links(fd, slots, count) for slots, entries in fits}
    most = max(sound.values())
    return {geometry for geometry, links in sound.items() if links == most}


def _sound_links(fd: int, slots: int, count: int) -> int:
    """How many links (slots' values, entries' `previous`) name an entry of their own slot, key_hash % slots.

    In a sound file each entry is named by one link. Looking where links lead needs no sort, as chaining anew would.
    """
    values, entries = _slots_and_entries(fd, slots, count)
    slot_of = np.full(len(entries) + 1, -1, np.int32)  # by entry number; 0 is no entry: no slot
    slot_of[1:] = entries["key_hash"] % slots
    return _named(slot_of, values, np.arange(len(values))) + _named(slot_of, entries["previous"], slot_of[1:])


def _named(slot_of: npt.NDArray[np.int32], links: layout.IntArray, slots: layout.IntArray) -> int:
    """How many of `links` name an entry of the slot in the same place of `slots`; a number of no entry does not."""
    numbers = np.where((links > 0) & (links < len(slot_of)), links, 0)
    return int(np.count_nonzero(slot_of[numbers] == slots))
