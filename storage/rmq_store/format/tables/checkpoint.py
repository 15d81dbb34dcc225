"""The checkpoint file: how far each part of the store was durable; 4096 bytes, zeros after the fields (control plane).

    bytes  field                   meaning
    0-7    physic_msg_timestamp    int64, ms, store time of the newest flushed message of the commit log
    8-15   logics_msg_timestamp    int64, ms, store time of the newest message that has its consume-queue entry
    16-23  index_msg_timestamp     int64, ms, end time of the last index file that is full and flushed
    24-31  master_flushed_offset   int64, since 5.0
    32-39  confirm_phy_offset      int64, since 5.1.1
    40-47  logics_physical_offset  int64, since 5.5: start of the newest frame that has its consume-queue entry

A store without the file has zeros everywhere. 5.5.0 moves logics_* once a minute, so they may lag.
Source: StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
from dataclasses import astuple

import numpy as np

from rmq_store.errors import CorruptConfigError
from rmq_store.lazy.dataclasses import dataclass

CHECKPOINT_BYTES = 4096
FIELDS = np.dtype(
    [
        ("physic_msg_timestamp", ">i8"),
        ("logics_msg_timestamp", ">i8"),
        ("index_msg_timestamp", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirm_phy_offset", ">i8"),
        ("logics_physical_offset", ">i8"),
    ]
)
_STRUCT = struct.Struct(">6q")
assert _STRUCT.size == FIELDS.itemsize

# StoreCheckpoint.getMinTimestamp: a message may be stored this much before it is counted.
_SAFETY_MS = 3000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The fields of the file; times in ms."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @classmethod
    def unpack(cls, raw: bytes, path: str = "checkpoint") -> Checkpoint:
        """Read the fields; bytes after them are ignored.

        Raises:
            CorruptConfigError: the file at `path` is shorter than the fields.
        """
        if len(raw) < _STRUCT.size:
            raise CorruptConfigError(path, len(raw), f"a checkpoint has {CHECKPOINT_BYTES} bytes")
        return cls(*_STRUCT.unpack_from(raw))

    def pack(self) -> bytes:
        """The 4096 bytes of the file."""
        return _STRUCT.pack(*astuple(self)).ljust(CHECKPOINT_BYTES, b"\0")

    @property
    def min_timestamp(self) -> int:
        """Every message stored up to this ms is in the commit log and in the consume queues."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS)
