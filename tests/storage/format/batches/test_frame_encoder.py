"""Batches as frames: after patching, byte for byte what `encode_frame` writes for each row alone."""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.batches import frame_encoder
from rmq_store.format.batches.frame_decoder import decode_frames, dispatch_columns
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch, patch_frames
from rmq_store.format.bytes import native
from rmq_store.format.frames.compression import compress, decompress
from rmq_store.format.frames.frame_check import SysFlag, check_frame
from rmq_store.format.frames.message import Message
from rmq_store.format.frames.stored_message import decode_frame, encode_frame
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.tables.schema import ENCODED_SCHEMA, MESSAGE_SCHEMA, PROPERTIES_TYPE
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator, parse_unique_id

V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
NOW_MS, STORE_MS = 1700000000123, 1700000001000
INPUT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("shardingKey", pa.string()),
        ("properties", PROPERTIES_TYPE),
        ("flag", pa.int32()),
        ("reconsumeTimes", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornTimestamp", pa.timestamp("us", "UTC")),
    ]
)


def options(**changes: Any) -> EncodeOptions:
    return EncodeOptions(**{"store_host": V4, "born_host": V4, "now_ms": NOW_MS, "crc_property": True, **changes})


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema = INPUT_SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"topic": "TopicTest", "body": b"Hello world", **row} for row in rows], schema)


def encode(batch: pa.RecordBatch, **changes: Any) -> pa.RecordBatch:
    encoded = encode_batch(batch, queue_ids=np.arange(batch.num_rows, dtype=np.int32), options=options(**changes))
    encoded.validate(full=True)
    assert encoded.schema == ENCODED_SCHEMA
    return encoded


