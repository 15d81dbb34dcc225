"""The progress record in `<root>/pyrmq/progress`: the offset below which log, queues and index are on disk.

    bytes    field         meaning
    0-7      magic         "pyrmqpr2"
    8-15     device        st_dev of this file when it was written: a copied store has another device or
    16-23    inode         another inode
    24-31    end           records, queue entries and index entries below it are on disk
    32-39    last_record   offset of the newest record below end; -1: none
    40-47    flushed_end   the log is on disk below it
    48-55    index_file    name of the newest index file at that moment, as a number; 0 = none; -1 = no index was kept
    56-95    index_header  its 40 header bytes
    96-103   clean         1: the last closer wrote this and nothing was appended since
    104-111  timestamp     storeTimestamp of the newest record, ms
    112-119  crc_from      every record from here on was written by us with a CRC property; -1: not known
    120-123  crc           CRC-32 of bytes 0-119

Little-endian. It fits one sector, so a power cut leaves the old record or the new one; a damaged one reads as
missing, and recovery then starts at the beginning of the log. "pyrmqpr1" is refused: development versions wrote it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from rmq_store.errors import REPAIR_MOVES_IT_AWAY, NotAStoreError, development_version
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass

_RECORD = struct.Struct("<8sqqqqqq40sqqq")
_CRC = struct.Struct("<I")
_MAGIC = b"pyrmqpr2"
_MAGIC_OF_DEVELOPMENT = b"pyrmqpr1"
_FILE_BYTES = 512
_NOT_KNOWN = -1
assert _RECORD.size == 120


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """The record without its identity; see the module's table. `crc_from` is None if it is not known."""

    end: int
    last_record: int
    flushed_end: int
    index_file: int
    index_header: bytes
    clean: bool
    timestamp: int
    crc_from: int | None = None


class Progress:
    """The record of one store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[ProgressRecord, bool] | None:
        """(record, whether it was written for this very file and not copied here), or None if missing or damaged.

        Raises:
            NotAStoreError: a development version wrote it.
            UsageError, StoreFullError, StoreFailedError: it cannot be read.
        """
        with durable.typed_reading(self.path):
            try:
                fd = durable.open_nofollow(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                data = os.pread(fd, _FILE_BYTES, 0)
                status = os.fstat(fd)
            finally:
                os.close(fd)
        if data.startswith(_MAGIC_OF_DEVELOPMENT):
            raise development_version(self.path, "progress record pyrmqpr1", REPAIR_MOVES_IT_AWAY)
        body = data[: _RECORD.size]
        if len(data) < len(body) + _CRC.size or zlib.crc32(body) != _CRC.unpack_from(data, len(body))[0]:
            return None
        magic, device, inode, end, last, flushed, index_file, header, clean, timestamp, crc_from = _RECORD.unpack(body)
        if magic != _MAGIC or min(end, flushed, index_file + 1, crc_from + 1) < 0:
            return None
        record = ProgressRecord(
            end, last, flushed, index_file, header, clean == 1, timestamp, None if crc_from == _NOT_KNOWN else crc_from
        )
        return record, (device, inode) == (status.st_dev, status.st_ino)

    def load_for_repair(self) -> tuple[ProgressRecord, bool] | None:
        """As `load`; None as well if a development version wrote it: a repair moves that record away."""
        try:
            return self.load()
        except NotAStoreError:
            return None

    def write(self, record: ProgressRecord, *, in_place: bool = False) -> None:
        """Write the record durably. The bytes below its ends must be on disk.

        Raises:
            StoreFullError, StoreFailedError: it is not written. FileNotFoundError: `in_place`, and the file is gone.
        """
        try:
            fd = durable.open_nofollow(self.path, os.O_RDWR | (0 if in_place else os.O_CREAT))
            try:
                durable.before("allocate", self.path)
                os.posix_fallocate(fd, 0, _FILE_BYTES)
                status = os.fstat(fd)
                crc_from = _NOT_KNOWN if record.crc_from is None else record.crc_from
                body = _RECORD.pack(
                    _MAGIC, status.st_dev, status.st_ino, record.end, record.last_record, record.flushed_end,
                    record.index_file, record.index_header, int(record.clean), record.timestamp, crc_from,
                )  # fmt: skip
                durable.write_fully(fd, body + _CRC.pack(zlib.crc32(body)), 0, self.path)
                durable.fsync_file(fd, self.path)
            finally:
                os.close(fd)
            durable.fsync_directory(self.path.parent)
        except OSError as error:
            if in_place and isinstance(error, FileNotFoundError):
                raise
            raise durable.translate(error, self.path) from error
