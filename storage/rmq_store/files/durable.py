"""Small files that survive a crash: atomic replacement, fsync, and opens that follow no symbolic link.

Files that root makes in a store get the owner of the store's directory. Otherwise a service that runs as another user
could not open the store afterwards.

Every operation that can fail or lose data calls `hook(operation, path)` first, so that a test can make exactly the k-th
one fail. Operations: "open", "read", "write", "allocate", "fsync" (of a file; fdatasync too), "rename", "link",
"unlink", "fsync_directory", "mkdir"; "syncfs" in log/append/flush.py.

Assumptions about the medium: a rename is atomic; bytes are durable after fsync(2) of the file, names after fsync(2)
of the directory. Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from rmq_store.errors import (
    CorruptConfigError,
    NotAStoreError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreReplacedError,
    UsageError,
)
from rmq_store.files.rooted import as_path, gone_from, plain_name

_LOG = logging.getLogger(__name__)

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_ROOT = 0  # user id
_COMMIT_LOG_DIRECTORY = "commitlog"  # whatever directory has it is a store's

# renameat2(2): relative to the working directory; the two names change places.
_HERE = -100
_EXCHANGE = 2

hook: Callable[[str, str], None] | None = None
"""Called with (operation, path) before every operation of this layer; whatever it raises happens instead of it."""

_temporary_numbers = itertools.count()


def before(operation: str, path: str | Path) -> None:
    """Call `hook` before an operation. The other modules of this layer call it for their own operations."""
    if hook is not None:
        hook(operation, str(path))


def translate(error: OSError, path: str | Path) -> StoreError:
    """Return the typed error for a failed write to `path`: disk full, no permission, store replaced, or I/O error."""
    if (replaced := gone_from(path, error)) is not None:
        return replaced
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFullError(f"{path}: {error.strerror}")
    if error.errno == errno.ENOTDIR:
        return NotAStoreError(str(path), "a file stands where a directory is expected; see `rmq repair`")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UsageError(f"{path}: cannot be written: {error.strerror}")
    return StoreFailedError(f"{path}: {error.strerror or error}")


class typed:
    """Raise typed errors (`translate`) for the OSErrors of the block. FileNotFoundError stays, unless the store itself
    is gone.

    A class instead of a generator: every message passes through it, and a generator costs more than the block that it
    guards.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            typed_error = translate(error, self._path)
            if not isinstance(error, FileNotFoundError) or isinstance(typed_error, StoreReplacedError):
                raise typed_error from error


@contextlib.contextmanager
def permitted() -> Iterator[None]:
    """Raise UsageError, with the name of the file, if this user lacks the permission for an operation of the block."""
    try:
        yield
    except PermissionError as error:
        raise UsageError(f"{plain_name(error)}: {error.strerror}") from error


@contextlib.contextmanager
def typed_reading(path: str | Path) -> Iterator[None]:
    """Raise typed errors, with the name of the file, if the block cannot read a file or another process removes it
    meanwhile. A process that lists a directory and then reads its files can be overtaken. `path` is named if the error
    names none.

    Raises:
        UsageError: no permission, or somebody removes files.
        NotAStoreError, StoreFullError, StoreFailedError: as `translate`.
    """
    try:
        with permitted():
            yield
    except FileNotFoundError as error:
        text = "missing, or removed while the store was read: somebody else is at work there"
        raise UsageError(f"{plain_name(error, path)}: {text}") from error
    except OSError as error:
        raise translate(error, plain_name(error, path)) from error


def open_nofollow(path: str | Path, flags: int, mode: int = FILE_MODE) -> int:
    """Open a regular file and return its descriptor, close-on-exec.

    Only the last component of `path` must not be a symbolic link. The owner of the root may put it or `config/` on
    another disk.

    Raises:
        FileNotFoundError: no such file and no O_CREAT in `flags`.
        NotAStoreError: a symbolic link, or something else that is not a regular file.
        UsageError: no permission.
        StoreReplacedError: the store that `path` lies in is open for writing, and gone.
        OSError: as open(2).
    """
    before("open", path)
    try:
        # O_NONBLOCK does nothing to a regular file; without it a FIFO put in our place would block for ever.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        if flags & os.O_CREAT and os.geteuid() == _ROOT:
            fd = _open_as_root(path, flags, mode)
        else:
            fd = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise NotAStoreError(str(path), "expected a regular file, found something else") from error
        if isinstance(error, PermissionError):
            raise UsageError(f"{path}: cannot be opened: {error.strerror}") from error
        if (replaced := gone_from(path, error)) is not None:
            raise replaced from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAStoreError(str(path), "expected a regular file, found something else")
    return fd


