"""Where a queue ends, found in its files each time, whatever stands behind the end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_store.files.segments.open_files import OpenFile, OpenFiles
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK, PRE_BLANK_SIZE
from rmq_store.log.views.consume_queue import ConsumeQueue

PER_FILE = 7
SIZE = 100  # bytes of each record; message n lies at 1000 * n
LOG_END = 10**6


def make_queue(root: Path, per_file: int = PER_FILE) -> ConsumeQueue:
    (root / "pyrmq").mkdir(parents=True, exist_ok=True)
    directory = root / "consumequeue" / "Topic" / "0"
    return ConsumeQueue(
        SegmentRun(directory, per_file * ENTRY_BYTES, OpenFiles(), writable=True, sparse=True, pin=False), "Topic", 0
    )


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return make_queue(tmp_path)


def entries(first: int, count: int) -> np.ndarray:
    made = np.zeros(count, ENTRY)
    made["commit_log_offset"] = 1000 * np.arange(first, first + count)
    made["frame_size"] = SIZE
    made["tags_code"] = 7
    return made


def end_behind(message: int) -> int:
    """The log's end right behind a message."""
    return 1000 * message + SIZE


def is_true(offset: int, size: int, queue_offset: int) -> bool:
    return (offset, size) == (1000 * queue_offset, SIZE)


def min_offset(queue: ConsumeQueue, log_start: int, max_offset: int) -> int:
    return queue.min_offset(log_start, max_offset, LOG_END, is_true)


def test_a_queue_without_files_is_empty(queue: ConsumeQueue) -> None:
    assert queue.max_offset(10**9, is_true, is_true) == 0
    assert min_offset(queue, 0, 0) == 0
    assert queue.last_entry() is None
    assert queue.cut(0, is_true) == 0


@pytest.mark.parametrize("count", [0, 3, PER_FILE, 3 * PER_FILE + 1])
def test_entries_that_were_read_are_written_back_as_they_were(queue: ConsumeQueue, tmp_path: Path, count: int) -> None:
    queue.put(0, entries(0, count))
    found = queue.entries(0, count)
    assert found.dtype == queue.entries_at(np.arange(count)).dtype == ENTRY
    other = make_queue(tmp_path / "other")
    other.put(0, found)
    other.put(count, entries(count, 2).astype(ENTRY.newbyteorder("<")))
    assert other.entries(0, count + 2).tobytes() == entries(0, count + 2).tobytes()


