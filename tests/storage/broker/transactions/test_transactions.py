"""Half messages: stored, ended once whatever happens, read back after a broker, listed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, ResponseError, Store, UsageError
from rmq_store.broker.rules import transaction as rules
from rmq_store.broker.transactions import half_queue
from rmq_store.errors import ReadOnlyError
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.protocol.results import SendResult
from rmq_store.verify import verify_store

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
PROGRESS = "CID_RMQ_SYS_TRANS"
BROKER = Host.parse("10.1.2.3:10911")


def half(store: Store, body: bytes, queue_id: int = 1, **properties: str) -> SendResult:
    message = Message("T", body, tags="TagA", keys="k1", properties=properties)
    return store.transactions.prepare(message, queue_id, "pg")


def end(store: Store, sent: SendResult, *, commit: bool = True, group: str = "pg", **options: bool) -> bool:
    found = store.transactions.end(group, sent.queue_offset, sent.commit_log_offset, commit=commit, **options)
    return found is not None


def put(store: Store, topic: str, tag: str, body: bytes, properties: dict[str, str]) -> None:
    """A record as a broker writes it."""
    rows = pa.RecordBatch.from_pydict({
        "topic": [topic], "tags": [tag], "body": [body],
        "properties": pa.array([[*properties.items()]], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    options = EncodeOptions(
        store_host=BROKER, born_host=BROKER, now_ms=store.clock(), crc_property=store._log.crc_property,
        index_tags=store._log.index_tags,
    )  # fmt: skip
    with append_lock(store._log):
        append(store._log, [encode_batch(rows, queue_ids=np.zeros(1, np.int32), options=options)])


def broker_half(store: Store, body: bytes, **more: str) -> None:
    own = {"UNIQ_KEY": f"U-{body.decode()}", "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "T", "REAL_QID": "0"}
    put(store, HALF, "TagA", body, {**own, **more})


def test_a_half_message_is_stored_as_a_broker_stores_it_and_no_consumer_gets_it(parking: Any) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
        (row,) = parking.rows(store, HALF, 0)
        assert parking.bodies(store) == []
    properties = dict(row["properties"])
    assert (sent.topic, sent.queue_id, sent.queue_offset) == ("T", 1, 0)
    assert row["sysFlag"] == 0
    assert properties.pop(rules.HALF_OF) == "first"
    assert properties == {
        "UNIQ_KEY": sent.msg_id, "KEYS": "k1", "TAGS": "TagA", "TRAN_MSG": "true", "PGROUP": "pg",
        "__transactionId__": sent.msg_id, "REAL_TOPIC": "T", "REAL_QID": "1",
    }  # fmt: skip


def test_a_commit_stores_the_message_and_an_op_record_that_brokers_of_both_lines_read(parking: Any) -> None:
    with parking.open() as store:
        half(store, b"first")
        sent = half(store, b"paid")
        assert end(store, sent)
        (message,) = parking.rows(store, "T", 1)
        (op,) = parking.rows(store, OP, 0)
        stored = store.message_at(message["commitLogOffset"])
    assert (message["body"], message["sysFlag"], message["msgId"], message["tags"]) == (b"paid", 8, sent.msg_id, "TagA")
    assert stored.prepared_transaction_offset == sent.commit_log_offset
    assert rules.HALF_OF not in stored.properties
    assert stored.properties["PGROUP"] == "pg"
    assert (op["body"], op["tags"]) == (b"1", "d")  # "1," is no number to 4.9


def test_a_rollback_stores_an_op_record_only(parking: Any) -> None:
    with parking.open() as store:
        assert end(store, half(store, b"paid"), commit=False)
        assert parking.bodies(store) == []
        assert [row["body"] for row in parking.rows(store, OP, 0)] == [b"0"]
        assert store.transactions.pending() == []


@pytest.mark.parametrize("again", [True, False])
def test_a_second_end_of_a_half_message_changes_nothing(parking: Any, again: bool) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
        assert end(store, sent)
        assert not end(store, sent, commit=again)
        assert parking.bodies(store) == [b"paid"]
    with parking.open() as store:
        assert not end(store, sent, commit=again)
        assert parking.bodies(store) == [b"paid"]
        assert len(parking.rows(store, OP, 0)) == 1


def test_an_end_by_another_opener_of_the_store_is_seen(parking: Any) -> None:
    with parking.open() as store, parking.open() as other:
        sent = half(store, b"paid")
        assert len(other.transactions.pending()) == len(store.transactions.pending()) == 1
        assert end(store, sent)
        assert not end(other, sent)
        assert parking.bodies(store) == [b"paid"]


def test_of_two_ends_that_meet_only_one_is_stored(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the look at the queues and the append."""
    with parking.open() as store, parking.open() as other:
        sent = half(store, b"paid")
        records = store.transactions._records
        committed = records.committed

        def late(message: Any) -> Any:
            monkeypatch.undo()
            assert end(other, sent, commit=False)
            return committed(message)

        monkeypatch.setattr(records, "committed", late)
        with pytest.raises(ResponseError, match="rolled back"):
            end(store, sent)
        assert parking.bodies(store) == []


