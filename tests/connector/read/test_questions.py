"""A broker goes at each question that plans ask anywhere in this suite (`AT_BROKERS`), once in the life of a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.protocol.wire.command import RemotingCommand

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import planned, through_spark
from .absences import A0, B0, SOME_KINDS, Absence
from .conftest import Clock
from .questions import AT_BROKERS, BROKER, Question, question_of, without_row
from .test_away_brokers import CASES, Case, Query, put, query

__all__ = ["query"]
Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("in_memory")

# (Call of Spark, who asks, request) -> a query that asks it.
ROWS: dict[tuple[str, str, int], str] = {
    ("commit", "client.group", 15): "a group",
    ("initialOffset", "access.cluster_lookup", 201): "offsets of a group",
    ("initialOffset", "client.backend", 34): "a group",
    ("initialOffset", "client.backend", 203): "a group",
    ("initialOffset", "client.group", 14): "a group",
    ("initialOffset", "client.group", 41): "a group",
    ("initialOffset", "client.group", 208): "a group of 4.9",
    ("initialOffset", "cluster_read.ends", 30): "without the right for 202",
    ("initialOffset", "cluster_read.ends", 31): "without the right for 202",
    ("initialOffset", "cluster_read.ends", 202): "earliest",
    ("initialOffset", "cluster_read.known_ends", 351): "earliest",
    ("initialOffset", "cluster_read.message_locations", 29): "a time",
    ("latestOffset", "client.backend", 34): "a group",
    ("latestOffset", "client.backend", 203): "a group",
    ("latestOffset", "client.group", 14): "a group",
    ("latestOffset", "client.group", 15): "a group",
    ("latestOffset", "client.group", 41): "a group",
    ("latestOffset", "client.group", 208): "a group of 4.9",
    ("latestOffset", "cluster_read.ends", 30): "without the right for 202",
    ("latestOffset", "cluster_read.ends", 31): "without the right for 202",
    ("latestOffset", "cluster_read.ends", 202): "earliest",
    ("latestOffset", "cluster_read.known_ends", 351): "earliest",
    ("latestOffset", "cluster_read.log_figures", 28): "a pattern",
    ("latestOffset", "cluster_read.message_locations", 11): "earliest",
    ("partitions", "cluster_read.message_locations", 11): "earliest",
    ("prepareForTriggerAvailableNow", "cluster_read.ends", 30): "without the right for 202",
    ("prepareForTriggerAvailableNow", "cluster_read.ends", 31): "without the right for 202",
    ("prepareForTriggerAvailableNow", "cluster_read.ends", 202): "earliest",
    ("prepareForTriggerAvailableNow", "cluster_read.known_ends", 351): "earliest",
}
# Asked of queues that turn up late; brokers of 4.x have no exact answer (29), and single messages are read.
LATE = {29: 500, 11: 399, 30: 399, 31: 399}
# Asked only while a broker is away already, or is back: see test_away_brokers.py, and test_waiting.py for the third.
ELSEWHERE = {("cluster_read.outages", 28), ("client.group", 42), ("cluster_read.awaited_brokers", 28),
             ("client.backend", 35), ("client.group", 203)}  # fmt: skip


class Life:
    """A query from its first trigger to AvailableNow behind a restart, in which a broker goes at one question."""

    def __init__(self, net: FakeNet, stream: Make, clock: Clock, query: Make, name: str) -> None:
        self._net, self._stream, self._clock = net, stream, clock
        self._options = CASES[name].options
        self.query: Query = query(Case(self._options, frozenset(), CASES[name].prepare))
        self.absence: Absence | None = None

    def run(self) -> None:
        """Spark's calls of a query that begins, runs, begins again behind a batch, and ends as AvailableNow."""
        self._first()
        self._batches(2)
        self._replayed()
        self._batches(3)
        self._started_again()
        self._batches(2)

    def end(self) -> None:
        if self.absence is not None:
            self.absence.end()
        put(self._net)
        for by_ms in (40_000, 31_000, 5_000):
            self.query.trigger(by_ms)
        self.query.check_all_read_once()

    def _first(self) -> None:
        self._first_parts = sorted(self.query.trigger())
        self._first_end = self.query.position

    def _batches(self, count: int) -> None:
        for _ in range(count):
            gone = self.absence is not None and self.absence.has_gone
            self._net.brokers["broker-a"].put("T", 0, 1) if gone else put(self._net)
            self.query.trigger()
            assert self.query.next()[A0] == self._net.brokers["broker-a"].queues["T", 0].end

    def _stop(self, reader: Any) -> None:
        """A minute later brokers have forgotten a run that could not tell them of its end."""
        reader.stop()
        self._clock.now_ms += 61_000
        away = [] if self.absence is None else [self.absence.broker]
        for broker in (*self._net.brokers.values(), *away):
            broker.locks.clear()
            broker.members.clear()

    def _replayed(self) -> None:
        """A first batch that was not completed, and then the last one."""
        self._stop(self.query.reader)
        again = self._stream(**self._options)
        start = through_spark(again.initialOffset())
        assert sorted(planned(again, start, self._first_end)) == self._first_parts
        self._stop(again)
        self.query.reader = self._stream(**self._options)

    def _started_again(self) -> None:
        """With the trigger AvailableNow."""
        self._stop(self.query.reader)
        self.query.reader = self._stream(**self._options)
        self.query.reader.prepareForTriggerAvailableNow()
        self.query.trigger()
        self._stop(self.query.reader)
        self.query.reader = self._stream(**self._options)


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_a_broker_goes_at_each_question_of_a_plan(
    net: FakeNet, stream: Make, clock: Clock, query: Make, row: tuple[str, str, int], kind: str
) -> None:
    life = Life(net, stream, clock, query, ROWS[row])

    def is_it(command: RemotingCommand) -> bool:
        question = question_of(command)
        return question is not None and question[:3] == row

    life.absence = Absence(net, "broker-b", kind, at=is_it)
    life.run()
    assert life.absence.has_gone, "nobody has asked it"
    life.end()


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("request_code", LATE)
def test_a_broker_goes_at_each_question_for_the_start_of_a_late_queue(
    net: FakeNet, query: Make, request_code: int, kind: str
) -> None:
    for process in net.brokers["broker-b"].processes.values():
        process.version = LATE[request_code]
    first = Absence(net, "broker-b", "forgotten")
    made = query(Case({"startingTimestamp": "1700000000005"}, frozenset()))
    made.trigger()
    first.end()

    def is_it(command: RemotingCommand) -> bool:
        question = question_of(command)
        return question is not None and question[:3] == ("latestOffset", "access.cluster_reader", request_code)

    absence = Absence(net, "broker-b", kind, at=is_it)
    for _ in range(2):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger(31_000)
        assert made.next()[A0] == net.brokers["broker-a"].queues["T", 0].end
    assert absence.has_gone and B0 not in made.next()
    absence.end()
    for _ in range(2):
        made.trigger(40_000)
    assert {at: count for (_, queue_id, at), count in made.read.items() if queue_id == B0} == dict.fromkeys(
        range(5, 10), 1
    )


def test_each_question_has_a_row() -> None:
    rows = {(asker, request) for _, asker, request in ROWS} | ELSEWHERE
    rows |= {("access.cluster_reader", request) for request in LATE}
    assert {(asker, request) for asker, requests in AT_BROKERS.items() for request in requests} == rows


def test_a_question_without_a_row_is_noted(stream: Make, questions_of_plans: set[Question]) -> None:
    reader = stream(startingOffsets="earliest")
    new = RemotingCommand(code=31, ext_fields={"topic": "T", "queueId": "0"})
    reader._in_plan(lambda store: store.cluster.call_broker("broker-a", new))
    assert [one[1:] for one in without_row(questions_of_plans)] == [("read.stream_reader", 31, BROKER)]
    questions_of_plans.clear()
