"""Timers that were taken back: never delivered, whatever else happens; all others are."""

from __future__ import annotations

import base64
import itertools
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq_store import Message, ResponseError, Store, StoreError, UnknownTopicError, UsageError
from rmq_store.broker.delay import recalls
from rmq_store.broker.delay.backlog import Backlog
from rmq_store.broker.delay.due_copies import DueCopyReader
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.broker.delay.timer_queue import TimerQueue
from rmq_store.broker.write.writer import Writer
from rmq_store.files import durable
from rmq_store.files.locks import state_page
from rmq_store.format.text.names import PYRMQ_RECALLED_TOPIC
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.verify import verify_store

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def timer(parking: Any, store: Store, body: bytes, wait_ms: int = MINUTE, **fields: Any) -> str:
    """Send a timer; its recall handle."""
    message = Message("T", body, deliver_timestamp_ms=parking.now_ms + wait_ms, queue_id=0, **fields)
    sent = store.send(message, as_given=True)
    assert sent.recall_handle is not None
    return sent.recall_handle


def refused(store: Store, handle: str, topic: str = "T") -> str:
    with pytest.raises(ResponseError) as caught:
        store.recall_message(topic, handle)
    assert caught.value.response_code == 604
    return str(caught.value)


# -- handles ----------------------------------------------------------------------------------------------------------


def test_a_handle_is_that_of_rocketmq(parking: Any) -> None:
    due_ms = parking.now_ms + MINUTE
    with parking.open() as store:
        sent = store.send(Message("T", b"x", deliver_timestamp_ms=due_ms))
        assert sent.recall_handle is not None
        text = base64.urlsafe_b64decode(sent.recall_handle).decode()
        assert text == f"v1 T {store.broker_name} {due_ms} {sent.msg_id}"
        assert RecallHandle.parse(sent.recall_handle) == RecallHandle("T", store.broker_name, due_ms, sent.msg_id)


def test_only_messages_that_wait_for_a_time_have_one(parking: Any) -> None:
    with parking.open() as store:
        messages = [
            Message("T", b"now"), Message("T", b"level", delay_level=1),
            Message("T", b"past", deliver_timestamp_ms=parking.now_ms - 1),
            Message("T", b"timer", deliver_timestamp_ms=parking.now_ms + 1),
        ]  # fmt: skip
        expected = [False, False, False, True]
        assert [store.send(one).recall_handle is not None for one in messages] == expected
        assert [one.recall_handle is not None for one in store.send_all(messages)] == expected
        assert [one.recall_handle for one in store.send_all(messages[:2])] == [None, None]


@pytest.mark.parametrize("text", ["", "x", "\u00e4", "djE=", base64.urlsafe_b64encode(b"v2 T b 1 id").decode(),
                                  base64.urlsafe_b64encode(b"v1 T b x id").decode(),
                                  base64.urlsafe_b64encode(b"v1 T b 1\xff id").decode(), "A" * 100_000])  # fmt: skip
def test_a_text_that_is_no_handle_is_refused(parking: Any, text: str) -> None:
    with parking.open() as store, pytest.raises(UsageError, match="recall handle"):
        store.recall_message("T", text)


@pytest.mark.parametrize("wrong", [None, 5, b"x", "\ud800", ["x"]])
def test_values_of_other_types_are_refused_by_an_error_of_ours(parking: Any, wrong: Any) -> None:
    with parking.open() as store:
        handle = timer(parking, store, b"kept")
        for arguments in ((wrong, handle), ("T", wrong)):
            with pytest.raises(StoreError):
                store.recall_message(*arguments)


def test_a_handle_of_another_topic_broker_or_message_takes_nothing_back(parking: Any) -> None:
    with parking.open() as store:
        store.create_topic("Other", 1)
        known = RecallHandle.parse(timer(parking, store, b"kept"))
        assert "topic not match" in refused(store, str(known), "Other")
        assert "no such timer" in refused(store, str(replace(known, topic="Other")), "Other")
        assert "no handle of broker" in refused(store, str(replace(known, broker_name="b")))
        assert "no such timer" in refused(store, str(replace(known, message_id="0")))
        assert "no such timer" in refused(store, str(replace(known, deliver_ms=known.deliver_ms + 1)))
        with pytest.raises(UnknownTopicError):
            store.recall_message("Missing", str(replace(known, topic="Missing")))
        parking.now_ms += MINUTE
        assert store.schedule.deliver_due() == Delivery(1, None)


