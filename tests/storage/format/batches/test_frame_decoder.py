"""Frames as columns: the same values as `decode_frame` for each of them, and an error instead of a wrong read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.undecodable import undecodable
from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.batches.frame_decoder import BatchTooLargeError, decode_frames, dispatch_columns, frame_columns
from rmq_store.format.frames.compression import PLAIN_BYTES_MAX, CompressionKind, compress, decompress
from rmq_store.format.frames.frame_check import SysFlag, check_frame
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame, encode_frame
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.format.text.host import Host

BASE = 1 << 30  # commit-log offset of the first byte of every buffer here
BODY_LIMIT = 1 << 20
V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
LEVELS_MS = [1000, 5000, 10000]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_frame(offset: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "TopicTest",
        "body": b"Hello world",
        "properties": b"TAGS\x01TagA\x02",
        "queue_id": 1,
        "queue_offset": 7,
        "born_timestamp_ms": 1700000000123,
        "born_host": V4,
        "store_timestamp_ms": 1700000001000,
        "store_host": V4,
    }
    return encode_frame(**{**fields, "commit_log_offset": offset, **changes})


class Segment:
    """Frames one behind another."""

    def __init__(self, messages: Sequence[dict[str, Any]], gap: bytes = b"") -> None:
        self.data = b""
        self.positions: list[int] = []
        self.sizes: list[int] = []
        for changes in messages:
            raw = make_frame(BASE + len(self.data), **changes)
            self.positions.append(len(self.data))
            self.sizes.append(len(raw))
            self.data += raw + gap

    def decode(
        self, columns: Sequence[str] = MESSAGE_SCHEMA.names, order: Sequence[int] | None = None, **options: Any
    ) -> pa.RecordBatch:
        rows = list(range(len(self.positions))) if order is None else order
        batch = decode_frames(
            pa.py_buffer(self.data),
            np.array(self.positions, np.int64)[rows],
            np.array(self.sizes, np.int32)[rows],
            **{
                "base_offset": BASE,
                "columns": columns,
                "broker_name": "b",
                "raw_body": False,
                "body_limit_bytes": BODY_LIMIT,
                **options,
            },
        )
        batch.validate(full=True)
        return batch

    def messages(self) -> list[StoredMessage]:
        return [decode_frame(memoryview(self.data), position, len(self.data)) for position in self.positions]


def shown(message: StoredMessage, *, raw_body: bool) -> dict[str, Any]:
    """The row that a message should give."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "body": message.body if raw_body else decompress(message.body, message.sys_flag, BODY_LIMIT),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag if raw_body else message.sys_flag & ~int(SysFlag.COMPRESSED),
        "bornTimestamp": EPOCH + timedelta(milliseconds=message.born_timestamp_ms),
        "bornHost": str(message.born_host),
        "storeTimestamp": EPOCH + timedelta(milliseconds=message.store_timestamp_ms),
        "storeHost": str(message.store_host),
        "commitLogOffset": message.commit_log_offset,
        "brokerName": "b",
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
    return rows


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64_POSITIVE = st.integers(0, (1 << 63) - 1)
SHOWABLE_MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), INT32)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    body = draw(st.binary(max_size=60))
    sys_flag = draw(st.sampled_from([0, 0x2, 0x4, 0x8, 0xC]))
    kind: CompressionKind | None = draw(st.sampled_from([None, None, "zlib", "lz4", "zstd"]))
    if kind:
        body, bits = compress(body, kind)
        sys_flag |= bits
    names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "é", "__CRC32#"])
    entries = draw(st.lists(st.tuples(names, st.sampled_from(["", "v", "k1 k2", "中\U0001f600"])), max_size=5))
    properties = "".join(f"{name}\x01{value}\x02" for name, value in entries).encode()
    if draw(st.booleans()):
        properties = properties.removesuffix(b"\x02")
    if draw(st.integers(0, 9)) == 0:
        properties = draw(st.binary(max_size=20))
    return {
        "topic": draw(st.sampled_from(["T", "%RETRY%group", "x" * 127, "x" * 128, "中文", "é" * 100])),
        "body": body,
        "properties": properties,
        "sys_flag": sys_flag,
        "queue_id": draw(st.integers(0, (1 << 31) - 1)),
        "queue_offset": draw(INT64_POSITIVE),
        "flag": draw(INT32),
        "reconsume_times": draw(INT32),
        "prepared_transaction_offset": draw(INT64_POSITIVE),
        "born_timestamp_ms": draw(SHOWABLE_MS),
        "store_timestamp_ms": draw(SHOWABLE_MS),
        "born_host": draw(hosts),
        "store_host": draw(hosts),
        "crc_property": draw(st.booleans()),
    }