@given(count=st.integers(0, 30), behind=st.integers(-1, 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_the_end_is_behind_the_last_entry_whose_record_ends_in_the_log(
    tmp_path_factory: pytest.TempPathFactory, count: int, behind: int
) -> None:
    queue = make_queue(tmp_path_factory.mktemp("queue"))
    queue.put(0, entries(0, count))
    expected = min(count, behind + 1)
    for end, wanted in ((end_behind(behind), expected), (end_behind(behind) - 1, min(count, max(behind, 0)))):
        assert queue.max_offset(end, is_true, is_true) == wanted
        assert make_queue(queue.run.directory.parents[2]).max_offset(end, is_true, is_true) == wanted  # without a hint


def test_files_roll_and_entries_come_back_across_them(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 5))
    queue.put(5, entries(5, 20))
    assert queue.run.bases() == [0, 140, 280, 420]
    assert (queue.entries(3, 25) == entries(3, 22)).all()
    assert queue.entries(4, 4).tolist() == []
    assert queue.entry(24) == (24_000, SIZE, 7)
    assert queue.max_offset(10**9, is_true, is_true) == 25


def test_an_entry_put_alone_is_the_entry_that_a_batch_puts(tmp_path: Path) -> None:
    one, many = make_queue(tmp_path / "a"), make_queue(tmp_path / "b")
    many.put(0, entries(0, 15))
    for number in range(15):
        one.put_one(number, 1000 * number, SIZE, 7)
    for base in many.run.bases():
        assert one.run.path(base).read_bytes() == many.run.path(base).read_bytes()


def test_a_hint_is_proved_against_the_files(queue: ConsumeQueue) -> None:
    """Two processes append in turn: what one of them remembers is old."""
    other = make_queue(queue.run.directory.parents[2])
    queue.put(0, entries(0, 3))
    assert queue.max_offset(10**9, is_true, is_true) == 3
    other.put(3, entries(3, 1))
    assert queue.max_offset(10**9, is_true, is_true) == 4
    other.put(4, entries(4, 12))
    assert queue.max_offset(10**9, is_true, is_true) == 16
    other.cut(5000, is_true)
    assert queue.max_offset(10**9, is_true, is_true) == 5
    assert queue.max_offset(end_behind(2), is_true, is_true) == 3


def test_a_hint_at_which_a_sector_rots_is_none(tmp_path: Path) -> None:
    queue, other = make_queue(tmp_path, per_file=200), make_queue(tmp_path, per_file=200)
    queue.put(0, entries(0, 50))
    other.put(50, entries(50, 60))
    other.put(50, np.zeros(26, ENTRY))
    assert queue.max_offset(10**9, is_true, is_true) == 110


def test_a_queue_that_has_grown_does_not_end_in_a_sector_that_rots_there(tmp_path: Path) -> None:
    queue, other = make_queue(tmp_path, per_file=1000), make_queue(tmp_path, per_file=1000)
    for first in (51, 76, 100, 300, 480):
        queue.put(0, entries(0, 50))
        other.put(50, entries(50, 470))
        other.put(first, np.zeros(26, ENTRY))
        assert queue.max_offset(10**9, is_true, is_true) == 520
        other.cut(0, is_true)


@pytest.mark.parametrize(("hint", "left"), [(50, 60), (950, 960)])
def test_a_queue_that_has_a_next_file_does_not_end_before_it(tmp_path: Path, hint: int, left: int) -> None:
    queue, other = make_queue(tmp_path, per_file=1000), make_queue(tmp_path, per_file=1000)
    queue.put(0, entries(0, hint))
    other.put(0, entries(0, 1200))
    other.put(left, np.zeros(1000 - left, ENTRY))
    assert queue.max_offset(10**9, is_true, is_true) == 1200


def test_the_end_of_a_queue_that_has_grown_is_found_with_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue(tmp_path, per_file=60_000), make_queue(tmp_path, per_file=60_000)
    queue.put(0, entries(0, 50_000))
    looks = 0

    def counted(file: OpenFile, position: int, size_bytes: int) -> bytes:
        nonlocal looks
        looks += 1
        return read(file, position, size_bytes)

    read = OpenFile.read
    monkeypatch.setattr(OpenFile, "read", counted)
    assert (queue.max_offset(10**9, is_true, is_true), looks) == (50_000, 1)
    for end in (50_001, 50_006, 50_206):
        other.put(50_000, entries(50_000, end - 50_000))
        looks = 0
        assert (queue.max_offset(10**9, is_true, is_true), looks) == (end, 2)


def test_a_hint_of_a_file_that_is_gone_is_forgotten(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 12))
    assert queue.max_offset(10**9, is_true, is_true) == 12
    queue.run.path(140).unlink()
    assert queue.max_offset(10**9, is_true, is_true) == 7


def test_a_torn_entry_that_seems_to_count_is_refuted_by_its_record(queue: ConsumeQueue) -> None:
    """The high half of an offset is written, the low half still zero: the entry points into old records."""
    queue.put(0, entries(0, 4))
    torn = entries(0, 1)  # looks like a record at offset 0
    queue.put(4, torn)
    assert queue.max_offset(end_behind(3), is_true, is_true) == 4
    assert queue.max_offset(end_behind(3), lambda *entry: True, is_true) == 5  # what would be believed without asking


def test_a_torn_entry_at_the_begin_of_a_new_file_is_refuted_too(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, PER_FILE))
    assert queue.max_offset(end_behind(6), is_true, is_true) == PER_FILE
    queue.put(PER_FILE, entries(0, 1))
    assert queue.max_offset(end_behind(6), is_true, is_true) == PER_FILE


def test_several_torn_entries_behind_the_end_are_all_refuted(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 3))
    queue.put(3, entries(0, 3))
    assert queue.max_offset(end_behind(2), is_true, is_true) == 3


def test_a_queue_that_begins_late_is_filled_up_with_pre_blank_slots(queue: ConsumeQueue) -> None:
    queue.put(10, entries(10, 2))
    assert queue.run.bases() == [140]
    assert queue.run.path(140).read_bytes()[: 3 * ENTRY_BYTES] == 3 * PRE_BLANK
    assert queue.max_offset(10**9, is_true, is_true) == 12
    assert min_offset(queue, 0, 12) == 10
    assert queue.entry(9)[1] == PRE_BLANK_SIZE
    assert queue.max_offset(end_behind(9), is_true, is_true) == 10  # the queue begins at 10, and has nothing yet


