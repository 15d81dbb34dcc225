"""Who asks where a message lies, or when it was stored, is not misled by a damaged entry: its neighbours answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq_store import Message, Store
from rmq_store.errors import CorruptRecordError
from rmq_store.format.views.consume_queue import ENTRY_BYTES
from rmq_store.log import retention

QUEUE = ("Alpha", 0)
COUNT = 60


@pytest.fixture
def timed(lab: Any) -> Any:
    """COUNT messages, each stored at another time, in files of 5 entries and some segments; (lab, places, times)."""
    with lab.open() as store:
        places = [store.send(Message("Alpha", b"x" * 300, queue_id=0)).commit_log_offset for _ in range(COUNT)]
        times = [store.store_timestamp(*QUEUE, number) for number in range(COUNT)]
    return lab, places, times


def overwrite(lab: Any, number: int, data: bytes) -> None:
    per_file_bytes = lab.config.mapped_file_size_consume_queue
    base = number * ENTRY_BYTES // per_file_bytes * per_file_bytes
    with (lab.root / "consumequeue" / "Alpha" / "0" / f"{base:020d}").open("r+b") as file:
        file.seek(number * ENTRY_BYTES - base)
        file.write(data)


def entry(store: Store, number: int) -> bytes:
    return store.queue_entries(*QUEUE, number, number + 1).tobytes()


DAMAGES: dict[str, Callable[[Store], bytes]] = {
    "nothing": lambda store: bytes(20),
    "all ones": lambda store: b"\xff" * 20,
    "the first message": lambda store: entry(store, 0),
    "the last message": lambda store: entry(store, COUNT - 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_time_is_found_over_damaged_entries(timed: Any, damage: str) -> None:
    lab, _, times = timed
    with lab.open(read_only=True) as store:
        wrong = DAMAGES[damage](store)
        for number in (15, 28, 29, 30, 31, 44):
            overwrite(lab, number, wrong)
        sound = set(range(COUNT)) - {15, 28, 29, 30, 31, 44}
        for number in sound:
            assert store.offset_by_time(*QUEUE, times[number], "upper") == number
            assert store.offset_by_time(*QUEUE, times[number]) == min(  # behind damage: its first message
                {number, *range(max({before for before in sound if before < number}, default=-1) + 1, number)}
            )
        assert store.offset_by_time(*QUEUE, 0) == 0
        assert store.offset_by_time(*QUEUE, times[-1] + 1) == COUNT


def test_a_time_is_looked_for_over_a_segment_that_is_lost(timed: Any) -> None:
    lab, places, times = timed
    (lab.root / "commitlog" / f"{8192:020d}").unlink()
    lost = [number for number, place in enumerate(places) if 8192 <= place < 2 * 8192]
    with lab.open(read_only=True) as store:
        for number in set(range(COUNT)) - {*lost, lost[-1] + 1}:
            assert store.offset_by_time(*QUEUE, times[number]) == number
        assert store.offset_by_time(*QUEUE, times[lost[5]]) == lost[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_tells_no_place_beyond_its_neighbours_and_no_time(timed: Any, damage: str) -> None:
    lab, places, _ = timed
    with lab.open(read_only=True) as store:
        overwrite(lab, 30, DAMAGES[damage](store))
        assert places[29] <= store.commit_log_offset_before(*QUEUE, 31) <= places[31]
        with pytest.raises(CorruptRecordError, match="message 30 of Alpha-0"):
            store.store_timestamp(*QUEUE, 30)
        for number in (29, 31):
            assert store.commit_log_offset_before(*QUEUE, number + 1) == places[number]


def test_a_damaged_message_is_where_its_entry_says(timed: Any) -> None:
    lab, places, _ = timed
    lab.overwrite(places[30] + 4, b"\xff" * 60)
    with lab.open(read_only=True) as store:
        assert store.commit_log_offset_before(*QUEUE, 31) == places[30]


def test_retention_deletes_no_file_of_a_queue_because_its_last_entry_is_damaged(timed: Any) -> None:
    """Entry 19, the last one of its file, claims to be message 0, which retention took: messages 17 to 19 stay."""
    lab, places, _ = timed
    with lab.open() as store:
        log, start = store._log, next(number for number, place in enumerate(places) if place >= 8192)
        assert 15 < start < 19
        overwrite(lab, 19, entry(store, 0))
        overwrite(lab, 4, bytes(20))  # of an old file: what follows it tells
        retention.make_removable(log, 8192)
        assert retention.remove_segment(log, 0, forced=True)
        assert retention.remove_queue_files(log) == start // 5
        assert store.queue_range(*QUEUE) == (start, COUNT)
