"""Finds the kinds of a store by the names in its directory. It opens no file except one table.

It lists a few directories, once for each opening. It does not list the directories of topics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from rmq_store.errors import StoreKindError
from rmq_store.kinds import table
from rmq_store.kinds.entries import Entry, entries, is_index_file, is_segment
from rmq_store.kinds.table import Effect, Kind
from rmq_store.kinds.topics import BATCH_DIRECTORY, COMPACTION_DIRECTORY, MAPPING, static_topics

_ROCKSDB_FILE = re.compile(
    r"CURRENT|IDENTITY|LOCK|LOG|LOG\.old\.\d+|MANIFEST-\d+|OPTIONS-\d+(\.dbtmp)?|\d+\.(sst|log|dbtmp|blob)"
)
_ROCKSDB_TABLES = tuple(
    f"config/{name}" for name in ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")
)
_CONTROLLER_FILES = ("epochFileCheckpoint", "brokerIdentity")
_SEPARATE = "consumequeue_rocksdb"
_EXTENSION = "consumequeue_ext"
_DIRECTORIES = {
    BATCH_DIRECTORY: table.BATCH_QUEUES,
    COMPACTION_DIRECTORY: table.COMPACTION,
    "kvStore": table.POP_STATE,
    _EXTENSION: table.QUEUE_EXTENSION,
}
_FILES = {"config/tieredStoreMetadata.json": table.TIERED}
_WITHOUT_LOG = ("pyrmq/store.json", "consumequeue", _SEPARATE, "config/topics.json", *_ROCKSDB_TABLES)
# Directories of a store, one of which may be named for it; the usual name of a store (storePathRootDir); and how many
# entries of a directory are looked at for a store.
_PARTS = ("commitlog", "consumequeue", "config", "index", "pyrmq")
_USUAL_NAME = "store"
_CHILDREN_MAX = 1000
# Entries that a file system makes where it is mounted.
_LOST_AND_FOUND = "lost+found"


@dataclass(frozen=True, slots=True)
class Seen:
    """A kind, and the path below the store's directory that shows it."""

    kind: Kind
    path: str

    @property
    def text(self) -> str:
        """A sign that was seen, and its meaning."""
        return f"{self.path}: {self.kind.what}. {self.kind.advice}"


def find_kinds(root: Path) -> list[Seen]:
    """The kinds of the store at `root`, each one once, the most restrictive first; [] if it is a common one. Errors as
    listdir(3).
    """
    found: dict[Kind, Seen] = {}
    for seen in _signs(root):
        found.setdefault(seen.kind, seen)
    order = list(Effect)
    return sorted(found.values(), key=lambda seen: order.index(seen.kind.effect))


def refuse_to_write(root: Path) -> None:
    """Raise StoreKindError if the store at `root` is of a kind that a writer would break. Nothing was changed."""
    _refuse(root, find_kinds(root), (Effect.NOT_OPENED, Effect.NOT_WRITTEN))


def is_only_read(root: Path) -> bool:
    """Whether `refuse_to_write` raises an error."""
    return any(seen.kind.effect in (Effect.NOT_OPENED, Effect.NOT_WRITTEN) for seen in find_kinds(root))


def refuse_to_repair(root: Path) -> None:
    """As `refuse_to_write`, but foreign files of log, queues and index are allowed: a repair reports them, and moves
    them away. A foreign directory is refused, because it may be the only trace of another kind.
    """
    seen = [one for one in _signs(root) if not (one.kind is table.FOREIGN and _is_moved_by_repair(root, one.path))]
    _refuse(root, seen, (Effect.NOT_OPENED, Effect.NOT_WRITTEN))


def _is_moved_by_repair(root: Path, path: str) -> bool:
    return path.startswith(("commitlog/", "consumequeue/", "index/")) and not (root / path).is_dir()


def refuse_to_read(root: Path) -> None:
    """Raise StoreKindError if the store at `root` is of a kind that cannot be read."""
    _refuse(root, [*_dledger(root), *_queues(root, entries(root / "consumequeue"))], (Effect.NOT_OPENED,))


def refuse_to_check(root: Path) -> None:
    """Raise StoreKindError if there is no log that can be checked."""
    missing = missing_log(root)
    _refuse(root, [*_dledger(root), *([missing] if missing else [])], (Effect.NOT_OPENED,))


def _refuse(root: Path, seen: Iterable[Seen], effects: tuple[Effect, ...]) -> None:
    for one in seen:
        if one.kind.effect in effects:
            raise StoreKindError(str(root), one.text, one.kind.name)


