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


class RecordDirectory:
    """The records of all writes that name this directory."""

    def __init__(self, directory: str) -> None:
        self._root = Path(directory)

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none."""
        directory = self._directory(part)
        try:
            texts = [path.read_bytes() for path in directory.iterdir() if path.match(f"{part.partition}-*.json")]
        except FileNotFoundError:
            return {}
        return earliest([record for text in texts if (record := Record.from_json(text))], part)

    def add(self, record: Record) -> None:
        """Make a record durable. UsageError: the directory cannot be written."""
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

    def forget_before(self, write: str, batch: int) -> None:
        """Remove what earlier batches of a write have recorded: they are committed. Nothing is raised."""
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
