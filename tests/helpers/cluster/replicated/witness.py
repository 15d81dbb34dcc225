"""The records of a commit log, read from its files by nothing of ours: whole ones, whose bodies have their checksum."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from helpers.cluster import requests

_MESSAGES: Final = (0xDAA320A7, 0xDAA320AB)
_BLANK: Final = 0xCBD43194
_HEAD: Final = struct.Struct(">III")
_OFFSET_AT: Final = 28


class LogWitness:
    """Reads the log of a store on and on, from its beginning."""

    def __init__(self, store: Path, segment_bytes: int) -> None:
        self._directory = store / "commitlog"
        self._segment_bytes = segment_bytes
        self.end = 0
        """Below it everything has been read."""

    def new_records(self, limit: int | None = None) -> Iterator[bytes]:
        """The records that have come since the last call; `limit`: the end of what counts."""
        while limit is None or self.end < limit:
            base = self.end - self.end % self._segment_bytes
            file = self._directory / f"{base:020d}"
            if not file.exists():
                return
            data, at = file.read_bytes(), self.end - base
            while at < self._segment_bytes and (limit is None or base + at < limit):
                size, magic, crc = _HEAD.unpack_from(data, at) if at + _HEAD.size <= len(data) else (0, 0, 0)
                if magic == _BLANK or (at + _HEAD.size > self._segment_bytes):
                    at = self._segment_bytes
                    break
                record = data[at : at + size]
                if magic not in _MESSAGES or not _is_whole(record, base + at, crc):
                    self.end = base + at
                    return
                yield record
                at += size
            self.end = base + at


def _is_whole(record: bytes, offset: int, crc: int) -> bool:
    own = int.from_bytes(record[_OFFSET_AT : _OFFSET_AT + 8], "big")
    return own == offset and zlib.crc32(requests.body_of(record)) & 0x7FFFFFFF == crc
