"""Dead letters are moved on: who goes, what the copies say, and that nobody goes twice.

Users of several brokers ask for the following: per message an outcome, reasons,
caps, a parking place, a rate, a look before, user properties kept, a guard against loops, and to be able to go on.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import (
    CorruptRecordError,
    Message,
    QueueRange,
    ReadOnlyError,
    ResponseError,
    Store,
    StoredMessage,
    StoreFailedError,
    StoreLockedError,
    SubscriptionGroup,
    TopicConfig,
    UnknownTopicError,
    UsageError,
    failure,
)
from rmq_store.broker.dlq import redrive, redrive_batch
from rmq_store.broker.dlq.redrive import RESULT_SCHEMA
from rmq_store.broker.dlq.redrive_ledger import REDRIVEN_TOPIC, OffsetRanges, RedriveLedger
from rmq_store.broker.write import writer
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.verify import verify_store

GROUP = "CG1"
RETRY, DLQ = "%RETRY%CG1", "%DLQ%CG1"


@pytest.fixture
def store(parking: Any) -> Any:
    with parking.open() as opened:
        opened.create_topic("TopicJ", 2)
        yield opened
    assert verify_store(parking.root).status == "clean"


def kill_off(store: Store, count: int, first: int = 0, **fields: Any) -> list[str]:
    """`count` dead letters of the group; their ids."""
    sent = [store.send(Message("TopicJ", b"body %d" % n, tags="TagA", **fields)) for n in range(first, first + count)]
    for one in sent:
        store.retry.send_back(GROUP, one.commit_log_offset, delay_level=-1)
    return [one.msg_id for one in sent]


def rows_of(offsets: Any, queue_id: int = 0, **columns: Any) -> pa.RecordBatch:
    offsets = list(offsets)
    ids = pa.array([queue_id] * len(offsets), pa.int32())
    return pa.record_batch({"queueId": ids, "queueOffset": pa.array(offsets, pa.int64()), **columns})


def outcomes(result: pa.RecordBatch) -> list[str]:
    assert result.schema == RESULT_SCHEMA
    return list(result.column("outcome").to_pylist())


def messages(store: Store, topic: str) -> list[StoredMessage]:
    found = []
    for queue_id, (first, last) in store.queue_ranges(topic).items():
        for batch in store.read(topic, queue_id, first, last, columns=["commitLogOffset"]):
            found += [store.message_at(offset) for offset in batch.column(0).to_pylist()]
    return found


def bodies(store: Store, topic: str) -> list[bytes]:
    return sorted(message.body for message in messages(store, topic))


# -- where they go, and what they say ---------------------------------------------------------------------------------


@pytest.mark.statement("D02", "D06")
def test_a_dead_letter_comes_back_to_its_group_with_all_its_retries(store: Store) -> None:
    """B16: the group that failed sees it again, and only that one; nothing of the message is lost."""
    fields: dict[str, Any] = {"keys": "k1 k2", "properties": {"mine": "π"}, "flag": 9, "born_timestamp_ms": 55}
    sent = store.send(Message("TopicJ", b"tea", tags="TagA", **fields))
    for _ in range(2):
        dead = store.retry.send_back(GROUP, sent.commit_log_offset, delay_level=-1)
    letter = store.message_at(dead.commit_log_offset)
    assert letter.queue_offset == 1
    (answer,) = store.dead_letters.redrive(GROUP, rows_of([1])).to_pylist()
    copy = store.message_at(answer["newCommitLogOffset"])
    assert answer == {
        "queueId": 0, "queueOffset": 1, "msgId": letter.msg_id, "outcome": "REDRIVEN", "reason": None, "target": RETRY,
        "targetQueueId": 0, "newQueueOffset": 0, "newCommitLogOffset": copy.commit_log_offset,
    }  # fmt: skip
    assert (copy.topic, copy.queue_id, copy.queue_offset, copy.reconsume_times) == (RETRY, 0, 0, 0)
    for name in ("body", "body_crc", "flag", "sys_flag", "born_timestamp_ms", "born_host", "msg_id", "tags", "keys"):
        assert getattr(copy, name) == getattr(letter, name), name
    expected = dict(letter.properties) | {failure.REPLAYS: "1", failure.DEAD_LETTER: "0:1"}
    del expected["DELAY"]
    assert copy.properties == expected
    assert copy.properties["RETRY_TOPIC"] == "TopicJ"
    assert store.message_at(letter.commit_log_offset) == letter
    retried = store.retry.send_back(GROUP, copy.commit_log_offset)
    assert (retried.delay_level, retried.reconsume_times) == (3, 1)


def test_what_was_noted_down_on_the_way_stays_behind(store: Store) -> None:
    """DELAY, REAL_*, and what clients add; reasons and the origin come along."""
    noted = {
        "DELAY": "-1", "REAL_TOPIC": RETRY, "REAL_QID": "0", "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "2",
        "MIN_OFFSET": "0", "MAX_OFFSET": "50", "CONSUME_START_TIME": "1", "POP_CK": "x", "1ST_POP_TIME": "1",
    }  # fmt: skip
    kept = {
        "RETRY_TOPIC": "TopicJ", "ORIGIN_MESSAGE_ID": "o", "UNIQ_KEY": "u", "KEYS": "k", "mine": "x", "WAIT": "false",
        failure.ERROR_CLASS: "E", failure.ORIGIN_TOPIC: "TopicJ",
    }  # fmt: skip
    put_dead_letter(store, noted | kept)
    (answer,) = store.dead_letters.redrive(GROUP, rows_of([0])).to_pylist()
    copy = store.message_at(answer["newCommitLogOffset"])
    assert copy.properties == kept | {failure.REPLAYS: "1", failure.DEAD_LETTER: "0:0"}


def put_dead_letter(store: Store, properties: dict[str, str], body: bytes = b"x") -> None:
    """As somebody else might have stored it."""
    store._topics.create(TopicConfig(DLQ, 1, 1), exist_ok=True)
    columns = {
        "topic": [DLQ],
        "body": [body],
        "properties": pa.array([list(properties.items())], pa.map_(pa.string(), pa.string())),
    }
    host = Host.parse("127.0.0.1:10911")
    options = EncodeOptions(store_host=host, born_host=host, now_ms=1, crc_property=True)
    row = encode_batch(pa.record_batch(columns), queue_ids=np.zeros(1, np.int32), options=options)
    with append_lock(store._log):
        append(store._log, [row])


def test_another_topic_gets_them_as_messages_of_its_own(store: Store) -> None:
    """RETRY_TOPIC and WAIT go, the origin stays known; the topic is made by the usual rule; the same sharding key goes
    to the same queue.
    """
    kill_off(store, 4, sharding_key="s", properties={"mine": "x"})
    answers = store.dead_letters.redrive(GROUP, rows_of(range(4)), to_topic="Again").to_pylist()
    assert store.topic("Again").write_queue_nums == 4
    assert len({answer["targetQueueId"] for answer in answers}) == 1
    for number, answer in enumerate(answers):
        copy = store.message_at(answer["newCommitLogOffset"])
        letter = messages(store, DLQ)[number]
        assert (answer["target"], copy.topic, copy.reconsume_times) == ("Again", "Again", 0)
        expected = dict(letter.properties) | {
            failure.REPLAYS: "1", failure.DEAD_LETTER: f"0:{number}", failure.ORIGIN_TOPIC: "TopicJ",
        }  # fmt: skip
        for name in ("DELAY", "RETRY_TOPIC", "WAIT"):
            del expected[name]
        assert copy.properties == expected
        assert copy.properties["ORIGIN_MESSAGE_ID"] == letter.properties["ORIGIN_MESSAGE_ID"]


def test_without_a_sharding_key_queues_are_taken_in_turn(store: Store) -> None:
    kill_off(store, 8)
    store.create_topic("Again", 4)
    answers = store.dead_letters.redrive(GROUP, rows_of(range(8)), to_topic="Again")
    counts = np.bincount(answers.column("targetQueueId").to_numpy())
    assert counts.tolist() == [2, 2, 2, 2]


def test_the_retry_topic_of_another_group_is_a_topic_to_retry_in(store: Store) -> None:
    """RETRY_TOPIC stays: its consumers see the original topic."""
    kill_off(store, 1)
    with pytest.raises(UsageError, match="no group 'CG2'"):
        store.dead_letters.redrive(GROUP, rows_of([0]), to_topic="%RETRY%CG2")
    store.create_group(SubscriptionGroup("CG2"))
    (answer,) = store.dead_letters.redrive(GROUP, rows_of([0]), to_topic="%RETRY%CG2").to_pylist()
    assert store.message_at(answer["newCommitLogOffset"]).properties["RETRY_TOPIC"] == "TopicJ"


def test_several_retry_queues_all_get_some(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=2))
    kill_off(store, 30)
    answers = store.dead_letters.redrive(GROUP, rows_of(range(30)))
    assert set(answers.column("targetQueueId").to_pylist()) == {0, 1}


def test_a_real_brokers_dead_letters_are_moved(golden: Path, tmp_path: Path) -> None:
    """golden: the 297 dead letters of cg_orders and the two of cg_fifo."""
    root = tmp_path / "store"
    root.mkdir()
    for path in (golden / "store").rglob("*"):
        target = root / path.relative_to(golden / "store")
        target.mkdir(exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    with Store.open(root) as store:
        letters = {message.queue_offset: message for message in messages(store, "%DLQ%cg_orders")}
        before = store.queue_range("%RETRY%cg_orders", 0).max_offset
        result = store.dead_letters.redrive("cg_orders", rows_of(letters))
        assert outcomes(result) == ["REDRIVEN"] * 297
        for answer in result.to_pylist():
            copy, letter = store.message_at(answer["newCommitLogOffset"]), letters[answer["queueOffset"]]
            assert (copy.msg_id, copy.body, copy.born_host) == (letter.msg_id, letter.body, letter.born_host)
            assert copy.properties["RETRY_TOPIC"] == "OrderTopic"
        assert store.queue_range("%RETRY%cg_orders", 0).max_offset == before + 297
        assert outcomes(store.dead_letters.redrive("cg_fifo", rows_of([0, 1]))) == ["REDRIVEN"] * 2


# -- never twice ------------------------------------------------------------------------------------------------------


def test_a_second_run_moves_nothing_twice(parking: Any, store: Store) -> None:
    """B19: resumable. The key is the dead letter's queue and offset, whoever asks, and across a restart."""
    ids = kill_off(store, 10)
    first = store.dead_letters.redrive(GROUP, rows_of([2, 3, 4, 7]))
    assert outcomes(first) == ["REDRIVEN"] * 4
    assert store.dead_letters.redriven(GROUP) == {0: [(2, 5), (7, 8)]}
    end = store.log_range()
    again = store.dead_letters.redrive(GROUP, rows_of([2, 3, 4, 7]))
    assert outcomes(again) == ["ALREADY_REDRIVEN"] * 4
    assert again.column("newCommitLogOffset").null_count == again.column("target").null_count == 4
    assert store.log_range() == end
    store.close()
    with parking.open() as other:
        assert other.dead_letters.redriven(GROUP) == {0: [(2, 5), (7, 8)]}
        rest = other.dead_letters.redrive(GROUP, rows_of(range(10)))
        assert [n for n, outcome in enumerate(outcomes(rest)) if outcome == "ALREADY_REDRIVEN"] == [2, 3, 4, 7]
        assert other.dead_letters.redriven(GROUP) == {0: [(0, 10)]}
        assert sorted(message.msg_id for message in messages(other, RETRY)) == sorted(ids)


