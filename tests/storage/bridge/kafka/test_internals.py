"""The versions of kafka-python that the bridge can use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.net.manager import KafkaConnectionManager
from kafka.record import MemoryRecords

from rmq_store.bridge.kafka import internals
from rmq_store.errors import UsageError

OLDEST = "3.0.0"
HERE = Path(__file__).parent
SEAM = [str(HERE / name) for name in ("test_raw_fetch.py", "test_raw_live.py")]


def test_this_version_has_all_that_is_used() -> None:
    assert internals.missing() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [(KafkaConnectionManager, "call_soon"), (Fetcher, "PartitionRecords"), (MemoryRecords, "_buffer")],
)
def test_a_version_without_something_is_refused_by_name(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(UsageError, match=f"kafka-python {kafka.__version__} .* has no .*{owner.__name__}.{name}"):
        internals.check()


def test_a_module_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka.net.manager", None)
    assert internals.missing() == ["net.manager:KafkaConnectionManager"]


def test_attributes_of_objects_are_looked_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetcher.PartitionRecords, "__init__", lambda self: None)
    lost = internals.missing()
    assert "Fetcher.PartitionRecords.next_fetch_offset" in lost
    assert "Fetcher.PartitionRecords(fetch_offset, tp, records, ...)" in lost


def test_the_check_is_part_of_the_import() -> None:
    code = (
        "from kafka.net.manager import KafkaConnectionManager; del KafkaConnectionManager.call_soon\n"
        "import rmq_store.bridge.kafka.raw_fetch"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "it has no KafkaConnectionManager.call_soon" in done.stderr


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the oldest kafka-python."""
    target = tmp_path_factory.mktemp("kafka-python")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(target), f"kafka-python=={OLDEST}"], capture_output=True, text=True, check=False
    )
    if done.returncode and os.environ.get("RMQ_TEST_SERVERS") != "required":
        pytest.skip(f"kafka-python {OLDEST} cannot be had: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    yield target


@pytest.mark.slow
def test_the_seam_works_with_the_oldest_version_too(oldest: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(oldest)}
    seen = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import kafka; print(kafka.__version__)"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert seen.stdout.strip() == OLDEST
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SEAM],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
