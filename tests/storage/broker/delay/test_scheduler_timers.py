"""Delivery of messages that wait for an absolute time: in the order of their times, once, whatever came in between."""

from __future__ import annotations

import itertools
import logging
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmq_store import Store
from rmq_store.broker.delay import scheduler, timer_queue
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.broker.delay.timer_queue import Earliest, Watermark
from rmq_store.broker.rules.timer import PYRMQ_TIMER_TOPIC
from rmq_store.format.views.consume_queue import encode_entries
from rmq_store.log.core.units import UnitRecord
from rmq_store.verify import verify_store

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def timer_ranges(store: Store) -> list[int]:
    return [store.queue_range(PYRMQ_TIMER_TOPIC, queue_id).max_offset for queue_id in range(4)]


@pytest.mark.statement("C10")
def test_messages_come_in_the_order_of_their_times_not_of_their_sending(parking: Any) -> None:
    start_ms = parking.now_ms
    waits = [3 * MINUTE, 500, 2 * DAY, 30_000, 10 * HOUR, 1, 50 * MINUTE, 500]
    with parking.open() as store:
        for number, wait in enumerate(waits):
            parking.park_until(store, start_ms + wait, [b"%d" % number])
        assert timer_ranges(store) == [4, 2, 1, 1]
        seen = []
        for wait, group in itertools.groupby(sorted(range(len(waits)), key=waits.__getitem__), waits.__getitem__):
            numbers = list(group)
            parking.now_ms = start_ms + wait - 1
            assert store.schedule.deliver_due() == Delivery(0, start_ms + wait)
            parking.now_ms += 1
            assert store.schedule.deliver_due().delivered == len(numbers)
            seen += [b"%d" % number for number in numbers]
            assert parking.bodies(store) == seen
        assert store.schedule.deliver_due() == Delivery(0, None)


def test_one_look_delivers_what_is_due_of_a_queue_in_the_order_of_the_times(parking: Any) -> None:
    with parking.open() as store:
        waits = random.Random(1).sample(range(1, MINUTE), 40)
        for wait in waits:
            parking.park_until(store, parking.now_ms + wait, [b"%05d" % wait])
        parking.now_ms += MINUTE
        assert store.schedule.deliver_due() == Delivery(40, None)
        assert parking.bodies(store) == [b"%05d" % wait for wait in sorted(waits)]


@pytest.mark.parametrize("segment_bytes", [16384, 65536])
def test_order_holds_across_segments_and_topics(parking: Any, segment_bytes: int, scratch: Any) -> None:
    here = replace(
        parking, root=scratch / "s", config=replace(parking.config, mapped_file_size_commit_log=segment_bytes)
    )
    waits = random.Random(2).sample(range(1, MINUTE), 60)
    with here.open() as store:
        for number in range(3):
            store.create_topic(f"T{number}", queue_count=2)
        for number, wait in enumerate(waits):
            here.park_until(
                store, here.now_ms + wait, [b"%05d" % wait + b"." * 700], topic=f"T{number % 3}", queue_id=number % 2
            )
        here.now_ms += MINUTE
        assert store.schedule.deliver_due() == Delivery(60, None)
        for topic, queue_id in itertools.product(range(3), range(2)):
            expected = sorted(w for n, w in enumerate(waits) if (n % 3, n % 2) == (topic, queue_id))
            assert [int(body[:5]) for body in here.bodies(store, f"T{topic}", queue_id)] == expected
    assert verify_store(here.root).status == "clean"


def test_a_delivered_message_is_the_parked_one_under_its_real_topic(parking: Any) -> None:
    """TimerMessageStore: properties are kept. Without a wheel no TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS."""
    due = parking.now_ms + 5000
    with parking.open() as store:
        columns = {"flag": 7, "reconsumeTimes": 2}
        parking.park_until(
            store, due, [b"body"], queue_id=1, properties={"TIMER_DELIVER_MS": str(due), "KEYS": "k"}, **columns
        )
        parking.now_ms = due
        assert store.schedule.deliver_due() == Delivery(1, None)
        (before,) = parking.rows(store, PYRMQ_TIMER_TOPIC, 0)
        (after,) = parking.rows(store, "T", 1)
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"topic", "queueId", "storeTimestamp", "commitLogOffset"}
        assert dict(after["properties"])["TIMER_OUT_MS"] == str(due)
    assert verify_store(parking.root).status == "clean"