segments = st.builds(Segment, st.lists(messages(), max_size=6), st.sampled_from([b"", b"\0" * 9]))


@given(segments, st.booleans(), st.randoms(use_true_random=False))
def test_bulk_rows_are_those_of_the_scalar_decoder_in_any_order(segment: Segment, raw_body: bool, random: Any) -> None:
    expected = [shown(message, raw_body=raw_body) for message in segment.messages()]
    assert rows_of(segment.decode(raw_body=raw_body)) == expected
    order = [random.randrange(len(expected)) for _ in range(2 * len(expected))]  # repeats too
    assert rows_of(segment.decode(raw_body=raw_body, order=order)) == [expected[row] for row in order]


@given(segments, st.lists(st.sampled_from(MESSAGE_SCHEMA.names), unique=True, min_size=1))
def test_chosen_columns_come_in_the_chosen_order(segment: Segment, columns: list[str]) -> None:
    chosen = segment.decode(columns)
    assert chosen.schema == pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    assert chosen == segment.decode().select(columns)


def test_whole_schema_is_answered_for_no_frames() -> None:
    batch = Segment([]).decode()
    assert batch.schema == MESSAGE_SCHEMA
    assert batch.num_rows == 0


def test_batch_outlives_the_segment() -> None:
    segment = Segment([{}, {"topic": "Other"}])
    data = bytearray(segment.data)
    positions, sizes = np.array(segment.positions), np.array(segment.sizes, np.int32)
    batch = decode_frames(
        pa.py_buffer(data),
        positions,
        sizes,
        base_offset=BASE,
        columns=MESSAGE_SCHEMA.names,
        broker_name="b",
        raw_body=False,
        body_limit_bytes=BODY_LIMIT,
    )
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    assert batch.to_pylist() == before


def test_unknown_column_is_named() -> None:
    with pytest.raises(UsageError, match="queue_id"):
        Segment([{}]).decode(["queue_id"])


@pytest.mark.parametrize(("ms", "year"), [((1 << 63) - 1, 9999), (-(1 << 63), 1), (253_402_300_800_000, 9999)])
def test_timestamps_that_no_datetime_can_show_become_the_nearest_one(ms: int, year: int) -> None:
    row = Segment([{"born_timestamp_ms": ms, "store_timestamp_ms": ms}]).decode().to_pylist()[0]
    assert (row["bornTimestamp"].year, row["storeTimestamp"].year) == (year, year)


def test_body_over_the_limit_stays_as_it_lies() -> None:
    body, flag = compress(bytes(5000), "zlib")
    segment = Segment([{}, {"body": body, "sys_flag": flag}])
    assert segment.decode(["body"], body_limit_bytes=5000).num_rows == 2
    for raw_body in (False, True):
        rows = segment.decode(["body", "sysFlag"], body_limit_bytes=4999, raw_body=raw_body).to_pylist()
        assert rows[1] == {"body": body, "sysFlag": flag}


