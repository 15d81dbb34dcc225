"""Whoever opened a RocksDB store for writing, and found it empty, wrote what its broker could not read, and broke its
queues. So each kind of store is recognised by the names in it, and refused by name where a writer would break it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig, StoreKindError
from rmq_store.broker.repair.repair import examine
from rmq_store.cli import commands
from rmq_store.client import Producer
from rmq_store.kinds import COMMON, KINDS, Effect, find_kinds, queues_are_in

TreeHash = Callable[[Path], str]


def put(root: Path, name: str) -> None:
    """Make a file, or a directory if the name ends with a slash."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True) if name.endswith("/") else path.write_bytes(b"x")


@pytest.fixture
def root(tmp_path: Path, small: StoreConfig) -> Path:
    """A store with two messages in one topic, as a broker would leave it: nothing of ours but the lock."""
    root = tmp_path / "store"
    with Store.open(root, create=True, config=small) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"one", keys="k1"))
        store.send(Message("Orders", b"two", keys="k2"))
        store.commit_offsets("G", {("Orders", 0): 1})
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    return root


def without_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    (root / "consumequeue").mkdir()


def bodies(root: Path) -> list[bytes]:
    with Store.open(root, read_only=True) as store:
        found = store.queue_range("Orders", 0)
        batches = store.read("Orders", 0, found.min_offset, found.max_offset, columns=["body"])
        return [body for batch in batches for body in batch.column("body").to_pylist()]


ROCKSDB_FILES = [
    "CURRENT", "IDENTITY", "LOCK", "LOG", "LOG.old.1763000000000000", "MANIFEST-000005", "OPTIONS-000007", "000012.sst",
    "000004.log",
]  # fmt: skip

# A name -> the kind that it shows in a store with queues in files.
READ_ONLY = {
    **{f"consumequeue/{name}": "double write" for name in ROCKSDB_FILES},
    "consumequeue_rocksdb/CURRENT": "double write",
    "config/topics/": "RocksDB tables",
    "config/subscriptionGroups/": "RocksDB tables",
    "config/consumerOffsets/CURRENT": "RocksDB tables",
    "config/metadata/": "RocksDB tables",
    "config/rdb/000004.log": "RocksDB tables",
    "epochFileCheckpoint": "controller mode",
    "brokerIdentity": "controller mode",
    "commitlog/00000000000000000000.bak": "foreign entries",
    "commitlog/.00000000000000000000.Xq12": "foreign entries",
    "consumequeue/notes": "foreign entries",
    "consumequeue_ext/notes": "foreign entries",
    "consumequeue_v2/": "foreign entries",
    "index/notes": "foreign entries",
    "index/20261121002154882.tmp": "foreign entries",
    "index/rocksdb/": "foreign entries",
}

# What every newer broker makes, what others put beside, and what is no reason to refuse.
HARMLESS = [
    "rocksdbstore/CURRENT", "rocksdbstore/000012.sst", "compaction/position-checkpoint", "timerwheel",
    "timerlog/00000000000000000000", "kvStore/CURRENT", "config/tieredStoreMetadata.json", "config/newTable.json",
    "config/topics.json.old", "consumequeue_ext/Orders/0/00000000000000000000",
    "batchconsumequeue/Other/0/00000000000000000000", "consumequeue.bak/CURRENT", "commitlog/lost+found/",
    "consumequeue/lost+found/", "index/lost+found/", "lost+found/", "unknown/CURRENT", "CURRENT", "abort.bak",
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), READ_ONLY.items())
def test_a_store_with_a_sign_is_read_and_never_written(root: Path, tree_hash: TreeHash, name: str, kind: str) -> None:
    put(root, name)
    before = tree_hash(root)
    assert bodies(root) == [b"one", b"two"]
    with pytest.raises(StoreKindError) as raised:
        Store.open(root)
    assert raised.value.kind == kind
    assert raised.value.path == str(root)
    assert name.partition("/")[0] in str(raised.value)
    assert tree_hash(root) == before


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_writer_does_not_touch_is_no_reason_to_refuse_and_stays_as_it_is(root: Path, name: str) -> None:
    put(root, name)
    with Store.open(root) as store:
        store.send(Message("Orders", b"three"))
    assert bodies(root) == [b"one", b"two", b"three"]
    assert (root / name).is_dir() if name.endswith("/") else (root / name).read_bytes() == b"x"


@pytest.mark.parametrize("name", [*(f"consumequeue/{name}" for name in ROCKSDB_FILES), "consumequeue_rocksdb/"])
def test_a_store_with_queues_in_rocksdb_alone_is_not_taken_for_an_empty_one(
    root: Path, tree_hash: TreeHash, name: str
) -> None:
    without_queues(root)
    put(root, name)
    before = tree_hash(root)
    with pytest.raises(StoreKindError, match="storeType=defaultRocksDB"):
        Store.open(root)
    assert bodies(root) == [b"one", b"two"]
    assert queues_are_in(root) == "RocksDB"
    assert tree_hash(root) == before


def test_it_is_told_where_the_queues_are(root: Path) -> None:
    assert queues_are_in(root) == "files"
    put(root, "consumequeue_rocksdb/CURRENT")
    assert queues_are_in(root) == "both"
    without_queues(root)
    assert queues_are_in(root) == "RocksDB"


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("create", [True, False])
def test_a_dledger_log_is_neither_read_nor_written_nor_taken_for_nothing(
    root: Path, tree_hash: TreeHash, has_log: bool, create: bool
) -> None:
    put(root, "dledger-n0/data/00000000000000000000")
    if not has_log:
        shutil.rmtree(root / "commitlog")
    before = tree_hash(root)
    with pytest.raises(StoreKindError, match=r"dledger-n0: the broker keeps its log in DLedger"):
        Store.open(root, create=create)
    with pytest.raises(StoreKindError, match=r"dledger-n0"):
        Store.open(root, read_only=True)
    assert tree_hash(root) == before


