"""The directory for everything that a repair takes out of a store, or changes (`rmq repair`): nothing is deleted.

A repair moves files that have to go, and copies files that it changes, to a directory that keeps the relative path.
Holes stay holes. Bytes that the disk cannot read are zeros in the copy.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import field
from pathlib import Path

from rmq_store.errors import UsageError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import data_ranges
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.recovery.recovery import free_name

_STEP_BYTES = 1 << 20
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Trash:
    """The directory `target` for files of the store at `root`. `copies`: the copy of each file. `touched`: files that
    were moved, or copied to be replaced, or may have been. From then on `take_back` is not possible.
    """

    root: Path
    target: Path
    copies: dict[Path, Path] = field(default_factory=dict)
    touched: list[Path] = field(default_factory=list)
    _made: list[Path] = field(default_factory=list)

    def copy(self, path: Path) -> None:
        """Keep a durable copy of a file that will be replaced, with zeros for bytes that cannot be read.

        Raises:
            StoreFullError, StoreFailedError, UsageError: as `durable.translate`; then there is no copy.
        """
        self._copy(path)
        self.touched.append(path)

    def keep(self, path: Path) -> None:
        """`copy` a regular file at `path`, or `move` anything else; do nothing if `path` does not exist."""
        if path.is_file() and not path.is_symlink():
            self.copy(path)
        elif os.path.lexists(path):
            self.move(path)

    def _copy(self, path: Path) -> None:
        place = self._place(path)
        copy_readable(path, place, path.stat().st_size)
        with durable.typed(place):
            durable.fsync_directory(place.parent)
        self.copies[path] = place

    def copy_all(self, directory: Path, without: Collection[Path] = ()) -> None:
        """Keep a copy of every file below a directory, except `without` and everything below those. Raises as `copy`.
        `take_back` can remove these copies.
        """
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink() and not {path, *path.parents}.intersection(without):
                self._copy(path)

    def take_back(self) -> None:
        """Delete the copies, because the change that they were made for does not happen. Only while nothing is
        `touched`.
        """
        assert not self.touched
        for place in self.copies.values():
            place.unlink()
        self.copies.clear()
        for directory in reversed(self._made):
            if not any(directory.iterdir()):
                directory.rmdir()
        self._made.clear()

    def move(self, path: Path) -> None:
        """Move a file or directory out of the store.

        Raises:
            UsageError: it holds something that only a rename can keep, and the target is on another file system.
            StoreFullError, StoreFailedError: as `durable.translate`; then it is still in the store.
        """
        place = self._place(path)
        with durable.typed(path):
            durable.before("rename", path)
            if path.lstat().st_dev == place.parent.stat().st_dev:
                self.touched.append(path)
                path.rename(place)
            else:
                self._move_far(path)
            durable.fsync_directory(place.parent)
            durable.fsync_directory(path.parent)

    def _move_far(self, path: Path) -> None:
        files = [path, *sorted(path.rglob("*"))]
        for file in files:
            if not stat.S_ISREG(mode := file.lstat().st_mode) and not stat.S_ISDIR(mode):
                raise UsageError(f"{file}: no regular file: --removed must be on the file system of the store")
        copied = []
        try:
            for file in files:
                if file.is_file():
                    self._copy(file)
                    copied.append(file)
        except BaseException:
            for file in copied:
                self.copies.pop(file).unlink()
            raise
        self.touched.append(path)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _place(self, path: Path) -> Path:
        place = self.target / path.relative_to(self.root)
        missing = [parent for parent in place.parents if not parent.is_dir()]
        for parent in reversed(missing):
            durable.make_directory(parent)
            self._made.append(parent)
        return free_name(place)


def copy_readable(source: Path, target: Path, size_bytes: int, *, allocate: bool = False) -> None:
    """Make `target`, a new file of `size_bytes`: the first bytes of `source`, then zeros; also zeros for bytes that
    cannot be read. Holes stay holes unless `allocate`. On return the content is durable, the name is not.

    Raises:
        StoreFullError, StoreFailedError, UsageError: as `durable.translate`; then there is no `target`.
    """
    try:
        with source.open("rb") as file:
            end = min(size_bytes, os.fstat(file.fileno()).st_size)
            fd = durable.open_nofollow(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                durable.before("allocate", target)
                os.ftruncate(fd, size_bytes)
                if allocate:
                    os.posix_fallocate(fd, 0, size_bytes)
                for low, high in data_ranges(file.fileno(), 0, end):
                    for position in range(low, high, _STEP_BYTES):
                        piece = read_readable(file.fileno(), min(_STEP_BYTES, high - position), position)
                        durable.write_fully(fd, piece, position, target)
                durable.fsync_file(fd, target)
            except BaseException:
                target.unlink()
                raise
            finally:
                os.close(fd)
    except OSError as error:
        raise durable.translate(error, target) from error


def read_readable(fd: int, size_bytes: int, position: int) -> bytes:
    """Bytes of a file; zeros for each page that the disk cannot read. OSError as pread(2)."""
    try:
        return os.pread(fd, size_bytes, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    if size_bytes <= _PAGE_BYTES:
        return bytes(size_bytes)
    end = position + size_bytes
    return b"".join(read_readable(fd, min(_PAGE_BYTES, end - page), page) for page in range(position, end, _PAGE_BYTES))