def test_a_message_parked_late_for_an_earlier_time_than_was_delivered_comes_too(parking: Any) -> None:
    """Its queue offset lies behind what was scanned, its time before what was delivered."""
    start_ms = parking.now_ms
    with parking.open() as store:
        parking.park_until(store, start_ms + 1000, [b"a"])
        parking.park_until(store, start_ms + 9000, [b"z"])
        parking.now_ms += 2000
        assert store.schedule.deliver_due().delivered == 1
        for number in range(3):
            # Judged by a sender whose clock was behind, or appended long after it was judged.
            parking.park_until(store, start_ms + 1500 - number, [b"late %d" % number])
        assert store.schedule.deliver_due() == Delivery(3, start_ms + 9000)
        assert store.schedule.deliver_due() == Delivery(0, start_ms + 9000)
        parking.now_ms = start_ms + 9000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"a", b"late 2", b"late 1", b"late 0", b"z"]


def test_units_are_bounded_also_where_many_messages_have_one_time(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "CHUNK_ROWS", 4)
    with parking.open() as store:
        due = parking.now_ms + 1000
        parking.park_until(store, due, [b"%02d" % number for number in range(10)])
        parking.now_ms = due
        assert store.schedule.deliver_due() == Delivery(10, None)
        assert store.last_unit("timer", "0") == 3
        parking.park_until(store, due - 5, [b"%02d" % number for number in range(10, 20)])
        parking.park_until(store, due, [b"20", b"21"])
        assert store.schedule.deliver_due() == Delivery(12, None)
        assert store.last_unit("timer", "0") == 6
        assert parking.bodies(store) == [b"%02d" % number for number in range(22)]
        monkeypatch.setattr(scheduler, "CHUNK_ROWS", 100)
        monkeypatch.setattr(scheduler, "CHUNK_BYTES", 3000)
        parking.park_until(store, due + 1, [b"x" * 1000] * 5)
        parking.now_ms = due + 1
        assert store.schedule.deliver_due() == Delivery(5, None)
        assert store.last_unit("timer", "0") == 9


def test_a_limit_stops_in_the_middle_of_one_time(parking: Any) -> None:
    with parking.open() as store:
        due = parking.now_ms + 1000
        parking.park_until(store, due, [b"%02d" % number for number in range(10)])
        parking.now_ms = due + 1
        assert store.schedule.deliver_due(limit=3) == Delivery(3, due)
    with parking.open() as store:
        assert store.schedule.deliver_due(limit=6) == Delivery(6, due)
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"%02d" % number for number in range(10)]


def test_a_limit_that_late_messages_use_up_is_kept(parking: Any) -> None:
    with parking.open() as store:
        due = parking.now_ms + 1000
        parking.park_until(store, due, [b"first"])
        parking.park_until(store, due + 500, [b"on time"])
        parking.now_ms = due
        assert store.schedule.deliver_due().delivered == 1
        parking.park_until(store, due - 500, [b"late"])
        parking.now_ms += 500
        assert store.schedule.deliver_due(limit=1) == Delivery(1, due + 500)
        assert store.schedule.deliver_due(limit=1) == Delivery(1, None)
        assert parking.bodies(store) == [b"first", b"late", b"on time"]


def test_after_the_clock_was_set_back_nothing_comes_twice_or_is_lost(parking: Any) -> None:
    start_ms = parking.now_ms
    with parking.open() as store:
        parking.park_until(store, start_ms + 20_000, [b"b"])
        parking.park_until(store, start_ms + 5000, [b"a"])
        parking.now_ms = start_ms + 10_000
        assert store.schedule.deliver_due().delivered == 1
        parking.now_ms = start_ms
        assert store.schedule.deliver_due() == Delivery(0, start_ms + 20_000)
        parking.park_until(store, start_ms + 3000, [b"c"])
        parking.now_ms = start_ms + 4000
        assert store.schedule.deliver_due().delivered == 1
    with parking.open() as store:
        parking.now_ms = start_ms + 30_000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"a", b"c", b"b"]


