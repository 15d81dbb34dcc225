"""Stores of every kind, made by released brokers from 4.4.0 to 5.5.0, read and written by `Store`.

Each archive of tests/data/stores holds a store and what its own broker answered about it, just before it was stopped:
`make compat-stores` makes them anew (tests/compat/stores). Nothing of ours has written to them.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.stores import expectations, reading
from compat.stores.reading import Manifest
from rmq_store import StoreKindError
from rmq_store.kinds import queues_are_in
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

ARCHIVES = Path(__file__).parents[1] / "data" / "stores"
KINDS = sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))
TreeHash = Callable[[Path], str]


def unpack(kind: str, target: Path) -> Path:
    with tarfile.open(ARCHIVES / f"{kind}.tar.xz") as tar:
        # Absent before 3.11.4.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(target)
    return target


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Iterator[Path]:
    """A reader, which changes nothing, and then a writer use the same copy."""
    target = unpack(kind, tmp_path_factory.mktemp("kind") / "unpacked")
    yield target
    shutil.rmtree(target)


@pytest.fixture(scope="module")
def manifest(root: Path) -> Manifest:
    loaded: Manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    return loaded


def test_there_is_a_store_of_each_kind_that_has_a_recipe() -> None:
    from compat.stores.recipes import RECIPES

    assert KINDS == sorted(RECIPES)


@pytest.mark.parametrize("kind", KINDS, indirect=True, scope="module")
def test_a_reader_sees_what_the_broker_said_and_changes_nothing(
    root: Path, kind: str, manifest: Manifest, tree_hash: TreeHash
) -> None:
    reading.check_manifest(manifest)
    before = tree_hash(root)
    expectations.check_reading(root, kind, manifest)
    assert tree_hash(root) == before


@pytest.mark.parametrize("kind", KINDS, indirect=True, scope="module")
def test_a_writer_appends_and_changes_nothing_else_or_refuses_and_changes_nothing(
    root: Path, kind: str, manifest: Manifest, tree_hash: TreeHash
) -> None:
    wanted = expectations.expectation(kind)
    if wanted.unwritable:
        before = tree_hash(root)
        with pytest.raises(StoreKindError, match=wanted.unwritable):
            expectations.write(root, kind)
        assert tree_hash(root) == before
        return
    before = expectations.contents(root)
    expectations.write(root, kind)
    assert expectations.changed(before, expectations.contents(root)) == []
    with expectations.open_store(root, kind, read_only=True) as store:
        expectations.check_unchanged(store, kind, manifest)
    report = verify_store(root / "store")
    assert (report.status, report.problems) == ("clean", [])


def test_queues_made_from_the_log_are_those_that_the_broker_wrote_entry_by_entry(scratch: Path) -> None:
    """Without its queues in files it is a store with queues in RocksDB alone, of which we have both."""
    kind = "double-write"
    root = unpack(kind, scratch / "unpacked")
    manifest: Manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    queues = [(topic, queue_id) for topic, queue_id, _ in reading.queues_of(manifest)]

    def entries() -> dict[tuple[str, int], list[tuple[int, ...]]]:
        with expectations.open_store(root, kind, read_only=True) as store:
            return {
                (topic, queue_id): store.queue_entries(topic, queue_id, *store.queue_range(topic, queue_id)).tolist()
                for topic, queue_id in queues
            }

    in_files = entries()
    assert sum(map(len, in_files.values())) >= 74
    for queue in (root / "store" / "consumequeue").iterdir():
        if queue.is_dir():
            shutil.rmtree(queue)
    assert queues_are_in(root / "store") == "RocksDB"
    assert entries() == in_files