def test_a_letter_moved_to_one_topic_is_not_moved_to_another_one(store: Store) -> None:
    kill_off(store, 1)
    store.dead_letters.redrive(GROUP, rows_of([0]))
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of([0]), to_topic="Again")) == ["ALREADY_REDRIVEN"]
    assert "Again" not in store.topics()


def test_groups_are_kept_apart(store: Store) -> None:
    kill_off(store, 1)
    sent = store.send(Message("TopicJ", b"other"))
    store.retry.send_back("CG2", sent.commit_log_offset, delay_level=-1)
    store.dead_letters.redrive(GROUP, rows_of([0]))
    assert store.dead_letters.redriven("CG2") == {}
    assert outcomes(store.dead_letters.redrive("CG2", rows_of([0]))) == ["REDRIVEN"]


def test_a_row_named_twice_goes_once(store: Store) -> None:
    kill_off(store, 2)
    result = store.dead_letters.redrive(GROUP, rows_of([1, 0, 1, 1]))
    assert outcomes(result) == ["REDRIVEN", "REDRIVEN", "ALREADY_REDRIVEN", "ALREADY_REDRIVEN"]
    assert result.column("reason").to_pylist() == [None, None, "named twice", "named twice"]
    assert len(messages(store, RETRY)) == 2


def test_results_are_in_the_order_of_the_rows_and_copies_in_that_of_the_letters(store: Store) -> None:
    ids = kill_off(store, 20)
    order = list(range(20))
    random.Random(3).shuffle(order)
    result = store.dead_letters.redrive(GROUP, rows_of(order))
    assert result.column("queueOffset").to_pylist() == order
    assert result.column("msgId").to_pylist() == [ids[n] for n in order]
    assert result.column("newQueueOffset").to_pylist() == order
    assert [message.msg_id for message in messages(store, RETRY)] == ids


