"""Runs of equally sized files, named by the byte offset at which each begins: segments and consume queue files.

    offset     0                 size             2*size
               | 000...0         | 000...size     | ...        20 decimal digits
               +-----------------+----------------+

Files are created at full size and never change it while they live: to shrink a file that a process has mapped would
kill that process with SIGBUS. They are zeroed in place, or unlinked. Bulk bytes are written with pwrite(2), which
is coherent with mapped reads on Linux and reports a full disk as an error.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from rmq_store.errors import CorruptionError, UsageError
from rmq_store.files import durable
from rmq_store.files.rooted import plain_name, root_of
from rmq_store.files.segments.listing import Listing, shared_listing
from rmq_store.files.segments.new_files import NewFiles
from rmq_store.files.segments.open_files import OPEN_FILES_MAX, OpenFile, OpenFiles

# Java formats file names with 20 digits (UtilAll#offset2FileName).
NAME_DIGITS = 20

# Smaller files are full before a thread has its turn.
_AHEAD_BYTES_MIN = 16 << 20

_ZEROS = bytes(1 << 20)


class FsyncError(Exception):
    """An fsync failed. The kernel reports that once, and afterwards treats the unwritten pages as clean."""


class SegmentRun:
    """The files of one directory; `size_bytes` each.

    `sparse=True` (consume queues) leaves holes in new files. Otherwise their blocks are allocated, so that a full disk
    shows at creation, and a writer that creates one file after another has the next ones made ahead. `pin=True` (commit
    log): retention passes over files that are mapped here. `keep_names`: the next run over the directory in this
    process reuses its listing (`shared_listing`).
    """

    def __init__(
        self, directory: Path, size_bytes: int, files: OpenFiles, *, writable: bool, sparse: bool, pin: bool,
        keep_names: bool = False,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.size_bytes = size_bytes
        self._root = root_of(directory)
        self._prefix = f"{directory}/"  # names are made for every read and write: no Path object each time
        self._listing = (shared_listing if keep_names else Listing)(str(directory), parsed_names)
        self._files = files
        self._writable = writable
        self._sparse = sparse
        self._pin = pin
        # Files that were asked for before: look-ups in a large store take them by turns, and the way through OpenFiles
        # is 1 us longer. Weak: that closes what it forgets all the same. Not those that it has to pin anew.
        self._known: dict[int, Callable[[], OpenFile | None]] = {}
        self._new_files = NewFiles(directory, size_bytes, sparse=sparse)
        self._filled_to = -1  # where the file ends that was created here last

    def bases(self) -> list[int]:
        """The offsets at which the files begin, ascending; [] without a directory. UsageError: no permission."""
        return list(self._bases())

    def listed(self) -> Sequence[int]:
        """As `bases`, not a copy: the same object again as long as the directory is known not to have changed."""
        return self._bases()

    def first(self) -> int | None:
        """The first of `bases`; None if there is none."""
        bases = self._bases()
        return bases[0] if bases else None

    def span(self) -> tuple[int, int]:
        """Where the first file begins and the last one ends, of one listing; (0, 0) without files."""
        bases = self._bases()
        return (bases[0], bases[-1] + self.size_bytes) if bases else (0, 0)

    def _bases(self) -> Sequence[int]:
        try:
            return self._listing.get(self._root)
        except FileNotFoundError:
            return ()
        except NotADirectoryError as error:
            reason = "a file where a directory is expected; see `rmq repair`"
            raise CorruptionError(str(self.directory), 0, reason) from error
        except PermissionError as error:
            raise UsageError(f"{self.directory}: {error.strerror}") from error

    def path(self, base: int) -> Path:
        """The path of the file that begins at `base`."""
        return self.directory / f"{base:020d}"

    def name(self, base: int) -> str:
        """As `path`, as text."""
        return f"{self._prefix}{base:020d}"

    def base_of(self, offset: int) -> int:
        """The first offset of the file that holds `offset`."""
        return offset - offset % self.size_bytes

    def exists(self, base: int) -> bool:
        """True if the file that begins at `base` exists."""
        return self.path(base).exists()

    def open(self, base: int) -> OpenFile:
        """Open the file that begins at `base`.

        Raises:
            FileNotFoundError: it does not exist.
            CorruptionError: its size is wrong.
            StoreFailedError: it cannot be opened; nothing is known to be wrong with it.
        """
        known = self._known.get(base)
        if known is not None and (file := known()) is not None and file.exists():
            file.is_used = True
            return file
        try:
            file = self._files.get(
                self.name(base), self.size_bytes, writable=self._writable, pin=self._pin, directory=self.directory
            )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise durable.translate(error, self.directory) from error
        if not self._pin:
            if len(self._known) >= OPEN_FILES_MAX:  # of which OpenFiles has no more either
                self._known.clear()
            self._known[base] = weakref.ref(file)
        return file

    def create(self, base: int) -> None:
        """Create the file that begins at `base`, filled with zeros, unless it exists.

        The file's content is durable on return. Its name is durable only for the first of a run of files that are not
        sparse; `sync` makes the other names durable. The file appears under its name at full size. StoreFullError: no
        file is left.
        """
        path = self.path(base)
        if os.access(path, os.F_OK):
            return
        self._make_directories()
        new = self._new_files.take(path)
        follows_own = base == self._filled_to
        try:
            durable.before("rename", path)
            new.rename(path)
            # A log that had lost its first segment, and not the second, would look like one that retention has
            # shortened. Without one behind it, it just ends there: nobody was told that it is on disk.
            if not self._sparse and not follows_own:
                durable.fsync_directory(self.directory)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise durable.translate(error, path) from error
        self._filled_to = base + self.size_bytes
        if follows_own and not self._sparse and self.size_bytes >= _AHEAD_BYTES_MIN:
            self._new_files.make_ahead()

    def _make_directories(self) -> None:
        missing = []
        directory = self.directory
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            durable.make_directory(path)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes that lie within one file, which exists. StoreFullError, StoreFailedError."""
        position = offset % self.size_bytes
        file = self.open(offset - position)
        try:
            durable.write_fully(file.fd, data, position, file.path)
        except OSError as error:
            raise durable.translate(error, file.path) from error

    def put(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """As `write`, but creates a missing file first. A failed open shows that the file is missing."""
        try:
            self.write(offset, data)
        except FileNotFoundError:
            self.create(self.base_of(offset))
            self.write(offset, data)

    def zero(self, start: int, end: int) -> int:
        """Write zeros over the bytes of [start, end) that are not zero; missing files are passed over.

        Returns how many bytes lay in the runs that were overwritten.
        """
        changed = 0
        for base in self.bases():
            low, high = max(start, base), min(end, base + self.size_bytes)
            if low < high:
                changed += self._zero_in_file(base, low - base, high - base)
        return changed

    def _zero_in_file(self, base: int, start: int, end: int) -> int:
        file = self.open(base)
        changed = 0
        for low, high in file.data_ranges(start, end):
            for position in range(low, high, len(_ZEROS)):
                size = min(len(_ZEROS), high - position)
                if file.map[position : position + size] != _ZEROS[:size]:
                    self.write(base + position, _ZEROS[:size])
                    changed += size
        return changed

    def data_beyond(self, start: int) -> bool:
        """True if any byte at or above `start` is not zero."""
        for base in self.bases():
            low = max(start, base) - base
            if low >= self.size_bytes:
                continue
            file = self.open(base)
            for first, last in file.data_ranges(low, self.size_bytes):
                for position in range(first, last, len(_ZEROS)):
                    size = min(len(_ZEROS), last - position)
                    if file.map[position : position + size] != _ZEROS[:size]:
                        return True
        return False

    def data_end(self, base: int, start: int) -> int:
        """The offset after the last non-zero byte of one file, from position `start` on; base + start if none is."""
        file = self.open(base)
        for low, high in reversed(file.data_ranges(start, self.size_bytes)):
            for position in range(high, low, -len(_ZEROS)):
                first = max(low, position - len(_ZEROS))
                data = file.map[first:position]
                if data != _ZEROS[: len(data)]:  # which `rstrip` would find out thirty times as slowly
                    return base + first + len(data.rstrip(b"\0"))
        return base + start

    def copy(self, start: int, end: int, target: Path) -> None:
        """Copy bytes of one file, durably, to a file of their own. StoreFullError, StoreFailedError."""
        base = self.base_of(start)
        source = self.open(base)
        try:
            fd = durable.open_nofollow(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                for offset in range(start, end, len(_ZEROS)):
                    piece = source.read(offset - base, min(len(_ZEROS), end - offset))
                    durable.write_fully(fd, piece, offset - start, target)
                durable.fsync_file(fd, target)
            finally:
                os.close(fd)
            durable.fsync_directory(target.parent)
        except OSError as error:
            raise durable.translate(error, target) from error

    def sync(self, start: int, end: int) -> None:
        """fsync the files of [start, end), and the directory if one of them begins there.

        Raises:
            FsyncError: an fsync failed: what is on disk is unknown.
            CorruptionError, StoreFailedError: a file could not be opened; nothing is known to be wrong with it.
        """
        try:
            bases = range(self.base_of(start), end, self.size_bytes)
            files = [self.open(base) for base in bases]
            directory = durable.open_directory(self.directory) if bases and bases[-1] >= start else None
        except OSError as error:
            raise durable.translate(error, plain_name(error, self.directory)) from error
        try:
            for file in files:
                durable.fsync_data(file.fd, file.path)
            if directory is not None:
                durable.before("fsync_directory", self.directory)
                os.fsync(directory)
        except OSError as error:
            raise FsyncError(f"{self.directory}: {error.strerror or error}") from error
        finally:
            if directory is not None:
                os.close(directory)

    def rewrite(self, start: int, end: int) -> None:
        """Write the bytes of [start, end) over themselves.

        After a failed fsync the kernel treats pages as clean that never reached the disk. This makes them dirty again.
        """
        for base in self.bases():
            low, high = max(start, base), min(end, base + self.size_bytes)
            for position in range(low, high, len(_ZEROS)):
                self.write(position, self.open(base).read(position - base, min(len(_ZEROS), high - position)))

    def drop_empty_newest(self) -> None:
        """Unlink a newest file of zero length, which a killed broker can leave (MappedFileQueue#doLoad)."""
        bases = self.bases()
        if bases and self.path(bases[-1]).stat().st_size == 0:
            self.remove(bases[-1])

    def stop_making_ahead(self) -> None:
        """Remove the unused files that were made ahead. StoreFailedError."""
        with durable.typed(self.directory):
            self._new_files.close()

    def remove(self, base: int) -> None:
        """Unlink one file; maps of it stay valid."""
        path = self.path(base)
        self._files.forget(self.name(base))
        with durable.typed(path):
            durable.before("unlink", path)
            path.unlink(missing_ok=True)


def parsed_names(names: list[str]) -> tuple[int, ...]:
    """The numbers that the files of a run are named after, ascending; other names are passed over."""
    found = (int(name) for name in names if len(name) == NAME_DIGITS and name.isascii() and name.isdigit())
    return tuple(sorted(found))
