"""Copies of stored frames in one pass: byte for byte those of Python, and never a look outside of the buffers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.batches import frame_copy, native_copy
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX
from rmq_store.format.text.host import Host

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
CRC = b"__CRC32#\x011234567890\x02"
TOPICS = ["T", "Topic", "%RETRY%group", *("%DLQ%".ljust(length, "x") for length in (127, 128, 255))]  # two of V2
SYS_FLAGS = [0, 0x1, 0x2, 0x4, 0x8, 0xC, 0x301, -1 & ~0x30]
PROPERTIES = [
    b"", b"\x02", b"UNIQ_KEY\x01AC11\x02", b"TAGS\x01TagA", b"KEYS\x01k1 k2\x02", b"KEYS\x01  a   b c \x02",
    b"KEYS\x01 \x02TAGS\x01a b\x02", b"UNIQ_KEY\x01first\x02UNIQ_KEY\x01second\x02TAGS\x01first\x02TAGS\x01last\x02",
    b"KEYS\x01a\x02KEYS\x01b c\x02KEYS\x01\x02", b"UNIQ_KEY\x01\x02UNIQ_KEY\x01U\x02TAGS\x01\x02KEYS\x01\x02",
    b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01AC11\x02", b"TAGS\x01a\x01b\x02",
    b"\x02\x01junk\x02x", "TAGS\x01中文\U0001f600\x02KEYS\x01é 中\x02UNIQ_KEY\x01\U0001f600\x02".encode(),
    b"TAGS\x01x\x02" + CRC, CRC, b"\x02" + CRC, CRC + b"TAGS\x01behind\x02", b"KEYS\x01k\x02" + CRC + CRC,
    b"TAGS\x01open" + CRC, CRC[:-1], CRC[1:], CRC[:-1] + b"!",
    b"".join(b"n%d\x01v\x02" % number for number in range(64)), b"same\x01v\x02" * 64 + CRC,
    b"KEYS\x01" + b" ".join(b"key-%d" % number for number in range(70)) + b"\x02",
    b"a value\x01" + b"v" * 3000 + b"\x02", b"v\x01" * 30 + b"\x02KEYS\x01" + b"k" * 63 + b"\x02TAGS\x01" + b"t" * 64,
]  # fmt: skip


@contextmanager
def python_only() -> Iterator[None]:
    """As on a machine without the extension."""
    with patch.object(native, "LOADED", False):
        yield


@contextmanager
def by_python() -> Iterator[MagicMock]:
    """Counts what is left to Python."""
    with patch.object(frame_copy, "_copy", wraps=frame_copy._copy) as made:
        yield made


def stored(frames: Sequence[dict[str, Any]], chance: random.Random | None = None) -> FrameHeaders:
    """Frames anywhere in a segment: in another order, and with gaps, if there is `chance`."""
    data, places = bytearray(b"before"), []
    for changes in frames:
        fields: dict[str, Any] = {
            "topic": "Topic", "body": b"Hello", "properties": b"TAGS\x01TagA\x02", "queue_id": 3, "queue_offset": 100,
            "born_timestamp_ms": 1_700_000_000_123, "born_host": V4, "store_timestamp_ms": 1_700_000_001_000,
            "store_host": V4, "commit_log_offset": 1 << 40, "prepared_transaction_offset": 77,
        }  # fmt: skip
        frame = encode_frame(**{**fields, **changes})
        places.append((len(data), len(frame)))
        data += frame + (chance.randbytes(chance.randrange(80)) if chance else b"")
    if chance:
        chance.shuffle(places)
    positions, sizes = np.array(places, np.int64).reshape(-1, 2).T
    return frame_columns(pa.py_buffer(bytes(data)), positions, sizes.astype(np.int32))


def places_for(count: int, topics: Sequence[str] = ("T",)) -> dict[str, Any]:
    """What `copy_frames` must be told."""
    names = [topics[row % len(topics)] for row in range(count)]
    return {
        "topics": pa.array(names, pa.string()).dictionary_encode(),
        "queue_ids": np.arange(count, dtype=np.int32),
        "options": CopyOptions(crc_property=True),
    }


def copied(headers: FrameHeaders, **given: Any) -> pa.RecordBatch:
    batch = copy_frames(headers, **given)
    batch.validate(full=True)
    return batch


def same_as_by_python(headers: FrameHeaders, **given: Any) -> None:
    """The extension copies all of them, as Python does."""
    with patch.object(frame_copy, "_copy", side_effect=AssertionError("left to Python")):
        found = copied(headers, **given)
    with python_only():
        expected = copied(headers, **given)
    for name in expected.schema.names:
        assert found.column(name).equals(expected.column(name)), name
    assert found.equals(expected)


def left_to_python(headers: FrameHeaders, **given: Any) -> None:
    """The extension refuses them; there is one answer, or one error, all the same."""
    def answer() -> pa.RecordBatch | str:
        try:
            return copied(headers, **given)
        except UsageError as error:
            return str(error)

    with by_python() as made:
        found = answer()
    assert made.call_count == 1
    with python_only():
        expected = answer()
    assert found.equals(expected) if isinstance(found, pa.RecordBatch) else found == expected


@pytest.mark.parametrize("seed", range(60))
def test_ordinary_frames_are_copied_in_one_pass_as_by_python(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 60)
    frames = [
        {
            "topic": chance.choice(TOPICS), "body": chance.randbytes(chance.choice([0, 1, 16, 100, 511, 512, 5000])),
            "properties": chance.choice(PROPERTIES), "flag": chance.randrange(-9, 9),
            "sys_flag": chance.choice(SYS_FLAGS), "reconsume_times": chance.randrange(-2, 20),
            "born_host": chance.choice([V4, Host.parse("1.2.3.4:5")]), "crc_property": chance.random() < 0.5,
        }
        for _ in range(count)
    ]  # fmt: skip
    given: dict[str, Any] = {
        "topics": pa.array([chance.choice(TOPICS) for _ in range(count)]).dictionary_encode(),
        "queue_ids": np.array([chance.randrange(1 << 31) for _ in range(count)], np.int32),
        "options": CopyOptions(crc_property=chance.random() < 0.5, index_tags=chance.random() < 0.5),
    }
    may_be_given: dict[str, Any] = {
        "properties": pa.array([chance.choice(PROPERTIES) for _ in range(count)], pa.large_binary()),
        "reconsume_times": np.array([chance.randrange(-(1 << 31), 1 << 31) for _ in range(count)], np.int32),
        "sys_flags": np.array([chance.randrange(-(1 << 31), 1 << 31) for _ in range(count)], np.int32),
        "store_host": Host.parse("9.8.7.6:65535"),
        "delay_ms": np.array([chance.choice([0, 1000, 1 << 40]) for _ in range(count)], np.int64),
    }
    given |= {name: value for name, value in may_be_given.items() if chance.random() < 0.5}
    same_as_by_python(stored(frames, chance), **given)


@pytest.mark.parametrize("crc_property", [False, True])
@pytest.mark.parametrize("properties", PROPERTIES, ids=range(len(PROPERTIES)))
def test_property_strings_of_all_kinds_are_copied_as_by_python(properties: bytes, crc_property: bool) -> None:
    """Stored and given; at the end of the segment, too, behind which there is nothing to look at."""
    places = places_for(2) | {"options": CopyOptions(crc_property)}
    same_as_by_python(stored([{}, {"properties": properties}]), **places)
    same_as_by_python(stored([{}, {}]), **places, properties=pa.array([b"", properties], pa.large_binary()))
    same_as_by_python(stored([{}, {}]), **places, properties=pa.array([properties, b""], pa.binary()))


@pytest.mark.parametrize("body_bytes", [*range(0, 70, 3), 511, 512, 513, 4999, 5000, 70_000])
def test_bodies_of_all_sizes_are_copied_as_by_python(body_bytes: int) -> None:
    body = random.Random(body_bytes).randbytes(body_bytes)
    same_as_by_python(stored([{"body": body, "sys_flag": sys_flag} for sys_flag in SYS_FLAGS]), **places_for(8, TOPICS))


def test_parts_of_longer_columns_are_copied_as_by_python() -> None:
    """Arrays with an offset, topics that nobody goes to, and arrays of other numbers than those that are stored."""
    strings = pa.array([b"TAGS\x01x\x02", b"KEYS\x01a b\x02", b"TAGS\x01y\x02", b"TAGS\x01z\x02"], pa.large_binary())
    names = pa.array(["unused", "T", "also unused", "Other", "never"])
    topics = pa.DictionaryArray.from_arrays(np.array([0, 1, 3, 1, 4], np.int32)[1:4], names.slice(0, 4))
    given = {"properties": strings.slice(1), "queue_ids": [7, 8, 9], "reconsume_times": np.array([1, 2, 3])}
    same_as_by_python(stored([{}] * 3), **places_for(3) | {"topics": topics} | given)
    longer = pa.array(["x", "T", "U", "T"]).dictionary_encode()
    same_as_by_python(stored([{}] * 3), **places_for(3) | {"topics": longer.slice(1)})


@pytest.mark.parametrize("keys", [1, 3, 4, 200])
def test_more_hashes_than_expected_cost_another_pass(keys: int) -> None:
    """What has room for most messages is enough for them in one pass."""
    headers = stored([{"properties": b"UNIQ_KEY\x01U\x02KEYS\x01" + b"k " * keys + b"\x02"}] * 9)
    with patch.object(native.functions, "copy_frames", wraps=native.functions.copy_frames) as passes:
        same_as_by_python(headers, **places_for(9))
    assert passes.call_count == (1 if 1 + keys <= native_copy._ROW_HASHES_EXPECTED else 2)


@pytest.mark.parametrize("topic_bytes", [1, 127, 128, 255])
@pytest.mark.parametrize("crc_property", [False, True])
def test_there_is_room_for_the_longest_copies(topic_bytes: int, crc_property: bool) -> None:
    """Everything that can make a copy longer than its original does."""
    topic = "%RETRY%".ljust(topic_bytes, "x") if topic_bytes > 7 else "T"
    places = places_for(1, [topic]) | {"options": CopyOptions(crc_property)}
    fitting = b"a\x01" + b"v" * (PROPERTIES_BYTES_MAX - 2 - (1 + CRC_PROPERTY_BYTES) * crc_property)
    for properties in (b"", b"a\x01b", fitting):
        same_as_by_python(stored([{"properties": properties}]), **places)


@pytest.mark.parametrize(
    "changes",
    [
        {"born_host": V6},
        {"store_host": V6},
        {"properties": b"TAGS\x01\xff\x02"},
        {"properties": b"other\x01\xe4\xb8\x02TAGS\x01x\x02"},
        {"properties": b"".join(b"n%d\x01v\x02" % number for number in range(65))},
        {"properties": b"same\x01v\x02" * 65},
        {"properties": b"a\x01" + b"v" * (PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES - 2)},
    ],
    ids=["born host", "store host", "no UTF-8", "half a character", "very many", "very many of one", "too long"],
)  # fmt: skip
def test_what_is_not_ordinary_is_left_to_python(changes: dict[str, Any]) -> None:
    left_to_python(stored([{}, changes, {}]), **places_for(3))
    if properties := changes.get("properties"):
        strings = pa.array([b"", properties, b""], pa.large_binary())
        left_to_python(stored([{}] * 3), **places_for(3), properties=strings)
    same_as_by_python(stored([{}] * 3), **places_for(3))


def test_ipv6_hosts_that_are_given_or_replaced_are_left_to_python() -> None:
    left_to_python(stored([{}]), **places_for(1), store_host=V6)
    left_to_python(stored([{"store_host": V6}]), **places_for(1), store_host=V4)


def test_more_bytes_than_a_column_of_python_holds_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = stored([{"body": bytes(1000)}] * 3)
    monkeypatch.setattr(native_copy, "SLICES_BYTES_MAX", 3000)
    left_to_python(headers, **places_for(3))


@pytest.mark.parametrize("topic", ["", "a/b", "T" * 128, "é"])
def test_a_place_that_nothing_can_go_to_is_refused_before_anybody_copies(topic: str) -> None:
    with patch.object(native.functions, "copy_frames") as made:
        with pytest.raises(UsageError, match="row 1: "):
            copy_frames(stored([{}, {}]), **places_for(2, ["T", topic]))
        with pytest.raises(UsageError, match="row 1: -1 is no queue id"):
            copy_frames(stored([{}, {}]), **places_for(2) | {"queue_ids": np.array([0, -1], np.int32)})
    assert not made.called


# -- what would lead it out of its buffers ----------------------------------------------------------------------------


def arguments(headers: FrameHeaders, **changes: Any) -> dict[str, Any]:
    """Those of the extension's function, with room for what it makes of such frames."""
    count = len(headers.positions)
    strings = np.arange(count + 1) * 7, np.frombuffer(b"TAGS\x01x\x02" * count, np.uint8)
    names = np.frombuffer(b"TOther", np.uint8)
    given: dict[str, Any] = {
        "data": headers.data, "positions": headers.positions, "sizes": headers.properties_end - headers.positions,
        "topics": (np.arange(count, dtype=np.int32) % 2, np.array([0, 1, 6]), names, np.array([5, 6], np.uint32)),
        "queue_ids": np.zeros(count, np.int32), "sys_flags": np.zeros(count, np.int32),
        "reconsume_times": np.zeros(count, np.int32), "store_host": bytes(8), "properties": strings,
        "crc_property": True, "index_tags": True, "offsets": np.empty(count + 1, np.int64),
        "frames": np.empty(1000 * count, np.uint8), "crcs": np.empty(count, np.uint32),
        "tags_codes": np.empty(count, np.int64), "hash_offsets": np.empty(count + 1, np.int32),
        "hashes": np.empty(count, np.int32),
    }  # fmt: skip
    return given | changes


