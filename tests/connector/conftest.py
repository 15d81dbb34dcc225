"""Fixtures of the connector's tests: a home in memory for the planning code, one Spark session for the rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pytest

from pyspark_rmq.position.position import Queue
from rmq_store import Store, StoreConfig, starts_at_first_message
from rmq_store.errors import CorruptRecordError, LeaseHeldError, UnknownTopicError

ROOT = Path(__file__).resolve().parents[2]

# Spark's workers import from these; they do not see pytest's sys.path.
WORKER_PATH = [ROOT / "storage", ROOT / "connector", ROOT / "tests" / "connector" / "workers"]

# Small files, so that a test store costs nothing and rolls often.
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=500,
    max_index_num=2000,
)


def worker_environment() -> dict[str, str]:
    """What the JVM must be started with."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, WORKER_PATH)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests: two cores, and a task is tried four times (plain `local[2]` never tries again)."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(worker_environment())
    time.tzset()
    sys.path.append(str(WORKER_PATH[-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("pyspark-rmq tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "OFF")
            # A stream that has nothing to do says so after a second, not after ten.
            .config("spark.sql.streaming.noDataProgressEventInterval", "1000")
            .getOrCreate()
        )
    # Outside: the first test that asks for the session would ignore its warnings too.
    yield session
    session.stop()
    sys.path.remove(str(WORKER_PATH[-1]))
    os.environ.clear()
    os.environ.update(before)
    time.tzset()


@pytest.fixture(autouse=True)
def questions_of_plans() -> Iterator[set[Any]]:
    """A question that a plan of a stream asks anywhere in this suite, and that no absence meets, fails its test."""
    from .read.questions import recording, without_row

    with recording() as asked:
        yield asked
    new = without_row(asked)
    assert not new, f"AT_BROKERS in tests/connector/read/questions.py lacks {new}"


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Make a small store: with `make_store("name", Orders=100)` topic Orders holds `Orders-0` to `Orders-99`."""

    def make(name: str = "store", **counts: int) -> Path:
        with Store.open(tmp_path / name, create=True, config=SMALL) as store:
            for topic, count in counts.items():
                store.create_topic(topic, 4)
                _append(store, topic, 0, count)
        return tmp_path / name

    return make


@pytest.fixture
def add_messages() -> Callable[..., None]:
    """Append messages to a store: `add_messages(path, "Orders", 100, 120)`."""

    def add(path: Path, topic: str, first: int, last: int) -> None:
        with Store.open(path) as store:
            _append(store, topic, first, last)

    return add


def _append(store: Store, topic: str, first: int, last: int) -> None:
    numbers = range(first, last)
    if numbers:
        bodies = pa.array([f"{topic}-{number}".encode() for number in numbers])
        tags = pa.array(["TagA" if number % 2 == 0 else "TagB" for number in numbers])
        keys = pa.array([f"K{number}" for number in numbers])
        store.append(pa.record_batch({"body": bodies, "tags": tags, "keys": keys}), topic)


@pytest.fixture
def bodies() -> Callable[..., list[str]]:
    """All bodies of a topic as text, sorted: `bodies(path, "Orders")`; none if there is no such topic."""

    def read(path: Path, topic: str) -> list[str]:
        with Store.open(path, read_only=True) as store:
            if topic not in store.topics():
                return []
            batches = [
                batch
                for queue_id, limits in store.queue_ranges(topic).items()
                for batch in store.read(topic, queue_id, *limits, columns=["body"])
            ]
        return sorted(body.decode() for batch in batches for body in batch.column("body").to_pylist())

    return read


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
class FakePin:
    start_offset: int
    end_offset: int
    held: bool = True

    def release(self) -> None:
        self.held = False


@dataclass
class FakeStore:
    """Queues as plain numbers: message `i` of every queue is stored at `base + 100 * i`, at time `1000 * i`; but those
    from `later_from` on `times_ms` later.
    """

    queues: dict[Queue, tuple[int, int]]
    identity: str = "store-1"
    base: int = 0
    times_ms: int = 0
    later_from: int = 0
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    names_of_groups: tuple[str, ...] = ("g", "cg")  # those with settings
    commits: list[dict[Queue, int]] = field(default_factory=list)
    leases: dict[tuple[str, str], FakeLease] = field(default_factory=dict)
    log_end: int | None = None
    damaged: set[int] = field(default_factory=set)  # queue offsets
    closed: set[Queue] = field(default_factory=set)  # not open for reading, readQueueNums is smaller
    looked_up: int = 0
    due: list[Queue] = field(default_factory=list)  # each becomes a message of its queue at the next delivery
    deliveries: list[int | None] = field(default_factory=list)
    pins: list[FakePin] = field(default_factory=list)

    second_read_is_cheap: ClassVar[bool] = True

    def deliver_due(self, limit: int | None) -> None:
        self.deliveries.append(limit)
        while self.due:
            queue = self.due.pop()
            low, high = self.queues.get(queue, (0, 0))
            self.queues[queue] = low, high + 1

    def refresh(self) -> None:
        pass

    def unpin(self) -> None:
        pass

    def topics(self) -> dict[str, object]:
        return {queue.topic: None for queue in self.queues}

    def find_topic(self, name: str) -> object | None:
        return name if name in self.topics() else None

    def unlisted_topics(self) -> dict[str, object]:
        return {}

    def queue_ranges(self, topic: str) -> dict[int, FakeRange]:
        if topic not in self.topics():
            raise UnknownTopicError(f"no topic {topic!r}")
        here = {queue: limits for queue, limits in self.queues.items() if queue.topic == topic}
        return {queue.queue_id: FakeRange(*limits) for queue, limits in here.items() if queue not in self.closed}

    def queue_range(self, topic: str, queue_id: int) -> FakeRange:
        return self.ranges([Queue(topic, queue_id)])[Queue(topic, queue_id)]

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, FakeRange]:
        return {queue: FakeRange(*self.queues.get(queue, (0, 0))) for queue in queues}

    def log_range(self) -> tuple[int, int]:
        return 0, self.log_end if self.log_end is not None else self.base + 100 * 10_000

    def version(self) -> tuple[int, int]:
        return self.log_range()

    def is_still(self, version: object) -> bool:
        return self.log_range() == version

    def starts_at_first_message(self, group: str, queue: Queue, max_offset: int) -> bool:
        return starts_at_first_message(self, *queue, max_offset)  # type: ignore[arg-type]

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        self.looked_up += 1
        low, high = self.queues[Queue(topic, queue_id)]
        return self.base + 100 * (queue_offset - 1) if low < queue_offset <= high else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        low, high = self.queues[Queue(topic, queue_id)]
        return next((at for at in range(low, high) if self.store_timestamp(topic, queue_id, at) >= timestamp_ms), high)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        low, high = self.queues[Queue(topic, queue_id)]
        assert low <= queue_offset < high
        if queue_offset in self.damaged:
            raise CorruptRecordError("commitlog/0", self.base + 100 * queue_offset, "damaged")
        return 1000 * queue_offset + (self.times_ms if queue_offset >= self.later_from else 0)

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        assert self.queues[Queue(topic, queue_id)][0] <= start
        return 100 * (end - start)

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        return min(end, start + max(1, limit_bytes // 100))

    def pin(self, start_offset: int, end_offset: int) -> FakePin:
        self.pins.append(FakePin(start_offset, end_offset))
        return self.pins[-1]

    def committed_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        return dict(self.committed)

    def known_groups(self) -> set[str]:
        return {*self.names_of_groups, *({"g"} if self.committed else ())}

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

    def __enter__(self) -> FakeStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Location:
    """A location at which `home` is, whoever opens it for what."""

    index_is_exact = True
    queues_turn_up_late = False
    in_progress: ClassVar[dict[str, str]] = {"path": "/nowhere"}

    def __init__(self, home: Any) -> None:
        self._home = home

    def open_to_read(self) -> Any:
        return self._home

    def open_to_commit(self, group: str) -> Any:
        return self._home

    def in_task(self) -> Any:
        return self._home

    def identity(self) -> StoreIdentity:
        return StoreIdentity()


class StoreIdentity:
    """Of a store that nobody replaces."""

    def is_unchanged(self) -> bool:
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def fake_store() -> Callable[..., FakeStore]:
    """Make a home: `fake_store({Queue("T", 0): (min, max)}, **fields)`."""
    return FakeStore


@pytest.fixture
def stream_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Make a stream reader on a fake home, as a new planning process would: `stream_reader(home, **options)`."""
    from pyspark_rmq.options.options import source_options
    from pyspark_rmq.read import stream_reader, task
    from pyspark_rmq.schema.schema import SOURCE_SCHEMA

    def make(home: FakeStore, **options: str) -> stream_reader.RmqStreamReader:
        for module in (stream_reader, task):
            monkeypatch.setattr(module, "location_of", lambda options: Location(home))
        given = {"path": "/nowhere"} | ({} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "T"})
        return stream_reader.RmqStreamReader(source_options(given | options, "stream read", 1_000_000), SOURCE_SCHEMA)

    yield make


CONNECT_TIMEOUT = pytest.mark.timeout(1800)
"""Five tests take turns at the port, and each ends its program after 300 s at the latest."""


@contextlib.contextmanager
def connect_port() -> Iterator[None]:
    """Be the only test with a local server of Spark Connect: all of them listen on the same port.

    The wait counts for pytest-timeout: a test needs `CONNECT_TIMEOUT`, and a bound of its own for its program.
    """
    with (Path(tempfile.gettempdir()) / "pyspark-rmq-connect-port").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., str]:
    """Run a program that has a Spark of its own, and return what it prints: `run_program(source, *arguments)`."""

    def run(source: str, *arguments: object) -> str:
        # In a file: Spark Connect looks for the program in the stack.
        program = tmp_path / "program.py"
        program.write_text(source, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(program), *map(str, arguments)]
        environment = os.environ | worker_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run


@pytest.fixture
def run_until_killed() -> Callable[..., None]:
    """Run a program of workers/ that kills itself: `run_until_killed("killed_consumer.py", *arguments)`."""

    def run(program: str, *arguments: object) -> None:
        command = [sys.executable, str(ROOT / "tests" / "connector" / "workers" / program), *map(str, arguments)]
        environment = os.environ | worker_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]

    return run
