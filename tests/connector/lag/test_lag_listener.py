"""How far streaming queries are behind: progress as Spark reports it, fed to the listener, and one real query."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from pyspark_rmq import LagListener
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.lag import lag_listener
from pyspark_rmq.lag.lag_metrics import STREAM_METRICS
from pyspark_rmq.lag.lag_tracking import SourceRow, SourceTracker, batch_of
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store import Message, Store, StoreConfig, SubscriptionGroup, UsageError

from ..spark_lacks import run_in_batches

Make = Callable[..., Any]
NOW_MS = 1_763_711_715_000  # 2025-11-21 07:55:15 UTC
T0, T1, RETRY = Queue("T", 0), Queue("T", 1), Queue("%RETRY%g", 0)
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_hash_slot_num=500,
    max_index_num=2000,
)  # fmt: skip


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Shop:
    """A store whose time the test moves, and queries that read it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.clock = path, Clock()
        self.store = Store.open(path, create=True, config=SMALL, clock=self.clock)
        self.store.create_topic("T", queue_count=2)
        patch.setattr(StoreDirectory, "clock", lambda location: self.clock)

    def send(self, count: int, queue_id: int = 0) -> None:
        """One message a second."""
        for _ in range(count):
            self.store.send(Message("T", b"x", queue_id=queue_id))
            self.clock.now_ms += 1000

    def ends(self, topics: tuple[str, ...] = ("T",)) -> dict[Queue, int]:
        return {
            Queue(topic, queue_id): found.max_offset
            for topic in topics
            for queue_id, found in self.store.queue_ranges(topic).items()
        }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(tmp_path / "store", monkeypatch)
    yield made
    made.store.close()