@pytest.mark.parametrize("chunk_rows", [1, 3, 10_000])
def test_a_limit_counts_what_moves_and_not_what_was_moved(
    store: Store, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr(redrive, "CHUNK_ROWS", chunk_rows)
    kill_off(store, 8)
    wanted = rows_of(range(8))
    store.dead_letters.redrive(GROUP, rows_of([1, 2]))
    for moved, looked_at in ((3, 5), (3, 8), (0, 8)):
        planned = store.dead_letters.plan(GROUP, wanted, limit=3)
        result = store.dead_letters.redrive(GROUP, wanted, limit=3)
        assert outcomes(result).count("REDRIVEN") == outcomes(planned).count("WOULD_REDRIVE") == moved
        offsets = result.column("queueOffset").to_pylist()
        assert offsets == planned.column("queueOffset").to_pylist() == list(range(looked_at))
    assert outcomes(store.dead_letters.redrive(GROUP, wanted, limit=0)) == []
    for bad in (-1, 1.0, "1", True):
        with pytest.raises(UsageError, match="limit="):
            store.dead_letters.redrive(GROUP, wanted, limit=bad)  # type: ignore[arg-type]


def test_a_limit_does_not_count_what_is_refused(store: Store) -> None:
    kill_off(store, 4)
    parked: dict[str, Any] = {"max_replays": 0, "limit": 1}
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(4)), **parked)) == ["REFUSED"] * 4
    store.create_topic("Parking", 1)
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(4)), parking_topic="Parking", **parked)) == [
        "PARKED"
    ]


