"""Delivery by delay levels: what is due goes back where it wanted to go, once, as ScheduleMessageService does it."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Message, ReadOnlyError, Store, StoreConfig, UsageError
from rmq_store.broker.delay import scheduler
from rmq_store.broker.delay.delay_level import count_due
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.files.locks.lock import Exclusive, OfdLock
from rmq_store.format.tables.config_json import loads
from rmq_store.log.views.consume_queue import ConsumeQueue
from rmq_store.verify import verify_store

LEVELS_S = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def delay_offsets(root: Path) -> dict[int, int]:
    table = loads((root / "config" / "delayOffset.json").read_bytes())["offsetTable"]
    return {int(level): offset for level, offset in table.items()}


# -- when --------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C05", "C07", "C10")
def test_each_of_the_18_levels_delivers_at_its_time_and_not_a_millisecond_before(parking: Any) -> None:
    """001: the tags code of the schedule queue is the due time; `messageDelayLevel` gives the delays."""
    start_ms = parking.now_ms
    with parking.open() as store:
        for level in range(1, 19):
            parking.park(store, level, [b"%d" % level])
        seen: list[bytes] = []
        for level, delay_s in enumerate(LEVELS_S, start=1):
            parking.now_ms = start_ms + delay_s * 1000 - 1
            assert store.schedule.deliver_due() == Delivery(0, start_ms + delay_s * 1000)
            parking.now_ms += 1
            later = start_ms + LEVELS_S[level] * 1000 if level < 18 else None
            assert store.schedule.deliver_due() == Delivery(1, later)
            seen.append(b"%d" % level)
            assert parking.bodies(store) == seen
            stored = parking.rows(store, "T", 0)[-1]["storeTimestamp"]
            assert stored.timestamp() * 1000 == parking.now_ms


@pytest.mark.statement("B06", "B08", "C13")
def test_a_ladder_of_16_retries_takes_4_h_45_min_40_s(parking: Any) -> None:
    """000, 002: levels 3 to 18, each parked when the one before was delivered."""
    start_ms = parking.now_ms
    with parking.open() as store:
        for level in range(3, 19):
            parking.park(store, level, [b"%d" % level])
            due = store.schedule.deliver_due().next_due_ms
            assert due is not None
            parking.now_ms = due
            assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"%d" % level for level in range(3, 19)]
    assert parking.now_ms - start_ms == 17_140_000


@pytest.mark.statement("C07")
def test_the_levels_are_those_of_the_stores_message_delay_level(scratch: Path, parking: Any) -> None:
    other = replace(parking, root=scratch / "other", config=replace(parking.config, message_delay_level="7s 1d"))
    with other.open() as store:
        store.create_topic("T")
        other.park(store, 1, [b"seven"])
        other.park(store, 2, [b"day"])
        other.now_ms += 7000
        assert store.schedule.deliver_due() == Delivery(1, parking.now_ms + 86_400_000)
        other.now_ms += 86_400_000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert other.bodies(store) == [b"seven", b"day"]


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        ([], 0),
        ([999], 1),
        ([1000], 1),
        ([1001], 0),
        ([1500], 0),  # as far ahead as the level waits: from a clock that stands still
        ([1501], 1),
        ([1000, 1001, 900], 1),  # queue order: behind one that waits nothing is delivered
        ([2000, 900, 1500], 2),
    ],
)
def test_what_is_due_by_the_queue_entries(due: list[int], expected: int) -> None:
    """correctDeliverTimestamp: level of 500 ms, now is 1000. Times too far ahead count as now."""
    assert count_due(np.array(due, np.int64), 1000, 1000, 500) == expected


def test_what_was_stored_after_the_look_began_is_not_taken_for_too_far_ahead() -> None:
    """The look began at 1000, the queue's entries were there at 1020."""
    assert count_due(np.array([900, 1515, 1520], np.int64), 1000, 1020, 500) == 1
    assert count_due(np.array([900, 1010], np.int64), 1000, 1020, 500) == 1, "what comes due meanwhile is left"
    assert count_due(np.array([900, 1521, 1520], np.int64), 1000, 1020, 500) == 2, "from before the clock was set back"