def _open_as_root(path: str | Path, flags: int, mode: int) -> int:
    """As open(2) with O_CREAT. A file that is there already is not given away: it may be a link to one of root's."""
    while True:
        try:
            fd = os.open(path, flags | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            _give_away(path, fd)
            return fd
        with contextlib.suppress(FileNotFoundError):  # removed in between: to be made after all
            return os.open(path, flags & ~os.O_CREAT, mode)


def _give_away(path: str | Path, fd: int) -> None:
    """Give what root has just made, and holds open, to the owner of the store that it lies in."""
    for directory in as_path(path).absolute().parents:
        if (directory / _COMMIT_LOG_DIRECTORY).is_dir():
            owner = directory.stat()
            try:
                os.fchown(fd, owner.st_uid, owner.st_gid)
            except OSError as error:  # a root who may not do this, as in some containers
                _LOG.warning("%s: stays root's, and may keep out who runs the store: %s", path, error.strerror)
            return


# Newer kernels take memory for what is written in pieces as large as the write (large folios): with 6.18 and ext4, 512
# KiB at a time took half of the processor time of 32 KiB, and were faster also where all memory had just been given
# back to the host of the virtual machine. Larger ones gain little, and are no longer in the processor's cache.
WRITE_BYTES = 512 << 10


def write_fully(fd: int, data: bytes | bytearray | memoryview, offset: int, path: str | Path = "") -> None:
    """`pwrite` all of `data` at `offset`, WRITE_BYTES at a time; a short write is continued. OSError as pwrite(2)."""
    before("write", path)
    if len(data) <= WRITE_BYTES:
        done = os.pwrite(fd, data, offset)
        if done == len(data):
            return
    else:
        done = 0
    view = memoryview(data)
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + WRITE_BYTES], offset + done)


def fsync_file(fd: int, path: str | Path = "") -> None:
    """Make the bytes and the size of an open file durable. OSError as fsync(2): afterwards the content on disk is
    unknown.
    """
    before("fsync", path)
    os.fsync(fd)


def fsync_data(fd: int, path: str | Path = "") -> None:
    """Make the bytes of an open file durable if its size does not change. OSError as fdatasync(2), with the same
    meaning as in `fsync_file`.
    """
    before("fsync", path)
    os.fdatasync(fd)


def open_directory(path: str | Path) -> int:
    """Open a directory, to fsync it later. A failure to open it says nothing about the disk's content. OSError as
    open(2).
    """
    before("open", path)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def fsync_directory(path: str | Path) -> None:
    """Make the names in a directory durable. OSError as fsync(2)."""
    before("fsync_directory", path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str | Path, *, synced: bool = True) -> bool:
    """Create one directory (0700) below an existing one, durably if `synced`; False if it was there.

    Raises:
        FileNotFoundError: the parent does not exist.
        NotAStoreError: the name is taken by something that is not a directory, or by a symbolic link.
        StoreFullError, StoreFailedError, UsageError: as `translate`.
    """
    path = as_path(path)
    with typed(path):
        before("mkdir", path)
        try:
            path.mkdir(DIRECTORY_MODE)
            if os.geteuid() == _ROOT:
                _give_directory_away(path)
        except FileExistsError as error:
            if stat.S_ISLNK(mode := path.lstat().st_mode):
                reason = "expected a directory, found a symbolic link: what is written would go elsewhere"
                raise NotAStoreError(str(path), reason) from error
            if not stat.S_ISDIR(mode):
                raise NotAStoreError(str(path), "expected a directory, found something else") from error
            return False
        if synced:
            fsync_directory(path.parent)
    return True


def _give_directory_away(path: Path) -> None:
    before("open", path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give_away(path, fd)
    finally:
        os.close(fd)


def warn_of_shared_directory(path: Path) -> None:
    """Log a warning if users other than its owner may write to a store's directory: they control the store, then."""
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if mode & stat.S_IWOTH else "a group"
        _LOG.warning("%s: %s may write this directory (mode %o), and with it the store", path, who, stat.S_IMODE(mode))


def refuse_links(*directories: Path) -> None:
    """Raise NotAStoreError if one of these directories, which need not exist, is a symbolic link."""
    for path in directories:
        if path.is_symlink():
            raise NotAStoreError(str(path), "expected a directory, found a symbolic link")


def refuse_inside(path: str | Path, root: Path) -> None:
    """Raise UsageError if `path` is the store at `root` or lies in it, links followed. `path` need not exist. A file
    written there would collide with the store's own files.
    """
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise UsageError(f"{path} lies in the store itself ({root}): choose a directory outside of it")


def read_limited(path: str | Path, limit_bytes: int) -> bytes:
    """Return the whole content of a small file.

    Raises:
        FileNotFoundError: no such file.
        CorruptConfigError: it is larger than `limit_bytes`; nothing of that size was allocated.
        NotAStoreError: not a regular file.
        StoreFailedError: an I/O error; nothing is known to be wrong with its content.
        UsageError: no permission.
    """
    try:
        return _read_limited(path, limit_bytes)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreFailedError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_limited(path: str | Path, limit_bytes: int) -> bytes:
    fd = open_nofollow(path, os.O_RDONLY)
    try:
        before("read", path)
        pieces = []
        # One byte more than allowed, so that a file which grows meanwhile is seen to be too large as well.
        missing = limit_bytes + 1
        if os.fstat(fd).st_size <= limit_bytes:
            while missing and (piece := os.read(fd, min(missing, 1 << 20))):
                pieces.append(piece)
                missing -= len(piece)
            if missing:
                return b"".join(pieces)
    finally:
        os.close(fd)
    raise CorruptConfigError(str(path), limit_bytes, f"larger than {limit_bytes} bytes")


def write_atomically(path: str | Path, data: bytes, *, backup: str | Path | None = None, mode: int = FILE_MODE) -> None:
    """Replace (or create) a file so that a crash at any point leaves the old or the new content, never a mixture.

    On return the new content is durable. `path` names a whole file at every moment. With `backup`, that name (same
    directory) holds the replaced content afterwards. Concurrent writers do not harm each other, but the last one wins:
    a caller that merges its change into the old content must hold a lock. A symbolic link at `path` is replaced, not
    followed.

    Raises:
        FileNotFoundError: the directory does not exist.
        StoreFullError: no space; `path` is unchanged.
        StoreFailedError: an I/O error; `path` has the old content, or the new one that may not survive a power cut.
        UsageError: no permission.
    """
    path = as_path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_temporary_numbers)}.tmp")
    with typed(path):
        try:
            _write_new(temporary, data, mode)
            if backup is not None:
                _keep_as(path, as_path(backup))
            before("rename", path)
            temporary.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        fsync_directory(path.parent)


