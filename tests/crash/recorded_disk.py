"""Everything that the engine does to the files of one store, written down in order.

Not the engine is asked but the calls that it makes of the operating system: every one that changes a file, a size or a
name, and every fsync. Stores into mapped files are found by comparing each map with what it held at the call before;
words of the state page and headers of index files are caught one by one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from crash.disk_image import Operation
from rmq_store.files.locks.state_page import StatePage, _Word
from rmq_store.files.segments import prefix_mapped
from rmq_store.log.append import flush, lone_append
from rmq_store.log.views.index_file import IndexFile

# The engine writes inode numbers into these two: an image must hold the very file.
IDENTITIES = ("pyrmq/state", "pyrmq/progress")

_HELD = re.compile(r"(/proc/self/fd/\d+)(?:/\.)?(/.*)?$")


class Recorder:
    """Operations below `root`; `files`: inode (a number of ours) by path at this moment.

    `keep` is a directory outside of the store, where a second name of each file of IDENTITIES is left.
    """

    def __init__(self, root: Path, keep: Path, files: dict[str, int] | None = None, first_inode: int = 1) -> None:
        self.operations: list[Operation] = []
        self.files = dict(files or {})
        self.next_inode = max([first_inode, *(inode + 1 for inode in self.files.values())])
        self._prefix = f"{root}/"
        self._root = str(root)
        self._keep = keep
        self._descriptors: dict[int, int | str] = {}  # descriptor -> inode, or path of a directory
        self._maps: list[tuple[int, mmap.mmap, bytes]] = []

    def catch_up(self) -> None:
        """Write down what was stored into maps since the last operation."""
        for number, (inode, mapped, known) in enumerate(self._maps):
            now = mapped[:]
            if now != known:
                changed = [place for place in range(len(now)) if now[place] != known[place]]
                for sector in sorted({place // 512 for place in changed}):
                    places = [place for place in changed if place // 512 == sector]
                    low, high = places[0], places[-1] + 1
                    self.operations.append(("write", inode, low, now[low:high]))
                self._maps[number] = (inode, mapped, now)

    def note(self, *operation: Any) -> None:
        """Write down an operation, after those that maps saw meanwhile."""
        self.catch_up()
        self.operations.append(operation)

    def relative(self, path: Any) -> str | None:
        """The path below the store; None if it is not of the store, or serves one boot only."""
        text = os.fspath(path)
        held = _HELD.match(text) if isinstance(text, str) else None
        if held is not None:  # by the descriptor of the store's directory: files/rooted.py
            text = f"{Path(held[1]).readlink()}{held[2] or ''}"
        if text == self._root:
            return ""
        if not isinstance(text, str) or not text.startswith(self._prefix) or "/pyrmq/staging/" in text:
            return None
        return text[len(self._prefix) :]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the block does, in this thread's process."""
        with contextlib.ExitStack() as stack:
            for name in ("open", "close", "pwrite", "ftruncate", "posix_fallocate", "rename", "link", "unlink", "mkdir",
                         "rmdir", "fsync", "fdatasync"):  # fmt: skip
                stack.enter_context(patch.object(os, name, getattr(self, f"_{name}")(getattr(os, name))))
            stack.enter_context(patch.object(prefix_mapped, "map_file", self._map_file(prefix_mapped.map_file)))
            stack.enter_context(patch.object(flush, "_libc", _Syncfs(self, flush._libc)))
            for owner, method in ((_Word, "__set__"), (StatePage, "retract"), (StatePage, "publish"),
                                  (IndexFile, "write_header"), (IndexFile, "write_entries")):  # fmt: skip
                stack.enter_context(patch.object(owner, method, self._caught_up(getattr(owner, method))))
            stack.enter_context(patch.object(lone_append, "watch", self._lone_step))
            yield
        self.catch_up()

    def _lone_step(self, operation: str, target: str, fd: int, position: int, data: bytes) -> None:
        """What the extension is about to do for a lone message."""
        if operation == "write":
            self.note("write", self._descriptors[fd], position, data)
        elif operation == "store":
            self.catch_up()

    def _caught_up(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.catch_up()
            return real(*arguments, **options)

        return call

    def _new(self, path: str) -> int:
        inode = self.files[path] = self.next_inode
        self.next_inode += 1
        return inode

    def _open_file(self, path: str, flags: int, fd: int) -> None:
        if path not in self.files:
            inode = self._new(path)
            self.note("name", path, inode)
            if path in IDENTITIES:
                os.link(f"{self._prefix}{path}", self._keep / str(inode))
        elif flags & os.O_TRUNC:
            self.note("size", self.files[path], 0)
        self._descriptors[fd] = self.files[path]

    def _open(self, real: Any) -> Any:
        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            name = self.relative(path) if dir_fd is None else None
            fd: int = real(path, flags, mode, dir_fd=dir_fd)
            self._descriptors.pop(fd, None)
            if name is not None and flags & os.O_DIRECTORY:
                self._descriptors[fd] = name
            elif name is not None and (name in self.files or flags & os.O_CREAT):
                self._open_file(name, flags, fd)
            return fd

        return call

    def _close(self, real: Any) -> Any:
        def call(fd: int) -> None:
            self._descriptors.pop(fd, None)
            real(fd)

        return call

    def _pwrite(self, real: Any) -> Any:
        def call(fd: int, data: Any, offset: int) -> int:
            count: int = real(fd, data, offset)
            inode = self._descriptors.get(fd)
            if isinstance(inode, int):
                self.note("write", inode, offset, bytes(memoryview(data)[:count]))
            return count

        return call

    def _ftruncate(self, real: Any) -> Any:
        def call(fd: int, size: int) -> None:
            real(fd, size)
            inode = self._descriptors.get(fd)
            if isinstance(inode, int):
                self.note("size", inode, size)

        return call

    def _posix_fallocate(self, real: Any) -> Any:
        def call(fd: int, offset: int, length: int) -> None:
            real(fd, offset, length)
            inode = self._descriptors.get(fd)
            if isinstance(inode, int):
                self.note("grow", inode, offset + length)

        return call

    def _rename(self, real: Any) -> Any:
        def call(source: Any, target: Any) -> None:
            names = self.relative(source), self.relative(target)
            real(source, target)
            if names[0] is None or names[1] is None:
                return
            inode = self.files[names[0]]
            if self.files.get(names[1]) == inode:
                return  # two names of one file: rename(2) does nothing
            del self.files[names[0]]
            self.files[names[1]] = inode
            self.note("rename", *names, inode)

        return call

    def _link(self, real: Any) -> Any:
        def call(source: Any, target: Any, **options: Any) -> None:
            real(source, target, **options)
            old, new = self.relative(source), self.relative(target)
            if old is not None and new is not None:
                self.files[new] = self.files[old]
                self.note("name", new, self.files[old])

        return call

    def _unlink(self, real: Any) -> Any:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            real(path, dir_fd=dir_fd)
            name = self.relative(path) if dir_fd is None else None
            if name in self.files:
                self.note("unlink", name, self.files.pop(name))

        return call

    def _mkdir(self, real: Any) -> Any:
        def call(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real(path, mode, dir_fd=dir_fd)
            name = self.relative(path)
            if name is not None:
                self.note("mkdir", name)

        return call

    def _rmdir(self, real: Any) -> Any:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            real(path, dir_fd=dir_fd)
            assert dir_fd is not None or self.relative(path) is None, "a directory of the store was removed"

        return call

    def _fsync(self, real: Any) -> Any:
        def call(fd: int) -> None:
            # Not passed on: what is durable is what is written down here.
            what = self._descriptors.get(fd)
            if isinstance(what, int):
                self.note("fsync", what)
            elif what is not None:
                self.note("fsync_directory", what)

        return call

    _fdatasync = _fsync

    def _fdatasync(self, real: Any) -> Any:
        return self._fsync(real)  # the size of a file is synced, too, if it has changed

    def _map_file(self, real: Any) -> Any:
        def call(fd: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
            mapped: mmap.mmap = real(fd, size_bytes, writable=writable)
            inode = self._descriptors.get(fd)
            if isinstance(inode, int) and writable:
                self.catch_up()
                self._maps.append((inode, mapped, mapped[:]))
            return mapped

        return call


class _Syncfs:
    def __init__(self, recorder: Recorder, real: Any) -> None:
        self._recorder = recorder

    def syncfs(self, fd: int) -> int:
        self._recorder.note("syncfs")
        return 0