class Query:
    """A streaming query, as far as its progress shows it. `done` is one batch."""

    def __init__(self, name: str | None = "orders", query_id: uuid.UUID | None = None) -> None:
        self.name, self.id, self.run_id = name, query_id or uuid.uuid4(), uuid.uuid4()
        self.batch_id = -1

    def started(self) -> QueryStartedEvent:
        event = {"id": str(self.id), "runId": str(self.run_id), "name": self.name, "jobTags": []}
        return QueryStartedEvent.fromJson(event | {"timestamp": "2025-11-21T07:55:15.000Z"})

    def done(self, *sources: dict[str, Any], at_s: int = 0, seconds: float = 1.0) -> QueryProgressEvent:
        """A trigger that began `at_s` after NOW_MS and took so many seconds."""
        self.batch_id += 1
        progress = {
            "id": str(self.id), "runId": str(self.run_id), "name": self.name, "batchId": self.batch_id,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(NOW_MS // 1000 + at_s)),
            "batchDuration": int(seconds * 1000), "durationMs": {"triggerExecution": int(seconds * 1000)},
            "stateOperators": [], "sources": list(sources),
            "sink": {"description": "x", "numOutputRows": -1, "metrics": {}},
        }  # fmt: skip
        return QueryProgressEvent.fromJson({"progress": progress})

    def idle(self, at_s: int) -> QueryIdleEvent:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(NOW_MS // 1000 + at_s))
        return QueryIdleEvent(self.id, self.run_id, moment)

    def terminated(self) -> QueryTerminatedEvent:
        return QueryTerminatedEvent(self.id, self.run_id, None, None)


def foreign(start: object, end: object, latest: object = None) -> dict[str, Any]:
    return {
        "description": "AnotherSource[x]", "startOffset": start, "endOffset": end, "latestOffset": latest,
        "numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {},
    }  # fmt: skip


def ours(
    begin: dict[Queue, int] | None, end: dict[Queue, int], ends: dict[Queue, int], path: Path | str | None,
    group: str | None = None, began: dict[Queue, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    place = ({"path": str(path)} if path is not None else {}) | ({"group": group} if group else {})
    start = None if begin is None else StreamPosition("s", begin).to_json()
    return foreign(
        start, StreamPosition("s", end, began=began or {}).to_json(), StreamPosition("s", ends).to_json() | place
    )


def samples(listener: LagListener, name: str, *by: str) -> dict[tuple[str, ...], float]:
    (family,) = (found for found in parse(listener.openmetrics()) if found.name == name)
    shown = {tuple(sample.labels.get(label, "") for label in by): sample.value for sample in family.samples}
    assert len(shown) == len(family.samples)
    return shown


# ---- numbers


def test_lag_is_counted_against_the_ends_of_the_store_and_aged_by_its_clock(shop: Shop) -> None:
    shop.send(10)
    shop.send(2, queue_id=1)
    listener, query = LagListener(), Query()
    # Two more came after the source had looked.
    reported = {T0: 8, T1: 2}
    source = ours(None, {T0: 4, T1: 2}, reported, shop.path, began={T0: 1, T1: 0})
    listener.onQueryProgress(query.done(source, seconds=2))
    first, second = listener.rows()
    assert (first.query, first.query_id, first.batch_id) == ("orders", str(query.id), 0)
    assert (first.topic, first.queue_id, first.position, first.end, first.messages, first.lag) == ("T", 0, 4, 10, 3, 6)
    assert first.lag_seconds == 8.0  # the fifth message was stored at 4 s, and now it is 12 s
    assert (first.rate, first.eta_seconds) == (1.5, 4.0)
    assert (second.lag, second.lag_seconds, second.rate, second.eta_seconds) == (0, 0.0, 1.0, 0.0)
    (total,) = listener.sources()
    assert (total.messages, total.lag, total.lag_seconds, total.rate) == (5, 6, 8.0, 2.5)
    assert (total.retries, total.dead_letters) == (0, None)
    listener.close()


def test_the_time_to_catch_up_is_that_at_which_the_lag_shrinks(shop: Shop) -> None:
    shop.send(20)
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(ours(None, {T0: 4}, shop.ends(), shop.path, began={T0: 0})))
    shop.send(2)  # 16 were left, now 6 of 22 are read: 16 again
    listener.onQueryProgress(query.done(ours({T0: 4}, {T0: 6}, shop.ends(), shop.path), at_s=1))
    (row,) = listener.rows()
    assert (row.lag, row.rate, row.eta_seconds) == (16, 2.0, None)
    listener.onQueryProgress(query.done(ours({T0: 6}, {T0: 14}, shop.ends(), shop.path), at_s=2, seconds=2))
    (row,) = listener.rows()
    assert (row.lag, row.rate, row.eta_seconds) == (8, 4.0, 2.0)
    listener.onQueryProgress(query.done(ours({T0: 14}, {T0: 22}, shop.ends(), shop.path), at_s=4))
    (row,) = listener.rows()
    assert (row.lag, row.eta_seconds) == (0, 0.0)
    assert samples(listener, "rmq_stream_messages", "topic", "queue_id") == {("T", "0"): 22}
    listener.close()


def test_an_idle_query_is_looked_at_again(shop: Shop) -> None:
    shop.send(4)
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 4}, shop.ends(), shop.path)))
    shop.send(3)
    listener.onQueryIdle(query.idle(at_s=11))
    (row,) = listener.rows()
    assert (row.lag, row.lag_seconds, row.messages, row.rate, row.eta_seconds) == (3, 3.0, 0, 0.0, None)
    listener.onQueryIdle(Query().idle(at_s=12))  # of a query that is not ours
    assert listener.openmetrics().count("rmq_stream_lag_messages{") == 1
    listener.close()


