"""Chains are built by a sort instead of one entry at a time: the files that Java built that way are the proof."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.errors import CorruptIndexError
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.format.properties.property_string import UNIQUE_KEY
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.format.views import index
from rmq_store.format.views.index import (
    HEADER,
    IndexHeader,
    build_chain,
    chain_and_point,
    chain_entries,
    chain_one,
    encode_entries,
    point_slots,
    time_diffs,
)


def put_one_by_one(slot_numbers: list[int], slots: dict[int, int], first_number: int) -> tuple[list[int], int]:
    """RocketMQ's putKey, over a dictionary of slots."""
    previous, new_slots = [], 0
    for number, slot in enumerate(slot_numbers, first_number):
        before = slots.get(slot, 0)
        before = before if 0 < before < number else 0
        new_slots += before == 0
        previous.append(before)
        slots[slot] = number
    return previous, new_slots


@pytest.mark.statement("F04", "F05")
def test_positions_and_sizes_are_those_of_the_specification() -> None:
    assert index.file_size(5_000_000, 20_000_000) == 420_000_040
    assert [index.slot_position(slot) for slot in (8, 16, 29)] == [72, 104, 156]
    assert [index.entry_position(5_000_000, number) for number in (1, 6)] == [20_000_060, 20_000_160]
    assert index.slot_position(index_hash(java_hash("TopicTest#OrderID001")) % 5_000_000) == 5091584


@pytest.mark.statement("F05", "F06")
def test_example_of_the_specification() -> None:
    chain = build_chain(np.array([16, 29, 29, 8, 16, 16]), np.zeros(6, np.int32), 1)
    assert chain.previous.tolist() == [0, 0, 2, 0, 1, 5]
    assert dict(zip(chain.slots.tolist(), chain.values.tolist(), strict=True)) == {8: 4, 16: 6, 29: 3}
    assert chain.new_slots == 3


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=20), max_size=4),
    st.dictionaries(st.integers(0, 12), st.integers(-5, 60)),
)
@pytest.mark.statement("F05")
def test_chains_equal_those_of_one_put_after_the_other(batches: list[list[int]], garbage: dict[int, int]) -> None:
    """Garbage in a slot that is no older entry's number counts as empty."""
    number = 30
    slots = {slot: value for slot, value in garbage.items() if value < number or value > 1000}
    expected_slots = dict(slots)
    for batch in batches:
        current = np.array([slots.get(slot, 0) for slot in batch], ">i4")
        chain = build_chain(np.array(batch, np.int32), current, number)
        previous, new_slots = put_one_by_one(batch, expected_slots, number)
        assert chain.previous.tolist() == previous
        assert chain.new_slots == new_slots
        slots.update(zip(chain.slots.tolist(), chain.values.tolist(), strict=True))
        assert slots == expected_slots
        number += len(batch)


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@given(
    st.lists(st.integers(0, (1 << 31) - 1) | st.integers(0, 20), max_size=40),
    st.dictionaries(st.integers(0, 6), st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 60)),
    st.integers(1, 50),
)
def test_the_extension_chains_entries_as_python_does(hashes: list[int], held: dict[int, int], first: int) -> None:
    slots = np.zeros(7, ">i4")
    slots[list(held)] = list(held.values())
    keys, rows = np.array(hashes, np.int32), np.arange(len(hashes), dtype=np.int64)
    given_arrays = keys, rows * 1000 + (1 << 40), rows.astype(np.int32) * 7, slots, first
    found = chain_entries(*given_arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        wanted = chain_entries(*given_arrays)
    assert found.encoded.tobytes() == wanted.encoded.tobytes()
    assert dict(zip(found.slots.tolist(), found.values.tolist(), strict=True)) == dict(
        zip(wanted.slots.tolist(), wanted.values.tolist(), strict=True)
    )
    assert (len(found.slots), found.new_slots) == (len(wanted.slots), wanted.new_slots)


@pytest.mark.parametrize("loaded", [True, False], ids=["extension", "python"])
@given(
    st.lists(st.integers(0, (1 << 31) - 1) | st.integers(0, 20), max_size=200),
    st.dictionaries(st.integers(0, 6), st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 60)),
    st.integers(1, 50),
)
def test_entries_are_the_same_whether_slots_are_told_or_changed(
    loaded: bool, hashes: list[int], held: dict[int, int], first: int
) -> None:
    """A number that an entry gets only now, but a damaged slot had before, is the one thing in which they differ."""
    if loaded and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    slots = np.zeros(7, ">i4")
    slots[list(held)] = [0 if first <= number < first + len(hashes) else number for number in held.values()]
    keys, rows = np.array(hashes, np.int32), np.arange(len(hashes), dtype=np.int64)
    columns = keys, rows * 1000 + (1 << 40), rows.astype(np.int32) * 7
    changed = slots.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", loaded)
        encoded, new_slots = chain_and_point(*columns, changed, first)
        wanted = chain_entries(*columns, slots, first)
    assert (encoded.tobytes(), new_slots) == (wanted.encoded.tobytes(), wanted.new_slots)
    slots[wanted.slots] = wanted.values
    assert changed.tobytes() == slots.tobytes()


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@pytest.mark.parametrize("chain", [chain_entries, chain_and_point])
@pytest.mark.parametrize(("key_hash", "slot_count", "first"), [(-1, 7, 1), (1, 0, 1), (1, 7, 0), (1, 7, (1 << 31) - 1)])
def test_what_no_index_file_can_hold_is_refused(
    chain: Callable[..., object], key_hash: int, slot_count: int, first: int
) -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"negative|no slots"):
        chain(np.array([key_hash], np.int32), one, one.astype(np.int32), np.zeros(slot_count, ">i4"), first)