def call(headers: FrameHeaders, **changes: Any) -> int | None:
    return native.functions.copy_frames(*arguments(headers, **changes).values())


def test_arrays_that_are_too_short_or_of_another_kind_are_refused() -> None:
    headers = stored([{}, {}, {}])
    assert call(headers) == 3
    good = arguments(headers)
    codes, offsets, names, hashes = good["topics"]
    for name in ("sizes", "queue_ids", "sys_flags", "reconsume_times", "offsets", "crcs", "tags_codes", "hash_offsets"):
        with pytest.raises(ValueError, match="expected"):
            call(headers, **{name: good[name][:-1]})
        with pytest.raises(TypeError, match="expected aligned items"):
            call(headers, **{name: np.zeros(len(good[name]), np.int16)})
    for changes in (
        {"topics": (codes[:2], offsets, names, hashes)},
        {"topics": (codes, offsets[:2], names, hashes)},
        {"topics": (codes, offsets, names, hashes[:1])},
        {"properties": (good["properties"][0][:-1], good["properties"][1])},
        {"store_host": bytes(7)},
        {"store_host": bytes(20)},
    ):
        with pytest.raises(ValueError, match="expected"):
            call(headers, **changes)
    for changes in ({"topics": []}, {"topics": (codes, offsets, names)}, {"positions": codes}):
        with pytest.raises(TypeError):
            call(headers, **changes)
    for name in ("offsets", "frames", "crcs", "tags_codes", "hash_offsets", "hashes"):
        closed = good[name].copy()
        closed.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            call(headers, **{name: closed})


