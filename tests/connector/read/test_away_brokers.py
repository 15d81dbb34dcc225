"""Streams while a broker is away: the table of questions of a plan, and of absences at each of them.

The table has a row for each request that a plan makes. A request without a row fails here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from pyspark_rmq.access import cluster_reader
from pyspark_rmq.position.position import StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, planned, through_spark
from .absences import KINDS, Absence
from .conftest import Clock

Make = Callable[..., Any]
A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)
pytestmark = pytest.mark.usefixtures("in_memory")

PULL, ENDS, LEAST, MOST, BY_TIME = 11, 202, 31, 30, 29
OFFSET, COMMIT, PROGRESS, GROUPS = 14, 15, 208, 201
LOCK, UNLOCK, HEARTBEAT, LEAVE, MEMBERS = 41, 42, 34, 35, 203
FIGURES, KIND = 28, 351


class Case(NamedTuple):
    """A query, and the requests to brokers that its plans make."""

    options: dict[str, str]
    requests: frozenset[int]
    prepare: Callable[[FakeNet], object] = lambda net: None


def without_stats(net: FakeNet) -> None:
    for broker in net.brokers.values():
        broker.refused[ENDS] = 16, "no permission"


def of_4_9(net: FakeNet) -> None:
    for broker in net.brokers.values():
        for process in broker.processes.values():
            process.version = 407


def three_topics(net: FakeNet) -> None:
    for broker in net.brokers.values():
        for topic in ("T2", "T3"):
            broker.put(topic, 0, 10)


def committed(net: FakeNet) -> None:
    for broker in net.brokers.values():
        broker.groups.add("g")
        for topic, queue_id in broker.queues:
            broker.offsets["g", topic, queue_id] = 0


EARLIEST: Final = {"startingOffsets": "earliest"}
GROUP: Final = {"group": "g", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
LEASE: Final = {LOCK, UNLOCK, HEARTBEAT, LEAVE, MEMBERS, OFFSET, COMMIT}
CASES: Final[dict[str, Case]] = {
    "earliest": Case(EARLIEST, frozenset({ENDS, KIND, PULL, FIGURES})),
    "a time": Case({"startingTimestamp": "0"}, frozenset({ENDS, KIND, PULL, BY_TIME, FIGURES})),
    "a pattern": Case({"subscribePattern": "T.*", **EARLIEST}, frozenset({ENDS, KIND, PULL, FIGURES}), three_topics),
    "without the right for 202": Case(
        EARLIEST, frozenset({ENDS, KIND, PULL, LEAST, MOST, FIGURES}), without_stats
    ),
    "a group": Case(GROUP, frozenset({ENDS, KIND, PULL, FIGURES, *LEASE})),
    "offsets of a group": Case(
        {**GROUP, "startingOffsets": "group"}, frozenset({ENDS, KIND, PULL, FIGURES, GROUPS, *LEASE}), committed
    ),
    "a group of 4.9": Case(GROUP, frozenset({ENDS, KIND, PULL, FIGURES, PROGRESS, *LEASE}), of_4_9),
}
# All kinds of absence with two queries, and with the others those that differ most.
AT_A_REQUEST: Final = [
    (name, code, kind)
    for name, case in CASES.items()
    for code in sorted(case.requests - {LEAVE, UNLOCK})
    for kind in (KINDS if name in ("earliest", "a group") else ("silent", "forgotten"))
]


class Query:
    """A stream as Spark runs it. `read`: how often each message was planned, of completed batches and of the last one.
    """

    def __init__(self, stream: Make, clock: Clock, net: FakeNet, options: dict[str, str]) -> None:
        self._clock = clock
        self._net = net
        self.reader = stream(**options)
        self.position: dict[str, Any] | None = None
        self.read: Counter[tuple[str, BrokerQueueId, int]] = Counter()

    def trigger(self, by_ms: float = 5_000) -> list[tuple[Any, ...]]:
        """Plan one batch; the one before is completed with that."""
        self._clock.now_ms += by_ms
        self.reader._idle = None
        if self.position is None:
            self.position = through_spark(self.reader.initialOffset())
        start = self.position
        self.position = through_spark(self.reader.latestOffset(start, LIMIT))
        if self.position == start:
            return []
        parts = planned(self.reader, start, self.position)
        self.reader.commit(self.position)
        for topic, queue_id, first, last in parts:
            self.read.update((topic, queue_id, offset) for offset in range(first, last))
        return parts

    def next(self, topic: str = "T") -> dict[BrokerQueueId, int]:
        """The next offset of each queue of a topic."""
        position = StreamPosition.from_json(self.position)
        return {queue.queue_id: offset for queue, offset in position.next.items() if queue.topic == topic}

    def check_all_read_once(self) -> None:
        expected = {
            (topic, BrokerQueueId(broker.name, queue_id), offset)
            for broker in self._net.brokers.values()
            for (topic, queue_id), queue in broker.queues.items()
            for offset in queue.frames
        }
        assert set(self.read) == expected
        assert set(self.read.values()) == {1}


@pytest.fixture
def query(stream: Make, clock: Clock, net: FakeNet, monkeypatch: pytest.MonkeyPatch) -> Make:
    def sleep(duration_s: float) -> None:
        clock.now_ms += duration_s * 1000

    lease = partial(cluster_reader.GroupLease, sleep=sleep, timer_s=lambda: clock.now_ms / 1000)
    monkeypatch.setattr(cluster_reader, "GroupLease", lease)

    def make(case: Case) -> Query:
        case.prepare(net)
        return Query(stream, clock, net, case.options)

    return make


def put(net: FakeNet, count: int = 3) -> None:
    for broker in net.brokers.values():
        for topic, queue_id in list(broker.queues):
            broker.put(topic, queue_id, count)


@pytest.mark.parametrize("name", CASES)
def test_the_table_has_a_row_for_each_request_of_a_plan(net: FakeNet, query: Make, name: str) -> None:
    made = query(CASES[name])
    made.trigger()
    put(net)
    made.trigger()
    absence = Absence(net, "broker-b", "silent")
    put(net)
    made.trigger()
    absence.end()
    made.trigger(40_000)
    made.trigger()
    assert not set(net.codes()) - CASES[name].requests
    assert not CASES[name].requests - {FIGURES, LEAVE, UNLOCK} - set(net.codes()), "a row that nobody asks"


@pytest.mark.parametrize(("name", "code", "kind"), AT_A_REQUEST)
def test_a_broker_goes_at_a_request_of_a_new_query(
    net: FakeNet, query: Make, name: str, code: int, kind: str
) -> None:
    made = query(CASES[name])
    absence = Absence(net, "broker-b", kind, at_code=code)
    for _ in range(4):
        put(net) if "broker-b" in net.brokers else net.brokers["broker-a"].put("T", 0, 1)
        made.trigger()
        assert made.next()[A0] == net.brokers["broker-a"].queues["T", 0].end
    absence.end()
    made.trigger(40_000)
    made.trigger(31_000)
    made.check_all_read_once()


@pytest.mark.parametrize(("name", "code", "kind"), AT_A_REQUEST)
def test_a_broker_goes_at_a_request_of_a_running_query(
    net: FakeNet, query: Make, name: str, code: int, kind: str
) -> None:
    made = query(CASES[name])
    made.trigger()
    put(net)
    made.trigger()
    before = made.next()
    absence = Absence(net, "broker-b", kind, at_code=code)
    for _ in range(4):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger()
        assert made.next() == {**before, A0: net.brokers["broker-a"].queues["T", 0].end}
    absence.end()
    put(net)
    made.trigger(40_000)
    made.trigger(31_000)
    made.check_all_read_once()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_a_query_is_started_again_while_a_broker_is_away(
    net: FakeNet, query: Make, name: str, kind: str
) -> None:
    first = query(CASES[name])
    first.trigger()
    put(net)
    first.trigger()
    first.reader.stop()
    absence = Absence(net, "broker-b", kind)
    again = query(Case(CASES[name].options, frozenset()))
    again.position, again.read = first.position, first.read
    before = again.next()
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        again.trigger()
        assert again.next() == {**before, A0: net.brokers["broker-a"].queues["T", 0].end}
    absence.end()
    put(net)
    again.trigger(40_000)
    again.trigger(31_000)
    again.check_all_read_once()