small, any_int32 = st.integers(-2, 60), st.integers(-(1 << 31), (1 << 31) - 1)


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@given(
    st.lists(st.integers(0, (1 << 31) - 1) | st.integers(0, 20), max_size=12),
    st.dictionaries(st.integers(0, 6), small | any_int32),
    st.tuples(
        st.integers(-1, 5000) | st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(0, 1 << 62), st.integers(0, 1 << 62), small | any_int32, small | any_int32,
    ),
    st.integers(0, 9000) | st.integers(0, 1 << 62),
    st.integers(0, 70) | st.just((1 << 31) - 1),
)  # fmt: skip
@example([1] * 65, {}, (0, 0, 0, 0, 0, 1), 5, 70)
@example([1, 2], {1: 1}, (0, 0, 0, 0, (1 << 31) - 1, 2), 5, 70)
def test_the_extension_makes_the_entries_of_one_record_as_python_does(
    hashes: list[int], held: dict[int, int], header: tuple[int, ...], time_ms: int, entry_max: int
) -> None:
    slots = np.zeros(7, ">i4")
    slots[list(held)] = list(held.values())
    given_values = slots, IndexHeader(*header).pack(), hashes, 1 << 40, time_ms, entry_max
    found = outcome(*given_values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        assert found == outcome(*given_values)


def outcome(*given_values: Any) -> object:
    """What `chain_one` makes, or that a header cannot say it: nobody has a file with so many entries."""
    try:
        made = chain_one(*given_values)
    except (struct.error, ValueError):
        return "refused"
    return made if made.slots else "no room"


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_what_no_index_file_can_hold_is_refused_of_one_record() -> None:
    header = IndexHeader().pack()
    for hashes, slot_count in (([-1], 7), ([1 << 31], 7), ([1], 0)):
        with pytest.raises(ValueError, match=r"is none|no geometry"):
            chain_one(np.zeros(slot_count, ">i4"), header, hashes, 1, 1, 70)
    with pytest.raises(CorruptIndexError):
        chain_one(np.zeros(7, ">i4"), header[:-1], [1], 1, 1, 70)


def test_slot_that_names_the_new_entry_itself_does_not_make_a_loop() -> None:
    chain = build_chain(np.array([3, 4]), np.array([10, 11]), 10)
    assert chain.previous.tolist() == [0, 0]
    assert chain.new_slots == 2


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50), st.integers(1, 20), st.integers(1, 50))
def test_pointed_slots_equal_those_of_one_put_after_the_other(hashes: list[int], slot_count: int, step: int) -> None:
    slots: dict[int, int] = {}
    put_one_by_one([value % slot_count for value in hashes], slots, 1)
    pointed = np.zeros(slot_count, index.SLOT)
    for first in range(0, len(hashes), step):
        point_slots(pointed, np.array(hashes[first : first + step], ">i4"), first + 1)
    assert pointed.tolist() == [slots.get(slot, 0) for slot in range(slot_count)]


@pytest.mark.statement("F04")
def test_header_reads_back_and_matches_the_dtype() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert IndexHeader.unpack(header.pack() + b"slots") == header
    assert np.frombuffer(header.pack(), HEADER)[0].item() == (1, 2, 3, 4, 5, 6)
    assert IndexHeader.unpack(bytes(40)) == IndexHeader()
    assert IndexHeader.unpack(IndexHeader(index_count=-7).pack()).index_count == 1
    with pytest.raises(CorruptIndexError, match="index/1"):
        IndexHeader.unpack(bytes(39), "index/1")


def test_header_follows_its_entries() -> None:
    header = IndexHeader().with_entries(2, 2, first=(100, 7000), last=(200, 8000))
    assert header == IndexHeader(7000, 8000, 100, 200, 2, 3)
    assert header.with_entries(1, 0, first=(300, 9000), last=(300, 9000)) == IndexHeader(7000, 9000, 100, 300, 2, 4)
    damaged = header._replace(hash_slot_count=(1 << 31) - 2)
    for _ in range(2):
        damaged = damaged.with_entries(1, 1, first=(300, 9000), last=(300, 9000))
    assert IndexHeader.unpack(damaged.pack()).hash_slot_count == (1 << 31) - 1


