"""A replica: what its store.json says, and who may write to it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import Message, NotAStoreError, ReadOnlyError, Store, StoreConfig, StoreLockedError, UsageError
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.repair.repair import examine
from rmq_store.broker.store.directory import make_root
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.broker.write.staging import planned_store
from rmq_store.errors import CorruptConfigError
from rmq_store.log.replica_role import Feeder, ReplicaRole

ROLE = ReplicaRole(
    cluster="DefaultCluster",
    broker="broker-a",
    name_server="ns1:9876",
    address="10.0.0.7:10911",
    ha_address="10.0.0.7:10912",
    start="earliest",
    first_offset=0,
)


def opened_by_its_feeder(root: Path, role: ReplicaRole | None = None, feeder: Feeder | None = None) -> Store:
    request = OpenRequest(root, False, role is not None, None, None, None, "refuse", False, "", feeder, role)
    return open_store(request, Store)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A replica without messages, that nobody feeds now."""
    root, feeder = tmp_path / "replica", Feeder(tmp_path / "replica")
    make_root(root)
    feeder.take()
    try:
        opened_by_its_feeder(root, ROLE, feeder).close()
    finally:
        feeder.close()
    return root


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_store_json_of_a_replica_has_a_format_that_older_releases_refuse(root: Path, tmp_path: Path) -> None:
    for name in ("store.json", "store.json.bak"):
        content = json.loads((root / "pyrmq" / name).read_text())
        assert content["format"] == 2
        assert content["replica"]["brokerName"] == "broker-a"
    with Store.open(tmp_path / "own", create=True):
        content = json.loads((tmp_path / "own" / "pyrmq" / "store.json").read_text())
        assert content["format"] == 1
        assert "replica" not in content


def test_every_writer_but_its_feeder_is_refused_and_nothing_is_written(root: Path) -> None:
    before = files(root)
    with pytest.raises(ReadOnlyError, match="replica of broker 'broker-a', no process feeds it now"):
        Store.open(root)
    with pytest.raises(ReadOnlyError, match="replica of broker 'broker-a'"):
        Store.open(root, create=True, rebuild_views=True)
    with pytest.raises(ReadOnlyError, match="replica of broker 'broker-a'"):
        planned_store(root)
    with pytest.raises(ReadOnlyError, match="rmq follow --resync"):
        examine(root)
    assert files(root) == before


def test_a_refused_writer_learns_who_feeds_the_replica_and_since_when(root: Path) -> None:
    feeder = Feeder(root)
    feeder.take()
    try:
        with pytest.raises(ReadOnlyError, match=r"fed by another thread of this process since 20\d\d-"):
            Store.open(root)
        with pytest.raises(StoreLockedError, match="a replica has one feeder") as refused:
            Feeder(root).take()
        assert refused.value.pid == os.getpid()
    finally:
        feeder.close()


def test_the_feeder_opens_it_and_the_lock_of_another_replica_is_no_right(root: Path, tmp_path: Path) -> None:
    feeder, other = Feeder(root), Feeder(tmp_path / "other")
    (tmp_path / "other").mkdir()
    feeder.take()
    other.take()
    try:
        with pytest.raises(ReadOnlyError):
            opened_by_its_feeder(root, feeder=other)
        with opened_by_its_feeder(root, feeder=feeder) as store:
            assert store.replica == ROLE
    finally:
        feeder.close()
        other.close()
    with pytest.raises(ReadOnlyError):
        opened_by_its_feeder(root, feeder=feeder)


def test_readers_open_it_and_see_its_role(root: Path, tmp_path: Path) -> None:
    with Store.open(root, read_only=True) as store:
        assert store.replica == ROLE
        with pytest.raises(ReadOnlyError):
            store.send(Message("Orders", b""))
    with Store.open(tmp_path / "own", create=True) as store:
        assert store.replica is None


def test_topics_of_a_replica_are_its_masters(root: Path) -> None:
    assert not (root / "config" / "topics.json").exists()


@pytest.mark.parametrize("of_a_broker", [False, True])
def test_nothing_is_fed_into_a_store_of_its_own(tmp_path: Path, of_a_broker: bool) -> None:
    root = tmp_path / "own"
    with Store.open(root, create=True) as store:
        store.create_topic("Orders")
        store.send(Message("Orders", b""))
    if of_a_broker:
        shutil.rmtree(root / "pyrmq")
        (root / "lock").write_text("lock")
    feeder = Feeder(root)
    feeder.take()
    try:
        with pytest.raises(UsageError, match=r"no replica|of its own"):
            opened_by_its_feeder(root, ROLE, feeder)
    finally:
        feeder.close()


def test_a_change_of_settings_keeps_the_role(root: Path) -> None:
    feeder = Feeder(root)
    feeder.take()
    try:
        with opened_by_its_feeder(root, feeder=feeder) as store:
            store.retention.configure(file_reserved_time=7)
    finally:
        feeder.close()
    known = StoreFile.load(root)
    assert known is not None
    assert (known.replica, known.config.file_reserved_time) == (ROLE, 7)


@pytest.mark.parametrize("changed", [{"replica": None}, {"replica": {}}, {"replica": {"brokerName": 1}}])
def test_a_damaged_role_is_refused_and_never_repaired_into_a_store_of_its_own(
    root: Path, changed: dict[str, object]
) -> None:
    for name in ("store.json", "store.json.bak"):
        path = root / "pyrmq" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(CorruptConfigError):
        Store.open(root)
    with pytest.raises(ReadOnlyError, match="rmq follow --resync"):
        examine(root)


def test_a_greater_format_is_refused(root: Path) -> None:
    path = root / "pyrmq" / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    with pytest.raises(NotAStoreError, match=r"format 3, we know 2"):
        Store.open(root, read_only=True)


def test_a_role_is_what_was_saved(tmp_path: Path) -> None:
    (tmp_path / "pyrmq").mkdir()
    file = StoreFile("00000000-0000-0000-0000-00000000abcd", StoreConfig(), replace(ROLE, first_offset=1 << 40))
    file.save(tmp_path)
    assert StoreFile.load(tmp_path) == file
