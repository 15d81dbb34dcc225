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
