"""A process killed at every point of a day's work: recovery, appends of all kinds, rolls, flush, progress, group
offsets, delivery of delayed messages, retention, close. And at every point of a shorter life: recovery after a reboot,
some appends, close. See `operations` for what a point is.

Each life is the same each time, so its points are known after it was once lived to its end. Cycle after cycle takes the
next point, each at a random one of its occurrences.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from crash.dying import Child, quiet
from crash.kill import forget_boot
from crash.operations import Points, Saved, watched
from crash.oracle import ACK, Ledger, compare, make_body, read_body, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.traffic import QUEUES, TOPIC, Traffic, tiny_config

# Producers. What the first three sent is what retention may take; `EARLIER` is there after the reboot only.
OLD, YESTERDAY, DIRECT, LEVEL, TIMER, EARLIER = range(6)
# Told like producers: how far a group has got.
GROUP, GROUP_OFFSET = "readers", 100

_DAY_MS = 24 * 3_600_000
_SEEN = "at "


def run(trial: Trial) -> Counters:
    """Kill at one point per cycle, and compare."""
    quiet()
    counters = Counters()
    day = Day(trial.directory)
    points = in_turn(day.points, random.Random(trial.seed))
    for cycle in range(trial.cycles):
        point = points[cycle % len(points)]
        found = day.die(point, random.Random(f"{trial.seed}/{cycle}"))
        counters.add(found)
        trial.tick(1)
    return counters


def in_turn(points: Iterable[str], chance: random.Random) -> list[str]:
    """Every point once, in random order, but stage after stage in turn: a few cycles have some of each."""
    by_stage: dict[str, list[str]] = {}
    for point in sorted(points):
        by_stage.setdefault(point.partition(":")[0], []).append(point)
    for each in by_stage.values():
        chance.shuffle(each)
    return [point for turn in zip_longest(*by_stage.values()) for point in turn if point is not None]


class _Life(NamedTuple):
    """What a process does with the store. `before`: how it finds it, and `acknowledged` what was by then, by producer;
    `points`: how often which one comes; `rebooted`: whether the machine was started again in between.
    """

    live: Callable[[Points, int], None]
    before: Saved
    acknowledged: dict[int, int]
    points: Counter[str]
    rebooted: bool


class Day:
    """A store as a killed process left it, and what is done with it until it is closed; and the same store after a
    reboot in the middle of that day.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "store"
        self._notes = directory / "error"
        self._start_ms = int(time.time() * 1000)
        self._now_ms = self._start_ms
        self._acknowledged: dict[int, int] = {}
        # Where in the log what retention may take lies: offsets by producer and sequence.
        self._places: dict[int, list[int]] = {}
        self._make()
        day = self._rehearse(self._live)
        self._make_reboot(day)
        self._lives = (day, self._rehearse(self._live_after_reboot, rebooted=True))
        self.points = sum((life.points for life in self._lives), Counter())

    def die(self, point: str, chance: random.Random) -> Counters:
        """Live up to some occurrence of a point, and look what is left.

        Who looks after a recovery that was killed comes in its boot, and finds a page that was doubted or half
        written, perhaps a published one to be believed; or after one more reboot, and has only the files to believe.
        """
        [life] = (each for each in self._lives if point in each.points)
        self._begin(life)
        occurrence = chance.randrange(life.points[point])
        again = life.rebooted and chance.random() < 0.5
        found = Counters(cycles=1)
        child = Child(partial(life.live, Points(self.root, point, occurrence)), self._notes)
        ended = child.wait()
        if ended == 0 or child.error:
            found.broken += 1
            found.note(child.error or "the point was not reached")
        found.seen[_SEEN + point] += ended < 0
        ledger = Ledger(dict(life.acknowledged))
        found.acknowledged = ledger.note(child.told)
        if again:
            forget_boot(self.root)
            ledger.torn.add(DIRECT)
        try:
            self._look(ledger, found)
        except Exception as error:
            found.broken += 1
            found.note(f"{type(error).__name__}: {error}")
        where = f"{point}, number {occurrence}{', and a reboot' if again else ''}"
        found.first = found.first and f"{where}: {found.first}"
        return found

    def _make(self) -> None:
        """What the day begins with: old messages in several segments, and one killed in the middle of an append."""
        from rmq_store import Store

        config = tiny_config(
            mapped_file_size_commit_log=16 << 10, flush_interval_commit_log=10**9, delete_commit_log_files_interval=0
        )
        with Store.open(self.root, create=True, config=config, clock=self.clock) as store:
            store.create_topic(TOPIC, queue_count=QUEUES)
            old = Traffic(store, OLD, random.Random(0), large=False)
            while store.log_range()[1] < 46 << 10:
                old.send()
        self._acknowledged[OLD] = old.sent
        self._kill("append: store appended_end", 1, YESTERDAY)

    def _make_reboot(self, day: _Life) -> None:
        """What a reboot may leave of the day: the log up to a unit that lacks its last bytes, and the state page as it
        was while the first flush was under way. So its flushed end is too low, and recovery writes again what it finds
        in the log.
        """
        page = self.root / "pyrmq" / "state"
        self._begin(day)
        self._kill("flush: fsync segment", 0, EARLIER)
        early = page.read_bytes()
        self._begin(day)
        # The last one is of the message behind the unit.
        self._kill("append: write segment", day.points["append: write segment"] - 2, EARLIER)
        page.write_bytes(early)

    def _kill(self, point: str, occurrence: int, producer: int) -> None:
        """Live the day up to a point, to find the store as it then is."""
        child = Child(partial(self._live, Points(self.root, point, occurrence), producer=producer), self._notes)
        assert child.wait() < 0, child.error
        self._acknowledged |= child.told.acknowledged

    def _rehearse(self, live: Callable[[Points, int], None], *, rebooted: bool = False) -> _Life:
        """A life with the store as it now is. Its points, and `_places`, are the same whenever it is lived."""
        notes = self._notes.with_name("rehearsal")
        life = _Life(live, Saved(self.root), dict(self._acknowledged), Counter(), rebooted)

        def rehearse(pipe: int) -> None:
            points = Points(self.root)
            live(points, pipe)
            notes.write_text(json.dumps([points.counts, [*self._places.items()]]), encoding="utf-8")

        self._begin(life)
        child = Child(rehearse, self._notes)
        assert child.wait() == 0, child.error
        counts, known = json.loads(notes.read_text(encoding="utf-8"))
        self._places = dict(known)
        return life._replace(points=Counter(counts))

    def _begin(self, life: _Life) -> None:
        life.before.restore()
        if life.rebooted:
            forget_boot(self.root)

    def clock(self) -> int:
        return self._now_ms

    def _live(self, points: Points, pipe: int, producer: int = DIRECT) -> None:
        from rmq_store import Store
        from rmq_store.log.append.flush import save_progress

        chance = random.Random(1)
        with watched(points):
            points.stage = "recovery"
            store = Store.open(self.root, clock=self.clock)
            points.stage = "append"
            traffic = Traffic(store, producer, chance, large=False)
            for call in (traffic.send, traffic.send_all, traffic.append, traffic.commit_unit, traffic.send):
                call()
                tell(pipe, ACK, producer, traffic.sent)
            points.stage = "flush"
            store.flush()
            points.stage = "progress"
            save_progress(store._log)
            points.stage = "offsets"
            for offset in (1, 2, 3):
                store.commit_offsets(GROUP, {(TOPIC, 0): offset})
                tell(pipe, ACK, GROUP_OFFSET, offset)
            points.stage = "delay"
            self._park(store, pipe)
            self._now_ms += 5000
            store.schedule.deliver_due()
            store.schedule.save_progress()
            points.stage = "looking"
            # In every day: what was looked at is open, so that the points to come are the same.
            self._places = _find(store, (OLD, YESTERDAY, DIRECT))
            points.stage = "retention"
            self._now_ms += _DAY_MS
            report = store.retention.run(manual=True, file_reserved_time=0)
            assert report.removed, report
            points.stage = "close"
            store.close()

    def _live_after_reboot(self, points: Points, pipe: int) -> None:
        from rmq_store import Store

        with watched(points):
            points.stage = "recovery after a reboot"
            store = Store.open(self.root, clock=self.clock)
            report = store.recovery
            assert report is not None and report.trust == "OWN" and report.dropped_unit, report
            points.stage = "append after a reboot"
            traffic = Traffic(store, DIRECT, random.Random(1), large=False)
            for call in (traffic.send, traffic.send_all):
                call()
                tell(pipe, ACK, DIRECT, traffic.sent)
            points.stage = "close after a reboot"
            store.close()

    def _park(self, store: object, pipe: int) -> None:
        from rmq_store import Message

        for sequence in range(3):
            for producer, wish in (
                (LEVEL, {"delay_level": 1}), (TIMER, {"deliver_timestamp_ms": self._now_ms + 3000})
            ):  # fmt: skip
                body = make_body(producer, sequence, sequence, 1, 0, b"%d" % sequence)
                key = f"{producer}-{sequence}"
                store.send(Message(TOPIC, body, keys=key, queue_id=sequence % QUEUES, **wish))  # type: ignore[attr-defined]
                tell(pipe, ACK, producer, sequence + 1)

    def _look(self, ledger: Ledger, found: Counters) -> None:
        """Open, deliver what waits, compare, close, verify."""
        from rmq_store import Store

        later_ms = self._start_ms + 2 * _DAY_MS
        with Store.open(self.root, clock=lambda: later_ms) as store:
            store.schedule.deliver_due()
            start = store.log_range()[0]
            queues, wrong = read_queues(store, TOPIC)
            offset = store.committed_offsets(GROUP).get((TOPIC, 0), 0)
        for producer, offsets in self._places.items():
            ledger.begun[producer] = sum(offset < start for offset in offsets)
        acknowledged = ledger.acknowledged.pop(GROUP_OFFSET, 0)
        if not acknowledged <= offset <= acknowledged + 1:
            wrong.append(f"a group had committed {acknowledged} and finds {offset}")
        if wrong:
            found.broken += 1
            found.note(wrong[0])
        found.add(compare(queues, ledger))
        verify(self.root, found)


