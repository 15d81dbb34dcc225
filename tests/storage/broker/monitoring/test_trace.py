"""One message through all its records: what a real broker's store tells of every message that its consumers got, and
our own store through delays, retries, dead letters, redrives, archives and deletion.

The hops are those of consumerSendMsgBack and messageTimeUp. What the golden store's consumers got is in
deliveries.jsonl.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig, UsageError, failure
from rmq_store.broker.monitoring.message_track import MessageTrack, Tracker, TrackType
from rmq_store.broker.monitoring.trace import Life, Standing, State, Trace
from rmq_store.broker.monitoring.trace_life import MEANINGS, Event
from rmq_store.broker.monitoring.trace_records import Copies

GROUP, RETRY, DLQ = "CG1", "%RETRY%CG1", "%DLQ%CG1"
RETRY_OF_ORDERS, DLQ_OF_ORDERS = "%RETRY%cg_orders", "%DLQ%cg_orders"


@pytest.fixture(scope="module")
def golden_store(golden: Path) -> Iterator[Store]:
    with Store.open(golden / "store", read_only=True) as store:
        yield store


@pytest.fixture(scope="module")
def deliveries(golden: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """{group: {unique id: its deliveries in order}}."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in (golden / "deliveries.jsonl").read_text(encoding="utf-8").splitlines():
        delivery = json.loads(line)
        found[delivery["group"]][delivery["msgId"]].append(delivery)
    return found


def standing(life: Life, group: str | None) -> Standing:
    (found,) = [standing for standing in life.standings if standing.group == group]
    return found


def events(life: Life) -> list[str]:
    return [str(step.event) for step in life.steps]


# ---- a real broker's store


@pytest.mark.parametrize("group", ["cg_orders", "cg_pop", "cg_fifo", "cg_tx", "cg_delay"])
def test_the_life_of_every_message_has_every_delivery_that_its_group_got(
    golden_store: Store, deliveries: dict[str, dict[str, list[dict[str, Any]]]], group: str
) -> None:
    lives = Trace(golden_store).by_unique_keys(list(deliveries[group]))
    assert [life.msg_id for life in lives] == list(deliveries[group])
    for life in lives:
        got = deliveries[group][life.msg_id]
        assert life.complete
        own = [step for step in life.steps if step.group == group]
        # A failed attempt of an ordered or a pop consumer leaves no record of its own.
        failed = {step.attempt for step in own if step.event in (Event.FAILED, Event.DEAD)}
        if group == "cg_orders":
            assert failed == {one["attempt"] for one in got if one["result"] == "RECONSUME_LATER"}
        retries = {step.attempt: step for step in own if step.event is Event.RETRY}
        if group != "cg_fifo":
            assert set(retries) == {one["attempt"] for one in got if one["attempt"] > 1}
        for one in got:
            step = retries.get(one["attempt"], next(s for s in reversed(life.steps) if s.group is None))
            assert step.message is not None
            assert (step.queue_id, step.queue_offset) == (one["queueId"], one["queueOffset"])
            assert step.message.offset_msg_id == one["offsetMsgId"]
            assert step.time_ms == one["storeTimestamp"] <= one["deliveredAt"]
        now = standing(life, group)
        if got[-1]["result"] == "SUCCESS":
            assert (now.state, now.attempt) == (State.CONSUMED, got[-1]["attempt"])
        else:
            assert (now.state, now.attempt) == (State.DEAD, got[-1]["attempt"])
    ended = {state: sum(standing(life, group).state is state for life in lives) for state in State}
    assert ended[State.DEAD] == {"cg_orders": 297, "cg_fifo": 2}.get(group, 0)


def test_a_retry_is_due_when_its_queue_entry_says_so(golden_store: Store) -> None:
    """The broker's levels were 1s 1s 2s 2s 3s ...: the store's files say nothing of them but the entries' times."""
    (life,) = Trace(golden_store).by_unique_keys(["C0000202371F5FFD2B2767134429005D"])
    waits = [(step.due_ms - step.time_ms) for step in life.steps if step.event is Event.FAILED and step.due_ms]
    assert waits == [2000, 2000, 3000]
    for step, following in pairwise(life.steps):
        assert step.due_ms is None or following.time_ms >= step.due_ms


