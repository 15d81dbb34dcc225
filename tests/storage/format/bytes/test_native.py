"""The extension, where it was built, says what Python says; and refuses what would lead it out of its buffers."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.crc_ways import crc_way
from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions
from rmq_store.format.batches.frame_encoder import encode_batch
from rmq_store.format.batches.native_encoder import columns_of
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import sum_words
from rmq_store.format.frames.crc import slice_crcs
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.tables.schema import PROPERTIES_TYPE
from rmq_store.format.text.hashing import java_hash, java_hashes, topic_key_hashes
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator

FORMAT_TESTS = Path(__file__).parents[1]
# What the extension has a part in.
REPRESENTATIVE = ("frames/test_crc.py", "text/test_hashing.py")

ZERO = np.zeros(1, np.int64)

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")


def test_everything_is_there_without_the_extension() -> None:
    """A machine without a C compiler runs the Python that stands beside each call."""
    modules = [FORMAT_TESTS / name for name in REPRESENTATIVE]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules],
        env={**os.environ, "RMQ_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_an_extension_that_was_built_for_other_parameters_is_not_used() -> None:
    program = (
        "import sys, types, rmq_store; rmq_store._native = sys.modules['rmq_store._native'] = types.ModuleType('old');"
        "[sys.modules.pop(name) for name in list(sys.modules) if name == 'rmq_store.format.bytes.native'];"
        "from rmq_store.format.bytes import native; import importlib; print(importlib.reload(native).LOADED)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "False"


def test_the_environment_can_switch_the_extension_off() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from rmq_store.format.bytes import native; print(native.LOADED)"],
        env={**os.environ, "RMQ_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "False\n"


@needs_native
@pytest.mark.parametrize("way", range(3))
def test_crcs_are_those_of_zlib(way: int) -> None:
    """Every length up to where each loop was taken twice, and every alignment."""
    text = np.random.default_rng(way).integers(0, 256, 800, np.uint8)
    sizes = np.arange(780)
    starts = sizes % 17
    seeds = (sizes * 0x9E3779B1).astype(np.uint32)
    with crc_way(way):
        found = slice_crcs(text, starts, starts + sizes, seeds)
    assert found.tolist() == [
        zlib.crc32(text[start : start + size].tobytes(), int(seed))
        for start, size, seed in zip(starts, sizes, seeds, strict=True)
    ]


@needs_native
@pytest.mark.parametrize("way", range(3))
@given(st.binary(min_size=1, max_size=400), st.integers(1, 20))
def test_crcs_of_texts_of_all_kinds_are_those_of_zlib(way: int, piece: bytes, times: int) -> None:
    text = piece * times
    with crc_way(way):
        found = slice_crcs(np.frombuffer(text, np.uint8), np.array([0]), np.array([len(text)]))
    assert found.tolist() == [zlib.crc32(text)]


@needs_native
@pytest.mark.parametrize("way", range(3))
def test_crcs_of_frames_are_put_together_in_each_way(way: int) -> None:
    """Of long bodies the CRC is taken once, and carried over what is behind them."""
    host = Host.parse("10.0.0.1:10911")
    options = EncodeOptions(host, host, 0, crc_property=True)
    bodies = [bytes([size & 0xFF]) * size for size in (0, 100, 511, 512, 5_000, 70_000, 300_000)]
    batch = pa.RecordBatch.from_pydict({"topic": ["T"] * len(bodies), "body": bodies})
    with crc_way(way):
        encoded = encode_batch(batch, queue_ids=np.zeros(len(bodies), np.int32), options=options)
    frames = encoded.column("frame").to_pylist()
    assert encoded.column("crc").to_pylist() == [zlib.crc32(frame[:-CRC_PROPERTY_BYTES]) for frame in frames]


@needs_native
def test_a_way_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no way 3"):
        native.functions.crc_way(3)


@needs_native
@pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (0, 9), (9, 9), (-(1 << 63), 8), (0, (1 << 63) - 1)])
def test_a_slice_outside_of_its_data_is_refused(start: int, end: int) -> None:
    with pytest.raises(IndexError, match="slice 1 "):
        slice_crcs(np.zeros(8, np.uint8), np.array([0, start]), np.array([8, end]))


@needs_native
def test_arrays_of_another_kind_are_refused() -> None:
    data, bounds, crcs = np.zeros(8, np.uint8), np.zeros(2, np.int64), np.zeros(2, np.uint32)
    with pytest.raises(TypeError, match="starts: expected aligned items of 8 bytes, got 4"):
        native.functions.slice_crcs(data, bounds.astype(np.int32), bounds, None, crcs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="starts: expected aligned items of 8 bytes"):
        unaligned = np.frombuffer(bytes(17), np.uint8)[1:].view(np.int64)
        native.functions.slice_crcs(data, unaligned, bounds, None, crcs)
    with pytest.raises(ValueError, match="ends: expected 2 items, got 1"):
        native.functions.slice_crcs(data, bounds, bounds[:1], None, crcs)
    with pytest.raises(ValueError, match="read-only"):
        crcs.flags.writeable = False
        native.functions.slice_crcs(data, bounds, bounds, None, crcs)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        native.functions.slice_crcs(data[::2], bounds, bounds, None, np.zeros(2, np.uint32))


def three_rows() -> tuple[Any, tuple[np.ndarray, ...]]:
    """The columns of three rows as the extension takes them, and their fixed fields."""
    host = Host.parse("10.0.0.1:10911")
    options = EncodeOptions(host, host, 0, crc_property=True, unique_ids=UniqueIdGenerator(host.address, 1, 2))
    columns = {
        "topic": pa.array(["T", "U", "T"]),
        "body": pa.array([b"one", b"", b"three"]),
        "tags": pa.array(["a", None, "b"]),
        "keys": pa.array(["k1 k2", "k3", None]),
        "properties": pa.array([[("x", "y")], [], [("z", "1"), ("x", "2")]], PROPERTIES_TYPE),
    }
    given = EncodeInput(pa.RecordBatch.from_pydict(columns))
    fields = given.fields(np.arange(3, dtype=np.int32), options)
    rows = columns_of(given, given.topics(), given.bodies(100), fields, options)
    return rows, (fields.queue_ids, fields.flags, fields.born_timestamps, fields.reconsume_times)


def with_other_numbers(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """The same nest of tuples with other arrays in it."""
    if isinstance(value, tuple):
        return tuple(with_other_numbers(part, change) for part in value)
    return change(value) if isinstance(value, np.ndarray) else value


def damage(random: Random, is_far: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Gives every fifth number another value: a small one, or one far out of any buffer."""
    far = [-(1 << 31), -1, (1 << 31) - 1]

    def change(numbers: np.ndarray) -> np.ndarray:
        changed = numbers.copy()
        for place in range(len(changed)):
            if random.random() < 0.2:
                changed[place] = random.choice(far) if is_far and changed.dtype.kind == "i" else random.randrange(12)
        return changed

    return change


