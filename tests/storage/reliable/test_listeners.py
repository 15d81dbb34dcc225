"""`Idempotency` with consumers of a store: concurrent, ordered, Arrow and simple ones, retries and dead letters too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from helpers.consuming import KINDS, QUEUE, Consumer, Databases, effects, statements_of, stub_status, write_effect
from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.errors import UsageError
from rmq_store.reliable import ConsumeCounts, Outbox, ReceiveCounts, Tables
from rmq_store.reliable.database.inserting import insert_rows

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def cg(request: pytest.FixtureRequest, databases: Databases, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(databases.empty(request.param), tables)
    with consumer.once:
        yield consumer


@pytest.fixture
def lite(databases: Databases, tables: Tables) -> Iterator[Consumer]:
    """On SQLite only: what does not depend on the database."""
    consumer = Consumer(databases.empty("sqlite"), tables)
    with consumer.once:
        yield consumer


class Shop:
    """A store whose time moves when told, with one queue of Orders."""

    def __init__(self, root: Path) -> None:
        self.now_ms = 1_700_000_000_000
        config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=1000)
        self.store = Store.open(root, create=True, config=config, clock=lambda: self.now_ms, broker_name="broker-a")
        self.store.create_topic("Orders", queue_count=1)

    def send(self, *bodies: str, **properties: str) -> None:
        for body in bodies:
            own = {"OUTBOX_ID": f"M{body}", "UNIQ_KEY": f"M{body}", **properties}
            self.store.send(Message("Orders", body.encode(), properties=own), as_given=True)

    def run(self, listener: Any, *, until_ms: int = 0, **config: Any) -> None:
        """Consume what is there, and what comes again within `until_ms`."""
        options = PushConsumerConfig(consume_from_where=FIRST, **config)
        with PushConsumer("cg", self.store, options) as consumer:
            consumer.subscribe("Orders")
            consumer.register_message_listener(listener)
            consumer.start(threads=False)
            end_ms = self.now_ms + until_ms
            while True:
                while consumer.run_once():
                    pass
                if self.now_ms >= end_ms:
                    return
                self.now_ms += 1_000


@pytest.fixture
def shop(scratch: Path) -> Iterator[Shop]:
    made = Shop(scratch / "store")
    yield made
    made.store.close()


def fail_on(*bodies: bytes) -> Any:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body in bodies:
            raise RuntimeError("boom")

    return handler


# -- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4])
def test_a_concurrent_consumer_retries_until_each_message_is_done_once(lite: Consumer, shop: Shop, size: int) -> None:
    shop.send("1", "2", "3", "2")
    fails = [2]

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body == b"2" and fails:
            fails.pop()
            raise RuntimeError("boom")

    shop.run(lite.once.concurrently(handler), until_ms=60_000, consume_message_batch_max_size=size)
    assert sorted(lite.effects()) == ["1", "2", "3"]
    assert lite.log() == []
    marks = {(row["topic"], row["queue_offset"]) for row in lite.rows(lite.tables.high_water)}
    assert marks == {("Orders", 3)}, "retries have no mark"


@pytest.mark.statement("H08")
def test_a_message_that_always_fails_is_a_dead_letter_and_on_the_manual_list(
    databases: Databases, tables: Tables, shop: Shop
) -> None:
    shop.send("1", "2")
    lite = Consumer(databases.empty("sqlite"), tables, max_reconsume_times=2)
    with lite.once:
        listener = lite.once.concurrently(fail_on(b"1"))
        shop.run(listener, until_ms=200_000, max_reconsume_times=2)
    assert lite.effects() == ["2"]
    assert lite.manual() == {("M1", "dead_letter")}
    assert [row["is_dead"] for row in lite.log()] == [True]
    assert lite.once.counts().failed == 3
    assert sum(each.max_offset for each in shop.store.queue_ranges("%DLQ%cg").values()) == 1


def test_an_ordered_consumer_keeps_the_order_and_does_each_message_once(lite: Consumer, shop: Shop) -> None:
    shop.send("1", "2", "2", "3")
    fails = [2, 2]

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body == b"2" and fails:
            fails.pop()
            raise RuntimeError("boom")

    shop.run(lite.once.orderly(handler), until_ms=10_000, consume_message_batch_max_size=2)
    assert lite.effects() == ["1", "2", "3"]
    assert lite.log() == []


def test_what_a_handler_adds_to_an_outbox_is_sent_behind_the_commit(
    databases: Databases, tables: Tables, shop: Shop
) -> None:
    shop.store.create_topic("Invoices", queue_count=1)
    shop.send("1", "2")
    engine = databases.empty("sqlite")

    def sent() -> int:
        return shop.store.queue_ranges("Invoices")[0].max_offset

    seen: list[int] = []
    with (
        Producer("pg", shop.store, PATIENT) as producer,
        Outbox(producer, engine, tables, groups=["billing"]) as outbox,
    ):
        cg = Consumer(engine, tables, outbox=outbox)

        def handler(connection: sa.Connection, one: MessageExt) -> None:
            outbox.add(connection, Message("Invoices", one.body))
            seen.append(sent())
            if one.body == b"2":
                raise RuntimeError("boom")

        with cg.once:
            shop.run(cg.once.concurrently(handler))
    assert seen == [0, 1], "the first is sent when it is committed, before the second is begun"
    assert sent() == 1, "the second is rolled back"


@pytest.mark.parametrize("make", ["concurrently", "orderly", "arrow"])
def test_a_broadcasting_consumer_refuses_the_listeners_of_a_group(lite: Consumer, shop: Shop, make: str) -> None:
    config = PushConsumerConfig(message_model=MessageModel.BROADCASTING)
    with PushConsumer("cg", shop.store, config) as consumer, pytest.raises(UsageError, match="is broadcasting"):
        consumer.register_message_listener(getattr(lite.once, make)(write_effect))


# -- simple consumers -------------------------------------------------------------------------------------------------


@pytest.fixture
def simple(shop: Shop) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(
        "cg", shop.store, {"Orders": "*"}, await_duration=timedelta(0), consume_from_where=FIRST, sleep=lambda _: None
    ) as consumer:
        yield consumer


def test_a_simple_consumer_acknowledges_what_is_done(lite: Consumer, shop: Shop, simple: SimpleConsumer) -> None:
    shop.send("1", "2", "1")
    hidden = timedelta(seconds=10)
    assert lite.once.receive(simple, fail_on(b"2"), 32, hidden) == ReceiveCounts(done=2, failed=1)
    (row,) = lite.log()
    assert row["blocks_until_ms"] <= lite.clock() + 70_000, "the invisible duration, and 60 s of slack"
    assert lite.once.receive(simple, write_effect, 32, hidden) == ReceiveCounts()
    shop.now_ms += 10_000
    assert lite.once.receive(simple, write_effect, 32, hidden) == ReceiveCounts(done=1)
    shop.now_ms += 60_000
    assert lite.once.receive(simple, write_effect, 32, hidden) == ReceiveCounts()
    assert lite.effects() == ["1", "2"]


@pytest.mark.statement("H05")
def test_a_simple_consumer_hides_what_another_worker_has_until_its_lease_is_over(
    lite: Consumer, shop: Shop, simple: SimpleConsumer
) -> None:
    """Deviation: the document acknowledges it."""
    shop.send("1")
    lite.put_log()
    assert lite.once.receive(simple, write_effect, 32, timedelta(seconds=1)) == ReceiveCounts(later=1)
    shop.now_ms += 40_000
    assert lite.once.receive(simple, write_effect, 32, timedelta(seconds=1)) == ReceiveCounts()
    shop.now_ms += 12_000
    lite.clock.ahead_ms = 61_000
    assert lite.once.receive(simple, write_effect, 32, timedelta(seconds=1)) == ReceiveCounts(done=1)


def test_an_acknowledgement_that_is_too_late_costs_a_delivery_that_is_recognised(
    lite: Consumer, shop: Shop, simple: SimpleConsumer
) -> None:
    shop.send("1")

    def slow(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        shop.now_ms += 2_000

    assert lite.once.receive(simple, slow, 32, timedelta(seconds=1)) == ReceiveCounts(done=1)
    assert lite.once.receive(simple, write_effect, 32, timedelta(seconds=1)) == ReceiveCounts(done=1)
    assert lite.effects() == ["1"]


def test_a_simple_consumer_may_have_effects_elsewhere(lite: Consumer, shop: Shop, simple: SimpleConsumer) -> None:
    shop.send("1")
    seen: list[bytes] = []
    counts = lite.once.receive(simple, lambda one: seen.append(one.body), 32, timedelta(seconds=1), outside=True)
    assert (counts, seen, lite.done()) == (ReceiveCounts(done=1), [b"1"], {"M1"})


# -- rows -------------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema({
    "topic": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()), "reconsumeTimes": pa.int32(), "brokerName": pa.string(),
})  # fmt: skip


def rows(*ids: str | None, reconsume_times: int = 0) -> pa.RecordBatch:
    """A batch as `MessageListenerArrow` gets it, as far as the kit reads it."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": "Orders", "queueId": 0, "queueOffset": offset, "body": (message_id or "none").encode(),
                "properties": [] if message_id is None else [("TAGS", "a"), ("UNIQ_KEY", message_id)],
                "reconsumeTimes": reconsume_times, "brokerName": "broker-a",
            }
            for offset, message_id in enumerate(ids)
        ],
        schema=SCHEMA,
    )  # fmt: skip


