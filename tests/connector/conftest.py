"""Fixtures of the connector's tests: a home in memory for the planning code, one Spark session for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from pyspark_rmq.offsets import Queue
from rmq_store.errors import LeaseHeldError, UnknownTopicError


class FakeRange(NamedTuple):
    min_offset: int
    max_offset: int


class FakeLease:
    def __init__(self) -> None:
        self.alive = True

    def heartbeat(self) -> bool:
        return self.alive

    def held(self) -> bool:
        return self.alive

    def release(self) -> None:
        self.alive = False


@dataclass
class FakeHome:
    """Queues as plain numbers: message `i` of every queue is stored at `base + 100 * i`, at time `1000 * i`."""

    queues: dict[Queue, tuple[int, int]]
    identity: str = "store-1"
    base: int = 0
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    commits: list[dict[Queue, int]] = field(default_factory=list)
    leases: dict[tuple[str, str], FakeLease] = field(default_factory=dict)
    log_end: int | None = None
    looked_up: int = 0

    def refresh(self) -> None:
        pass

    def topics(self) -> dict[str, object]:
        return {queue.topic: None for queue in self.queues}

    def queue_ranges(self, topic: str) -> dict[int, FakeRange]:
        if topic not in self.topics():
            raise UnknownTopicError(f"no topic {topic!r}")
        return {queue.queue_id: FakeRange(*limits) for queue, limits in self.queues.items() if queue.topic == topic}

    def log_range(self) -> tuple[int, int]:
        return 0, self.log_end if self.log_end is not None else self.base + 100 * 10_000

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        self.looked_up += 1
        low, high = self.queues[Queue(topic, queue_id)]
        return self.base + 100 * (queue_offset - 1) if low < queue_offset <= high else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        low, high = self.queues[Queue(topic, queue_id)]
        return max(low, min(high, -(-timestamp_ms // 1000)))

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        assert self.queues[Queue(topic, queue_id)][0] <= start
        return 100 * (end - start)

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        return min(end, start + max(1, limit_bytes // 100))

    def committed_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        return dict(self.committed)

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        self.commits.append(dict(offsets))
        self.committed.update(offsets)

    def lease(self, group: str, topic: str, owner: str) -> FakeLease:
        held = self.leases.get((group, topic))
        if held is not None and held.alive:
            raise LeaseHeldError(f"group {group!r}: {topic!r} is held by 'query A'", "query A")
        self.leases[group, topic] = FakeLease()
        return self.leases[group, topic]

    def close(self) -> None:
        pass

    def __enter__(self) -> FakeHome:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@pytest.fixture
def fake_home() -> Callable[..., FakeHome]:
    """Make a home: `fake_home({Queue("T", 0): (min, max)}, **fields)`."""
    return FakeHome


@pytest.fixture
def stream_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Make a stream reader on a fake home, as a new planning process would: `stream_reader(home, **options)`."""
    from pyspark_rmq import reader, stream_reader
    from pyspark_rmq.options import source_options
    from pyspark_rmq.schema import SOURCE_SCHEMA

    def make(home: FakeHome, **options: str) -> stream_reader.RmqStreamReader:
        for module in (reader, stream_reader):
            monkeypatch.setattr(module, "open_to_read", lambda options: home)
        monkeypatch.setattr(stream_reader, "open_to_commit", lambda options: home)
        given = {"path": "/nowhere"} | ({} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "T"})
        return stream_reader.RmqStreamReader(source_options(given | options, "stream read", 1_000_000), SOURCE_SCHEMA)

    yield make
