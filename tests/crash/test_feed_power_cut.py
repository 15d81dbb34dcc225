"""The power cut under a feeder, on the simulated disk: what is left of the replica is the beginning of its master's
log, whatever reached the disk of bytes that were never flushed; and the next feeder goes on from there.

A header of a broker's record has no checksum. So a sector that is missing in the middle of one may leave a record that
looks sound, and is not the master's.
"""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import pytest

from crash.disk_image import Disk, Image
from crash.dying import quiet
from crash.recorded_disk import Recorder
from crash.store_life import Workplace, engine, kill
from crash.test_feed_kills import boundaries
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.directory import make_root
from rmq_store.files.locks import state_page
from rmq_store.log.append.flush import flush, flush_and_vouch, save_progress
from rmq_store.log.replica_role import Feeder
from rmq_store.replica.feed import Feed
from rmq_store.replica.metadata import MetadataCopy
from rmq_store.replica.replica_store import make_directory, open_replica
from rmq_store.verify import verify_store
from storage.replica.conftest import ROLE, commit_unit, log_bytes, views_of
from storage.replica.fake_master import FakeMaster, groups, offsets, topics

pytestmark = pytest.mark.harness

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=110, max_index_num=40,
    enabled_append_prop_crc=False, flush_interval_commit_log=10**9,
)  # fmt: skip


class Life:
    """A master's log, and a replica that is fed with it on a recorded disk."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.place = Workplace(directory)
        self.chance = random.Random(seed)
        with Store.open(directory / "master", create=True, config=CONFIG) as master:
            master.create_topic("Orders", queue_count=2)
            for number in range(30):
                if self.chance.random() < 0.1:
                    commit_unit(master, number + 1, self.chance.randrange(1, 12), 200)
                body = self.chance.randbytes(self.chance.choice((0, 5, 300, 900)))
                tags = "t" * self.chance.randrange(1, 60)
                master.send(Message("Orders", body, tags=tags, keys=f"k{number}", queue_id=number % 2))
            self.log = log_bytes(master._log, *master.log_range())
            self.wanted = views_of(master.path)
            self.boundaries, self.entries = boundaries(master)
        self.master = FakeMaster({21: topics("Orders"), 201: groups("g"), 45: b'{"offsetTable":{}}'})
        self.recorder = Recorder(self.place.root, self.place.keep)
        self.promises: list[tuple[int, int]] = []
        """Operations, and where the log is on disk from then on."""

    def counts(self, end: int) -> dict[int, int]:
        """How many messages the queues have in a log that ends there."""
        return {queue: sum(number == queue and behind <= end for number, behind in self.entries) for queue in (0, 1)}

    def feed(self, stop: int) -> int:
        """Feed up to `stop`, and die; returns where the log ended."""
        root = self.place.root
        feeder = Feeder(root)
        feeder.take()
        store = open_replica(root, feeder, None if StoreFile.load(root) else (ROLE, CONFIG))
        copy = MetadataCopy(root, self.master, flush_log=lambda: flush_and_vouch(store._log))
        end = store.log_range()[1]
        assert log_bytes(store._log, 0, end) == self.log[:end], f"other bytes than the master's below {end}"
        self.master.end, self.master.bodies[43] = end, offsets(g=self.counts(end))
        copy.take(copy.ask())
        feed, vouched = Feed(store._log, end, "broker-a"), 0
        while feed.position < stop:
            count = self.chance.choice((100, 700, 3000))
            feed.take(feed.position, memoryview(self.log)[feed.position : min(stop, feed.position + count)])
            feed.publish()
            if not feed.holds_back and self.chance.random() < 0.15:
                step = self.chance.choice((flush, save_progress, flush_and_vouch))
                step(store._log)
                if step is not flush:  # of a flush alone nobody is told
                    vouched = store._log.writing_page.flushed_end
            if not feed.holds_back and self.chance.random() < 0.15:
                end = store.log_range()[1]
                self.master.end, self.master.bodies[43] = end, offsets(g=self.counts(end))
                copy.take(copy.ask())
                assert copy.write_offsets(end)
            self.recorder.catch_up()
            self.promises.append((len(self.recorder.operations), vouched))
        feed.abort()
        end = store.log_range()[1]
        kill(store)
        feeder.close()
        return end


def record(life: Life) -> None:
    recorder = life.recorder
    # The recorder alone does not see the map of the state page: `flush_and_vouch` would write zeros.
    page = patch.object(state_page, "map_file", recorder._map_file(state_page.map_file))
    with recorder.recording(), page:
        make_root(life.place.root)
        life.feed(len(life.log))


def images(life: Life, count: int) -> list[tuple[int, Image]]:
    """Disks that power cuts could have left, and up to where each must have the log."""
    operations, disk, found, done = life.recorder.operations, Disk(None), [], 0
    for moment in sorted(life.chance.randrange(1, len(operations)) for _ in range(count)):
        for operation in operations[done:moment]:
            disk.apply(operation)
        done = moment
        promised = max((end for at, end in life.promises if at <= moment), default=0)
        found.append((promised, disk.image(life.chance)))
    return found


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 25), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_a_replica_is_its_masters_beginning_after_a_power_cut_and_goes_on(
    tmp_path: Path, seed: int, count: int
) -> None:
    quiet()
    life = Life(tmp_path, seed)
    place, behind = life.place, 0
    with engine(place, str(seed)):
        place.reboot()
        record(life)
        for number, (promised, image) in enumerate(images(life, count)):
            place.lay_out(image)
            place.reboot()
            where = f"image {number}"
            if (place.root / "pyrmq" / "store.json").exists():
                with Store.open(place.root, read_only=True) as replica:
                    end = replica.log_range()[1]
                    behind += promised <= end < len(life.log)
                    assert log_bytes(replica._log, 0, end) == life.log[:end], f"{where}: a reader sees other bytes"
                    assert end >= promised, f"{where}: {promised} bytes were on disk, and the log ends at {end}"
                    assert end in life.boundaries, where
                    counts = life.counts(end)
                    for queue, messages in counts.items():
                        assert replica.queue_range("Orders", queue) == (0, messages), f"{where}: queue {queue} at {end}"
                    for (_, queue), offset in OffsetTable(place.root).committed("g").items():
                        assert offset <= counts[queue], f"{where}: an offset of {offset} ahead of the log"
            make_directory(place.root)
            assert life.feed(len(life.log)) == len(life.log), where
            assert views_of(place.root) == life.wanted, where
            report = verify_store(place.root)
            assert not report.problems, f"{where}: {report.problems}"
    assert behind > count / 4
