"""Damage where messages wait, or where they go: the others are delivered, and the bad ones are named."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import CorruptionError, Message, Store, StoreConfig
from rmq_store.broker.delay.due_copies import PUT_OFF_MS
from rmq_store.broker.delay.scheduler import TRY_AGAIN_MS, Delivery
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.verify import verify_store

NOW = 1_700_000_000_000


def make_a_file(queue: Path) -> None:
    shutil.rmtree(queue)
    queue.write_text("no directory")


def cut_its_file(queue: Path) -> None:
    os.truncate(next(queue.iterdir()), 50)


def make_a_link(queue: Path) -> None:
    file = next(queue.iterdir())
    file.rename(queue.parent.parent / "elsewhere")
    file.symlink_to(queue.parent.parent / "elsewhere")


def make_a_directory(queue: Path) -> None:
    file = next(queue.iterdir())
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [make_a_file, cut_its_file, make_a_link, make_a_directory])
def test_an_unreadable_level_does_not_hold_up_the_others_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    now = NOW
    config = StoreConfig(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
                         max_index_num=64)  # fmt: skip
    with Store.open(tmp_path / "store", create=True, config=config, clock=lambda: now) as store:
        store.create_topic("Alpha", 1)
        for level in (1, 2, 3):
            store.send(Message("Alpha", b"level %d" % level, delay_level=level))
        damage(tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC / "1")
        store._log.files.clear()
        now += 60_000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due().delivered == 2
            store.send(Message("Alpha", b"level 3", delay_level=3))
            now += 60_000
            assert store.schedule.deliver_due().delivered == 1
        bodies = [body for batch in store.read("Alpha", 0, 0, 3) for body in batch.column("body").to_pylist()]
        assert bodies == [b"level 1", b"level 3", b"level 3"]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert "queue 1 of SCHEDULE_TOPIC_XXXX" in said[0]
    assert "rmq repair --queues" in said[0]


@pytest.mark.parametrize("damage", [make_a_file, cut_its_file, make_a_link, make_a_directory])
def test_a_level_whose_queue_is_put_back_is_delivered_again_by_the_same_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    """It was left alone for as long as the store was open: `rmq broker run` had to be started anew."""
    now = NOW
    config = StoreConfig(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
                         max_index_num=64)  # fmt: skip
    with Store.open(tmp_path / "store", create=True, config=config, clock=lambda: now) as store:
        store.create_topic("Alpha", 1)
        for level in (1, 2):
            store.send(Message("Alpha", b"level %d" % level, delay_level=level))
        queue = tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC / "1"
        shutil.copytree(queue, tmp_path / "sound")
        damage(queue)
        store._log.files.clear()
        now += 60_000
        with caplog.at_level(logging.WARNING):
            assert store.schedule.deliver_due() == Delivery(1, None)
            shutil.rmtree(queue, ignore_errors=True)
            queue.unlink(missing_ok=True)
            shutil.copytree(tmp_path / "sound", queue)
            now += TRY_AGAIN_MS - 1
            assert store.schedule.deliver_due().delivered == 0, "it is not asked at each look"
            now += 1
            assert store.schedule.deliver_due() == Delivery(1, None)
        assert [r["body"] for b in store.read("Alpha", 0, 0, 2) for r in b.to_pylist()] == [b"level 1", b"level 2"]
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        assert "queue 1 of SCHEDULE_TOPIC_XXXX works again" in caplog.text
        damage(queue)
        store._log.files.clear()
        now += 60_000
        store.send(Message("Alpha", b"more", queue_id=0))
        store.schedule.deliver_due()
    assert caplog.text.count("is not delivered, other queues are") == 2, "a second failure is named anew"


def test_names_that_are_no_queues_are_passed_over(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True, clock=lambda: NOW) as store:
        store.create_topic("Alpha", 1)
        store.send(Message("Alpha", b"x"))
    directory = tmp_path / "store" / "consumequeue"
    (directory / "Alpha" / "7").write_text("no directory")
    (directory / "Alpha" / "٣").mkdir()
    (directory / SCHEDULE_TOPIC).mkdir()
    (directory / SCHEDULE_TOPIC / "40").write_text("no directory")
    (directory / "lost+found").mkdir()
    (tmp_path / "store" / "pyrmq" / "progress").unlink()  # so that all queues are looked at
    with Store.open(tmp_path / "store", clock=lambda: NOW) as store:
        assert store._log.views.keys() == [("Alpha", 0)]
        assert store.schedule.deliver_due().delivered == 0


def spoil(store: Store, topic: str, queue_id: int, row: int, found: bytes, instead: bytes) -> int:
    """Change bytes of a record behind the store's back; where they lie in the first segment."""
    offset, size, _ = store._log.views.queue(topic, queue_id).entry(row)
    with store._log.segments.path(0).open("r+b") as file:
        file.seek(offset)
        at = offset + file.read(size).index(found)
        file.seek(at)
        file.write(instead)
    return at


