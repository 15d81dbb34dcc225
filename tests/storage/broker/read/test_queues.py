"""Questions about queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import (
    CorruptQueueError,
    Message,
    OffsetOutOfRangeError,
    Store,
    StoreConfig,
    UnknownTopicError,
    UsageError,
)
from rmq_store.broker.read.queues import Queues
from rmq_store.log.core.commit_log import CommitLog


class Clock:
    now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(scratch: Path, tiny: StoreConfig, clock: Clock) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=tiny, clock=clock) as opened:
        opened.create_topic("T", queue_count=3)
        yield opened


def send_at(store: Store, clock: Clock, *times_ms: int) -> None:
    for time_ms in times_ms:
        clock.now_ms = time_ms
        store.send(Message("T", b"x", queue_id=0))


def test_a_queue_that_was_never_used_is_empty_also_where_its_topic_does_not_exist(store: Store) -> None:
    assert store.queue_range("T", 2) == (0, 0)
    assert store.queue_range("T", 99) == (0, 0)
    assert store.queue_range("Nowhere", 0) == (0, 0)
    assert store.offset_by_time("Nowhere", 0, 5) == 0
    assert store.commit_log_offset_before("T", 2, 0) == -1
    assert list(store.read("T", 2, 0, 0)) == []
    with pytest.raises(UnknownTopicError, match="Nowhere"):
        store.queue_ranges("Nowhere")


def test_searching_by_time_gives_the_answers_of_the_specification(store: Store, clock: Clock) -> None:
    """ConsumeQueue#getOffsetInQueueByTime: times 1, 1, 1, 3, 3 s."""
    send_at(store, clock, 1000, 1000, 1000, 3000, 3000)
    expected = {500: (0, 0), 1000: (0, 2), 2000: (3, 2), 3000: (3, 4), 4000: (5, 4)}
    for time_ms, answers in expected.items():
        found = tuple(store.offset_by_time("T", 0, time_ms, boundary) for boundary in ("lower", "upper"))
        assert (time_ms, found) == (time_ms, answers)


def test_searching_by_time_looks_over_the_borders_of_queue_files(store: Store, clock: Clock) -> None:
    send_at(store, clock, *range(2000, 2000 + 90 * 10, 10))  # 20 entries a file
    for number in (0, 19, 20, 21, 39, 40, 89):
        time_ms = 2000 + number * 10
        assert store.offset_by_time("T", 0, time_ms) == number
        assert store.offset_by_time("T", 0, time_ms - 5) == number
        assert store.offset_by_time("T", 0, time_ms + 5, "upper") == number
        assert store.store_timestamp("T", 0, number) == time_ms


def test_of_a_long_queue_only_the_entries_are_looked_at_that_may_fit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(pa.record_batch({"body": [b"x" * 400] * 2000, "queueId": pa.array([0] * 2000, pa.int32())}), "T")
    looks: list[int] = []
    real = Queues._entries

    def spy(queues: Queues, topic: str, queue_id: int, start: int, end: int) -> Any:
        looks.append(end)
        return real(queues, topic, queue_id, start, end)

    monkeypatch.setattr(Queues, "_entries", spy)
    assert 5 < store.offset_after_bytes("T", 0, 3, 2000, 5000) < 15
    assert max(looks) < 70


def test_bytes_between_and_offset_after_bytes_are_inverse(store: Store, clock: Clock) -> None:
    sizes = [50, 700, 1, 2000, 9, 9, 9, 300] * 10
    store.append(
        pa.record_batch({"body": [b"x" * size for size in sizes], "queueId": pa.array([0] * 80, pa.int32())}), "T"
    )
    end = len(sizes)
    assert store.bytes_between("T", 0, 5, 5) == 0
    total = store.bytes_between("T", 0, 0, end)
    assert sum(store.bytes_between("T", 0, n, n + 1) for n in range(end)) == total
    for start in (0, 3, 41):
        for stop in range(start + 1, end + 1):
            size = store.bytes_between("T", 0, start, stop)
            assert store.offset_after_bytes("T", 0, start, end, size) == stop
            assert store.offset_after_bytes("T", 0, start, end, size - 1) == max(stop - 1, start + 1)
    assert store.offset_after_bytes("T", 0, 0, end, 1 << 40) == end
    assert store.offset_after_bytes("T", 0, 7, 7, 0) == 7
    assert store.offset_after_bytes("T", 0, 7, 8, 0) == 8  # one message at least
    assert store.offset_after_bytes("T", 0, 0, end, 0) == 1
    with pytest.raises(OffsetOutOfRangeError):
        store.bytes_between("T", 0, 0, end + 1)
    with pytest.raises(OffsetOutOfRangeError):
        store.offset_after_bytes("T", 0, 0, end + 1, 5)


