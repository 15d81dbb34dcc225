"""`rmq repair` and tables that are whole as JSON, and hold what no process accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig, SubscriptionGroup
from rmq_store.broker.repair.repair import carry_out, examine
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
    ("name", "old", "new", "problem"),
    [
        ("topics.json", '"Orders":{', '"../../evil":{', "topics with queues are not in it: Orders"),
        ("topics.json", '"readQueueNums":4', '"readQueueNums":-4', "entries that cannot be used: 'Orders'"),
        ("consumerOffset.json", "\t0:", '\t"x":', "entries that cannot be used: 'Orders@g'"),
    ],
)
def test_an_entry_that_no_process_accepts_is_put_right_where_it_can_be_had_again(
    root: Path, name: str, old: str, new: str, problem: str, backup: str
) -> None:
    path = root / "config" / name
    assert (path.with_name(f"{name}.bak")).exists()
    for file in (path, path.with_name(f"{name}.bak"))[: 1 + (backup == "as bad")]:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    before = path.read_text()
    plan = examine(root)
    can_be_had = backup == "whole" or name == "topics.json"
    assert [(finding.path, finding.problem) for finding in plan.findings] == [(f"config/{name}", problem)] * can_be_had
    assert [note for note in plan.report.notes if note.startswith(f"config/{name}: ")]
    assert carry_out(plan).status == "clean"
    if "entries" in problem and can_be_had:
        assert (plan.trash.target / "config" / name).read_text() == before
    with Store.open(root) as store:
        assert store.topics()["Orders"].read_queue_nums in (1, 4)
        offsets = store.committed_offsets("g")
        known = {("Orders", 0): 1 if name == "topics.json" else 0}
        assert offsets == (known if can_be_had else {})
        assert [row for batch in store.read("Orders", 0, 0, 1) for row in batch["body"].to_pylist()] == [b"x"]
        store.send(Message("Orders", b"y"))
    assert not examine(root).is_needed


ODD_GROUPS = '"":{"groupName":""},"a b":{},"g":null,"h":{"retryMaxTimes":"3"},"i":{"brokerId":9223372036854775808}'


def test_repair_leaves_the_settings_of_all_groups_whatever_one_of_them_is(root: Path) -> None:
    path = root / "config" / "subscriptionGroup.json"
    path.write_text('{"subscriptionGroupTable":{"j":{"retryMaxTimes":7},' + ODD_GROUPS + "}}")
    before = path.read_bytes()
    plan = examine(root)
    assert not plan.is_needed
    assert len([note for note in plan.report.notes if note.startswith("config/subscriptionGroup.json: group ")]) == 5
    assert plan.report.status == "clean"
    carry_out(plan)
    assert path.read_bytes() == before
    with Store.open(root) as store:
        assert store.groups().keys() == {"j"}
        store.create_group(SubscriptionGroup("new"))
        assert store.groups()["j"].retry_max_times == 7
        for name in ("g", "h", "i"):
            with pytest.raises(CorruptConfigError, match="kept as it is"):
                store.create_group(SubscriptionGroup(name))
    assert ODD_GROUPS in "".join(path.read_text().split()).replace('"ab"', '"a b"')


def test_repair_takes_no_offset_back_that_can_be_read(root: Path) -> None:
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"Orders@g":{0:"x",1:9},"Later@g":{0:4}}}')
    path.with_name(f"{path.name}.bak").write_text('{"offsetTable":{"Orders@g":{0:3,1:5},"Later@g":{0:1}}}')
    carry_out(examine(root))
    with Store.open(root, read_only=True) as store:
        assert store.committed_offsets("g") == {("Orders", 0): 3, ("Orders", 1): 9, ("Later", 0): 4}


def test_a_topic_and_a_group_that_cannot_be_used_can_be_deleted(root: Path) -> None:
    for name in ("topics.json", "subscriptionGroup.json"):
        path = root / "config" / name
        part = "topicConfigTable" if name == "topics.json" else "subscriptionGroupTable"
        path.write_text('{"' + part + '":{"Odd":{"attributes":3}}}')
    with Store.open(root) as store:
        assert store.admin.clean_unused_topics().topics == ()
        with pytest.raises(CorruptConfigError, match="'Odd'"):
            store.send(Message("Odd", b"y"))
        with pytest.raises(CorruptConfigError, match="'Odd'"):
            store.topic("Odd")
        assert store.admin.delete_topic("Odd").topics == ("Odd",)
        assert store.admin.delete_group("Odd").groups == ("Odd",)
        store.send(Message("Odd", b"y"))


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