def test_messages_parked_before_the_clock_was_set_back_do_not_wait_longer_than_their_level(parking: Any) -> None:
    """ScheduleMessageService#correctDeliverTimestamp."""
    with parking.open() as store:
        parking.park(store, 3, [b"a"])
        assert store.schedule.deliver_due().delivered == 0
        parking.now_ms -= 3_600_000
        assert store.schedule.deliver_due() == Delivery(1, None)


@pytest.mark.parametrize("stored_at", [1, 2, 3])
@pytest.mark.parametrize("way", ["send", "send back"])
def test_messages_stored_while_a_look_runs_wait_their_whole_delay(parking: Any, stored_at: int, way: str) -> None:
    """Whenever the look asks for the time, somebody stores a message just after that. Java asks for each entry."""
    with parking.open() as other:
        other.create_topic("%RETRY%g", queue_count=1)
        failed = other.send(Message("T", b"failed", queue_id=1)).commit_log_offset

        def store_one() -> None:
            if way == "send":
                other.send(Message("T", b"late", delay_level=5, queue_id=0))
            else:
                other.retry.send_back("g", failed, delay_level=5)

        parking.park(other, 5, [b"due"])
        parking.now_ms += 60_000
        asked_before = -1  # it is not the look that asks

        def clock() -> int:
            nonlocal asked_before
            now_ms: int = parking.now_ms
            if asked_before >= 0:
                asked_before += 1
                if asked_before == stored_at:
                    parking.now_ms += 5
                    store_one()
            return now_ms

        with Store.open(parking.root, config=parking.config, clock=clock) as looking:
            asked_before = 0
            assert looking.schedule.deliver_due().delivered == 1
            assert asked_before >= stored_at
            asked_before = -1
            assert parking.bodies(other, queue_id=0) == [b"due"]
            stored_ms = parking.now_ms
            parking.now_ms += 59_999
            assert looking.schedule.deliver_due() == Delivery(0, stored_ms + 60_000)
            parking.now_ms += 1
            assert looking.schedule.deliver_due().delivered == 1
        where = ("T", 0) if way == "send" else ("%RETRY%g", 0)
        assert parking.bodies(other, *where)[-1] == (b"late" if way == "send" else b"failed")


def test_levels_do_not_wait_for_each_other_but_a_level_keeps_its_order(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 4, [b"slow"])
        parking.now_ms += 25_000
        parking.park(store, 2, [b"fast 1", b"fast 2"])
        parking.now_ms += 1000
        parking.park(store, 2, [b"fast 3"])
        parking.now_ms += 4000
        assert store.schedule.deliver_due().delivered == 3
        parking.now_ms += 1000
        store.schedule.deliver_due()
        assert sorted(parking.bodies(store)[:3]) == [b"fast 1", b"fast 2", b"slow"]
        assert [body for body in parking.bodies(store) if body != b"slow"] == [b"fast 1", b"fast 2", b"fast 3"]