def test_a_commit_of_what_was_rolled_back_is_an_error(parking: Any) -> None:
    """Its sender would believe that the message is stored."""
    with parking.open() as store:
        sent = half(store, b"paid")
        end(store, sent, commit=False)
        assert not end(store, sent, commit=False)
        with pytest.raises(ResponseError, match="was rolled back; or it was committed") as it:
            end(store, sent)
        assert it.value.response_code == 604
        assert parking.bodies(store) == []


def test_without_an_index_a_commit_that_comes_late_says_what_it_does_not_know(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_index(*_: Any, **__: Any) -> Any:
        raise UsageError("the store keeps no index")

    with parking.open() as store:
        sent = half(store, b"paid")
        end(store, sent)
        monkeypatch.setattr(store._query, "by_unique_key", no_index)
        with pytest.raises(ResponseError, match="has ended before, and the index does not tell how"):
            end(store, sent)
        assert parking.bodies(store) == [b"paid"]


def test_the_largest_half_message_that_is_stored_has_room_for_its_copies(parking: Any) -> None:
    """Otherwise it could neither be asked for nor be stored again before retention deletes it."""
    with parking.open() as store:
        for size in range(32_767, 32_000, -1):
            try:
                half(store, b"paid", fill="x" * size)
                break
            except UsageError as error:
                assert "more than 327" in str(error)
        (one,) = store.transactions.pending()
        assert store.transactions.asked(one._replace(check_times=rules.CHECK_MAX - 1)) is not None
        message = store.transactions.half_message(one)
        encode_properties(rules.copy_properties(message.properties, (1 << 63) - 1, rules.CHECK_MAX))


@pytest.mark.parametrize(("change", "remark"), [
    ({"group": "other"}, "producer group"), ({"queue_offset": 1}, "state table offset"),
    ({"commit_log_offset": 1}, "Find prepared"), ({"commit_log_offset": 1 << 40}, "Find prepared"),
])  # fmt: skip
def test_an_end_is_checked_as_a_broker_checks_it(parking: Any, change: dict[str, Any], remark: str) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
        place = {"queue_offset": sent.queue_offset, "commit_log_offset": sent.commit_log_offset}
        given: dict[str, Any] = {"group": "pg", **place, **change}
        with pytest.raises(ResponseError, match=remark) as caught:
            store.transactions.end(**given, commit=True)
        assert caught.value.response_code == 1
        assert len(store.transactions.pending()) == 1


def test_an_ordinary_message_cannot_be_ended(parking: Any) -> None:
    with parking.open() as store:
        sent = store.send(Message("T", b"seen", properties={"PGROUP": "pg"}))
        with pytest.raises(ResponseError, match="Find prepared"):
            end(store, sent)


def test_after_its_immunity_time_only_an_answer_to_a_question_ends_a_half_message(parking: Any) -> None:
    with parking.open() as store:
        sent = half(store, b"paid", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        parking.now_ms += 60_001
        with pytest.raises(ResponseError) as caught:
            end(store, sent)
        assert caught.value.response_code == 604
        assert end(store, sent, from_check=True)


@pytest.mark.parametrize("delay", [{"delay_level": 3}, {"deliver_timestamp_ms": 1_800_000_000_000}])
def test_a_half_message_cannot_be_delayed(parking: Any, delay: dict[str, int]) -> None:
    with parking.open() as store, pytest.raises(ResponseError, match="delayed"):
        store.transactions.prepare(Message("T", b"later", **delay), 0, "pg")


def test_what_a_property_cannot_hold_is_refused(parking: Any) -> None:
    with parking.open() as store, pytest.raises(UsageError, match="separator"):
        half(store, b"paid", odd="a\x01b")


def test_state_is_read_from_the_topics_of_a_broker_of_either_line(parking: Any) -> None:
    with parking.open() as store:
        for body in (b"a", b"b", b"c", b"d", b"e"):
            broker_half(store, body)
        put(store, OP, "d", b"1", {"UNIQ_KEY": "O1"})  # 4.9
        put(store, OP, "d", b"0,3,", {"UNIQ_KEY": "O2"})  # 5.x
        pending = store.transactions.pending()
        assert [(one.queue_offset, one.transaction_id, one.is_ours) for one in pending] == [
            (2, "U-c", False), (4, "U-e", False),
        ]  # fmt: skip
        assert store.transactions.end("pg", 2, pending[0].commit_log_offset, commit=True)
        assert parking.bodies(store) == [b"c"]


def test_half_messages_below_the_committed_offset_are_done(parking: Any) -> None:
    with parking.open() as store:
        broker_half(store, b"done")
        broker_half(store, b"waits")
        store.commit_offsets(PROGRESS, {(HALF, 0): 1, (OP, 0): 0})
        assert [half.transaction_id for half in store.transactions.pending()] == ["U-waits"]


@pytest.mark.parametrize("beyond", [{(HALF, 0): 5, (OP, 0): 0}, {(HALF, 0): 0, (OP, 0): 5}])
def test_offsets_beyond_the_log_hide_no_half_message(
    parking: Any, beyond: dict[tuple[str, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    """A log that lost its end, or offsets that were restored."""
    with parking.open() as store:
        done = half(store, b"done")
        assert end(store, done)
    (parking.root / "config" / "consumerOffset.json").unlink()
    with parking.open() as store:
        store.commit_offsets(PROGRESS, beyond)
        sent = half(store, b"paid")
        assert not end(store, done)
        assert end(store, sent)
        assert not end(store, sent)
        assert parking.bodies(store) == [b"done", b"paid"]
        store.transactions.save_progress()
        assert store.committed_offsets(PROGRESS) == {(HALF, 0): 2, (OP, 0): 2}
    assert "lie beyond the log" in caplog.text


def copy_of_broker(store: Store, sent: SendResult, **more: str) -> None:
    """A half message that a broker stores once more: all properties stay, born times too."""
    message = store.message_at(sent.commit_log_offset)
    properties = {name: value for name, value in message.properties.items() if name != "__CRC32#"} | more
    rows = pa.RecordBatch.from_pydict({
        "topic": [HALF], "tags": [message.tags], "body": [message.body],
        "properties": pa.array([[*properties.items()]], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    options = EncodeOptions(
        store_host=BROKER, born_host=BROKER, now_ms=message.born_timestamp_ms, crc_property=store._log.crc_property,
        index_tags=store._log.index_tags,
    )  # fmt: skip
    with append_lock(store._log):
        append(store._log, [encode_batch(rows, queue_ids=np.zeros(1, np.int32), options=options)])


@pytest.mark.parametrize("more", [
    {rules.HALF_OF: "0"}, {"TRANSACTION_CHECK_TIMES": "1"}, {"TRAN_PREPARED_QUEUE_OFFSET": "0"},
])  # fmt: skip
def test_copies_of_a_broker_that_was_killed_are_one_half_message(parking: Any, more: dict[str, str]) -> None:
    """It stores a copy at once, and its progress later: the first copies stay without an op record."""
    with parking.open() as store:
        sent = half(store, b"paid")
        copy_of_broker(store, sent, **more)
        copy_of_broker(store, sent, **more)
        (pending,) = store.transactions.pending()
        assert (pending.queue_offset, pending.first_offset) == (2, 0)
        store.transactions.save_progress()
        assert store.committed_offsets(PROGRESS)[HALF, 0] == 2
        assert end(store, sent)
        assert not end(store, sent)
        assert parking.bodies(store) == [b"paid"]
        assert store.transactions.pending() == []
    with parking.open() as store:
        assert store.transactions.pending() == []


def test_an_end_of_a_copy_that_a_broker_left_behind_ends_the_newer_one(parking: Any) -> None:
    """The broker has asked once, and counts the older copy as done; the producer knows only that."""
    with parking.open() as store:
        broker_half(store, b"paid")
        (first,) = store.transactions.pending()
        message = store.transactions.half_message(first)
        put(store, HALF, "TagA", b"paid", dict(message.properties) | {"TRANSACTION_CHECK_TIMES": "1"})
        store.commit_offsets(PROGRESS, {(HALF, 0): 1, (OP, 0): 0})
    with parking.open() as store:
        other = half(store, b"other")
        assert [one.queue_offset for one in store.transactions.pending()] == [1, 2]
        assert store.transactions.end("pg", 0, first.commit_log_offset, commit=True)
        assert store.transactions.end("pg", 0, first.commit_log_offset, commit=True) is None
        assert parking.bodies(store) == [b"paid"]
        assert [one.queue_offset for one in store.transactions.pending()] == [other.queue_offset]


def test_an_op_record_of_the_newest_copy_that_is_read_first_ends_the_older_ones(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
        copy_of_broker(store, sent, **{rules.HALF_OF: "0"})
        end(store, sent, commit=False)
    (parking.root / "config" / "consumerOffset.json").unlink()
    monkeypatch.setattr(half_queue, "_ROWS", 1)
    with parking.open() as store:
        assert store.transactions.pending() == []


@pytest.mark.parametrize("is_late", [False, True])
def test_an_op_record_of_a_prepared_copy_ends_its_copies(parking: Any, is_late: bool) -> None:
    """Of a message with CHECK_IMMUNITY_TIME_IN_SECONDS a broker stores copies that name the first one; so does its op
    record. A copy may come after it.
    """
    with parking.open() as store:
        sent = half(store, b"paid", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        store.transactions.pending()
        if not is_late:
            copy_of_broker(store, sent, TRAN_PREPARED_QUEUE_OFFSET="0")
            assert len(store.transactions.pending()) == 1
        put(store, OP, "d", b"0,", {"UNIQ_KEY": "O1"})
        if is_late:
            store.transactions.pending()
            copy_of_broker(store, sent, TRAN_PREPARED_QUEUE_OFFSET="0")
        assert store.transactions.pending() == []
        assert not end(store, sent, commit=False)
        assert parking.bodies(store) == []


def test_a_half_message_that_names_a_strange_first_copy_takes_no_place(parking: Any) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
        broker_half(store, b"other", TRAN_PREPARED_QUEUE_OFFSET="0", PGROUP="strange")
        assert [one.first_offset for one in store.transactions.pending()] == [0, 1]
        assert end(store, sent)
        assert parking.bodies(store) == [b"paid"]


def test_a_sender_names_no_first_copy(parking: Any) -> None:
    with parking.open() as store:
        half(store, b"a", TRAN_PREPARED_QUEUE_OFFSET="0", PYRMQ_HALF_OF="0")
        half(store, b"b", TRAN_PREPARED_QUEUE_OFFSET="0", PYRMQ_HALF_OF="0")
        assert [one.first_offset for one in store.transactions.pending()] == [0, 1]


def test_offsets_beyond_the_log_are_mended_before_the_log_grows_past_them(parking: Any) -> None:
    with parking.open() as store:
        store.commit_offsets(PROGRESS, {(HALF, 0): 2})
        sent = [half(store, b"%d" % number) for number in range(4)]
        with parking.open() as other:
            assert len(other.transactions.pending()) == 4
        assert all(end(store, one) for one in sent)


def test_a_broken_half_message_holds_up_no_other(parking: Any, caplog: pytest.LogCaptureFixture) -> None:
    with parking.open() as store:
        broker_half(store, b"a", REAL_QID="none")
        damaged = half(store, b"damaged")
        good = half(store, b"good")
        segment = store._log.segments.path(0)
        with segment.open("r+b") as file:
            file.seek(damaged.commit_log_offset)
            file.write(bytes(8))
        assert [one.queue_offset for one in store.transactions.pending()] == [2]
        assert end(store, good)
        with pytest.raises(ResponseError, match="Find prepared"):
            end(store, damaged)
    assert "half message 0 names no queue" in caplog.text
    assert "half message 1 cannot be read" in caplog.text


def spoil_op(store: Store, number: int) -> None:
    """Damage an op record on disk."""
    (entry,) = store.queue_entries(OP, 0, number, number + 1)
    with store._log.segments.path(0).open("r+b") as file:
        file.seek(int(entry["commit_log_offset"]))
        file.write(bytes(8))


@pytest.mark.parametrize("commit", [True, False])
def test_a_damaged_op_record_stops_no_other_transaction_and_ends_its_own_again(
    parking: Any, caplog: pytest.LogCaptureFixture, commit: bool
) -> None:
    """It made every call for the transactions of the store fail."""
    with parking.open() as store:
        waits, first, lost, last = (half(store, body) for body in (b"waits", b"first", b"lost", b"last"))
        for sent in (first, lost, last):
            assert end(store, sent, commit=commit)
        spoil_op(store, 1)
    with parking.open() as store:
        assert [one.queue_offset for one in store.transactions.pending()] == [0, 2]
        assert end(store, lost, commit=commit, from_check=True)
        assert end(store, waits)
        assert store.transactions.pending() == []
        assert sorted(parking.bodies(store)) == ([b"first", b"last", b"lost", b"waits"] if commit else [b"waits"])
    assert "op record 1 cannot be read; its producer is asked again" in caplog.text
    with parking.open() as store:
        assert store.transactions.pending() == []


def test_without_an_index_a_damaged_op_record_repeats_a_commit_and_loses_none(
    parking: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_index(*_: Any, **__: Any) -> Any:
        raise UsageError("the store keeps no index")

    with parking.open() as store:
        half(store, b"waits")
        sent, other = half(store, b"paid"), half(store, b"other")
        end(store, sent)
        end(store, other, commit=False)
        spoil_op(store, 0)
    with parking.open() as store:
        monkeypatch.setattr(store._query, "by_unique_key", no_index)
        assert end(store, sent)
        assert parking.bodies(store) == [b"paid", b"paid"]
    assert "may be committed twice" in caplog.text


def test_a_commit_of_a_half_message_with_a_time_waits_for_it(parking: Any) -> None:
    """A Java broker takes such a half message. Its message was shown at the commit."""
    with parking.open() as store:
        at_ms = parking.now_ms + 60_000
        broker_half(store, b"timer", TIMER_DELIVER_MS=str(at_ms))
        broker_half(store, b"level", DELAY="1")
        broker_half(store, b"past", TIMER_DELIVER_MS=str(parking.now_ms - 1))
        ends = [(one.queue_offset, one.commit_log_offset) for one in store.transactions.pending()]
        for number in range(2):  # the second end of each is none
            ended = [store.transactions.end("pg", *one, commit=True) is not None for one in ends]
            assert ended == [number == 0] * 3
        assert parking.bodies(store) == [b"past"]
        parking.now_ms += 1_000
        store.schedule.deliver_due()
        assert parking.bodies(store) == [b"past", b"level"]
        parking.now_ms = at_ms
        store.schedule.deliver_due()
        assert parking.bodies(store) == [b"past", b"level", b"timer"]
        (row,) = [row for row in parking.rows(store, "T", 0) if row["body"] == b"timer"]
        assert row["sysFlag"] == 8


def test_a_half_message_with_an_impossible_time_is_not_committed(parking: Any) -> None:
    with parking.open() as store:
        broker_half(store, b"a", TIMER_DELAY_SEC="999999999")
        (one,) = store.transactions.pending()
        with pytest.raises(UsageError, match="timerMaxDelaySec"):
            store.transactions.end("pg", one.queue_offset, one.commit_log_offset, commit=True)
        assert len(store.transactions.pending()) == 1


def test_only_pending_half_messages_are_remembered(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both topics are read in turns: never are all half messages in memory before their ends are read."""
    with parking.open() as store:
        waits = half(store, b"waits")
        for _ in range(40):
            end(store, half(store, b"paid"))
    monkeypatch.setattr(half_queue, "_ROWS", 4)
    most = 0
    add = half_queue.HalfQueue._add

    def counted(queue: half_queue.HalfQueue, one: half_queue.PendingHalf) -> None:
        nonlocal most
        add(queue, one)
        most = max(most, len(queue.pending) + len(queue._early))

    monkeypatch.setattr(half_queue.HalfQueue, "_add", counted)
    with parking.open() as store:
        assert [one.queue_offset for one in store.transactions.pending()] == [waits.queue_offset]
    assert 1 < most <= 12


def test_the_progress_tells_a_broker_where_to_begin(parking: Any) -> None:
    """All half messages below are done; no op record below names another one."""
    with parking.open() as store:
        first, second, third = (half(store, body) for body in (b"1", b"2", b"3"))
        end(store, third)
        end(store, first)
        assert (second.queue_offset, third.queue_offset) == (1, 2)
    table = json.loads((parking.root / "config" / "consumerOffset.json").read_text().replace("0:", '"0":'))
    assert table["offsetTable"] == {f"{HALF}@{PROGRESS}": {"0": 1}, f"{OP}@{PROGRESS}": {"0": 0}}
    with parking.open() as store:
        assert [one.queue_offset for one in store.transactions.pending()] == [1]
        end(store, second)
    table = json.loads((parking.root / "config" / "consumerOffset.json").read_text().replace("0:", '"0":'))
    assert table["offsetTable"] == {f"{HALF}@{PROGRESS}": {"0": 3}, f"{OP}@{PROGRESS}": {"0": 3}}


def test_saving_the_progress_reads_few_ops(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with parking.open() as store:
        ended = [half(store, b"paid") for _ in range(30)]
        for one in ended:
            end(store, one)
        waits = half(store, b"waits")
        for _ in range(30):
            end(store, half(store, b"paid"))
        store.transactions.pending()
        looks: list[int] = []
        before = store._queues.commit_log_offset_before

        def counted(topic: str, queue_id: int, offset: int) -> int:
            looks.append(offset)
            return before(topic, queue_id, offset)

        def read(*_: Any) -> Any:
            raise AssertionError("entries of the whole topic")

        monkeypatch.setattr(store._queues, "commit_log_offset_before", counted)
        monkeypatch.setattr(store._queues, "entries", read)
        assert store.transactions._halves.progress() == {(HALF, 0): waits.queue_offset, (OP, 0): 30}
        assert len(looks) <= 7
        end(store, waits)
        half(store, b"waits")
        store.transactions.pending()
        looks.clear()
        assert store.transactions._halves.progress()[OP, 0] == 61
        assert min(looks) > 40  # from the last saved one on


def test_a_store_for_reading_lists_and_ends_nothing(parking: Any) -> None:
    with parking.open() as store:
        sent = half(store, b"paid")
    with parking.open(read_only=True) as store:
        assert len(store.transactions.pending()) == 1
        with pytest.raises(ReadOnlyError):
            end(store, sent)
    assert verify_store(parking.root).status == "clean"
