"""Who decides what was lost: messages that say who sent them and what they are, and what was acknowledged of them.

A body is 24 bytes and a payload:

    0   producer       each process that sends has a number of its own
    4   sequence       0, 1, 2, ... of that producer, in the order in which it sends
    8   call           sequence of the first message of the call (send, send_all, append, commit_staged) it came with
    12  count          how many messages that call has
    16  kind           which call it was
    20  crc            CRC-32 of the payload

A producer makes one call after the other, so what it left must be a prefix of what it sent: everything acknowledged,
perhaps the call that was under way, and never a part of a call.
"""

from __future__ import annotations

import os
import select
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crash.part import Counters

_HEAD = struct.Struct(">6I")
HEAD_BYTES = _HEAD.size

UNIT = 3
"""The kind of a call that is all or nothing across a power cut, too."""


class Sent(NamedTuple):
    """What a body says of itself."""

    producer: int
    sequence: int
    call: int
    count: int
    kind: int
    crc: int


def make_body(producer: int, sequence: int, call: int, count: int, kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(producer, sequence, call, count, kind, zlib.crc32(payload)) + payload


def read_body(body: bytes) -> Sent | None:
    """What a body says; None if its bytes are not those that were sent."""
    if len(body) < HEAD_BYTES:
        return None
    sent = Sent(*_HEAD.unpack_from(body))
    return sent if zlib.crc32(memoryview(body)[HEAD_BYTES:]) == sent.crc else None


# -- what a process tells before it dies ----------------------------------------------------------------------------

_TOLD = struct.Struct(">cII")
OPENED, ACK, CLOSING, CLOSED, FAILED = b"o", b"a", b"c", b"e", b"f"


def tell(pipe: int, what: bytes, producer: int = 0, number: int = 0) -> None:
    """Write one word to the parent: it survives this process. ACK: `number` messages of `producer` so far."""
    os.write(pipe, _TOLD.pack(what, producer, number))


class Told:
    """The reading end of the pipe: what a process told so far. `acknowledged`: how many messages of which producer."""

    def __init__(self) -> None:
        self._read, self.pipe = os.pipe()
        self._unread = b""
        self.words: Counter[bytes] = Counter()
        self.acknowledged: dict[int, int] = {}

    def for_parent(self) -> None:
        """After the fork: the parent does not write."""
        os.close(self.pipe)

    def wait(self, enough: Callable[[Told], bool], timeout_s: float) -> bool:
        """Read until `enough` holds; False if the process ended first, or time went by."""
        while not enough(self):
            if not select.select([self._read], [], [], timeout_s)[0] or not self._take():
                return False
        return True

    def drain(self) -> None:
        """Read to the end, and let go of the pipe. The process is dead, or will end by itself."""
        while self._take():
            pass
        os.close(self._read)

    def _take(self) -> bool:
        data = os.read(self._read, 1 << 16)
        self._unread += data
        whole = len(self._unread) - len(self._unread) % _TOLD.size
        for what, producer, number in _TOLD.iter_unpack(self._unread[:whole]):
            self.words[what] += 1
            if what == ACK:
                self.acknowledged[producer] = number
        self._unread = self._unread[whole:]
        return bool(data)


# -- what must be there ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ledger:
    """What was acknowledged in one store, over all its lives.

    `acknowledged`: of each producer the number of messages. `torn`: producers in whose last call the power was cut: an
    append may then be there in part, a unit not. `begun`: the first sequence of a producer that retention has left.
    """

    acknowledged: dict[int, int] = field(default_factory=dict)
    torn: set[int] = field(default_factory=set)
    begun: dict[int, int] = field(default_factory=dict)

    def note(self, told: Told) -> int:
        """Take over what a process told; returns how many messages were acknowledged to it."""
        self.acknowledged |= told.acknowledged
        return sum(told.acknowledged.values())


def compare(queues: Mapping[object, Iterable[bytes]], ledger: Ledger) -> Counters:
    """Count how the bodies of each queue, in queue order, differ from what the ledger promises."""
    counters = Counters()
    present: dict[int, Counter[int]] = {producer: Counter() for producer in ledger.acknowledged}
    calls: dict[tuple[int, int], Sent] = {}
    for queue, bodies in queues.items():
        newest: dict[int, int] = {}
        for number, body in enumerate(bodies):
            sent = read_body(body)
            if sent is None:
                counters.altered += 1
                counters.note(f"queue {queue}: message {number} has other bytes than were sent: {body[:HEAD_BYTES]!r}")
                continue
            known = newest.get(sent.producer, -1)
            if sent.sequence < known:
                counters.reordered += 1
                counters.note(f"queue {queue}: {sent} comes behind number {known}")
            newest[sent.producer] = max(known, sent.sequence)
            present.setdefault(sent.producer, Counter())[sent.sequence] += 1
            calls[sent.producer, sent.call] = sent
    for producer, sequences in present.items():
        _compare_producer(producer, sequences, ledger, counters)
    for sent in calls.values():
        if sent.producer in ledger.torn and sent.kind != UNIT:
            continue
        there = sum(sequence in present[sent.producer] for sequence in range(sent.call, sent.call + sent.count))
        acknowledged = sent.call < ledger.acknowledged.get(sent.producer, 0)
        if there != sent.count and not acknowledged:
            counters.broken += 1
            counters.note(f"{there} of {sent.count} messages of a call that was not acknowledged are visible: {sent}")
    return counters


def _compare_producer(producer: int, sequences: Counter[int], ledger: Ledger, counters: Counters) -> None:
    acknowledged = ledger.acknowledged.get(producer, 0)
    begun = ledger.begun.get(producer, 0)
    if lost := [sequence for sequence in range(begun, acknowledged) if sequence not in sequences]:
        counters.lost += len(lost)
        counters.note(f"producer {producer}: {len(lost)} of {acknowledged} acknowledged are missing, first {lost[0]}")
    if doubled := [sequence for sequence, times in sequences.items() if times > 1]:
        counters.duplicated += sum(sequences[sequence] - 1 for sequence in doubled)
        counters.note(f"producer {producer}: {doubled[:5]} are there more than once")
    beyond = sorted(sequence for sequence in sequences if sequence >= acknowledged)
    if beyond != list(range(acknowledged, acknowledged + len(beyond))):
        counters.broken += 1
        counters.note(f"producer {producer}: {beyond[:5]} are there, {acknowledged} were acknowledged: a gap")


def read_queues(store: object, topic: str) -> tuple[dict[object, list[bytes]], list[str]]:
    """Bodies of every queue of a topic of an open `Store`, in queue order; and what was wrong with the offsets."""
    queues: dict[object, list[bytes]] = {}
    wrong = []
    for queue_id, (first, last) in store.queue_ranges(topic).items():  # type: ignore[attr-defined]
        bodies = queues[topic, queue_id] = []
        offsets: list[int] = []
        for batch in store.read(topic, queue_id, first, last, columns=["queueOffset", "body"]):  # type: ignore[attr-defined]
            offsets += batch.column("queueOffset").to_pylist()
            bodies += batch.column("body").to_pylist()
        if offsets != list(range(first, last)):
            wrong.append(f"{topic}, queue {queue_id}: offsets {offsets} are not those from {first} to {last}")
    return queues, wrong


def verify(root: Path, counters: Counters) -> None:
    """Count it as broken if the independent checker says anything else of the store."""
    from rmq_store.verify import verify_store

    report = verify_store(root)
    # A key without an entry is only a note for the checker: retention may have taken an index file.
    if report.status != "clean" or report.unindexed_keys:
        counters.broken += 1
        found = [*report.problems[:3], *report.recovery[:3], *report.notes[:3]]
        counters.note(f"verify says {report.status}, {report.unindexed_keys} keys not indexed: {found}")
