"""Findings about single files of a store that nobody has open, and the repair of each (`rmq repair`).

It covers the tables, the files in `pyrmq/`, and the queue files by name and size. Segments: repair_segments.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rmq_store.broker.metadata.deleted_topics import DELETED_TOPICS_FILE, deleted_topics
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.offset_files import LMQ_OFFSETS, PLAIN_OFFSETS, OffsetFile
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.repair.repair_entries import find_odd_entries
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_segments import is_file_name
from rmq_store.broker.repair.repair_topics import (
    TOPICS_FILE,
    is_topic_name,
    make_deleted_topics_again,
    start_table_anew,
    topics_of_queues,
)
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.write.units import FORMAT_OF_DEVELOPMENT
from rmq_store.errors import (
    REPAIR_MOVES_IT_AWAY,
    CorruptionError,
    NotAStoreError,
    StoreFailedError,
    development_version,
)
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage
from rmq_store.files.progress import Progress
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.format.tables.config_json import SIZE_MAX, ConfigJsonError, loads
from rmq_store.format.text.names import is_index_file_name
from rmq_store.format.views.consume_queue import ENTRY_BYTES
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.recovery.rebuild import REBUILD_FILE, is_begun

_BYTES_MAX = 1 << 20

# Those that a process must understand before it reads or writes a message.
_TABLES: dict[str, Callable[[Path], TopicTable | GroupTable | OffsetFile | DelayOffsetTable]] = {
    "topics.json": TopicTable,
    "subscriptionGroup.json": GroupTable,
    PLAIN_OFFSETS: lambda root: OffsetFile(root, PLAIN_OFFSETS),
    LMQ_OFFSETS: lambda root: OffsetFile(root, LMQ_OFFSETS),
    "delayOffset.json": DelayOffsetTable,
}


def find_tables(root: Path, trash: Trash) -> Iterator[Finding]:
    """The JSON tables in `config/`, and their backups."""
    directory = root / "config"
    listed = list(directory.iterdir()) if directory.is_dir() else []
    names = {path.name.removesuffix(".bak") for path in listed if path.is_file()} | {Path(TOPICS_FILE).name}
    for path in (directory / name for name in sorted(names) if name.endswith(".json")):
        backup = path.with_name(f"{path.name}.bak")
        bad, bad_backup = _why_bad(path), _why_bad(backup)
        relative = f"config/{path.name}"
        if bad and not bad_backup:
            what = f"its content before the last change comes back from {backup.name}"

            def from_backup(path: Path = path, backup: Path = backup) -> None:
                if path.exists():
                    trash.move(path)
                durable.write_atomically(path, durable.read_limited(backup, SIZE_MAX))

            yield Finding("config", relative, bad, what, from_backup)
        elif bad and relative == TOPICS_FILE and (os.path.lexists(path) or os.path.lexists(backup)):
            what = "the table starts anew, with the topics that have queues; its backup is no better, and goes"
            yield Finding("config", relative, bad, what, lambda: start_table_anew(root, trash))
        elif bad and (path.exists() or backup.exists()):
            what = "it is moved away, and so is its backup, which is no better: the table starts anew"

            def anew(path: Path = path, backup: Path = backup) -> None:
                for file in (path, backup):
                    if file.exists():
                        trash.move(file)

            yield Finding("config", relative, bad, what, anew)
        elif bad and topics_of_queues(root):
            what = "the table starts anew, with the topics that have queues"
            yield Finding(
                "config", relative, "missing, and so is its backup", what, lambda: start_table_anew(root, trash)
            )
        elif bad_backup and backup.exists():
            yield Finding(
                "config", f"{relative}.bak", bad_backup, "it is moved away; the table itself is whole",
                lambda backup=backup: trash.move(backup),  # type: ignore[misc]
            )  # fmt: skip
        table = _TABLES.get(path.name)
        if not bad and table is not None and (odd := find_odd_entries(root, trash, path, table(root))):
            yield odd


def _why_bad(path: Path) -> str:
    """Why a table cannot be read; "" if it can."""
    try:
        table = loads(durable.read_limited(path, SIZE_MAX))
        known = _TABLES.get(path.name.removesuffix(".bak"))
        if known is not None:
            known(path.parent.parent).check(table)
    except FileNotFoundError:
        return "missing"
    except (CorruptionError, ConfigJsonError, NotAStoreError, StoreFailedError) as error:
        return f"no table: {error}"
    return ""


def find_own_files(root: Path, trash: Trash) -> Iterator[Finding]:
    """The repair of the files in `pyrmq/` except store.json, and of RocketMQ's checkpoint. NotAStoreError: a newer
    version wrote one of them.
    """
    checks: dict[str, tuple[Callable[[], object], str]] = {
        "pyrmq/kept.json": (
            lambda: AcceptedDamage.load(root / "pyrmq"), "it is moved away, and the whole log is judged again"
        ),
        "pyrmq/progress": (lambda: _check_progress(root), "it is moved away, and the whole log is scanned"),
        "pyrmq/state": (lambda: _check_page(root), "it is moved away; the progress record says what was on disk"),
        "pyrmq/units.json": (lambda: _check_units(root), "it is moved away: a cache, made anew from the log"),
        "pyrmq/queue_ends.json": (lambda: _check_queue_ends(root), "it is moved away: the next clean stop writes it"),
        "checkpoint": (lambda: Checkpoint.unpack(durable.read_limited(root / "checkpoint", _BYTES_MAX), "checkpoint"),
                       "it is moved away: the next clean stop writes it"),
    }  # fmt: skip
    for name, (check, action) in checks.items():
        try:
            check()
        except FileNotFoundError:
            continue
        except NotAStoreError as error:
            if "newer version" in str(error):
                raise
            yield Finding("own files", name, str(error), action, lambda name=name: trash.move(root / name))  # type: ignore[misc]
        except (CorruptionError, ConfigJsonError, StoreFailedError) as error:
            yield Finding("own files", name, str(error), action, lambda name=name: trash.move(root / name))  # type: ignore[misc]
    if is_begun(root):
        yield Finding(
            "own files", REBUILD_FILE, "the queues were to be built again, and that did not come to its end",
            "they are built again", lambda: None,
        )  # fmt: skip
    try:
        deleted_topics(root)
    except (CorruptionError, NotAStoreError, StoreFailedError) as error:
        yield Finding(
            "own files", DELETED_TOPICS_FILE, str(error),
            "it is made again: topics that have queues and are not in config/topics.json count as deleted",
            lambda: make_deleted_topics_again(root, trash),
        )  # fmt: skip


def _check_progress(root: Path) -> None:
    path = root / "pyrmq" / "progress"
    durable.read_limited(path, _BYTES_MAX)
    if Progress(path).load() is None:
        raise CorruptionError(str(path), 0, "the record does not have its checksum")


def _check_units(root: Path) -> None:
    path = root / "pyrmq" / "units.json"
    table = loads(durable.read_limited(path, SIZE_MAX))
    if table.get("format") == FORMAT_OF_DEVELOPMENT:
        raise development_version(path, f"format {FORMAT_OF_DEVELOPMENT}", REPAIR_MOVES_IT_AWAY)


def _check_queue_ends(root: Path) -> None:
    path = root / "pyrmq" / "queue_ends.json"
    durable.read_limited(path, SIZE_MAX)
    if QueueEnds.load(path.parent) is None:
        raise CorruptionError(str(path), 0, "no table of queue ends")


def _check_page(root: Path) -> None:
    path = root / "pyrmq" / "state"
    durable.read_limited(path, _BYTES_MAX)  # before it is mapped: a page that cannot be read would kill us
    page = StatePage(path, writable=False)
    words = page.flushed_end, page.appended_end, page.last_record + 1
    if page.belongs_here() and (min(words) < 0 or page.flushed_end > page.appended_end):
        raise CorruptionError(str(path), 0, "its ends contradict each other")


def find_queue_files(root: Path, trash: Trash, known_bytes: int | None) -> Iterator[Finding]:
    """Findings about names and sizes below `consumequeue/`; the verifier checks the entries. `known_bytes`: the size of
    a file, if the settings or the caller supply it.
    """
    directory = root / "consumequeue"
    if not directory.is_dir():
        return
    for path, is_foreign in _hostile(directory, known_bytes or _size_by_names(directory)):
        yield Finding(
            "names" if is_foreign else "queues", str(path.relative_to(root)),
            "no file of a queue, or one of a wrong size",
            "it is moved away" if is_foreign else "it is moved away, and the queues are built again from the log",
            lambda path=path: trash.move(path),  # type: ignore[misc]
        )  # fmt: skip


def find_foreign_index_files(root: Path, trash: Trash) -> Iterator[Finding]:
    """Findings about files in `index/` that are no index files."""
    directory = root / "index"
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not is_index_file_name(path.name) and (path.is_symlink() or not path.is_dir()):
            yield Finding(
                "names", f"index/{path.name}", "no index file", "it is moved away: nobody writes beside it",
                lambda path=path: trash.move(path),  # type: ignore[misc]
            )  # fmt: skip


def find_unreadable_queue_files(root: Path, trash: Trash, unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """The repair of queue files that the disk cannot read as a whole. `unreadable`: {path: which bytes}."""
    for name, text in unreadable.items():
        yield Finding(
            "queues", name, text, "it is moved away, and the queues are built again from the log",
            lambda path=root / name: trash.move(path),  # type: ignore[misc]
        )  # fmt: skip


def _hostile(directory: Path, expected: int) -> Iterator[tuple[Path, bool]]:
    """Entries that must go; and for each, whether no queue can have an entry of that name."""
    for topic in sorted(directory.iterdir()):
        if topic.is_symlink() or not topic.is_dir() or not is_topic_name(topic.name):
            yield topic, not is_topic_name(topic.name)
            continue
        for queue in sorted(topic.iterdir()):
            is_number = queue.name.isascii() and queue.name.isdigit()
            if not is_number or queue.is_symlink() or not queue.is_dir():
                yield queue, not is_number
                continue
            for file in sorted(queue.iterdir()):
                if not is_file_name(file.name):
                    yield file, True
                elif not file.is_file() or file.is_symlink() or file.stat().st_size != expected:
                    yield file, False


def _size_by_names(directory: Path) -> int:
    """The most frequent size of queue files among the sizes that fit all names; 0 if none does."""
    files = [path for path in directory.glob("*/*/*") if is_file_name(path.name) and path.is_file()]
    sizes, bases = Counter(path.stat().st_size for path in files), {int(path.name) for path in files}
    fitting = [size for size in sizes if size and not size % ENTRY_BYTES and not any(base % size for base in bases)]
    return max(fitting, key=lambda size: (sizes[size], size), default=0)