def test_what_goes_to_a_queue_that_takes_none_waits_on_and_holds_up_nothing(
    parking: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged record at the end of one queue stopped all delayed messages and retries of every topic."""
    with parking.open() as store:
        store.create_topic("Beta", 1)
        store.send(Message("Beta", b"first"))
        place = store.send(Message("T", b"newest of T-0", queue_id=0)).commit_log_offset
        parking.park(store, 1, [b"a0", b"a1"], queue_id=[0, 1])
        parking.park(store, 1, [b"b"], topic="Beta")
        parking.park(store, 2, [b"c0", b"c1"], queue_id=[0, 1])
        parking.park_until(store, parking.now_ms + 5000, [b"d0", b"d1"], queue_id=[0, 1])
        at = spoil(store, "T", 0, 0, place.to_bytes(8, "big"), b"\x7f" * 8)
        parking.now_ms += 10_000
        with caplog.at_level(logging.ERROR):
            delivery = store.schedule.deliver_due()
            assert delivery == Delivery(4, parking.now_ms + PUT_OFF_MS)
            assert parking.bodies(store, "T", 1) == [b"a1", b"c1", b"d1"]
            assert parking.bodies(store, "Beta") == [b"first", b"b"]
            assert store.schedule.deliver_due() == Delivery(0, delivery.next_due_ms)
            parking.now_ms += PUT_OFF_MS
            assert store.schedule.deliver_due() == Delivery(0, parking.now_ms + PUT_OFF_MS)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1, said
        assert "T-0 waits on" in said[0]
        assert str(place) in said[0]
        with store._log.segments.path(0).open("r+b") as file:
            file.seek(at)
            file.write(place.to_bytes(8, "big"))
        parking.now_ms += PUT_OFF_MS
        assert store.schedule.deliver_due() == Delivery(3, None)
        assert sorted(parking.bodies(store, "T", 0)) == [b"a0", b"c0", b"d0", b"newest of T-0"]
        told = {name: parking.rows(store, "T", 0)[1]["properties"] for name in ("REAL_TOPIC", "REAL_QID")}
        assert [dict(properties)[name] for name, properties in told.items()] == ["T", "0"]
    assert verify_store(parking.root).problems == []


def test_a_message_that_has_no_room_to_wait_on_stops_its_level_and_no_other(
    parking: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A time to wait for takes 27 bytes of its properties; it must not be lost for that."""
    with parking.open() as store:
        store.send(Message("T", b"x", queue_id=1))
        place = store.send(Message("T", b"newest of T-0", queue_id=0)).commit_log_offset
        parking.park(store, 1, [b"full"], properties={"big": "x" * 32_666})
        parking.park(store, 2, [b"other"], queue_id=1)
        at = spoil(store, "T", 0, 0, place.to_bytes(8, "big"), b"\x7f" * 8)
        parking.now_ms += 10_000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due().delivered == 1
            for _ in range(3):
                assert store.schedule.deliver_due().delivered == 0
                parking.now_ms += TRY_AGAIN_MS
        assert parking.bodies(store, "T", 1) == [b"x", b"other"]
        assert store.last_unit("delay", "1") is None
        assert len(caplog.records) == 2, "each is named once, however often it is tried"
        with store._log.segments.path(0).open("r+b") as file:
            file.seek(at)
            file.write(place.to_bytes(8, "big"))
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store, "T", 0) == [b"newest of T-0", b"full"]
    assert [text in caplog.text for text in ("T-0 waits on", "queue 0 of SCHEDULE_TOPIC_XXXX is not")] == [True, True]


def test_a_unit_that_is_refused_for_another_reason_is_told_to_the_caller(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 1
        parking.park(store, 1, [b"b"])
        spoil(store, "rmq_sys_pyrmq_units", 0, 1, b"rmq_sys_pyrmq_units", b"rmq_sys_pyrmq_unitz")
        parking.now_ms += 1000
        with pytest.raises(CorruptionError):
            store.schedule.deliver_due()


@pytest.mark.parametrize(("found", "instead"), [(b"\x01OrdersT\x02", b"\x01OrdersU\x02"), (b"big\x01x", b"bog\x01x")])
def test_damaged_properties_are_not_laundered(
    parking: Any, caplog: pytest.LogCaptureFixture, found: bytes, instead: bytes
) -> None:
    """One bit made OrdersU of OrdersT, and the copy that went there had a right checksum."""
    with parking.open() as store:
        parking.park(store, 1, [b"good", b"bad"], topic="OrdersT", properties={"big": "x"})
        spoil(store, SCHEDULE_TOPIC, 0, 1, found, instead)
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store, "OrdersT", 0) == [b"good"]
        assert store.queue_range("OrdersU", 0) == (0, 0)
    assert "cannot be delivered: the frame does not have the CRC of its CRC property" in caplog.text


def test_a_record_that_lost_its_checksum_is_damaged_where_it_must_have_one(
    parking: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with parking.open() as first, parking.open() as store:
        assert store._log.crc_from is None, "the other one has judged the log"
        parking.park(store, 1, [b"good", b"bad"])
        spoil(store, SCHEDULE_TOPIC, 0, 1, b"__CRC32#\x01", b"another#\x01")
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(first) == [b"good"]
    assert "no CRC property" in caplog.text


@pytest.mark.parametrize("queue_id", [65_536, 999_999_999])
def test_a_queue_that_no_topic_can_have_is_no_target(
    parking: Any, caplog: pytest.LogCaptureFixture, queue_id: int
) -> None:
    """Queue 999999999 among twelve topics asked for an array of 41 GiB, at every look."""
    with parking.open() as store:
        for number in range(12):
            parking.park(store, 1, [b"%d" % number], topic=f"T{number}")
        parking.park(store, 1, [b"far"], topic="T0", queue_id=queue_id)
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(12, None)
        assert store.schedule.deliver_due() == Delivery(0, None)
    assert f"cannot go to 'T0', queue '{queue_id}'" in caplog.text