def test_a_message_whose_record_is_damaged_has_no_age(shop: Shop) -> None:
    shop.send(4)
    place = shop.store.query.by_queue_offset("T", 0, 1).commit_log_offset
    shop.store.close()
    with next((shop.path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(place + 4)
        file.write(b"\xff\xff\xff\xff")
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 1}, {T0: 4}, shop.path)))
    (row,) = listener.rows()
    assert (row.lag, row.lag_seconds) == (3, None)
    (total,) = listener.sources()
    assert total.lag_seconds is None
    assert samples(listener, "rmq_stream_lag_seconds", "topic") == {}
    assert samples(listener, "rmq_listener_errors") == {(): 0}
    listener.close()


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (2, (10, 8, 95.0)),  # retention took [2, 5): that is lag too, and the fifth message is the oldest that is left
        (12, (12, 0, 0.0)),  # the store lost its tail
    ],
)
def test_a_position_outside_of_the_queue(fake_store: Make, position: int, expected: tuple[int, int, float]) -> None:
    tracker = SourceTracker()
    batch = batch_of(Query().done(ours({T0: 0}, {T0: position}, {T0: 10}, None)).progress, 0)
    assert batch is not None
    tracker.completed(batch, fake_store({T0: (5, 10)}), now_ms=100_000)
    (row,) = tracker.rows
    assert (row.end, row.lag, row.lag_seconds) == expected


@pytest.mark.parametrize("place", [{"path": "/shop"}, {"nameServer": "ns1:9876"}])
def test_a_spark_that_asks_for_no_report_shows_positions_instead(fake_store: Make, place: dict[str, str]) -> None:
    """4.0 and 4.1. The end of a queue is unknown there, unless a store tells it; never the position itself."""
    end = StreamPosition("s", {T0: 4}, began={T0: 0}, blind=True, source={"group": "cg", **place}).to_json()
    source = foreign(None, json.dumps(end), json.dumps(end))
    batch = batch_of(Query().done(source).progress, 0)
    assert batch is not None
    assert (batch.path, batch.group) == (place.get("path") or "rmq://ns1:9876", "cg")
    assert (batch.messages, batch.reported) == ({T0: 4}, {})
    tracker = SourceTracker()
    tracker.completed(batch, None, now_ms=1)
    assert [(row.end, row.lag) for row in tracker.rows] == [(None, None)]
    tracker.completed(batch, fake_store({T0: (0, 10)}), now_ms=1)
    assert [(row.end, row.lag) for row in tracker.rows] == [(10, 6)]


def test_a_store_that_nobody_of_ours_has_open_is_looked_at_anew(shop: Shop) -> None:
    """As one that a broker writes: its end is found by looking behind the last one."""
    shop.send(2)
    shop.store.close()
    listener, query = LagListener(), Query()
    for count in (2, 3):
        listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 1}, {T0: 1}, shop.path)))
        (row,) = listener.rows()
        assert row.end == count
        with Store.open(shop.path) as writer:
            writer.send(Message("T", b"x", queue_id=0))
    listener.close()


def test_retries_and_dead_letters_are_counted_per_batch(shop: Shop) -> None:
    shop.store.create_group(SubscriptionGroup("g"))
    shop.send(3)
    shop.clock.now_ms = NOW_MS + 10_000
    shop.store.send(Message("%RETRY%g", b"again"))
    shop.store.send(Message("%DLQ%g", b"dead before the query began"))
    shop.clock.now_ms = NOW_MS + 20_500
    shop.store.send(Message("%DLQ%g", b"dead in the first batch"))
    listener, query = LagListener(), Query()
    ends = {T0: 3, RETRY: 1}
    listener.onQueryProgress(query.done(ours({T0: 0, RETRY: 0}, ends, ends, shop.path, "g"), at_s=20))
    (total,) = listener.sources()
    assert (total.group, total.messages, total.retries, total.dead_letters) == ("g", 4, 1, 1)
    for _ in range(2):
        shop.store.send(Message("%DLQ%g", b"dead in the second"))
    listener.onQueryProgress(query.done(ours(ends, ends, ends, shop.path, "g"), at_s=30))
    (total,) = listener.sources()
    assert (total.retries, total.dead_letters) == (0, 2)
    by = "query", "source", "consumer_group"
    assert samples(listener, "rmq_stream_retries", *by) == {("orders", "0", "g"): 1}
    assert samples(listener, "rmq_stream_dead_letters", *by) == {("orders", "0", "g"): 3}
    listener.close()