# -- deliveries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_ms", [SECOND, 30 * MINUTE, 10 * HOUR, 2 * DAY])
def test_a_timer_that_was_taken_back_is_never_delivered(parking: Any, wait_ms: int) -> None:
    with parking.open() as store:
        before = timer(parking, store, b"before", wait_ms)
        taken = timer(parking, store, b"taken", wait_ms)
        timer(parking, store, b"kept", wait_ms + 1)
        assert store.schedule.deliver_due().delivered == 0  # all of them are known by now
        assert store.recall_message("T", taken) == RecallHandle.parse(taken).message_id
        assert store.recall_message("T", before) == RecallHandle.parse(before).message_id
        assert store.schedule.deliver_due() == Delivery(0, parking.now_ms + wait_ms + 1)
        assert store.delay_backlogs() == [Backlog(None, 1, parking.now_ms + wait_ms + 1)]
        assert store.backlog_by_topic() == {"T": 1}
        parking.now_ms += wait_ms
        assert store.schedule.deliver_due().delivered == 0
        parking.now_ms += 1
        assert store.schedule.deliver_due() == Delivery(1, None)
    with parking.open() as store:
        parking.now_ms += 3 * DAY
        assert store.schedule.deliver_due() == Delivery(0, None)
        assert parking.bodies(store) == [b"kept"]
    assert verify_store(parking.root).status == "clean"


@pytest.mark.parametrize("rebuild", [False, True])
def test_it_holds_in_a_process_that_opens_the_store_later(parking: Any, rebuild: bool) -> None:
    with parking.open() as store:
        handles = [timer(parking, store, b"%d" % number) for number in range(10)]
        for handle in handles[::2]:
            store.recall_message("T", handle)
    parking.now_ms += MINUTE
    with parking.open(rebuild_views=rebuild) as store:
        assert store.schedule.deliver_due() == Delivery(5, None)
        assert parking.bodies(store) == [b"1", b"3", b"5", b"7", b"9"]


def test_a_timer_that_is_due_can_be_taken_back_until_it_was_delivered(parking: Any) -> None:
    with parking.open() as store:
        taken, gone = timer(parking, store, b"taken"), timer(parking, store, b"gone", SECOND)
        parking.now_ms += SECOND
        store.schedule.deliver_due()
        assert "it was delivered" in refused(store, gone)
        parking.now_ms += HOUR
        store.recall_message("T", taken)
        assert store.schedule.deliver_due() == Delivery(0, None)
        assert parking.bodies(store) == [b"gone"]


def test_a_repeated_recall_does_nothing_and_succeeds(parking: Any) -> None:
    with parking.open() as store:
        taken = timer(parking, store, b"taken")
        timer(parking, store, b"kept")
        for _ in range(2):
            store.recall_message("T", taken)
        parking.now_ms += HOUR
        store.schedule.deliver_due()
        store.recall_message("T", taken)
        assert store.queue_range(PYRMQ_RECALLED_TOPIC, 0).max_offset == 1
    with parking.open() as store:
        store.recall_message("T", taken)


def test_recalls_whose_time_has_passed_are_forgotten_and_answered_as_before(parking: Any) -> None:
    with parking.open() as store:
        old = [timer(parking, store, b"%d" % number) for number in range(3)]
        timer(parking, store, b"kept")
        for handle in old:
            store.recall_message("T", handle)
        parking.now_ms += HOUR
        store.schedule.deliver_due()
        new = timer(parking, store, b"new")
        for handle in (new, *old, new):
            store.recall_message("T", handle)
        kept = sum(len(recalled.offsets) for recalled in store._recalls._recalled)
        assert kept == 1
        parking.now_ms += HOUR
        store.schedule.deliver_due()
        assert parking.bodies(store) == [b"kept"]


def test_all_copies_of_a_send_that_was_repeated_are_taken_back(parking: Any) -> None:
    with parking.open() as store:
        for _ in range(2):
            taken = timer(parking, store, b"taken", properties={"UNIQ_KEY": "U"})
        store.recall_message("T", taken)
        parking.now_ms += MINUTE
        assert store.schedule.deliver_due() == Delivery(0, None)


