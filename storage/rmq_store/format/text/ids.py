"""Message ids: the offset id that a broker gives, and the unique id that a producer gives (data plane for columns).

    offset id   store host (4 or 16 bytes, port int32), commit-log offset int64                        upper-case hex
    unique id   ip (4 or 16), pid int16, loader hash int32, ms since month start int32, counter int16  upper-case hex

Both take 32 characters with IPv4 and 56 with IPv6.
Source: MessageDecoder.java (createMessageId, decodeMessageId), MessageClientIDSetter.java.
"""

from __future__ import annotations

import functools
import re
import struct
from datetime import datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.threads import Claim

_HEX = re.compile(r"(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{56})", re.ASCII)
_UNIQUE_TAIL = struct.Struct(">HIIH")
# The two hex digits of every byte value, as one uint16 in memory order.
_HEX_PAIRS = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)
_COUNTER_BITS = 16
_SEQUENCE_BYTES = 6
_SEQUENCE_MASK = (1 << 8 * _SEQUENCE_BYTES) - 1
_CLOCK_SLACK_MS = 1000

UNBOUNDED_MS = (1 << 63) - 1
"""Java's Long.MAX_VALUE: a time window without an end."""


def offset_message_id(host: Host, commit_log_offset: int) -> str:
    """The id under which the broker at `host` finds the frame that starts at `commit_log_offset`."""
    return f"{_host_hex(host)}{commit_log_offset:016X}"


def offset_message_id_list(host: Host, commit_log_offsets: npt.NDArray[np.int64]) -> str:
    """The `offset_message_id` of each offset, as a comma list."""
    packed = host.pack()
    ids = np.empty((len(commit_log_offsets), len(packed) + 8), np.uint8)
    ids[:, : len(packed)] = np.frombuffer(packed, np.uint8)
    ids[:, len(packed) :] = commit_log_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    return ids.tobytes().hex(",", ids.shape[1]).upper()


@functools.lru_cache(maxsize=64)
def _host_hex(host: Host) -> str:
    """A store has one host, and so have most stores of a client."""
    return host.pack().hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """The inverse of `offset_message_id`; lower case is accepted. A unique id has the same form, and is parsed too.

    Raises:
        UsageError: not 32 or 56 hex digits, or a negative offset.
    """
    raw = _unhex("an offset message id", text)
    offset = int.from_bytes(raw[-8:], "big", signed=True)
    if offset < 0:
        raise UsageError(f"not an offset message id, its offset is negative: {text!r}")
    return Host.unpack(raw[:-8]), offset


def check_message_id(text: str) -> None:
    """Raise UsageError for a text that is neither an offset id nor a unique id: both are 32 or 56 hex digits."""
    _unhex("an offset message id", text)


