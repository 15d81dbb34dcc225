"""Shared by the tests of the store: fingerprints of directories, tiny geometries, working copies."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import StoreConfig


def _tree_hash(root: Path) -> str:
    """Names, kinds, sizes, modes and contents of everything below `root` (and the content of a lone file)."""
    digest = hashlib.sha256()
    for path in sorted([root, *root.rglob("*")]):
        state = path.lstat()
        digest.update(f"{path.relative_to(root)} {state.st_mode:o} {state.st_size}\n".encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@pytest.fixture
def tree_hash() -> Callable[[Path], str]:
    return _tree_hash


@pytest.fixture
def tiny() -> StoreConfig:
    """Files that roll after some dozens of messages."""
    return StoreConfig(
        mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=100
    )


@pytest.fixture
def small() -> StoreConfig:
    """Files that cost little to create and hash."""
    return StoreConfig(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=10_000,
    )


@pytest.fixture
def another_hour() -> str:
    """A `delete_when` half a day away by the clock of the machine: no segment goes because of the hour of the run."""
    return f"{(time.localtime().tm_hour + 12) % 24:02d}"


@pytest.fixture
def working_copy(scratch: Path) -> Callable[[Path], Path]:
    """Copies of a store that may be written; removed after the test."""

    def copy(source: Path) -> Path:
        target = scratch / f"copy-{len(list(scratch.iterdir()))}"
        shutil.copytree(source, target, copy_function=shutil.copyfile)
        for path in [target, *target.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        return target

    return copy