def test_threads_that_redrive_the_same_letters_share_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "CHUNK_ROWS", 7)
    kill_off(store, 60)
    found: list[list[str]] = []

    def work(seed: int) -> None:
        order = list(range(60))
        random.Random(seed).shuffle(order)
        found.append(outcomes(store.dead_letters.redrive(GROUP, rows_of(order))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages(store, RETRY)) == 60
    assert Counter(itertools.chain(*found)) == {"REDRIVEN": 60, "ALREADY_REDRIVEN": 120}


def test_what_another_process_moves_between_the_looks_is_not_moved_again(
    parking: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes behind our look at the table. The number of units has changed then: nothing is appended, and we look
    again.
    """
    kill_off(store, 3)
    look = RedriveLedger.moved
    other = parking.open()
    looks = []

    def look_and_lose(table: RedriveLedger, group: str) -> Any:
        moved = look(table, group)
        looks.append(table)
        if len(looks) == 1:
            other.dead_letters.redrive(GROUP, rows_of([1]))
        return moved

    monkeypatch.setattr(RedriveLedger, "moved", look_and_lose)
    result = store.dead_letters.redrive(GROUP, rows_of(range(3)))
    other.close()
    assert outcomes(result) == ["REDRIVEN", "ALREADY_REDRIVEN", "REDRIVEN"]
    assert bodies(store, RETRY) == [b"body 0", b"body 1", b"body 2"]


def test_what_is_moved_but_not_yet_on_disk_is_not_moved_again(
    parking: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SYNC_FLUSH: the unit is appended, its flush does not come in time, and no reader sees it yet. The caller, who got
    an error, tries again.
    """
    case = replace(parking, root=scratch / "sync", config=replace(parking.config, flush_disk_type="SYNC_FLUSH"))
    with case.open() as store:
        store.create_topic("TopicJ", 2)
        kill_off(store, 3)

        def stuck(log: Any, end: int | None = None) -> None:
            raise StoreLockedError("the flush lock is held")

        with monkeypatch.context() as patched:
            patched.setattr(writer, "flush", stuck)
            with pytest.raises(StoreFailedError, match="are stored, but perhaps not on disk"):
                store.dead_letters.redrive(GROUP, rows_of(range(3)))
        assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(3)))) == ["ALREADY_REDRIVEN"] * 3
        store.flush()
        assert bodies(store, RETRY) == [b"body 0", b"body 1", b"body 2"]


def test_what_is_moved_is_known_after_retention_too(parking: Any) -> None:
    """Old units go with the letters that they moved; the table reads on from what is left."""
    with parking.open() as store:
        store.create_topic("TopicJ", 2)
        for number in range(12):
            kill_off(store, 1, first=number, properties={"filler": "f" * 9000})
            if number % 3 == 2:
                store.dead_letters.redrive(GROUP, rows_of([number]))
        assert store.dead_letters.redriven(GROUP) == {0: [(2, 3), (5, 6), (8, 9), (11, 12)]}
        log_start = store._log.segments.size_bytes
        lost = sum(letter.commit_log_offset < log_start for letter in messages(store, DLQ))
    assert 2 < lost < 6
    (parking.root / "commitlog" / f"{0:020d}").unlink()
    with parking.open() as store:
        assert store.dead_letters.redriven(GROUP)[0][-2:] == [(8, 9), (11, 12)]
        found = outcomes(store.dead_letters.redrive(GROUP, rows_of(range(12))))
        assert found == ["GONE"] * lost + [
            "ALREADY_REDRIVEN" if number % 3 == 2 else "REDRIVEN" for number in range(lost, 12)
        ]
        assert store.dead_letters.redriven(GROUP)[0][-1] == (lost, 12)


def test_a_damaged_record_of_what_was_moved_stops_everything(store: Store) -> None:
    """Going on without it would move letters twice."""
    kill_off(store, 2)
    store.dead_letters.redrive(GROUP, rows_of([0]))
    host = Host.parse("127.0.0.1:10911")
    options = EncodeOptions(store_host=host, born_host=host, now_ms=1, crc_property=True)
    for body in (b"{", b"[]", b'{"group": 5, "moved": {}}', b'{"group": "g", "moved": {"0": [[1]]}}'):
        row = pa.record_batch({"topic": [REDRIVEN_TOPIC], "body": [body]})
        with append_lock(store._log):
            append(store._log, [encode_batch(row, queue_ids=np.zeros(1, np.int32), options=options)])
        with pytest.raises(CorruptRecordError, match="no record of moved dead letters"):
            store.dead_letters.redrive(GROUP, rows_of([1]))
        with pytest.raises(CorruptRecordError):
            store.dead_letters.redriven(GROUP)
    assert len(messages(store, RETRY)) == 1


# -- caps, parking, loops ---------------------------------------------------------------------------------------------


def replay(store: Store, **options: Any) -> dict[str, Any]:
    """The newest dead letter is moved, fails again, and is dead again."""
    last = store.queue_range(DLQ, 0).max_offset - 1
    (answer,) = store.dead_letters.redrive(GROUP, rows_of([last]), **options).to_pylist()
    if answer["target"] == RETRY:
        store.retry.send_back(GROUP, answer["newCommitLogOffset"], delay_level=-1)
    return dict(answer)


