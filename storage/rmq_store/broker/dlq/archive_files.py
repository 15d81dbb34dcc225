"""The files of a dead-letter archive: plain Parquet, and names that say which dead letters are archived.

    <directory>/_archive.json                            {"format": 1, "store": "<its identity>", "archive": "<uuid>"}
    <directory>/<group>/<queue>-<start>-<end>.parquet    dead letters [start, end) of that queue of %DLQ%<group>
    <directory>/.lock                                    held by the process that archives

Offsets have 20 digits. A name appears when the file is complete and on disk, so the names alone are the state of the
archive. A killed run leaves only a temporary file, which the next run removes. Spark, pandas and pyarrow skip names
that begin with a dot or an underscore when they read the directory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rmq_store.errors import CorruptConfigError, CorruptionError, UsageError, development_version
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.locked_call import call_locked
from rmq_store.format.text import names

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FORMAT = 1
_DESCRIPTION = "_archive.json"
_DESCRIPTION_BYTES_MAX = 1 << 16
_NAME = re.compile(r"([0-9]{1,10})-([0-9]{20})-([0-9]{20})\.parquet", re.ASCII)
_TEMPORARY = re.compile(rf"\.{_NAME.pattern}\.tmp", re.ASCII)
_LOCK_TIMEOUT_MS = 60_000

# Limit in memory for the rows of one row group; ours are far smaller.
_ROW_GROUP_BYTES_MAX = 1 << 30

# A Parquet writer writes dozens of small pieces.
_BUFFER_BYTES = 1 << 20

STORE_KEY = b"rmq.store"
"""Metadata of each file: the identity of the store that the dead letters come from."""


class ArchiveFile(NamedTuple):
    """One file: dead letters [start, end) of a queue of %DLQ%group."""

    group: str
    queue_id: int
    start: int
    end: int
    path: Path


class ArchiveFiles:
    """The files in one directory, which the first write makes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_alone(self, identity: str, root: Path, work: Callable[[], None]) -> None:
        """Call `work` under a lock, as the only writer of the dead letters of the store at `root`.

        Raises:
            UsageError: the directory cannot be made, lies in the store, or holds the dead letters of another store.
            StoreLockedError: another process archives.
        """
        durable.refuse_inside(self.directory, root)
        if not self.directory.parent.is_dir():
            raise UsageError(f"{self.directory}: {self.directory.parent} is no directory")
        durable.make_directory(self.directory)

        def work_alone() -> None:
            if (known := self.identity()) is None:
                content = {"format": FORMAT, "store": identity, "archive": str(uuid.uuid4())}
                durable.write_atomically(self.directory / _DESCRIPTION, json.dumps(content).encode())
            elif known != identity:
                raise UsageError(
                    f"{self.directory} holds the dead letters of another store ({known or 'one without identity'})"
                )
            self._remove_leftovers()
            work()

        call_locked(OfdLock(self.directory / ".lock"), _LOCK_TIMEOUT_MS, work_alone)

    def _remove_leftovers(self) -> None:
        """Unlink unfinished files of killed runs, by the names that `write` gives. Other files are not ours."""
        for group in self.groups():
            for path in (self.directory / group).iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    with durable.typed(path):
                        path.unlink()

    def identity(self) -> str | None:
        """Identity of the store that the dead letters come from, "" if it has none; None if nothing was archived yet.
        CorruptConfigError.
        """
        described = self._description()
        return described[0] if described else None

    def origin(self, file: ArchiveFile) -> str:
        """As `identity`, but the text always differs for dead letters of another store. A file that was moved out of
        its archive holds the identity of its store.

        Raises:
            UsageError: there is no _archive.json, and the file does not name the store either, because the store has no
                identity.
            CorruptionError: the file cannot be read.
        """
        described = self._description() or (_store_of(file), "")
        if not any(described):
            raise UsageError(
                f"{file.path} does not say of which store it is: copy the {_DESCRIPTION} of the archive that it was in "
                f"to {self.directory}"
            )
        return described[0] or described[1]

    def _description(self) -> tuple[str, str] | None:
        path = self.directory / _DESCRIPTION
        try:
            content = json.loads(durable.read_limited(path, _DESCRIPTION_BYTES_MAX))
            version = content["format"]
            if version == FORMAT and "archive" not in content:
                raise development_version(
                    path, "a description without `archive`", 'add "archive" and a new UUID to this file'
                )
            found = content["store"], content.get("archive", "")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptConfigError(str(path), 0, f"not the description of an archive: {error}") from error
        if version != FORMAT or not all(isinstance(text, str) for text in found):
            raise UsageError(f"{path}: an archive of another version ({version!r})")
        return found

    def groups(self) -> list[str]:
        """The groups that have a directory, sorted."""
        try:
            found = [path.name for path in self.directory.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if is_group(name))

    def of(self, group: str) -> list[ArchiveFile]:
        """The files of one group by queue and offset; [] if there are none.

        Raises:
            UsageError: two of them hold the same dead letters.
        """
        check_group(group)
        try:
            paths = list((self.directory / group).iterdir())
        except FileNotFoundError:
            return []
        found = sorted(
            ArchiveFile(group, int(match[1]), int(match[2]), int(match[3]), path)
            for path in paths
            if (match := _NAME.fullmatch(path.name))
        )
        for one, other in pairwise(found):
            if one.queue_id == other.queue_id and one.end > other.start:
                raise UsageError(f"{one.path} and {other.path.name} hold the same dead letters: take one of them away")
        for file in found:
            if file.start >= file.end:
                raise UsageError(f"{file.path}: the name says that it is empty")
        return found

    def write(
        self, group: str, queue_id: int, start: int, end: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Add the file of [start, end), durably; returns its size. StoreFullError, StoreFailedError."""
        import pyarrow.parquet as pq  # 50 ms, and needed by nobody else

        directory = self.directory / group
        durable.make_directory(directory)
        path = directory / f"{queue_id}-{start:020d}-{end:020d}.parquet"
        temporary = directory / f".{path.name}.tmp"
        try:
            try:
                with _Sink(temporary) as sink, io.BufferedWriter(sink, _BUFFER_BYTES) as buffered:
                    with pq.ParquetWriter(buffered, schema, compression="zstd", write_page_checksum=True) as writer:
                        for batch in batches:
                            writer.write_batch(batch)
                    buffered.flush()
                    durable.fsync_file(sink.fileno(), temporary)
                    size = sink.tell()
                durable.before("rename", path)
                temporary.rename(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            durable.fsync_directory(directory)
        except OSError as error:
            raise durable.translate(error, path) from error
        return size


def read(file: ArchiveFile, schema: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one file, a row group at a time.

    Raises:
        CorruptionError: this engine did not write the file, or it is damaged.
    """
    with _opened(file) as parquet:
        for name in columns:
            if name not in parquet.schema_arrow.names or parquet.schema_arrow.field(name).type != (
                schema.field(name).type
            ):
                raise CorruptionError(str(file.path), 0, f"no column {name} as a dead-letter archive has it")
        # Pages have checksums. How many rows there are is only said twice: fewer in one place would leave some out.
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        if sum(group.num_rows for group in groups) != parquet.metadata.num_rows:
            raise CorruptionError(str(file.path), 0, "its row groups do not have as many rows as the file")
        for number, group in enumerate(groups):
            if group.total_byte_size > _ROW_GROUP_BYTES_MAX:
                raise CorruptionError(str(file.path), 0, f"row group {number} is too large to be one of ours")
            yield from parquet.read_row_group(number, columns=columns).to_batches()


def _store_of(file: ArchiveFile) -> str:
    """The identity of the store that the dead letters come from; "" if the file does not hold it. CorruptionError."""
    with _opened(file) as parquet:
        metadata: dict[bytes, bytes] = parquet.schema_arrow.metadata or {}
    return metadata.get(STORE_KEY, b"").decode(errors="replace")


@contextlib.contextmanager
def _opened(file: ArchiveFile) -> Iterator[pq.ParquetFile]:
    """The file for a `with` block. CorruptionError if Parquet cannot read it."""
    import pyarrow.parquet as pq

    try:
        fd = durable.open_nofollow(file.path, os.O_RDONLY)
        with os.fdopen(fd, "rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise CorruptionError(str(file.path), 0, f"not readable: {error}") from error


class _Sink(io.RawIOBase):
    """A new file; every write calls the hook of the file layer (`durable.before`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = durable.open_nofollow(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._position = 0

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        durable.write_fully(self._fd, view, self._position, self._path)
        self._position += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def check_group(name: str) -> None:
    """Refuse a name that cannot be the group of a dead-letter topic. Brokers of 4.9 accept names of 255 characters,
    those of 5.x 120, and a store may hold dead letters of both.

    Raises:
        UsageError: says what is wrong with the name.
    """
    if len(name) <= names.GROUP_LENGTH_MAX:
        names.validate_group(name)
    names.validate_topic(names.dlq_topic(name))


def is_group(name: str) -> bool:
    """True if `check_group` accepts the name."""
    try:
        check_group(name)
    except UsageError:
        return False
    return True