@pytest.mark.parametrize("missing_bytes", [0, 1, 2, 21, 60, 1 << 20])
def test_where_there_is_no_room_for_a_frame_nothing_is_written_beyond(missing_bytes: int) -> None:
    headers = stored([{}])
    offsets = np.empty(2, np.int64)
    call(headers, offsets=offsets)
    room = max(0, int(offsets[1]) - missing_bytes)
    guarded = np.full(room + 64, 0xEE, np.uint8)
    with pytest.raises(IndexError, match="row 0 does not lie") if missing_bytes else contextlib.nullcontext():
        call(headers, frames=guarded[32:-32])
    assert (guarded[:32] == 0xEE).all()
    assert (guarded[-32:] == 0xEE).all()


def test_hashes_for_which_there_is_no_room_are_counted() -> None:
    headers = stored([{"properties": b"UNIQ_KEY\x01U\x02KEYS\x01a b\x02TAGS\x01x\x02"}] * 3)
    guarded = np.full(20, -1, np.int32)
    assert call(headers, properties=None, hashes=guarded[4:9]) == 12
    assert (guarded[4:9] >= 0).all()
    assert (np.delete(guarded, range(4, 9)) == -1).all()


FAR = [-(1 << 63), -1, 1 << 40, (1 << 63) - 1]