def write_rows(connection: sa.Connection, batch: pa.RecordBatch) -> None:
    insert_rows(connection, effects, [{"body": body.decode()} for body in batch.column("body").to_pylist()])


def give(
    cg: Consumer, batch: pa.RecordBatch, handler: Any = write_rows, queue: MessageQueue = QUEUE
) -> ConsumeConcurrentlyContext:
    context = ConsumeConcurrentlyContext(queue)
    status = cg.once.arrow(handler).consume_message(batch, context)
    assert status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    return context


def test_a_batch_of_rows_is_done_once_in_one_transaction(cg: Consumer) -> None:
    cg.put_stub("A")
    given: list[list[bytes]] = []

    def handler(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        given.append(batch.column("body").to_pylist())
        write_rows(connection, batch)

    assert give(cg, rows("A", "B", "A", "C"), handler).ack_index == 3
    assert given == [[b"A", b"B", b"C"]], "a duplicate within the batch is left out"
    assert sorted(cg.effects()) == ["A", "B", "C"]
    assert stub_status(cg.engine, cg.tables, "A") == "confirmed"
    assert give(cg, rows("C", "D", "A"), handler).ack_index == 2
    assert given[1:] == [[b"D"]]
    assert give(cg, rows("A", "D"), handler).ack_index == 1
    assert len(given) == 2, "nothing to do, no call"
    assert cg.log() == []
    assert cg.once.counts() == ConsumeCounts(done=4, duplicates_by_inbox=4)


def test_void_rows_are_left_out_also_when_they_are_voided_meanwhile(cg: Consumer) -> None:
    for name, status in (("A", "void"), ("B", "unconfirmed"), ("C", "unconfirmed")):
        cg.put_stub(name, status=status)
    given: list[list[bytes]] = []

    def handler(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        given.append(batch.column("body").to_pylist())
        write_rows(connection, batch)
        if len(given) == 1:
            stub = cg.tables.stub
            connection.execute(sa.update(stub).where(stub.c.message_id == "B").values(status="void"))

    assert give(cg, rows("A", "B", "C"), handler).ack_index == 2
    assert given == [[b"B", b"C"], [b"C"]], "done again without the void one"
    assert (cg.effects(), cg.done(), cg.log()) == (["C"], {"C"}, [])
    assert cg.once.counts() == ConsumeCounts(done=1, void=2)


def test_a_poison_row_is_found_by_halving_and_the_others_are_done(cg: Consumer) -> None:
    calls: list[int] = []

    def handler(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        calls.append(batch.num_rows)
        write_rows(connection, batch)
        if b"M5" in batch.column("body").to_pylist():
            raise RuntimeError("boom")

    names = [f"M{number}" for number in range(16)]
    assert give(cg, rows(*names), handler).ack_index == 4, "what comes behind it comes again, and is recognised"
    assert sorted(cg.effects()) == sorted(set(names) - {"M5"})
    assert [row["message_id"] for row in cg.log()] == ["M5"]
    assert calls == [16, 8, 4, 4, 2, 1, 1, 2, 8]
    assert cg.once.counts() == ConsumeCounts(done=15, failed=1)


def test_a_handler_that_fails_on_everything_is_not_called_for_ever(lite: Consumer) -> None:
    calls: list[int] = []

    def handler(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        calls.append(batch.num_rows)
        raise RuntimeError("boom")

    assert give(lite, rows(*(f"M{number}" for number in range(1_000))), handler).ack_index == -1
    assert len(calls) < 70
    assert lite.once.counts() == ConsumeCounts(failed=1_000)
    assert len(lite.log()) == 1_000


def test_rows_without_an_id_fail_and_are_logged_once(lite: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    assert give(lite, rows("A", None, "B", None)).ack_index == 0
    assert give(lite, rows(None)).ack_index == -1
    assert sorted(lite.effects()) == ["A", "B"]
    (line,) = [line for line in caplog.messages if "neither OUTBOX_ID" in line]
    assert "offset 1 of queue 0 of Orders (broker-a)" in line
    assert lite.once.counts() == ConsumeCounts(done=2, refused=3)


@pytest.mark.statement("H05")
def test_a_row_that_another_worker_has_is_later(cg: Consumer) -> None:
    """Deviation: the document answers success."""
    cg.put_log("B")
    context = give(cg, rows("A", "B", "C"))
    assert (context.ack_index, context.delay_level_when_next_consume) == (0, 5)
    assert sorted(cg.effects()) == ["A", "C"]


@pytest.mark.statement("H08")
def test_rows_of_the_last_delivery_that_fail_are_dead(cg: Consumer) -> None:
    def boom(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        raise RuntimeError("boom")

    retry_queue = MessageQueue("%RETRY%cg", "broker-a", 0)
    assert give(cg, rows("A", "B", reconsume_times=16), boom, retry_queue).ack_index == -1
    assert cg.manual() == {("A", "dead_letter"), ("B", "dead_letter")}


def test_statements_do_not_grow_with_the_rows(cg: Consumer) -> None:
    """First deliveries, and again after a failure, when each row has a log row."""

    def nothing(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        pass

    counts: dict[str, list[int]] = {"first": [], "retried": [], "done before": []}
    for size in (20, 1_000):
        names = [f"{size}-{number}" for number in range(size)]
        cg.put_stub(names[0])
        with statements_of(cg.engine) as seen:
            assert give(cg, rows(*names), nothing).ack_index == size - 1
        counts["first"].append(len(seen))
        with statements_of(cg.engine) as seen:
            give(cg, rows(*names), nothing)
        counts["done before"].append(len(seen))
        with cg.engine.begin() as connection:
            connection.execute(sa.delete(cg.tables.inbox))
        log_rows = [f"again-{name}" for name in names]
        with cg.engine.begin() as connection:
            row = {
                "group_name": "cg", "broker_name": "broker-a", "topic": "Orders", "queue_id": 0, "queue_offset": 0,
                "received_ms": 1, "reconsume_times": 0, "lease_token": None, "lease_until_ms": 0, "blocks_until_ms": 0,
                "is_dead": False,
            }  # fmt: skip
            insert_rows(connection, cg.tables.log, [{**row, "message_id": name} for name in log_rows])
        with statements_of(cg.engine) as seen:
            assert give(cg, rows(*log_rows), nothing).ack_index == size - 1
        counts["retried"].append(len(seen))
    for small, large in counts.values():
        assert small == large, counts
    assert max(large for _, large in counts.values()) <= 25, counts


def test_an_arrow_consumer_of_a_store_does_each_row_once(lite: Consumer, shop: Shop) -> None:
    shop.send("1", "2", "3", "2")
    fails = [1]

    def handler(connection: sa.Connection, batch: pa.RecordBatch) -> None:
        write_rows(connection, batch)
        if fails and b"2" in batch.column("body").to_pylist() and batch.num_rows == 1:
            fails.pop()
            raise RuntimeError("boom")
        if fails and batch.num_rows > 1:
            raise RuntimeError("boom")

    shop.run(lite.once.arrow(handler), until_ms=60_000, consume_message_batch_max_size=8)
    assert sorted(lite.effects()) == ["1", "2", "3"]
    assert lite.log() == []


def test_rows_are_applied_by_callers_that_answer_in_their_own_way(lite: Consumer) -> None:
    lite.put_log("B", lease_token="task")
    lite.put_log("C", lease_token="another")
    done = lite.once.apply(rows("A", "B", "C", None), "Orders", write_rows, lease_token="task")
    assert done == [True, True, False, False]
    assert sorted(lite.effects()) == ["A", "B"]
