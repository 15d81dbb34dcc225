"""What no sink of ours can go below: as many bytes in as many files, written twice, and nothing else.

`format("bare")`, batch writes only. Tasks write `rowBytes` for each row to a file in the directory `path`; the commit
copies these files into preallocated ones, in two threads, and gives their pages back while it goes on, as ours does. No
row is encoded, nothing has a checksum, a queue or an index, and nothing is read again.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

# As the store's: the segments of a new one, a piece of an append, what is given back at once.
_FILE_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_USED_BYTES = 8 << 20


class BareSink(DataSource):
    """See above."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BareWriter(Path(self.options["path"]), int(self.options["rowBytes"]))


@dataclass
class Staged(WriterCommitMessage):
    """A task's file."""

    path: str


class BareWriter(DataSourceArrowWriter):
    def __init__(self, directory: Path, row_bytes: int) -> None:
        self._directory = directory
        self._row_bytes = row_bytes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from rmq_store.files import durable

        path = self._directory / uuid.uuid4().hex
        block = memoryview(b"")
        with path.open("xb", buffering=0) as file:
            for batch in iterator:
                size = batch.num_rows * self._row_bytes
                if len(block) < size:
                    block = memoryview(os.urandom(size))
                done = 0
                while done < size:
                    done += file.write(block[done : min(size, done + durable.WRITE_BYTES)])
        return Staged(str(path))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from rmq_store.threads import map_in_threads

        paths = [Path(staged.path) for staged in messages if isinstance(staged, Staged)]
        sizes = [path.stat().st_size for path in paths]
        log = self._preallocated(sum(sizes))
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        map_in_threads(lambda each: _copy(*each, log), list(zip(paths, starts, strict=True)))
        for file in log:
            os.close(file)
        for path in paths:
            path.unlink()

    def _preallocated(self, size_bytes: int) -> list[int]:
        files = []
        for number in range(-(-size_bytes // _FILE_BYTES)):
            files.append(os.open(self._directory / f"{number}", os.O_RDWR | os.O_CREAT | os.O_EXCL))
            os.posix_fallocate(files[-1], 0, _FILE_BYTES)
        return files


def _copy(path: Path, start: int, log: Sequence[int]) -> None:
    """Copy a file to byte `start` of the log, and give its pages back."""
    import numpy as np
    import pyarrow as pa

    from rmq_store.broker.write.page_release import PageRelease
    from rmq_store.files import durable

    with path.open("rb") as file:
        mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    data, used = np.frombuffer(mapped, np.uint8), PageRelease()
    used.add(mapped, path)
    piece = np.empty(_PIECE_BYTES, np.uint8)
    for first in range(0, len(data), _PIECE_BYTES):
        copied = data[first : first + _PIECE_BYTES]
        np.copyto(piece[: len(copied)], copied)
        done = 0
        while done < len(copied):
            number, place = divmod(start + first + done, _FILE_BYTES)
            size = min(len(copied) - done, _FILE_BYTES - place, durable.WRITE_BYTES)
            done += os.pwrite(log[number], piece[done : done + size].data, place)
        behind = first + len(copied)
        if behind % _USED_BYTES == 0:
            used.give_back(data[behind - _USED_BYTES : behind])
