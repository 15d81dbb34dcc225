"""`rmq broker promote`: a replica becomes the store of a master; a process that is killed in between harms nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crash.dying import Child
from crash.operations import Points, watched
from helpers.take_over_points import PROMOTE_POINTS
from rmq_store import Message, Store, StoreLockedError, UsageError
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.errors import CorruptConfigError, NotAStoreError, ReadOnlyError
from rmq_store.log.feeder_state import FeederState, write_state
from rmq_store.log.replica_role import Feeder
from rmq_store.replica.feed import Feed
from rmq_store.replica.metadata import MetadataCopy
from rmq_store.replica.replica_store import make_directory, open_replica
from rmq_store.replica.take_over.promote import Promotion, promote, read_promotion
from rmq_store.verify import verify_store
from storage.replica.conftest import CONFIG, ROLE, commit_unit, fill, log_bytes, views_of
from storage.replica.fake_master import FakeMaster, groups, offsets, topics

HEARD_MS = 1_700_000_000_000


def replica_of(master: Store, root: Path, *, without: int = 0) -> Path:
    """A replica of the log of `master`, but for its last bytes, as its feeder has left it."""
    log = log_bytes(master._log, *master.log_range())
    log = log[: len(log) - without]
    make_directory(root)
    feeder = Feeder(root)
    feeder.take()
    with open_replica(root, feeder, (ROLE, CONFIG)) as store:
        metadata = MetadataCopy(root, FakeMaster({
            21: topics("Orders"), 201: groups("billing"), 43: offsets(billing={0: 3}), 45: b'{"offsetTable":{}}',
        }))  # fmt: skip
        metadata.take(metadata.ask())
        feed = Feed(store._log, 0, "broker-a")
        feed.take(0, memoryview(log))
        feed.publish()
        metadata.write_offsets(store.log_range()[1])
        feed.abort()
    write_state(root, FeederState(heard_ms=HEARD_MS, master_end=master.log_range()[1]))
    feeder.close()
    return root


@pytest.fixture
def root(tmp_path: Path, master: Store) -> Path:
    """A replica: messages, a unit, a topic that only records name."""
    fill(master, 30)
    commit_unit(master, 7, 40)
    master.create_topic("Late", queue_count=3)
    master.send(Message("Late", b"late", queue_id=2))
    return replica_of(master, tmp_path / "replica")


def again(root: Path, value: int) -> bool:
    """Whether a sink that repeats its batch finds that it was written."""
    with Store.open(root) as store:
        return not commit_unit(store, value, 40).committed


@pytest.mark.statement("G22")
def test_a_replica_becomes_a_store_that_is_written_to(root: Path, master: Store) -> None:
    start, end = master.log_range()
    entries = views_of(root)
    found = promote(root)
    assert (found.broker, found.log_start, found.log_end) == ("broker-a", start, end)
    assert found.newest_ms == master._log.writing_page.store_timestamp
    assert (found.missing_bytes, found.topics, found.units) == (0, ("Late",), 1)
    assert views_of(root) == entries
    assert verify_store(root).status == "clean"
    assert again(root, 7)
    assert OffsetTable(root).committed("billing") == {("Orders", 0): 3}
    with Store.open(root) as store:
        assert store.replica is None
        assert store.log_range() == (start, end)
        assert log_bytes(store._log, start, end) == log_bytes(master._log, start, end)
        assert store.send(Message("Late", b"new", queue_id=2)).queue_offset == 1
    assert not list((root / "pyrmq").glob("feeder.*"))
    assert verify_store(root).status == "clean"


def test_it_says_how_much_the_old_master_had_more(tmp_path: Path, master: Store) -> None:
    fill(master, 30)
    end = master.log_range()[1]
    fill(master, 10)
    root = replica_of(master, tmp_path / "replica", without=master.log_range()[1] - end)
    found = promote(root)
    assert (found.log_end, found.heard_ms) == (end, HEARD_MS)
    assert found.missing_bytes == master.log_range()[1] - end


def test_a_unit_without_its_end_is_dropped(tmp_path: Path, master: Store) -> None:
    fill(master, 10)
    end = master.log_range()[1]
    commit_unit(master, 7, 40)
    root = replica_of(master, tmp_path / "replica", without=5)
    found = promote(root)
    assert (found.log_end, found.units) == (end, 0)
    assert not again(root, 7)


def test_a_dry_run_says_the_same_and_changes_nothing(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    looked = promote(root, dry_run=True)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    done = promote(root)
    assert looked == Promotion(**{name: getattr(done, name) for name in done.__slots__} | {"promoted_ms": 0})


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_feeder_that_lives_is_named(root: Path, dry_run: bool) -> None:
    feeder = Feeder(root)
    feeder.take()
    with pytest.raises(StoreLockedError, match="fed by another thread of this process since"):
        promote(root, dry_run=dry_run)
    feeder.close()
    with pytest.raises(ReadOnlyError, match="a replica of broker 'broker-a'"):
        Store.open(root)


def test_a_store_of_its_own_is_refused(tmp_path: Path, master: Store) -> None:
    with pytest.raises(UsageError, match="no replica, so nothing is to be promoted"):
        promote(master.path)
    with pytest.raises(NotAStoreError):
        promote(tmp_path / "none")


def test_a_second_call_repeats_what_the_first_one_said(root: Path) -> None:
    first = promote(root)
    with Store.open(root) as store:
        fill(store, 3)
    assert promote(root) == promote(root, dry_run=True) == read_promotion(root) == first


def test_a_report_that_is_damaged_is_named(root: Path) -> None:
    promote(root)
    (root / "pyrmq" / "promoted.json").write_text("{}")
    with pytest.raises(CorruptConfigError, match=r"promoted\.json"):
        promote(root)


@pytest.mark.parametrize("point", PROMOTE_POINTS)
def test_the_next_run_finishes_what_a_killed_one_began(root: Path, tmp_path: Path, point: str, master: Store) -> None:
    def work(pipe: int) -> None:
        points = Points(root, point)
        points.stage = "promote"
        with watched(points):
            promote(root)

    child = Child(work, tmp_path / "notes")
    assert child.wait() == -9, child.error
    is_replica = (StoreFile.load(root) or pytest.fail()).replica is not None
    assert is_replica == (PROMOTE_POINTS.index(point) <= PROMOTE_POINTS.index("promote: rename pyrmq/store.json"))
    copy = Path(shutil.copytree(root, tmp_path / "copy"))  # and if nobody called it again
    with Store.open(copy, read_only=True) as store:
        assert store.log_range() == master.log_range()
    found = promote(root)
    assert (found.log_end, found.topics or ("Late",), found.units) == (master.log_range()[1], ("Late",), 1)
    known = StoreFile.load(root)
    assert known is not None
    assert known.replica is None
    assert StoreFile.load_backup(root) == known
    assert TopicTable(root).has("Late")
    assert json.loads((root / "pyrmq" / "promoted.json").read_text())["log_end"] == found.log_end
    assert not list((root / "pyrmq").glob("feeder.*"))
    assert again(root, 7)
    assert verify_store(root).status == "clean"