def test_a_directory_with_nothing_but_a_dledger_log_is_named_too(tmp_path: Path) -> None:
    put(tmp_path, "commitlog/dledger-n1/data/00000000000000000000")
    put(tmp_path, "config/topics.json")
    with pytest.raises(StoreKindError, match=r"commitlog/dledger-n1"):
        Store.open(tmp_path, read_only=True)


@pytest.mark.parametrize(
    "rest", ["consumequeue", "config/topics.json", "consumequeue_rocksdb", "config/rdb", "pyrmq/store.json"]
)
def test_a_log_that_is_elsewhere_is_said_to_be(tmp_path: Path, tree_hash: TreeHash, rest: str) -> None:
    put(tmp_path, rest if rest.endswith(".json") else f"{rest}/")
    before = tree_hash(tmp_path)
    for how in ({}, {"create": True}, {"read_only": True}):
        with pytest.raises(StoreKindError, match=r"commitlog/ is missing, though .*storePathCommitLog") as raised:
            Store.open(tmp_path, **how)
        assert rest in str(raised.value)
    assert tree_hash(tmp_path) == before


def test_repair_moves_nothing_of_a_kind_that_is_not_written_here(root: Path, tree_hash: TreeHash) -> None:
    put(root, "consumequeue/CURRENT")
    put(root, "commitlog/notes")
    before = tree_hash(root)
    with pytest.raises(StoreKindError, match="queues in files and in RocksDB"):
        examine(root)
    answer = CliRunner().invoke(commands, ["repair", "--yes", "--store", str(root)], prog_name="rmq")
    assert answer.exit_code == 2
    assert tree_hash(root) == before


def test_repair_names_foreign_entries_and_moves_them_so_that_the_store_can_be_written(root: Path) -> None:
    put(root, "commitlog/notes")
    put(root, "consumequeue/notes")
    put(root, "index/notes")
    answer = CliRunner().invoke(commands, ["repair", "--yes", "--defaults", "--store", str(root)], prog_name="rmq")
    assert answer.exit_code == 0, answer.output
    for name in ("commitlog/notes", "consumequeue/notes", "index/notes"):
        assert f"{name}: it is moved away" in answer.output
    Store.open(root).close()
    assert bodies(root) == [b"one", b"two"]


WRITING_COMMANDS = [
    ["send", "Orders", "-"],
    ["updateTopic", "-t", "New"],
    ["deleteTopic", "-t", "Orders", "--yes"],
    ["updateSubGroup", "-g", "G"],
    ["consume", "Orders", "-g", "G"],
    ["retention", "run"],
    ["offsets", "reset", "G", "-t", "Orders", "--to-earliest", "--yes"],
    ["sendMessage", "-t", "Orders", "-p", "x"],
    ["broker", "run"],
]


@pytest.mark.parametrize("command", WRITING_COMMANDS, ids=lambda command: command[0])
def test_no_command_writes_to_such_a_store(root: Path, tree_hash: TreeHash, command: list[str]) -> None:
    put(root, "consumequeue/CURRENT")
    before = tree_hash(root)
    answer = CliRunner().invoke(commands, [*command, "--store", str(root)], prog_name="rmq")
    assert answer.exit_code == 2, answer.output
    assert "rocksdbCQDoubleWriteEnable" in answer.output
    assert tree_hash(root) == before


@pytest.mark.parametrize("name", ["consumequeue_v2/", "consumequeue_ext/notes", "index/rocksdb/"])
def test_repair_does_not_move_what_may_be_a_part_of_an_unknown_kind(root: Path, tree_hash: TreeHash, name: str) -> None:
    put(root, name)
    before = tree_hash(root)
    with pytest.raises(StoreKindError, match="not known here"):
        examine(root)
    assert tree_hash(root) == before


def test_no_producer_writes_to_such_a_store(root: Path, tree_hash: TreeHash) -> None:
    put(root, "epochFileCheckpoint")
    before = tree_hash(root)
    producer = Producer("P", root)
    with pytest.raises(Exception, match="controller"):
        producer.start()
    assert tree_hash(root) == before


def test_a_common_store_has_no_sign_and_all_signs_are_seen_at_once(root: Path) -> None:
    assert find_kinds(root) == []
    for name in [*READ_ONLY, *HARMLESS, "dledger-n0/data/00000000000000000000", "compaction/compactionLog/T/0/0"]:
        put(root, name)
    (root / "config" / "topicQueueMapping.json").write_text(json.dumps({"topicQueueMappingInfoMap": {"S": {}}}))
    seen = [one.kind for one in find_kinds(root)]
    not_together = {"RocksDB queues", "log elsewhere", COMMON.name}
    assert {kind.name for kind in seen} == {kind.name for kind in KINDS} - not_together
    assert [kind.effect for kind in seen] == sorted((kind.effect for kind in seen), key=list(Effect).index)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"topicQueueMappingInfoMap":{}}', '{"topicQueueMappingInfoMap":7}']
)
def test_a_mapping_that_names_no_topic_is_no_sign(root: Path, text: str) -> None:
    (root / "config" / "topicQueueMapping.json").write_text(text)
    assert find_kinds(root) == []