def test_the_place_of_the_message_before_is_minus_one_where_there_is_none(store: Store, clock: Clock) -> None:
    send_at(store, clock, 1, 2, 3)
    places = [store.commit_log_offset_before("T", 0, n) for n in range(5)]
    rows = [row for batch in store.read("T", 0, 0, 3, columns=["commitLogOffset"]) for row in batch.to_pylist()]
    assert places == [-1, *(row["commitLogOffset"] for row in rows), -1]


def test_the_first_segments_removed_by_retention_move_the_minimum(
    store: Store, clock: Clock, working_copy: Callable[[Path], Path]
) -> None:
    bodies = [b"%03d" % n * 100 for n in range(150)]
    store.append(pa.record_batch({"body": bodies, "queueId": pa.array([0] * 150, pa.int32())}), "T")
    store.close()
    root = working_copy(store.path)
    segments = sorted((root / "commitlog").iterdir())
    segments[0].unlink()
    for read_only in (True, False):
        with Store.open(root, read_only=read_only) as cut:
            first, last = cut.queue_range("T", 0)
            assert (0 < first < 60, last) == (True, 150)
            assert cut.log_range()[0] == int(segments[1].name)
            (row,) = next(cut.read("T", 0, first, first + 1, columns=["body"])).to_pylist()
            assert row["body"] == bodies[first]
            assert cut.commit_log_offset_before("T", 0, first) == -1
            assert cut.offset_by_time("T", 0, 0) == first
            with pytest.raises(OffsetOutOfRangeError) as raised:
                cut.read("T", 0, first - 1, last)
            error = raised.value
            assert (error.requested, error.minimum, error.maximum) == (first - 1, first, last)


def test_a_queue_that_rolls_while_its_range_is_asked_for_is_empty_up_to_where_it_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was found in a file that retention has taken since, with all that was visible then."""
    fifty = pa.record_batch({"body": [b"x" * 100] * 50, "queueId": pa.array([0] * 50, pa.int32())})
    store.append(fifty, "T")
    found = CommitLog.queue_max

    def found_before_retention(log: CommitLog, topic: str, queue_id: int, end: int) -> int:
        last = found(log, topic, queue_id, end)
        store.append(fifty, "T")
        for path in sorted((store.path / "consumequeue" / "T" / "0").iterdir())[:-1]:
            path.unlink()
        return last

    monkeypatch.setattr(CommitLog, "queue_max", found_before_retention)
    first, last = store.queue_range("T", 0)
    assert 50 < first == last <= 100


def test_a_lost_sector_of_queue_entries_is_not_taken_for_retention(
    store: Store, working_copy: Callable[[Path], Path]
) -> None:
    bodies = [b"%03d" % n * 100 for n in range(150)]
    store.append(pa.record_batch({"body": bodies, "queueId": pa.array([0] * 150, pa.int32())}), "T")
    store.close()
    root = working_copy(store.path)
    sorted((root / "commitlog").iterdir())[0].unlink()
    with Store.open(root, read_only=True) as cut:
        whole = cut.queue_range("T", 0)
    for path in sorted((root / "consumequeue" / "T" / "0").iterdir())[:-1]:
        if int(path.name) <= 20 * whole.min_offset:
            continue
        sound = path.read_bytes()
        path.write_bytes(bytes(len(sound)))
        with Store.open(root, read_only=True) as damaged:
            assert damaged.queue_range("T", 0) == whole
            lost = int(path.name) // 20
            with pytest.raises(CorruptQueueError, match=f"entry {lost} .* says 0 bytes at byte 0 of the log"):
                list(damaged.read("T", 0, *whole))
            with pytest.raises(CorruptQueueError, match=f"entry {lost} "):
                list(damaged.read("T", 0, *whole, only=np.array([lost])))
        path.write_bytes(sound)


def test_a_file_missing_in_the_middle_of_a_queue_is_damage_and_not_retention(
    store: Store, working_copy: Callable[[Path], Path]
) -> None:
    store.append(pa.record_batch({"body": [b"x"] * 90, "queueId": pa.array([0] * 90, pa.int32())}), "T")
    store.close()
    root = working_copy(store.path)
    with Store.open(root, read_only=True) as broken:
        assert broken.queue_range("T", 0) == (0, 90)
        sorted((root / "consumequeue" / "T" / "0").iterdir())[2].unlink()
        with pytest.raises(CorruptQueueError, match="consumequeue/T/0"):
            list(broken.read("T", 0, 0, 90))


def test_arguments_that_make_no_sense_are_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="negative"):
        store.queue_range("T", -1)
    with pytest.raises(UsageError, match="lower or upper"):
        store.offset_by_time("T", 0, 0, "both")
    with pytest.raises(OffsetOutOfRangeError):
        store.store_timestamp("T", 0, 0)
