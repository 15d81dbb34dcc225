"""A store whose clock the test turns, and messages parked in it by hand."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.rules.timer import PYRMQ_TIMER_TOPIC, timer_queue_id
from rmq_store.broker.write import disk_space
from rmq_store.files import durable
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.verify import verify_store

PARKER = Host.parse("10.1.2.3:10911")
PRODUCER = Host.parse("10.9.8.7:0")


@dataclass
class Parking:
    """One store, made with `config`; time stands still until `now_ms` is changed. Its flush thread never wakes up."""

    root: Path
    config: StoreConfig = field(
        default_factory=lambda: StoreConfig(
            mapped_file_size_commit_log=65536,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=64,
            max_index_num=1000,
            flush_interval_commit_log=10**9,
        )
    )
    now_ms: int = 1_700_000_000_000

    def clock(self) -> int:
        return self.now_ms

    def open(self, **options: Any) -> Store:
        if options.get("read_only"):
            return Store.open(self.root, **options)
        return Store.open(self.root, create=True, config=self.config, clock=self.clock, **options)

    def park(
        self,
        store: Store,
        level: int,
        bodies: Sequence[bytes],
        topic: str = "T",
        queue_id: int | Sequence[int] = 0,
        **columns: Any,
    ) -> None:
        """Store messages at a delay level, each with its own UNIQ_KEY and a tag. `columns` go to the encoder."""
        own = {"DELAY": str(level), "REAL_TOPIC": topic, "TAGS": "TagA"}
        delays = np.full(len(bodies), store._log.delay_levels_ms[level - 1], np.int64)
        self._append(store, "SCHEDULE_TOPIC_XXXX", level - 1, bodies, queue_id, own, delays, columns)

    def park_until(
        self,
        store: Store,
        due_ms: int,
        bodies: Sequence[bytes],
        topic: str = "T",
        queue_id: int | Sequence[int] = 0,
        **columns: Any,
    ) -> None:
        """Store messages that wait for a time."""
        own = {"TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": topic, "TAGS": "TagA"}
        timer = timer_queue_id(due_ms - self.now_ms)
        delays = np.full(len(bodies), due_ms - self.now_ms, np.int64)
        self._append(store, PYRMQ_TIMER_TOPIC, timer, bodies, queue_id, own, delays, columns)

    def _append(
        self,
        store: Store,
        parking_topic: str,
        parking_queue: int,
        bodies: Sequence[bytes],
        queue_id: int | Sequence[int],
        own: Mapping[str, str],
        delays: np.ndarray,
        columns: Mapping[str, Any],
    ) -> None:
        count = len(bodies)
        queues = [queue_id] * count if isinstance(queue_id, int) else queue_id
        properties = columns.get("properties", {})
        rows = [
            [*({"UNIQ_KEY": f"U-{body[:20].hex()}", **own, "REAL_QID": str(queue), **properties}).items()]
            for body, queue in zip(bodies, queues, strict=True)
        ]
        batch = {
            "topic": pa.array([parking_topic] * count),
            "body": pa.array(bodies, pa.binary()),
            "properties": pa.array(rows, pa.map_(pa.string(), pa.string())),
            **{name: pa.array([value] * count) for name, value in columns.items() if name != "properties"},
        }
        options = EncodeOptions(
            store_host=PARKER,
            born_host=PRODUCER,
            now_ms=self.now_ms - 77,
            crc_property=store._log.crc_property,
            index_tags=store._log.index_tags,
        )
        queue_ids = np.full(count, parking_queue, np.int32)
        encoded = encode_batch(pa.RecordBatch.from_pydict(batch), queue_ids=queue_ids, options=options)
        place = encoded.schema.get_field_index("delay_ms")
        encoded = encoded.set_column(place, "delay_ms", pa.array(delays))
        with append_lock(store._log):
            append(store._log, [encoded])

    def bodies(self, store: Store, topic: str = "T", queue_id: int | None = None) -> list[bytes]:
        """What a topic holds, in queue order; of all its queues one behind the other."""
        queues = store.queue_ranges(topic) if queue_id is None else {queue_id: store.queue_range(topic, queue_id)}
        return [
            body
            for number, (first, last) in sorted(queues.items())
            for batch in store.read(topic, number, first, last, columns=["body"])
            for body in batch.column("body").to_pylist()
        ]

    def rows(self, store: Store, topic: str, queue_id: int) -> list[dict[str, Any]]:
        """Every column of every message of a queue."""
        first, last = store.queue_range(topic, queue_id)
        return [row for batch in store.read(topic, queue_id, first, last) for row in batch.to_pylist()]


@pytest.fixture
def parking(scratch: Path) -> Parking:
    made = Parking(scratch / "store")
    with made.open() as store:
        store.create_topic("T", queue_count=2)
    return made


@dataclass
class Shop:
    """A store with small segments, a clock that the test turns, and a disk that is as full as the test says."""

    root: Path
    now_ms: int = 1_699_963_200_000  # 2023-11-14 at noon, UTC
    usage: int | None = 10
    sleeps: list[float] = field(default_factory=list)
    config: StoreConfig = field(
        default_factory=lambda: StoreConfig(
            mapped_file_size_commit_log=8192,
            mapped_file_size_consume_queue=400,
            max_hash_slot_num=16,
            max_index_num=50,
            flush_interval_commit_log=10**9,
            default_topic_queue_nums=1,
        )
    )

    def open(self, **options: Any) -> Store:
        options = {"create": True, "config": self.config, **options} if not options.get("read_only") else options
        store = Store.open(self.root, clock=lambda: self.now_ms, **options)
        store._retention._sleep = self.sleeps.append
        return store

    def fill(self, store: Store, segments: int, topic: str = "T") -> None:
        """Send messages until the log has so many files."""
        number = store.queue_range(topic, 0).max_offset if topic in store.topics() else 0
        while len(self.bases()) < segments:
            store.send(Message(topic, b"%08d" % number + b"." * 500, keys=f"K{number}"))
            number += 1

    def bases(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / "commitlog").iterdir())

    def age(self, hours: float, *bases: int) -> None:
        """Make files so old; all but the newest one if none is named."""
        for base in bases or self.bases()[:-1]:
            seconds = self.now_ms / 1000 - hours * 3600
            os.utime(self.root / "commitlog" / f"{base:020d}", (seconds, seconds))

    def numbers(self, store: Store, topic: str = "T") -> list[int]:
        first, last = store.queue_range(topic, 0)
        parts = store.read(topic, 0, first, last, columns=["body"])
        return [int(body[:8]) for part in parts for body in part.column("body").to_pylist()]

    def is_sound(self) -> bool:
        report = verify_store(self.root)
        return not report.problems


@pytest.fixture
def shop(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(scratch / "store")
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: made.usage)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield made
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


@pytest.fixture
def no_hook() -> Iterator[None]:
    """What a test hangs into the file layer is gone after it."""
    yield
    durable.hook = None


@pytest.fixture
def tmp_path(fast_scratch: Path) -> Path:
    """In memory: nothing here depends on a disk. Tests of `files` and `log`, and of whole stores, are on one."""
    return fast_scratch
