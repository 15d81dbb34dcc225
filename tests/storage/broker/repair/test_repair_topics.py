"""`rmq repair` and topics that have queues, and are not in a table that can be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.deleted_topics import deleted_topics
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.broker.repair.repair_settings import Given
from rmq_store.verify import verify_store

CONFIG = StoreConfig(8192, 2000, 50, 200)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topics with messages, of which Gone was deleted."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for name in ("Orders", "Gone"):
            store.create_topic(name, 3)
            store.send(Message(name, b"x", queue_id=2))
        store.admin.delete_topic("Gone")
    return tmp_path / "store"


def forget(root: Path, topic: str) -> None:
    """As a table does that was made anew in the place of a lost one."""
    TopicTable(root).delete(topic)


def test_a_topic_that_its_table_lost_is_found_by_its_queues(root: Path) -> None:
    assert not examine(root).is_needed
    forget(root, "Orders")
    found = examine(root)
    assert [(finding.path, finding.problem) for finding in found.findings] == [
        ("config/topics.json", "topics with queues are not in it: Orders")
    ]
    assert carry_out(found).status == "clean"
    with Store.open(root) as store:
        assert store.topic("Orders").read_queue_nums == 3
        assert "Gone" not in store.topics()
    assert not examine(root).is_needed


def test_also_if_its_queues_have_to_be_made_first(root: Path) -> None:
    forget(root, "Orders")
    found = examine(root, queues=True)
    for path in sorted((root / "consumequeue" / "Orders").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "consumequeue" / "Orders").rmdir()
    found = examine(root, queues=True)
    assert "config/topics.json" not in [finding.path for finding in found.findings]
    carry_out(found)
    assert "Orders" in TopicTable(root).all()
    assert not examine(root).is_needed


@pytest.mark.parametrize("was_opened", [False, True])
def test_also_in_a_store_that_a_broker_used_last(root: Path, was_opened: bool) -> None:
    """A broker that deletes a topic takes its queues with it (DefaultMessageStore#deleteTopics)."""
    with (root / "lock").open("r+b") as file:
        file.write(b"lock")
    forget(root, "Orders")
    if was_opened:
        Store.open(root).close()
    found = examine(root)
    assert [finding.problem for finding in found.findings] == ["topics with queues are not in it: Orders"]
    assert carry_out(found).status == "clean"
    assert TopicTable(root).get("Orders").read_queue_nums == 3
    assert "Gone" not in TopicTable(root).all()


@pytest.mark.parametrize("was_opened", [False, True])
def test_a_bare_log_tells_all_its_topics(root: Path, was_opened: bool) -> None:
    """Nothing but `commitlog/` is left; who opened it for writing has made a table that names none of them."""
    bare = root.parent / "bare"
    shutil.copytree(root / "commitlog", bare / "commitlog")
    if was_opened:
        Store.open(bare, config=CONFIG).close()
        assert "Orders" not in TopicTable(bare).all()
        assert verify_store(bare).status == "damaged"
    carry_out(examine(bare, given=Given(config=CONFIG)) if not was_opened else examine(bare))
    known = TopicTable(bare).all()
    assert {"Orders", "Gone"} <= known.keys()  # what was deleted is no more known than the rest
    assert known["Orders"].read_queue_nums == 3
    with Store.open(bare) as store:
        assert store.queue_range("Orders", 2) == (0, 1)
    assert verify_store(bare).status == "clean"
    assert not examine(bare).is_needed


def test_what_was_deleted_stays_deleted_if_the_list_of_it_is_damaged(root: Path) -> None:
    path = root / "pyrmq" / "deleted_topics.json"
    path.write_text("[")
    found = examine(root)
    assert [finding.path for finding in found.findings] == ["pyrmq/deleted_topics.json"]
    carry_out(found)
    assert (found.trash.target / "pyrmq" / "deleted_topics.json").read_text() == "["
    assert deleted_topics(root).keys() == {"Gone"}
    assert json.loads(path.read_text())["format"] == 1
    assert not examine(root).is_needed
    assert "Gone" not in TopicTable(root).all()
