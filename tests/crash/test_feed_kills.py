"""A feeder killed at every operation on a file, in every step of a replica's life: its opening, records, a unit that
rolls the segment, progress, metadata, close. Another process reads what is left, before and after the next feeder.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from crash.dying import Child, quiet
from crash.kill import forget_boot
from crash.operations import Points, Saved, watched
from crash.points import in_turn
from rmq_store import Store
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.directory import make_root
from rmq_store.log.append.flush import save_progress
from rmq_store.log.core import scan
from rmq_store.log.core.units import UNITS_TOPIC
from rmq_store.log.replica_role import Feeder
from rmq_store.replica.feed import Feed
from rmq_store.replica.metadata import MetadataCopy
from rmq_store.replica.replica_store import open_replica
from rmq_store.verify import verify_store
from storage.replica.conftest import CONFIG, ROLE, commit_unit, fill, log_bytes, views_of
from storage.replica.fake_master import FakeMaster, groups, offsets, topics

pytestmark = pytest.mark.harness

CUT = 9_000
NAMED = (
    "feed: half of a write of segment",  # a frame half stored
    "feed: write queue file",  # stored without queues
    "feed: store appended_end",  # stored and not published
    "feed: store intent_end",
    "feed: store index slot",
    "feed: rename segment",
    "metadata: rename config/topics.json",
    "metadata: rename config/consumerOffset.json",
)


class Life:
    """A master's log, a replica with the first part of it, and the life that feeds the rest."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "replica"
        self._notes = directory / "error"
        with Store.open(directory / "master", create=True, config=CONFIG) as master:
            master.create_topic("Orders", queue_count=2)
            fill(master, 30)
            self.first = master.log_range()[1]
            fill(master, 60)
            commit_unit(master, 1, 230)
            fill(master, 20)
            self.log = log_bytes(master._log, *master.log_range())
            self.boundaries, self.entries = boundaries(master)
            self.wanted = views_of(master.path)
        self.master = FakeMaster(
            {21: topics("Orders"), 201: groups("g"), 43: offsets(g={0: 40, 1: 40}), 45: b'{"offsetTable":{}}'},
            end=self.first + 20_000,
        )
        make_root(self.root)
        self._feed(Points(self.root), stop=self.first)
        self.master.bodies[21] = topics("Orders", "Bills")
        self.before = Saved(self.root)
        self.points = self._rehearse()

    def _feed(self, points: Points, pipe: int = 0, *, stop: int | None = None) -> None:
        stop = len(self.log) if stop is None else stop
        with watched(points):
            points.stage = "open"
            feeder = Feeder(self.root)
            feeder.take()
            made = StoreFile.load(self.root) is None
            store = open_replica(self.root, feeder, (ROLE, CONFIG) if made else None)
            copy = MetadataCopy(self.root, self.master)
            feed = Feed(store._log, store.log_range()[1], "broker-a")
            while feed.position < stop:
                points.stage = "feed"
                feed.take(feed.position, memoryview(self.log)[feed.position : min(stop, feed.position + CUT)])
                feed.publish()
                if not feed.holds_back:
                    points.stage = "metadata"
                    copy.take(copy.ask())
                    copy.write_offsets(store.log_range()[1])
                    points.stage = "progress"
                    save_progress(store._log)
            points.stage = "close"
            feed.abort()
            store.close()
            feeder.close()

    def _rehearse(self) -> Counter[str]:
        notes = self._notes.with_name("rehearsal")

        def rehearse(pipe: int) -> None:
            points = Points(self.root)
            self._feed(points)
            notes.write_text(json.dumps(points.counts), encoding="utf-8")

        child = Child(rehearse, self._notes)
        assert child.wait() == 0, child.error
        return Counter(json.loads(notes.read_text(encoding="utf-8")))

    def die(self, point: str, chance: random.Random) -> None:
        self.before.restore()
        occurrence = chance.randrange(self.points[point])
        child = Child(partial(self._feed, Points(self.root, point, occurrence)), self._notes)
        assert child.wait() < 0, f"{point}: not killed: {child.error}"
        if chance.random() < 0.3:
            forget_boot(self.root)
        self._look(point)
        child = Child(partial(self._feed, Points(self.root), stop=0), self._notes)
        assert child.wait() == 0, f"{point}: the next opener: {child.error}"
        self._look(point)
        with Store.open(self.root, read_only=True) as replica:  # the master may have lost these bytes meanwhile
            assert not replica._log.segments.data_beyond(replica.log_range()[1]), f"{point}: bytes behind the end"
        child = Child(partial(self._feed, Points(self.root)), self._notes)
        assert child.wait() == 0, f"{point}: the next feeder: {child.error}"
        self._look(point)
        with Store.open(self.root, read_only=True) as replica:
            assert replica.log_range() == (0, len(self.log)), point
            assert not replica._log.segments.data_beyond(len(self.log)), f"{point}: bytes behind the end"
        assert views_of(self.root) == self.wanted, point
        report = verify_store(self.root)
        assert report.status == "clean", (point, report.problems)

    def _look(self, point: str) -> None:
        """What a reader finds: no hole, no half unit, no byte that the master lacks, no offset ahead of the log."""
        with Store.open(self.root, read_only=True) as replica:
            end = replica.log_range()[1]
            assert end in self.boundaries, f"{point}: the log ends at {end}"
            assert log_bytes(replica._log, 0, end) == self.log[:end], point
            for queue in (0, 1):
                count = sum(1 for number, behind in self.entries if number == queue and behind <= end)
                assert replica.queue_range("Orders", queue) == (0, count), f"{point}: queue {queue} at {end}"
            stop = replica.queue_range("Orders", 0)[1]
            assert sum(batch.num_rows for batch in replica.read("Orders", 0, 0, stop)) == stop > 0
            for (topic, queue_id), offset in OffsetTable(self.root).committed("g").items():
                assert offset <= replica.queue_range(topic, queue_id)[1], f"{point}: an offset ahead of the log"


def boundaries(master: Store) -> tuple[set[int], list[tuple[int, int]]]:
    """Where a replica's log may end; and of each message of Orders its queue and its end."""
    ends, entries, inside = {0}, [], False
    for stretch in scan.walk(master._log, *master.log_range()):
        columns = scan.columns_of(master._log, stretch)
        rows = zip(
            stretch.positions, stretch.sizes, columns.topic.to_pylist(), columns.queue_id.tolist(), strict=True
        )
        for position, size, topic, queue_id in rows:
            behind = stretch.base + int(position + size)
            inside ^= topic == UNITS_TOPIC
            ends |= set() if inside else {behind}
            entries += [(queue_id, behind)] if topic == "Orders" else []
        ends.add(stretch.end)
    return ends, entries


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    quiet()
    yield Life(tmp_path_factory.mktemp("feed"))


@pytest.mark.parametrize("count", [30, pytest.param(None, marks=pytest.mark.slow)])
def test_a_feeder_killed_at_any_point_leaves_no_hole_and_no_half_unit(life: Life, count: int | None) -> None:
    """All points, or so many of them, of each stage in turn."""
    stages = {point.partition(":")[0] for point in life.points}
    assert stages >= {"open", "feed", "metadata", "progress", "close"}
    assert not {*NAMED} - life.points.keys(), sorted(point for point in life.points if point.startswith("metadata"))
    chance = random.Random(55)
    for point in [*NAMED, *in_turn(life.points, chance)][:count]:
        life.die(point, chance)