def set_tags_codes(store: Store, tags_codes: list[int]) -> None:
    queue = store._log.views.queue(PYRMQ_TIMER_TOPIC, 0)
    entries = queue.entries(0, len(tags_codes))
    queue.put(0, encode_entries(entries["commit_log_offset"], entries["frame_size"], np.array(tags_codes)))


def test_due_times_are_asked_of_the_records_where_a_broker_rebuilt_the_queue(parking: Any) -> None:
    """To a broker our timer topic is an ordinary one: it writes hashes of tags as tags codes."""
    start_ms = parking.now_ms
    with parking.open() as store:
        for wait in (3000, 1000, 2000):
            parking.park_until(store, start_ms + wait, [b"%d" % wait])
        set_tags_codes(store, [-2598919, 0, 2598919])
        for wait in (1000, 2000, 3000):
            parking.now_ms = start_ms + wait
            assert store.schedule.deliver_due().delivered == 1
        assert parking.bodies(store) == [b"1000", b"2000", b"3000"]


def test_rebuilt_queues_hold_the_due_times_again(parking: Any) -> None:
    due = parking.now_ms + 5000
    with parking.open() as store:
        parking.park_until(store, due, [b"a"])
    shutil.rmtree(parking.root / "consumequeue")
    with parking.open() as store:
        assert store._log.views.queue(PYRMQ_TIMER_TOPIC, 0).entry(0)[2] == due
        assert store.schedule.deliver_due() == Delivery(0, due)


def test_a_message_without_a_readable_time_is_delivered_at_once(parking: Any) -> None:
    with parking.open() as store:
        parking.park_until(store, parking.now_ms + 5000, [b"a"], properties={"TIMER_OUT_MS": "soon"})
        set_tags_codes(store, [77])
        assert store.schedule.deliver_due() == Delivery(1, None)