@needs_native
@given(st.randoms(use_true_random=False), st.booleans())
def test_no_number_leads_the_encoder_out_of_its_buffers(random: Random, is_far: bool) -> None:
    """Offsets, codes and sizes of any value: refused or written somewhere in the frames, and nothing beyond them."""
    rows, fixed = three_rows()
    change = damage(random, is_far)
    sizes = np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(3, np.int64)
    if native.functions.measure_frames(rows, *sizes) is None:
        raise AssertionError("rows in order were refused")
    native.functions.measure_frames(with_other_numbers(rows, change), *(array.copy() for array in sizes))
    guarded = np.full(int(sizes[0][-1]) + 64, 0xEE, np.uint8)
    results = guarded[32:-32], np.zeros(3, np.uint32), np.zeros(3, np.int64), np.zeros(int(sizes[1][-1]), np.int32)
    with contextlib.suppress(IndexError):
        changed_sizes = with_other_numbers(sizes, change)
        part = random.choice([(0, 3), (1, 2), (-1, 3), (0, 4)])
        native.functions.write_frames(
            with_other_numbers(rows, change), *part, *fixed, b"0" * 20, random.randrange(1 << 64), *changed_sizes,
            *results,
        )  # fmt: skip
    assert (guarded[:32] == 0xEE).all()
    assert (guarded[-32:] == 0xEE).all()


