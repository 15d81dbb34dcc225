"""The bytes of an HA port (DefaultHAService of 4.x and 5.x).

    slave to master    int64                  a report: the commit-log offset up to which it has everything
    master to slave    int64, int32, bytes    a transfer: offset in the commit log, size, so many raw bytes of the log;
                                              size 0 is a heartbeat, whose offset is what is sent next

The first report also says where transfers begin (`FROM_LAST_SEGMENT`, `FROM_START`). A transfer never crosses a segment
of the log, and cuts records anywhere. Sources: DefaultHAConnection.java, DefaultHAClient.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rmq_store.errors import MasterTransferError

HA_TLS: Final = "haTlsEnable"
"""A setting of ours: the HA port takes TLS only. RocketMQ has no TLS there."""

FROM_LAST_SEGMENT: Final = 0
"""First report, of a slave without a byte: a Java master begins at the first byte of its last segment, ours at the
first byte of its log.
"""

FROM_START: Final = 1
"""First report: the master begins at byte 1 of its log. Byte 0 is the high byte of the first frame's size: zero, below
16 MiB.
"""

TRANSFER_BYTES_MAX: Final = 64 << 20
"""A greater size is taken for nonsense; haTransferBatchSize is 32 KiB unless somebody changes it."""

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")


def encode_report(offset: int) -> bytes:
    """A report of a slave."""
    return _REPORT.pack(offset)


def encode_transfer(offset: int, size: int) -> bytes:
    """The bytes before a transfer of `size` bytes of the log at `offset`; `size` 0: a heartbeat."""
    return _HEADER.pack(offset, size)


class ReportParser:
    """Finds the reports in what a slave sends, however it is cut."""

    def __init__(self) -> None:
        self._torn = b""

    def reports(self, data: bytes) -> list[int]:
        """The offsets of the reports that are whole now, in order; as signed numbers, so that none is refused here."""
        data = self._torn + data
        whole = len(data) - len(data) % _REPORT.size
        self._torn = data[whole:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]


class TransferParser:
    """Finds the payload in what a master sends, however it is cut. It keeps no bytes but those of a torn header.

    `master` names the master in errors.
    """

    def __init__(self, master: str) -> None:
        self._master = master
        self._torn = b""
        self._offset = 0
        self._left = 0

    def pieces(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """(offset in the log, bytes from there on) for each piece of payload in `data`, in order; for a heartbeat no
        bytes. The views are of `data`.

        Raises:
            MasterTransferError: a size below 0 or above TRANSFER_BYTES_MAX, or an offset below 0.
        """
        at, end = 0, len(data)
        while at < end:
            if self._left:
                count = min(self._left, end - at)
                yield self._offset, data[at : at + count]
                self._offset += count
                self._left -= count
                at += count
                continue
            if not self._torn and end - at >= _HEADER.size:
                self._offset, self._left = _HEADER.unpack_from(data, at)
                at += _HEADER.size
            else:
                taken = data[at : at + _HEADER.size - len(self._torn)]
                self._torn += taken
                at += len(taken)
                if len(self._torn) < _HEADER.size:
                    return
                self._offset, self._left = _HEADER.unpack(self._torn)
                self._torn = b""
            if self._offset < 0 or not 0 <= self._left <= TRANSFER_BYTES_MAX:
                raise MasterTransferError(
                    f"{self._master}: a transfer of {self._left} bytes from offset {self._offset}: "
                    "is this the HA port of a broker with DefaultHA?"
                )
            if not self._left:
                yield self._offset, data[:0]
