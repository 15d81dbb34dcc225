"""What the extension does for readers: the same as Python on any bytes, and never a look outside of its buffers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.errors import CorruptRecordError
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import take_slices
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_columns import PropertyPieces, split_properties, split_property_slices
from rmq_store.format.text.host import Host
from rmq_store.format.text.host_columns import host_texts

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
FRAGMENTS = [
    b"\x01", b"\x02", b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"__CRC32#", b"TAGS\x01TagA\x02", b"UNIQ_KEY\x01first\x02",
    b"UNIQ_KEY\x01second\x02", b"__CRC32#\x011234567890\x02", b"x\x01y\x02", "中文\U0001f600".encode(), b"\xff",
    b"\xe4\xb8", b"value of sixteen", b"a value that has more than thirty-two bytes", b"name%d\x01v\x02" * 12,
]  # fmt: skip
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "a", "x", "aKEYS", "name%d")
property_strings = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join) | st.binary(max_size=30)


@contextmanager
def python_only() -> Iterator[None]:
    """As on a machine without the extension."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        yield


def laid_out(rows: list[bytes], gap: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows with a gap before each, in one buffer that ends with the last row; where they start and end."""
    data = b"".join(gap + row for row in rows)
    ends = np.cumsum([len(gap) + len(row) for row in rows], dtype=np.int64)
    return np.frombuffer(data, np.uint8), ends - np.array([len(row) for row in rows], np.int64), ends


# -- frames -----------------------------------------------------------------------------------------------------------


def random_frames(chance: random.Random) -> tuple[bytearray, np.ndarray, np.ndarray]:
    """Some frames of all kinds, one behind another, and their places."""
    data, places = bytearray(), [0]
    for number in range(chance.randrange(1, 12)):
        data += encode_frame(
            topic=chance.choice(["T", "Topic", "x" * 127, "y" * 200]), body=chance.randbytes(chance.randrange(40)),
            properties=chance.choice([b"", b"TAGS\x01TagA\x02", b"a\x01b"]), queue_id=number, queue_offset=1 << number,
            commit_log_offset=len(data), born_timestamp_ms=-1, born_host=chance.choice([V4, V6]),
            store_timestamp_ms=1 << 62, store_host=chance.choice([V4, V6]), flag=-7, reconsume_times=number,
            prepared_transaction_offset=-5,
        )  # fmt: skip
        places.append(len(data))
    return data, np.array(places[:-1], np.int64), np.diff(places).astype(np.int32)


def headers_of(data: bytearray, positions: np.ndarray, sizes: np.ndarray, base: int | None) -> FrameHeaders | str:
    try:
        return frame_columns(pa.py_buffer(bytes(data)), positions, sizes, base_offset=base)
    except CorruptRecordError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(200))
def test_frames_are_read_or_refused_as_by_python(seed: int) -> None:
    """Good ones, and ones in which a few bytes, a place or a size were changed."""
    chance = random.Random(seed)
    data, positions, sizes = random_frames(chance)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.2:
        positions[chance.randrange(len(positions))] += chance.choice([-1, 1, 91, -(1 << 62), 1 << 62])
    if chance.random() < 0.2:
        sizes[chance.randrange(len(sizes))] = chance.choice([-1, 0, 90, 91, 1000, -(1 << 31), (1 << 31) - 1])
    base = chance.choice([0, None])
    with python_only():
        expected = headers_of(data, positions, sizes, base)
    narrow, wide = np.empty((5, len(positions)), np.int32), np.empty((11, len(positions)), np.int64)
    array = np.frombuffer(data, np.uint8)
    one_topic = native.functions.read_frames(array, positions, sizes.astype(np.int64), base, narrow, wide)
    assert (one_topic is not None) == isinstance(expected, FrameHeaders)
    found = headers_of(data, positions, sizes, base)
    if not isinstance(expected, FrameHeaders):
        assert found == expected
        return
    assert isinstance(found, FrameHeaders)
    for field in fields(FrameHeaders):
        if field.name == "one_topic":
            continue  # Python does not look
        values = getattr(found, field.name)
        assert values.dtype == getattr(expected, field.name).dtype
        assert values.tolist() == getattr(expected, field.name).tolist(), field.name


@pytest.mark.parametrize("topics", [["T"], ["Topic", "Topic"], ["T", "T", "U"], ["T", "TT"], ["中", "中"]])
def test_topics_are_written_once_if_there_is_but_one(topics: list[str]) -> None:
    frames = [
        encode_frame(
            topic=topic, body=b"", properties=b"", queue_id=0, queue_offset=0, commit_log_offset=0,
            born_timestamp_ms=0, born_host=V4, store_timestamp_ms=0, store_host=V4,
        )
        for topic in topics
    ]  # fmt: skip
    _, starts, ends = laid_out(frames, b"")
    headers = frame_columns(pa.py_buffer(b"".join(frames)), starts, (ends - starts).astype(np.int32))
    assert headers.one_topic == (len(set(topics)) == 1)
    assert headers.topics().to_pylist() == topics


def test_the_offset_of_a_frame_is_compared_without_an_overflow() -> None:
    data, positions, sizes = random_frames(random.Random(1))
    assert isinstance(headers_of(data, positions, sizes, (1 << 63) - 1), str)


# -- slices -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=70), max_size=8), st.binary(max_size=3), st.randoms(use_true_random=False))
@example([b"x" * size for size in (0, 15, 16, 17, 31, 32, 33, 1)], b"", random.Random(0))
def test_slices_are_copied_in_any_order(rows: list[bytes], gap: bytes, chance: random.Random) -> None:
    data, starts, ends = laid_out(rows, gap)
    order = [chance.randrange(len(rows)) for _ in range(2 * len(rows))]
    taken = take_slices(pa.py_buffer(data), starts[order], ends[order])
    taken.validate(full=True)
    assert taken.to_pylist() == [rows[row] for row in order]
    with python_only():
        assert taken.equals(take_slices(pa.py_buffer(data), starts[order], ends[order]))


# -- hosts ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=8, max_size=8) | st.just(V4.pack()), max_size=8), st.binary(max_size=3))
def test_hosts_are_written_as_by_python(rows: list[bytes], gap: bytes) -> None:
    data, starts, _ = laid_out(rows, gap)
    texts = host_texts(data, starts, np.zeros(len(rows), np.bool_))
    texts.validate(full=True)
    assert texts.to_pylist() == [str(Host.unpack(row)) for row in rows]
    with python_only():
        assert texts.equals(host_texts(data, starts, np.zeros(len(rows), np.bool_)))


# -- properties -------------------------------------------------------------------------------------------------------


def answers(pieces: PropertyPieces) -> list[pa.Array]:
    found = [pieces.to_map(), *(pieces.column(name) for name in NAMES)]
    for array in found:
        array.validate(full=True)
    return found


@given(st.lists(property_strings, max_size=8), st.sampled_from([b"", b"\x02", b"=", b"\xff\x01"]))
@example([b"a\x01b"], b"TAGS\x01")
@example([b"n" * 62 + b"\x01v\x02", b"n" * 63 + b"\x01v\x02", b"n" * 64 + b"\x01v"], b"")
def test_properties_are_split_as_by_python(rows: list[bytes], gap: bytes) -> None:
    data, starts, ends = laid_out(rows, gap)
    found = answers(split_property_slices(data, starts, ends))
    with python_only():
        expected = answers(split_property_slices(data, starts, ends))
    for one, other in zip(found, expected, strict=True):
        assert one.equals(other)


def test_properties_of_ascii_and_utf8_are_split_in_place() -> None:
    """No copy is made of them; only of what has to be repaired."""
    data, starts, ends = laid_out([b"a\x01b\x02", "中\x01文\x02".encode()], b"gap")
    assert split_property_slices(data, starts, ends).data is data
    data, starts, ends = laid_out([b"a\x01\xff\x02"], b"gap")
    assert split_property_slices(data, starts, ends).data is not data


# -- what no bytes lead to, but a bug of ours might --------------------------------------------------------------------


def array(*values: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


BYTES = np.frombuffer(b"a\x01b\x02c\x01d\x02", np.uint8)
OUTSIDE: list[Callable[[], object]] = [
    lambda: native.functions.copy_slices(BYTES, array(0), array(9), array(0, 0, dtype=np.int32), bytearray(16)),
    lambda: native.functions.copy_slices(BYTES, array(-1), array(2), array(0, 0, dtype=np.int32), bytearray(16)),
    lambda: native.functions.copy_slices(BYTES, array(-(1 << 63)), array(2), array(0, 0, dtype=np.int32), bytearray(9)),
    lambda: native.functions.copy_slices(BYTES, array(3), array(2), array(0, 0, dtype=np.int32), bytearray(16)),
    lambda: native.functions.copy_slices(BYTES, array(0), array(3), array(0, 0, dtype=np.int32), bytearray(2)),
    lambda: native.functions.ipv4_texts(BYTES, array(1), array(0, 0, dtype=np.int32), np.zeros(32, np.uint8)),
    lambda: native.functions.ipv4_texts(BYTES, array(-1), array(0, 0, dtype=np.int32), np.zeros(32, np.uint8)),
    lambda: split(array(0), array(9), 2),
    lambda: split(array(-1), array(4), 2),
    lambda: copy_pieces(array(-1), array(1), array(3), 9),
    lambda: copy_pieces(array(0), array(1), array(9), 9),
    lambda: copy_pieces(array(4), array(1), array(9), 9),
    lambda: copy_pieces(array(0), array(3), array(4), 2),
]


def split(starts: np.ndarray, ends: np.ndarray, room: int, names: tuple[bytes, ...] = (b"c",)) -> object:
    found, values = np.zeros((3, room), np.int64), np.zeros((2, len(names), len(starts)), np.int64)
    counts = np.zeros(len(starts), np.int64)
    return native.functions.split_pieces(BYTES, starts, ends, b"f", b"d", names, counts, *found, *values)


def copy_pieces(starts: np.ndarray, separators: np.ndarray, ends: np.ndarray, room: int) -> object:
    texts = [array(0, 0, dtype=np.int32), np.zeros(room, np.uint8), array(0, 0, dtype=np.int32), np.zeros(9, np.uint8)]
    return native.functions.copy_pieces(BYTES, starts, separators, ends, *texts)


@pytest.mark.parametrize("call", OUTSIDE)
def test_places_outside_of_the_data_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(IndexError):
        call()


def test_pieces_for_which_there_is_no_room_are_counted() -> None:
    assert [split(array(0), array(8), room) for room in (0, 1, 2, 3)] == [(2, True)] * 4
    rows = [b"".join(b"n%d\x01v\x02" % number for number in range(30)), b"c\x01d"]
    assert split_properties(pa.array(rows)).counts.tolist() == [30, 1]


def test_names_are_few_and_not_empty() -> None:
    assert split(array(0), array(8), 2, ()) == (2, True)
    for names in ((b"",), (b"n",) * 9):
        with pytest.raises(ValueError, match="names that are not empty, and at most 8"):
            split(array(0), array(8), 2, names)
    with pytest.raises(TypeError):
        split(array(0), array(8), 2, ("text",))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [64, 65])
def test_many_pieces_in_a_row_are_left_to_python(count: int) -> None:
    row = b"".join(b"n%d\x01v%d\x02" % (number % 60, number) for number in range(count))
    pieces = split_properties(pa.array([row]))
    assert (len(pieces.starts) == 60) == (count == 64)
    assert len(pieces.to_map()[0]) == 60