@needs_native
@given(st.randoms(use_true_random=False), st.booleans())
def test_no_number_leads_the_encoder_out_of_the_room_it_has(random: Random, is_far: bool) -> None:
    """As above, in one pass, with room for all rows, or only for some of their bytes and hashes."""
    rows, fixed = three_rows()
    sizes = np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(3, np.int64)
    assert native.functions.measure_frames(rows, *sizes) == 3
    needed_bytes, needed_hashes = int(sizes[0][-1]), int(sizes[1][-1])
    frames_bytes = random.choice([needed_bytes, random.randrange(needed_bytes)])
    hash_count = random.choice([needed_hashes, random.randrange(needed_hashes)])

    def encoded(given: Any) -> bool:
        frames, hashes = np.full(frames_bytes + 64, 0xEE, np.uint8), np.full(hash_count + 16, -1, np.int32)
        is_done = native.functions.encode_frames(
            given, *fixed, b"0" * 20, 7, np.zeros(4, np.int64), np.zeros(4, np.int32), frames[32:-32],
            np.zeros(3, np.uint32), np.zeros(3, np.int64), hashes[8:-8],
        )  # fmt: skip
        assert (frames[:32] == 0xEE).all()
        assert (frames[-32:] == 0xEE).all()
        assert (hashes[:8] == -1).all()
        assert (hashes[-8:] == -1).all()
        return is_done

    assert encoded(rows) == (frames_bytes == needed_bytes and hash_count == needed_hashes)
    encoded(with_other_numbers(rows, damage(random, is_far)))


@needs_native
@pytest.mark.parametrize(("fewer_bytes", "fewer_hashes"), [(0, 0), (1, 0), (0, 1), (30, 0), (0, 2)])
def test_room_that_is_a_little_too_small_is_not_overrun(fewer_bytes: int, fewer_hashes: int) -> None:
    """By neither way of writing."""
    rows, fixed = three_rows()
    sizes = np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(3, np.int64)
    assert native.functions.measure_frames(rows, *sizes) == 3
    frames = np.full(int(sizes[0][-1]) + 64, 0xEE, np.uint8)
    hashes = np.full(int(sizes[1][-1]) + 16, -1, np.int32)
    results = (
        frames[32 : -32 - fewer_bytes], np.zeros(3, np.uint32), np.zeros(3, np.int64), hashes[8 : -8 - fewer_hashes],
    )  # fmt: skip
    if fewer_bytes or fewer_hashes:
        with pytest.raises(IndexError, match="not what was measured"):
            native.functions.write_frames(rows, 0, 3, *fixed, b"0" * 20, 7, *sizes, *results)
    is_done = native.functions.encode_frames(
        rows, *fixed, b"0" * 20, 7, np.zeros(4, np.int64), np.zeros(4, np.int32), *results
    )
    assert is_done == (not fewer_bytes and not fewer_hashes)
    assert (frames[len(frames) - 32 - fewer_bytes :] == 0xEE).all()
    assert (hashes[len(hashes) - 8 - fewer_hashes :] == -1).all()


@needs_native
def test_rows_that_cannot_be_stored_as_they_are_stop_the_one_pass() -> None:
    def is_taken(rows: native.Rows, fixed: tuple[np.ndarray, ...]) -> bool:
        return native.functions.encode_frames(
            rows, *fixed, b"0" * 20, 7, np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(2_000, np.uint8),
            np.zeros(3, np.uint32), np.zeros(3, np.int64), np.zeros(50, np.int32),
        )  # fmt: skip

    rows, fixed = three_rows()
    assert is_taken(rows, fixed)
    assert is_taken(rows._replace(body_bytes_max=5), fixed)
    assert not is_taken(rows._replace(body_bytes_max=4), fixed)
    long_topic = rows._replace(topics=b"T" * 260, topic_offsets=np.array([0, 256, 260], np.int32))
    assert not is_taken(long_topic, fixed)
    with_own_key = rows._replace(named=(*rows.named, (b"UNIQ_KEY", rows.named[0][1])))
    assert not is_taken(with_own_key, fixed)
    assert is_taken(with_own_key._replace(unique_key_bytes=0), fixed)