@pytest.mark.parametrize("start", [0, 3, PER_FILE, PER_FILE + 3])
@pytest.mark.parametrize("count", [1, PER_FILE - 3, 3 * PER_FILE])
def test_room_that_was_made_changes_nothing_of_what_is_put(tmp_path: Path, start: int, count: int) -> None:
    """Neither where a queue ends in the meantime, nor what its files hold afterwards."""
    found: list[list[tuple[str, bytes]]] = []
    for name in ("with", "without"):
        queue = make_queue(tmp_path / name)
        if start:
            queue.put(0, entries(0, start))
        if name == "with":
            queue.make_room(start, count)
            assert make_queue(tmp_path / name).max_offset(LOG_END, is_true, is_true) == start
            expected = {base for base in range(0, start + count, PER_FILE) if base >= start}
            assert expected <= {base // ENTRY_BYTES for base in queue.run.bases()}
        queue.put(start, entries(start, count))
        files = sorted((tmp_path / name / "consumequeue" / "Topic" / "0").iterdir())
        found.append([(file.name, file.read_bytes()) for file in files])
    assert found[0] == found[1]


def test_a_queue_that_begins_at_a_files_begin_needs_no_filling(queue: ConsumeQueue) -> None:
    queue.put(14, entries(14, 1))
    assert queue.run.bases() == [280]
    assert (min_offset(queue, 0, 15), queue.max_offset(10**9, is_true, is_true)) == (14, 15)


def test_retention_moves_the_minimum_inside_and_across_files(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 20))
    assert min_offset(queue, 0, 20) == 0
    assert min_offset(queue, 5000, 20) == 5
    assert min_offset(queue, 5001, 20) == 6
    queue.run.remove(0)
    assert min_offset(queue, 9000, 20) == 9
    assert min_offset(queue, 0, 20) == 7
    assert min_offset(queue, 10**9, 20) == 20
    assert queue.max_offset(10**9, is_true, is_true) == 20


@pytest.mark.parametrize(
    ("offset", "size", "tags_code"),
    [(0, 0, 0), (5000, 0, 7), (5000, -1, 7), (-1, SIZE, 7), (LOG_END, SIZE, 7), (5000, PRE_BLANK_SIZE, 7)],
    ids=["zeroed", "no size", "negative size", "negative offset", "beyond the log", "size of a pre-blank slot"],
)
def test_damage_is_no_retention(queue: ConsumeQueue, offset: int, size: int, tags_code: int) -> None:
    """Wherever entries are lost: the minimum stays, and damage that it lies in or behind counts as left."""
    queue.put(0, entries(0, 40))
    queue.run.remove(0)
    sound = queue.entries(7, 40)
    lost = np.array([(offset, size, tags_code)] * 12, ENTRY)
    for minimum in (7, 8, 19, 33, 39, 40):
        for first in range(7, 40):
            for last in range(first + 1, min(first + 13, 41)):
                if (first, last) == (7, 40) or (last == 40 and minimum == 40):
                    continue  # the newest entry is asked for its record before
                queue.put(first, lost[: last - first])
                expected = first if first <= minimum <= last else minimum
                assert min_offset(queue, 1000 * minimum, 40) == expected, (minimum, first, last)
                queue.put(7, sound)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_entries_of_taken_messages_among_others_are_refuted_by_a_record_before_them(
    queue: ConsumeQueue, count: int
) -> None:
    """As a sector that was written to the wrong place leaves them: they look like entries in front of the log."""
    queue.put(0, entries(0, 63))
    sound = queue.entries(0, 63)
    for first in range(20, 63 - count):
        queue.put(first, entries(1, count))
        assert min_offset(queue, 9000, 63) == 9, first
        queue.put(0, sound)


def test_an_entry_alone_that_claims_a_taken_record_refutes_nothing(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 20))
    queue.put(7, entries(15, 1))
    assert min_offset(queue, 10_000, 20) == 10


def test_damage_behind_pre_blank_slots_does_not_hide_the_first_message(queue: ConsumeQueue) -> None:
    queue.put(10, entries(10, 20))
    sound = queue.entries(10, 30)
    for first in range(10, 27):
        queue.put(first, np.zeros(3, ENTRY))
        assert min_offset(queue, 0, 30) == 10
        queue.put(10, sound)