# -- what --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crc_property", [True, False], ids=["crc", "no crc"])
@pytest.mark.statement("C04", "C06", "B14")
def test_a_delivered_message_is_the_parked_one_under_its_real_topic(
    scratch: Path, parking: Any, crc_property: bool
) -> None:
    """ScheduleMessageService#messageTimeUp. Storage host too is the old one."""
    here = replace(
        parking, root=scratch / "other", config=replace(parking.config, enabled_append_prop_crc=crc_property)
    )
    properties = {
        "RETRY_TOPIC": "TopicJ", "ORIGIN_MESSAGE_ID": "0A010203000000000000002A", "WAIT": "false", "KEYS": "k1 k2",
        "CLUSTER": "c", "user": "wert ü",
    }  # fmt: skip
    with here.open() as store:
        group = "%RETRY%CG1"
        store.create_topic(group, queue_count=1)
        columns = {"flag": 7, "reconsumeTimes": 2, "sysFlag": 8}
        here.park(store, 4, [b"body"], topic=group, properties=properties, **columns)
        here.now_ms += 30_000
        assert store.schedule.deliver_due().delivered == 1
        (before,) = here.rows(store, SCHEDULE, 3)
        (after,) = here.rows(store, group, 0)
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"topic", "queueId", "storeTimestamp", "commitLogOffset"}
        assert (after["topic"], after["queueId"], after["queueOffset"]) == (group, 0, 0)
        assert after["storeHost"] == "10.1.2.3:10911"
        assert dict(after["properties"])["DELAY"] == "4"
        assert dict(after["properties"])["REAL_TOPIC"] == group
        # The consume queue has the hash of the tag again (2.3, last column).
        assert store._log.views.queue(group, 0).entry(0)[2] == 2598919
        raw = [store._log.message_at(row["commitLogOffset"]) for row in (before, after)]
        assert raw[0] is not None
        assert raw[1] is not None
        assert raw[0].properties == raw[1].properties
        assert raw[1].prepared_transaction_offset == 0
    report = verify_store(here.root)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems


def test_a_topic_that_is_in_no_table_gets_its_messages_all_the_same(parking: Any) -> None:
    """Java's put does not look into topics.json."""
    with parking.open() as store:
        parking.park(store, 1, [b"x"], topic="Unheard", queue_id=5)
        parking.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 1
        assert "Unheard" not in store.topics()
        assert parking.bodies(store, "Unheard", 5) == [b"x"]


def test_a_long_retry_topic_gets_a_frame_of_the_second_version(parking: Any) -> None:
    with parking.open() as store:
        topic = "%RETRY%" + "g" * 120
        parking.park(store, 1, [b"x"] * 3, topic=topic + "x" * 100)
        parking.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 3
        assert parking.bodies(store, topic + "x" * 100, 0) == [b"x"] * 3
    (problem,) = verify_store(parking.root).problems  # no table takes a name of that length
    assert "topics.json" in problem.path


def spoil(store: Store, queue_id: int, queue_offset: int, position: int, data: bytes) -> None:
    offset = store._log.views.queue(SCHEDULE, queue_id).entry(queue_offset)[0]
    store._log.segments.write(offset + position, data)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"REAL_TOPIC": "../../escape"}, "cannot go to '../../escape', queue '0'"),
        ({"REAL_TOPIC": "rmq_sys_pyrmq_units"}, "cannot go to 'rmq_sys_pyrmq_units'"),
        ({"REAL_TOPIC": "rmq_sys_pyrmq_timer"}, "cannot go to"),
        ({"REAL_TOPIC": SCHEDULE}, "cannot go to"),
        ({"REAL_TOPIC": "rmq_sys_pyrmq_redriven"}, "cannot go to"),
        ({"REAL_TOPIC": "x" * 128}, "cannot go to"),
        ({"REAL_QID": "-1"}, "queue '-1'"),
        ({"REAL_QID": "1e3"}, "queue '1e3'"),
        ({"REAL_QID": "9" * 30}, "queue '99999999999999999999'"),
    ],
)
def test_a_message_that_belongs_nowhere_is_told_of_and_passed_over(
    parking: Any, properties: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A REAL_TOPIC comes from the disk and becomes a directory. That of units would forge one; that of redrives would
    say that dead letters were moved, which then never are.
    """
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.park(store, 1, [b"bad"], properties=properties)
        parking.park(store, 1, [b"b"])
        parking.now_ms += 1000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due() == Delivery(2, None)
        assert parking.bodies(store) == [b"a", b"b"]
    (record,) = caplog.records
    assert f"message 1 of {SCHEDULE}-0" in record.getMessage()
    assert reason in record.getMessage()
    assert not (parking.root.parent / "escape").exists()


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (0, b"\0\0\0\0", "another total size"),
        (4, b"\xde\xad\xbe\xef", "no message magic"),
        (28, b"\0" * 8, "another physical offset"),
        (12, b"\0\0\0\x09", "its place holds another record"),
        (20, b"\0" * 7 + b"\x09", "its place holds another record"),
        (88, b"?", "the frame does not have the CRC of its CRC property"),
    ],
)
def test_a_damaged_record_is_told_of_and_does_not_hold_up_its_level(
    parking: Any, position: int, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a", b"bad", b"b"])
        spoil(store, 0, 1, position, data)
        parking.now_ms += 1000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due() == Delivery(2, None)
        assert store.schedule.deliver_due() == Delivery(0, None)
        assert parking.bodies(store) == [b"a", b"b"]
    assert [reason in record.getMessage() for record in caplog.records] == [True], caplog.text


def test_a_unit_of_nothing_but_damaged_records_is_passed_over(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "CHUNK_ROWS", 2)
    with parking.open() as store:
        parking.park(store, 1, [b"a", b"b", b"c"])
        spoil(store, 0, 0, 4, b"\0\0\0\0")
        spoil(store, 0, 1, 4, b"\0\0\0\0")
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert store.last_unit("delay", "1") == 3
        assert parking.bodies(store) == [b"c"]


def test_half_messages_are_passed_over_as_java_does(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    """ScheduleMessageService#executeOnTimeUp: real topic = half topic -> skip."""
    with parking.open() as store:
        parking.park(store, 1, [b"half"], topic="RMQ_SYS_TRANS_HALF_TOPIC")
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0) == (0, 0)
    assert not caplog.records


