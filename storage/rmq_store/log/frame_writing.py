"""Frames written into a file of the log with what was known last filled in (data plane).

They are copied first: where they come from may be a mapped file, and is never written.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from rmq_store.files import durable
from rmq_store.format import native
from rmq_store.format.frame_patch import patch_frames

# Copied, filled in and written at a time: small enough to stay in the processor's cache until it is written.
COPY_BYTES = 1 << 20


class Frames(NamedTuple):
    """n encoded frames, and what is to be filled in.

    Frame i is `data[bounds[i]:bounds[i + 1]]`, uint8; `bounds` is int64 (n + 1,). `queue_offsets` and `log_offsets` are
    int64 (n,), `crc0` and the time as `patch_frames` takes them.
    """

    data: np.ndarray
    bounds: np.ndarray
    queue_offsets: np.ndarray
    log_offsets: np.ndarray
    crc0: np.ndarray | None
    store_timestamp_ms: int

    def rows(self, first: int, behind: int) -> Self:
        """Frames [first, behind) of these."""
        return self._replace(
            bounds=self.bounds[first : behind + 1],
            queue_offsets=self.queue_offsets[first:behind],
            log_offsets=self.log_offsets[first:behind],
            crc0=None if self.crc0 is None else self.crc0[first:behind],
        )

    def buffer_like(self, buffer: np.ndarray) -> np.ndarray:
        """What they can be written through, uint8: `buffer` if it is large enough."""
        largest = int(np.diff(self.bounds).max(initial=0))
        needed = max(largest, min(COPY_BYTES, int(self.bounds[-1] - self.bounds[0])))
        return buffer if len(buffer) >= needed else np.empty(needed, np.uint8)

    def write(self, fd: int, position: int, path: str, buffer: np.ndarray) -> None:
        """Write them, complete, from byte `position` of the open file `path` on, through `buffer`. OSError as
        pwrite(2).
        """
        if not native.LOADED:
            self._write_in_python(fd, position, path, buffer)
            return
        durable.before("write", path)
        native.functions.put_frames(
            fd,
            position,
            self.data,
            np.ascontiguousarray(self.bounds),
            np.ascontiguousarray(self.queue_offsets),
            np.ascontiguousarray(self.log_offsets),
            self.store_timestamp_ms,
            None if self.crc0 is None else np.ascontiguousarray(self.crc0),
            buffer,
            durable.WRITE_BYTES,
        )

    def _write_in_python(self, fd: int, position: int, path: str, buffer: np.ndarray) -> None:
        row, count = 0, len(self.bounds) - 1
        while row < count:
            behind = int(np.searchsorted(self.bounds, self.bounds[row] + len(buffer), side="right")) - 1
            part = self.rows(row, behind)
            starts = part.bounds - part.bounds[0]
            copied = buffer[: starts[-1]]
            np.copyto(copied, self.data[part.bounds[0] : part.bounds[-1]])
            patch_frames(
                copied, starts[:-1], np.diff(starts), part.queue_offsets, part.log_offsets, self.store_timestamp_ms,
                part.crc0,
            )  # fmt: skip
            durable.write_fully(fd, copied.data, position, path)
            position += len(copied)
            row = behind