# ---- queries and sources


def test_sources_of_other_formats_are_not_looked_at(shop: Shop) -> None:
    shop.send(2)
    listener, query = LagListener(), Query(name=None)
    others = [
        foreign({"topic": {"0": 1}}, {"topic": {"0": 5}}, {"topic": {"0": 9}}),  # Kafka
        foreign(3, 7),  # rate
        foreign({"logOffset": 0}, {"logOffset": 1}),  # files
        foreign({"sourceVersion": 1, "reservoirId": "x"}, {"sourceVersion": 1, "reservoirId": "x"}),  # Delta
        foreign(None, None),
        foreign(None, "[" * 5000),
        foreign(None, StreamPosition("s", {T0: 1}).to_json()),  # reports no ends
    ]
    listener.onQueryProgress(query.done(*others, ours({T0: 0}, {T0: 1}, {T0: 2}, shop.path)))
    (row,) = listener.rows()
    assert (row.query, row.source, row.lag) == ("", 7, 1)
    assert samples(listener, "rmq_listener_errors") == {(): 0}
    listener.close()


def test_two_sources_and_two_queries_are_kept_apart_and_one_that_ends_leaves_rows_but_no_metrics(shop: Shop) -> None:
    shop.send(5)
    listener, join, other = LagListener(), Query("join"), Query("other")
    both = ours({T0: 0}, {T0: 1}, {T0: 5}, shop.path), ours({T0: 0}, {T0: 4}, {T0: 5}, shop.path)
    for query in (join, other):
        listener.onQueryStarted(query.started())
    listener.onQueryProgress(join.done(*both))
    listener.onQueryProgress(other.done(both[1]))
    by = "query", "source", "topic", "queue_id"
    assert samples(listener, "rmq_stream_lag_messages", *by) == {
        ("join", "0", "T", "0"): 4, ("join", "1", "T", "0"): 1, ("other", "0", "T", "0"): 1,
    }  # fmt: skip
    assert len(listener.sources()) == 3
    listener.onQueryTerminated(join.terminated())
    assert set(samples(listener, "rmq_stream_lag_messages", "query")) == {("other",)}
    assert sorted(row.query for row in listener.rows()) == ["join", "join", "other"]
    assert list(listener._stores) == [str(shop.path)]
    listener.onQueryTerminated(other.terminated())
    assert samples(listener, "rmq_stream_lag_messages") == {}
    assert (len(listener.sources()), listener._stores) == (3, {})
    listener.onQueryStarted(Query(query_id=join.id).started())
    assert {row.query for row in listener.rows()} == {"other"}


def test_the_rows_of_the_last_hundred_ended_queries_are_kept(shop: Shop) -> None:
    shop.send(1)
    listener = LagListener()
    for number in range(102):
        query = Query(f"q{number}")
        listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 1}, {T0: 1}, shop.path)))
        listener.onQueryTerminated(query.terminated())
    assert [row.query for row in listener.rows()] == [f"q{number}" for number in range(2, 102)]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_query_that_was_started_again_is_one_query(shop: Shop, is_told: bool) -> None:
    """Also if nobody has said that the first run is over: two runs would be one series twice."""
    shop.send(5)
    listener, first = LagListener(), Query()
    listener.onQueryProgress(first.done(ours({T0: 0}, {T0: 1}, {T0: 5}, shop.path)))
    again = Query(query_id=first.id)
    if is_told:
        listener.onQueryStarted(again.started())
        assert listener.rows() == []
    listener.onQueryProgress(again.done(ours({T0: 1}, {T0: 3}, {T0: 5}, shop.path)))
    assert samples(listener, "rmq_stream_lag_messages", "query_id") == {(str(first.id),): 2}
    listener.close()