def patched(encoded: pa.RecordBatch, start: int = 5 << 30) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The frames as they would lie in the log from `start` on, with their positions and sizes."""
    frames = [frame.as_py() for frame in encoded.column("frame")]
    sizes = np.array([len(frame) for frame in frames], np.int64)
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(frames), np.uint8).copy()
    crc0 = encoded.column("crc").to_numpy()
    patch_frames(data, starts, sizes, np.arange(len(frames)), start + starts, STORE_MS, crc0 if crc0.any() else None)
    return data.tobytes(), starts, sizes


def stored(encoded: pa.RecordBatch) -> list[Any]:
    data, starts, _ = patched(encoded)
    return [decode_frame(memoryview(data), int(start), len(data)) for start in starts]


def scalar_frame(row: dict[str, Any], number: int, offset: int, changes: dict[str, Any]) -> bytes:
    message = Message(
        row["topic"],
        row["body"],
        tags=row["tags"],
        keys=row["keys"],
        sharding_key=row["shardingKey"],
        properties=dict(row["properties"] or {}),
    )
    born = row["bornTimestamp"]
    common = options(**changes)
    return encode_frame(
        topic=message.topic,
        body=message.body,
        properties=encode_properties(message.stored_properties()),
        queue_id=number,
        queue_offset=number,
        commit_log_offset=offset,
        born_timestamp_ms=NOW_MS if born is None else (born - datetime(1970, 1, 1, tzinfo=UTC)) // MILLISECOND,
        born_host=common.born_host,
        store_timestamp_ms=STORE_MS,
        store_host=common.store_host,
        flag=row["flag"] or 0,
        sys_flag=row["sysFlag"] or 0,
        reconsume_times=row["reconsumeTimes"] or 0,
        crc_property=common.crc_property,
    )


MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)
INT32 = st.none() | st.integers(-(1 << 31), (1 << 31) - 1)
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
texts = st.text(characters, max_size=6) | st.text(characters, min_size=7, max_size=40)
LONG_TOPICS = ["%DLQ%".ljust(length, "x") for length in (127, 128, 255)]  # V1, V2, V2
names = st.sampled_from(["TAGS", "KEYS", "__SHARDINGKEY", "UNIQ_KEY", "a", "é"])
rows = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "%RETRY%group", *LONG_TOPICS]),
        "body": st.binary(max_size=50) | st.binary(min_size=3000, max_size=3001),
        "tags": st.none() | texts,
        "keys": st.none() | texts | st.sampled_from(["k1 k2", " a  b "]),
        "shardingKey": st.none() | texts,
        "properties": st.none() | st.dictionaries(names, texts.filter(bool)).map(lambda found: list(found.items())),
        "flag": INT32,
        "reconsumeTimes": INT32,
        "sysFlag": st.sampled_from([None, 0, 0x1, 0x4, 0x8, 0xC, 0x30, 0x301]),
        "bornTimestamp": st.none() | st.datetimes(timezones=st.just(UTC)),
    }
)
variants = st.fixed_dictionaries(
    {"born_host": st.sampled_from([V4, V6]), "store_host": st.sampled_from([V4, V6]), "crc_property": st.booleans()}
)


@given(st.lists(rows, max_size=6), variants, st.integers(0, 2))
def test_patched_frames_are_those_of_the_scalar_encoder(
    batch_rows: list[dict[str, Any]], changes: dict[str, Any], skipped: int
) -> None:
    encoded = encode(pa.RecordBatch.from_pylist(batch_rows, INPUT_SCHEMA)[skipped:], **changes)
    data, starts, sizes = patched(encoded)
    for number, row in enumerate(batch_rows[skipped:]):
        start, size = int(starts[number]), int(sizes[number])
        assert data[start : start + size] == scalar_frame(row, number, (5 << 30) + start, changes)


def fresh_ids() -> UniqueIdGenerator:
    return UniqueIdGenerator(V4.address, 77, 0x12345678)


def encode_in_python(batch: pa.RecordBatch, **changes: Any) -> pa.RecordBatch:
    with patch.object(native, "LOADED", False):
        return encode(batch, **changes)


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@given(st.lists(rows, min_size=1, max_size=6), variants, st.integers(0, 2), st.booleans(), st.booleans(), st.data())
def test_the_extension_encodes_as_python_does(
    batch_rows: list[dict[str, Any]],
    changes: dict[str, Any],
    skipped: int,
    with_ids: bool,
    index_tags: bool,
    data: st.DataObject,
) -> None:
    """With columns left out, slices, properties that are not taken over, and all that the extension sees twice."""
    left = data.draw(st.sets(st.sampled_from(INPUT_SCHEMA.names[2:])))
    columns = [name for name in INPUT_SCHEMA.names if name not in left]
    dropped = data.draw(st.frozensets(names))
    batch = pa.RecordBatch.from_pylist(batch_rows, INPUT_SCHEMA)[skipped:].select(columns)
    changes |= {"index_tags": index_tags, "drop_properties": dropped, "in_threads": data.draw(st.booleans())}
    expected = encode_in_python(batch, unique_ids=fresh_ids() if with_ids else None, **changes)
    # Nothing in these rows is refused.
    with patch.object(frame_encoder, "_encode", side_effect=AssertionError):
        assert encode(batch, unique_ids=fresh_ids() if with_ids else None, **changes).equals(expected)


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@pytest.mark.parametrize("in_the_map", [False, True])
def test_rows_that_take_all_the_room_there_can_be_are_encoded_in_one_pass(in_the_map: bool) -> None:
    """The longest topic, a hash for every second byte of the keys, long hosts, nothing left out: in each row."""
    named = {"keys": "a b c d e", "tags": "T" * 40, "shardingKey": "s" * 40}
    given = [("KEYS", "a b c d e"), ("TAGS", "T" * 40), ("other", "o" * 40)]
    row = {"topic": LONG_TOPICS[2], "body": b"b" * 100, **({"properties": given} if in_the_map else named)}
    batch = batch_of([row] * 50).select(["topic", "body", *(["properties"] if in_the_map else named)])
    changes = {"born_host": V6, "store_host": V6, "index_tags": True, "drop_properties": frozenset({"UNIQ_KEY"})}
    for part in (batch, batch[10:20]):
        expected = encode_in_python(part, unique_ids=fresh_ids(), **changes)
        with patch.object(frame_encoder, "_encode", side_effect=AssertionError):
            assert encode(part, unique_ids=fresh_ids(), **changes).equals(expected)


@given(st.lists(rows, max_size=6), variants)
def test_what_is_encoded_is_what_the_log_would_be_dispatched_as(
    batch_rows: list[dict[str, Any]], changes: dict[str, Any]
) -> None:
    encoded = encode(pa.RecordBatch.from_pylist(batch_rows, INPUT_SCHEMA), **changes)
    data, starts, sizes = patched(encoded, start=0)
    read = dispatch_columns(pa.py_buffer(data), starts, sizes.astype(np.int32), 0, [])
    assert encoded.column("topic").to_pylist() == read.topic.to_pylist()
    assert encoded.column("queue_id").to_pylist() == read.queue_id.tolist()
    assert encoded.column("dispatchable").to_pylist() == read.dispatchable.tolist()
    assert encoded.column("tags_code").to_pylist() == read.tags_code.tolist()
    assert [len(hashes) for hashes in encoded.column("key_hashes")] == read.key_counts.tolist()
    assert encoded.column("key_hashes").flatten().to_pylist() == read.key_hashes.tolist()


@given(st.lists(rows, min_size=1, max_size=6), variants)
def test_written_frames_pass_the_check_of_recovery_and_read_back(
    batch_rows: list[dict[str, Any]], changes: dict[str, Any]
) -> None:
    data, starts, sizes = patched(encode(pa.RecordBatch.from_pylist(batch_rows, INPUT_SCHEMA), **changes), start=0)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        check = check_frame(memoryview(data), start, len(data), expect_offset=start, check_crc=True)
        assert (check.kind, check.size) == ("message", size)
    read = decode_frames(
        pa.py_buffer(data),
        starts,
        sizes.astype(np.int32),
        base_offset=0,
        columns=["topic", "body", "flag", "reconsumeTimes"],
        broker_name="",
        raw_body=True,
        body_limit_bytes=0,
    )
    assert read.column("body").to_pylist() == [row["body"] for row in batch_rows]
    assert read.column("topic").to_pylist() == [row["topic"] for row in batch_rows]
    assert read.column("flag").to_pylist() == [row["flag"] or 0 for row in batch_rows]


@pytest.mark.parametrize("body_bytes", [0, 100, 2047, 2048, 70_000])
def test_crc_is_that_of_the_unfilled_frame_however_it_is_computed(body_bytes: int) -> None:
    encoded = encode(batch_of([{"body": bytes(range(256)) * 300}, {"body": b"x" * body_bytes}])[1:])
    (frame,) = encoded.column("frame").to_pylist()
    assert encoded.column("crc").to_pylist() == [zlib.crc32(frame[:-20])]
    assert frame[-20:] == b"__CRC32#\x010000000000\x02"


def test_store_without_the_crc_property_gets_none() -> None:
    encoded = encode(batch_of([{}]), crc_property=False)
    assert b"__CRC32#" not in encoded.column("frame")[0].as_py()
    assert encoded.column("crc").to_pylist() == [0]


def test_frames_of_both_host_widths_can_be_patched_at_once() -> None:
    batch = batch_of([{"tags": "a"}, {"tags": "b"}])
    both = pa.concat_batches([encode(batch[:1], born_host=V6), encode(batch[1:])])
    assert [message.born_host for message in stored(both)] == [V6, V4]
    data, starts, _ = patched(both, start=0)
    for start in starts.tolist():
        assert check_frame(memoryview(data), start, len(data), expect_offset=start, check_crc=True).kind == "message"


def test_no_rows_make_no_frames() -> None:
    encoded = encode(batch_of([]))
    assert encoded.num_rows == 0
    none = np.zeros(0, np.int64)
    patch_frames(np.zeros(0, np.uint8), none, none, none, none, STORE_MS, np.zeros(0, np.uint32))


# -- columns -----------------------------------------------------------------------------------------------------


def test_topic_and_body_are_enough() -> None:
    (message,) = stored(encode(batch_of([{}]).select(["topic", "body"])))
    assert (message.topic, message.body, message.properties) == ("TopicTest", b"Hello world", {})
    assert message.born_timestamp_ms == NOW_MS


def test_whole_source_schema_is_taken_and_broker_columns_are_ignored() -> None:
    batch = batch_of([{"queueId": 3, "queueOffset": 9, "bornHost": "1.2.3.4:5", "commitLogOffset": 77}], MESSAGE_SCHEMA)
    (message,) = stored(encode(batch))
    assert (message.queue_id, message.queue_offset, message.born_host) == (0, 0, V4)


@pytest.mark.parametrize(
    "types",
    [
        {"topic": pa.dictionary(pa.int8(), pa.string()), "body": pa.string(), "tags": pa.large_string()},
        {"topic": pa.large_string(), "body": pa.large_binary(), "tags": pa.null(), "flag": pa.int64()},
        {"topic": pa.string(), "body": pa.binary(), "properties": pa.null(), "keys": pa.null()},
    ],
)
def test_other_arrow_types_of_the_same_values_are_taken(types: dict[str, pa.DataType]) -> None:
    rows = [{"topic": "TopicTest", "body": "b"}] * 3
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(types.items())))
    assert [(message.topic, message.body) for message in stored(encode(batch[1:]))] == [("TopicTest", b"b")] * 2


def test_column_wins_over_the_map_and_an_empty_column_does_not() -> None:
    own = {"TAGS": "map", "KEYS": "map", "x": "y"}
    batch = batch_of([{"tags": "column", "keys": "", "properties": own}, {"tags": None, "properties": own}])
    first, second = stored(encode(batch))
    assert first.properties == {"TAGS": "column", "KEYS": "map", "x": "y"}
    assert first.properties_raw.count(b"TAGS") == 1
    assert second.properties == own


def test_broker_owned_names_can_be_dropped() -> None:
    own = {"REAL_TOPIC": "t", "DELAY": "3", "x": "y", "__CRC32#": "1"}
    (message,) = stored(encode(batch_of([{"properties": own}]), drop_properties=frozenset({"REAL_TOPIC", "DELAY"})))
    assert message.properties == {"x": "y"}
    assert message.properties_raw.count(b"__CRC32#") == 1


def test_map_entry_without_a_value_is_not_stored() -> None:
    (message,) = stored(encode(batch_of([{"properties": [("a", None), ("b", "c")]}])))
    assert message.properties == {"b": "c"}


def test_entries_under_a_null_map_are_not_stored() -> None:
    offsets = pa.array([0, 1, 2], pa.int32())
    hidden = pa.MapArray.from_arrays(offsets, pa.array(["a", "b"]), pa.array(["\x01", "2"]))
    hidden = pa.MapArray.from_buffers(
        hidden.type, 2, [pa.py_buffer(b"\x02"), hidden.buffers()[1]], children=[hidden.values]
    )
    assert hidden.to_pylist() == [None, [("b", "2")]]
    columns = {"topic": pa.array(["T", "T"]), "body": pa.array([b"", b""]), "properties": hidden}
    batch = pa.RecordBatch.from_pydict(columns)
    assert [message.properties for message in stored(encode(batch))] == [{}, {"b": "2"}]


@pytest.mark.statement("F09")
def test_unique_ids_are_given_to_rows_without_one() -> None:
    generator = UniqueIdGenerator(V4.address, 77, 5)
    batch = batch_of([{}, {"properties": {"UNIQ_KEY": "mine"}}, {}])
    first, second, third = stored(encode(batch, unique_ids=generator))
    assert second.msg_id == "mine"
    assert first.msg_id < third.msg_id
    assert parse_unique_id(first.msg_id).pid == 77
    again = stored(encode(batch, unique_ids=generator, drop_properties=frozenset({"UNIQ_KEY"})))
    assert len({message.msg_id for message in [first, third, *again]}) == 5


def test_scheduled_message_has_its_tag_hash_until_the_append_knows_its_time() -> None:
    batch = batch_of([{"topic": "SCHEDULE_TOPIC_XXXX", "tags": "TagA", "properties": {"DELAY": "3"}}])
    assert encode(batch).column("tags_code").to_pylist() == [java_hash("TagA")]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_long_bodies_are_compressed_unless_they_are_already(kind: Any) -> None:
    long, (done, done_flag) = b"long " * 100, compress(b"done " * 100, "zstd")
    batch = batch_of([{"body": b"x" * 499}, {"body": long}, {"body": done, "sysFlag": done_flag}, {"body": b"x" * 500}])
    first, second, third, fourth = stored(encode(batch, compress_over_bytes=500, compress_kind=kind))
    assert (first.body, first.sys_flag) == (b"x" * 499, 0)
    assert decompress(second.body, second.sys_flag, 1000) == long
    assert second.sys_flag == compress(long, kind)[1]
    assert (third.body, third.sys_flag) == (done, done_flag)
    assert fourth.sys_flag & SysFlag.COMPRESSED


def test_body_that_does_not_get_shorter_stays_as_it_is() -> None:
    body = zlib.compress(bytes(range(256)))
    (message,) = stored(encode(batch_of([{"body": body}]), compress_over_bytes=1))
    assert (message.body, message.sys_flag) == (body, 0)


def test_type_of_an_earlier_compression_does_not_survive() -> None:
    # A decompressed message of the source keeps the type bits, as in the 5.x client.
    batch = batch_of([{"body": bytes(900), "sysFlag": 0x300}])
    (message,) = stored(encode(batch, compress_over_bytes=1, compress_kind="lz4"))
    assert decompress(message.body, message.sys_flag, 1000) == bytes(900)


def test_born_timestamp_is_cut_to_whole_milliseconds_downwards() -> None:
    times = pa.array([1_999, -1, None], pa.timestamp("us", "UTC"))
    batch = batch_of([{}, {}, {}]).set_column(9, "bornTimestamp", times)
    assert [message.born_timestamp_ms for message in stored(encode(batch))] == [1, -1, NOW_MS]


# -- refusals ----------------------------------------------------------------------------------------------------


def refusal(batch: pa.RecordBatch, **changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        encode(batch, **changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "column", "reason"),
    [
        ({"body": None}, "body", "needs a body"),
        ({"body": bytes(1001)}, "body", "1001 bytes"),
        ({"topic": None}, "topic", "needs a topic"),
        ({"topic": ""}, "topic", "name"),
        ({"topic": "a/b"}, "topic", "characters"),
        ({"topic": "x" * 128}, "topic", "128"),
        ({"tags": "a\x01b"}, "tags", "separator"),
        ({"keys": "a\x02"}, "keys", "separator"),
        ({"shardingKey": "\x01"}, "shardingKey", "separator"),
        ({"properties": {"a": "b", "c\x01": "d"}}, "properties", "separator"),
        ({"properties": {"a": "b", "c": "d\x02"}}, "properties", "separator.*'c'"),
        ({"properties": {"": "d"}}, "properties", "empty property name"),
        ({"properties": {"a": ""}}, "properties", "empty value.*'a'"),
        ({"properties": {"a": "x" * 32765}}, "properties", "bytes of properties, more than 32767"),
    ],
)
def test_row_that_cannot_be_stored_is_named_with_its_column(row: dict[str, Any], column: str, reason: str) -> None:
    good = {"properties": {"a": "b"}, "tags": "t", "keys": "k", "shardingKey": "s"}
    text = refusal(batch_of([good, good, {**good, **row}, good]), max_message_bytes=1000)
    assert text.startswith(f"row 2, column {column!r}: ")
    assert re.search(reason, text)


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
def test_a_separator_is_found_wherever_it_is(separator: str) -> None:
    for length in range(1, 26):
        for place in range(length):
            text = "a" * place + separator + "\x7f" * (length - place - 1)
            assert "separator" in refusal(batch_of([{"tags": text}]))


@pytest.mark.parametrize("character", ["\x00", "\x03", "\x7f", "é", "\U0001f600"])
def test_what_is_no_separator_can_be_stored_wherever_it_is(character: str) -> None:
    texts = ["a" * place + character + "b" * behind for place in range(12) for behind in range(12)]
    read = [dict(frame.properties)["TAGS"] for frame in stored(encode(batch_of([{"tags": text} for text in texts])))]
    assert read == texts


def test_properties_may_take_exactly_32767_bytes_with_the_checksum() -> None:
    longest = {"properties": {"a": "x" * (32767 - 20 - 3)}}
    assert encode(batch_of([longest])).num_rows == 1
    assert "32768 bytes" in refusal(batch_of([{"properties": {"a": "x" * (32767 - 20 - 2)}}]))
    assert encode(batch_of([{"properties": {"a": "x" * (32767 - 3)}}]), crc_property=False).num_rows == 1


def test_separator_under_a_null_is_no_value() -> None:
    tags = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\x01t"), pa.py_buffer(b"\x02")
    )
    batch = pa.RecordBatch.from_arrays([pa.array(["T", "T"]), pa.array([b"", b""]), tags], ["topic", "body", "tags"])
    assert [message.tags for message in stored(encode(batch))] == [None, "t"]


def test_text_that_is_not_utf8_is_refused() -> None:
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    topic, body = pa.array(["T"]), pa.array([b""])
    assert "UTF-8" in refusal(pa.RecordBatch.from_arrays([topic, body, bad], ["topic", "body", "tags"]))
    assert "UTF-8" in refusal(pa.RecordBatch.from_arrays([bad, body], ["topic", "body"]))
    for keys, values in ((bad, topic), (topic, bad)):
        column = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, values)
        assert "UTF-8" in refusal(pa.RecordBatch.from_arrays([topic, body, column], ["topic", "body", "properties"]))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("body", pa.array([1])),
        ("tags", pa.array([1.5])),
        ("properties", pa.array(["a"])),
        ("flag", pa.array([1 << 40])),
        ("bornTimestamp", pa.array([5])),
    ],
)
def test_column_of_another_type_is_named(column: str, values: pa.Array) -> None:
    columns = {"topic": pa.array(["T"]), "body": pa.array([b""]), column: values}
    assert column in refusal(pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))


@pytest.mark.parametrize("missing", ["topic", "body"])
def test_missing_column_is_named(missing: str) -> None:
    assert missing in refusal(batch_of([{}]).drop_columns([missing]))


@settings(max_examples=20)
@given(st.integers(0, 300))
def test_many_rows_of_one_shape_are_encoded_alike(count: int) -> None:
    encoded = encode(batch_of([{"tags": f"t{number}"} for number in range(count)]))
    assert [message.tags for message in stored(encoded)] == [f"t{number}" for number in range(count)]
