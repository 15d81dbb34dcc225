"""A commit log written byte by byte, as a broker leaves one, with any queue offsets and flags; nothing beside it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

SEGMENT_BYTES = 8192
PREPARED, ROLLBACK, INNER_BATCH = 0x4, 0xC, 0x80


class PlainLog:
    """Frames one behind the other; `save` writes the segments."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.clock_ms = 1_700_000_000_000

    def add(self, topic: str, queue_offset: int, body: bytes, *, queue_id: int = 0, sys_flag: int = 0,
            properties: dict[str, str] | None = None) -> int:  # fmt: skip
        """Append a frame; returns where it begins."""
        name = topic.encode()
        text = "".join(f"{key}\x01{value}\x02" for key, value in (properties or {}).items()).encode()
        size = 91 + len(body) + len(name) + len(text)
        left = SEGMENT_BYTES - len(self.data) % SEGMENT_BYTES
        if size + 8 > left:
            self.data += struct.pack(">i4s", left, b"\xcb\xd4\x31\x94") + bytes(left - 8)
        offset = len(self.data)
        self.clock_ms += 700
        host = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
        frame = struct.pack(">i4siiiqqiq", size, b"\xda\xa3\x20\xa7", zlib.crc32(body) & 0x7FFFFFFF, queue_id, 0,
                            queue_offset, offset, sys_flag, self.clock_ms)  # fmt: skip
        frame += host + struct.pack(">q", self.clock_ms) + host + struct.pack(">iqi", 0, 0, len(body)) + body
        frame += bytes([len(name)]) + name + struct.pack(">h", len(text)) + text
        self.data += frame
        return offset

    def save(self, root: Path, first_segment: int = 0) -> Path:
        """Write the segments from `first_segment` on."""
        (root / "commitlog").mkdir(parents=True, exist_ok=True)
        for base in range(first_segment * SEGMENT_BYTES, len(self.data), SEGMENT_BYTES):
            segment = self.data[base : base + SEGMENT_BYTES].ljust(SEGMENT_BYTES, b"\0")
            (root / "commitlog" / f"{base:020d}").write_bytes(segment)
        return root


def in_rocksdb(root: Path) -> Path:
    """Make a store look as if its broker kept the queues in RocksDB."""
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    (root / "consumequeue" / "MANIFEST-000005").write_bytes(b"")
    return root