@pytest.mark.parametrize("columns", [["body"], ["sysFlag"], ["sysFlag", "body"], ["topic"], MESSAGE_SCHEMA.names])
def test_bodies_that_cannot_be_inflated_stay_as_they_lie(columns: list[str]) -> None:
    """With the COMPRESSED bit, whatever other columns are asked for; the bodies beside them are inflated."""
    good, good_flags = compress(b"tea", "zlib")
    bad = undecodable()
    fields = [{"body": body, "sys_flag": flags} for body, flags in bad.values()]
    segment = Segment([{}, {"body": good, "sys_flag": good_flags}, *fields, {"body": good, "sys_flag": good_flags}])
    got = segment.decode(columns, body_limit_bytes=PLAIN_BYTES_MAX).to_pydict()
    if "body" in columns:
        assert got["body"][1:] == [b"tea", *(body for body, _ in bad.values()), b"tea"]
    if "sysFlag" in columns:
        cleared = good_flags & ~int(SysFlag.COMPRESSED)
        assert got["sysFlag"] == [0, cleared, *(flags for _, flags in bad.values()), cleared]


@pytest.mark.parametrize("crc_property", [False, True])
@pytest.mark.parametrize("column", ["body", "sysFlag"])
def test_a_body_that_cannot_be_inflated_is_damaged_if_its_crc_is_wrong(column: str, crc_property: bool) -> None:
    fields = {"body": b"no zlib stream", "sys_flag": int(SysFlag.COMPRESSED), "crc_property": crc_property}
    segment = Segment([{}, fields])
    assert segment.decode([column]).num_rows == 2
    at = segment.data.index(b"no zlib")
    segment.data = segment.data[:at] + b"N" + segment.data[at + 1 :]
    with pytest.raises(CorruptRecordError, match="the body does not have the CRC") as caught:
        segment.decode([column])
    assert caught.value.offset == BASE + segment.positions[1]
    assert segment.decode(["topic"]).num_rows == 2


# -- hostile bytes ------------------------------------------------------------------------------------------------


def refusal(data: bytes, positions: Sequence[int], sizes: Sequence[int]) -> CorruptRecordError:
    with pytest.raises(CorruptRecordError) as caught:
        frame_columns(
            pa.py_buffer(data), np.array(positions, np.int64), np.array(sizes, np.int32), base_offset=BASE
        )
    return caught.value


@pytest.mark.parametrize(
    ("position", "size"),
    [(-1, 137), (1 << 40, 137), ((1 << 63) - 1, 137), (-(1 << 63), 137), (0, 0), (0, -5), (0, 90), (0, (1 << 31) - 1)],
)
def test_entry_that_points_outside_is_refused_before_anything_is_read(position: int, size: int) -> None:
    segment = Segment([{}, {}])
    error = refusal(segment.data, [0, position], [segment.sizes[0], size])
    assert error.offset == BASE + position


def test_frame_cut_by_the_end_of_the_segment_is_refused() -> None:
    segment = Segment([{}])
    assert refusal(segment.data[:-1], [0], segment.sizes).offset == BASE


IPV4_PLACES = {
    "total_size": (0, ">i"),
    "magic": (4, ">i"),
    "queue_id": (12, ">i"),
    "queue_offset": (20, ">q"),
    "physical_offset": (28, ">q"),
    "body_length": (84, ">i"),
    "topic_length": (88 + 11, ">b"),
    "properties_length": (88 + 11 + 1 + 9, ">h"),
}


@pytest.mark.parametrize("field", IPV4_PLACES)
@pytest.mark.parametrize("value", [-1, -128, 0, 3, 127])
def test_wrong_field_of_one_frame_refuses_the_batch_and_names_that_frame(field: str, value: int) -> None:
    segment = Segment([{}, {}, {}])
    place, kind = IPV4_PLACES[field]
    data = bytearray(segment.data)
    struct.pack_into(kind, data, segment.positions[1] + place, value)
    if field in ("queue_id", "queue_offset") and value >= 0:
        columns = frame_columns(pa.py_buffer(data), np.array(segment.positions), np.array(segment.sizes, np.int32))
        assert getattr(columns, field).tolist()[1] == value
    else:
        assert refusal(bytes(data), segment.positions, segment.sizes).offset == BASE + segment.positions[1]


