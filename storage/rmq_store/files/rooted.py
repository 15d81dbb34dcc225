"""The directory of a store that is open for writing, held by its descriptor. All files that this process writes go into
the directory that it has opened, even if another directory takes that path meanwhile.

    str(path)          /data/store/config/topics.json           shown in logs and errors
    os.fspath(path)    /proc/self/fd/7/config/topics.json       passed to the kernel

A `RootedPath` is both. The kernel resolves the second name from the descriptor, so a file is made, replaced or
removed there and nowhere else. `Root.is_in_place` checks whether the path still leads there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Self

from rmq_store.errors import StoreReplacedError

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_COMMIT_LOG = "commitlog"
_DELETED = " (deleted)"
_HELD_NAME = re.compile(r"/proc/self/fd/(\d+)(/\.)?(?=/|\Z)")

# {descriptor: path of the directory that is, or was last, held by it}: an error may be told after it was closed.
_names: dict[int, str] = {}


class Root:
    """`path`: the directory. `close` releases it; from then on its paths are plain ones."""

    fd = -1
    _log_fd = -1

    def __init__(self, directory: Path) -> None:
        """Hold the directory. OSError as open(2)."""
        self._text = str(directory)
        self._below = f"{self._text}/"
        self._log_name = f"{self._below}{_COMMIT_LOG}"
        self._log_identity: tuple[int, int] | None = None
        from rmq_store.files import durable  # which imports this module

        durable.before("open", directory)
        self.fd = os.open(directory, _FLAGS)
        _names[self.fd] = self._text
        self._near = f"/proc/self/fd/{self.fd}/."
        try:
            is_reached = os.path.samestat(os.fstat(self.fd), os.stat(self._near))  # noqa: PTH116
        except OSError:
            is_reached = False
        if not is_reached:  # /proc is missing, or of other processes: the look under the lock has to do
            self._near = self._text

    def __del__(self) -> None:
        self.close()

    @property
    def path(self) -> RootedPath:
        """The directory itself."""
        return RootedPath.of(Path(self._text), self)

    def watch(self) -> None:
        """Remember the log's directory, if it exists now: `is_in_place` checks it. Errors as `durable.translate`.

        The root alone is not enough: if it is a mount point, all files can be deleted, but not the root itself. The
        log's directory stays open, so that no other directory can get its inode.
        """
        from rmq_store.files import durable

        with contextlib.suppress(FileNotFoundError), durable.typed(self._log_name):
            durable.before("open", self._log_name)
            self._log_fd = os.open(self.reach(self._log_name), _FLAGS)
            status = os.fstat(self._log_fd)
            self._log_identity = status.st_ino, status.st_dev

    def is_in_place(self) -> bool:
        """True if the path still leads to the store that is held, and to its log. Costs one call of stat(2)."""
        try:
            status = os.stat(self._log_name)  # noqa: PTH116 - for every append: no Path object each time
        except OSError:
            return self._log_identity is None
        return (status.st_ino, status.st_dev) == self._log_identity or self._log_identity is None

    def log_place(self) -> tuple[str, int, int] | None:
        """The path of the log's directory, and the device and inode that it leads to as long as `is_in_place`. None:
        the directory did not exist when `watch` was called.
        """
        if self._log_identity is None:
            return None
        inode, device = self._log_identity
        return self._log_name, device, inode

    def refuse_if_replaced(self) -> None:
        """Raise StoreReplacedError unless `is_in_place`."""
        if not self.is_in_place():
            raise self.replaced()

    def is_deleted(self) -> bool:
        """True if the store is not in its place because it was deleted: then a missing file was deleted with it."""
        return not self.is_in_place() and _path_of(self._log_fd) == ""

    def replaced(self) -> StoreReplacedError:
        """The error for a store that is not in its place; it names the store's present path."""
        place = _path_of(self._log_fd)
        moved_to = None if place is None else place.removesuffix(f"/{_COMMIT_LOG}")
        if moved_to:
            happened, advice = f"moved to {moved_to}", "open it there"
        elif place is None:
            happened, advice = "moved", "open it where it is now"
        else:
            happened, advice = "deleted", "open the one that you want"
        return StoreReplacedError(
            self._text,
            f"the store that was opened here was {happened}: nothing more is read or written. Close it, and {advice}",
            moved_to,
        )

    def reach(self, path: str) -> str:
        """The name by which the kernel reaches `path` from the descriptor. Returns `path` itself if it lies outside, or
        after `close`.
        """
        if self.fd >= 0:
            if path.startswith(self._below):
                return self._near + path[len(self._text) :]
            if path == self._text:
                return self._near
        return path

    def close(self) -> None:
        """Release the directory; can be repeated."""
        fds = self.fd, self._log_fd
        self.fd = self._log_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _path_of(fd: int) -> str | None:
    """Where an open directory is now; "" if it was deleted, None if that cannot be found out."""
    if fd < 0:
        return None
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        return "" if found.endswith(_DELETED) or not os.fstat(fd).st_nlink else found
    except OSError:
        return None


