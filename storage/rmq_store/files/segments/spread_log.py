"""A log whose segments lie in several directories: storePathCommitLog=/a,/b of a broker, for reading only.

A broker makes each new segment in the next of its directories. So no directory holds a whole log: the log is the union
of their files, ordered by the numbers in the names. A gap means that a directory was not named, or is not mounted.
Source: MultiPathMappedFileQueue.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rmq_store.errors import CorruptionError, ReadOnlyError, UsageError
from rmq_store.files import durable
from rmq_store.files.segments.listing import shared_listing
from rmq_store.files.segments.open_files import OpenFile, OpenFiles
from rmq_store.files.segments.segments import SegmentRun, parsed_names


class SpreadRun(SegmentRun):
    """The files of `directories` as one run; each file lies in one of them. Nothing is written."""

    def __init__(self, directories: Sequence[Path], size_bytes: int, files: OpenFiles) -> None:
        super().__init__(directories[0], size_bytes, files, writable=False, sparse=False, pin=True)
        self.directories = tuple(directories)
        self._open_files = files
        self._listings = [shared_listing(str(directory), parsed_names) for directory in directories]
        self._seen: tuple[Sequence[int], ...] = ()
        self._places: dict[int, Path] = {}
        self._sorted: tuple[int, ...] = ()

    def _bases(self) -> Sequence[int]:
        found = tuple(self._listed())
        if len(found) != len(self._seen) or any(new is not old for new, old in zip(found, self._seen, strict=True)):
            self._places = self._united(found)
            self._sorted = tuple(sorted(self._places))
            self._seen = found
        return self._sorted

    def _listed(self) -> list[Sequence[int]]:
        found = []
        for directory, listing in zip(self.directories, self._listings, strict=True):
            try:
                found.append(listing.get())
            except (FileNotFoundError, NotADirectoryError) as error:
                raise UsageError(f"storePathCommitLog: {directory} is no directory; is its disk mounted?") from error
            except PermissionError as error:
                raise UsageError(f"{directory}: {error.strerror}") from error
        return found

    def _united(self, found: Sequence[Sequence[int]]) -> dict[int, Path]:
        places: dict[int, Path] = {}
        for directory, bases in zip(self.directories, found, strict=True):
            for base in bases:
                if base in places:
                    reason = f"this segment is in {places[base]} as well: which one is the log's cannot be told"
                    raise CorruptionError(str(directory / f"{base:020d}"), 0, reason)
                places[base] = directory
        numbers = sorted(places)
        for base, following in pairwise(numbers):
            if following != base + self.size_bytes and self.size_bytes > 1:
                reason = f"segment {base + self.size_bytes:020d} of the log is in none of {len(self.directories)} paths"
                raise CorruptionError(str(places[base]), 0, f"{reason}: name all paths of storePathCommitLog")
        return places

    def path(self, base: int) -> Path:
        """As in `SegmentRun`; for a missing file, the path in the first directory."""
        self._bases()
        return self._places.get(base, self.directory) / f"{base:020d}"

    def name(self, base: int) -> str:
        """As `path`, as text."""
        return str(self.path(base))

    def open(self, base: int) -> OpenFile:
        """As in `SegmentRun`."""
        path = self.path(base)
        try:
            return self._open_files.get(str(path), self.size_bytes, writable=False, pin=True, directory=path.parent)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise durable.translate(error, path.parent) from error

    def create(self, base: int) -> None:
        """Always raises ReadOnlyError."""
        raise ReadOnlyError(f"{self.directory}: a log in several directories is only read")


def parse_paths(text: str) -> tuple[Path, ...]:
    """The directories of storePathCommitLog, separated by commas. UsageError: one is not an absolute path, or comes
    twice.
    """
    paths = tuple(Path(part.strip()) for part in text.split(",") if part.strip())
    for path in paths:
        if not path.is_absolute():
            raise UsageError(f"storePathCommitLog={text!r}: {path} is no absolute path")
    if not paths or len(set(paths)) < len(paths):
        raise UsageError(f"storePathCommitLog={text!r}: different directories, separated by commas")
    return paths
