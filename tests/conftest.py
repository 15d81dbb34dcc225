"""Fixtures shared by all suites: the stores that a real RocketMQ broker wrote, and scratch copies of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import spark_jvm

pytest.register_assert_rewrite("compat.stores.reading", "compat.stores.expectations")
pytest_plugins = ["server_fixtures", "kafka_fixtures"]

# No example is timed: machines are noisy. CI tries the same examples each time, everybody else new ones.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

os.environ.update({name: value for name, value in spark_jvm.environment().items() if name not in os.environ})

SHARED = Path(__file__).resolve().parents[2] / "shared" / "golden"
SHIPPED = Path(__file__).resolve().parents[1] / "examples" / "data"


def _unpack_shared(name: str, target: Path) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"needs {name} of the project's shared material beside the checkout")
    return _unpack(SHARED / name, target)


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        # Absent before 3.11.4.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(target)
    return target


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`golden-5x/`: store/, manifest.json, sends.jsonl, deliveries.jsonl. Never write below it: use `copy_store`."""
    return _unpack_shared("rocketmq-5.5.0.tar.xz", tmp_path_factory.mktemp("golden")) / "golden-5x"


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
    """`golden-5x-crash/`: store/, store-torn/, store-recovered.json, store-torn-recovered.json, acked.jsonl."""
    return _unpack_shared("rocketmq-5.5.0-crash.tar.xz", tmp_path_factory.mktemp("crash")) / "golden-5x-crash"


@pytest.fixture(scope="session")
def golden_small() -> Path:
    """`small/`: normal/, propcrc/, crash/ by the 5.x store classes; read-only, unpacked in place."""
    if not (SHARED / "small").is_dir():
        pytest.skip("needs golden/small of the project's shared material beside the checkout")
    return SHARED / "small"


@pytest.fixture(scope="session")
def copy_store() -> Callable[[Path, Path], Path]:
    """Copy a store (first path) to a writable place (second), keeping holes; returns that place."""

    def copy(source: Path, target: Path) -> Path:
        subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)
        subprocess.run(["chmod", "-R", "u+rwX", str(target)], check=True)
        return target

    return copy


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty directory that is removed at once after the test (stores are large when preallocated)."""
    path = tmp_path / "scratch"
    path.mkdir()
    yield path  # type: ignore[misc]
    shutil.rmtree(path, ignore_errors=True)
