"""A small store, working copies of it, and a place to see whether anything was written outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from crash.conftest import fast_directory  # noqa: F401 - a fixture
from rmq_store import Message, StagingArea, Store, StoreConfig, SubscriptionGroup

TINY = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64
)


def fill(root: Path) -> None:
    """A bit of everything: topics, groups, offsets, a delayed message, a unit, pops, two segments."""
    with Store.open(root, create=True, config=TINY) as store:
        store.create_topic("Victim", queue_count=2)
        store.create_group(SubscriptionGroup("billing"))
        for number in range(60):
            store.send(Message("Victim", b"x" * 200, tags="T", keys=f"k{number}", queue_id=number % 2))
        store.send(Message("Victim", b"later", delay_level=18))
        store.commit_offsets("billing", {("Victim", 0): 3})
        store.commit_offsets("billing", {("Victim", 0): 4})
        with StagingArea.for_task(root, "write", 0, 0, topic="Victim") as area:
            area.write(pa.RecordBatch.from_pydict({"body": [b"staged"]}))
            staged = area.finish()
        assert staged is not None
        store.commit_staged([staged], key="query", value=1)
        store.pop.receive("billing", "Victim", 2, 60_000)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never write below it."""
    root = tmp_path_factory.mktemp("security") / "store"
    fill(root)
    return root


@pytest.fixture
def copy(filled: Path, fast_directory: Path) -> Iterator[Callable[[], Path]]:  # noqa: F811
    """Working copies, each in a directory of its own, so that what lies beside it can be watched."""
    made = []

    def make() -> Path:
        root = fast_directory / f"copy-{len(made)}" / "deep" / "store"
        shutil.copytree(filled, root, symlinks=True)
        made.append(root)
        return root

    yield make
    for root in made:
        shutil.rmtree(root.parents[1], ignore_errors=True)