def test_the_minimum_is_found_with_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(tmp_path, per_file=60_000)
    queue.put(0, entries(0, 50_000))
    queue.put(25_000, np.zeros(26, ENTRY))
    looks = 0

    def counted(base: int) -> OpenFile:
        nonlocal looks
        looks += 1
        return opened(base)

    opened = queue.run.open
    monkeypatch.setattr(queue.run, "open", counted)
    assert queue.min_offset(40_000_000, 50_000, 1 << 40, is_true) == 40_000
    assert looks < 50


def test_a_known_minimum_is_looked_for_again_when_files_or_the_log_have_changed(queue: ConsumeQueue) -> None:
    def settle() -> None:
        os.utime(queue.run.directory, (1, 1))

    queue.put(0, entries(0, 3 * PER_FILE))
    settle()
    assert [min_offset(queue, 0, 3 * PER_FILE) for _ in range(2)] == [0, 0]
    assert min_offset(queue, 2000, 3 * PER_FILE) == 2  # retention has deleted a segment
    assert min_offset(queue, 2000, 1) == 1  # for a thread with an earlier end of the log
    queue.run.path(0).unlink()  # in another process
    settle()
    assert min_offset(queue, 2000, 3 * PER_FILE) == PER_FILE
    queue.begin_again(PER_FILE)
    settle()
    queue.put(PER_FILE, entries(PER_FILE + 5, 1))
    assert min_offset(queue, 2000, PER_FILE + 1) == PER_FILE


def test_a_known_range_is_forgotten_when_files_or_the_log_have_changed(queue: ConsumeQueue) -> None:
    span, end = (0, LOG_END), end_behind(3 * PER_FILE)

    def looked() -> None:
        os.utime(queue.run.directory, (1, 1))
        for _ in range(2):
            found = min_offset(queue, 0, 3 * PER_FILE), queue.max_offset(end, is_true, is_true)
            queue.remember_range(end, span, found)

    queue.put(0, entries(0, 3 * PER_FILE))
    queue.remember_range(end, span, (0, 3 * PER_FILE))
    assert queue.known_range(end, span) is None  # nobody has listed its files
    looked()
    assert queue.known_range(end, span) == (0, 3 * PER_FILE)
    assert queue.known_range(end + 1000, span) is None
    assert queue.known_range(end, (1000, LOG_END)) is None  # retention has deleted a segment
    queue.run.path(0).unlink()  # in another process
    assert queue.known_range(end, span) is None
    looked()
    assert queue.known_range(end, span) == (PER_FILE, 3 * PER_FILE)
    queue.cut(1000 * (3 * PER_FILE - 1), is_true)
    assert queue.known_range(end, span) is None


@given(count=st.integers(1, 30), cut=st.integers(0, 31))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_cut_leaves_the_bytes_that_were_there_before_the_cut_entries_came(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int
) -> None:
    whole, part = (make_queue(tmp_path_factory.mktemp("queue")) for _ in range(2))
    kept = min(count, cut)
    whole.put(0, entries(0, count))
    part.put(0, entries(0, kept))
    assert whole.cut(1000 * cut, is_true) == kept
    bases = part.run.bases() or [0]  # the first file stays, as zeros
    assert whole.run.bases() == bases
    for base in part.run.bases():
        assert whole.run.path(base).read_bytes() == part.run.path(base).read_bytes()


def test_a_cut_reaches_stale_entries_behind_a_hole(queue: ConsumeQueue) -> None:
    """A power cut kept a later page of the file and lost an earlier one."""
    queue.put(0, entries(0, 3))
    queue.put(5, entries(5, 6))
    assert queue.cut(3000, is_true) == 3
    assert queue.run.bases() == [0]
    assert queue.run.path(0).read_bytes() == entries(0, 3).tobytes() + bytes(4 * ENTRY_BYTES)


def test_a_cut_takes_a_last_entry_that_its_record_does_not_own_up_to(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 3))
    queue.put(3, entries(0, 2))
    assert queue.cut(3000, is_true, is_true) == 3
    assert queue.max_offset(10**9, lambda *entry: True, is_true) == 3


def test_a_cut_keeps_pre_blank_slots(queue: ConsumeQueue) -> None:
    queue.put(10, entries(10, 2))
    assert queue.cut(0, is_true, is_true) == 10
    assert min_offset(queue, 0, queue.max_offset(10**9, is_true, is_true)) == 10


def test_the_newest_entry_is_told_wherever_it_points(queue: ConsumeQueue) -> None:
    queue.put(0, entries(0, 9))
    assert queue.last_entry() == (8000, SIZE, 7)