def test_entry_at_the_end_of_the_segment_is_refused_before_its_fields_are_read() -> None:
    segment = Segment([{}])
    position = len(segment.data) - 20
    assert refusal(segment.data, [0, position], [segment.sizes[0], 20]).offset == BASE + position


def test_negative_body_length_is_refused_even_if_all_lengths_add_up() -> None:
    raw = bytearray(make_frame(BASE))
    # The body would end in the field before its own length, where a topic of 7 bytes begins; then the properties.
    struct.pack_into(">i", raw, 84, -8)
    raw[80] = 7
    struct.pack_into(">h", raw, 88, len(raw) - 90)
    assert "body length" in refusal(bytes(raw), [0], [len(raw)]).reason
    assert check_frame(memoryview(raw), 0, len(raw), expect_offset=BASE, check_crc=False).kind == "bad"


def test_empty_topic_is_refused_even_if_all_lengths_add_up() -> None:
    raw = make_frame(BASE, topic="")
    assert "topic length" in refusal(raw, [0], [len(raw)]).reason


def test_more_bytes_than_a_column_can_hold_are_refused_before_they_are_copied() -> None:
    segment = Segment([{"body": bytes(1 << 20)}])
    with pytest.raises(UsageError, match="fewer"):
        segment.decode(["body"], order=[0] * 2100)
    assert segment.decode(["topic"], order=[0] * 2100).num_rows == 2100


def test_bodies_that_grow_beyond_a_batch_are_refused_while_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    body, flag = compress(bytes(5000), "zlib")
    segment = Segment([{"body": body, "sys_flag": flag}] * 3)
    monkeypatch.setattr("rmq_store.format.batches.frame_decoder.DECOMPRESSED_BYTES_MAX", 11_000)
    with pytest.raises(BatchTooLargeError, match="fewer"):
        segment.decode(["body"])
    assert segment.decode(["body"], order=[0, 1]).num_rows == 2


def test_buffer_larger_than_any_segment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pa.memory_map(str(path)) as mapped, pytest.raises(UsageError, match="segment"):
        frame_columns(mapped.read_buffer(), np.zeros(0, np.int64), np.zeros(0, np.int32))


def test_size_of_the_entry_must_be_that_of_the_frame() -> None:
    segment = Segment([{}, {}])
    error = refusal(segment.data, [0], [segment.sizes[0] + 1])
    assert "total size" in error.reason


def test_position_inside_a_frame_is_refused() -> None:
    inner = make_frame(BASE + 88)  # a valid frame, with the right physical offset, inside a body
    segment = Segment([{"body": inner}])
    assert frame_columns(pa.py_buffer(segment.data), np.array([88]), np.array([len(inner)]), base_offset=BASE)
    assert "physical offset" in refusal(segment.data[1:], [87], [len(inner)]).reason


def test_v6_bits_on_a_frame_too_short_for_such_hosts_are_refused() -> None:
    raw = bytearray(make_frame(BASE, topic="T", body=b"", properties=b""))
    raw[39] |= int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    assert refusal(bytes(raw), [0], [len(raw)]).offset == BASE


@given(messages(), st.data())
def test_bulk_check_accepts_exactly_what_the_scalar_check_accepts(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(make_frame(BASE, **fields))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 0x10, 0x7F, 0x80, 0xFF]))
    view = memoryview(bytes(raw))
    size = int.from_bytes(raw[:4], "big", signed=True)
    assume(size <= len(raw))
    check = check_frame(view, 0, len(raw), expect_offset=BASE, check_crc=False)
    if check.kind == "message":
        assert frame_columns(
            pa.py_buffer(bytes(raw)), np.array([0]), np.array([size]), base_offset=BASE
        ).topics().to_pylist() == [decode_frame(view, 0, len(raw)).topic]
    else:
        refusal(bytes(raw), [0], [size])