def test_replays_are_counted_and_capped(store: Store) -> None:
    """B18, B19."""
    kill_off(store, 1)
    for count in (1, 2, 3):
        assert replay(store, max_replays=3)["outcome"] == "REDRIVEN"
        assert messages(store, RETRY)[-1].properties[failure.REPLAYS] == str(count)
    answer = replay(store, max_replays=3)
    assert (answer["outcome"], answer["reason"], answer["target"]) == ("REFUSED", "replayed 3 times", None)
    assert replay(store, max_replays=4)["outcome"] == "REDRIVEN"
    assert replay(store)["outcome"] == "REDRIVEN"


def test_what_was_replayed_too_often_is_parked(store: Store) -> None:
    """B18: a parking queue. What is parked is moved: it is not parked twice."""
    kill_off(store, 1)
    replay(store)
    kill_off(store, 1, first=7)
    rows = rows_of([1, 2])
    plan = store.dead_letters.plan(GROUP, rows, max_replays=1, parking_topic="Parked")
    assert outcomes(plan) == ["WOULD_PARK", "WOULD_REDRIVE"]
    result = store.dead_letters.redrive(GROUP, rows, max_replays=1, parking_topic="Parked")
    assert outcomes(result) == ["PARKED", "REDRIVEN"]
    assert result.column("target").to_pylist() == plan.column("target").to_pylist() == ["Parked", RETRY]
    (parked,) = messages(store, "Parked")
    assert parked.properties[failure.REPLAYS] == "1"
    assert parked.properties[failure.DEAD_LETTER] == "0:1"
    assert parked.properties[failure.ORIGIN_TOPIC] == "TopicJ"
    assert "RETRY_TOPIC" not in parked.properties
    assert messages(store, RETRY)[-1].properties["RETRY_TOPIC"] == "TopicJ"
    again = store.dead_letters.redrive(GROUP, rows, max_replays=1, parking_topic="Parked")
    assert outcomes(again) == ["ALREADY_REDRIVEN"] * 2


def test_max_replays_0_moves_nothing_but_to_the_parking_topic(store: Store) -> None:
    kill_off(store, 1)
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of([0]), max_replays=0)) == ["REFUSED"]
    result = store.dead_letters.redrive(GROUP, rows_of([0]), max_replays=0, parking_topic="Parked")
    assert outcomes(result) == ["PARKED"]
    assert failure.REPLAYS not in messages(store, "Parked")[0].properties


@pytest.mark.parametrize("count", ["-1", "x", "1e3", "9999999999", ""])
def test_a_count_that_is_none_counts_as_0(store: Store, count: str) -> None:
    put_dead_letter(store, {"KEYS": "k", **({failure.REPLAYS: count} if count else {})})
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of([0]), max_replays=1)) == ["REDRIVEN"]
    assert messages(store, RETRY)[0].properties[failure.REPLAYS] == "1"


@pytest.mark.parametrize("target", [DLQ, "%DLQ%CG2", "%DLQ%"])
@pytest.mark.parametrize("option", ["to_topic", "parking_topic"])
def test_dead_letters_are_never_moved_to_dead_letters(store: Store, target: str, option: str) -> None:
    kill_off(store, 1)
    for call in (store.dead_letters.plan, store.dead_letters.redrive):
        with pytest.raises(UsageError, match="would be a loop"):
            call(GROUP, rows_of([0]), max_replays=1, **{option: target})
    assert store.dead_letters.redriven(GROUP) == {}


def test_other_targets_that_cannot_be(parking: Any, scratch: Path, store: Store) -> None:
    kill_off(store, 1)
    store._topics.create(TopicConfig("Closed", 1, 1, perm=4))
    for options, error, match in (
        ({"to_topic": "Closed"}, UsageError, "may not be written"),
        ({"to_topic": "SCHEDULE_TOPIC_XXXX"}, UsageError, "system topic"),
        ({"to_topic": REDRIVEN_TOPIC}, UsageError, "system topic"),
        ({"to_topic": "a/b"}, UsageError, "characters"),
        ({"parking_topic": "Parked"}, UsageError, "max_replays"),
        ({"parking_topic": RETRY, "max_replays": 1}, UsageError, "the parking topic must not be"),
        ({"max_replays": -1}, UsageError, "max_replays=-1"),
        ({"max_replays": True}, UsageError, "max_replays=True"),
    ):
        for call in (store.dead_letters.plan, store.dead_letters.redrive):
            with pytest.raises(error, match=match):
                call(GROUP, rows_of([0]), **options)
    with pytest.raises(UsageError, match="rate_per_second"):
        store.dead_letters.redrive(GROUP, rows_of([0]), rate_per_second=0)
    with pytest.raises(UsageError, match="group"):
        store.dead_letters.redriven("a/b")
    store.update_group(replace(store.groups()[GROUP], retry_queue_nums=0))
    with pytest.raises(UsageError, match="no retry queues"):
        store.dead_letters.redrive(GROUP, rows_of([0]))
    assert store.dead_letters.redriven(GROUP) == {}
    case = replace(parking, root=scratch / "strict", config=replace(parking.config, auto_create_topic_enable=False))
    with case.open() as strict:
        strict.create_topic("TopicJ")
        kill_off(strict, 1)
        with pytest.raises(UnknownTopicError):
            strict.dead_letters.redrive(GROUP, rows_of([0]), to_topic="Nowhere")
        strict._topics.update(TopicConfig(RETRY, 1, 1, 4))
        with pytest.raises(ResponseError):
            strict.dead_letters.redrive(GROUP, rows_of([0]))
        assert strict.dead_letters.redriven(GROUP) == {}


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue_id", "offset"), [(0, 3), (0, -1), (1, 0), (-1, 0), (0, 1 << 62)])
def test_a_row_that_was_never_there_is_named_and_nothing_moves(store: Store, queue_id: int, offset: int) -> None:
    kill_off(store, 3)
    rows = rows_of([0, offset]).set_column(0, "queueId", pa.array([0, queue_id], pa.int32()))
    for call in (store.dead_letters.plan, store.dead_letters.redrive):
        with pytest.raises(UsageError, match=f"row 1: {DLQ} queue {queue_id} has no message {offset}"):
            call(GROUP, rows)
    assert RETRY not in store.topics() or not messages(store, RETRY)