# ---- what it gives


def test_the_table_has_a_column_for_each_field_also_without_rows(shop: Shop) -> None:
    listener = LagListener()
    empty = listener.table()
    assert (empty.num_rows, empty.column_names) == (0, list(lag_listener.QueueRow._fields))
    listener.onQueryProgress(Query().done(ours({T0: 0}, {T0: 1, T1: 0}, {T0: 0}, shop.path)))
    table = listener.table()
    assert table.schema == empty.schema
    assert [tuple(row.values()) for row in table.to_pylist()] == [tuple(row) for row in listener.rows()]
    listener.close()


def test_a_progress_is_one_line_of_json_for_each_source(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.send(4)
    listener, query = LagListener(), Query("täglich")
    with caplog.at_level(logging.INFO, "pyspark_rmq.lag"):
        listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 3, T1: 0}, {T0: 4}, shop.path, "g")))
        listener.onQueryIdle(query.idle(at_s=9))
    (record,) = (record for record in caplog.records if record.name == "pyspark_rmq.lag")
    assert "\n" not in record.getMessage()
    assert json.loads(record.getMessage()) == {
        "query": "täglich", "queryId": str(query.id), "runId": str(query.run_id), "batchId": 0, "source": 0,
        "path": str(shop.path), "group": "g", "messages": 3, "retries": 0, "deadLetters": 0, "lag": 1,
        "lagSeconds": 1.0, "rate": 3.0, "etaSeconds": pytest.approx(1 / 3),
        "awayBrokers": [],
        "topics": {"T": {"messages": 3, "lag": 1, "lagSeconds": 1.0}},
    }  # fmt: skip
    listener.close()


def test_the_metrics_are_those_of_the_table_and_go_to_a_file_at_each_event(shop: Shop, tmp_path: Path) -> None:
    shop.send(4)
    target = tmp_path / "stream.prom"
    listener, query = LagListener(target), Query('a "query"\n\\ of mine')
    listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 3}, {T0: 4}, shop.path, "g")))
    assert target.read_text() == listener.openmetrics()
    read = list(parse(target.read_text()))
    assert [(found.name, found.type, found.unit, found.documentation) for found in read] == [
        (metric.name, metric.kind, metric.unit, metric.help) for metric in STREAM_METRICS
    ]
    assert [found.name for found in read if not found.samples] == ["rmq_stream_broker_away"], "none is away"
    assert {sample.labels["query"] for found in read[:-1] for sample in found.samples} == {'a "query"\n\\ of mine'}
    shop.send(1)
    listener.onQueryIdle(query.idle(at_s=9))
    assert target.read_text() == listener.openmetrics()
    assert samples(listener, "rmq_stream_lag_messages", "topic") == {("T",): 2}
    listener.onQueryTerminated(query.terminated())
    assert "rmq_stream_lag_messages{" not in target.read_text()
    assert list(parse(target.read_text()))[-1].samples[0].value == 0


def test_a_name_that_is_no_text_spoils_no_file(shop: Shop, tmp_path: Path) -> None:
    listener, query = LagListener(tmp_path / "stream.prom"), Query("half a pair: \ud83d")
    listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 0}, {T0: 0}, shop.path)))
    (lag,) = next(found for found in parse((tmp_path / "stream.prom").read_text())).samples
    assert lag.labels["query"] == "half a pair: ?"
    listener.close()


def test_a_file_in_no_directory_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory"):
        LagListener(tmp_path / "absent" / "stream.prom")


# ---- what goes wrong


def test_a_store_that_is_not_here_costs_seconds_and_dead_letters_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener, query = LagListener(), Query()
    for number in range(3):
        begin, end = {T0: number}, {T0: number + 1}
        listener.onQueryProgress(query.done(ours(begin, end, {T0: 9}, tmp_path / "elsewhere", "g"), at_s=number))
    (row,) = listener.rows()
    assert (row.lag, row.lag_seconds, row.rate, row.eta_seconds) == (6, None, 1.0, 6.0)
    (total,) = listener.sources()
    assert total.dead_letters is None
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 1
    assert "NotAStoreError" in told[0].getMessage()
    assert "elsewhere" in told[0].getMessage()
    assert samples(listener, "rmq_listener_errors") == {(): 3}
    assert samples(listener, "rmq_stream_dead_letters", "query") == {}


