"""What is not known here, and in nobody's way, is no reason to refuse a store, and is never lost: a backup of a store
that a broker had used before left its timers behind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import Message, NotAStoreError, Store, StoreConfig, SubscriptionGroup, backup
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.cli import commands
from rmq_store.format.tables.config_json import dumps, loads
from rmq_store.verify import verify_store

STRANGERS = {
    "timerwheel": b"\0\1" * 100,
    "timerlog/00000000000000000000": b"timers",
    "rocksdbstore/CURRENT": b"MANIFEST-000005\n",
    "rocksdbstore/deep/er/000012.sst": b"sst",
    "kvStore/LOCK": b"",
    "consumequeue_ext/Orders/0/00000000000000000000": b"filters",
    "compaction/position-checkpoint": b"",
    "consumequeue.bak/CURRENT": b"old",
    "config/unknown.json": b'{"a":{1:2}}',
    "config/state": b"what a newer broker keeps",
    "config/deep/table": b"table",
    "abort.bak": b"",
    "unknown": b"?",
}
TABLES = {
    "topics.json": ("topicConfigTable", "Orders"),
    "subscriptionGroup.json": ("subscriptionGroupTable", "G"),
}
MEMBER = {"newer": [1, {"x": None}], "text": "é"}


@pytest.fixture
def root(tmp_path: Path, small: StoreConfig) -> Path:
    """A store of ours with unknown files, and unknown members in its tables."""
    root = tmp_path / "store"
    with Store.open(root, create=True, config=small) as store:
        store.create_topic("Orders", 1)
        store.create_group(SubscriptionGroup("G"))
        store.send(Message("Orders", b"one"))
        store.commit_offsets("G", {("Orders", 0): 1})
    for name, content in STRANGERS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for name, (part, entry) in TABLES.items():
        change(root / "config" / name, lambda table, part=part, entry=entry: table[part][entry].update(own=MEMBER))
        change(root / "config" / name, lambda table: table.update(own=MEMBER))
    change(root / "config" / "consumerOffset.json", lambda table: table.update(own=MEMBER))
    return root


def change(path: Path, mutate: Callable[[dict[str, Any]], object]) -> None:
    table = loads(path.read_text())
    mutate(table)
    path.write_text(dumps(table))


def check_kept(root: Path) -> None:
    assert {name: (root / name).read_bytes() for name in STRANGERS} == STRANGERS
    for name, (part, entry) in TABLES.items():
        table = loads((root / "config" / name).read_text())
        assert (table["own"], table[part][entry]["own"]) == (MEMBER, MEMBER), name
    assert loads((root / "config" / "consumerOffset.json").read_text())["own"] == MEMBER


def write(root: Path) -> None:
    with Store.open(root) as store:
        store.send(Message("Orders", b"two"))
        store.create_topic("New", 1)
        store.update_group(SubscriptionGroup("G", retry_max_times=3))
        store.commit_offsets("G", {("Orders", 0): 2})
        store.retention.run()


def test_writers_keep_unknown_files_and_members(root: Path) -> None:
    write(root)
    check_kept(root)
    assert verify_store(root).status == "clean"


def test_repair_keeps_unknown_files_and_members(root: Path) -> None:
    found = examine(root, queues=True, index=True)
    assert [finding.path for finding in found.findings] == []
    assert carry_out(found).status == "clean"
    check_kept(root)


def test_a_backup_has_unknown_files_and_members_too(root: Path, tmp_path: Path) -> None:
    with Store.open(root):  # also while it is in use
        backup(root, tmp_path / "copy")
    check_kept(tmp_path / "copy")
    write(tmp_path / "copy")
    check_kept(tmp_path / "copy")


def test_a_backup_copies_nothing_that_lies_outside_of_the_store(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (root / "timerlog" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotAStoreError, match="timerlog/link"):
        backup(root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_store_that_is_only_read_is_copied_as_it_is(
    root: Path, tmp_path: Path, tree_hash: Callable[[Path], str]
) -> None:
    """Ours was the last one that wrote it; then a broker began to keep its queues in RocksDB, too."""
    (root / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    before = tree_hash(root)
    answer = CliRunner().invoke(commands, ["backup", str(root), str(tmp_path / "copy")], prog_name="rmq")
    assert answer.exit_code == 0, answer.output
    assert tree_hash(root) == before
    check_kept(tmp_path / "copy")
    assert (tmp_path / "copy" / "consumequeue" / "CURRENT").read_bytes() == b"MANIFEST-000005\n"
    with Store.open(tmp_path / "copy", read_only=True) as store:
        assert store.queue_range("Orders", 0) == (0, 1)