# -- dispatch ----------------------------------------------------------------------------------------------------


def assert_dispatch_equals_scalar(
    data: bytes, base: int, positions: list[int], sizes: list[int], *, index_tags: bool = True
) -> int:
    frames = (pa.py_buffer(data), np.array(positions, np.int64), np.array(sizes, np.int32), base, LEVELS_MS)
    columns = dispatch_columns(*frames, index_tags=index_tags)
    done = 0
    for row, position in enumerate(positions):
        message = decode_frame(memoryview(data), position, len(data))
        assert columns.topic[row].as_py() == message.topic
        assert columns.queue_id[row] == message.queue_id
        assert columns.queue_offset[row] == message.queue_offset
        assert columns.store_timestamp[row] == message.store_timestamp_ms
        assert columns.dispatchable[row] == message.is_dispatchable
        level = message.properties.get("DELAY", "")
        if message.topic == "SCHEDULE_TOPIC_XXXX" and level.isdecimal() and int(level) > 0:
            delay_ms = LEVELS_MS[min(int(level), len(LEVELS_MS)) - 1]
            assert columns.tags_code[row] == message.store_timestamp_ms + delay_ms
        else:
            assert columns.tags_code[row] == java_hash(message.tags or "")
        keys = [message.java_unique_key or "", *(message.keys or "").split(" ")]
        if index_tags and message.tags:
            keys.append(f"T#{message.tags}")
        if message.sys_flag & 0xC == SysFlag.TRANSACTION_ROLLBACK:
            keys = []
        expected = [index_hash(java_hash(f"{message.topic}#{key}")) for key in keys if key]
        assert columns.key_counts[row] == len(expected)
        assert columns.key_hashes[done : done + len(expected)].tolist() == expected
        done += len(expected)
    assert done == len(columns.key_hashes)
    return len(positions)


@given(segments, st.booleans())
@pytest.mark.statement("F05", "F10")
def test_dispatch_follows_the_rules_of_queue_and_index(segment: Segment, index_tags: bool) -> None:
    assert_dispatch_equals_scalar(segment.data, BASE, segment.positions, segment.sizes, index_tags=index_tags)


@pytest.mark.parametrize("keys", ["", " ", "a", " a", "a ", "a  b", "a b c", "中 \U0001f600 é", "polygenelubricants"])
@pytest.mark.parametrize("unique", ["", "0A6C73D939B318B4AAC20CBA5D920000", "\U0001f600"])
@pytest.mark.statement("F10")
def test_keys_are_split_at_single_spaces_after_the_unique_key(keys: str, unique: str) -> None:
    strings = [f"UNIQ_KEY\x01{unique}\x02KEYS\x01{keys}\x02", f"KEYS\x01{keys}\x02", "KEYS\x01one\x02", ""]
    segment = Segment([{"properties": text.encode()} for text in strings])
    assert_dispatch_equals_scalar(segment.data, BASE, segment.positions, segment.sizes)


@pytest.mark.parametrize("sys_flag", [0x0, 0x4, 0x8, 0xC])
def test_prepared_is_indexed_but_not_queued_and_rollback_neither(sys_flag: int) -> None:
    segment = Segment([{"sys_flag": sys_flag, "properties": b"KEYS\x01a b\x02"}])
    columns = dispatch_columns(
        pa.py_buffer(segment.data), np.array(segment.positions), np.array(segment.sizes, np.int32), BASE, LEVELS_MS
    )
    assert columns.dispatchable.tolist() == [sys_flag in (0x0, 0x8)]
    assert columns.key_counts.tolist() == [0 if sys_flag == 0xC else 2]