def test_nothing_that_goes_wrong_reaches_spark_and_other_sources_are_told(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.send(2)
    target = tmp_path / "gone" / "stream.prom"
    target.parent.mkdir()
    listener, query = LagListener(target), Query()
    target.parent.rmdir()
    newer = ours({T0: 0}, {T0: 1}, {T0: 2}, shop.path)
    newer["endOffset"]["version"] = 3
    listener.onQueryProgress(query.done(ours({T0: 0}, {T0: 1}, {T0: 2}, shop.path)))  # the file cannot be written
    listener.onQueryProgress(query.done(newer, ours({T0: 1}, {T0: 2}, {T0: 2}, shop.path)))
    listener.onQueryProgress(object())  # type: ignore[arg-type]
    listener.onQueryIdle(object())  # type: ignore[arg-type]
    listener.onQueryTerminated(object())  # type: ignore[arg-type]
    listener.onQueryStarted(object())  # type: ignore[arg-type]
    assert [(row.source, row.lag) for row in listener.rows()] == [(0, 1), (1, 0)]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 3  # FileNotFoundError, UsageError, AttributeError: each once
    assert any("newer version" in text for text in told)
    assert samples(listener, "rmq_listener_errors") == {(): 1 + 2 + 2 + 2 + 2 + 1}  # the file's, and the event's
    listener.close()


def test_readers_and_callbacks_may_be_in_any_thread(shop: Shop) -> None:
    shop.send(3)
    listener, failures, stop = LagListener(), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                list(parse(listener.openmetrics()))
                assert {row.lag for row in listener.rows()} <= {1, 2}
            except Exception as error:
                failures.append(error)
                return

    def run(query: Query) -> None:
        for position in (1, 2):
            listener.onQueryProgress(query.done(ours({T0: 0}, {T0: position}, {T0: 3}, shop.path)))
        listener.onQueryTerminated(query.terminated())

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=run, args=(Query(f"q{number}"),)) for number in range(8)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert failures == []
    assert {(row.query, row.position) for row in listener.rows()} == {(f"q{number}", 2) for number in range(8)}
    assert samples(listener, "rmq_listener_errors") == {(): 0}


# ---- Spark