@pytest.mark.statement("F07")
def test_first_entry_of_a_later_file_counts_from_the_end_of_the_file_before() -> None:
    """Seen in a Java run: maxIndexNum 5, so four entries a file."""
    start = 1795196028589
    times = start + np.cumsum([0, 1368, 1301, 1301, 1301, 1301, 1302])
    first = IndexHeader()
    assert time_diffs(times[:4], first).tolist() == [0, 1, 2, 3]
    first = first.with_entries(4, 4, first=(0, int(times[0])), last=(400, int(times[3])))
    assert first.end_timestamp == 1795196032559
    second = first.next_file()
    assert second == IndexHeader(1795196032559, 1795196032559, 400, 400, 0, 1)
    assert time_diffs(times[4:], second).tolist() == [1, 1, 2]
    assert second.with_entries(3, 3, first=(500, int(times[4])), last=(700, int(times[6]))).begin_timestamp == times[4]


def test_time_differences_are_whole_seconds_from_zero_to_int32() -> None:
    begin = 1_000_000
    times = np.array([begin + 999, begin + 1000, begin - 5000, 2**62], np.int64)
    assert time_diffs(times, IndexHeader(begin_timestamp=begin, index_count=2)).tolist() == [0, 1, 0, 2**31 - 1]
    assert time_diffs(times, IndexHeader(begin_timestamp=0, index_count=2)).tolist() == [0, 0, 0, 0]
    assert time_diffs(times[:0], IndexHeader()).tolist() == []


@pytest.mark.parametrize(
    ("name", "slot_count", "index_count_max", "file_count", "steps"),
    [
        ("golden/store", 1000, 4000, 7, (7, 100_000)),
        ("golden_small/normal", 100, 20, 1, (1, 7, 100_000)),
        ("golden_small/propcrc", 100, 20, 1, (1, 7, 100_000)),
    ],
)
@pytest.mark.statement("F04", "F05", "F07", "F10")
def test_index_files_of_java_follow_byte_for_byte_from_its_commit_log(
    name: str,
    slot_count: int,
    index_count_max: int,
    file_count: int,
    steps: tuple[int, ...],
    request: pytest.FixtureRequest,
    walk_frames,  # type: ignore[no-untyped-def]
) -> None:
    """Whether the entries come one by one, in batches, or a whole file at once."""
    fixture, _, below = name.partition("/")
    store: Path = request.getfixturevalue(fixture) / below
    rows = []
    for offset, raw in walk_frames(store):
        message = decode_frame(raw, 0, len(raw))
        if message.sys_flag & 0xC != SysFlag.TRANSACTION_ROLLBACK:
            keys = [message.properties.get(UNIQUE_KEY, ""), *(message.keys or "").split(" ")]
            if fixture == "golden" and message.tags:  # written by 5.5.0
                keys.append(f"T#{message.tags}")
            hashes = (index_hash(java_hash(f"{message.topic}#{key}")) for key in keys if key)
            rows += [(value, offset, message.store_timestamp_ms) for value in hashes]
    columns = np.array(rows, np.int64)
    files = sorted((store / "index").iterdir())
    assert len(files) == file_count
    for step in steps:
        header = IndexHeader()
        for number, file in enumerate(files):
            part = columns[number * (index_count_max - 1) : (number + 1) * (index_count_max - 1)]
            image, header = build_file(part, header, slot_count, index_count_max, step)
            assert image == file.read_bytes(), file.name
            slots = np.zeros(slot_count, index.SLOT)
            point_slots(slots, part[:, 0], 1)
            assert slots.tobytes() == image[40 : 40 + 4 * slot_count]
            header = header.next_file()


def build_file(
    rows: np.ndarray, header: IndexHeader, slot_count: int, index_count_max: int, step: int
) -> tuple[bytes, IndexHeader]:
    """An index file with `rows` (n, 3) of hash, offset and store time, put in batches of `step`."""
    slots = np.zeros(slot_count, index.SLOT)
    body = b""
    for start in range(0, len(rows), step):
        hashes, offsets, times = rows[start : start + step].T
        slot_numbers = hashes % slot_count
        chain = build_chain(slot_numbers, slots[slot_numbers], header.index_count)
        body += encode_entries(hashes, offsets, time_diffs(times, header), chain.previous).tobytes()
        slots[chain.slots] = chain.values
        first, last = ((int(offsets[k]), int(times[k])) for k in (0, -1))
        header = header.with_entries(len(hashes), chain.new_slots, first=first, last=last)
    image = header.pack() + slots.tobytes() + bytes(index.ENTRY_BYTES) + body
    return image.ljust(index.file_size(slot_count, index_count_max), b"\0"), header