def test_many_are_taken_back_among_many(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.broker.delay.recalled._STEP", 7)
    monkeypatch.setattr("rmq_store.broker.delay.scheduler.CHUNK_ROWS", 5)
    with parking.open() as store:
        store.schedule._timers[:] = [
            TimerQueue(store._log, store._writer, store._queues, queue_id, rows_max=6) for queue_id in range(4)
        ]
        store.schedule._lanes = {
            **{lane: path for lane, path in store.schedule._lanes.items() if not isinstance(lane, TimerQueue)},
            **{one: store.schedule._queue("rmq_sys_pyrmq_timer", n) for n, one in enumerate(store.schedule._timers)},
        }
        handles = [timer(parking, store, b"%02d" % number, SECOND + number % 10) for number in range(60)]
        for number, handle in enumerate(handles):
            if number % 3:
                store.recall_message("T", handle)
        parking.now_ms += SECOND + 5
        store.schedule.deliver_due()
        parking.now_ms += 10
        assert store.schedule.deliver_due().next_due_ms is None
        assert sorted(parking.bodies(store)) == [b"%02d" % number for number in range(0, 60, 3)]


# -- at once ----------------------------------------------------------------------------------------------------------


def test_a_recall_in_the_middle_of_a_delivery_holds(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with parking.open() as store, parking.open() as other:
        timer(parking, store, b"first", SECOND)
        parking.now_ms += SECOND
        store.schedule.deliver_due()
        taken = timer(parking, store, b"taken")
        timer(parking, store, b"kept")
        parking.now_ms += MINUTE
        restore = DueCopyReader.restore

        def recall_first(self: Any, *arguments: Any) -> Any:
            monkeypatch.setattr(DueCopyReader, "restore", restore)
            other.recall_message("T", taken)
            return self.restore(*arguments)

        monkeypatch.setattr(DueCopyReader, "restore", recall_first)
        assert store.schedule.deliver_due().delivered == 1
        assert parking.bodies(store) == [b"first", b"kept"]


def test_a_delivery_in_the_middle_of_a_recall_is_told(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with parking.open() as store, parking.open() as other:
        taken = timer(parking, store, b"gone")
        parking.now_ms += MINUTE
        encode = recalls.system_records

        def deliver_first(*arguments: Any) -> Any:
            other.schedule.deliver_due()
            return encode(*arguments)

        monkeypatch.setattr(recalls, "system_records", deliver_first)
        assert "it was delivered" in refused(store, taken)
        assert parking.bodies(store) == [b"gone"]


def test_a_recall_that_is_not_on_disk_yet_is_seen_by_a_delivery(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the delivery comes before the disk, and the recall is acknowledged behind it."""
    sync = replace(parking, root=parking.root.parent / "sync")
    sync.config = replace(parking.config, flush_disk_type="SYNC_FLUSH")
    with sync.open() as store:
        store.create_topic("T", queue_count=1)
        taken = timer(sync, store, b"taken")
        monkeypatch.setattr(Writer, "_flush_appended", lambda self, end: None)
        store.recall_message("T", taken)
        sync.now_ms += MINUTE
        assert store.schedule.deliver_due().delivered == 0
        monkeypatch.undo()
        store.flush()
        assert store.schedule.deliver_due() == Delivery(0, None)


# -- crashes and damage -----------------------------------------------------------------------------------------------


@pytest.fixture
def memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of the state page count as operations."""
    set_word = state_page._Word.__set__

    def counted_word(word: Any, page: Any, value: int) -> None:
        durable.before("word", str(word._number))
        set_word(word, page, value)

    monkeypatch.setattr(state_page._Word, "__set__", counted_word)


@pytest.mark.usefixtures("memory_too")
def test_a_recall_killed_at_any_operation_holds_or_was_not_acknowledged(parking: Any) -> None:
    with parking.open() as store:
        handles = [timer(parking, store, b"%d" % number) for number in range(200)]
    acknowledged = 0
    for k in itertools.count(1):
        if os.fork() == 0:
            store = parking.open()
            left = itertools.count(k, -1)
            durable.hook = lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(left) == 1 else None  # noqa: B023
            store.recall_message("T", handles[k])
            os._exit(0)
        acknowledged = os.waitstatus_to_exitcode(os.wait()[1])
        if acknowledged == 0:
            break
        assert acknowledged == -signal.SIGKILL
    assert k > 5
    with parking.open() as store:
        store.recall_message("T", handles[0])
        parking.now_ms += MINUTE
        store.schedule.deliver_due()
        found = parking.bodies(store)
        assert len(set(found)) == len(found) and not {b"0", b"%d" % k} & set(found)
        assert set(found) >= {b"%d" % number for number in range(k + 1, 200)}
    assert verify_store(parking.root).status == "clean"


def test_a_damaged_record_is_named_and_the_others_hold(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    with parking.open() as store:
        handles = [timer(parking, store, b"%d" % number) for number in range(5)]
        for handle in handles[:3]:
            store.recall_message("T", handle)
        [place] = [
            row["commitLogOffset"] for row in parking.rows(store, PYRMQ_RECALLED_TOPIC, 0) if row["queueOffset"] == 1
        ]
    with (parking.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(place + 100)
        old = file.read(4)
        file.seek(place + 100)
        file.write(bytes(byte ^ 255 for byte in old))
    parking.now_ms += MINUTE
    with caplog.at_level(logging.ERROR), parking.open() as store:
        store.schedule.deliver_due()
        assert parking.bodies(store) == [b"1", b"3", b"4"]
    assert f"record 1 of {PYRMQ_RECALLED_TOPIC}-0 is damaged" in caplog.text


def test_timers_wait_while_the_queue_of_recalls_cannot_be_read(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    with parking.open() as store:
        taken, _ = timer(parking, store, b"taken"), timer(parking, store, b"kept")
        timer(parking, store, b"other queue", 2 * MINUTE)
        store.recall_message("T", taken)
    queue = parking.root / "consumequeue" / PYRMQ_RECALLED_TOPIC / "0"
    aside = parking.root.parent / "aside"
    parking.now_ms += 2 * MINUTE
    with parking.open() as store:
        queue.rename(aside)
        queue.write_bytes(b"")
        with caplog.at_level(logging.ERROR):
            store.schedule.deliver_due()
        assert parking.bodies(store) == [b"other queue"]
        queue.unlink()
        aside.rename(queue)
    with parking.open() as store:
        store.schedule.deliver_due()
        assert parking.bodies(store) == [b"other queue", b"kept"]