@needs_native
def test_rows_that_several_threads_encode_are_those_that_one_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host.parse("127.0.0.1:10911")
    sizes = [0, 1_500_000, 3, 0, 700_000, 900_000, 5, 1_200_000, 0]
    topics = pa.DictionaryArray.from_arrays(np.arange(9, dtype=np.int32) % 2, pa.array(["T", "U"]))
    bodies = pa.array([bytes([row]) * size for row, size in enumerate(sizes)], pa.large_binary())
    batch = pa.RecordBatch.from_pydict({"topic": topics, "body": bodies, "keys": pa.array([*"abcdefghi"])})
    queue_ids = np.arange(9, dtype=np.int32)

    def encoded(in_threads: bool) -> pa.RecordBatch:
        ids = UniqueIdGenerator(host.address, 1, 2)
        options = EncodeOptions(host, host, 1_700_000_000_000, True, unique_ids=ids, in_threads=in_threads)
        return encode_batch(batch, queue_ids=queue_ids, options=options)

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    by_one = encoded(in_threads=False)
    written = Mock(wraps=native.functions.write_frames)
    with patch.object(native.functions, "write_frames", written):
        assert encoded(in_threads=True).equals(by_one)
    assert [call.args[1:3] for call in written.call_args_list] == [(0, 2), (2, 6), (6, 9)]


@needs_native
def test_texts_that_are_no_utf_8_are_hashed_in_python() -> None:
    """Java sees U+FFFD there, and so does the twin."""
    texts, hashes = np.frombuffer(b"ok\xff\xc3", np.uint8), np.empty(2, np.uint32)
    assert not native.functions.slice_hashes(texts, np.array([0, 2]), np.array([2, 4]), 0, hashes)
    assert java_hashes(pa.array([b"ok", b"\xff\xc3"])).tolist() == [java_hash("ok"), java_hash("\ufffd\ufffd")]
    one = hashes[:1]
    for broken in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe4\xb8", b"\x80"):
        assert not native.functions.slice_hashes(np.frombuffer(broken, np.uint8), ZERO, ZERO + len(broken), 0, one)
    with pytest.raises(IndexError, match="slice 0 "):
        native.functions.slice_hashes(texts, ZERO, ZERO + 5, 0, one)


@needs_native
@given(st.lists(st.none() | st.text(max_size=9), max_size=5), st.sampled_from(["", "T#", "中"]))
def test_hashes_are_those_of_python(texts: list[str | None], before: str) -> None:
    found = java_hashes(pa.array(texts, pa.string())), topic_key_hashes(before, pa.array(texts, pa.large_string()))
    with patch.object(native, "LOADED", False):
        expected = java_hashes(pa.array(texts, pa.string())), topic_key_hashes(before, pa.array(texts, pa.string()))
    assert [hashes.tolist() for hashes in found] == [hashes.tolist() for hashes in expected]


@given(st.binary(min_size=4, max_size=60), st.data())
def test_words_are_added_up_wherever_they_begin(text: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(text) - 4), max_size=20))
    found = sum_words(np.frombuffer(text, np.uint8), np.array(places, np.int64))
    assert found == sum(int.from_bytes(text[place : place + 4], "big") for place in places)


@needs_native
@pytest.mark.parametrize("place", [-1, 5, 1 << 62, -(1 << 62)])
def test_a_word_outside_of_its_data_is_refused(place: int) -> None:
    with pytest.raises(IndexError):
        sum_words(np.zeros(8, np.uint8), np.array([0, place]))


@needs_native
def test_the_fastest_way_that_the_processor_has_is_taken() -> None:
    """The tests of each way pass over those that are not there: this one says that none is missed."""
    described = Path("/proc/cpuinfo")
    if not described.exists() or platform.machine() != "x86_64":
        pytest.skip("only Linux on x86_64 says what its processor has")
    flags = set(re.findall(r"^flags\s*:(.*)$", described.read_text(), re.MULTILINE)[0].split())
    narrow = flags >= {"pclmulqdq", "sse4_1"}
    wide = narrow and flags >= {"avx2", "vpclmulqdq"}
    assert native.functions.crc_way(2) == (2 if wide else 1 if narrow else 0)
