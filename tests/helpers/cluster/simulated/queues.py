"""The messages of a simulated broker: generated ones, which take no memory, and behind them those that were sent."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

MAGIC: Final = 0xDAA320A7 - (1 << 32)
LOOPBACK: Final = bytes((127, 0, 0, 1))
START_MS: Final = 1_700_000_000_000
_FIXED: Final = struct.Struct(">iiIiiqqiq4siq4siiqi")
_FIXED_BYTES: Final = _FIXED.size
# As a broker gives from memory: so many messages, or so many bytes, but one at least.
PULL_MESSAGES: Final = 32
PULL_BYTES: Final = 256 << 10
FILTERED_MESSAGES: Final = 800


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What a broker stores of one message; times in ms."""

    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = START_MS
    store_ms: int = START_MS
    reconsume_times: int = 0


def record(topic: str, queue_id: int, queue_offset: int, log_offset: int, port: int, message: SentMessage) -> bytes:
    """A record as it lies in a log and comes in an answer to a pull (MessageDecoder.java), hosts on 127.0.0.1."""
    name = topic.encode()
    rest = struct.pack(f">B{len(name)}sh", len(name), name, len(message.properties)) + message.properties
    fixed = _FIXED.pack(
        _FIXED_BYTES + len(message.body) + len(rest), MAGIC, zlib.crc32(message.body) & 0x7FFFFFFF, queue_id,
        message.flag, queue_offset, log_offset, message.sys_flag, message.born_ms, LOOPBACK, port, message.store_ms,
        LOOPBACK, port, message.reconsume_times, 0, len(message.body),
    )  # fmt: skip
    return fixed + message.body + rest


@dataclass(slots=True)
class SimulatedQueue:
    """Offsets [first, generated) have messages with bodies "message <offset>", one a second from START_MS on."""

    topic: str
    queue_id: int
    port: int
    log_offsets: Iterator[int]
    first: int = 0
    generated: int = 0
    sent: list[bytes] = field(default_factory=list)
    store_times_ms: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.generated + len(self.sent)

    def append(self, message: SentMessage) -> tuple[int, int]:
        """(queue offset, commit-log offset)."""
        offset, log_offset = self.end, next(self.log_offsets)
        self.sent.append(record(self.topic, self.queue_id, offset, log_offset, self.port, message))
        self.store_times_ms.append(message.store_ms)
        return offset, log_offset

    def record_at(self, offset: int) -> bytes:
        """The record at an offset in [first, end)."""
        if offset >= self.generated:
            return self.sent[offset - self.generated]
        time_ms = START_MS + offset * 1000
        message = SentMessage(b"message %d" % offset, born_ms=time_ms, store_ms=time_ms)
        # Log offsets grow with queue offsets, as in a log that all queues share.
        return record(self.topic, self.queue_id, offset, (offset + 1) * 4096 + self.queue_id, self.port, message)

    def store_ms_at(self, offset: int) -> int:
        """When the message at an offset was stored."""
        return START_MS + offset * 1000 if offset < self.generated else self.store_times_ms[offset - self.generated]

    def pull(self, offset: int, count: int, tag: str = "*") -> tuple[list[bytes], int]:
        """(records, next offset) from an offset in [first, end). With tags (`a || b`) a broker looks at
        FILTERED_MESSAGES or more until it has found enough.
        """
        records: list[bytes] = []
        size = 0
        looked_at = count if tag == "*" else max(count, FILTERED_MESSAGES)
        at = offset
        wanted = [f"TAGS\x01{one.strip()}\x02".encode() for one in tag.split("||")]
        for at in range(offset, min(offset + looked_at, self.end)):
            one = self.record_at(at)
            if tag != "*" and not any(property_of_tag in one for property_of_tag in wanted):
                continue
            if len(records) == PULL_MESSAGES or (records and size + len(one) > PULL_BYTES):
                return records, at
            records.append(one)
            size += len(one)
        return records, at + 1

    def search(self, time_ms: int) -> int:
        """The first offset whose message was stored at this time or later; `end` if there is none."""
        return next((at for at in range(self.first, self.end) if self.store_ms_at(at) >= time_ms), self.end)


class SimulatedQueues:
    """The topics of one broker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.topics: dict[str, dict[int, SimulatedQueue]] = {}
        # (readQueueNums, writeQueueNums) of topics whose queues are not all open.
        self._counts: dict[str, tuple[int, int]] = {}
        self._log_offsets = itertools.count(1 << 40, 4096)

    def create(self, topic: str, queue_count: int, message_count: int = 0, first: int = 0) -> None:
        """Make a topic; each queue holds generated messages [first, message_count)."""
        queues = self.topics.setdefault(topic, {})
        for queue_id in range(queue_count):
            queues.setdefault(
                queue_id, SimulatedQueue(topic, queue_id, self.port, self._log_offsets, first, message_count)
            )

    def set_counts(self, topic: str, read: int, write: int) -> None:
        """As `mqadmin updateTopic -r READ -w WRITE`: queues that are there stay."""
        self.create(topic, max(read, write))
        self._counts[topic] = read, write

    def counts(self, topic: str) -> tuple[int, int]:
        """(readQueueNums, writeQueueNums)."""
        count = len(self.topics[topic])
        return self._counts.get(topic, (count, count))

    def get(self, topic: str, queue_id: int) -> SimulatedQueue | None:
        """A queue; None if it is not there."""
        return self.topics.get(topic, {}).get(queue_id)


def inner_messages(body: bytes, fields: Mapping[str, str], now_ms: int) -> Iterator[SentMessage]:
    """The messages in the body of a batch (MessageDecoder.encodeMessage)."""
    at = 0
    while at < len(body):
        total, _, _, flag, length = struct.unpack_from(">iiiii", body, at)
        text = body[at + 20 : at + 20 + length]
        (properties_length,) = struct.unpack_from(">h", body, at + 20 + length)
        start = at + 22 + length
        yield SentMessage(
            text, body[start : start + properties_length], flag, int(fields["f"]), int(fields["g"]), now_ms
        )
        at += total