@pytest.mark.parametrize("number", FAR)
def test_frames_outside_of_the_data_are_left_to_python(number: int) -> None:
    headers = stored([{}, {}])
    wrong = np.array([headers.positions[0], number])
    assert call(headers, positions=wrong) is None
    assert call(headers, sizes=wrong) is None


@pytest.mark.parametrize("number", FAR)
def test_texts_outside_of_what_is_given_are_refused(number: int) -> None:
    headers = stored([{}, {}])
    good = arguments(headers)
    codes, offsets, names, hashes = good["topics"]
    far_code = np.array([0, 2 if number > 0 else -1], np.int32)
    for changes in (
        {"topics": (far_code, offsets, names, hashes)},
        {"topics": (codes, np.array([0, 1, number]), names, hashes)},
        {"topics": (codes, np.array([0, 1, len(names) + 1]), names, hashes)},
        {"topics": (codes, np.array([0, 1, 257]), np.zeros(257, np.uint8), hashes)},
        {"properties": (np.array([0, 7, number]), good["properties"][1])},
    ):
        with pytest.raises(IndexError, match="row 1 does not lie"):
            call(headers, **changes)


@given(st.randoms(use_true_random=False))
def test_no_number_leads_it_out_of_its_buffers(chance: random.Random) -> None:
    """Frames with damaged bytes and arrays with any numbers: refused, or written where there is room and not beyond."""
    headers = stored([{"properties": chance.choice(PROPERTIES), "body": bytes(30)} for _ in range(4)], chance)
    data = headers.data.copy()
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])

    def change(numbers: np.ndarray) -> np.ndarray:
        changed = numbers.copy()
        limits = np.iinfo(changed.dtype)
        for place in range(len(changed)):
            if chance.random() < 0.05:
                changed[place] = chance.choice([limits.min, limits.max, chance.randrange(300)])
        return changed

    guarded, guarded_hashes = np.full(864, 0xEE, np.uint8), np.full(40, -1, np.int32)
    good = arguments(headers)
    topics, strings = good["topics"], good["properties"]
    changes = {name: change(good[name]) for name in ("positions", "sizes", "sys_flags")}
    with contextlib.suppress(IndexError):
        call(
            headers, **changes, data=data, topics=(*map(change, topics[:2]), *topics[2:]),
            properties=chance.choice([None, (change(strings[0]), strings[1])]), frames=guarded[32:-32],
            hashes=guarded_hashes[10 : 10 + chance.randrange(20)], crc_property=chance.random() < 0.5,
        )  # fmt: skip
    assert (guarded[:32] == 0xEE).all()
    assert (guarded[-32:] == 0xEE).all()
    assert (guarded_hashes[:10] == -1).all()
    assert (guarded_hashes[30:] == -1).all()
