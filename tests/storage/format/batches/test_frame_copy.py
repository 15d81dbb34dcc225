"""Copies of stored frames: byte for byte what decoding each and encoding it again for its new place gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.batches.frame_decoder import dispatch_columns
from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_fields import frame_columns
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame, encode_frame
from rmq_store.format.properties.property_string import PROPERTIES_BYTES_MAX
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.text.host import Host

from ..conftest import Walk

V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
BASE, NEW_START, STORE_MS = 3 << 30, 5 << 30, 1700000001000
TOPICS = ["T", "%RETRY%group", *("%DLQ%".ljust(length, "x") for length in (127, 128, 255))]  # V1, V1, V1, V2, V2
CRC_BYTES = 20

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
property_strings = st.sampled_from(
    [
        b"", b"KEYS\x01a  b\x02", b"KEYS\x01c\x02TAGS\x01TagA\x02UNIQ_KEY\x01U1\x02UNIQ_KEY\x01U2\x02",
        b"TAGS\x01\xe4\xb8\xad\xe6\x96\x87\x02", b"TAGS\x01x\x02DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010",
        b"KEYS\x01\xff\x02", b"\x02\x01junk\x02",
    ]
)  # fmt: skip
frames = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS),
        "body": st.binary(max_size=50) | st.binary(min_size=3000, max_size=3001),
        "properties": property_strings,
        "queue_id": st.integers(0, 9),
        "queue_offset": st.integers(0, 1 << 40),
        "born_timestamp_ms": st.integers(0, 1 << 41),
        "born_host": st.sampled_from([V4, V6]),
        "store_timestamp_ms": st.integers(0, 1 << 41),
        "store_host": st.sampled_from([V4, V6]),
        "flag": INT32,
        "sys_flag": st.sampled_from([0, 0x1, 0x4, 0x8, 0xC, 0x301]),
        "reconsume_times": INT32,
        "prepared_transaction_offset": st.integers(0, 1 << 40),
        "crc_property": st.booleans(),
    }
)


@pytest.fixture(scope="module", params=["extension", "Python"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Who copies: native/copies.c where frames are ordinary, or Python all of them."""
    if request.param == "extension" and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", request.param == "extension")
        yield


class Source:
    """Frames one behind another in a segment, with some bytes before them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        data = b"gap"
        self.positions: list[int] = []
        self.messages: list[StoredMessage] = []
        for row in rows:
            frame = encode_frame(commit_log_offset=BASE + len(data), **row)
            self.positions.append(len(data))
            self.messages.append(decode_frame(memoryview(frame), 0, len(frame)))
            data += frame
        self.buffer = pa.py_buffer(data)

    def copy(self, order: list[int], topics: list[str], queue_ids: list[int], **changes: Any) -> pa.RecordBatch:
        positions = np.array([self.positions[row] for row in order], np.int64)
        sizes = np.array([self.messages[row].total_size for row in order], np.int32)
        encoded = copy_frames(
            frame_columns(self.buffer, positions, sizes, base_offset=BASE),
            topics=pa.array(topics, pa.string()).dictionary_encode(),
            queue_ids=np.array(queue_ids, np.int32),
            **changes,
        )
        encoded.validate(full=True)
        assert encoded.schema == ENCODED_SCHEMA
        return encoded


def patched(encoded: pa.RecordBatch, start: int, *, crc_property: bool) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The copies as they would lie in the log from `start` on, numbered in their queue from 7 on."""
    copies = encoded.column("frame").to_pylist()
    sizes = np.array([len(frame) for frame in copies], np.int64)
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(copies), np.uint8).copy()
    crc0 = encoded.column("crc").to_numpy() if crc_property else None
    patch_frames(data, starts, sizes, 7 + np.arange(len(copies)), start + starts, STORE_MS, crc0)
    return data.tobytes(), starts, sizes


def oracle(
    message: StoredMessage, topic: str, queue_id: int, offset: int, number: int, *, crc_property: bool, **changes: Any
) -> bytes:
    """One frame, decoded and encoded again."""
    raw = message.properties_raw
    if raw[-CRC_BYTES:].startswith(b"__CRC32#\x01"):
        raw = raw[:-CRC_BYTES]
    moved = replace(
        message,
        topic=topic,
        queue_id=queue_id,
        queue_offset=number,
        commit_log_offset=offset,
        store_timestamp_ms=STORE_MS,
        prepared_transaction_offset=0,
        properties_raw=raw,
    )
    return replace(moved, **changes).encode(crc_property=crc_property)


