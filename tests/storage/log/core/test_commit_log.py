"""Small questions to the log: whose record is this, where does a queue end, walk from here."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rmq_store import Store
from rmq_store.errors import CorruptRecordError
from rmq_store.format.frames import frame_walk
from rmq_store.format.frames.frame_check import BLANK_MAGIC
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import CommitLog

if TYPE_CHECKING:
    from .conftest import Lab


def entry(log: CommitLog, queue_offset: int) -> tuple[int, int]:
    offset, size, _ = log.views.queue("Alpha", 0).entry(queue_offset)
    return offset, size


def test_a_record_answers_only_to_its_own_queue_offset_and_place(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(40, body_bytes=300))
        log = store._log
        for number in (0, 3, 8):
            offset, size = entry(log, number)
            assert log.is_record_of("Alpha", 0, offset, size, number)
            assert not log.is_record_of("Beta", 0, offset, size, number)
            assert not log.is_record_of("Alph", 0, offset, size, number)
            assert not log.is_record_of("Alpha", 1, offset, size, number)
            assert not log.is_record_of("Alpha", 0, offset, size, number + 1)
            assert not log.is_record_of("Alpha", 0, offset, size - 1, number)
            assert not log.is_record_of("Alpha", 0, offset + 1, size, number)
            assert not log.is_record_of("Alpha", 0, offset + (1 << 40), size, number)
            assert not log.is_record_of("Alpha", 0, -offset - 1, size, number)


def test_a_topic_of_more_than_127_characters_answers_too(lab: Lab) -> None:
    name = "%RETRY%" + "g" * 120
    with lab.open() as store:
        store.create_topic(name, 1)
        store.append(lab.batch(1), name)
        offset, size, _ = store._log.views.queue(name, 0).entry(0)
        assert store._log.is_record_of(name, 0, offset, size, 0)


def test_a_damaged_record_answers_no_or_yes_but_never_raises(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(4))
        end = store.log_range()[1]
    path = lab.root / "commitlog" / ("0" * 20)
    data, noise = path.read_bytes(), random.Random(7)
    with Store.open(lab.root, read_only=True) as store:
        offset, size = entry(store._log, 0)
        for _ in range(500):
            damaged = bytearray(data)
            for _ in range(noise.choice([1, 4, 60])):
                damaged[noise.randrange(end)] = noise.choice([0, 1, 0x7F, 0x80, 0xFF, noise.randrange(256)])
            with path.open("r+b") as file:
                file.write(damaged)
            assert store._log.is_record_of("Alpha", 0, offset, size, 0) in (True, False)
            for wild in (0, 83, 84, 85, size, 8192, 1 << 31):
                assert not store._log.is_record_of("Beta", 5, offset, wild, 9)
                assert not store._log.is_record_of("Alpha", 0, 8192 - 10, wild, 0)


def test_a_queue_whose_newest_record_retention_took_keeps_its_end(lab: Lab) -> None:
    """A rarely used queue: its last record is older than the oldest segment."""
    with lab.open() as store:
        store.append(lab.batch(3), "Alpha")
        expected = {queue_id: bounds.max_offset for queue_id, bounds in store.queue_ranges("Alpha").items()}
        store.append(lab.batch(60, body_bytes=300).slice(1, 1), "Beta")
        for _ in range(30):
            store.append(lab.batch(2, body_bytes=300), "Beta")
        assert len(store._log.segments.bases()) > 2
        store.flush()
        store._log.segments.remove(0)
        store._log.views.queue("Alpha", 0)._hint = 0
        for queue_id, last in expected.items():
            assert store.queue_range("Alpha", queue_id) == (last, last)
        store.append(lab.batch(1), "Alpha")
        assert sum(bounds.max_offset for bounds in store.queue_ranges("Alpha").values()) == 4
    with lab.open() as store:
        ranges = store.queue_ranges("Alpha")
    # A recovery cuts every queue behind its last true entry, and passes over what is no queue.
    (lab.root / "consumequeue" / "Alpha" / "notes").mkdir()
    lab.crash()
    lab.reboot()
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "OWN"
        assert store.queue_ranges("Alpha") == ranges


def test_a_walk_stops_at_a_blank_frame_in_the_middle_of_a_segment(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
        end = store.log_range()[1]
        store._log.segments.write(end, struct.pack(">ii", 100, BLANK_MAGIC))
        last = list(scan.walk(store._log, 0))[-1]
        assert (last.end, last.stopped) == (end, "a blank frame that does not end with its segment")
        store._log.segments.write(end, bytes(8))


def test_a_walk_stops_at_its_limit_at_a_bad_frame_and_at_a_missing_segment(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        log, end = store._log, store.log_range()[1]
        whole = list(scan.walk(log, 0, end))
        assert sum(len(stretch.positions) for stretch in whole) == 60
        assert [stretch.stopped for stretch in whole] == [""] * len(whole)
        assert whole[-1].end == end
        unlimited = list(scan.walk(log, 0))
        assert unlimited[-1].end == end
        assert "magic" in unlimited[-1].stopped
        starts = [stretch.base + int(position) for stretch in whole for position in stretch.positions]
        part = list(scan.walk(log, starts[5], starts[40]))
        assert [stretch.base + int(p) for stretch in part for p in stretch.positions] == starts[5:40]
        second = log.segments.bases()[1]
        store.flush()
        log.segments.remove(second)
        stretches = list(scan.walk(log, 0))
        assert stretches[-1].end == second
        assert stretches[-1].stopped == "the next segment does not exist"


def test_a_segment_of_many_frames_is_walked_in_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        log, end = store._log, store.log_range()[1]
        whole = list(scan.walk(log, 0))
        for module in (frame_walk, scan):
            monkeypatch.setattr(module, "FRAMES_MAX", 4)
        parts = list(scan.walk(log, 0))
        assert max(len(part.positions) for part in parts) == 4
        assert len(parts) > 2 * len(whole)
        assert [(part.base, position) for part in parts for position in part.positions] == [
            (stretch.base, position) for stretch in whole for position in stretch.positions
        ]
        ends = [(part.end, behind.base + behind.positions[:1]) for part, behind in pairwise(parts)]
        assert all(part_end in behind for part_end, behind in ends if len(behind))
        assert (parts[-1].end, parts[-1].stopped) == (end, whole[-1].stopped)


def test_a_record_that_is_finished_while_the_walk_looks_is_walked_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
        whole = next(scan.walk(store._log, 0))
        monkeypatch.setattr(scan, "sound_frames", lambda *_: (np.empty(0, np.int64), np.empty(0, np.int64)))
        parts = list(scan.walk(store._log, 0))
        assert [int(part.positions[0]) for part in parts[:-1]] == whole.positions.tolist()
        assert [int(part.sizes[0]) for part in parts[:-1]] == whole.sizes.tolist()
        assert parts[-1].stopped == whole.stopped


def test_a_walk_that_asks_for_checksums_stops_at_a_record_without_one(lab: Lab) -> None:
    lab.config = replace(lab.config, enabled_append_prop_crc=False)
    with lab.open() as store:
        store.append(lab.batch(5))
        end = store.log_range()[1]
        second = lab.boundaries(0, end)[1]
        assert list(scan.walk(store._log, 0))[-1].end == end
        for crc_from in (second, 0):
            store._log.crc_from = crc_from
            assert list(scan.walk(store._log, 0))[-1].end == crc_from


@pytest.mark.parametrize("crc_property", [True, False])
def test_records_of_both_settings_come_through_a_power_cut(lab: Lab, crc_property: bool) -> None:
    lab.config = replace(lab.config, enabled_append_prop_crc=crc_property)
    with lab.open() as store:
        store.append(lab.batch(5))
    lab.crash(lambda store: store.append(lab.batch(5)))
    lab.reboot()
    with lab.open() as store:
        assert lab.numbers(store) == list(range(10))


def test_the_store_timestamp_of_no_whole_record_is_unknown(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
        log = store._log
        offset, _ = entry(log, 0)
        assert log.store_timestamp(offset) == lab.now_ms
        for wrong in (offset + 1, -1, -(1 << 40), 1 << 40, store.log_range()[1]):
            assert log.store_timestamp(wrong) is None
        assert isinstance(log.missing_segment(5), CorruptRecordError)
