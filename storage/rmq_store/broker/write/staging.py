"""Staging: each sink task writes its encoded rows to a file of its own, and one commit appends all files
(`staged_files`; step S1 of docs/design.md section 7).

A task never opens the store. It reads `pyrmq/store.json` and `config/topics.json`, writes a file with a unique name,
and reports name, size and CRC. While it writes, it holds a shared lock on the file.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.store_log import with_delays
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.rules.input_rows import rows_from
from rmq_store.broker.write.encoder import MessageEncoder
from rmq_store.broker.write.staged_files import CONTENT_SUM_MASK, StagedFile, content_sum_of, staging_directory
from rmq_store.clock import store_clock
from rmq_store.errors import NotAStoreError
from rmq_store.files import durable
from rmq_store.files.locks.lock import lock_shared_quietly
from rmq_store.files.rooted import Root, root_of
from rmq_store.files.segments import blocks
from rmq_store.format.frames.crc import extend_crc
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.log.core.commit_log import Clock
from rmq_store.log.replica_role import refuse_writer

# A file that is longer gets blocks for what is written next, so many at a time; for less that is not worth it.
_RESERVE_FROM_BYTES = 4 << 20
_RESERVED_BYTES = 16 << 20


def planned_store(path: str | Path) -> tuple[Path, StoreConfig]:
    """The directory of a store that a task stages for, opened, and the store's settings. The file goes into this
    directory, even if the path is replaced later. NotAStoreError if no store of this engine is there.
    """
    directory = Path(path).absolute()
    reason = "the store that was planned is not on this host; run the tasks where it is"
    try:
        root = Root(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(str(directory), reason) from None
    except OSError as error:
        raise durable.translate(error, directory) from error
    root.watch()
    store = StoreFile.load(root.path)
    if store is None:
        raise NotAStoreError(str(root.path), reason)
    refuse_writer(root.path, store.replica)
    return root.path, store.config


class _CrcFile:
    """A file object for Arrow that counts size and CRC-32 of the written bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # For reading, too: a shared lock asks for that.
        fd = durable.open_nofollow(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        lock_shared_quietly(fd)
        self._file = os.fdopen(fd, "wb", buffering=0)
        self._reserved_bytes = _RESERVE_FROM_BYTES
        self.size_bytes = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        durable.before("write", self._path)
        if (needed_bytes := self.size_bytes + view.nbytes) > self._reserved_bytes:
            self._reserved_bytes = needed_bytes + _RESERVED_BYTES
            blocks.reserve(self._file.fileno(), self.size_bytes, self._reserved_bytes - self.size_bytes)
        while view.nbytes:
            written = self._file.write(view[: durable.WRITE_BYTES])
            self.crc32 = extend_crc(self.crc32, view[:written])
            self.size_bytes += written
            view = view[written:]
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Close the file, and free its unused blocks."""
        if self._reserved_bytes > _RESERVE_FROM_BYTES:
            os.ftruncate(self._file.fileno(), self.size_bytes)
        self._file.close()
        self.closed = True


class StagingFile:
    """One task's file of encoded frames. Use as a context manager: leaving it without `finish` removes the file."""

    schema: ClassVar[pa.Schema] = ENCODED_SCHEMA

    def __init__(self, root: Path, write_id: str, partition_id: int, attempt: int) -> None:
        self.partition_id = partition_id
        self._directory = staging_directory(root, write_id)
        self._name = f"{partition_id}-{attempt}-{uuid.uuid4().hex}.arrow"
        self._root = root_of(root)
        self._file: _CrcFile | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._rows = 0
        self._content_sum = 0
        self._queues: dict[str, int] = {}

    def add(self, encoded: pa.RecordBatch, queues: Mapping[str, int]) -> None:
        """Add encoded frames (`schema`) to the file. `queues`: number of queues that each topic must have for them.
        StoreFullError.
        """
        if not encoded.num_rows:
            return
        try:
            if self._writer is None:
                self._open()
            assert self._writer is not None
            self._writer.write_batch(encoded)
        except OSError as error:
            raise durable.translate(error, self._directory) from error
        self._rows += encoded.num_rows
        self._content_sum = (self._content_sum + content_sum_of([encoded])) & CONTENT_SUM_MASK
        for name, count in queues.items():
            self._queues[name] = max(self._queues.get(name, 0), count)

    def finish(self) -> StagedFile | None:
        """Close the file and report it; None if there were no rows. It is complete, but not fsynced: it is valid until
        the machine restarts. StoreReplacedError: the store was moved, deleted or replaced meanwhile, and the file is
        not there.
        """
        if self._writer is None or self._file is None:
            return None
        try:
            self._writer.close()
            self._file.close()
        except OSError as error:
            raise durable.translate(error, self._directory) from error
        if self._root is not None:
            self._root.refuse_if_replaced()
        self._writer = None
        return StagedFile(
            f"{self._directory.name}/{self._name}", self._file.size_bytes, self._file.crc32, self._rows,
            self._content_sum, tuple(sorted(self._queues.items())),
        )  # fmt: skip

    def abort(self) -> None:
        """Remove the file, unless it was finished, and close the store's directory."""
        if self._writer is not None and self._file is not None:
            self._writer = None
            self._file.close()
            (self._directory / self._name).unlink(missing_ok=True)
        if self._root is not None:
            self._root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _open(self) -> None:
        if self._root is not None:
            self._root.refuse_if_replaced()
        while self._file is None:
            for directory in (self._directory.parent, self._directory):
                durable.make_directory(directory, synced=False)  # nothing in it serves another boot
            # The directory may be swept in between: by the commit of an attempt at the same batch that was faster.
            with contextlib.suppress(FileNotFoundError):
                self._file = _CrcFile(self._directory / self._name)
        self._writer = pa.ipc.new_stream(self._file, self.schema)


@checked_methods()
class StagingArea(StagingFile):
    """One task's file of rows that it encodes."""

    def __init__(self, root: Path, write_id: str, partition_id: int, attempt: int, encoder: MessageEncoder) -> None:
        super().__init__(root, write_id, partition_id, attempt)
        self._encoder = encoder

    @classmethod
    def for_task(
        cls,
        path: str | Path,
        write_id: str,
        partition_id: int,
        attempt: int,
        *,
        topic: str | None = None,
        use_queue_id: bool = False,
        compress_over_bytes: int | None = None,
        keep_unique_key: bool = False,
        drop_properties: frozenset[str] = frozenset(),
        clock: Clock | None = None,
    ) -> StagingArea:
        """Prepare a file for one attempt of a task. `clock`: None is the store's own.

        Raises:
            NotAStoreError: there is no store of this engine at `path` on this host.
        """
        root, config = planned_store(path)
        encoder = MessageEncoder(
            with_delays(root, config), TopicTable(root).all(), clock or store_clock(root), default_topic=topic,
            use_queue_id=use_queue_id, compress_over_bytes=compress_over_bytes, keep_unique_key=keep_unique_key,
            drop_properties=drop_properties,
        )  # fmt: skip
        return cls(root, write_id, partition_id, attempt, encoder)

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch (columns of INPUT_SCHEMA) and add it to the file. UsageError, which names the row as the
        task counts them, StoreFullError.
        """
        with rows_from(self._rows, self.partition_id):
            encoded = self._encoder.encode_all(batch)
        self.add(encoded.frames, encoded.queues)