@given(st.lists(frames, max_size=5), st.booleans(), st.data())
def test_copies_are_what_one_by_one_gives(rows: list[dict[str, Any]], crc_property: bool, data: st.DataObject) -> None:
    source = Source(rows)
    order = data.draw(st.permutations(range(len(rows))))
    per_row = st.lists(INT32, min_size=len(rows), max_size=len(rows))
    topics = [data.draw(st.sampled_from(TOPICS)) for _ in rows]
    queue_ids = [data.draw(st.integers(0, 5)) for _ in rows]
    given_properties = data.draw(st.none() | st.lists(property_strings, min_size=len(rows), max_size=len(rows)))
    reconsume_times = data.draw(st.none() | per_row)
    sys_flags = data.draw(st.none() | per_row)
    store_host = data.draw(st.sampled_from([None, V4, V6]))
    encoded = source.copy(
        order,
        topics,
        queue_ids,
        options=CopyOptions(crc_property),
        properties=None if given_properties is None else pa.array(given_properties, pa.large_binary()),
        reconsume_times=None if reconsume_times is None else np.array(reconsume_times, np.int32),
        sys_flags=None if sys_flags is None else np.array(sys_flags, np.int32),
        store_host=store_host,
    )
    log, starts, sizes = patched(encoded, NEW_START, crc_property=crc_property)
    for row, place in enumerate(order):
        changes: dict[str, Any] = {}
        if given_properties is not None:
            changes["properties_raw"] = given_properties[row]
        if reconsume_times is not None:
            changes["reconsume_times"] = reconsume_times[row]
        if sys_flags is not None:
            changes["sys_flag"] = sys_flags[row]
        if store_host is not None:
            changes["store_host"] = store_host
        start = int(starts[row])
        expected = oracle(
            source.messages[place], topics[row], queue_ids[row], NEW_START + start, 7 + row,
            crc_property=crc_property, **changes,
        )  # fmt: skip
        assert log[start : start + int(sizes[row])] == expected


@given(st.lists(frames, min_size=1, max_size=5), st.booleans(), st.booleans(), st.data())
def test_queues_and_index_get_what_the_log_would_be_dispatched_as(
    rows: list[dict[str, Any]], crc_property: bool, index_tags: bool, data: st.DataObject
) -> None:
    """The index keys are those of the new topic (IndexService#buildIndex)."""
    source = Source(rows)
    topics = [data.draw(st.sampled_from(TOPICS)) for _ in rows]
    queue_ids = [data.draw(st.integers(0, 5)) for _ in rows]
    encoded = source.copy(list(range(len(rows))), topics, queue_ids, options=CopyOptions(crc_property, index_tags))
    log, starts, sizes = patched(encoded, 0, crc_property=crc_property)
    read = dispatch_columns(pa.py_buffer(log), starts, sizes.astype(np.int32), 0, [], index_tags=index_tags)
    assert encoded.column("topic").to_pylist() == read.topic.to_pylist() == topics
    assert encoded.column("queue_id").to_pylist() == read.queue_id.tolist()
    assert encoded.column("dispatchable").to_pylist() == read.dispatchable.tolist()
    assert encoded.column("tags_code").to_pylist() == read.tags_code.tolist()
    assert encoded.column("delay_ms").to_pylist() == [0] * len(rows)
    hashes = encoded.column("key_hashes")
    assert [len(row) for row in hashes] == read.key_counts.tolist()
    assert hashes.flatten().to_pylist() == read.key_hashes.tolist()


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "T", "body": b"body", "properties": b"TAGS\x01TagA\x02", "queue_id": 1, "queue_offset": 2,
        "born_timestamp_ms": 3, "born_host": V4, "store_timestamp_ms": 4, "store_host": V4, **changes,
    }  # fmt: skip


