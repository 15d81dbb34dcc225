"""One slave at the HA port: its reports, and the bytes of the log that it gets (DefaultHAConnection.java).

Nothing is kept for a slave: what it has not taken yet stays in the log, and is read again from there. A connection
that refuses or is given up raises `ConnectionLost`, with a reason for the log.
"""

from __future__ import annotations

import ssl
from typing import Final

from rmq_store.log.core.commit_log import CommitLog
from rmq_store.protocol.errors import RemotingError
from rmq_store.remoting.transport.connector import reason_of
from rmq_store.replica.wire import FROM_LAST_SEGMENT, FROM_START, ReportParser, encode_report, encode_transfer
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.ha.slave_link import SlaveLink

# The first bytes of a TLS handshake: a record of that kind, of version 3.x.
_TLS_HELLO: Final = b"\x16\x03"
# A slave that is behind gets so much before the others have their turn.
_TURN_BYTES: Final = 1 << 20


class ConnectionLost(RemotingError):
    """The connection ends. `is_fault`: the slave asked for what it must not have, or stopped taking part."""

    def __init__(self, reason: str, *, is_fault: bool = True) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


class SlaveConnection:
    """Serves one accepted connection. `now`: seconds of a clock that never goes back."""

    def __init__(self, link: SlaveLink, address: str, log: CommitLog, settings: HASettings, now: float) -> None:
        self._link = link
        self.address = address
        self._log = log
        self._settings = settings
        self._parser = ReportParser()
        self._unsent: list[memoryview] = []
        self._payload_bytes = 0
        self._began = self._heard = self._moved = self._sent = self._progressed = now
        self._was_in_reach = False
        self.position = -1
        """Where the next transfer begins; -1: the slave has not said where the first one does."""
        self.acknowledged = -1
        """The slave has the log below it; -1: it has not said."""

    @property
    def is_blocked(self) -> bool:
        """Whether the slave has to take something before it can get more."""
        return self._link.is_blocked

    def counts(self, end: int, now: float) -> bool:
        """Whether a send may wait for it: it is no more than haSlaveFallbehindMax behind. One that was not stays so
        while it goes on, as after an append of gigabytes.
        """
        if self.acknowledged < 0:
            return False
        if end - self.acknowledged < self._settings.fallbehind_bytes_max:
            self._was_in_reach = True
        elif now - self._progressed >= self._settings.slave_timeout_ms / 1000:
            self._was_in_reach = False
        return self._was_in_reach

    def receive(self, now: float) -> bool:
        """Take the reports that have come; whether the slave has more than before. ConnectionLost."""
        try:
            data = self._link.receive()
        except OSError as error:
            raise self._lost(error) from error
        if data is None:
            return False
        if not data:
            raise ConnectionLost("the slave has closed the connection", is_fault=False)
        self._heard = now
        before = self.acknowledged
        for offset in self._parser.reports(data):
            if self.position < 0:
                self._begin(offset)
            elif not 0 <= offset <= self._sent_end():
                sent_end = self._sent_end()
                raise ConnectionLost(
                    f"it reports that it has the log up to {offset}, and was sent what lies below {sent_end}"
                )
            if offset > self.acknowledged:
                self.acknowledged, self._progressed = offset, now
        return self.acknowledged > before

    def send(self, now: float) -> bool:
        """Send what the slave lacks, or a heartbeat that is due, as far as it takes it; whether it lacks more that can
        be sent at once. ConnectionLost.
        """
        if self.position < 0:
            return False
        end, sent = self._log.visible_end(), 0
        while sent < _TURN_BYTES:
            if not self._unsent:
                if self.position < end:
                    self._begin_transfer(end)
                elif now - self._sent >= self._settings.heartbeat_s:
                    self._unsent, self._payload_bytes = [memoryview(encode_transfer(self.position, 0))], 0
                else:
                    return False
            written = self._write(now)
            if not written:
                return False
            sent += written
        return True

    def check(self, now: float) -> None:
        """ConnectionLost: the slave was silent for haHousekeepingInterval, or took nothing of what it was sent."""
        if not self._link.is_secured and now - self._began > self._settings.handshake_s:
            raise ConnectionLost(f"no TLS handshake in {self._settings.handshake_s:g} s: this port takes TLS only")
        limit = self._settings.housekeeping_s
        if now - self._heard > limit:
            raise ConnectionLost(f"it has reported nothing for {limit:g} s")
        if self._unsent and now - self._moved > limit:
            raise ConnectionLost(f"it has taken nothing for {limit:g} s of what it is sent from {self.position} on")

    def close(self) -> None:
        """End the connection."""
        self._unsent = []
        self._link.close()

    def _lost(self, error: OSError) -> ConnectionLost:
        if self._link.is_secured or not isinstance(error, ssl.SSLError):
            return ConnectionLost(reason_of(error), is_fault=False)
        return ConnectionLost(f"no TLS handshake ({reason_of(error)}): this port takes TLS only (--ha-tls)")

    def _begin(self, offset: int) -> None:
        """The first report says where to begin."""
        start, end = self._log.start(), self._log.visible_end()
        if offset == FROM_LAST_SEGMENT:
            self.position = start
            return
        if offset < start:
            raise ConnectionLost(
                f"it asks for the log from {offset} on, which begins at {start}: what lies between was deleted here. "
                "The slave must begin anew, with an empty directory"
            )
        if encode_report(offset).startswith(_TLS_HELLO):
            raise ConnectionLost("it begins a TLS handshake, and this port has none (--ha-tls)")
        if offset == FROM_START:  # of a follower of ours, also where there is no byte yet
            end = max(end, FROM_START)
        if offset > end:
            raise ConnectionLost(
                f"it has the log up to {offset}, which ends at {end} here: it is a slave of another master, or this "
                "one has lost its newest messages. Nothing was acknowledged"
            )
        self.position = offset

    def _begin_transfer(self, end: int) -> None:
        segments = self._log.segments
        base = segments.base_of(self.position)
        stop = min(end, self.position + self._settings.transfer_bytes, base + segments.size_bytes)
        try:
            mapped = segments.open(base).map
        except FileNotFoundError as error:
            raise ConnectionLost(f"it lacks the log from {self.position} on, which was deleted here") from error
        payload = memoryview(mapped)[self.position - base : stop - base]
        self._unsent = [memoryview(encode_transfer(self.position, len(payload))), payload]
        self.position, self._payload_bytes = stop, len(payload)

    def _sent_end(self) -> int:
        """The kernel has the log below it, for this slave."""
        return self.position - min(sum(map(len, self._unsent)), self._payload_bytes)

    def _write(self, now: float) -> int:
        """How many bytes the kernel has taken."""
        try:
            written = left = self._link.send(self._unsent)
        except OSError as error:
            raise self._lost(error) from error
        if not written:
            return 0
        self._moved = now
        while self._unsent and left >= len(self._unsent[0]):
            left -= len(self._unsent.pop(0))
        if left:
            self._unsent[0] = self._unsent[0][left:]
        self._sent = now
        return written
