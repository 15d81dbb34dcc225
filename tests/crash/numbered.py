"""Messages for Spark: bodies of text that say who sent them, which they are, and the CRC of what follows.

    <producer>/<sequence>/<CRC-32 of the payload>/<payload>
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from crash.part import Counters

Name = tuple[str, int]


def numbered(producer: str, sequences: range, chance: random.Random) -> list[str]:
    """The bodies of some messages of one producer."""
    payloads = [f"{chance.getrandbits(8 * chance.randrange(4, 40)):x}" for _ in sequences]
    return [
        f"{producer}/{sequence}/{zlib.crc32(payload.encode())}/{payload}"
        for sequence, payload in zip(sequences, payloads, strict=True)
    ]


def bodies_of(path: Path, topic: str) -> list[str]:
    """All bodies of a topic, queue by queue; none if there is no such topic, or no store yet."""
    from rmq_store import NotAStoreError, Store

    try:
        with Store.open(path, read_only=True) as store:
            if topic not in store.topics():
                return []
            batches: list[pa.RecordBatch] = [
                batch
                for queue_id, limits in store.queue_ranges(topic).items()
                for batch in store.read(topic, queue_id, *limits, columns=["body"])
            ]
    except NotAStoreError:
        return []
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


def compare(found: Iterable[str], sent: Mapping[str, int], counters: Counters, where: str) -> None:
    """Count what became of the messages: `sent` says how many each producer has sent. Whoever calls has waited until
    all of them had to be there.
    """
    seen: Counter[Name] = Counter()
    for body in found:
        try:
            producer, sequence, crc, payload = body.split("/", 3)
            sound = zlib.crc32(payload.encode()) == int(crc) and int(sequence) < sent.get(producer, 0)
        except ValueError:
            sound = False
        if not sound:
            counters.altered += 1
            counters.note(f"{where}: {body[:80]!r} is not what was sent")
            continue
        seen[producer, int(sequence)] += 1
    for producer, count in sent.items():
        counters.acknowledged += count
        for sequence in range(count):
            times = seen[producer, sequence]
            if times == 0:
                counters.lost += 1
                counters.note(f"{where}: message {sequence} of {producer} is lost")
            elif times > 1:
                counters.duplicated += times - 1
                counters.note(f"{where}: message {sequence} of {producer} is there {times} times")


def check_store(path: Path, counters: Counters, where: str) -> None:
    """Let the verifier, which shares nothing with the engine, look at a store that nobody has open."""
    from rmq_store.verify import verify_store

    report = verify_store(path)
    if report.problem_count:
        counters.broken += 1
        counters.note(f"{where}: {report.problems[0]}")
