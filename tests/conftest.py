"""Fixtures shared by all suites: the stores that a real RocketMQ broker wrote, and scratch copies of them."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "golden"


def _unpack(archive: Path, target: Path) -> Path:
    if not archive.exists():
        pytest.skip(f"needs {archive.name} of the project's shared material beside the checkout")
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`golden-5x/`: store/, manifest.json, sends.jsonl, deliveries.jsonl. Never write below it: use `copy_store`."""
    return _unpack(SHARED / "rocketmq-5.5.0.tar.xz", tmp_path_factory.mktemp("golden")) / "golden-5x"


@pytest.fixture(scope="session")
def golden_crash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`golden-5x-crash/`: store/, store-torn/, store-recovered.json, store-torn-recovered.json, acked.jsonl."""
    return _unpack(SHARED / "rocketmq-5.5.0-crash.tar.xz", tmp_path_factory.mktemp("crash")) / "golden-5x-crash"


@pytest.fixture(scope="session")
def golden_small() -> Path:
    """`small/`: normal/, propcrc/, crash/ by the 5.x store classes; read-only, unpacked in place."""
    if not (SHARED / "small").is_dir():
        pytest.skip("needs golden/small of the project's shared material beside the checkout")
    return SHARED / "small"


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store to a writable place, keeping holes."""
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)
    subprocess.run(["chmod", "-R", "u+rwX", str(target)], check=True)
    return target


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty directory that is removed at once after the test (stores are large when preallocated)."""
    path = tmp_path / "scratch"
    path.mkdir()
    yield path  # type: ignore[misc]
    shutil.rmtree(path, ignore_errors=True)
