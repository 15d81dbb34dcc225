"""The files of a store, and the report about a copy: shared by both kinds of backup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path, PurePath

from rmq_store.files import durable
from rmq_store.files.segments.copying import copy_start
from rmq_store.lazy.dataclasses import dataclass

Progress = Callable[[int, int, int], None]
"""(messages so far, bytes so far, bytes in all)"""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The copied parts: the log [start, end), its records (system topics of this engine included), and its bytes. For a
    broker's store, which is copied file by file, no records are counted. `identity`: the store's, "" if it has none.
    `left_out`: files and directories of credentials that were not copied, as paths below the store.
    """

    source: str
    target: str
    identity: str
    start: int
    end: int
    record_count: int
    copied_bytes: int
    left_out: tuple[str, ...] = ()


def copy_tree(source: Path, target: Path, wanted: Callable[[PurePath], bool]) -> None:
    """Copy the files of a directory that are `wanted` (a predicate that is also called for directories). A file that
    vanishes during the copy was a temporary one.

    Raises:
        NotAStoreError: a symbolic link: a store of unknown origin must not cause a copy of files outside of it.
    """
    try:
        entries = sorted(os.scandir(source), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir() and wanted(path):
            durable.refuse_links(path)
            durable.make_directory(target / entry.name)
            copy_tree(path, target / entry.name, wanted)
        elif not entry.is_dir() and wanted(path):
            with contextlib.suppress(FileNotFoundError):
                copy_file(path, target / entry.name)


def copy_file(source: Path, target: Path) -> None:
    """Copy one file. On return its content is durable, its name is not. FileNotFoundError; raises as `copy_start`."""
    fd = durable.open_nofollow(source, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        copy_start(fd, target, size, size)
    finally:
        os.close(fd)