def _write_new(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    # A leftover of this name can only be of a dead process whose pid we got: nobody else writes it.
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fd = open_nofollow(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_fully(fd, data, 0, path)
        fsync_file(fd, path)
    finally:
        os.close(fd)


def _keep_as(path: Path, backup: Path) -> None:
    """Give the file at `path` the second name `backup`; the rename that follows takes the first one away.

    A hard link instead of a copy: the old bytes are durable already, and `path` never goes missing.
    """
    spare = backup.with_name(f"{backup.name}.{os.getpid()}-{next(_temporary_numbers)}.tmp")
    try:
        before("link", backup)
        try:
            os.link(path, spare, follow_symlinks=False)
        except FileNotFoundError:
            return
        except PermissionError:
            # File systems without hard links (FAT, some FUSE ones) answer EPERM.
            _write_new(spare, path.read_bytes())
        before("rename", backup)
        spare.rename(backup)
    finally:
        # Also after success: where `backup` is this very file already, because a writer was killed between its two
        # renames, rename(2) does nothing and leaves both names.
        with contextlib.suppress(FileNotFoundError):
            spare.unlink()


def overwrite(path: str | Path, data: bytes) -> None:
    """Write `data` over the beginning of a file that is there, durably; no name is made. For bytes that a disk writes
    as a whole (a sector), or of which a mixture does no harm.

    Raises:
        FileNotFoundError: no such file. StoreFullError, StoreFailedError, UsageError: as `translate`.
    """
    with typed(path):
        fd = open_nofollow(path, os.O_WRONLY)
        try:
            write_fully(fd, data, 0, path)
            fsync_file(fd, path)
        finally:
            os.close(fd)


def _exchange_names(spare: str | Path, path: str | Path) -> None:
    import ctypes  # only a store that is closed needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):  # an old C library
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    if libc.renameat2(_HERE, os.fsencode(spare), _HERE, os.fsencode(path), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(errno.EINVAL if code == errno.ENOSYS else code, os.strerror(code), str(path))


def exchange(path: str | Path, spare: str | Path, data: bytes) -> None:
    """As `write_atomically`, without a new name: `data` is written into `spare`, and then the two files change places,
    so that `spare` has the replaced content. A program that deletes the directory meanwhile finds the names that it has
    listed, and no other one. The caller holds a lock: nobody else writes the two.

    Raises:
        FileNotFoundError: one of the two does not exist. OSError with EINVAL: the file system, the C library or the
            kernel cannot exchange names.
        StoreFullError, StoreFailedError, UsageError: as `write_atomically`.
    """
    try:
        with typed(path):
            fd = open_nofollow(spare, os.O_WRONLY | os.O_TRUNC)
            try:
                write_fully(fd, data, 0, spare)
                fsync_file(fd, spare)
            finally:
                os.close(fd)
        before("rename", path)
        _exchange_names(spare, path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            raise
        raise translate(error, path) from error
    with typed(path):
        fsync_directory(as_path(path).parent)


def remove_leftovers(path: str | Path) -> int:
    """Unlink temporary files that killed processes left of writes to `path`; returns how many.

    The caller holds the lock that serialises the writers of `path`. Without it, the temporary file of a live writer
    would be removed too.
    """
    path = as_path(path)
    count = 0
    for entry in path.parent.iterdir():
        if entry.name.startswith(f"{path.name}.") and entry.name.endswith(".tmp"):
            before("unlink", entry)
            with contextlib.suppress(FileNotFoundError):
                entry.unlink()
                count += 1
    return count
