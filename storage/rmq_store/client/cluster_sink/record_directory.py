"""Records in a directory that all hosts of a Spark application share (`records`). Control plane.

    <directory>/<hash of the write>/<batch>/<partition>-<uuid>.json
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.errors import UsageError

# A checkpoint that is set back repeats batches; nobody sets it back by more.
_KEPT_BATCHES = 100


class RecordDirectory:
    """The records of all writes that name this directory."""

    def __init__(self, directory: str) -> None:
        self._root = Path(directory)

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none.

        Raises:
            UsageError: the directory cannot be read.
        """
        directory = self._directory(part)
        try:
            texts = [path.read_bytes() for path in directory.iterdir() if path.match(f"{part.partition}-*.json")]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsageError(f"option markerPath: {error}") from error
        return earliest([record for text in texts if (record := Record.from_json(text))], part)

    def add(self, record: Record) -> Offsets:
        """Make a record durable, and remove those of batches long ago. Returns no offsets: `find` misses nothing.

        Raises:
            UsageError: the directory cannot be written.
        """
        directory = self._directory(record.part)
        path = directory / f"{record.part.partition}-{uuid.uuid4().hex}.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".tmp").open("wb") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            path.with_suffix(".tmp").rename(path)
            for changed in (directory, directory.parent, self._root):
                descriptor = os.open(changed, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise UsageError(f"option markerPath: {error}") from error
        self._forget_before(record.part.write, record.part.batch - _KEPT_BATCHES)
        return {}

    def _forget_before(self, write: str, batch: int) -> None:
        directory = self._of_write(write)
        try:
            old = [path for path in directory.iterdir() if path.name.isdigit() and int(path.name) < batch]
        except OSError:
            return
        for path in old:
            shutil.rmtree(path, ignore_errors=True)

    def _directory(self, part: WritePart) -> Path:
        return self._of_write(part.write) / str(part.batch)

    def _of_write(self, write: str) -> Path:
        return self._root / hashlib.blake2b(write.encode(), digest_size=16).hexdigest()