@pytest.mark.spark
def test_a_real_query_is_watched_batch_by_batch(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path = make_store(Orders=100)
    with Store.open(path) as store:
        store.create_group(SubscriptionGroup("cg"))
        store.send(Message("%RETRY%cg", b"again"))
        store.send(Message("%DLQ%cg", b"dead before the query began"))
    target = tmp_path / "stream.prom"
    seen: list[SourceRow] = []
    is_over = threading.Event()

    class Watching(LagListener):
        def onQueryProgress(self, event: Any) -> None:
            super().onQueryProgress(event)
            seen.extend(self.sources())
            if not seen[-1].lag:
                tables.append(self.table())
                texts.append(target.read_text())

        def onQueryTerminated(self, event: Any) -> None:
            super().onQueryTerminated(event)
            is_over.set()

    tables: list[Any] = []
    texts: list[str] = []
    listener = Watching(target)
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("rmq").options(
            path=str(path), subscribe="Orders", group="cg", startingOffsets="earliest", maxOffsetsPerTrigger="40"
        ).load()  # fmt: skip
        writer = rows.writeStream.queryName("orders").format("noop").option("checkpointLocation", str(tmp_path / "c"))
        run_in_batches(writer)
        assert is_over.wait(30)
    finally:
        spark.streams.removeListener(listener)
    read = [row for row in seen if row.messages]
    assert [(row.batch_id, row.messages, row.lag) for row in read] == [(0, 40, 61), (1, 40, 21), (2, 21, 0)]
    assert (sum(row.retries for row in read), sum(row.dead_letters or 0 for row in read)) == (1, 0)
    assert all(row.rate for row in read)
    assert all((row.lag_seconds or 0) > 0 for row in read[:-1])
    assert read[-1].eta_seconds == read[-1].lag_seconds == 0
    rows_of_spark = spark.createDataFrame(tables[0]).collect()
    assert {(row["query"], row["path"], row["group"], row["topic"]) for row in rows_of_spark} == {
        ("orders", str(path), "cg", topic) for topic in ("Orders", "%RETRY%cg")
    }
    assert (sum(row["position"] for row in rows_of_spark), sum(row["lag"] for row in rows_of_spark)) == (101, 0)
    shown = {found.name: found.samples for found in parse(texts[0])}
    assert sum(sample.value for sample in shown["rmq_stream_messages"]) == 101
    assert [sample.value for sample in shown["rmq_listener_errors"]] == [0]
    assert samples(listener, "rmq_stream_lag_messages") == {}
    assert {(row.query, row.lag) for row in listener.rows()} == {("orders", 0)}, "it has ended"


def test_a_query_over_a_cluster_is_measured_by_what_its_source_reports() -> None:
    queues = [Queue("T", BrokerQueueId(name, number)) for name, number in (("a", 0), ("a", 1), ("b", 0))]
    begin, end = (dict.fromkeys(queues, offset) for offset in (0, 4))
    latest = StreamPosition("cluster:c", dict(zip(queues, (4, 9, 5), strict=True))).to_json()
    source = foreign(
        json.dumps(StreamPosition("cluster:c", begin).to_json()),
        json.dumps(StreamPosition("cluster:c", end).to_json()),
        json.dumps(latest | {"nameServer": "ns1:9876", "group": "g"}),
    )
    listener = LagListener()
    listener.onQueryProgress((query := Query()).done(source))
    listener.onQueryProgress(query.done(source))
    rows = listener.rows()
    assert [(row.path, row.broker_name, row.queue_id, row.lag, row.lag_seconds, row.messages) for row in rows] == [
        ("rmq://ns1:9876", "a", 0, 0, 0.0, 4),
        ("rmq://ns1:9876", "a", 1, 5, None, 4),
        ("rmq://ns1:9876", "b", 0, 1, None, 4),
    ]
    (total,) = listener.sources()
    assert (total.lag, total.group, total.dead_letters, total.lag_seconds) == (6, "g", None, None)
    assert listener.table().column("broker_name").to_pylist() == ["a", "a", "b"]
    text = listener.openmetrics()
    assert 'queue_id="a:1"' in text and "rmq_listener_errors_total 0" in text


def over_cluster(
    end: dict[Queue, int], latest: dict[Queue, int], away: tuple[str, ...] = (), policy: str = "goOn"
) -> dict[str, Any]:
    """A source over a cluster: `latest` has no queue of a broker that is away."""
    reported = StreamPosition("cluster:c", latest).to_json() | {"nameServer": "ns:9876", "onBrokerAway": policy}
    return foreign(
        json.dumps(StreamPosition("cluster:c", end).to_json()), json.dumps(StreamPosition("cluster:c", end).to_json()),
        json.dumps(reported | ({"away": list(away)} if away else {})),
    )  # fmt: skip


A0, B0 = (Queue("T", BrokerQueueId(name, 0)) for name in "ab")


def test_the_lag_of_a_broker_that_is_away_is_unknown_and_the_broker_is_named(caplog: pytest.LogCaptureFixture) -> None:
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 6, B0: 9})))
    assert (listener.sources()[0].lag, listener.sources()[0].away_brokers) == (7, ())
    with caplog.at_level(logging.INFO, logger="pyspark_rmq.lag"):
        listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 6}, ("b",)), at_s=1))
    assert [(row.broker_name, row.end, row.lag, row.lag_seconds, row.eta_seconds) for row in listener.rows()] == [
        ("a", 6, 2, None, None), ("b", None, None, None, None),
    ]  # fmt: skip
    (total,) = listener.sources()
    assert (total.lag, total.lag_seconds, total.eta_seconds, total.away_brokers) == (None, None, None, ("b",))
    assert listener.table().column("lag").to_pylist() == [2, None]
    told = json.loads(caplog.records[-1].message)
    assert (told["lag"], told["awayBrokers"], told["topics"]["T"]["lag"]) == (None, ["b"], None)
    assert samples(listener, "rmq_stream_lag_messages", "queue_id") == {("a:0",): 2}
    assert samples(listener, "rmq_stream_broker_away", "broker_name") == {("b",): 1}
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 6, B0: 9}), at_s=2))
    assert (listener.sources()[0].lag, listener.sources()[0].away_brokers) == (7, ())
    assert samples(listener, "rmq_stream_broker_away", "broker_name") == {}