def test_messages_that_wait_are_due_at_their_level_or_time(golden_store: Store) -> None:
    delayed, timed = Trace(golden_store).by_unique_keys(
        ["C0000202371F5FFD2B276713435C0048", "C0000202371F5FFD2B27671343920053"]
    )
    assert (events(delayed), events(timed)) == (["DELAYED"], ["TIMED"])
    first = delayed.steps[0]
    assert standing(delayed, None) == Standing(None, State.WAITING, first.topic, due_ms=first.time_ms + 7_200_000)
    assert standing(timed, None).due_ms == 1795306915000
    assert {step.note for step in (*delayed.steps, *timed.steps)} == {"goes to DelayTopic"}


def test_every_transaction_ended_as_its_producer_said(golden: Path, golden_store: Store) -> None:
    told = json.loads((golden / "manifest.json").read_text())["transactions"]
    sent = [json.loads(line) for line in (golden / "sends.jsonl").read_text(encoding="utf-8").splitlines()]
    keys = {row["keys"]: row["msgId"] for row in sent if row["kind"].startswith("tx:")}
    lives = {life.msg_id: life for life in Trace(golden_store).by_unique_keys(list(keys.values()))}
    ends = {"COMMIT_MESSAGE": "COMMITTED", "ROLLBACK_MESSAGE": "ROLLED_BACK"}
    compared = 0
    for key, state in told["localStates"].items():
        life = lives[keys[key]]
        assert events(life)[0] == "HALF"
        if state in ends:
            assert events(life)[-1] == ends[state], key
            compared += 1
        elif key == "TX-0031":
            assert standing(life, None).state is State.HALF
            assert life.steps[-1].note == "check 6"
        else:
            assert events(life)[1] == "CHECKED"
            assert events(life)[-1] in ends.values()
    assert compared == 28


def test_a_timer_that_was_taken_back_says_so(scratch: Path, small: StoreConfig) -> None:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("T", 1)
        later = store.clock() + 3_600_000
        sent = [store.send(Message("T", b"%d" % number, deliver_timestamp_ms=later)) for number in range(3)]
        for one in sent[1:]:
            store.recall_message("T", str(one.recall_handle))
        waits, *taken = Trace(store).by_unique_keys([one.msg_id for one in sent])
        assert events(waits) == ["TIMED"] and standing(waits, None).state is State.WAITING
        for life in taken:
            assert events(life) == ["TIMED", "RECALLED"] and standing(life, None).state is State.RECALLED


def test_any_copy_and_the_id_of_the_original_lead_to_the_same_life(golden_store: Store) -> None:
    trace = Trace(golden_store)
    (life,) = trace.by_unique_keys(["C0000202371F5FFD2B2767134429005D"])
    for step in life.steps:
        assert step.message is not None
        assert trace.by_offset_id(step.message.offset_msg_id) == life
    by_key = trace.by_key("OrderTopic", "ORD-000007")
    assert by_key == [life]
    assert trace.by_offset_id(life.steps[0].message.offset_msg_id.replace("7F000001", "7F000002")) is None  # type: ignore[union-attr]


def test_without_an_index_the_queues_are_read_up_to_a_limit(golden: Path, golden_store: Store, scratch: Path) -> None:
    wanted = "C0000202371F5FFD2B2767134429005D"
    (life,) = Trace(golden_store).by_unique_keys([wanted])
    shutil.copytree(golden / "store", scratch / "store", ignore=shutil.ignore_patterns("index", "timerwheel"))
    with Store.open(scratch / "store", read_only=True) as store:
        store.query.find = _no_index  # type: ignore[method-assign]
        (scanned,) = Trace(store).by_unique_keys([wanted])
        assert scanned == life
        (short,) = Trace(store, scan_max=1500).by_unique_keys([wanted])
        assert not short.complete
        assert len(short.steps) < len(life.steps)
        assert short.steps[0] == life.steps[0]


def test_a_store_that_keeps_no_index_tells_the_same(parking: Any) -> None:
    """By its topic if that is named; otherwise the copies of a message lead to its original, and of one without copies
    nothing is known: not even that it is not there.
    """
    parking.root = parking.root.with_name("unindexed")
    parking.config = replace(parking.config, message_index_enable=False)
    with parking.open() as store:
        store.create_topic("T", 1)
        quiet, failed = (store.send(Message("T", b"x", queue_id=0)) for _ in range(2))
        fail(store, "T", 0, 1, max_reconsume_times=0)
        trace = Trace(store)
        assert [events(life) for life in trace.by_unique_keys([failed.msg_id])] == [["STORED", "DEAD"]]
        with pytest.raises(UsageError, match="keeps no index"):
            trace.by_unique_keys([failed.msg_id, quiet.msg_id])
        assert trace.by_unique_keys(["no such id"], "T") == []
        assert [events(life) for life in trace.by_unique_keys([quiet.msg_id], "T")] == [["STORED"]]
        by_id = trace.by_offset_id(failed.offset_msg_id)
        assert by_id is not None
        assert events(by_id) == ["STORED", "DEAD"]
        with pytest.raises(UsageError, match="keeps no index"):
            trace.by_key("T", "K")


