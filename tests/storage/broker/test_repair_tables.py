"""`rmq repair` and tables that are whole as JSON, and hold what no process accepts: without it nobody could go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair import carry_out, examine
from rmq_store.errors import CorruptConfigError

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=200
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.send(Message("Orders", b"x", queue_id=0))
        store.commit_offsets("g", {("Orders", 0): 0})
        store.commit_offsets("g", {("Orders", 0): 1})
        store.create_topic("Later")
    return tmp_path / "store"


@pytest.mark.parametrize("backup", ["whole", "as bad"])
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("topics.json", '"Orders":{', '"../../evil":{'),
        ("topics.json", '"readQueueNums":4', '"readQueueNums":-4'),
        ("consumerOffset.json", "\t0:", '\t"x":'),
    ],
)
def test_a_value_that_no_process_accepts_is_put_right(root: Path, name: str, old: str, new: str, backup: str) -> None:
    path = root / "config" / name
    assert (path.with_name(f"{name}.bak")).exists()
    for file in (path, path.with_name(f"{name}.bak"))[: 1 + (backup == "as bad")]:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    with pytest.raises(CorruptConfigError), Store.open(root, read_only=True) as store:
        store.all_committed_offsets()
    plan = examine(root)
    assert [finding.path for finding in plan.findings] == [f"config/{name}"]
    assert carry_out(plan).status == "clean"
    assert new in (plan.trash.target / "config" / name).read_text()
    with Store.open(root) as store:
        assert "Orders" in store.topics()
        assert [row for batch in store.read("Orders", 0, 0, 1) for row in batch["body"].to_pylist()] == [b"x"]
        store.send(Message("Orders", b"y"))


@pytest.mark.parametrize("whole_directory", [False, True])
def test_topics_are_found_again_if_nothing_is_left_of_their_table(root: Path, whole_directory: bool) -> None:
    for path in (root / "config").iterdir():
        if whole_directory or path.name.startswith("topics.json"):
            path.unlink()
    if whole_directory:
        (root / "config").rmdir()
    plan = examine(root)
    assert [(finding.path, finding.problem) for finding in plan.findings] == [
        ("config/topics.json", "missing, and so is its backup")
    ]
    assert carry_out(plan).status == "clean"
    with Store.open(root) as store:
        assert {"Orders", "SCHEDULE_TOPIC_XXXX"} <= store.topics().keys()
        assert store.queue_range("Orders", 0) == (0, 1)
    assert not examine(root).is_needed


def test_a_store_without_queues_needs_no_topics(tmp_path: Path) -> None:
    Store.open(tmp_path / "new", create=True, config=CONFIG).close()
    for path in (tmp_path / "new" / "config").iterdir():
        path.unlink()
    assert not examine(tmp_path / "new").is_needed
