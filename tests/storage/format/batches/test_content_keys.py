"""Content keys: the same for the same content in whatever order, with and without the extension, and found again."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.batches import content_keys
from rmq_store.format.batches.batch_bodies import KEY_BYTES
from rmq_store.format.batches.content_keys import (
    PLACE_BYTES,
    FoundKeys,
    KeyMaker,
    body_checks,
    content_digests,
    keys_in_frames,
    seed_of,
    tag_of,
)
from rmq_store.format.batches.encode_input import EncodeOptions
from rmq_store.format.batches.frame_encoder import encode_batch
from rmq_store.format.bytes import native
from rmq_store.format.text.host import Host

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
ANY = Host.parse("0.0.0.0:0")
SEED = seed_of(["query", "7", "3"])


def frames_of(bodies: list[bytes], *, unique_keys: list[str] | None = None, host: Host = ANY) -> pa.LargeBinaryArray:
    columns: dict[str, pa.Array] = {"topic": pa.array(["Orders"] * len(bodies)), "body": pa.array(bodies, pa.binary())}
    if unique_keys is not None:
        columns["properties"] = pa.array(
            [[("a", "b"), ("UNIQ_KEY", key)] for key in unique_keys], pa.map_(pa.string(), pa.string())
        )
    batch = pa.RecordBatch.from_pydict(columns)
    options = EncodeOptions(host, host, 1, crc_property=False)
    return encode_batch(batch, queue_ids=np.zeros(len(bodies), np.int32), options=options).column("frame")


def keys_of(bodies: list[bytes], maker: KeyMaker, *, place: int = 0) -> list[bytes]:
    places = np.full(PLACE_BYTES * len(bodies), place, np.uint8)
    keys = maker.keys(content_digests(frames_of(bodies), maker.seed, places)).tobytes()
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def test_keys_depend_on_the_content_and_not_on_the_order(way: str) -> None:
    bodies = [b"tea", b"milk", b"tea", b"", b"tea"] + [b"%d" % (n % 40) for n in range(100)]
    ordered = keys_of(bodies, KeyMaker(SEED))
    assert len(set(ordered)) == len(bodies)
    shuffled = bodies.copy()
    Random(1).shuffle(shuffled)
    assert set(keys_of(shuffled, KeyMaker(SEED))) == set(ordered)
    # Equal ones are counted across batches.
    maker = KeyMaker(SEED)
    assert {*keys_of(bodies[:50], maker), *keys_of(bodies[50:], maker)} == set(ordered)


def test_other_seeds_and_places_give_other_keys(way: str) -> None:
    ours = keys_of([b"tea"], KeyMaker(SEED))
    assert ours != keys_of([b"tea"], KeyMaker(seed_of(["query", "8", "3"])))
    assert ours != keys_of([b"tea"], KeyMaker(SEED), place=1)
    assert ours[0].startswith(tag_of(SEED))
    assert seed_of(["a", "bc"]) != seed_of(["ab", "c"])


@needs_native
@given(st.lists(st.binary(max_size=400), max_size=30), st.binary(min_size=128, max_size=128))
def test_the_extension_makes_the_digests_of_hashlib(bodies: list[bytes], seed: bytes) -> None:
    frames = frames_of(bodies)
    places = np.arange(PLACE_BYTES * len(bodies), dtype=np.int64).astype(np.uint8)
    by_kind = {}
    try:
        for most in range(3):
            by_kind[native.functions.blake2b_kind(most)] = content_digests(frames, seed, places).tobytes()
    finally:
        assert native.functions.blake2b_kind(2) == max(by_kind)
    with patch.object(native, "LOADED", False):
        assert set(by_kind.values()) == {content_digests(frames, seed, places).tobytes()}


@pytest.mark.parametrize("size", [0, 84, 85, 86, 100, 212, 213, 1024, 100_000])
@needs_native
def test_bodies_around_the_blocks_of_the_hash(size: int) -> None:
    frames, places = frames_of([b"x" * size]), np.zeros(PLACE_BYTES, np.uint8)
    found = content_digests(frames, SEED, places).tobytes()
    with patch.object(native, "LOADED", False):
        assert content_digests(frames, SEED, places).tobytes() == found


@pytest.mark.parametrize("host", ["10.0.0.1:10911", "[fe80::1]:10911"])
def test_keys_are_found_in_frames_of_a_log(way: str, host: str) -> None:
    maker = KeyMaker(SEED)
    mine = keys_of([b"tea", b"milk"], maker)
    other = keys_of([b"tea"], KeyMaker(seed_of(["other", "8", "3"])))
    texts = [mine[0].hex().upper(), other[0].hex().upper(), "0A", mine[1].hex().upper(), mine[1].hex()]
    frames = frames_of([b"tea", b"tea", b"x", b"milk", b"milk"], unique_keys=texts, host=Host.parse(host))
    offsets = np.frombuffer(frames.buffers()[1], np.int64)[: len(frames) + 1]
    data = np.frombuffer(frames.buffers()[2], np.uint8)
    keys, checks, rows = keys_in_frames(data, offsets[:-1].copy(), maker.tag)
    assert (keys.tobytes(), rows.tolist()) == (mine[0] + mine[1], [0, 3])
    assert checks.tolist() == body_checks(frames_of([b"tea", b"milk"])).tolist()


def test_found_keys_answer_whether_they_were_found_and_what_the_body_was(way: str) -> None:
    bodies = [b"%d" % n for n in range(200)]
    keys = np.frombuffer(b"".join(keys_of(bodies, KeyMaker(SEED))), np.uint8)
    checks = body_checks(frames_of(bodies))
    found = FoundKeys()
    assert not found.find(keys)[0].any()
    found.add(keys[: KEY_BYTES * 60], checks[:60])
    found.add(keys[: KEY_BYTES * 10], checks[:10])
    is_found, of_found = found.find(keys)
    assert is_found.tolist() == [True] * 60 + [False] * 140
    assert of_found.tolist() == checks[:60].tolist() + [0] * 140
    assert (len(found), found.repeated) == (60, 10)


def test_more_equal_messages_than_the_ordinal_counts_are_refused(
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(content_keys, "ORDINALS_MAX", 3)
    maker = KeyMaker(SEED)
    keys_of([b"tea"] * 3, maker)
    with pytest.raises(UsageError, match="are equal"):
        keys_of([b"tea"], maker)


@needs_native
def test_what_would_lead_the_extension_out_of_its_buffers_is_refused() -> None:
    frames = frames_of([b"tea", b"milk"])
    offsets = np.frombuffer(frames.buffers()[1], np.int64)[:3].copy()
    data = np.frombuffer(frames.buffers()[2], np.uint8)
    places, digests = np.zeros(32, np.uint8), np.zeros(32, np.uint8)
    for cut in (-1, 1, 40, 88):
        bad = np.array([0, offsets[1] - cut, offsets[2]])
        with pytest.raises(IndexError):
            native.functions.content_digests(data, bad, 88, SEED, places, digests)
        assert (
            native.functions.write_entries(data, bad, 88, None, b"", np.zeros(3, np.int64), np.zeros(999, np.uint8))
            == 0
        )
    for bad_at in (-1, int(offsets[1]) + 1, int(offsets[2]), 1 << 40):
        with pytest.raises(IndexError):
            native.functions.keys_in_frames(
                data, np.array([bad_at]), b"", np.zeros(16, np.uint8), np.zeros(1, np.uint64), np.zeros(1, np.int64)
            )
    full = np.ones(6, np.uint64)
    with pytest.raises(ValueError, match="no room"):
        native.functions.find_digests(np.zeros(2, np.uint64), full, np.zeros(1, np.uint64))
    with pytest.raises(ValueError, match="no room"):
        native.functions.store_digests(np.zeros(4, np.uint64), np.zeros(6, np.uint64), np.ones(2, np.uint64))
    with pytest.raises(ValueError, match="no room"):
        native.functions.number_digests(np.arange(4, dtype=np.uint64), np.zeros(6, np.uint64), 0, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="power of two"):
        native.functions.find_digests(np.zeros(2, np.uint64), np.zeros(9, np.uint64), np.zeros(1, np.uint64))


def test_a_maker_knows_the_keys_that_it_has_made() -> None:
    maker = KeyMaker(SEED)
    made = keys_of([b"a", b"b", b"a", *(b"%d" % number for number in range(3000))], maker)
    third_of_a = made[2][:-1] + b"\2"
    others = [
        third_of_a,
        keys_of([b"c"], KeyMaker(SEED))[0],
        keys_of([b"a"], KeyMaker(seed_of(["another"])))[0],
        b"xx" + made[0][2:],
    ]
    known = maker.has_made(np.frombuffer(b"".join([*made, *others]), np.uint8))
    assert known.tolist() == [True] * len(made) + [False] * len(others)
    assert maker.has_made(np.zeros(0, np.uint8)).tolist() == []
