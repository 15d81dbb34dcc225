"""A replica whose unflushed end a power cut has damaged in a way that no checksum shows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from crash.kill import forget_boot
from rmq_store import Store
from rmq_store.broker.store.directory import make_root
from rmq_store.errors import NotAStoreError
from rmq_store.log.append.flush import flush_and_vouch, save_progress
from rmq_store.log.replica_role import Feeder
from rmq_store.replica.feed import Feed
from rmq_store.replica.replica_store import open_replica
from rmq_store.verify import verify_store
from storage.replica.conftest import CONFIG, ROLE, commit_unit, fill, log_bytes, views_of

UNFLUSHED = replace(CONFIG, flush_interval_commit_log=10**9)


class Fed:
    """A replica whose feeder died behind `end` bytes; up to `durable` its log was on disk."""

    def __init__(self, root: Path, log: bytes, durable: int, end: int, *, vouches: bool = False) -> None:
        self.root = root
        self.log = log
        self.durable = durable
        make_root(root)
        feeder = Feeder(root)
        feeder.take()
        store = open_replica(root, feeder, (ROLE, UNFLUSHED))
        feed = Feed(store._log, 0, "broker-a")
        feed.take(0, memoryview(log)[:durable])
        feed.publish()
        (flush_and_vouch if vouches else save_progress)(store._log)
        feed.take(durable, memoryview(log)[durable:end])
        feed.publish()
        assert (store._log.writing_page.flushed_end, store.log_range()[1]) == (durable, end)
        store._closed = True
        store._log.close()
        feeder.close()

    def cut_power(self) -> None:
        """The last record has lost its key: bytes of its properties, which have no checksum."""
        at = self.log.rindex(b"KEYS\x01k") + 6
        segment = self.root / "commitlog" / f"{at - at % UNFLUSHED.mapped_file_size_commit_log:020d}"
        with segment.open("r+b") as file:
            file.seek(at % UNFLUSHED.mapped_file_size_commit_log)
            file.write(b"\0")
        forget_boot(self.root)

    def end_for_readers(self) -> int:
        with Store.open(self.root, read_only=True) as reader:
            start, end = reader.log_range()
            assert log_bytes(reader._log, start, end) == self.log[:end]
            for queue in (0, 1):
                low, high = reader.queue_range("Orders", queue)
                assert sum(batch.num_rows for batch in reader.read("Orders", queue, low, high)) == high - low
            return end

    def end_for_feeder(self) -> int:
        """Go on feeding to the end of the master's log; returns where the log ended before."""
        feeder = Feeder(self.root)
        feeder.take()
        with open_replica(self.root, feeder) as store:
            end = store.log_range()[1]
            feed = Feed(store._log, min(end, self.durable), "broker-a")
            feed.take(feed.position, memoryview(self.log)[feed.position :])
            feed.publish()
            assert log_bytes(store._log, *store.log_range()) == self.log
        feeder.close()
        return end


@pytest.fixture
def ends(master: Store) -> tuple[bytes, int, int, dict[str, bytes]]:
    """The log of a master, two places between its records, and its queues."""
    fill(master, 20)
    durable = master.log_range()[1]
    fill(master, 20)
    commit_unit(master, 1, 5)
    fill(master, 3)
    start, end = master.log_range()
    return log_bytes(master._log, start, end), durable, end, views_of(master.path)


@pytest.mark.parametrize("vouches", [False, True])
def test_what_was_not_on_disk_for_certain_comes_again(
    tmp_path: Path, ends: tuple[bytes, int, int, dict[str, bytes]], vouches: bool
) -> None:
    log, durable, end, queues = ends
    fed = Fed(tmp_path / "replica", log, durable, end, vouches=vouches)
    fed.cut_power()
    assert fed.end_for_readers() == durable
    assert fed.end_for_feeder() == durable
    assert fed.end_for_readers() == end
    assert views_of(fed.root) == queues
    assert any((fed.root / "pyrmq" / "removed").iterdir()), "it may be what the master has lost, too"
    shutil.copy(tmp_path / "master" / "config" / "topics.json", fed.root / "config")
    assert verify_store(fed.root).status == "clean"


def test_within_a_boot_nothing_that_readers_have_seen_is_cut(
    tmp_path: Path, ends: tuple[bytes, int, int, dict[str, bytes]]
) -> None:
    log, durable, end, queues = ends
    fed = Fed(tmp_path / "replica", log, durable, end)
    assert fed.end_for_readers() == end
    assert fed.end_for_feeder() == end
    assert views_of(fed.root) == queues


def test_a_copy_is_not_cut(tmp_path: Path, ends: tuple[bytes, int, int, dict[str, bytes]]) -> None:
    log, durable, end, _ = ends
    fed = Fed(tmp_path / "replica", log, durable, end)
    shutil.copytree(fed.root, tmp_path / "copy")
    fed.root = tmp_path / "copy"
    assert fed.end_for_readers() == end


def test_a_reader_is_told_of_a_replica_that_is_being_made(tmp_path: Path) -> None:
    root = tmp_path / "replica"
    make_root(root)
    Feeder(root).take()
    with pytest.raises(NotAStoreError, match="being made"):
        Store.open(root, read_only=True)