def test_queues_are_read_from_the_time_of_the_message_on(golden_store: Store) -> None:
    """A message without a UNIQ_KEY is followed by its offset id alone; what was stored before it cannot be its copy."""
    origin = "7F000001000051AF0000000000009E67"
    copies = Copies(golden_store, 1_000_000)
    everything, _ = copies.scan([], [origin], None, 0)
    later, complete = copies.scan([], [origin], None, 1795220564000)
    assert (len(everything), len(later), complete) == (8, 5, True)
    assert {record.store_timestamp_ms >= 1795220564000 for record in later} == {True, False}  # and the original
    assert {record.topic for record in later} == {"SCHEDULE_TOPIC_XXXX", RETRY_OF_ORDERS, DLQ_OF_ORDERS, "OrderTopic"}


def _no_index(*arguments: Any, **options: Any) -> Any:
    raise UsageError("keeps no index")


# ---- mqadmin's lines below a message


def test_the_track_of_each_group_follows_its_offset(golden_store: Store) -> None:
    message = golden_store.query.by_queue_offset("OrderTopic", 0, 225)
    tracks = {track.consumer_group: track for track in Tracker(golden_store).track(message)}
    assert {group: str(track.track_type) for group, track in tracks.items()} == {
        "cg_orders": "CONSUMED",
        "cg_partial": "NOT_ONLINE",
        "cg_tags": "CONSUMED",
    }
    assert str(tracks["cg_orders"]) == (
        "MessageTrack [consumerGroup=cg_orders, trackType=CONSUMED, exceptionDesc=null]"
    )
    assert str(tracks["cg_partial"]) == (
        "MessageTrack [consumerGroup=cg_partial, trackType=NOT_ONLINE, "
        "exceptionDesc=CODE:206 DESC:the consumer group[cg_partial] not online]"
    )
    before = golden_store.query.by_queue_offset("OrderTopic", 0, 224)
    assert Tracker(golden_store).track_type("cg_partial", before) is TrackType.CONSUMED


def test_a_group_at_work_has_only_not_consumed_yet(parking: Any) -> None:
    with parking.open() as store:
        store.send(Message("T", b"a", queue_id=0))
        store.commit_offsets(GROUP, {("T", 0): 0})
        message = store.query.by_queue_offset("T", 0, 0)
        assert Tracker(store).track_type(GROUP, message) is TrackType.NOT_ONLINE
        lease = store.lease(GROUP, "T", "me")
        assert Tracker(store).track(message) == [MessageTrack(GROUP, TrackType.NOT_CONSUME_YET)]
        lease.release()


@pytest.mark.parametrize(("kind", "expression"), [("SQL92", "amount > 10"), ("TAG", "TagB || TagC")])
def test_what_the_filter_of_a_group_leaves_out_was_consumed_but_filtered(
    parking: Any, kind: str, expression: str
) -> None:
    entry = {"topic": "T", "consumerGroup": GROUP, "expression": expression, "expressionType": kind}
    data = {"filterDataByTopic": {"T": {"topic": "T", "groupFilterData": {GROUP: entry}}}}
    with parking.open() as store:
        (parking.root / "config" / "consumerFilter.json").write_text(json.dumps(data))
        store.send(Message("T", b"a", tags="TagA", properties={"amount": "5"}, queue_id=0))
        store.send(Message("T", b"b", tags="TagB", properties={"amount": "50"}, queue_id=0))
        store.commit_offsets(GROUP, {("T", 0): 2})
        tracker = Tracker(store)
        found = [tracker.track_type(GROUP, store.query.by_queue_offset("T", 0, offset)) for offset in (0, 1)]
        assert found == [TrackType.CONSUMED_BUT_FILTERED, TrackType.CONSUMED]


# ---- our own store


def fail(store: Store, topic: str, queue_id: int, offset: int, **options: Any) -> None:
    message = store.query.by_queue_offset(topic, queue_id, offset)
    store.retry.send_back(GROUP, message.commit_log_offset, **options)


