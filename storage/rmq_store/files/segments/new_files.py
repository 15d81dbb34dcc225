"""Makes files at full size before they get their names. A long append has its next files made ahead.

    <root>/pyrmq/new-<pid>-<n>      being made, or ready: rename(2) gives it its name

A thread makes files ahead for a writer that fills one file after another. On a disk that is busy with earlier writes,
making one file can take a tenth of a second. Source: AllocateMappedFileService.java, which makes the next two of a
broker's log.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from pathlib import Path

from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.files.locks.background import Background

AHEAD = 2

_numbers = itertools.count()


class NewFiles:
    """Files for one directory, `size_bytes` each, filled with zeros; thread-safe.

    `sparse` leaves holes in them; otherwise their blocks are allocated (posix_fallocate). The next first opener removes
    unused files of a killed process.
    """

    def __init__(self, directory: Path, size_bytes: int, *, sparse: bool) -> None:
        self._directory = directory
        self._size_bytes = size_bytes
        self._sparse = sparse
        self._ready: deque[Path] = deque()
        self._maker: Background | None = None

    def take(self, path: Path) -> Path:
        """A file for the caller alone, which renames it to `path`. The content is durable on return, the name is not.

        Raises:
            StoreFullError, StoreFailedError, UsageError: as `durable.translate`; no file is left.
        """
        with contextlib.suppress(IndexError):
            return self._ready.popleft()
        return self._made(1, path)[0]

    def make_ahead(self) -> None:
        """Let the thread make files until AHEAD of them are ready. If no thread can be started, or the disk is full,
        nothing is raised here: `take` meets the same obstacle, and raises.
        """
        if len(self._ready) < AHEAD and (self._maker is None or not self._maker.is_alive()):
            maker = Background(self._make_ahead, "rmq-files")
            with contextlib.suppress(RuntimeError):
                self._maker = maker  # first: `close` has to know of it
                maker.start()

    def close(self) -> None:
        """Wait for the thread, and remove unused files; can be repeated. OSError as unlink(2)."""
        if self._maker is not None:
            self._maker.join()
        while self._ready:
            left = self._ready.popleft()
            durable.before("unlink", left)
            left.unlink(missing_ok=True)

    def _make_ahead(self) -> None:
        with contextlib.suppress(StoreError, OSError, MemoryError):
            self._ready.extend(self._made(AHEAD - len(self._ready), self._directory))

    def _made(self, count: int, path: Path) -> list[Path]:
        """So many at once: the first fsync makes the sizes of all of them durable, on file systems with a journal.

        Not in the directory of the names that they will get: Java's load fails on foreign names there.
        """
        made: dict[Path, int] = {}
        try:
            for _ in range(count):
                new = self._root() / f"new-{os.getpid()}-{next(_numbers)}"
                made[new] = fd = durable.open_nofollow(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                durable.before("allocate", path)
                if self._sparse:
                    os.ftruncate(fd, self._size_bytes)
                else:
                    os.posix_fallocate(fd, 0, self._size_bytes)
            # Before they get their names: a power cut must not leave a short file, which Java refuses to load.
            for fd in made.values():
                durable.fsync_file(fd, path)
        except BaseException as error:
            for new in made:
                new.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise durable.translate(error, path) from error
            raise
        finally:
            for fd in made.values():
                os.close(fd)
        return list(made)

    def _root(self) -> Path:
        """`<root>/pyrmq`, on the same file system as everything else of the store."""
        directory = self._directory
        while not (directory / "pyrmq").is_dir():
            directory = directory.parent
        return directory / "pyrmq"
