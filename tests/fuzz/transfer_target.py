"""The fuzz target of a feeder: bytes of a master's HA port, from the header of a transfer to the log of a replica.

Whatever comes is a record, waits, or is refused by a typed error; what readers see afterwards is whole records with
their queue entries, and nothing lies behind them.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rmq_store import Message, Store, StoreConfig
from rmq_store.log.append.append import append_lock, undo
from rmq_store.log.core import scan
from rmq_store.log.replica_role import Feeder, ReplicaRole
from rmq_store.log.views.hash_index import EMPTY
from rmq_store.replica.feed import Feed
from rmq_store.replica.replica_store import make_directory, open_replica
from rmq_store.replica.wire import TransferParser

if TYPE_CHECKING:
    from rmq_store.log.core.commit_log import CommitLog

CONFIG: Final = StoreConfig(
    mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=20,
    max_index_num=400, enabled_append_prop_crc=False, flush_interval_commit_log=10**9,
)  # fmt: skip
PIECES_MAX: Final = 300
_HEADER: Final = struct.Struct(">qi")
_ROLE: Final = ReplicaRole("c", "broker-a", "", "127.0.0.1:10911", "127.0.0.1:10912", "earliest", 0)


class TransferFuzz:
    """The replica of this process. It is empty before each execution."""

    def __init__(self, base: Path) -> None:
        root = base / f"replica-{os.getpid()}"
        make_directory(root)
        self._feeder = Feeder(root)
        self._feeder.take()
        self._store = open_replica(root, self._feeder, (_ROLE, CONFIG))

    def execute(self, data: bytes) -> None:
        """The first byte says in pieces of how many bytes the rest comes; 0: in one piece.

        Raises:
            MasterTransferError: it is no transfer, or no record.
        """
        log, sent = self._store._log, memoryview(data)[1:]
        size = max(data[0] if data else 0, len(sent) // PIECES_MAX) or len(sent) or 1
        feed, parser = Feed(log, 0, "broker-a"), TransferParser("broker-a")
        try:
            for at in range(0, len(sent), size):
                for offset, piece in parser.pieces(sent[at : at + size]):
                    feed.take(offset, piece)
                feed.publish()
        finally:
            feed.abort()
            try:
                self._look(log, feed)
            finally:
                _empty(log)

    def _look(self, log: CommitLog, feed: Feed) -> None:
        end, records, at = log.writing_page.appended_end, 0, 0
        for stretch in scan.walk(log, 0, end, ahead=False) if end else ():
            records, at = records + len(stretch.positions), stretch.end
            assert not stretch.stopped, stretch
        assert (at, records) == (end, feed.messages), f"{records} of {feed.messages} records to {at} of {end}"
        assert not log.segments.data_beyond(end), f"bytes behind {end}"


def _empty(log: CommitLog) -> None:
    """Take everything back, as an append that failed."""
    page = log.writing_page
    end = page.appended_end
    if end:
        with append_lock(log):
            page.appended_end = page.flushed_end = 0
            page.declare(0, end, *EMPTY)
            undo(log)


def transfer_seeds(base: Path) -> list[bytes]:
    """The log of a store of ours as a master sends it, cut in several ways."""
    base.mkdir(parents=True, exist_ok=True)
    with Store.open(tempfile.mkdtemp(dir=base), create=True, config=CONFIG) as store:
        store.create_topic("Orders", queue_count=2)
        for number in range(3):
            store.send(Message("Orders", b"body", tags="a", keys="k1 k2", queue_id=number % 2))
        store.send_all([Message("Orders", bytes(200), queue_id=0)] * 4)
        rows = pa.RecordBatch.from_pydict({"body": pa.array([b"in a unit"] * 2, pa.binary())})
        store.append_unit(
            [rows.append_column("topic", pa.array(["Orders"] * 2))],
            purpose="rows", key="q", value=1, expect=None,
        )  # fmt: skip
        short = _log_of(store)
        for _ in range(9):
            store.send(Message("Orders", bytes(2000), queue_id=0))
        long = _log_of(store)
    return [
        b"",  # it makes no replica: a process that has one has threads, and cannot be forked
        b"\0" + _transfers(short, len(short)),
        b"\x0b" + _transfers(short, 100),
        b"\xff" + _transfers(short, 1000, heartbeats=True),
        b"\0" + _transfers(long, 5000, heartbeats=True),
    ]


def _log_of(store: Store) -> bytes:
    data, end = b"", store.log_range()[1]
    for base in store._log.segments.bases():
        data += store._log.segments.open(base).map[:]
    return data[:end]


def _transfers(log: bytes, size: int, *, heartbeats: bool = False) -> bytes:
    sent, at, segment = b"", 0, CONFIG.mapped_file_size_commit_log
    while at < len(log):
        stop = min(at + size, len(log), at - at % segment + segment)
        sent += _HEADER.pack(at, stop - at) + log[at:stop]
        at = stop
        if heartbeats:
            sent += _HEADER.pack(at, 0)
    return sent