def _find(store: object, producers: Iterable[int]) -> dict[int, list[int]]:
    """Where the messages of the given producers lie."""
    places: dict[int, list[int]] = {producer: [] for producer in producers}
    for queue_id, limits in store.queue_ranges(TOPIC).items():  # type: ignore[attr-defined]
        for batch in store.read(TOPIC, queue_id, *limits, columns=["body", "commitLogOffset"]):  # type: ignore[attr-defined]
            for row in batch.to_pylist():
                sent = read_body(row["body"])
                assert sent is not None
                if sent.producer in places:
                    places[sent.producer].append(row["commitLogOffset"])
    for offsets in places.values():
        offsets.sort()
    return places


@protection("in_place", "overwrites its JSON files instead of replacing them")
def in_place() -> Iterator[None]:
    from rmq_store.broker.metadata import json_table
    from rmq_store.files import durable

    def overwrite(path: Path, data: bytes, *, backup: object = None) -> None:
        fd = durable.open_nofollow(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            durable.write_fully(fd, data, 0, path)
        finally:
            os.close(fd)

    with (
        mock.patch.object(durable, "write_atomically", overwrite),
        mock.patch.object(json_table, "write_atomically", overwrite),
    ):
        yield


@protection("early_end", "moves the end of the log before the records are written")
def early_end() -> Iterator[None]:
    from rmq_store.files.locks.state_page import StatePage

    declare = StatePage.declare

    def declare_and_show(page: StatePage, start: int, end: int, index_file: int, index_header: bytes) -> None:
        declare(page, start, end, index_file, index_header)
        page.appended_end = end

    with mock.patch.object(StatePage, "declare", declare_and_show):
        yield


@protection("no_index_undo", "leaves in the index what an unfinished append has put there")
def no_index_undo() -> Iterator[None]:
    from rmq_store.log.views.views import Views

    with mock.patch.object(Views, "restore_index", lambda *_: None):
        yield


PARTS = (
    Part(
        "points", "4", "a kill at every operation on a file, in every write, before every store into a mapped word",
        "kills", harness=450, crash=2000, soak=5000, chunk=500, run=run,
        protections=("in_place", "no_index_undo", "early_end"), bites_within=75,
    ),
)  # fmt: skip