def test_behind_an_unknown_lag_nothing_tells_how_fast_it_shrinks() -> None:
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 6}, ("b",))))
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 5, B0: 4}), at_s=1))
    (total,) = listener.sources()
    assert (total.lag, total.eta_seconds) == (1, None)


def test_all_brokers_may_be_away() -> None:
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {}, ("a", "b"))))
    assert [row.lag for row in listener.rows()] == [None, None]
    assert listener.sources()[0].away_brokers == ("a", "b")


class _Spark:
    """A session, as far as the listener asks it: the last progress of its only query."""

    def __init__(self, progress: Any) -> None:
        self.streams = self
        self.lastProgress = progress

    def get(self, _: str) -> Any:
        return self


@pytest.mark.parametrize("is_asked", [True, False])
def test_an_idle_query_over_a_cluster_shows_no_old_ends(is_asked: bool) -> None:
    """Its event has nothing of its sources. The query knows what they report."""
    listener, query = LagListener(), Query()
    listener.onQueryProgress(query.done(over_cluster({A0: 4, B0: 4}, {A0: 4, B0: 4})))
    if is_asked:
        progress = query.done(over_cluster({A0: 4, B0: 4}, {A0: 7}, ("b",))).progress
        listener.spark = _Spark(progress)  # type: ignore[assignment]
    listener.onQueryIdle(query.idle(20))
    assert [row.lag for row in listener.rows()] == ([3, None] if is_asked else [None, None])
    assert listener.sources()[0].away_brokers == (("b",) if is_asked else ())
    assert "rmq_listener_errors_total 0" in listener.openmetrics()


def test_what_another_run_of_an_idle_query_has_reported_is_not_shown() -> None:
    listener, query, other = LagListener(), Query(), Query()
    listener.onQueryProgress(query.done(over_cluster({A0: 4}, {A0: 4})))
    listener.spark = _Spark(other.done(over_cluster({A0: 4}, {A0: 7})).progress)  # type: ignore[assignment]
    listener.onQueryIdle(query.idle(20))
    assert [row.lag for row in listener.rows()] == [None]


@pytest.mark.parametrize(("policy", "has_state", "is_told"), [("goOn", True, True), ("wait", True, False),
                                                              ("goOn", False, False)])  # fmt: skip
def test_a_query_with_state_that_goes_on_without_brokers_is_warned_of_once(
    policy: str, has_state: bool, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    listener = LagListener()
    for query in (Query(), Query()):
        for at_s in range(3):
            event = query.done(over_cluster({A0: 4}, {A0: 4}, policy=policy), at_s=at_s)
            if has_state:
                event.progress["stateOperators"] = [object()]
            listener.onQueryProgress(event)
        listener.onQueryTerminated(query.terminated())
    assert caplog.text.count("Set onBrokerAway=wait to keep them") == 2 * is_told