def test_records_that_retention_took_are_passed_over(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    with parking.open() as store:
        for number in range(40):
            parking.park(store, 2, [b"%02d" % number * 2000])
        first, second = sorted((parking.root / "commitlog").iterdir())[:2]
        kept = store._log.views.queue(SCHEDULE, 1).entries(0, 40)["commit_log_offset"].astype(int)
    first.unlink()
    with parking.open() as store:
        parking.now_ms += 5000
        expected = [b"%02d" % number * 2000 for number in range(40) if kept[number] >= int(second.name)]
        assert 0 < len(expected) < 40
        assert store.schedule.deliver_due() == Delivery(len(expected), None)
        assert parking.bodies(store) == expected
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_queue_files_that_retention_took_are_passed_over(parking: Any) -> None:
    with parking.open() as store:
        for number in range(250):
            parking.park(store, 2, [b"%03d" % number + b"." * 600])
    for path in sorted((parking.root / "commitlog").iterdir())[:2]:
        path.unlink()
    parking.now_ms += 5000
    with parking.open() as store:
        first = store.queue_range(SCHEDULE, 1).min_offset
        assert 100 <= first < 200
        (parking.root / "consumequeue" / SCHEDULE / "1" / ("0" * 20)).unlink()
        assert store.schedule.deliver_due() == Delivery(250 - first, None)
        assert [int(body[:3]) for body in parking.bodies(store)] == list(range(first, 250))


def test_retention_at_the_very_moment_of_a_look_is_looked_at_again(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parking.open() as store:
        parking.park(store, 2, [b"a"])
        parking.now_ms += 5000
        with monkeypatch.context() as patch:

            def gone(*arguments: object) -> None:
                raise FileNotFoundError

            patch.setattr(ConsumeQueue, "entries", gone)
            delivery = store.schedule.deliver_due()
            assert delivery.delivered == 0
            assert delivery.next_due_ms is not None
            assert delivery.next_due_ms <= parking.now_ms
        assert store.schedule.deliver_due() == Delivery(1, None)


def test_a_record_whose_copy_no_segment_can_hold_is_told_of(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its real topic has a longer name than the schedule topic."""
    with parking.open() as store:
        parking.park(store, 1, [b"x" * 65_040], topic="%RETRY%" + "g" * 248)
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"a"]
    assert "too large" in caplog.text


def test_a_record_with_no_room_for_a_checksum_behind_its_properties_is_told_of(
    scratch: Path, parking: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Parked by a broker without the property, 32,767 bytes of properties leave no place for it."""
    here = replace(parking, root=scratch / "other", config=replace(parking.config, enabled_append_prop_crc=False))
    with here.open() as store:
        store.create_topic("T")
        here.park(store, 1, [b"a"], properties={"long": "x" * 32_700})
        here.park(store, 1, [b"b"])
    settings = json.loads((here.root / "pyrmq" / "store.json").read_text())
    settings["settings"]["enabledAppendPropCRC"] = True
    (here.root / "pyrmq" / "store.json").write_text(json.dumps(settings))
    here.config = replace(here.config, enabled_append_prop_crc=True)
    here.now_ms += 1000
    with here.open() as store, caplog.at_level(logging.ERROR):
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert here.bodies(store) == [b"b"]
    assert "too large" in caplog.text


# -- how far -----------------------------------------------------------------------------------------------------


def test_nothing_waits_in_a_store_without_delayed_messages(parking: Any) -> None:
    with parking.open() as store:
        assert store.schedule.deliver_due() == Delivery(0, None)
        store.schedule.save_progress()
    assert not (parking.root / "config" / "delayOffset.json").exists()


@pytest.mark.statement("G05")
def test_progress_survives_and_is_written_for_a_broker(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 3, [b"a", b"b"])
        parking.park(store, 18, [b"late"])
        parking.now_ms += 10_000
        assert store.schedule.deliver_due().delivered == 2
        store.schedule.save_progress()
        assert delay_offsets(parking.root) == {3: 2}
        parking.park(store, 3, [b"c"])
        parking.now_ms += 10_000
        assert store.schedule.deliver_due().delivered == 1
    assert delay_offsets(parking.root) == {3: 3}
    before = (parking.root / "config" / "delayOffset.json").stat()
    with parking.open() as store:
        assert store.schedule.deliver_due().delivered == 0
        assert parking.bodies(store) == [b"a", b"b", b"c"]
    after = (parking.root / "config" / "delayOffset.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)  # nothing changed: not written


def test_progress_is_told_to_a_broker_only_when_it_is_on_disk(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        store.schedule.deliver_due()
        page = store._log.writing_page
        assert page.flushed_end < page.appended_end
        assert not (parking.root / "config" / "delayOffset.json").exists()
        store.schedule.save_progress()
        assert page.flushed_end == page.appended_end
        assert delay_offsets(parking.root) == {1: 1}


@pytest.mark.statement("G05")
def test_progress_is_told_to_a_broker_every_10_s(parking: Any) -> None:
    """A driver that runs for weeks and is killed: a broker must not deliver weeks of messages again
    (ScheduleMessageService saves every 10 s).
    """
    file = parking.root / "config" / "delayOffset.json"
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 9999
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert not file.exists()
        parking.now_ms += 1
        assert store.schedule.deliver_due() == Delivery(0, None)  # nothing new, but something to tell
        assert delay_offsets(parking.root) == {1: 1}
        before = file.stat()
        parking.now_ms += 60_000
        assert store.schedule.deliver_due() == Delivery(0, None)
        parking.park(store, 1, [b"b"])
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert file.stat().st_mtime_ns == before.st_mtime_ns
        parking.now_ms -= 100_000  # the clock is set back
        store.schedule.deliver_due()
        assert delay_offsets(parking.root) == {1: 2}


def test_messages_of_a_level_that_was_taken_away_come_at_their_times(scratch: Path, parking: Any) -> None:
    """Nobody asks for that level any more, but what waits in it is not forgotten."""
    with parking.open() as store:
        parking.park(store, 10, [b"six minutes"])
        parking.park(store, 2, [b"five seconds"])
    settings = parking.root / "pyrmq" / "store.json"
    data = json.loads(settings.read_text())
    data["settings"]["messageDelayLevel"] = "1s 5s"
    settings.write_text(json.dumps(data))
    with replace(parking, config=replace(parking.config, message_delay_level="1s 5s")).open() as store:
        store._log.clock = parking.clock
        parking.now_ms += 5000
        assert store.schedule.deliver_due() == Delivery(1, parking.now_ms + 355_000)
        parking.now_ms += 355_000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"five seconds", b"six minutes"]


def write_delay_offsets(root: Path, offsets: dict[int, int]) -> None:
    """As a broker writes them: keys are numbers."""
    table = ",".join(f"{level}:{offset}" for level, offset in offsets.items())
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{' + table + "}}")


def test_what_a_broker_delivered_meanwhile_is_not_delivered_again(parking: Any) -> None:
    """It moves delayOffset.json only: ahead of our newest unit."""
    with parking.open() as store:
        parking.park(store, 1, [b"ours"])
        parking.now_ms += 1000
        store.schedule.deliver_due()
        parking.park(store, 1, [b"theirs 1", b"theirs 2", b"waiting"])
        parking.now_ms += 1000
    write_delay_offsets(parking.root, {1: 3})
    with parking.open() as store:
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"ours", b"waiting"]
        assert store.last_unit("delay", "1") == 4
    assert delay_offsets(parking.root) == {1: 4}


def test_progress_beyond_the_queue_is_corrected_before_anything_new_is_parked(parking: Any) -> None:
    """A power cut took what a broker had delivered: new messages come to places that it had passed already
    (ScheduleMessageService#correctDelayOffset).
    """
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.park(store, 2, [b"b"])
    write_delay_offsets(parking.root, {1: 4, 2: 1, 7: 3, 1 << 31: 5})  # the last one is no level: left alone
    with parking.open() as store:
        assert delay_offsets(parking.root) == {1: 1, 2: 1, 7: 0, 1 << 31: 5}
        parking.park(store, 1, [b"c", b"d", b"e", b"f"])
        parking.now_ms += 5000
        assert store.schedule.deliver_due() == Delivery(4, None)
        assert parking.bodies(store) == [b"c", b"d", b"e", b"f"]


def test_progress_before_the_queue_begins_at_its_first_message(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
    write_delay_offsets(parking.root, {1: -7})
    with parking.open() as store:
        parking.now_ms += 1000
        assert store.schedule.deliver_due().delivered == 1


def test_read_only_stores_never_deliver(parking: Any, tree_hash: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
    parking.now_ms += 1000
    before = tree_hash(parking.root)
    with parking.open(read_only=True) as store, pytest.raises(ReadOnlyError):
        store.schedule.deliver_due()
    assert tree_hash(parking.root) == before


def test_a_closed_store_does_not_deliver(parking: Any) -> None:
    store = parking.open()
    kept = store.schedule
    parking.park(store, 1, [b"a"])
    store.close()
    parking.now_ms += 1000
    with pytest.raises(UsageError, match="closed"):
        _ = store.schedule
    with pytest.raises(UsageError, match="closed"):
        kept.deliver_due()


# -- how much ----------------------------------------------------------------------------------------------------


def units(store: Store) -> int:
    return store.queue_range("rmq_sys_pyrmq_units", 0).max_offset // 2


def test_units_are_bounded_by_rows_and_by_bytes(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "CHUNK_ROWS", 3)
    with parking.open() as store:
        parking.park(store, 1, [b"%d" % number for number in range(8)], queue_id=[0, 1] * 4)
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(8, None)
        assert units(store) == 3
        monkeypatch.setattr(scheduler, "CHUNK_ROWS", 100)
        monkeypatch.setattr(scheduler, "CHUNK_BYTES", 1000)
        parking.park(store, 1, [b"x" * 700] * 4)
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(4, None)
        assert units(store) == 7
        assert parking.bodies(store)[:8] == [b"0", b"2", b"4", b"6", *[b"x" * 700] * 4]


def test_a_limit_stops_a_delivery_and_the_next_one_goes_on(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a", b"b", b"c"])
        parking.park(store, 2, [b"d"])
        parking.now_ms += 5000
        assert store.schedule.deliver_due(limit=2) == Delivery(2, parking.now_ms - 4000)
        assert store.schedule.deliver_due(limit=2) == Delivery(2, None)
        assert sorted(parking.bodies(store)) == [b"a", b"b", b"c", b"d"]
        for limit in (0, -1):
            with pytest.raises(UsageError, match="at least one"):
                store.schedule.deliver_due(limit)


def test_a_look_that_finds_nothing_new_touches_no_file(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams look up to 60 times a second."""
    with parking.open() as store:
        parking.park(store, 3, [b"a"])
        expected = store.schedule.deliver_due()
        assert expected.delivered == 0
        delivery = store.schedule

        def refuse(*arguments: object) -> None:
            raise AssertionError("looked at the queues")

        with monkeypatch.context() as patch:
            patch.setattr(type(store._log), "queue_max", refuse)
            for _ in range(3):
                parking.now_ms += 3333
                assert delivery.deliver_due() == expected
        parking.now_ms += 1
        assert delivery.deliver_due().delivered == 1


# -- together ----------------------------------------------------------------------------------------------------


def test_while_another_process_delivers_a_look_returns_at_once(parking: Any) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        other = OfdLock(parking.root / "pyrmq" / "delay.lock")
        assert other.try_exclusive()
        assert store.schedule.deliver_due() == Delivery(0, parking.now_ms)
        other.close()
        assert store.schedule.deliver_due() == Delivery(1, None)


def test_a_thread_that_looks_while_another_one_delivers_returns_at_once(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parking.open() as store:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        inside, go_on = threading.Event(), threading.Event()
        append_unit = type(store._writing()).append_unit

        def slow(*arguments: Any, **options: Any) -> Any:
            inside.set()
            assert go_on.wait(30)
            return append_unit(*arguments, **options)

        monkeypatch.setattr(type(store._writing()), "append_unit", slow)
        results: list[Delivery] = []
        thread = threading.Thread(target=lambda: results.append(store.schedule.deliver_due()))
        thread.start()
        assert inside.wait(30)
        assert store.schedule.deliver_due() == Delivery(0, parking.now_ms)  # not None: something may wait
        go_on.set()
        thread.join(30)
        assert results == [Delivery(1, None)]
        assert parking.bodies(store) == [b"a"]


@pytest.mark.parametrize("moment", ["_try", "__exit__"])
def test_an_interrupt_on_the_way_in_or_out_of_the_lock_keeps_nobody_from_delivering(
    parking: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Ctrl-C at one instruction, and no thread and no process delivered any more."""
    owner = OfdLock if moment == "_try" else Exclusive
    real = getattr(owner, moment)

    def interrupted(self: Any, *arguments: Any) -> Any:
        path = self.path if moment == "_try" else self._lock.path
        if path.name == "delay.lock":
            monkeypatch.undo()
            if moment == "_try":
                assert real(self, *arguments)
            raise KeyboardInterrupt
        return real(self, *arguments)

    with parking.open() as store, parking.open() as other:
        parking.park(store, 1, [b"a"])
        parking.now_ms += 1000
        monkeypatch.setattr(owner, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.schedule.deliver_due()
        parking.park(store, 1, [b"b"])
        parking.now_ms += 1000
        assert other.schedule.deliver_due().delivered == (1 if moment == "__exit__" else 2)
        parking.park(store, 1, [b"c"])
        parking.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(1, None)
        assert parking.bodies(store) == [b"a", b"b", b"c"]


def test_without_the_lock_too_every_message_comes_once(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock saves work; that a unit follows the one that was counted on makes it exact. Two stores that both think
    that they are alone, one of which stops before its append.
    """
    with parking.open() as first, parking.open() as second:
        monkeypatch.setattr(first.schedule._lock, "exclusive_if_free", lambda: nullcontext(True))
        monkeypatch.setattr(second.schedule._lock, "exclusive_if_free", lambda: nullcontext(True))
        parking.park(first, 1, [b"a", b"b"])
        parking.park(first, 2, [b"c"])
        parking.now_ms += 5000
        writer = first._writing()
        append_unit, raced = writer.append_unit, []

        def overtaken(batches: Any, unit: Any, *, expect: int | None) -> Any:
            if not raced:
                raced.append(second.schedule.deliver_due())
            return append_unit(batches, unit, expect=expect)

        monkeypatch.setattr(writer, "append_unit", overtaken)
        assert first.schedule.deliver_due() == Delivery(0, None)
        assert raced == [Delivery(3, None)]
        assert parking.bodies(first) == [b"a", b"b", b"c"]


def test_a_store_learns_what_another_one_delivered(parking: Any) -> None:
    with parking.open() as first, parking.open() as second:
        parking.park(first, 1, [b"a"])
        due = parking.now_ms + 1000
        assert first.schedule.deliver_due() == second.schedule.deliver_due() == Delivery(0, due)
        parking.now_ms += 1000
        assert second.schedule.deliver_due() == Delivery(1, None)
        assert first.schedule.deliver_due() == Delivery(0, None)
        parking.park(first, 1, [b"b"])
        assert first.schedule.deliver_due() == Delivery(0, parking.now_ms + 1000)
        assert second.schedule.deliver_due() == Delivery(0, parking.now_ms + 1000)


def test_under_sync_flush_only_messages_that_are_on_disk_are_delivered(scratch: Path, parking: Any) -> None:
    here = replace(parking, root=scratch / "sync", config=replace(parking.config, flush_disk_type="SYNC_FLUSH"))
    with here.open() as store:
        store.create_topic("T")
        here.park(store, 1, [b"a"])
        here.park_until(store, here.now_ms + 1000, [b"b"])
        here.now_ms += 1000
        assert store.schedule.deliver_due() == Delivery(0, None)
        store.flush()
        assert store.schedule.deliver_due() == Delivery(2, None)
        page = store._log.writing_page
        assert page.flushed_end == page.appended_end
        assert here.bodies(store) == [b"a", b"b"]


# -- a broker's store --------------------------------------------------------------------------------------------

GOLDEN_LEVELS = "1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h"


def test_a_brokers_pending_messages_are_taken_over(golden: Path, working_copy: Any) -> None:
    """The golden store: level 18 and a level 25 that was clamped to it still wait; everything else was delivered."""
    root = working_copy(golden / "store")
    manifest = json.loads((golden / "manifest.json").read_text())
    pending = manifest["topics"][SCHEDULE]["queues"]["17"]["messages"]
    assert pending
    config = StoreConfig(message_delay_level=GOLDEN_LEVELS)
    known = delay_offsets(root)
    assert known[18] == 0
    stored_ms = max(message["storeTimestamp"] for message in pending)
    now = [stored_ms + 7_200_000 - 1]
    with Store.open(root, config=config, clock=lambda: now[0]) as store:
        before = {queue: (r.min_offset, r.max_offset) for queue, r in store.queue_ranges("DelayTopic").items()}
        timers = store.queue_range("rmq_sys_wheel_timer", 0)
        first = store.schedule.deliver_due()
        assert first.next_due_ms == stored_ms + 7_200_000
        now[0] += 1
        second = store.schedule.deliver_due()
        assert (first.delivered + second.delivered, second.next_due_ms) == (len(pending), None)
        delivered = [
            row
            for queue, (_, last) in before.items()
            for batch in store.read("DelayTopic", queue, last, store.queue_range("DelayTopic", queue).max_offset)
            for row in batch.to_pylist()
        ]
        assert {row["msgId"] for row in delivered} == {message["uniqKey"] for message in pending}
        by_id = {message["uniqKey"]: message for message in pending}
        for row in delivered:
            parked = by_id[row["msgId"]]
            assert dict(row["properties"]) == parked["properties"]
            assert row["queueId"] == int(parked["properties"]["REAL_QID"])
            assert row["reconsumeTimes"] == parked["reconsumeTimes"]
            assert row["bornTimestamp"].timestamp() * 1000 == parked["bornTimestamp"]
        # Messages in the broker's timer wheel are the broker's: they stay where they are.
        assert store.queue_range("rmq_sys_wheel_timer", 0) == timers
        assert timers.max_offset > 0
    assert delay_offsets(root) == {**known, 18: len(pending)}