def plain_name(error: OSError, otherwise: object = "") -> str:
    """The file that an error names, as its user knows it; `otherwise` if the error names none."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename or otherwise)
    found = _HELD_NAME.match(name)
    text = _names.get(int(found[1])) if found else None
    return name if found is None or text is None else text + name[found.end() :]


class RootedPath(type(Path())):  # type: ignore[misc]
    """A path in a directory that is held. Paths derived from it by `/`, `parent`, `with_name`, `iterdir` and `glob` are
    such paths too; a pickled one is plain.
    """

    _reached_through: Root | None = None

    @classmethod
    def of(cls, path: PurePath, root: Root) -> Self:
        """`path`, reached through `root`."""
        made = cls(path)
        made._reached_through = root
        return made

    @property
    def root_held(self) -> Root | None:
        """The held directory that the kernel resolves the path from."""
        return self._reached_through

    def _derived(self, made: Self) -> Self:
        made._reached_through = self._reached_through
        return made

    def __fspath__(self) -> str:
        text = str(self)
        return text if self._reached_through is None else self._reached_through.reach(text)

    def __truediv__(self, key: str | os.PathLike[str]) -> Self:
        # Of the same type, and only `key` is parsed: an opening of a store derives hundreds of paths.
        made = super().__truediv__(key)
        return made if made is NotImplemented else self._derived(made)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path, (str(self),)

    @property
    def parent(self) -> Self:
        """As `PurePath.parent`."""
        return self._derived(super().parent)

    @property
    def parents(self) -> tuple[Self, ...]:
        """As `PurePath.parents`."""
        return tuple(self._derived(path) for path in super().parents)

    def with_name(self, name: str) -> Self:
        """As `PurePath.with_name`."""
        return self._derived(super().with_name(name))

    def iterdir(self) -> Iterator[Self]:
        """As `Path.iterdir`."""
        for name in os.listdir(self):  # noqa: PTH208 - names, to be derived from here
            yield self / name

    def glob(self, pattern: str, **how: Any) -> Iterator[Self]:
        """As `Path.glob`."""
        near = Path(os.fspath(self))
        for found in near.glob(pattern, **how):
            yield self / found.relative_to(near)

    def rglob(self, pattern: str, **how: Any) -> Iterator[Self]:
        """As `Path.rglob`."""
        near = Path(os.fspath(self))
        for found in near.rglob(pattern, **how):
            yield self / found.relative_to(near)

    def absolute(self) -> Self:
        """Returns the path itself: it is absolute already."""
        return self


def as_path(path: str | Path) -> Path:
    """`path` as a Path. A rooted path stays rooted, while `Path(path)` would make it plain."""
    return path if isinstance(path, Path) else Path(path)


def root_of(path: object) -> Root | None:
    """The held directory that `path` is resolved from, or None for a plain path."""
    return path.root_held if isinstance(path, RootedPath) else None


def refuse_if_replaced(path: object) -> None:
    """Raise StoreReplacedError if `path` lies in a store that is open for writing and no longer in its place."""
    root = root_of(path)
    if root is not None:
        root.refuse_if_replaced()


def gone_from(path: object, error: OSError) -> StoreReplacedError | None:
    """The error to raise instead of `error` if `path` is missing because its store was deleted."""
    root = root_of(path) if isinstance(error, FileNotFoundError) else None
    return root.replaced() if root is not None and root.is_deleted() else None