def test_a_message_is_followed_into_dead_letters_and_back(parking: Any, scratch: Path) -> None:
    with parking.open() as store:
        sent = store.send(Message("T", b"tea", keys="K1", queue_id=0))
        store.commit_offsets(GROUP, {("T", 0): 1})

        def life(archive: Path | None = None) -> Life:
            (found,) = Trace(store, archive=archive).by_unique_keys([sent.msg_id])
            return found

        assert standing(life(), GROUP) == Standing(GROUP, State.CONSUMED, "T", 1)
        reasons = failure.failure_properties(ValueError("no such customer"), now_ms=parking.now_ms)
        fail(store, "T", 0, 0, max_reconsume_times=1, properties=reasons)
        due = parking.now_ms + 10_000
        assert standing(life(), GROUP) == Standing(GROUP, State.WAITING, "SCHEDULE_TOPIC_XXXX", 2, due)
        assert life().steps[-1].note == "level 3: ValueError: no such customer"
        parking.now_ms = due
        store.schedule.deliver_due()
        assert standing(life(), GROUP) == Standing(GROUP, State.NOT_ONLINE, RETRY, 2)
        fail(store, RETRY, 0, 0, max_reconsume_times=1)
        assert standing(life(), GROUP) == Standing(GROUP, State.DEAD, DLQ, 2)
        rows = pa.RecordBatch.from_pydict({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0])})
        archive = scratch / "archive"
        store.archive(archive).archive_up_to(store.log_range()[1])
        assert events(life(archive)) == ["STORED", "FAILED", "RETRY", "DEAD", "ARCHIVED"]
        store.dead_letters.redrive(GROUP, rows)
        assert standing(life(), GROUP) == Standing(GROUP, State.REDRIVEN, RETRY, 1)
        store.commit_offsets(GROUP, {(RETRY, 0): 2})
        assert standing(life(archive), GROUP) == Standing(GROUP, State.CONSUMED, RETRY, 1)
        assert events(life(archive)) == ["STORED", "FAILED", "RETRY", "DEAD", "ARCHIVED", "REDRIVEN"]
        assert life().steps[-1].note == "replay 1 of dead letter 0:0"
        fail(store, RETRY, 0, 1, max_reconsume_times=0)
        assert events(life())[-1] == "DEAD"
        assert life().complete
        store.dead_letters.restore(archive, again=True)
        assert events(life())[-1] == "RESTORED"


def test_a_retry_after_a_redrive_is_a_retry(parking: Any) -> None:
    """Its copies have the properties of the redrive, too."""
    with parking.open() as store:
        sent = store.send(Message("T", b"tea", queue_id=0))
        fail(store, "T", 0, 0, max_reconsume_times=0)
        rows = pa.RecordBatch.from_pydict({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0])})
        store.dead_letters.redrive(GROUP, rows)
        fail(store, RETRY, 0, 0)
        parking.now_ms += 10_000
        store.schedule.deliver_due()
        (life,) = Trace(store).by_unique_keys([sent.msg_id])
        assert events(life) == ["STORED", "DEAD", "REDRIVEN", "FAILED", "RETRY"]
        assert [step.attempt for step in life.steps] == [None, 1, 1, 1, 2]


def test_a_redrive_to_another_topic_belongs_to_the_group_of_the_dead_letter(parking: Any) -> None:
    with parking.open() as store:
        store.create_topic("Other", 1)
        sent = store.send(Message("T", b"tea", queue_id=0))
        fail(store, "T", 0, 0, max_reconsume_times=0)
        rows = pa.RecordBatch.from_pydict({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0])})
        store.dead_letters.redrive(GROUP, rows, to_topic="Other")
        (life,) = Trace(store).by_unique_keys([sent.msg_id])
        assert events(life) == ["STORED", "DEAD", "REDRIVEN"]
        assert standing(life, GROUP) == Standing(GROUP, State.REDRIVEN, "Other", 1)


