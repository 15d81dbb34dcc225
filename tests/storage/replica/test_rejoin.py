"""`rmq broker rejoin`: the old master becomes a replica of the new one; messages that only it has are written down."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from crash.dying import Child
from crash.operations import Points, watched
from helpers.take_over_points import REJOIN_POINTS, rejoin_aim
from rmq_store import Message, Store, StoreLockedError, UsageError
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.errors import NotAStoreError, ReplicaDivergedError
from rmq_store.log.core import scan
from rmq_store.log.cut_tail import cut_tail
from rmq_store.log.replica_role import Feeder
from rmq_store.replica import compare, follow
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import LogEnds, Master
from rmq_store.replica.take_over.rejoin import Rejoined, parting, rejoin
from rmq_store.verify import verify_store
from storage.replica.conftest import CONFIG, SEGMENT_BYTES, commit_unit, fill, log_bytes, views_of
from storage.replica.ha_master import FollowedMaster, HAMaster


class Pair:
    """The old master, closed, and the new one, served: both have the same 400 messages, and then others."""

    def __init__(self, directory: Path) -> None:
        self.root, promoted = directory / "old", directory / "new"
        with Store.open(self.root, create=True, config=CONFIG) as old:
            old.create_topic("Orders", queue_count=2)
            fill(old, 60, size=2800)
            self.common = old.log_range()[1]
        shutil.copytree(self.root, promoted)
        self.new = Store.open(promoted)
        self.ha = HAMaster(self.new)
        self.aside = directory / "tail.jsonl"

    def write_old(self, count: int) -> None:
        with Store.open(self.root) as old:
            fill(old, count, size=2000, tag="old")
            commit_unit(old, 3, 5)
            old.send(Message("Orders", b"\xff\xfe", keys="odd", queue_id=1))

    @property
    def master(self) -> Master:
        return cast(Master, FollowedMaster.of(self.ha, CONFIG))

    def rejoin(self, **given: Any) -> Rejoined:
        given.setdefault("file", self.aside)
        return rejoin(self.root, given.pop("master", self.master), **given)

    def follow(self) -> None:
        Follower(self.root, self.master, should_stop=lambda seconds: bool(time.sleep(seconds))).run(once=True)

    def is_copy(self) -> None:
        with Store.open(self.root, read_only=True) as copy:
            assert copy.log_range() == self.new.log_range()
            assert log_bytes(copy._log, *copy.log_range()) == log_bytes(self.new._log, *self.new.log_range())
        assert views_of(self.root) == views_of(self.new.path)
        report = verify_store(self.root)
        assert report.status == "clean", report.problems


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.ha.close()
    made.new.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_WAIT_S", 0.02)
    monkeypatch.setattr(compare, "SETTLED_MS", 0)
    monkeypatch.setattr(follow, "WAIT_S", 0.02)


@pytest.mark.parametrize("more", [3, 70])
def test_the_tail_is_written_down_and_cut_and_the_replica_goes_on(pair: Pair, more: int) -> None:
    """70: the tail has segments of its own."""
    pair.write_old(more)
    fill(pair.new, 40, tag="new")
    looked = pair.rejoin(dry_run=True)
    found = pair.rejoin()
    assert (found.parting, found.messages, found.file) == (pair.common, more + 8, pair.aside)  # a unit has 5 + 2
    assert looked == Rejoined(**{name: getattr(found, name) for name in found.__slots__} | {"is_done": False})
    lines = [json.loads(line) for line in pair.aside.read_text(encoding="utf-8").splitlines()]
    assert [line["commitLogOffset"] for line in lines] == sorted(line["commitLogOffset"] for line in lines)
    own = [line for line in lines if line["tags"] == "old"]
    assert [(line["topic"], line["keys"]) for line in own] == [("Orders", f"k{number}") for number in range(more)]
    assert own[2]["body"] == "\x02" * 2000
    assert lines[-1]["bodyHex"] == "fffe"
    with Store.open(pair.root, read_only=True) as store:
        assert store.replica is not None
        assert store.log_range()[1] == pair.common
        assert not list(store.query.by_key("Orders", "odd"))
    assert verify_store(pair.root).status == "clean"
    pair.follow()
    pair.is_copy()


def test_a_brokers_index_without_an_entry_has_the_masters_sizes(pair: Pair) -> None:
    """Nothing in its files tells how many of their bytes are slots."""
    pair.write_old(3)
    shutil.rmtree(pair.root / "pyrmq")
    shutil.rmtree(pair.root / "index")
    (pair.root / "index").mkdir()
    (pair.root / "index" / f"{20260101000000000}").write_bytes(bytes(40 + 4 * 100 + 20 * 400))
    looked = pair.rejoin(dry_run=True)
    assert (looked.parting, looked.messages) == (pair.common, 11)
    assert pair.rejoin().parting == pair.common
    pair.follow()
    with Store.open(pair.root, read_only=True) as copy:
        assert copy.log_range() == pair.new.log_range()
        assert (copy.config.max_hash_slot_num, copy.config.max_index_num) == (100, 400)


def test_a_look_changes_nothing(pair: Pair) -> None:
    pair.write_old(3)
    before = {path: path.read_bytes() for path in pair.root.rglob("*") if path.is_file()}
    assert not pair.rejoin(dry_run=True).is_done
    assert {path: path.read_bytes() for path in pair.root.rglob("*") if path.is_file()} == before
    assert not pair.aside.exists()


def test_an_old_master_without_a_tail_goes_on(pair: Pair) -> None:
    fill(pair.new, 5)
    found = pair.rejoin()
    assert (found.parting, found.messages, found.file) == (pair.common, 0, None)
    assert not pair.aside.exists()
    pair.follow()
    pair.is_copy()


def test_a_master_whose_log_is_shorter_has_lost_the_rest(pair: Pair) -> None:
    pair.write_old(3)
    found = pair.rejoin()
    assert (found.parting, found.messages) == (pair.common, 11)
    pair.follow()
    pair.is_copy()


def test_a_replica_that_has_diverged_rejoins_too(pair: Pair) -> None:
    pair.write_old(2)
    pair.rejoin()
    pair.follow()
    end = pair.new.log_range()[1]
    other = pair.root.with_name("other")
    pair.ha.close()
    pair.new.close()
    shutil.copytree(pair.root, other)
    pair.new = Store.open(pair.root.with_name("new"))
    fill(pair.new, 3)
    pair.ha = HAMaster(pair.new)
    pair.follow()
    shutil.rmtree(pair.new.path)
    pair.ha.close()
    pair.new._closed = True
    pair.new._log.close()
    shutil.copytree(other, pair.root.with_name("new"))
    known = StoreFile.load(other)
    assert known is not None
    StoreFile(known.identity, known.config).save(pair.root.with_name("new"))
    pair.new = Store.open(pair.root.with_name("new"))
    pair.ha = HAMaster(pair.new)
    fill(pair.new, 9, tag="again")
    assert pair.rejoin().parting == end
    pair.follow()
    pair.is_copy()


def test_what_is_in_use_or_is_none_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        rejoin(tmp_path / "none", pair.master)
    with Store.open(pair.root), pytest.raises(StoreLockedError, match="another process has it open"):
        pair.rejoin()
    pair.rejoin()
    feeder = Feeder(pair.root)
    feeder.take()
    for dry_run in False, True:
        with pytest.raises(StoreLockedError, match="fed by another thread of this process since"):
            pair.rejoin(dry_run=dry_run)
    feeder.close()


def test_another_broker_is_refused(pair: Pair, tmp_path: Path) -> None:
    with Store.open(tmp_path / "foreign", create=True, config=CONFIG) as foreign:
        foreign.create_topic("Orders")
        fill(foreign, 80, size=2500)
        ha = HAMaster(foreign)
        with pytest.raises(ReplicaDivergedError, match="no record of it is in the log"):
            pair.rejoin(master=cast(Master, FollowedMaster.of(ha, CONFIG)))
        ha.close()
    away = FollowedMaster.of(pair.ha, CONFIG)
    away.ends = LogEnds(10 * SEGMENT_BYTES, 11 * SEGMENT_BYTES)
    with pytest.raises(ReplicaDivergedError, match="has deleted what comes next"):
        pair.rejoin(master=cast(Master, away))
    with pytest.raises(UsageError, match="segments of"):
        pair.rejoin(master=cast(Master, FollowedMaster.of(pair.ha, Store.open(pair.new.path).config.__class__())))
    assert (StoreFile.load(pair.root) or pytest.fail()).replica is None
    assert not pair.aside.exists()


def test_the_comparison_goes_back_until_a_record_is_the_same(pair: Pair) -> None:
    with Store.open(pair.root, read_only=True) as store:
        log, end = store._log, store.log_range()[1]
        starts = [
            int(stretch.base + position)
            for stretch in scan.walk(log, 0, end)
            for position in stretch.positions
        ]
        for number in (1, 30, 59):
            asked: list[int] = []

            def differs(begin: int, number: int = number, asked: list[int] = asked) -> tuple[int, int | None]:
                asked.append(begin)
                return end, max(begin, starts[number] + 20)

            assert parting(log, 0, end, differs) == starts[number]
            assert sorted(asked, reverse=True) == asked
        assert parting(log, 0, end, lambda begin: (end, begin)) is None
        assert parting(log, 0, end, lambda begin: (end, None)) == end


@pytest.mark.parametrize("point", REJOIN_POINTS)
def test_a_kill_at_any_point_loses_no_message_of_the_tail(pair: Pair, tmp_path: Path, point: str) -> None:
    pair.write_old(40)
    fill(pair.new, 20, tag="new")

    def work(pipe: int) -> None:
        points = Points(pair.root)
        with watched(points):
            Store.open(pair.root).close()  # what it writes is no part of the rejoining
            points.stage = "rejoin"
            points.aim(*rejoin_aim(point))
            pair.rejoin()

    child = Child(work, tmp_path / "notes")
    assert child.wait() == -9, child.error
    is_written = pair.aside.exists()
    with Store.open(pair.root, read_only=True) as store:
        has_tail = store.log_range()[1] > pair.common
    assert has_tail or is_written
    first = pair.aside.read_bytes() if is_written else b""
    again = tmp_path / "again.jsonl"
    pair.rejoin(file=again)
    if first:
        assert len(first.splitlines()) == 48
    else:
        assert len(again.read_text(encoding="utf-8").splitlines()) == 48
    assert verify_store(pair.root).status == "clean"
    pair.follow()
    pair.is_copy()


def test_a_message_in_the_place_of_the_tail_is_not_taken_for_one_that_slaves_have(tmp_path: Path) -> None:
    """The page stays as long as anybody has the store open, and a SYNC_MASTER would answer SEND_OK by it."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"both have it"))
        parted = store.log_range()[1]
        store.send(Message("Orders", b"the tail"))
        page = store._log.writing_page
        page.replicated_end = store.log_range()[1]
        cut_tail(store._log, parted)
        assert (store.log_range()[1], page.replicated_end) == (parted, parted)
