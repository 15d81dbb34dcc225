"""Every place at which a process can be killed: before each operation on a file, in the middle of each write, before
each store into a mapped word or slot. To come after one operation is to come before the next.

A *point* is (stage of the work, operation, kind of file): `append: write segment`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HALF = "half of a write"

# Names that differ from run to run; what is left of a path is the kind of file.
_KINDS = (
    (re.compile(r"^commitlog/\d{20}$"), "segment"),
    (re.compile(r"^consumequeue/[^/]+/\d+/\d{20}$"), "queue file"),
    (re.compile(r"^consumequeue/[^/]+/\d+$"), "queue directory"),
    (re.compile(r"^consumequeue/[^/]+$"), "topic directory"),
    (re.compile(r"^index/\d{17}$"), "index file"),
    (re.compile(r"^pyrmq/new-.*"), "new file"),
    (re.compile(r"^pyrmq/removed/\d+$"), "removed bytes"),
    (re.compile(r"^pyrmq/staging/[^/]+/.*"), "staged file"),
    (re.compile(r"^pyrmq/staging/[^/]+$"), "staging directory"),
    (re.compile(r"\.\d+-\d+\.tmp$"), ".tmp"),
)


def kind_of(path: str, root: Path) -> str:
    """What sort of file a path below `root` names; words and slots are passed through."""
    if not path.startswith("/"):
        return path
    name = os.path.relpath(path, root)
    for pattern, kind in _KINDS:
        name = pattern.sub(kind, name)
    return name


class Points:
    """Counts what a process comes by, and kills it at one occurrence of one point."""

    def __init__(self, root: Path, target: str = "", occurrence: int = 0) -> None:
        self._root = root
        self._target = target
        self._left = occurrence + 1
        self.stage = ""
        self.counts: Counter[str] = Counter()

    def aim(self, target: str, occurrence: int = 0) -> None:
        """Let the process die at this point from now on."""
        self._target, self._left = target, occurrence + 1

    def __call__(self, operation: str, path: str) -> None:
        self._come_by(f"{self.stage}: {operation} {kind_of(path, self._root)}")
        if operation == "write":
            half = f"{self.stage}: {HALF} of {kind_of(path, self._root)}"
            self.counts[half] += 1
            if half == self._target:
                self._left -= 1
                if not self._left:
                    os.pwrite = _write_half  # this process makes one more write only

    def _come_by(self, point: str) -> None:
        self.counts[point] += 1
        if point == self._target:
            self._left -= 1
            if not self._left:
                die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_pwrite = os.pwrite


def _write_half(fd: int, data: Any, offset: int) -> int:
    _pwrite(fd, memoryview(data)[: memoryview(data).nbytes // 2], offset)
    die()
    raise AssertionError


class _Words(np.ndarray):
    """The words of the state page: every store is an operation. Slices know which words they are."""

    _origin: int | None = None

    def __array_finalize__(self, other: Any) -> None:
        self._origin = getattr(other, "_origin", None) or _address(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        from rmq_store.files import durable
        from rmq_store.files.locks import state_page

        assert self._origin is not None
        number = key.indices(len(self))[0] if isinstance(key, slice) else key
        durable.before("store", state_page.WORDS[number + (_address(self) - self._origin) // self.itemsize])
        super().__setitem__(key, value)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class _Slots(np.ndarray):
    """The slots of an index file."""

    def __setitem__(self, key: Any, value: Any) -> None:
        from rmq_store.files import durable

        durable.before("store", "index slot")
        super().__setitem__(key, value)


@contextlib.contextmanager
def memory_counts() -> Iterator[None]:
    """Stores into mapped files are operations, too: words of the state page, slots and headers of the index."""
    from rmq_store.files import durable
    from rmq_store.files.locks.state_page import StatePage
    from rmq_store.log.views.index_file import IndexFile

    open_page, open_index, write_header = StatePage.__init__, IndexFile.__init__, IndexFile.write_header

    def counted_page(page: StatePage, *arguments: Any, **options: Any) -> None:
        open_page(page, *arguments, **options)
        page._words = page._words.view(_Words)

    def counted_index(file: IndexFile, *arguments: Any, **options: Any) -> None:
        open_index(file, *arguments, **options)
        file.slots = file.slots.view(_Slots)

    def counted_header(file: IndexFile, data: bytes) -> None:
        durable.before("store", "index header")
        write_header(file, data)

    with (
        mock.patch.object(StatePage, "__init__", counted_page),
        mock.patch.object(IndexFile, "__init__", counted_index),
        mock.patch.object(IndexFile, "write_header", counted_header),
    ):
        yield


@contextlib.contextmanager
def watched(operation: Callable[[str, str], None]) -> Iterator[None]:
    """Call `operation` before everything that a process does to its files. The extension's steps for a lone message are
    named "lone write", "lone half" and "lone store".
    """
    from rmq_store.files import durable
    from rmq_store.log.append import lone_append

    durable.hook = operation
    lone_append.watch = lambda step, target, *place: operation(f"lone {step}", target)
    try:
        with memory_counts():
            yield
    finally:
        durable.hook = lone_append.watch = None


class Saved:
    """All that is below a directory, to be brought back in place: device and inode of each file that is still there
    stay what they were.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        self._directories = {path for path in root.rglob("*") if path.is_dir()}

    def restore(self) -> None:
        for path in sorted(self._root.rglob("*"), reverse=True):
            if path.is_dir():
                if path not in self._directories:
                    path.rmdir()
            elif path not in self._files:
                path.unlink()
        for path in sorted(self._directories):
            path.mkdir(exist_ok=True)
        for path, data in self._files.items():
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(data)
                file.truncate()