def test_damaged_timers_are_told_of_and_passed_over(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    due = parking.now_ms + 5000
    with parking.open() as store:
        parking.park_until(store, due, [b"a", b"bad", b"b"])
        offset = store._log.views.queue(PYRMQ_TIMER_TOPIC, 0).entry(1)[0]
        store._log.segments.write(offset + 4, b"\0\0\0\0")
        parking.now_ms = due
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due() == Delivery(2, None)
        assert parking.bodies(store) == [b"a", b"b"]
    assert f"message 1 of {PYRMQ_TIMER_TOPIC}-0" in caplog.text


def test_what_retention_took_is_passed_over(parking: Any) -> None:
    with parking.open() as store:
        for number in range(40):
            parking.park_until(store, parking.now_ms + 5000, [b"%02d" % number * 2000])
        kept = store._log.views.queue(PYRMQ_TIMER_TOPIC, 0).entries(0, 40)["commit_log_offset"].astype(int)
    first, second = sorted((parking.root / "commitlog").iterdir())[:2]
    first.unlink()
    parking.now_ms += 5000
    with parking.open() as store:
        expected = [b"%02d" % number * 2000 for number in range(40) if kept[number] >= int(second.name)]
        assert 0 < len(expected) < 40
        assert store.schedule.deliver_due() == Delivery(len(expected), None)
        assert parking.bodies(store) == expected


def test_queue_files_that_retention_took_are_passed_over(parking: Any) -> None:
    with parking.open() as store:
        for number in range(250):
            parking.park_until(store, parking.now_ms + 5000, [b"%03d" % number + b"." * 600])
    for path in sorted((parking.root / "commitlog").iterdir())[:2]:
        path.unlink()
    parking.now_ms += 5000
    with parking.open() as store:
        first = store.queue_range(PYRMQ_TIMER_TOPIC, 0).min_offset
        assert 100 <= first < 200
        (parking.root / "consumequeue" / PYRMQ_TIMER_TOPIC / "0" / ("0" * 20)).unlink()
        assert store.schedule.deliver_due() == Delivery(250 - first, None)
        assert [int(body[:3]) for body in parking.bodies(store)] == list(range(first, 250))


# -- marks -------------------------------------------------------------------------------------------------------


def rows_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    rows = np.zeros(len(pairs), timer_queue._ROW)
    rows["due_ms"], rows["queue_offset"] = zip(*pairs, strict=True) if pairs else ([], [])
    return rows


def test_a_mark_says_what_was_delivered_for_every_time_and_offset() -> None:
    watermark = Watermark(3, time_ms=5, offset=4, scanned_end=6, start=1)
    grid = list(itertools.product(range(8), range(8)))
    waiting = {(int(row["due_ms"]), int(row["queue_offset"])) for row in watermark.not_delivered(rows_of(grid))}
    assert waiting == {(due, offset) for due, offset in grid if offset >= 6 or (due, offset) >= (5, 4)}


def test_a_mark_travels_in_its_unit() -> None:
    watermark = Watermark(3, time_ms=5, offset=4, scanned_end=6, start=1)
    unit = watermark.unit(2)
    assert (unit.purpose, unit.key, unit.value) == ("timer", "2", 3)
    assert Watermark.of(UnitRecord.parse(unit.bodies(0, 0)[1])) == watermark
    assert Watermark.of(None) == Watermark()


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_the_earliest_messages_are_remembered_and_how_far_that_is_all(limit: int) -> None:
    chance = random.Random(limit)
    earliest, given = Earliest(limit), []
    for first in range(0, 40, 5):
        new = [(chance.randrange(12), offset) for offset in range(first, first + 5)]
        given += new
        earliest.add(rows_of(new))
        kept = [(int(row["due_ms"]), int(row["queue_offset"])) for row in earliest.rows]
        assert kept == sorted(given)[: len(kept)]
        assert len(kept) <= limit
        if earliest.end_ms is None:
            assert len(kept) == len(given)
        else:
            assert len(kept) == limit
            assert all(pair in kept for pair in given if pair[0] < earliest.end_ms)


class Model:
    """A dictionary of what waits."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, int] = {}

    def due(self, now_ms: int) -> list[bytes]:
        return [body for body, due in self.waiting.items() if due <= now_ms]


@pytest.mark.parametrize("seed", range(6))
def test_any_history_delivers_each_message_once_and_on_time(
    parking: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores that look in turn, are closed and opened, remember little, and deliver in small units."""
    monkeypatch.setattr(scheduler, "CHUNK_ROWS", 5)
    monkeypatch.setattr(timer_queue, "_STEP", 7)
    monkeypatch.setattr(timer_queue.TimerQueue.__init__, "__defaults__", (6,))
    chance, model, numbers = random.Random(seed), Model(), itertools.count()
    delivered: list[bytes] = []
    stores = [parking.open(), parking.open()]

    def new(count: int) -> Iterator[bytes]:
        return (b"%05d" % next(numbers) for _ in range(count))

    for _ in range(80):
        which = chance.randrange(2)
        step = chance.random()
        if step < 0.45:
            wait = chance.choice([1, 50, 50, 400, 3000, 2 * MINUTE])
            bodies = list(new(chance.randrange(1, 12)))
            parking.park_until(stores[which], parking.now_ms + wait, bodies)
            model.waiting.update(dict.fromkeys(bodies, parking.now_ms + wait))
        elif step < 0.65:
            parking.now_ms += chance.choice([1, 20, 50, 300, 1000])
        elif step < 0.75:
            stores[which].close()
            stores[which] = parking.open()
        else:
            limit = chance.choice([None, None, 1, 7])
            expected = model.due(parking.now_ms)
            before = sum(timer_count(stores[which]))
            result = stores[which].schedule.deliver_due(limit)
            assert result.delivered == min(len(expected), limit or len(expected)), (seed, expected)
            bodies = parking.bodies(stores[which])[before:]
            assert len(bodies) == result.delivered
            assert set(bodies) <= set(expected)
            delivered += bodies
            for body in bodies:
                del model.waiting[body]
            left = min(model.waiting.values(), default=None)
            assert result.next_due_ms == left
    parking.now_ms += HOUR
    stores[0].schedule.deliver_due()
    for store in stores:
        store.close()
    with parking.open() as store:
        found = parking.bodies(store)
        assert store.schedule.deliver_due() == Delivery(0, None)
    assert sorted(found) == [b"%05d" % number for number in range(next(numbers))]
    assert found[: len(delivered)] == delivered
    assert verify_store(parking.root).status == "clean"


def timer_count(store: Store) -> list[int]:
    return [last - first for first, last in store.queue_ranges("T").values()]
