"""A file of fixed size whose beginning is mapped for writing; the rest is written with pwrite(2) and may have holes.

Only the mapped part has its blocks allocated: a store through a map over a hole would kill the process on a full disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from rmq_store.errors import CorruptIndexError
from rmq_store.files import durable
from rmq_store.files.mapping import map_file
from rmq_store.files.segments import blocks
from rmq_store.files.segments.link_count import LinkCount
from rmq_store.files.segments.open_files import data_ranges

_ZERO_STEP = 1 << 20


class PrefixMappedFile:
    """`map` is the first `prefix_bytes` of the file; arrays over it keep it alive."""

    def __init__(self, path: Path, size_bytes: int, prefix_bytes: int, *, writable: bool = True) -> None:
        """Open the file, creating it with zeros if `writable` and it is missing or empty.

        Raises:
            CorruptIndexError: it has another size.
            FileNotFoundError: it is missing, and not `writable`.
            StoreFullError, StoreFailedError, UsageError: as `durable.translate`.
        """
        self.path = path
        self.size_bytes = size_bytes
        try:
            self.fd = durable.open_nofollow(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
            actual = os.fstat(self.fd).st_size
            if actual != size_bytes and (actual or not writable):
                raise CorruptIndexError(str(path), actual, f"the file has {actual} bytes, not {size_bytes}")
            if writable:
                durable.before("allocate", path)
                os.posix_fallocate(self.fd, 0, prefix_bytes)
                os.ftruncate(self.fd, size_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise durable.translate(error, path) from error
        self._links = LinkCount(self.fd)
        self.map = map_file(self.fd, prefix_bytes, writable=writable)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)

    def exists(self) -> bool:
        """True if the file has not been unlinked since it was opened."""
        return self._links.get() > 0

    def read(self, position: int, size_bytes: int) -> bytes:
        """Bytes beyond the mapped part; fewer at the end of the file."""
        return os.pread(self.fd, size_bytes, position)

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write bytes; readers of the mapped part see them. StoreFullError, StoreFailedError."""
        try:
            durable.write_fully(self.fd, data, position, self.path)
        except OSError as error:
            raise durable.translate(error, self.path) from error

    def reserve(self, start: int, size_bytes: int) -> None:
        """Prepare for large writes (`blocks.reserve`)."""
        blocks.reserve(self.fd, start, min(size_bytes, self.size_bytes - start))

    def zero_from(self, start: int) -> None:
        """Write zeros over all data from `start` on; holes stay holes."""
        for low, high in data_ranges(self.fd, start, self.size_bytes):
            for position in range(low, high, _ZERO_STEP):
                self.write(bytes(min(_ZERO_STEP, high - position)), position)

    def sync(self) -> None:
        """fsync map and file. StoreFailedError."""
        try:
            self.map.flush()
            durable.fsync_file(self.fd, self.path)
        except OSError as error:
            raise durable.translate(error, self.path) from error
