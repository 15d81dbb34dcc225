"""What is wrong with single files of a store that nobody has open, and how each is put right (`rmq repair`).

Nothing is deleted: what has to go is moved, what is changed is copied, to a directory that keeps the relative path.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rmq_store.broker.config import StoreFile
from rmq_store.broker.deleted_topics import deleted_topics
from rmq_store.broker.groups import GroupTable
from rmq_store.broker.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.topics import TopicTable
from rmq_store.errors import CorruptionError, NotAStoreError, StoreFailedError, UsageError
from rmq_store.files import durable
from rmq_store.files.progress import Progress
from rmq_store.files.segments import NAME_DIGITS
from rmq_store.files.state_page import StatePage
from rmq_store.format.checkpoint import Checkpoint
from rmq_store.format.config_json import SIZE_MAX, ConfigJsonError, loads
from rmq_store.format.names import validate_topic
from rmq_store.log.kept import Kept
from rmq_store.log.recovery import LMQ_PREFIX, free_name
from rmq_store.verify import Problem

Area = Literal["config", "own files", "log", "queues", "index"]

_STEP_BYTES = 1 << 20
_PAGE_BYTES = 4096
_PLACES_NAMED = 3

# Those that a process must understand before it reads or writes a message.
_TABLES: dict[str, type[TopicTable | GroupTable | OffsetTable | DelayOffsetTable]] = {
    "topics.json": TopicTable,
    "subscriptionGroup.json": GroupTable,
    "consumerOffset.json": OffsetTable,
    "delayOffset.json": DelayOffsetTable,
}


class Finding(NamedTuple):
    """Something that is wrong: `path` relative to the store, and what `repair` does about it."""

    area: Area
    path: str
    problem: str
    action: str
    apply: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Trash:
    """Where everything goes that is taken out of the store at `root`."""

    root: Path
    target: Path

    def copy(self, path: Path) -> None:
        """Keep a copy of a file, durably; with zeros where it cannot be read."""
        place = self._place(path)
        fd = durable.open_nofollow(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with path.open("rb") as source:
                for position in range(0, os.fstat(source.fileno()).st_size, _STEP_BYTES):
                    durable.write_fully(fd, _read(source.fileno(), _STEP_BYTES, position), position, place)
            durable.fsync_file(fd, place)
        finally:
            os.close(fd)
        durable.fsync_directory(place.parent)

    def copy_all(self, directory: Path) -> None:
        """Keep a copy of every file below a directory."""
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self.copy(path)

    def move(self, path: Path) -> None:
        """Take a file or directory out of the store. UsageError: it holds what only a rename can keep, and the target
        is on another file system.
        """
        place = self._place(path)
        durable.before("rename", path)
        if path.lstat().st_dev == self.target.stat().st_dev:
            path.rename(place)
        else:
            files = [path, *sorted(path.rglob("*"))]
            for file in files:
                if not stat.S_ISREG(mode := file.lstat().st_mode) and not stat.S_ISDIR(mode):
                    raise UsageError(f"{file}: no regular file: --removed must be on the file system of the store")
            for file in files:
                if file.is_file():
                    self.copy(file)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        durable.fsync_directory(place.parent)
        durable.fsync_directory(path.parent)

    def _place(self, path: Path) -> Path:
        place = self.target / path.relative_to(self.root)
        missing = [parent for parent in place.parents if not parent.is_dir()]
        for parent in reversed(missing):
            durable.make_directory(parent)
        return free_name(place)


def _read(fd: int, size_bytes: int, position: int) -> bytes:
    """Bytes of a file; zeros for each page that the disk does not give back."""
    try:
        return os.pread(fd, size_bytes, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    if size_bytes <= _PAGE_BYTES:
        return bytes(size_bytes)
    end = position + size_bytes
    return b"".join(_read(fd, min(_PAGE_BYTES, end - page), page) for page in range(position, end, _PAGE_BYTES))


def find_unreadable(root: Path, trash: Trash, unreadable: Iterable[Problem]) -> Iterator[Finding]:
    """What is to be done about segments and queue files that the disk does not give back as a whole; the index is
    built again anyway.
    """
    by_path: dict[str, list[Problem]] = {}
    for bad in unreadable:
        by_path.setdefault(bad.path, []).append(bad)
    for name, places in by_path.items():
        text = "cannot be read: bytes " + ", ".join(f"{bad.offset} to {bad.end}" for bad in places[:_PLACES_NAMED])
        text += f" and {len(places) - _PLACES_NAMED} more ranges" if len(places) > _PLACES_NAMED else ""
        path = root / name
        if name.startswith("commitlog/"):
            yield Finding(
                "log", name, text, "a copy takes its place, with zeros there: whole records in it are kept",
                lambda path=path: _resize(path, path.stat().st_size, trash),  # type: ignore[misc]
            )  # fmt: skip
        elif name.startswith("consumequeue/"):
            yield Finding(
                "queues", name, text, "it is moved away, and the queues are built again from the log",
                lambda path=path: trash.move(path),  # type: ignore[misc]
            )  # fmt: skip


def find(root: Path, trash: Trash) -> Iterator[Finding]:
    """Look at every file but the contents of log, queues and index."""
    yield from _config(root, trash)
    yield from _own_files(root, trash)
    yield from _segments(root, trash)
    yield from _queues(root, trash)


def _config(root: Path, trash: Trash) -> Iterator[Finding]:
    directory = root / "config"
    if not directory.is_dir():
        return
    names = sorted({path.name.removesuffix(".bak") for path in directory.iterdir() if path.is_file()})
    for path in (directory / name for name in names if name.endswith(".json")):
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
        elif bad and path.exists():
            what = "it is moved away, and so is its backup, which is no better: the table starts anew"

            def anew(path: Path = path, backup: Path = backup) -> None:
                for file in (path, backup):
                    if file.exists():
                        trash.move(file)

            yield Finding("config", relative, bad, what, anew)
        elif bad_backup and backup.exists():
            yield Finding(
                "config", f"{relative}.bak", bad_backup, "it is moved away; the table itself is whole",
                lambda backup=backup: trash.move(backup),  # type: ignore[misc]
            )  # fmt: skip


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


def _own_files(root: Path, trash: Trash) -> Iterator[Finding]:
    checks: dict[str, tuple[Callable[[], object], str]] = {
        "pyrmq/store.json": (lambda: StoreFile.load(root),
                             "it is moved away: sizes are read off the files, the identity is a new one, and all other "
                             "settings (flushDiskType!) are the defaults: give them again"),
        "pyrmq/kept.json": (lambda: Kept.load(root / "pyrmq"), "it is moved away, and the whole log is judged again"),
        "pyrmq/progress": (lambda: _check_progress(root), "it is moved away, and the whole log is scanned"),
        "pyrmq/state": (lambda: _check_page(root), "it is moved away; the progress record says what was on disk"),
        "pyrmq/units.json": (lambda: loads(durable.read_limited(root / "pyrmq/units.json", SIZE_MAX)),
                             "it is moved away: a cache, made anew from the log"),
        "pyrmq/deleted_topics.json": (lambda: deleted_topics(root), "it is moved away: should config/topics.json be "
                                      "lost, topics that were deleted are found, too"),
        "checkpoint": (lambda: Checkpoint.unpack(durable.read_limited(root / "checkpoint", _STEP_BYTES), "checkpoint"),
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


def _check_progress(root: Path) -> None:
    path = root / "pyrmq" / "progress"
    durable.read_limited(path, _STEP_BYTES)
    if Progress(path).load() is None:
        raise CorruptionError(str(path), 0, "the record does not have its checksum")


def _check_page(root: Path) -> None:
    path = root / "pyrmq" / "state"
    durable.read_limited(path, _STEP_BYTES)  # before it is mapped: a page that cannot be read would kill us
    page = StatePage(path, writable=False)
    words = page.flushed_end, page.appended_end, page.last_record + 1
    if page.belongs_here() and (min(words) < 0 or page.flushed_end > page.appended_end):
        raise CorruptionError(str(path), 0, "its ends contradict each other")


def _segments(root: Path, trash: Trash) -> Iterator[Finding]:
    directory = root / "commitlog"
    sizes: Counter[int] = Counter()
    segments = []
    for path in sorted(directory.iterdir()):
        if _is_segment_name(path.name) and path.is_file() and not path.is_symlink():
            sizes[path.stat().st_size] += 1
            segments.append(path)
        else:
            action = "it is moved away: a broker refuses to load a log with it"
            yield Finding(
                "log", f"commitlog/{path.name}", "no segment", action,
                lambda path=path: trash.move(path),  # type: ignore[misc]
            )  # fmt: skip
    expected = _segment_bytes(root, sizes)
    in_place = [path for path in segments if expected and int(path.name) % expected == 0]
    for path in segments:
        size = path.stat().st_size
        if in_place and path not in in_place:
            yield Finding(
                "log", f"commitlog/{path.name}", f"no segment begins there: they have {expected} bytes each",
                "it is moved away: the log cannot be read across it",
                lambda path=path: trash.move(path),  # type: ignore[misc]
            )  # fmt: skip
        elif expected and size != expected:
            yield Finding(
                "log", f"commitlog/{path.name}", f"it has {size} bytes, not {expected}",
                f"a copy of {expected} bytes takes its place, filled with zeros: whole records in it are kept",
                lambda path=path: _resize(path, expected, trash),  # type: ignore[misc]
            )  # fmt: skip


def _is_segment_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _segment_bytes(root: Path, sizes: Counter[int]) -> int:
    try:
        known = StoreFile.load(root)
    except (CorruptionError, NotAStoreError):
        known = None
    if known is not None:
        return known.config.mapped_file_size_commit_log
    return sizes.most_common(1)[0][0] if sizes else 0


def _resize(path: Path, size: int, trash: Trash) -> None:
    new = trash.root / "pyrmq" / f"new-{os.getpid()}-resized"
    fd = durable.open_nofollow(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, size)
        with path.open("rb") as source:
            for position in range(0, min(size, path.stat().st_size), _STEP_BYTES):
                piece = _read(source.fileno(), min(_STEP_BYTES, size - position), position)
                durable.write_fully(fd, piece, position, new)
        durable.fsync_file(fd, new)
    finally:
        os.close(fd)
    trash.copy(path)  # not moved: a repair that is killed here must not leave a log without this segment
    durable.before("rename", path)
    new.rename(path)
    durable.fsync_directory(path.parent)


def _queues(root: Path, trash: Trash) -> Iterator[Finding]:
    """Names and sizes; what the entries say is the verifier's business."""
    directory = root / "consumequeue"
    if not directory.is_dir():
        return
    expected = _queue_file_bytes(root)
    for path in _hostile(directory, expected):
        yield Finding(
            "queues", str(path.relative_to(root)), "no file of a queue, or one of a wrong size",
            "it is moved away, and the queues are built again from the log",
            lambda path=path: trash.move(path),  # type: ignore[misc]
        )  # fmt: skip


def _hostile(directory: Path, expected: int | None) -> Iterator[Path]:
    for topic in sorted(directory.iterdir()):
        if topic.is_symlink() or not topic.is_dir() or not _is_topic(topic.name):
            yield topic
            continue
        for queue in sorted(topic.iterdir()):
            is_queue = queue.name.isascii() and queue.name.isdigit() and not queue.is_symlink() and queue.is_dir()
            if not is_queue:
                yield queue
                continue
            for file in sorted(queue.iterdir()):
                good = _is_segment_name(file.name) and file.is_file() and not file.is_symlink()
                if not good or (expected and file.stat().st_size != expected):
                    yield file


def _is_topic(name: str) -> bool:
    try:
        validate_topic(name.removeprefix(LMQ_PREFIX))
    except UsageError:
        return False
    return True


def _queue_file_bytes(root: Path) -> int | None:
    try:
        known = StoreFile.load(root)
    except (CorruptionError, NotAStoreError):
        known = None
    if known is not None:
        return known.config.mapped_file_size_consume_queue
    sizes = Counter(path.stat().st_size for path in (root / "consumequeue").glob("*/*/*") if path.is_file())
    return sizes.most_common(1)[0][0] if sizes else None
