"""The files of the log, by name and size only: which exist, their correct size, and files that are no segments.

Source of the rules: MappedFileQueue#doLoad, and `rmq_store.files.segments.segments`. The latter refuses the files that
this module reports as damage.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from .files import other_kind
from .report import Ledger
from .tables import store_settings

SEGMENT_NAME = re.compile(r"[0-9]{20}", re.ASCII)
SEGMENT_BYTES_MIN = 4096
BASE_MAX = (1 << 63) - (1 << 31)  # offsets in a segment, which is smaller than 2 GiB, are Java's longs


class Segments(NamedTuple):
    """`files`: (offset of the log, path relative to the store) of each; `start`: where the log begins; `size_bytes`:
    the correct size of each file, 0 if there are none.
    """

    files: list[tuple[int, str]]
    start: int
    size_bytes: int


def find_segments(ledger: Ledger) -> Segments:
    """List the segments, and report other entries of the directory. OSError: there is no `commitlog/`."""
    directory, bases, sizes = ledger.root / "commitlog", list[int](), dict[int, int]()
    if directory.is_symlink():
        text = "a symbolic link: nobody opens the store for writing; mount the other disk there instead"
        ledger.problem("commitlog", 0, text)
    for path in sorted(directory.iterdir()):
        if not SEGMENT_NAME.fullmatch(path.name) or int(path.name) > BASE_MAX:
            if other_kind(path) == "a directory":  # `lost+found`, if a disk is mounted here
                text = "a directory, which is passed over (brokers of RocketMQ 4 refuse to load the store)"
                ledger.report.notes.append(f"commitlog/{path.name}: {text}")
            else:
                ledger.problem(f"commitlog/{path.name}", 0, "no segment; a broker refuses to load the store")
            continue
        bases.append(int(path.name))
        if not ledger.no_file(path, "put the file itself there"):
            try:
                sizes[bases[-1]] = path.lstat().st_size
            except FileNotFoundError:  # retention, or the last closer, took it
                bases.pop()
    size_bytes = _size_of_store(ledger) or _size_told_by(bases, [size for size in sizes.values() if size])
    if bases and sizes.get(bases[-1]) == 0:  # it was being made when its maker died; whoever opens the store drops it
        del sizes[bases.pop()]
    return Segments([(base, f"commitlog/{base:020d}") for base in sizes], bases[0] if bases else 0, size_bytes)


def _size_of_store(ledger: Ledger) -> int:
    """The segment size in store.json; 0 if it has none."""
    size = store_settings(ledger.root).get("mappedFileSizeCommitLog")
    return size if isinstance(size, int) and size >= SEGMENT_BYTES_MIN else 0


def _size_told_by(bases: list[int], sizes: list[int]) -> int:
    """The size that all segments have. If sizes differ, it is the largest one that divides the distances between the
    names. If none does, it is the smallest distance that holds the largest file. Without such a distance it is that
    file's size.
    """
    gaps = [end - start for start, end in pairwise(bases)]
    if len(set(sizes)) == 1 and (len(sizes) > 1 or not gaps):
        return sizes[0]
    fitting = [size for size in sizes if not any(gap % size for gap in gaps)]
    largest = max(sizes, default=0)
    return max(fitting) if fitting else min((gap for gap in gaps if gap >= largest), default=largest)