def test_a_group_that_never_had_dead_letters_has_none(store: Store) -> None:
    with pytest.raises(UsageError, match="%DLQ%ghost queue 0 has no message 0"):
        store.dead_letters.redrive("ghost", rows_of([0]))
    assert store.dead_letters.redrive("ghost", rows_of([])).num_rows == 0
    assert store.dead_letters.redriven("ghost") == {}


def test_rows_need_their_columns(store: Store) -> None:
    kill_off(store, 1)
    for rows, match in (
        (rows_of([0]).select(["queueId"]), "no column 'queueOffset'"),
        (rows_of([0]).append_column("x", pa.array([1])), "unknown column 'x'"),
        (pa.record_batch({"queueId": [0], "queueOffset": pa.array([None], pa.int64())}), "row 0: column 'queueOffset'"),
        (pa.record_batch({"queueId": ["x"], "queueOffset": [0]}), "column 'queueId' is string"),
        ([], "RecordBatch"),
    ):
        with pytest.raises(UsageError, match=match):
            store.dead_letters.redrive(GROUP, rows)  # type: ignore[arg-type]


def test_an_id_that_is_given_must_be_the_letters(store: Store) -> None:
    """The rows of another store, or of a queue that was deleted and filled again."""
    ids = kill_off(store, 3)
    result = store.dead_letters.redrive(GROUP, rows_of(range(3), msgId=pa.array([ids[0], "other", None])))
    assert outcomes(result) == ["REDRIVEN", "REFUSED", "REDRIVEN"]
    assert result.column("reason").to_pylist() == [None, "another message is there", None]
    assert result.column("msgId").to_pylist() == ids
    assert store.dead_letters.redriven(GROUP) == {0: [(0, 1), (2, 3)]}


def kill_off_over_segments(case: Any) -> int:
    """Twelve dead letters; the first segment is removed, and the queue files that belonged to it. How many are lost."""
    with case.open() as store:
        store.create_topic("TopicJ", 2)
        for number in range(12):
            kill_off(store, 1, first=number, properties={"filler": "f" * 9000})
        segment = store._log.segments.size_bytes
        lost = sum(letter.commit_log_offset < segment for letter in messages(store, DLQ))
        queue = store._log.views.queue(DLQ, 0).run
        paths = [queue.path(base) for base in queue.bases() if base + queue.size_bytes <= 20 * lost]
    (case.root / "commitlog" / f"{0:020d}").unlink()
    for path in paths:
        path.unlink()
    assert 0 < lost < 12
    return lost


@pytest.mark.parametrize("queue_bytes", [2000, 40])
def test_what_retention_took_is_gone_and_the_others_go(parking: Any, scratch: Path, queue_bytes: int) -> None:
    """Rows gone from the log; their queue entries may still be there (files of 100 entries), or not (of 2)."""
    config = replace(parking.config, mapped_file_size_consume_queue=queue_bytes)
    case = replace(parking, root=scratch / "old", config=config)
    lost = kill_off_over_segments(case)
    with case.open() as store:
        plan = store.dead_letters.plan(GROUP, rows_of(range(12)))
        assert outcomes(plan) == ["GONE"] * lost + ["WOULD_REDRIVE"] * (12 - lost)
        result = store.dead_letters.redrive(GROUP, rows_of(range(12)))
        assert outcomes(result) == ["GONE"] * lost + ["REDRIVEN"] * (12 - lost)
        assert result.column("reason")[0].as_py() == "removed by retention"
        assert store.dead_letters.redriven(GROUP) == {0: [(lost, 12)]}


