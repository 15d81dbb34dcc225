"""Fixtures shared by all suites: the stores that a real RocketMQ broker wrote, and scratch copies of them."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from helpers import server_process, spark_jvm
from rmq_store.broker.write import disk_space

pytest.register_assert_rewrite("compat.stores.reading", "compat.stores.expectations")
pytest_plugins = ["helpers.server_fixtures", "helpers.kafka_fixtures", "helpers.cluster.fixtures"]

# No example is timed: machines are noisy. CI tries the same examples each time, everybody else new ones.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A killed process leaves in the page cache what it wrote. So a test that kills processes or databases finds the same in
# memory as on a disk, and does not wait for fsync. Where memory offers no room for files, the disk serves.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30


def _memory() -> Path | None:
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return None
    return MEMORY


if _memory():
    os.environ.setdefault(server_process.DIRECTORY, str(MEMORY))

os.environ.update({name: value for name, value in spark_jvm.environment().items() if name not in os.environ})


def pytest_collection_finish() -> None:
    """Exempt the tests that were found, and all modules, from garbage collection: they stay until the end, and each
    full collection would walk millions of objects. A forked child would copy their pages.
    """
    gc.freeze()


GOLDEN = Path(__file__).resolve().parent / "data" / "golden"
SHIPPED = Path(__file__).resolve().parents[1] / "examples" / "data"


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        # Absent before 3.11.4.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(target)
    return target


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """store/, manifest.json, sends.jsonl, deliveries.jsonl, files.tsv. Never write below it: use `copy_store`.

    The store is the one in examples/data. tests/data/golden/README.md describes the other files.
    """
    path = _unpack(SHIPPED / "rocketmq-5.5.0-store.tar.xz", tmp_path_factory.mktemp("golden"))
    return _unpack(GOLDEN / "rocketmq-5.5.0-answers.tar.xz", path)


@dataclass(frozen=True, slots=True)
class BrokerStore:
    """The store in examples/data. Never write below `path`: use `copy_store`.

    `topics`: {topic: {queue id: (first offset, next offset)}} of all topics with messages, `groups`: {group: {topic:
    {queue id: committed offset}}}, both as RocketMQ's Java client saw them.
    """

    path: Path
    broker_name: str
    message_count: int
    topics: dict[str, dict[int, tuple[int, int]]]
    groups: dict[str, dict[str, dict[int, int]]]


@pytest.fixture(scope="session")
def broker_store(tmp_path_factory: pytest.TempPathFactory) -> BrokerStore:
    """A real 5.5.0 broker's store that comes with the project."""
    path = _unpack(SHIPPED / "rocketmq-5.5.0-store.tar.xz", tmp_path_factory.mktemp("broker")) / "store"
    manifest = json.loads((SHIPPED / "rocketmq-5.5.0-store.json").read_text(encoding="utf-8"))
    topics = {
        topic: {int(queue): (first, last) for queue, (first, last) in queues.items()}
        for topic, queues in manifest["topics"].items()
    }
    groups = {
        group: {topic: {int(queue): offset for queue, offset in queues.items()} for topic, queues in offsets.items()}
        for group, offsets in manifest["groups"].items()
    }
    return BrokerStore(path, manifest["brokerName"], manifest["messageCount"], topics, groups)


@pytest.fixture(scope="session")
def golden_crash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """store/, store-torn/, store-recovered.json, store-torn-recovered.json, acked.jsonl: see tests/data/golden."""
    return _unpack(GOLDEN / "rocketmq-5.5.0-crash.tar.xz", tmp_path_factory.mktemp("crash"))


@pytest.fixture(scope="session")
def golden_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """normal/, propcrc/, crash/: tiny stores that the 5.x store classes wrote. Never write below it."""
    return _unpack(GOLDEN / "store-classes.tar.xz", tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def copy_store() -> Callable[[Path, Path], Path]:
    """Copy a store (first path) to a writable place (second), keeping holes; returns that place."""

    def copy(source: Path, target: Path) -> Path:
        subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)
        subprocess.run(["chmod", "-R", "u+rwX", str(target)], check=True)
        return target

    return copy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process that begins the longest test as its last one lets the others wait.

    Warnings are no errors where there is a Spark: PySpark leaves sockets open, and tells of versions of pandas.
    """
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def _a_disk_with_room(request: pytest.FixtureRequest) -> Iterator[None]:
    """A store warns and refuses by how full its disk is. The host's disk decides no test but those marked real_disk.

    It has a patch of its own: a test that undoes its own patches keeps this one.
    """
    with pytest.MonkeyPatch.context() as patched:
        if request.node.get_closest_marker("real_disk") is None:
            patched.setattr(disk_space, "_used_percent", lambda path: 10)
        yield


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty directory that is removed at once after the test (stores are large when preallocated)."""
    path = tmp_path / "scratch"
    path.mkdir()
    yield path  # type: ignore[misc]
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def fast_scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """As `scratch`, in memory where that is possible: for tests in which nothing depends on a disk."""
    path = Path(tempfile.mkdtemp(prefix="rmq-test-", dir=_memory() or tmp_path_factory.getbasetemp()))
    yield path
    shutil.rmtree(path, ignore_errors=True)
