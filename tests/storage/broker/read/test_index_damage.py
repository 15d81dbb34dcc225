"""An index that cannot be used, or counts otherwise, keeps nobody from the messages: who asks the index is told."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rmq_store import CorruptIndexError, Message, Store, StoreConfig, UsageError
from rmq_store.cli import commands
from rmq_store.format.views import index as layout
from rmq_store.log.core.geometry import infer
from rmq_store.verify import verify_store

MESSAGES = 20

TreeHash = Callable[[Path], str]


def config(tiny: StoreConfig) -> StoreConfig:
    return replace(tiny, max_hash_slot_num=8, enabled_append_prop_crc=False)


def fill(store: Store, count: int = MESSAGES) -> None:
    for number in range(count):
        store.send(Message("T", b"%d" % number, keys=f"k{number % 5}", queue_id=0))


def header(path: Path) -> layout.IndexHeader:
    return layout.IndexHeader.unpack(path.read_bytes())


def set_slots(path: Path, number: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 32, number)
    path.write_bytes(data)


def files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def bodies(store: Store) -> list[bytes]:
    span = store.queue_range("T", 0)
    batches = store.read("T", 0, *span, columns=["body"])
    return [body for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture
def broker(scratch: Path, tiny: StoreConfig) -> Path:
    """A store as a broker leaves it."""
    root = scratch / "broker"
    with Store.open(root, create=True, config=config(tiny)) as store:
        store.create_topic("T", queue_count=1)
        fill(store)
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    return root


@pytest.fixture
def old_broker(broker: Path) -> Path:
    """One up to 4.7.0, which counts each entry where later ones count each slot."""
    for path in files(broker):
        assert header(path).hash_slot_count < header(path).index_count - 1
        set_slots(path, header(path).index_count - 1)
    return broker


# -- how an old broker counts ----------------------------------------------------------------------------------------


def test_a_store_of_an_old_broker_is_read_and_searched_as_any(old_broker: Path, tree_hash: TreeHash) -> None:
    before = tree_hash(old_broker)
    with Store.open(old_broker, read_only=True) as store:
        assert (store.config.max_hash_slot_num, store.config.max_index_num) == (8, 100)
        assert len(bodies(store)) == MESSAGES
        assert [found.body for found in store.query.by_key("T", "k1")] == [b"16", b"11", b"6", b"1"]
    assert verify_store(old_broker).status == "clean"
    assert tree_hash(old_broker) == before


@pytest.mark.parametrize("way", ["one by one", "many", "views built again", "killed"])
def test_who_writes_to_the_file_of_an_old_broker_counts_as_it_does(
    old_broker: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "killed":
        (old_broker / "abort").write_bytes(b"1")
    with Store.open(old_broker) as store:
        if way == "many":
            store.send_all([Message("T", b"m", keys=f"k{n}", queue_id=0) for n in range(30)])
        else:
            fill(store, 60)
    counted = [(header(path).hash_slot_count, header(path).index_count - 1) for path in files(old_broker)]
    assert len(counted) > (way != "many")
    assert all(slots == entries for slots, entries in counted), counted
    report = verify_store(old_broker)
    assert (report.status, report.unindexed_keys) == ("clean", 0)
    if way == "views built again":
        Store.open(old_broker, rebuild_views=True).close()
        assert verify_store(old_broker).status == "clean"


def test_who_writes_to_the_file_of_a_later_broker_counts_slots(broker: Path) -> None:
    with Store.open(broker) as store:
        fill(store, 5)
    assert all(header(path).hash_slot_count <= 8 for path in files(broker))
    assert verify_store(broker).status == "clean"


def test_a_file_that_two_brokers_counted_is_sound_and_one_that_none_did_is_not(broker: Path) -> None:
    path, slots = files(broker)[-1], header(files(broker)[-1]).hash_slot_count
    entries = header(path).index_count - 1
    for number, status in ((slots + 1, "clean"), (entries, "clean"), (slots - 1, "damaged"), (entries + 1, "damaged")):
        set_slots(path, number)
        assert verify_store(broker).status == status
        assert infer(broker, StoreConfig().geometry()).of_index() == (8, 100)


# -- an index that nobody can use ------------------------------------------------------------------------------------


def spoil(root: Path) -> None:
    for path in files(root):
        data = bytearray(path.read_bytes())
        data[40:] = np.random.default_rng(7).bytes(len(data) - 40)
        path.write_bytes(data)


@pytest.mark.parametrize("read_only", [True, False])
def test_messages_can_be_read_and_written_beside_a_broken_index(
    broker: Path, read_only: bool, tree_hash: TreeHash, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(broker)
    before = tree_hash(broker / "index")
    for number in range(2):
        with caplog.at_level(logging.WARNING), Store.open(broker, read_only=read_only) as store:
            assert len(bodies(store)) == MESSAGES + number * (not read_only)
            with pytest.raises(CorruptIndexError, match=r"no geometry fits.*`rmq repair --index`"):
                store.query.by_key("T", "k1")
            if not read_only:
                store.send(Message("T", b"new", keys="k1"))
        assert tree_hash(broker / "index") == before
    told = [record for record in caplog.records if "will not be found by its keys" in record.getMessage()]
    assert len(told) == (0 if read_only else 2)


@pytest.mark.parametrize("way", ["rmq repair", "the file is put back"])
def test_a_broken_index_is_built_again_with_all_that_was_stored_beside_it(
    broker: Path, way: str, scratch: Path
) -> None:
    shutil.copytree(broker / "index", scratch / "index")
    spoil(broker)
    with Store.open(broker) as store:
        fill(store, 5)
    if way == "rmq repair":
        CliRunner().invoke(commands, ["repair", "--store", str(broker), "--index", "--yes"], catch_exceptions=False)
    else:
        shutil.rmtree(broker / "index")
        shutil.copytree(scratch / "index", broker / "index")
    given = None if way == "rmq repair" else StoreConfig(max_hash_slot_num=8, max_index_num=100)
    with Store.open(broker, config=given) as store:
        assert [found.body for found in store.query.by_key("T", "k1")] == [b"1", b"16", b"11", b"6", b"1"]
    report = verify_store(broker)
    assert (report.status, report.unindexed_keys) == ("clean", 0)


def test_an_index_with_other_sizes_than_ours_is_left_alone(
    scratch: Path, tiny: StoreConfig, broker: Path, tree_hash: TreeHash
) -> None:
    """A broker with its own maxHashSlotNum has used a store of ours."""
    root = scratch / "ours"
    with Store.open(root, create=True, config=config(replace(tiny, max_index_num=300))) as store:
        store.create_topic("T", queue_count=1)
        fill(store)
    shutil.rmtree(root / "index")
    shutil.copytree(broker / "index", root / "index")
    (root / "lock").write_bytes(b"lock")
    before = tree_hash(root / "index")
    for read_only in (True, False):
        with Store.open(root, read_only=read_only) as store:
            assert len(bodies(store)) == MESSAGES
            with pytest.raises(CorruptIndexError, match=r"the files have .* \(8, 100\), store.json says \(8, 300\)"):
                store.query.by_key("T", "k1")
    assert tree_hash(root / "index") == before


# -- no index at all -------------------------------------------------------------------------------------------------


def test_where_a_broker_keeps_no_index_none_is_made(broker: Path) -> None:
    """messageIndexEnable=false, or indexFileWriteEnable=false of 5.4: messages with keys, and no file."""
    shutil.rmtree(broker / "index")
    for _ in range(2):
        with Store.open(broker) as store:
            fill(store, 3)
            with pytest.raises(UsageError, match="keeps no index"):
                store.query.by_key("T", "k1")
    assert not (broker / "index").exists()
    settings = json.loads((broker / "pyrmq" / "store.json").read_text())["settings"]
    assert settings["messageIndexEnable"] is False
    assert verify_store(broker).status == "clean"
