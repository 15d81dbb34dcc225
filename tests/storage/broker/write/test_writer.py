"""Appends as the log sees them: what one call writes, refuses, or takes back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig, StoreFullError, UnknownTopicError, UsageError
from rmq_store.broker.write import writer as writing
from rmq_store.broker.write.writer import Writer
from rmq_store.files import durable
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.log.append.append import append, append_lock, append_one
from rmq_store.log.core.units import UnitRecord
from rmq_store.verify import verify_store


@pytest.fixture
def store(scratch: Path, tiny: StoreConfig) -> Iterator[Store]:
    # No flush thread meanwhile: a failure that is meant for an append would hit it.
    config = replace(tiny, flush_interval_commit_log=1_000_000)
    with Store.open(scratch / "store", create=True, config=config) as opened:
        opened.create_topic("T", queue_count=1)
        yield opened


def bodies_of(store: Store, topic: str = "T") -> list[bytes]:
    return [
        body
        for queue_id, (first, last) in store.queue_ranges(topic).items()
        for batch in store.read(topic, queue_id, first, last, columns=["body"])
        for body in batch.column("body").to_pylist()
    ]


def test_a_send_says_where_the_message_is(store: Store) -> None:
    first = store.send(Message("T", b"one"))
    second = store.send(Message("T", b"two", properties={"UNIQ_KEY": "MINE"}), as_given=True)
    assert (first.queue_offset, second.queue_offset, second.msg_id) == (0, 1, "MINE")
    assert (second.commit_log_offset, store.log_range()[1] > second.commit_log_offset) == (
        store.commit_log_offset_before("T", 0, 2), True,
    )  # fmt: skip
    host, offset = parse_offset_message_id(second.offset_msg_id)
    assert (str(host), offset) == ("127.0.0.1:10911", second.commit_log_offset)
    assert len(first.msg_id) == 32


def test_an_append_says_which_bytes_of_the_log_it_took(store: Store) -> None:
    first = store.append(pa.record_batch({"body": [b"a", b"b"]}), "T")
    second = store.append(pa.record_batch({"body": [b"c"]}), "T")
    assert (first.row_count, first.start_offset, first.end_offset) == (2, 0, second.start_offset)
    assert second.end_offset == store.log_range()[1]


@pytest.mark.parametrize("operation", ["allocate", "write", "rename", "mkdir", "open"])
def test_a_full_disk_at_any_step_leaves_nothing_and_the_next_try_works(
    store: Store, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Every k-th operation of that kind fails in turn, until an append gets through."""
    rows = {"body": [b"x" * 200] * 100, "keys": [f"K{n}" for n in range(100)]}
    appended = 0
    for fail_at in range(1, 200):
        left = fail_at

        def fail(name: str, path: str) -> None:
            nonlocal left
            if name == operation and "/config/" not in path:
                left -= 1
                if left == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        before = store.log_range()
        monkeypatch.setattr(durable, "hook", fail)
        try:
            store.append(pa.record_batch(rows), "T")
            appended += 1
        except StoreFullError:
            monkeypatch.setattr(durable, "hook", None)
            assert store.log_range() == before
            assert len(bodies_of(store)) == 100 * appended
        finally:
            monkeypatch.setattr(durable, "hook", None)
        if left > 0:
            break
    else:
        pytest.fail("the append never got through")
    store.append(pa.record_batch(rows), "T")
    assert len(bodies_of(store)) == 100 * (appended + 1)
    store.close()
    report = verify_store(store.path)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems


def test_one_bad_row_refuses_the_batch_and_makes_no_topic(store: Store) -> None:
    batch = pa.record_batch({"topic": ["New", "New"], "body": [b"a", b"b"], "tags": ["ok", "\x01"]})
    with pytest.raises(UsageError, match="row 1, column 'tags'"):
        store.append(batch)
    assert "New" not in store.topics()
    assert store.log_range() == (0, 0)


@pytest.mark.parametrize("row", [5, 65_535, 65_536, 69_999])
def test_the_row_that_is_named_is_the_callers_also_in_a_batch_that_is_encoded_in_parts(store: Store, row: int) -> None:
    for name, bad in (("tags", "\x01"), ("queueId", 9)):
        kind = pa.string() if name == "tags" else pa.int32()
        column = [None] * row + [bad] + [None] * (69_999 - row)
        batch = pa.RecordBatch.from_pydict({"body": pa.array([b""] * 70_000), name: pa.array(column, kind)})
        with pytest.raises(UsageError, match=rf"^row {row}\b"):
            store.append(batch, "T")
    assert store.log_range() == (0, 0)


def test_topics_made_by_others_are_seen_at_the_next_call(store: Store) -> None:
    with Store.open(store.path) as other:
        other.create_topic("Late", queue_count=7)
        assert {other.send(Message("Late", b"x")).queue_id for _ in range(14)} == set(range(7))
    assert {store.send(Message("Late", b"x")).queue_id for _ in range(14)} == set(range(7))
    store.append(pa.record_batch({"body": [b"x"] * 7}), "Late")
    assert [end for _, end in store.queue_ranges("Late").values()] == [5] * 7


def test_a_topic_that_was_deleted_is_not_made_again_where_that_is_switched_off(scratch: Path) -> None:
    config = StoreConfig(auto_create_topic_enable=False, mapped_file_size_commit_log=16384)
    with Store.open(scratch / "strict", create=True, config=config) as store:
        store.create_topic("T")
        store.send(Message("T", b"x"))
        store._topics.delete("T")
        with pytest.raises(UnknownTopicError, match="'T'"):
            store.send(Message("T", b"x"))
        with pytest.raises(UnknownTopicError, match="'T'"):
            store.append(pa.record_batch({"body": [b"x"]}), "T")


