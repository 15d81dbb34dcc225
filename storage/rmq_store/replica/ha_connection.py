"""One connection to the HA port of a master: the reports of a slave, and the bytes that come (DefaultHAClient)."""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Iterator
from typing import Final, Self

from rmq_store import real_time
from rmq_store.protocol.errors import RemotingConnectError, RemotingError
from rmq_store.remoting.transport.connector import Connector, reason_of
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings
from rmq_store.remoting.transport.tls import make_context
from rmq_store.replica.wire import TransferParser, encode_report

REPORT_INTERVAL_S: Final = 5.0
"""haSendHeartbeatInterval: a report is due after so long. A master closes a connection after 20 s without one."""

SILENCE_S: Final = 20.0
"""haHousekeepingInterval: a master that sends nothing for so long, not even a heartbeat, is taken for dead."""

RECEIVE_BYTES: Final = 1 << 20

# The next call goes on: with the same bytes, as TLS wants it.
_NOT_YET: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HAConnection:
    """A connection that is dialled by `connect`. One buffer is received into again and again.

    `first_report` says where transfers begin; `report` gives what is reported later, every REPORT_INTERVAL_S; with
    `prompt` also as soon as it is another offset. `tls`: the port takes TLS, with these settings.
    """

    def __init__(
        self,
        address: str,
        settings: ClusterSettings,
        first_report: int,
        report: Callable[[], int],
        *,
        prompt: bool = False,
        tls: TlsSettings | None = None,
        timer: Callable[[], float] = real_time.monotonic,
    ) -> None:
        self.address = address
        self._report = report
        self._prompt = prompt
        self._reported = first_report
        self._timer = timer
        self._socket = Connector(address, settings, make_context(tls) if tls is not None else None).connect()
        self._parser = TransferParser(address)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._heard_at = self._reported_at = timer()
        self._unsent = encode_report(first_report)
        try:
            self._send()
        except BaseException:
            self.close()
            raise

    def transfers(self, wait_s: float) -> Iterator[tuple[int, memoryview]]:
        """(offset in the log, bytes) of what has come, or comes within `wait_s`; for a heartbeat no bytes; nothing if
        nothing came. Each view is valid until the next call. Reports that are due are sent first.

        Raises:
            RemotingError: the connection ended, or the master has been silent for SILENCE_S.
            MasterTransferError: as `TransferParser.pieces`.
        """
        now = self._timer()
        is_due = now - self._reported_at >= REPORT_INTERVAL_S
        if not self._unsent and (is_due or (self._prompt and self._report() != self._reported)):
            self._reported = self._report()
            self._unsent = encode_report(self._reported)
            self._reported_at = now
        self._send()
        if not self._poll.poll(wait_s * 1000):
            if self._timer() - self._heard_at >= SILENCE_S:
                raise RemotingError(f"{self.address}: no byte from the master for {SILENCE_S:.0f} s")
            return
        try:
            count = self._socket.recv_into(self._buffer)
        except _NOT_YET:
            return
        except OSError as error:
            raise RemotingError(f"{self.address}: the connection to the master ended: {reason_of(error)}") from error
        if not count:
            raise RemotingError(f"{self.address}: the master closed the connection")
        self._heard_at = self._timer()
        yield from self._parser.pieces(self._buffer[:count])

    def _send(self) -> None:
        """Send the rest of a report: half of one would shift all that follow."""
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except _NOT_YET:
            return
        except OSError as error:
            raise RemotingConnectError(f"{self.address}: no report can be sent: {reason_of(error)}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