def test_what_retention_takes_behind_our_look_at_the_queue_is_gone_too(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = kill_off_over_segments(parking)
    with parking.open() as store:
        monkeypatch.setattr(store._queues, "range", lambda topic, queue_id: QueueRange(0, 12))
        assert outcomes(store.dead_letters.plan(GROUP, rows_of(range(12))))[: lost + 1] == [
            *["GONE"] * lost, "WOULD_REDRIVE",
        ]  # fmt: skip


def test_a_damaged_record_that_is_none_of_the_rows_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_off(store, 1)

    def damaged(*arguments: Any) -> Any:
        raise CorruptRecordError("elsewhere", 5, "bad")

    monkeypatch.setattr(redrive_batch.StoredFrames, "runs", damaged)
    with pytest.raises(CorruptRecordError, match="elsewhere"):
        store.dead_letters.redrive(GROUP, rows_of([0]))


def test_retention_at_work_meanwhile_is_looked_at_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment goes between the look at the queue and the look at the log."""
    kill_off(store, 3)
    runs = redrive_batch.StoredFrames.runs
    looks = []

    def gone_once(frames: Any, *arguments: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            raise FileNotFoundError("0000")
        return runs(frames, *arguments)

    monkeypatch.setattr(redrive_batch.StoredFrames, "runs", gone_once)
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(3)))) == ["REDRIVEN"] * 3
    assert len(looks) == 2


def test_a_damaged_letter_is_refused_and_the_others_go(store: Store) -> None:
    """Its copy would get a checksum of its own, and vouch for the damage."""
    kill_off(store, 3)
    store.flush()
    letter = messages(store, DLQ)[1]
    path = store._log.segments.path(0)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"body 1", letter.commit_log_offset))
        file.write(b"B")
    try:
        result = store.dead_letters.redrive(GROUP, rows_of(range(3)))
        assert outcomes(result) == ["REDRIVEN", "REFUSED", "REDRIVEN"]
        assert "damaged" in result.column("reason")[1].as_py()
    finally:
        with path.open("r+b") as file:
            file.seek(letter.commit_log_offset)
            file.write(data[letter.commit_log_offset : letter.commit_log_offset + letter.total_size])


def test_an_entry_that_points_elsewhere_is_refused(store: Store) -> None:
    kill_off(store, 3)
    other = messages(store, "TopicJ")[0]
    path = store._log.views.queue(DLQ, 0).run.path(0)
    data = path.read_bytes()
    try:
        for offset, size, reason in (
            (other.commit_log_offset, other.total_size, "its queue entry points at another message"),
            (3, 100, "its queue entry points at no message"),
            (other.commit_log_offset, 50, "its queue entry points at no message"),
        ):
            with path.open("r+b") as file:
                file.seek(20)
                file.write(offset.to_bytes(8, "big") + size.to_bytes(4, "big"))
            plan = store.dead_letters.plan(GROUP, rows_of(range(3)))
            assert outcomes(plan) == ["WOULD_REDRIVE", "REFUSED", "WOULD_REDRIVE"]
            assert plan.column("reason")[1].as_py() == reason
    finally:
        path.write_bytes(data)


def test_a_letter_without_room_is_refused_after_its_reasons_gave_way(store: Store) -> None:
    """32,767 bytes: reasons go first, the message's own properties never."""
    put_dead_letter(store, {"large": "x" * 32_000, failure.ERROR_MESSAGE: "m" * 700})
    put_dead_letter(store, {"large": "x" * 32_730})
    put_dead_letter(store, {"KEYS": "k"})
    result = store.dead_letters.redrive(GROUP, rows_of(range(3)))
    assert outcomes(result) == ["REDRIVEN", "REFUSED", "REDRIVEN"]
    assert "no room" in result.column("reason")[1].as_py()
    copy = messages(store, RETRY)[0]
    assert copy.properties["large"] == "x" * 32_000
    assert 600 < len(copy.properties[failure.ERROR_MESSAGE]) < 700
    assert len(copy.properties_raw) == 32_767


def test_a_letter_whose_copy_no_segment_can_hold_is_refused(store: Store) -> None:
    """Segments of 64 KiB: the record just fits, one with the properties of a redrive does not."""
    store._topics.create(TopicConfig(DLQ, 1, 1), exist_ok=True)
    put_dead_letter(store, {"KEYS": "k"}, bytes(65_536 - 8 - 150))
    put_dead_letter(store, {"KEYS": "k"})
    result = store.dead_letters.redrive(GROUP, rows_of(range(2)))
    assert outcomes(result) == ["REFUSED", "REDRIVEN"]
    assert "does not fit a segment" in result.column("reason")[0].as_py()


# -- units, rate, progress, dry run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [failure.KAFKA_LETTER, failure.MIRROR_LETTER])
def test_a_dead_letter_of_kafka_is_refused_and_the_others_go(store: Store, name: str) -> None:
    """RocketMQ's group never had it. In its retry topic, or in a topic of that name, nobody would know what it is."""
    kill_off(store, 1)
    store.send(Message(DLQ, b"of Kafka", properties={name: "spring"}, queue_id=0), as_given=True)
    kill_off(store, 1, first=1)
    for method in (store.dead_letters.plan, store.dead_letters.redrive):
        result = method(GROUP, rows_of(range(3)))
        assert [outcome.removeprefix("WOULD_") for outcome in outcomes(result)][1] == "REFUSED"
        assert result.column("reason")[1].as_py() == redrive_batch.OF_KAFKA
    assert outcomes(result) == ["REDRIVEN", "REFUSED", "REDRIVEN"]
    assert [message.body for message in messages(store, RETRY)] == [b"body 0", b"body 1"]


def test_a_plan_writes_nothing_and_says_what_would_happen(store: Store) -> None:
    kill_off(store, 4)
    store.dead_letters.redrive(GROUP, rows_of([1]))
    end, topics = store.log_range(), store.topics()
    plan = store.dead_letters.plan(GROUP, rows_of(range(4)), to_topic="Again")
    assert outcomes(plan) == ["WOULD_REDRIVE", "ALREADY_REDRIVEN", "WOULD_REDRIVE", "WOULD_REDRIVE"]
    assert plan.column("target").to_pylist() == ["Again", None, "Again", "Again"]
    assert plan.column("newQueueOffset").null_count == plan.column("targetQueueId").null_count == 4
    assert (store.log_range(), store.topics()) == (end, topics)
    done = store.dead_letters.redrive(GROUP, rows_of(range(4)), to_topic="Again")
    assert [outcome.replace("WOULD_REDRIVE", "REDRIVEN") for outcome in outcomes(plan)] == outcomes(done)


def test_units_are_bounded_by_rows_and_by_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = kill_off(store, 20)
    monkeypatch.setattr(redrive, "CHUNK_ROWS", 6)
    seen: list[tuple[int, int]] = []
    store.dead_letters.redrive(GROUP, rows_of(range(10)), progress=lambda *done: seen.append(done))
    assert [rows for rows, _ in seen] == [6, 10]
    sizes = [letter.total_size for letter in messages(store, DLQ)]
    assert [size for _, size in seen] == [sum(sizes[:6]), sum(sizes[:10])]
    assert store.last_unit("redrive", GROUP) == 2
    monkeypatch.setattr(redrive_batch, "CHUNK_BYTES", 2 * max(sizes) + 1)
    seen.clear()
    store.dead_letters.redrive(GROUP, rows_of(range(20)), progress=lambda *done: seen.append(done))
    assert [rows for rows, _ in seen] == [6, 12, 14, 16, 18, 20]
    assert store.last_unit("redrive", GROUP) == 7
    assert [message.msg_id for message in messages(store, RETRY)] == ids


def test_a_letter_larger_than_a_unit_goes_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_off(store, 3)
    monkeypatch.setattr(redrive_batch, "CHUNK_BYTES", 1)
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(3)))) == ["REDRIVEN"] * 3
    assert store.last_unit("redrive", GROUP) == 3