def writer_of(store: Store) -> Writer:
    assert store._writer is not None
    return store._writer


def tags_codes(store: Store, topic: str = "T") -> list[int]:
    last = store.queue_ranges(topic)[0].max_offset
    codes: list[int] = store._log.views.queue(topic, 0).entries(0, last)["tags_code"].tolist()
    return codes


def test_a_delayed_row_gets_its_store_time_plus_the_delay_into_its_queue_entry(store: Store) -> None:
    """CommitLog#checkMessageAndReturnSize: tagsCode of the schedule queue is storeTimestamp + delay(level)."""
    writer = writer_of(store)
    encoded = writer._encoder("T").encode(pa.record_batch({"body": [b"a", b"b", b"c"], "tags": ["x", "x", None]}))
    place = encoded.schema.get_field_index("delay_ms")
    assert encoded.column(place).to_pylist() == [0, 0, 0]
    encoded = encoded.set_column(place, "delay_ms", pa.array([0, 5000, 7_200_000], pa.int64()))
    with append_lock(store._log):
        now = append(store._log, [encoded]).store_timestamp
    assert tags_codes(store) == [ord("x"), now + 5000, now + 7_200_000]


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_a_delayed_record_gets_its_store_time_plus_the_delay_into_its_queue_entry(store: Store, delay_ms: int) -> None:
    writer = writer_of(store)
    record, _ = writer._one.encode(Message("T", b"a", tags="x"), 0, store._log.clock())
    with append_lock(store._log):
        append_one(store._log, record._replace(delay_ms=delay_ms))
    assert tags_codes(store) == [store._log.writing_page.store_timestamp + delay_ms if delay_ms else ord("x")]


def test_a_unit_is_appended_only_behind_the_value_that_is_expected(store: Store) -> None:
    writer = writer_of(store)

    def step(expect: int | None, value: int) -> bool:
        encoded = writer._encoder("T").encode(pa.record_batch({"body": [b"%d" % value]}))
        unit = UnitRecord("delay", "3", value, detail={"scanned_end": 10 * value})
        appended = writer.append_unit([encoded], unit, expect=expect)
        if appended is not None:
            assert appended.queue_offsets.tolist() == [len(bodies_of(store)) - 1]
        return appended is not None

    assert not step(0, 1)
    assert store.log_range() == (0, 0)
    assert step(None, 1)
    before = store.log_range()
    assert not step(None, 2)
    assert not step(0, 2)
    assert store.log_range() == before
    with Store.open(store.path) as other:
        encoded = writer._encoder("T").encode(pa.record_batch({"body": [b"2"]}))
        assert writer_of(other).append_unit([encoded], UnitRecord("delay", "3", 2), expect=1) is not None
    assert not step(1, 3)
    assert step(2, 3)
    assert bodies_of(store) == [b"1", b"2", b"3"]
    assert writer.newest_unit("delay", "3") == UnitRecord("delay", "3", 3, detail={"scanned_end": 30})
    assert writer.newest_unit("delay", "4") is None
    assert writer.last_unit("delay", "3") == 3


def test_a_unit_may_hold_rows_for_a_system_topic(store: Store) -> None:
    writer = writer_of(store)
    host = Host.parse("127.0.0.1:10911")
    rows = pa.record_batch({"topic": ["SCHEDULE_TOPIC_XXXX"], "body": [b"x"]})
    options = EncodeOptions(store_host=host, born_host=host, now_ms=0, crc_property=True)
    encoded = encode_batch(rows, queue_ids=np.array([2], np.int32), options=options)
    assert writer.append_unit([encoded], UnitRecord("sendback", "q", 1), expect=None) is not None
    assert store._log.queue_max("SCHEDULE_TOPIC_XXXX", 2, store.log_range()[1]) == 1


@pytest.mark.parametrize("crc_property", [False, True])
def test_a_checksum_from_a_caller_does_not_make_the_record_look_damaged(
    scratch: Path, tiny: StoreConfig, crc_property: bool
) -> None:
    config = replace(tiny, enabled_append_prop_crc=crc_property)
    with Store.open(scratch / "store", create=True, config=config) as store:
        store.send(Message("T", b"x", properties={"__CRC32#": "0123456789"}))
    report = verify_store(scratch / "store")
    assert (report.status, report.problems) == ("clean", [])


def test_a_repeated_unit_is_on_disk_although_its_first_attempt_died_before_the_flush(
    scratch: Path, tiny: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever repeats it is told that it is stored, and forgets its rows."""
    config = replace(tiny, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=1_000_000)
    with Store.open(scratch / "sync", create=True, config=config) as store:
        page = store._log.writing_page
        sent = store.send(Message("T", b"x"))
        rows = pa.record_batch({"commitLogOffset": [sent.commit_log_offset], "msgId": [sent.msg_id]})
        with monkeypatch.context() as patch:
            patch.setattr(writing, "flush", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                store.retry.send_back_all("g", rows, key="k", value=1)
        assert page.flushed_end < page.appended_end
        again = store.retry.send_back_all("g", rows, key="k", value=1)
        assert again.column("commitLogOffset").null_count == 1
        assert page.flushed_end == page.appended_end