def test_delays_and_times_are_told_before_and_after(parking: Any) -> None:
    with parking.open() as store:
        delayed = store.send(Message("T", b"d", delay_level=2, queue_id=1))
        timed = store.send(Message("T", b"t", deliver_timestamp_ms=parking.now_ms + 7000))
        ids = [delayed.msg_id, timed.msg_id]
        before = Trace(store).by_unique_keys(ids)
        assert [life.standings for life in before] == [
            (Standing(None, State.WAITING, "SCHEDULE_TOPIC_XXXX", due_ms=parking.now_ms + 5000),),
            (Standing(None, State.WAITING, "rmq_sys_pyrmq_timer", due_ms=parking.now_ms + 7000),),
        ]
        parking.now_ms += 8000
        store.schedule.deliver_due()
        after = Trace(store).by_unique_keys(ids)
        assert [events(life) for life in after] == [["DELAYED", "DELIVERED"], ["TIMED", "DELIVERED"]]
        assert standing(after[0], None) == Standing(None, State.NOT_CONSUME_YET, "T")


def test_a_key_leads_to_what_waits_for_its_topic_and_not_for_others(parking: Any) -> None:
    with parking.open() as store:
        store.create_topic("Other", 1)
        sent = [store.send(Message(topic, b"x", keys="K1", delay_level=level)) for topic, level in
                (("T", 0), ("T", 3), ("Other", 3), ("Other", 0))]  # fmt: skip
        assert [life.msg_id for life in Trace(store).by_key("T", "K1")] == [sent[0].msg_id, sent[1].msg_id]


def test_a_key_leads_to_retries_and_dead_letters_of_originals_that_are_gone(parking: Any) -> None:
    """As after accepted damage: index and properties of the copies are left, the original's index entry is not."""
    with parking.open() as store:
        sent = store.send(Message("T", b"tea", keys="K1", queue_id=0))
        fail(store, "T", 0, 0, delay_level=3)
        by_key = store.query.by_key
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.query, "by_key", lambda topic, key: [] if topic == "T" else by_key(topic, key))
            (waiting,) = Trace(store).by_key("T", "K1")
            parking.now_ms += 3_600_000
            store.schedule.deliver_due()
            (retried,) = Trace(store).by_key("T", "K1")
        assert waiting.msg_id == retried.msg_id == sent.msg_id
        assert events(retried)[-1] == "RETRY"


def test_a_send_that_its_producer_repeated_is_told_as_such(parking: Any) -> None:
    with parking.open() as store:
        for _ in range(2):
            own = {"UNIQ_KEY": "7F0000010001018B4AAC0D1B2F3A0000"}
            store.send(Message("T", b"x", properties=own, queue_id=0), as_given=True)
        (life,) = Trace(store).by_unique_keys(["7F0000010001018B4AAC0D1B2F3A0000"])
        assert events(life) == ["STORED", "STORED"]
        assert life.steps[1].note == "again, with the same unique key: its producer repeated the send"


def test_what_retention_took_is_named_and_the_archive_has_the_rest(shop: Any, scratch: Path) -> None:
    with shop.open() as store:
        sent = store.send(Message("T", b"tea", keys="ORD-1 TEA", queue_id=0))
        origin = store.query.by_queue_offset("T", 0, 0).offset_msg_id
        shop.fill(store, 2)
        fail(store, "T", 0, 0, max_reconsume_times=0)
        shop.fill(store, 4)
        shop.age(100, *shop.bases()[:1])
        store.retention.run(manual=True)
        gone, dead = Trace(store).by_unique_keys([sent.msg_id])[0].steps
        assert (gone.event, gone.topic, gone.note, gone.message) == (Event.GONE, "T", origin, None)
        assert dead.event is Event.DEAD
        by_origin = Trace(store).by_offset_id(origin)
        assert by_origin is not None
        assert by_origin.steps == (gone, dead)
        for key in ("ORD-1", "TEA"):
            assert [one.steps for one in Trace(store).by_key("T", key)] == [(gone, dead)]
        assert Trace(store).by_key("T", "ORD") == []
        assert Trace(store).by_key("Other", "ORD-1") == []
        archive = scratch / "archive"
        store.archive(archive).archive_up_to(store.log_range()[1])
        shop.age(100)
        store.retention.run(manual=True)
        assert Trace(store).by_unique_keys([sent.msg_id]) == []
        (life,) = Trace(store, archive=archive).by_unique_keys([sent.msg_id])
        assert events(life) == ["ARCHIVED"]
        assert Trace(store, archive=archive).by_key("T", "ORD-1") == [life]
        assert Trace(store, archive=archive).by_key("T", "ORD") == []
        assert (life.steps[0].time_ms, life.steps[0].group) == (dead.time_ms, GROUP)
        assert standing(life, GROUP) == Standing(GROUP, State.DEAD, DLQ, 1)
        assert Path(life.steps[0].note).is_file()


def test_every_event_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Event)
