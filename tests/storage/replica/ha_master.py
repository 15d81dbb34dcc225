"""The HA port of a master in memory, as DefaultHAConnection behaves, over the log of a store of ours."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rmq_store import Store, StoreConfig
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import LogEnds, MasterSettings
from storage.replica.fake_master import FakeMaster, groups, offsets, topics

BATCH_BYTES = 32 << 10
HEARTBEAT_S = 0.1


class HAMaster:
    """Serves connections until `close`, one thread each. `spoil` changes what is sent. `cut`: so many bytes at a time.
    `drop_after`: a connection ends after so many bytes of payload.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cut = 1 << 20
        self.drop_after: int | None = None
        self.spoil: Callable[[int, bytes], bytes] = lambda offset, data: data
        self.reports: list[list[int]] = []
        """The reports of each connection, the first one first."""
        self.heartbeats = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def acknowledged(self) -> int:
        """The offset below which a SYNC_MASTER would tell its producers that a slave has everything (12 and 0)."""
        return max((report for reports in self.reports for report in reports), default=0)

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            reports: list[int] = []
            self.reports.append(reports)
            torn = self._read(connection, b"", reports, 10)
            if not reports:
                return
            size = self.store.config.mapped_file_size_commit_log
            end = self.store.log_range()[1]
            position, sent = reports[0] or end - end % size, 0
            while not self._closed.is_set() and torn is not None:
                start, end = self.store.log_range()
                if start <= position < end:
                    stop = min(end, position + BATCH_BYTES, position - position % size + size)
                    base = position - position % size
                    data = self.store._log.segments.open(base).map[position - base : stop - base]
                    self._send(connection, struct.pack(">qi", position, len(data)) + data, position)
                    position, sent = stop, sent + len(data)
                    if self.drop_after is not None and sent >= self.drop_after:
                        return
                else:
                    torn = self._read(connection, torn, reports, HEARTBEAT_S)
                    start, end = self.store.log_range()
                    if not start <= position < end:  # also below its start, for ever
                        self._send(connection, struct.pack(">qi", position, 0), position)
                        self.heartbeats += 1
                if torn is not None:
                    torn = self._read(connection, torn, reports, 0)

    def _send(self, connection: socket.socket, data: bytes, offset: int) -> None:
        data = self.spoil(offset, data)
        for low in range(0, len(data), self.cut):
            connection.sendall(data[low : low + self.cut])

    def _read(self, connection: socket.socket, torn: bytes, reports: list[int], wait_s: float) -> bytes | None:
        if not select.select([connection], [], [], wait_s)[0]:
            return torn
        data = connection.recv(4096)
        if not data:
            return None
        data = torn + data
        whole = len(data) - len(data) % 8
        reports.extend(number for (number,) in struct.iter_unpack(">q", data[:whole]))
        return data[whole:]


@dataclass
class FollowedMaster(FakeMaster):
    """What a follower asks of the master whose HA port is `ha`."""

    ha: HAMaster = None  # type: ignore[assignment]
    config: StoreConfig = field(default_factory=StoreConfig)
    settings: ClusterSettings = field(default_factory=lambda: ClusterSettings(name_servers=("127.0.0.1:1",)))
    is_by_name: bool = False
    ends: LogEnds | None = None

    @classmethod
    def of(cls, ha: HAMaster, config: StoreConfig) -> FollowedMaster:
        bodies = {21: topics("Orders"), 201: groups("billing"), 43: offsets(billing={0: 1}), 45: b'{"offsetTable":{}}'}
        return cls(bodies, ha=ha, config=config)

    def address(self) -> str:
        return "127.0.0.1:10911"

    def look(self) -> MasterSettings:
        return MasterSettings("DefaultCluster", "broker-a", self.ha.address, self.config)

    def log_ends(self) -> LogEnds:
        return self.ends or LogEnds(*self.ha.store.log_range())

    def log_end(self) -> int:
        return self.log_ends().end
