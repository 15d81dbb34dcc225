"""Ranges of queues as batches: how they are cut, and what is not believed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import CorruptQueueError, CorruptRecordError, Store, StoreConfig
from rmq_store.broker.read import queue_reader
from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.format.batches import frame_decoder
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host
from rmq_store.format.views.consume_queue import ENTRY, PRE_BLANK_SIZE

COUNT = 300

# What every request of these tests asks for besides its own.
_ASKED: dict[str, Any] = {}


@pytest.fixture(autouse=True, params=[False, True], ids=["one thread", "two threads"])
def two_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setitem(_ASKED, "two_threads", request.param)
    return bool(request.param)


@pytest.fixture
def store(scratch: Path, tiny: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=tiny) as opened:
        opened.create_topic("T", queue_count=2)
        columns = {
            "body": [b"%04d" % n + b"." * 50 for n in range(COUNT)],
            "tags": ["AaAa", "BBBB", None] * (COUNT // 3),
            "queueId": pa.array([0] * COUNT, pa.int32()),
        }
        opened.append(pa.record_batch(columns), topic="T")
        opened.append(pa.record_batch({"body": [b"other"], "queueId": pa.array([1], pa.int32())}), topic="T")
        yield opened


def entries_of(store: Store, queue_id: int = 0, count: int = COUNT) -> np.ndarray:
    return store._log.views.queue("T", queue_id).entries(0, count)


def read(
    store: Store, entries: np.ndarray, columns: tuple[str, ...] = ("body",), tags: str | None = None, **limits: int
) -> list[pa.RecordBatch]:
    reader = QueueReader(store._log, "b", body_limit_bytes=1 << 20)
    return list(reader.read(asked(0, len(entries), columns, tags), entries, **limits))


def asked(start: int, end: int, columns: tuple[str, ...] = ("body",), tags: str | None = None) -> ReadRequest:
    return ReadRequest("T", 0, start, end, columns, tags, **_ASKED)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [int(body[:4]) for batch in batches for body in batch.column("body").to_pylist()]


def test_batches_end_with_their_segment(store: Store) -> None:
    batches = read(store, entries_of(store))
    segments = len(store._log.segments.bases())
    assert len(batches) == segments > 3
    assert numbers(batches) == list(range(COUNT))


@pytest.mark.parametrize(("rows", "bytes_max"), [(1, 1 << 20), (7, 1 << 20), (1 << 20, 1), (1 << 20, 1000)])
def test_limits_cut_batches_but_one_message_always_fits(store: Store, rows: int, bytes_max: int) -> None:
    entries = entries_of(store)
    batches = read(store, entries, batch_rows=rows, batch_bytes=bytes_max)
    assert numbers(batches) == list(range(COUNT))
    size = int(entries["frame_size"][0])
    assert max(batch.num_rows for batch in batches) <= min(rows, max(bytes_max // size, 1))


@pytest.mark.parametrize("limit", [{"batch_rows": 13}, {"batch_bytes": 2000}])
def test_what_lies_in_one_segment_is_cut_into_equal_parts_as_few_as_the_limits_allow(
    store: Store, limit: dict[str, int]
) -> None:
    entries = entries_of(store)
    sizes, segment_bytes = entries["frame_size"].astype(int), store._log.segments.size_bytes
    segments = entries["commit_log_offset"].astype(int) // segment_bytes
    ends = np.cumsum([batch.num_rows for batch in read(store, entries, **limit)])
    parts = np.split(sizes, ends[:-1])
    assert ends[-1] == COUNT
    for segment in set(segments.tolist()):
        here = [part for part, end in zip(parts, ends, strict=True) if segments[end - 1] == segment]
        rows, size_bytes = sum(map(len, here)), sum(int(part.sum()) for part in here)
        assert rows == np.count_nonzero(segments == segment)
        needed = max(-(-rows // limit.get("batch_rows", COUNT)), -(-size_bytes // limit.get("batch_bytes", 1 << 20)))
        assert needed <= len(here) <= needed + 1  # frames cannot be cut
        assert max(abs(part.sum() - size_bytes / len(here)) for part in here) <= sizes.max()


def test_a_second_thread_makes_batches_only_if_it_is_wished(
    store: Store, two_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    decode = queue_reader.decode_frames

    def watched(*arguments: Any, **options: Any) -> pa.RecordBatch:
        seen.append(threading.current_thread() is threading.main_thread())
        return decode(*arguments, **options)

    monkeypatch.setattr(queue_reader, "decode_frames", watched)
    assert len(read(store, entries_of(store)[:40], batch_rows=10)) >= 4
    assert sorted(set(seen)) == ([False, True] if two_threads else [True])


def test_arrows_pool_is_asked_now_and_then_for_what_it_keeps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one reader, however short its reads are."""
    pool = Mock()
    entries = entries_of(store)
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    monkeypatch.setattr(queue_reader, "_POOL_BYTES", int(entries["frame_size"].sum()) // 3)
    reader = QueueReader(store._log, "b", body_limit_bytes=1 << 20)
    for first in range(0, COUNT, 10):
        list(reader.read(asked(first, first + 10), entries[first : first + 10]))
    assert pool.release_unused.call_count == 2


def test_pre_blank_entries_are_passed_over(store: Store) -> None:
    entries = entries_of(store)
    entries[:5] = 0
    entries["frame_size"][:5] = PRE_BLANK_SIZE
    assert numbers(read(store, entries)) == list(range(5, COUNT))


def test_tags_that_share_a_hash_are_told_apart_by_their_text(store: Store) -> None:
    batches = read(store, entries_of(store), tags="BBBB")
    assert numbers(batches) == list(range(1, COUNT, 3))
    assert {tuple(batch.schema.names) for batch in batches} == {("body",)}
    assert read(store, entries_of(store), tags="None") == []


def test_an_entry_that_points_at_another_queues_message_is_found_out(store: Store) -> None:
    entries = entries_of(store)
    entries[7] = entries_of(store, 1, 1)[0]
    with pytest.raises(CorruptQueueError, match=r"consumequeue/T/0: at byte 140: entry 7 .*points at .*'T', 1, 0"):
        read(store, entries)


def test_an_entry_that_points_at_another_message_of_its_queue_is_found_out(store: Store) -> None:
    entries = entries_of(store)
    entries[[3, 4]] = entries[[4, 3]]
    with pytest.raises(CorruptQueueError, match=r"entry 3 .* points at"):
        read(store, entries)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frame_size", 50),
        ("frame_size", 1 << 30),
        ("frame_size", -1),
        ("commit_log_offset", 1),
        ("commit_log_offset", 1 << 50),
        ("commit_log_offset", (1 << 63) - 1),
    ],
)
def test_entries_that_point_beside_records_or_nowhere_are_errors(store: Store, field: str, value: int) -> None:
    entries = entries_of(store)
    entries[field][9] = value
    with pytest.raises(CorruptRecordError):
        read(store, entries)