@pytest.mark.parametrize(
    ("delay", "expected"),
    [("1", 1000), ("3", 10000), ("4", 10000), ("0", None), ("-1", None), ("x", None), ("99999999999", None)],
)
@pytest.mark.statement("C05")
def test_scheduled_message_has_its_deliver_time_as_tags_code(delay: str, expected: int | None) -> None:
    properties = f"TAGS\x01TagA\x02DELAY\x01{delay}\x02".encode()
    segment = Segment([{"topic": "SCHEDULE_TOPIC_XXXX", "properties": properties}, {"properties": properties}])
    columns = dispatch_columns(
        pa.py_buffer(segment.data), np.array(segment.positions), np.array(segment.sizes, np.int32), BASE, LEVELS_MS
    )
    tag_hash = java_hash("TagA")
    assert columns.tags_code.tolist() == [tag_hash if expected is None else 1700000001000 + expected, tag_hash]


@pytest.mark.parametrize(
    ("due", "expected"), [("1700000060000", 1700000060000), ("", None), ("x", None), ("1" * 19, None), ("-1", None)]
)
def test_a_message_of_our_timer_topic_has_its_due_time_as_tags_code(due: str, expected: int | None) -> None:
    properties = f"TAGS\x01TagA\x02TIMER_OUT_MS\x01{due}\x02".encode()
    segment = Segment([{"topic": "rmq_sys_pyrmq_timer", "properties": properties}, {"properties": properties}])
    columns = dispatch_columns(
        pa.py_buffer(segment.data), np.array(segment.positions), np.array(segment.sizes, np.int32), BASE, LEVELS_MS
    )
    tag_hash = java_hash("TagA")
    assert columns.tags_code.tolist() == [tag_hash if expected is None else expected, tag_hash]


# -- stores that Java wrote --------------------------------------------------------------------------------------

Walk = Callable[[Path], Iterator[tuple[int, memoryview]]]


def assert_store_equals_scalar(walk_frames: Walk, store: Path) -> int:
    count = 0
    frames = [(offset, len(raw)) for offset, raw in walk_frames(store)]
    for segment in sorted((store / "commitlog").iterdir()):
        data, base = segment.read_bytes(), int(segment.name)
        found = [(offset - base, size) for offset, size in frames if base <= offset < base + len(data)]
        positions, sizes = [position for position, _ in found], [size for _, size in found]
        scalar = [decode_frame(memoryview(data), position, len(data)) for position in positions]
        for raw_body in (False, True):
            batch = decode_frames(
                pa.py_buffer(data),
                np.array(positions, np.int64),
                np.array(sizes, np.int32),
                base_offset=base,
                columns=MESSAGE_SCHEMA.names,
                broker_name="b",
                raw_body=raw_body,
                body_limit_bytes=BODY_LIMIT,
            )
            assert rows_of(batch) == [shown(message, raw_body=raw_body) for message in scalar]
        count += assert_dispatch_equals_scalar(data, base, positions, sizes)
    return count


@pytest.mark.parametrize("name", ["normal", "propcrc", "crash"])
def test_small_stores_decode_as_one_by_one(golden_small: Path, walk_frames: Walk, name: str) -> None:
    assert assert_store_equals_scalar(walk_frames, golden_small / name) > 10


def test_broker_store_decodes_as_one_by_one(golden: Path, walk_frames: Walk) -> None:
    assert assert_store_equals_scalar(walk_frames, golden / "store") == 7063


@pytest.mark.parametrize("name", ["store", "store-torn"])
def test_crashed_broker_stores_decode_as_one_by_one(golden_crash: Path, walk_frames: Walk, name: str) -> None:
    assert assert_store_equals_scalar(walk_frames, golden_crash / name) > 1000


def test_frames_from_anywhere_in_a_log_are_decoded_without_a_base_offset() -> None:
    segment = Segment([{"commit_log_offset": 1 << 50}, {"commit_log_offset": 9}])
    assert segment.decode(base_offset=None).column("commitLogOffset").to_pylist() == [1 << 50, 9]
    with pytest.raises(CorruptRecordError, match="physical offset"):
        segment.decode()