def test_the_rate_is_kept_by_waiting_between_units(store: Store) -> None:
    """B19: so many rows a second at most. Rows that do not move cost no time."""
    kill_off(store, 25)
    slept: list[float] = []
    store.dead_letters.redrive(GROUP, rows_of(range(5)), rate_per_second=10, sleep=slept.append)
    assert slept == []
    store.dead_letters.redrive(GROUP, rows_of(range(25)), rate_per_second=10, sleep=slept.append)
    assert slept == [0.5, 1.0]
    slept.clear()
    kill_off(store, 3, first=25)
    store.dead_letters.redrive(GROUP, rows_of(range(28)), rate_per_second=0.5, sleep=slept.append)
    assert slept == [2.0, 2.0]


def test_a_progress_callback_that_raises_leaves_what_is_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "CHUNK_ROWS", 2)
    kill_off(store, 6)

    def stop(rows: int, size_bytes: int) -> None:
        if rows >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.dead_letters.redrive(GROUP, rows_of(range(6)), progress=stop)
    assert store.dead_letters.redriven(GROUP) == {0: [(0, 4)]}
    assert outcomes(store.dead_letters.redrive(GROUP, rows_of(range(6)))) == ["ALREADY_REDRIVEN"] * 4 + ["REDRIVEN"] * 2
    assert bodies(store, RETRY) == [b"body %d" % n for n in range(6)]


def test_a_store_opened_for_reading_has_no_dead_letters_to_move(parking: Any, store: Store) -> None:
    store.flush()
    with parking.open(read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.dead_letters.redriven(GROUP)


# -- ranges -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 60), max_size=20), min_size=1, max_size=5))
def test_ranges_are_what_a_set_would_be(several: list[list[int]]) -> None:
    ranges = [OffsetRanges.of(np.array(sorted(set(offsets)), np.int64)) for offsets in several]
    union = OffsetRanges.union(ranges)
    wanted = {offset for offsets in several for offset in offsets}
    asked = np.arange(-2, 64)
    assert set(asked[union.contains(asked)].tolist()) == wanted
    pairs = union.pairs()
    assert all(first_end < second_start for (_, first_end), (second_start, _) in itertools.pairwise(pairs))
    assert sum(end - start for start, end in pairs) == len(wanted)
