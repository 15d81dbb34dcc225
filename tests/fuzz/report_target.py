"""The fuzz target of an HA port: what a slave sends, from its first report on.

Whatever comes is a report, waits for its last byte, or ends the connection with a reason; a slave acknowledges nothing
beyond the log and nothing that it was not sent, and what it gets is the log from where it asked.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

from rmq_store import Message, Store, StoreConfig
from rmq_store.replica.wire import TransferParser
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.ha.slave_connection import SlaveConnection
from rmq_store.server.ha.slave_link import PlainLink

CONFIG: Final = StoreConfig(
    mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=20,
    max_index_num=400, flush_interval_commit_log=10**9,
)  # fmt: skip
PIECES_MAX: Final = 300
_SETTINGS: Final = HASettings(transfer_bytes=1000)


class ReportFuzz:
    """The master of this process: a log of three segments, whose first one was deleted."""

    def __init__(self, base: Path) -> None:
        self._store = Store.open(base, create=True, config=CONFIG)
        self._store.create_topic("Orders", queue_count=1)
        for _ in range(20):
            self._store.send(Message("Orders", bytes(2000), queue_id=0))
        self._store.flush()
        log = self._log = self._store._log
        log.segments.remove(0)
        self._start, self._end = self._store.log_range()

    def execute(self, data: bytes) -> None:
        """The first byte says in pieces of how many bytes the rest comes; 0: in one piece.

        Raises:
            ConnectionLost: the slave asked for what it must not have.
        """
        sent = data[1:]
        size = max(data[0] if data else 0, len(sent) // PIECES_MAX) or len(sent) or 1
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        slave, parser = SlaveConnection(PlainLink(near), "slave", self._log, _SETTINGS, 0.0), TransferParser("master")
        position: int | None = None
        with far, near:
            try:
                for at in range(0, len(sent), size):
                    far.sendall(sent[at : at + size])
                    slave.receive(0.0)
                    while True:
                        slave.send(0.0)
                        taken = _taken(far)
                        if not taken:
                            break
                        for offset, piece in parser.pieces(memoryview(taken)):
                            assert position in (None, offset), f"{offset} follows {position}"
                            assert bytes(piece) == self._bytes(offset, len(piece))
                            position = offset + len(piece)
                    assert slave.acknowledged <= min(self._end, slave.position)
            finally:
                assert slave.acknowledged <= self._end
                slave.close()

    def _bytes(self, offset: int, count: int) -> bytes:
        base = self._log.segments.base_of(offset)
        return self._log.segments.open(base).map[offset - base : offset - base + count]


def _taken(link: socket.socket) -> bytes:
    try:
        return link.recv(1 << 20)
    except BlockingIOError:
        return b""


def report_seeds() -> list[bytes]:
    """Reports of slaves that are new, that go on, and that are wrong."""

    def reports(*offsets: int) -> bytes:
        return b"".join(struct.pack(">q", offset) for offset in offsets)

    start = CONFIG.mapped_file_size_commit_log
    return [
        b"",
        b"\0" + reports(0, 0, 20_000),
        b"\x03" + reports(start, start + 1, start + 1000),
        b"\0" + reports(1),
        b"\0" + reports(-1),
        b"\x08" + reports(0, 1 << 62),
        b"\x05" + reports(30_000, 30_000, 29_999) + b"\0\0",
    ]
