"""What was deleted on purpose stays deleted, also if a repair has to find the topics by their queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.deleted_topics import deleted_topics, record_deletion
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import CorruptConfigError


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    """Topics of three messages each, of which Gone was deleted."""
    root = scratch / "store"
    with Store.open(root, create=True, config=small) as store:
        for name in ("Orders", "Gone", "Again"):
            store.create_topic(name, 2)
            store.send_all([Message(name, b"%d" % number, queue_id=1) for number in range(3)])
        for name in ("Gone", "Again"):
            store.admin.delete_topic(name)
    return root


def _found(root: Path) -> set[str]:
    """The topics that a repair finds when the table of topics is lost."""
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_bytes(b"\xff")
    found = examine(root)
    assert "config/topics.json" in [finding.path for finding in found.findings]
    assert carry_out(found).problems == []
    with Store.open(root) as store:
        return {name for name in store.topics() if name in ("Orders", "Gone", "Again")}


@pytest.mark.parametrize("rebuilt", [False, True], ids=["queues", "queues made anew"])
def test_a_deleted_topic_does_not_come_back(root: Path, rebuilt: bool) -> None:
    if rebuilt:
        carry_out(examine(root, queues=True))
    assert _found(root) == {"Orders"}
    assert deleted_topics(root).keys() == {"Gone", "Again"}


def test_a_deleted_topic_that_was_made_again_and_used_comes_back(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("Again", 2)
        store.send(Message("Again", b"new", queue_id=0))
    assert _found(root) == {"Orders", "Again"}


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"[")], ids=["lost", "damaged"])
def test_without_the_list_deleted_topics_are_found_too(root: Path, damage: Callable[[Path], object]) -> None:
    damage(root / "pyrmq" / "deleted_topics.json")
    assert _found(root) == {"Orders", "Gone", "Again"}


def test_topics_without_queue_files_are_forgotten_and_a_damaged_list_begins_anew(root: Path) -> None:
    (root / "consumequeue" / "Again").rename(root / "consumequeue" / "Other")
    record_deletion(root, ["Orders"], 99)
    assert deleted_topics(root).keys() == {"Gone", "Orders"}
    path = root / "pyrmq" / "deleted_topics.json"
    for text in ('{"format": 2, "topics": {}}', '{"format": 1, "topics": {"a": "b"}}', "[1]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(CorruptConfigError):
            deleted_topics(root)
        record_deletion(root, ["Gone"], 5)
        assert json.loads(path.read_text()) == {"format": 1, "topics": {"Gone": 5}}