def queues_are_in(root: Path) -> Literal["files", "RocksDB", "both"]:
    """The directory in which the broker of the store at `root` keeps its queues. For "both", the queues in files are
    complete, unless the broker was configured to omit some.
    """
    kinds = [seen.kind for seen in _queues(root, entries(root / "consumequeue"))]
    return "RocksDB" if table.ROCKSDB_QUEUES in kinds else "both" if kinds else "files"


def tables_are_in_rocksdb(root: Path) -> Seen | None:
    """The sign that the broker keeps topics, groups and offsets in RocksDB; None without one."""
    return next((Seen(table.ROCKSDB_TABLES, path) for path in _ROCKSDB_TABLES if (root / path).is_dir()), None)


def missing_log(root: Path) -> Seen | None:
    """The remains of a store without a log; None if there is a log, or nothing of a store."""
    if (root / "commitlog").exists() or any(_dledger(root)):
        return None
    for name in _WITHOUT_LOG:
        if (root / name).exists():
            return Seen(table.LOG_ELSEWHERE, f"commitlog/ is missing, though {name} of a store is there")
    return None


def store_nearby(root: Path) -> str:
    """The end of an error about a directory without a store: "; did you mean ROOT/store?" if a child of it is a store,
    or if it is itself a part of one. "" if there is none, or it cannot be looked up.
    """
    places = [root.parent] if root.name in _PARTS else []
    try:
        with os.scandir(root) as children:
            names = sorted(child.name for child in islice(children, _CHILDREN_MAX))
        places += [root / name for name in sorted(names, key=lambda name: name != _USUAL_NAME)]
        meant = next((place for place in places if (place / "commitlog").is_dir()), None)
    except OSError:
        return ""
    return "" if meant is None else f"; did you mean {meant}?"


def _signs(root: Path) -> Iterator[Seen]:
    queues = entries(root / "consumequeue")
    yield from _dledger(root)
    if (missing := missing_log(root)) is not None:
        yield missing
    yield from _queues(root, queues)
    if (tables := tables_are_in_rocksdb(root)) is not None:
        yield tables
    yield from (Seen(table.CONTROLLER, name) for name in _CONTROLLER_FILES if os.path.lexists(root / name))
    yield from _foreign(root, queues)
    if static_topics(root):
        yield Seen(table.STATIC_TOPICS, MAPPING)
    yield from (Seen(kind, path) for path, kind in _DIRECTORIES.items() if entries(root / path))
    yield from (Seen(kind, path) for path, kind in _FILES.items() if (root / path).is_file())


def _dledger(root: Path) -> Iterator[Seen]:
    for below in ("", "commitlog/"):
        for name, is_directory in entries(root / below):
            if is_directory and name.startswith("dledger-"):
                yield Seen(table.DLEDGER, f"{below}{name}")


def _queues(root: Path, found: list[Entry]) -> Iterator[Seen]:
    """Whether queues are in RocksDB; `found` is what consumequeue/ holds."""
    files = sorted((name for name, is_directory in found if not is_directory and is_rocksdb_file(name)),
                   key=lambda name: (name != "CURRENT", name))  # fmt: skip
    if files or (root / _SEPARATE).is_dir():
        has_files = any(is_directory and name != _LOST_AND_FOUND for name, is_directory in found)
        kind = table.DOUBLE_WRITE if has_files else table.ROCKSDB_QUEUES
        yield Seen(kind, f"consumequeue/{files[0]}" if files else _SEPARATE)


def _foreign(root: Path, queues: list[Entry]) -> Iterator[Seen]:
    for name, is_directory in entries(root / "commitlog"):
        # Brokers pass over directories there, and so do we (MappedFileQueue#doLoad).
        if not is_directory and not is_segment(name):
            yield Seen(table.FOREIGN, f"commitlog/{name}")
    for name, is_directory in queues:
        if not is_directory and not is_rocksdb_file(name):
            yield Seen(table.FOREIGN, f"consumequeue/{name}")
    for name, is_directory in entries(root / _EXTENSION):
        if not is_directory:
            yield Seen(table.FOREIGN, f"{_EXTENSION}/{name}")
    for name, _ in entries(root / "index"):
        if not is_index_file(name) and name != _LOST_AND_FOUND:
            yield Seen(table.FOREIGN, f"index/{name}")
    for name, is_directory in entries(root):
        if is_directory and name.startswith("consumequeue_") and name not in (_EXTENSION, _SEPARATE):
            yield Seen(table.FOREIGN, name)


def is_rocksdb_file(name: str) -> bool:
    """Whether RocksDB makes files of this name in its directory."""
    return _ROCKSDB_FILE.fullmatch(name) is not None