def test_delays_go_through_and_leave_the_tag_as_it_is() -> None:
    encoded = Source([plain(), plain()]).copy(
        [0, 1], ["SCHEDULE_TOPIC_XXXX"] * 2, [2, 0], options=CopyOptions(False), delay_ms=np.array([10_000, 0])
    )
    assert encoded.column("delay_ms").to_pylist() == [10_000, 0]
    assert encoded.column("tags_code").to_pylist() == [java_hash("TagA")] * 2


def test_no_frames_give_no_rows() -> None:
    assert Source([]).copy([], [], [], options=CopyOptions(True)).num_rows == 0


@pytest.mark.parametrize("topic", ["", "../../etc", "a/b", "T" * 128, "é"])
def test_a_topic_that_cannot_name_a_directory_is_refused(topic: str) -> None:
    with pytest.raises(UsageError, match="row 1: "):
        Source([plain(), plain()]).copy([0, 1], ["T", topic], [0, 0], options=CopyOptions(True))


def test_a_negative_queue_is_refused() -> None:
    with pytest.raises(UsageError, match="row 1: -1 is no queue id"):
        Source([plain(), plain()]).copy([0, 1], ["T", "T"], [0, -1], options=CopyOptions(True))


@pytest.mark.parametrize("crc_property", [False, True])
def test_properties_up_to_the_limit_are_copied_and_one_byte_more_is_refused(crc_property: bool) -> None:
    """MessageExtEncoder.java: propertiesLength is an int16, the CRC property included."""
    most = PROPERTIES_BYTES_MAX - CRC_BYTES * crc_property
    fitting = b"a\x01" + b"v" * (most - 3) + b"\x02"
    source = Source([plain(), plain(properties=fitting)])
    encoded = source.copy([0, 1], ["T", "T"], [0, 0], options=CopyOptions(crc_property))
    assert len(encoded.column("frame")[1].as_py()) == source.messages[1].total_size + CRC_BYTES * crc_property
    over = pa.array([b"", b"b" + fitting], pa.large_binary())
    with pytest.raises(UsageError, match=r"row 1, column 'properties': 32768 bytes of properties, more than 32767"):
        source.copy([0, 1], ["T", "T"], [0, 0], options=CopyOptions(crc_property), properties=over)


def test_what_is_no_frame_is_refused_and_named() -> None:
    source = Source([plain(), plain()])
    source.positions[1] += 1
    with pytest.raises(CorruptRecordError) as caught:
        source.copy([0, 1], ["T", "T"], [0, 0], options=CopyOptions(True))
    assert caught.value.offset == BASE + source.positions[1]


@pytest.mark.parametrize("crc_property", [False, True])
def test_every_frame_of_a_real_broker_can_be_copied(golden: Path, walk_frames: Walk, crc_property: bool) -> None:
    """Copied to where they are, they are what they were; to the next queue of another topic, as one by one."""
    found = list(walk_frames(golden / "store"))
    data = b"".join(bytes(frame) for _, frame in found)
    offsets = np.array([offset for offset, _ in found])
    sizes = np.array([len(frame) for _, frame in found], np.int32)
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    messages = [decode_frame(memoryview(data), int(start), len(data)) for start in positions]
    # Each message says where it is: without blanks between them, frames of different places are told apart.
    copied = 0
    for base in np.unique(offsets - positions).tolist():
        rows = np.flatnonzero(offsets - positions == base)
        encoded = copy_frames(
            frame_columns(pa.py_buffer(data), positions[rows], sizes[rows], base_offset=base),
            topics=pa.array([f"%RETRY%{messages[row].topic}"[:127] for row in rows]).dictionary_encode(),
            queue_ids=np.array([messages[row].queue_id + 1 for row in rows], np.int32),
            options=CopyOptions(crc_property),
        )  # fmt: skip
        log, starts, ends = patched(encoded, NEW_START, crc_property=crc_property)
        for number, row in enumerate(rows.tolist()):
            start = int(starts[number])
            message = messages[row]
            assert log[start : start + int(ends[number])] == oracle(
                message, f"%RETRY%{message.topic}"[:127], message.queue_id + 1, NEW_START + start, 7 + number,
                crc_property=crc_property,
            )  # fmt: skip
        copied += len(rows)
    assert copied == len(found) > 1000