def test_an_entry_that_points_into_another_segment_is_found_out(store: Store) -> None:
    """Between two of one segment: nothing that lies elsewhere is taken for a part of it."""
    entries = entries_of(store)
    entries[7] = entries[COUNT - 1]
    with pytest.raises(CorruptQueueError, match=r"at byte 140: entry 7 .*points at .*'T', 0, 299"):
        read(store, entries)


def test_what_came_before_a_damaged_record_is_delivered(store: Store) -> None:
    entries = entries_of(store)
    entries["frame_size"][200] += 1
    reader = QueueReader(store._log, "b", body_limit_bytes=1 << 20)
    batches = reader.read(asked(0, COUNT), entries, batch_rows=10)
    found = []
    with pytest.raises(CorruptRecordError):
        found.extend(batches)
    assert numbers(found) == list(range(len(numbers(found))))
    assert 190 <= len(numbers(found)) <= 200  # whole batches of 10


def test_no_entries_give_no_batch(store: Store) -> None:
    assert read(store, np.empty(0, ENTRY)) == []


def test_many_bodies_that_grow_when_decompressed_come_in_several_batches(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 bodies of 1 MiB each in a few KiB of log."""
    monkeypatch.setattr(frame_decoder, "DECOMPRESSED_BYTES_MAX", 16 << 20)
    body, sys_flag = compress(bytes(1 << 20), "zstd")
    host, log = Host.parse("127.0.0.1:1"), b""
    for number in range(64):
        log += encode_frame(
            topic="T", body=body, properties=b"", queue_id=0, queue_offset=number, commit_log_offset=len(log),
            born_timestamp_ms=1, born_host=host, store_timestamp_ms=1_700_000_000_000, store_host=host,
            sys_flag=sys_flag,
        )  # fmt: skip
    (scratch / "s" / "commitlog").mkdir(parents=True)
    (scratch / "s" / "commitlog" / f"{0:020d}").write_bytes(log.ljust(65536, b"\0"))
    (scratch / "s" / "abort").touch()
    (scratch / "s" / "lock").write_bytes(b"lock")
    with Store.open(scratch / "s", read_only=True) as store:
        batches = store.read("T", 0, 0, 64, columns=["body", "sysFlag"])
        total = 0
        for batch in batches:
            assert batch.nbytes < 17 << 20
            assert set(batch.column("sysFlag").to_pylist()) == {sys_flag & ~1}
            total += sum(len(value) for value in batch.column("body").to_pylist())
        assert total == 64 << 20
