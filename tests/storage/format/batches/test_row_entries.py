"""Entries straight from columns: the same bytes, keys and checks as by way of frames, in pieces of any size."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.batches import content_keys
from rmq_store.format.batches.batch_bodies import KEY_BYTES, batch_entries
from rmq_store.format.batches.content_keys import PLACE_BYTES, KeyMaker, body_checks, content_digests, seed_of
from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions
from rmq_store.format.batches.frame_encoder import encode_batch
from rmq_store.format.batches.row_entries import Entries, RowEntries
from rmq_store.format.bytes import native
from rmq_store.format.text.host import Host

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

ANY = Host.parse("0.0.0.0:0")
TAIL = b"WAIT\x01true\x02"
OPTIONS = EncodeOptions(ANY, ANY, 1, crc_property=False, index_tags=False, drop_properties=frozenset({"UNIQ_KEY", "b"}))
SEED = seed_of(["query", "7", "3"])
MAP = pa.map_(pa.string(), pa.string())

TEXT = st.none() | st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9)
NUMBER = st.none() | st.integers(-(1 << 31), (1 << 31) - 1)
VALUE = st.none() | st.text("xyzü", min_size=1, max_size=9)
ENTRY = st.tuples(st.sampled_from(["a", "b", "TAGS", "UNIQ_KEY", "ä"]), VALUE)
ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["Orders", "T" * 127]),
        "body": st.binary(min_size=1, max_size=400) | st.sampled_from([b"tea", b"x" * 1024, b"y" * 5000]),
        "tags": TEXT, "keys": TEXT, "shardingKey": TEXT, "flag": NUMBER, "reconsumeTimes": NUMBER,
        "sysFlag": st.sampled_from([None, 0, 1, 0x100]),
        "properties": st.none() | st.lists(ENTRY, max_size=4, unique_by=lambda entry: entry[0]),
    }
)  # fmt: skip
SCHEMA = pa.schema(
    {
        "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string(), "shardingKey": pa.string(),
        "flag": pa.int32(), "reconsumeTimes": pa.int32(), "sysFlag": pa.int32(), "properties": MAP,
    }
)  # fmt: skip


def measured(
    batch: pa.RecordBatch, *, entry_bytes_max: int = 1 << 20, rest_bytes_max: int = 32_000
) -> RowEntries | None:
    given_rows = EncodeInput(batch)
    return RowEntries.measured(given_rows, given_rows.topics(), OPTIONS, TAIL, entry_bytes_max, rest_bytes_max)


def by_frames(batch: pa.RecordBatch, maker: KeyMaker, places: np.ndarray, picked: np.ndarray) -> Entries:
    rows = batch.take(pa.array(picked))
    frames = encode_batch(rows, queue_ids=np.zeros(len(picked), np.int32), options=OPTIONS).column("frame")
    of_rows = places.reshape(-1, PLACE_BYTES)[picked].ravel()
    keys = maker.keys(content_digests(frames, maker.seed, of_rows))
    offsets, entries = batch_entries(frames, keys, TAIL)
    return Entries(entries.tobytes(), offsets[1:], keys, body_checks(frames))


def assert_same(one: Entries, other: Entries) -> None:
    assert one.body == other.body
    for each, of_other in zip(one[1:], other[1:], strict=True):
        assert each.tolist() == of_other.tolist()


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=40), st.integers(1, 20), st.randoms(use_true_random=False))
def test_entries_are_those_by_way_of_frames(rows: list[dict[str, Any]], per_piece: int, random: Any) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    picked = np.array(random.sample(range(len(rows)), len(rows)), np.int64)
    places = np.frombuffer(random.randbytes(PLACE_BYTES * 3), np.uint8)
    places = places.reshape(3, -1)[np.arange(len(rows)) % 3].ravel()
    usual = measured(batch)
    assert usual is not None
    ours, theirs = KeyMaker(SEED), KeyMaker(SEED)
    for start in range(0, len(rows), per_piece):
        piece = picked[start : start + per_piece]
        assert_same(usual.write(piece, ours, places), by_frames(batch, theirs, places, piece))


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("first_bytes", [1, 90, 1024])
def test_ten_thousand_rows_have_the_same_entries_on_each_kind_of_processor(most: int, first_bytes: int) -> None:
    random = np.random.default_rng(first_bytes)
    bodies = [random.bytes(first_bytes + number % 257) for number in range(400)]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["Orders", "Bills"] * 5_000), "keys": pa.array([f"k{n % 90}" for n in range(10_000)]),
            "body": pa.array([bodies[number] for number in random.integers(0, 400, 10_000)], pa.binary()),
        }
    )  # fmt: skip
    places = np.zeros(PLACE_BYTES * 10_000, np.uint8)
    usual = measured(batch)
    assert usual is not None
    try:
        native.functions.blake2b_kind(most)
        ours, theirs = KeyMaker(SEED), KeyMaker(SEED)
        for start, end in ((0, 7), (7, 4_000), (4_000, 10_000)):
            rows = np.arange(start, end)
            assert_same(usual.write(rows, ours, places), by_frames(batch, theirs, places, rows))
    finally:
        native.functions.blake2b_kind(2)


def plain(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": ["Orders"] * 2, "body": pa.array([b"tea", b"milk"])} | columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"body": pa.array([b"tea", b""])},
        {"tags": ["a", "b\x02c"]},
        {"keys": ["a", "k" * 32_000]},
        {"properties": pa.array([[("a", "b")], [("c\x01", "d")]], MAP)},
        {"properties": pa.array([[("a", "b")], [("c", "")]], MAP)},
    ],
)
def test_what_is_not_usual_is_left_to_frames(columns: dict[str, Any]) -> None:
    assert measured(plain()) is not None
    assert measured(plain(**columns)) is None


def test_entries_that_are_too_long_are_left_to_frames() -> None:
    usual = measured(plain())
    assert usual is not None
    longest = int(usual.sizes.max())
    assert measured(plain(), entry_bytes_max=longest) is not None
    assert measured(plain(), entry_bytes_max=longest - 1) is None
    rest = longest - len(b"milk")
    assert measured(plain(), rest_bytes_max=rest) is not None
    assert measured(plain(), rest_bytes_max=rest - 1) is None


def test_compression_and_pure_python_are_left_to_frames() -> None:
    given_rows = EncodeInput(plain())
    with_compression = EncodeOptions(ANY, ANY, 1, crc_property=False, compress_over_bytes=1)
    assert RowEntries.measured(given_rows, given_rows.topics(), with_compression, TAIL, 1 << 20, 32_000) is None
    with patch.object(native, "LOADED", False):
        assert measured(plain()) is None


def test_more_equal_messages_than_the_ordinal_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_keys, "ORDINALS_MAX", 3)
    usual, maker, places = measured(plain(body=pa.array([b"tea"] * 2))), KeyMaker(SEED), np.zeros(32, np.uint8)
    assert usual is not None
    usual.write(np.array([0, 1, 0]), maker, places)
    with pytest.raises(UsageError, match="are equal"):
        usual.write(np.array([1]), maker, places)


@pytest.mark.parametrize("change", [-1, 1, 40, 1 << 40, -(1 << 40)])
def test_sizes_that_are_not_those_of_the_rows_are_refused(change: int) -> None:
    """Sanitizers and valgrind find a write beyond."""
    usual, maker, places = measured(plain(tags=["A", "B"])), KeyMaker(SEED), np.zeros(32, np.uint8)
    assert usual is not None
    usual.sizes[1] += change
    with pytest.raises((IndexError, MemoryError)):
        usual.write(np.array([0, 1]), maker, places)
    usual.sizes[1] -= change
    usual.write(np.array([0, 1]), maker, places)


@pytest.mark.parametrize("row", [-1, 2, 1 << 40])
def test_rows_that_are_not_there_are_refused(row: int) -> None:
    usual, maker = measured(plain()), KeyMaker(SEED)
    assert usual is not None
    sizes = usual.sizes.tolist()
    with pytest.raises(IndexError):
        native.functions.write_entries_of_rows(
            usual._rows, np.array([row]), usual.sizes, usual._fields.flags, usual._fields.reconsume_times,
            np.zeros(32, np.uint8), SEED, maker.tag, TAIL, np.zeros(6, np.uint64), 0, 9, np.zeros(1, np.int64),
            np.zeros(KEY_BYTES, np.uint8), np.zeros(1, np.uint64),
        )  # fmt: skip
    assert usual.sizes.tolist() == sizes


def test_a_table_without_room_is_told_and_not_left() -> None:
    usual, maker = measured(plain()), KeyMaker(SEED)
    assert usual is not None
    slots = np.zeros(6, np.uint64)
    _, used = native.functions.write_entries_of_rows(
        usual._rows, np.array([0, 1]), usual.sizes, usual._fields.flags, usual._fields.reconsume_times,
        np.zeros(32, np.uint8), SEED, maker.tag, TAIL, slots, 0, 9, np.zeros(2, np.int64),
        np.zeros(2 * KEY_BYTES, np.uint8), np.zeros(2, np.uint64),
    )  # fmt: skip
    assert used == -1
    assert (slots.reshape(2, 3)[:, 2] > 0).sum() == 1