def offset_message_ids(hosts: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.StringArray:
    """`offset_message_id` of n rows: `hosts` is (n, 8) or (n, 20) uint8 as in the frames, `offsets` (n,)."""
    tails = np.ascontiguousarray(offsets, ">i8").view(np.uint8).reshape(-1, 8)
    return _hex_strings(np.concatenate((hosts, tails), axis=1))


class UniqueId(NamedTuple):
    """The parts of a unique id; `offset_ms` counts from the local start of some month."""

    address: bytes
    pid: int
    loader_hash: int
    offset_ms: int
    counter: int

    def time_ms(self, now_ms: int, month_start_ms: int, previous_month_start_ms: int) -> int:
        """The time when the id was made: in this month or, if that lies in the future, the previous one
        (getNearlyTimeFromID).
        """
        time_ms = month_start_ms + self.offset_ms
        return time_ms if time_ms < now_ms else previous_month_start_ms + self.offset_ms


def parse_unique_id(text: str) -> UniqueId:
    """Take a unique id apart.

    Raises:
        UsageError: not 32 or 56 hex digits.
    """
    raw = _unhex("a unique id", text)
    return UniqueId(raw[:-12], *_UNIQUE_TAIL.unpack(raw[-12:]))


_Reserved = tuple[int, int, bytes, int, "Claim[_Reserved]"]
"""What one reservation has led to: start of the month (-1: none yet), loader hash, prefix, next number. Last the
claim that the following reservation holds: free until there is one."""


class UniqueIdGenerator:
    """Makes unique ids; thread-safe, and no id comes twice from one generator. No lock: a signal handler may send while
    it interrupts a reservation of its own thread.

    ms and counter form one 48-bit number that only grows. More than 65536 ids in a ms, or a clock that goes back, use
    ids of the following ms. In a new month the ms start again, so the loader hash is raised by one. `pid` and
    `loader_hash` distinguish two generators: make one after a fork, never use one across it.
    """

    def __init__(self, ip: bytes, pid: int, loader_hash: int) -> None:
        assert len(ip) in (4, 16)
        self._ip_and_pid = ip + struct.pack(">H", pid & 0xFFFF)
        # The newest reservation that is known: from it those behind it are found, if there are any.
        self._newest: _Reserved = (-1, loader_hash, self._prefix(loader_hash), 0, Claim())

    @property
    def text_bytes(self) -> int:
        """Length of each id in bytes."""
        return 2 * (len(self._newest[2]) + _SEQUENCE_BYTES)

    def next_ids(self, count: int, now_ms: int, month_start_ms: int) -> pa.StringArray:
        """`count` new ids; `month_start_ms` is the local start of the month of `now_ms`."""
        prefix, start = self.reserve(count, now_ms, month_start_ms)
        sequence = (np.arange(start, start + count, dtype=np.int64) & _SEQUENCE_MASK).astype(">i8")
        raw = np.empty((count, len(prefix) + _SEQUENCE_BYTES), np.uint8)
        raw[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        raw[:, len(prefix) :] = sequence.view(np.uint8).reshape(count, 8)[:, 2:]
        return _hex_strings(raw)

    def next_id(self, now_ms: int, month_start_ms: int) -> str:
        """One new id."""
        prefix, start = self.reserve(1, now_ms, month_start_ms)
        return f"{prefix.hex().upper()}{start & _SEQUENCE_MASK:012X}"

    def reserve(self, count: int, now_ms: int, month_start_ms: int) -> tuple[bytes, int]:
        """Reserve `count` ids. Returns the bytes before their last 48 bits, and the last 48 bits of the first id as a
        number; each further id adds 1 to it.
        """
        known = self._newest
        while True:
            month_ms, loader_hash, prefix, first, following = known
            if (newer := following.holder()) is not None:
                known = newer
                continue
            if month_start_ms > month_ms:
                if month_ms >= 0:
                    loader_hash, first = loader_hash + 1, 0
                    prefix = self._prefix(loader_hash)
                month_ms = month_start_ms
            start = max(first, max(0, now_ms - month_ms) << _COUNTER_BITS)
            own: _Reserved = (month_ms, loader_hash, prefix, start + count, Claim())
            known = following.take(own)
            if known is own:
                self._newest = own
                return prefix, start

    def _prefix(self, loader_hash: int) -> bytes:
        return self._ip_and_pid + struct.pack(">I", loader_hash & 0xFFFFFFFF)


def month_start_ms(now_ms: int) -> int:
    """Start of the month of `now_ms` in the process's time zone, from which unique ids count. MessageClientIDSetter."""
    local = datetime.fromtimestamp(now_ms // 1000)
    return int(local.replace(day=1, hour=0, minute=0, second=0).timestamp()) * 1000


def unique_id_window_ms(text: str, now_ms: int) -> tuple[int, int]:
    """[begin, end], both included: the window in which a client searches for the message of a unique id at `now_ms`. It
    begins a second before the id was made (of two possible months the later one) and has no end. A text that is no
    unique id may be of any time.

    An id holds the time since the local start of *some* month. For a message older than a month the result is wrong; in
    another time zone it is some hours off. mqadmin uses [0, UNBOUNDED_MS] instead. Source: MQAdminImpl.java
    (queryMessageByUniqKey of 4.9.8).
    """
    if not _HEX.fullmatch(text):
        return 0, UNBOUNDED_MS
    month = month_start_ms(now_ms)
    made_ms = parse_unique_id(text).time_ms(now_ms, month, month_start_ms(month - 1))
    return max(0, made_ms - _CLOCK_SLACK_MS), UNBOUNDED_MS


def _unhex(what: str, text: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise UsageError(f"not {what} (32 or 56 hex digits): {text[:80]!r}")
    return bytes.fromhex(text)


def _hex_strings(rows: npt.NDArray[np.uint8]) -> pa.StringArray:
    """One upper-case hex text for each row of bytes."""
    count, width = rows.shape
    digits = _HEX_PAIRS[rows]
    offsets = np.arange(0, (count + 1) * width * 2, width * 2, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
