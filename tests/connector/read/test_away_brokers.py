"""Streams while a broker is away: the table of questions of a plan, and of absences at each of them.

`CASES` has a row for each request to brokers that the plans of a query make, and `CALLERS` for each call of Spark that
makes one, and its target. A request without a row fails here. In the default suite a broker goes at each question once
(test_questions.py); here at each request of each query, in each way, with the marker `long`.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from pyspark_rmq.position.position import StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.errors import DataLossError, UnknownTopicError
from rmq_store.protocol.errors import BrokerAwayError, MQBrokerError, RemotingError
from rmq_store.protocol.wire.command import RemotingCommand, response_to

from ...storage.remoting.cluster.fake_cluster import FakeNet, answer, frame
from ..planned_batches import LIMIT, planned, through_spark
from .absences import A0, A1, B0, EARLIEST, KINDS, NAME_SERVER_KINDS, SOME_KINDS, Absence, NameServerAbsence
from .conftest import Clock, batch

Make = Callable[..., Any]
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
    tell(net, PROGRESS, b'{"consumeTps":0.0,"offsetTable":{}}')


def tell(net: FakeNet, code: int, body: bytes) -> None:
    """All brokers answer requests of a code."""
    call = net.call

    def answering(address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if command.code != code:
            return call(address, command, timeout_ms)
        net.calls.append((address, command))
        return response_to(command, 0, body=body)

    net.call = answering  # type: ignore[method-assign]


def three_topics(net: FakeNet) -> None:
    for broker in net.brokers.values():
        for topic in ("T2", "T3"):
            broker.put(topic, 0, 10)


def committed(net: FakeNet) -> None:
    for broker in net.brokers.values():
        broker.groups.add("g")
        for topic, queue_id in broker.queues:
            broker.offsets["g", topic, queue_id] = 0
    tell(net, GROUPS, b'{"subscriptionGroupTable":{}}')


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
ROUTE, CLUSTERS, TOPICS = 105, 106, 206
# Target -> request -> the calls of Spark whose plans may make it. Each of them is met by an absence below: a new query
# (initialOffset, latestOffset), a running one (latestOffset, partitions, commit), a first batch that is planned again
# (initialOffset, partitions), and name servers that are away under a running one.
ALL: Final = frozenset({"initialOffset", "latestOffset", "partitions", "commit"})
LATER: Final = ALL - {"initialOffset"}
STARTS: Final = frozenset({"initialOffset", "latestOffset"})
CALLERS: Final[dict[str, dict[int, frozenset[str]]]] = {
    "broker": {
        ENDS: ALL, LEAST: ALL, MOST: ALL, FIGURES: ALL, KIND: ALL, PULL: LATER, BY_TIME: STARTS,
        OFFSET: ALL, PROGRESS: ALL, GROUPS: frozenset({"initialOffset"}), COMMIT: LATER,
        LOCK: ALL, HEARTBEAT: ALL, MEMBERS: ALL, UNLOCK: ALL, LEAVE: ALL,
    },
    "name server": {ROUTE: ALL, CLUSTERS: ALL, TOPICS: ALL},
}  # fmt: skip
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
        self.commits = True
        # (Call of Spark, target, request).
        self.asked: set[tuple[str, str, int]] = set()
        self.read: Counter[tuple[str, BrokerQueueId, int]] = Counter()

    def trigger(self, by_ms: float = 5_000) -> list[tuple[Any, ...]]:
        """Plan one batch; the one before is completed with that."""
        self._clock.now_ms += by_ms
        self.reader._idle = None
        if self.position is None:
            with self._noting("initialOffset"):
                self.position = through_spark(self.reader.initialOffset())
        start = self.position
        with self._noting("latestOffset"):
            self.position = through_spark(self.reader.latestOffset(start, LIMIT))
        if self.position == start:
            return []
        with self._noting("partitions"):
            parts = planned(self.reader, start, self.position)
        if self.commits:
            with self._noting("commit"):
                self.reader.commit(self.position)
        for topic, queue_id, first, last in parts:
            self.read.update((topic, queue_id, offset) for offset in range(first, last))
        return parts

    @contextlib.contextmanager
    def _noting(self, caller: str) -> Iterator[None]:
        before = len(self._net.calls)
        yield
        for address, command in self._net.calls[before:]:
            target = "name server" if address in self._net.name_servers else "broker"
            self.asked.add((caller, target, command.code))

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
def query(stream: Make, clock: Clock, net: FakeNet, waits_of_leases: None) -> Make:
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
    assert not [one for one in made.asked if one[0] not in CALLERS[one[1]].get(one[2], ())]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.parametrize("kind", SOME_KINDS)
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
        assert not StreamPosition.from_json(again.position).closed
    absence.end()
    put(net)
    again.trigger(40_000)
    again.trigger(31_000)
    again.check_all_read_once()


# -- name servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAME_SERVER_KINDS)
@pytest.mark.parametrize("name", CASES)
def test_a_running_query_does_not_notice_that_name_servers_are_away_or_know_nothing(
    net: FakeNet, query: Make, name: str, kind: str
) -> None:
    made = query(CASES[name])
    made.trigger()
    absence = NameServerAbsence(net, kind)
    for _ in range(4):
        put(net)
        made.trigger(31_000)
        assert made.next()[A0] == net.brokers["broker-a"].queues["T", 0].end
        assert made.next()[B0] == net.brokers["broker-b"].queues["T", 0].end
    absence.end()
    put(net)
    made.trigger(31_000)
    made.check_all_read_once()


@pytest.mark.parametrize("name", ["earliest", "a pattern", "a group"])
def test_a_query_that_starts_again_waits_for_brokers_to_register(net: FakeNet, query: Make, name: str) -> None:
    """Nothing counts as deleted, or as another cluster's, beside a name server that has just begun."""
    first = query(CASES[name])
    first.trigger()
    first.reader.stop()
    absence = NameServerAbsence(net, "empty")
    beside = {"commitOffsets": "false"} if "group" in CASES[name].options else {}
    again = query(Case(CASES[name].options | beside, frozenset()))
    again.position, again.read = first.position, first.read
    before = again.position
    for _ in range(3):
        assert again.trigger() == []
        assert again.position == before
    absence.end()
    put(net)
    again.trigger(40_000)
    again.trigger(31_000)
    again.check_all_read_once()


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_query_that_starts_without_any_name_server_fails_by_name(net: FakeNet, query: Make, kind: str) -> None:
    NameServerAbsence(net, kind)
    with pytest.raises(RemotingError, match="no name server answers: ns:9876"):
        query(CASES["earliest"]).trigger()


# -- a batch that Spark has written down -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_planned_batch_keeps_its_ranges(
    net: FakeNet, stream: Make, clock: Clock, kind: str, loss: str, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**EARLIEST, "failOnDataLoss": loss}
    made = Query(stream, clock, net, options)
    made.trigger()
    start = made.position
    put(net)
    clock.now_ms += 5_000
    end = through_spark(made.reader.latestOffset(start, LIMIT))
    absence = Absence(net, "broker-b", kind)
    reader = stream(**options) if restarts else made.reader
    clock.now_ms += 5_000
    whole = [("T", A0, 10, 13), ("T", A1, 10, 13), ("T", B0, 10, 13)]
    assert sorted(planned(reader, start, end)) == whole
    absence.end()
    clock.now_ms += 40_000
    assert sorted(planned(reader, start, end)) == whole
    assert not [record for record in caplog.records if record.name == "pyspark_rmq.dataloss"]


@pytest.mark.parametrize("code", [PULL, ENDS])
@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_broker_that_is_back_between_two_questions_has_lost_nothing(
    net: FakeNet, stream: Make, clock: Clock, code: int, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of its queue was 0, and then a replay had "lost" [0, n)."""
    options = {**EARLIEST, "failOnDataLoss": loss}
    made = Query(stream, clock, net, options)
    made.trigger()
    absence = Absence(net, "broker-b", "forgotten")
    again = stream(**options)
    call = net.call

    def back_at_a(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == code and address.startswith("broker-a"):
            absence.end()
        return call(address, command, timeout_ms)

    net.call = back_at_a  # type: ignore[method-assign]
    assert through_spark(again.latestOffset(made.position, LIMIT)) == made.position
    net.brokers["broker-b"].put("T", 0, 2)
    clock.now_ms += 40_000
    again._idle = None
    later = through_spark(again.latestOffset(made.position, LIMIT))
    assert planned(again, made.position, later) == [("T", B0, 10, 12)]
    assert not [record for record in caplog.records if record.name == "pyspark_rmq.dataloss"]


# -- what is a loss stays one ------------------------------------------------------------------------------------------


def lose_tail(net: FakeNet) -> None:
    for offset in range(7, 10):
        del net.brokers["broker-b"].queues["T", 0].frames[offset]


@pytest.mark.parametrize("restarts", [True, False])
def test_a_broker_that_comes_back_without_its_tail_is_a_loss(
    net: FakeNet, query: Make, stream: Make, restarts: bool
) -> None:
    made = query(CASES["earliest"])
    made.trigger()
    absence = Absence(net, "broker-b", "silent")
    lose_tail(net)
    made.trigger()
    assert made.next()[B0] == 10
    absence.end()
    if restarts:
        made.reader = stream(**EARLIEST)
    with pytest.raises(DataLossError, match=r"has read T-broker-b:0 \[7, 10\)"):
        made.trigger(40_000)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_loss_is_reported_when_its_broker_is_back_if_it_goes_while_it_is_looked_at(
    net: FakeNet, query: Make, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = query(Case({**EARLIEST, "failOnDataLoss": "false"}, frozenset()))
    made.trigger()
    lose_tail(net)
    absence = Absence(net, "broker-b", kind, at_code=BY_TIME)
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger()
        assert absence.has_gone and made.next()[B0] == 10
    assert not [record for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    absence.end()
    made.trigger(40_000)
    lost = [json.loads(record.message) for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    assert {(one["brokerName"], one["startOffset"], one["endOffset"]) for one in lost} == {("broker-b", 7, 10)}


@pytest.mark.parametrize("name", ["earliest", "a pattern"])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_topic_that_its_brokers_have_no_more_is_deleted(
    net: FakeNet, query: Make, stream: Make, name: str, restarts: bool
) -> None:
    made = query(CASES[name])
    made.trigger()
    absence = Absence(net, "broker-b", "silent")
    for broker in net.brokers.values():
        broker.topics.pop("T")
        for key in [key for key in broker.queues if key[0] == "T"]:
            del broker.queues[key]
    if restarts:
        made.reader = stream(**CASES[name].options)
    with pytest.raises(DataLossError, match="topics were deleted that the stream reads") as error:
        made.trigger()
    assert {queue.broker_name for _, queue, *_ in error.value.ranges} == {"broker-a"}, "the other one may have it"
    absence.end()
    made.reader = stream(**CASES[name].options)
    with pytest.raises((DataLossError, UnknownTopicError), match="T"):
        for _ in range(3):
            made.trigger(40_000)


@pytest.mark.parametrize("error", [(16, "no permission"), (1, "java.lang.NullPointerException")])
def test_a_refusal_ends_the_query_as_before(net: FakeNet, query: Make, error: tuple[int, str]) -> None:
    made = query(CASES["earliest"])
    made.trigger()
    put(net)
    net.brokers["broker-b"].refused[PULL] = error
    with pytest.raises(MQBrokerError, match=error[1]):
        made.trigger()


# -- who is asked ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_silent_broker_is_asked_once_in_the_plan_that_meets_it_and_later_by_probes_only(
    net: FakeNet, query: Make, name: str
) -> None:
    made = query(CASES[name])
    made.trigger()
    put(net)
    made.trigger()
    absence = Absence(net, "broker-b", "silent")
    net.brokers["broker-a"].put("T", 0, 1)
    made.trigger()
    requests = len(absence.calls)
    assert requests <= 2, f"its master and its slave: {absence.calls}"
    for _ in range(20):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger(500)
    # Of 10 s: after 1, 3 and 7 s, to both processes.
    assert Counter(absence.calls[requests:]) == {FIGURES: 6}


# -- the policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_wait_plans_nothing_until_the_broker_is_back(net: FakeNet, query: Make, kind: str) -> None:
    made = query(Case({**GROUP, "onBrokerAway": "wait"}, frozenset()))
    made.trigger()
    made.trigger()
    absence = Absence(net, "broker-b", kind)
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        assert made.trigger() == []
    absence.end()
    assert made.trigger(40_000) == [("T", A0, 10, 13)]
    made.check_all_read_once()


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_fail_ends_the_query(net: FakeNet, query: Make, kind: str) -> None:
    made = query(Case({**EARLIEST, "onBrokerAway": "fail"}, frozenset()))
    made.trigger()
    put(net)
    Absence(net, "broker-b", kind, at_code=PULL)
    with pytest.raises((RemotingError, MQBrokerError)):
        made.trigger()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "forgotten"])
def test_a_batch_read_without_a_broker_fails(net: FakeNet, kind: str) -> None:
    """One that name servers have forgotten nobody can miss, but for requiredBrokers."""
    Absence(net, "broker-b", kind)
    with pytest.raises((RemotingError, MQBrokerError)):
        batch().partitions()


# -- what a user sees --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["goOn", "wait"])
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_warning_says_that_a_broker_is_away_and_one_that_it_is_back(
    net: FakeNet, query: Make, kind: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = query(Case({**EARLIEST, "onBrokerAway": policy}, frozenset()))
    made.trigger()
    caplog.clear()
    absence = Absence(net, "broker-b", kind)
    for _ in range(5):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger()
    said = [record.message for record in caplog.records if "broker broker-b is " in record.message]
    what = {"goOn": "goes on without it", "wait": "plans nothing until it is back"}[policy]
    assert len(said) == 1 and "broker broker-b is away: " in said[0]
    assert f"The stream {what} (onBrokerAway); its queues stay at T-broker-b:0 10" in said[0]
    reported = made.reader.reportLatestOffset()
    assert reported["away"] == ["broker-b"] and "broker-b:0" not in reported["topics"]["T"]
    assert reported["onBrokerAway"] == policy
    absence.end()
    caplog.clear()
    made.trigger(40_000)
    assert "broker broker-b is back after " in caplog.text and "goes on in its queues at T-broker-b:0 10" in caplog.text
    assert "away" not in made.reader.reportLatestOffset()


def test_queues_of_a_broker_that_does_not_grant_the_lease_are_not_planned(net: FakeNet, query: Make) -> None:
    """Not in the plan that asks for it, either, though the broker has told its ends."""
    net.brokers["broker-b"].refused[LOCK] = 2, "busy"
    made = query(CASES["a group"])
    assert {queue_id for _, queue_id, _, _ in made.trigger()} == {A0, A1}


# -- a broker that is back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [True, False])
def test_all_marks_of_a_broker_that_is_back_are_compared(
    net: FakeNet, query: Make, stream: Make, restarts: bool
) -> None:
    """Its newest message may be there, and others not: another disk."""
    made = query(CASES["earliest"])
    made.trigger()
    for queue_id in (1, 0):
        net.brokers["broker-a"].put("T", queue_id, 5 - queue_id)
        made.trigger()
    made.trigger()
    marks = StreamPosition.from_json(made.position).after
    assert {queue.queue_id for queue in marks} == {A0, A1, B0}
    absence = Absence(net, "broker-a", "silent")
    made.trigger()
    frames = net.brokers["broker-a"].queues["T", 1].frames
    frames[13] = frame("T", 1, 20)[:20] + frames[13][20:28] + frame("T", 1, 20)[28:]
    absence.end()
    if restarts:
        made.reader = stream(**EARLIEST)
    with pytest.raises(DataLossError, match=r"T-broker-a:1"):
        made.trigger(40_000)


def test_marks_are_compared_once_with_a_broker_that_is_back(net: FakeNet, query: Make) -> None:
    made = query(CASES["earliest"])
    made.trigger()
    for queue_id in (1, 0):
        net.brokers["broker-a"].put("T", queue_id, 5 - queue_id)
        made.trigger()
    made.trigger()
    absence = Absence(net, "broker-a", "silent")
    made.trigger()
    absence.end()
    asked = []
    for _ in range(3):
        net.calls.clear()
        made.trigger(40_000)
        asked.append(net.codes().count(PULL))
    assert asked == [3, 2, 2], "both of broker-a, and then the newest of each broker"


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("name", ["earliest", "a pattern", "a group"])
def test_rows_of_a_broker_that_is_back_are_read_at_once(net: FakeNet, query: Make, name: str, kind: str) -> None:
    """Not when its route is asked for the next time, which may take 30 s."""
    made = query(CASES[name])
    made.trigger()
    absence = Absence(net, "broker-b", kind)
    made.trigger(31_000)
    absence.end()
    net.brokers["broker-b"].put("T", 0, 2)
    assert made.trigger(1_500) == [("T", B0, 10, 12)]


# -- the first batch, and topics of one broker -------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["silent", "forgotten", "busy"])
@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name, case in CASES.items() for code in sorted(case.requests - {LEAVE, UNLOCK})]
)
def test_a_first_batch_is_planned_again_as_it_was(
    net: FakeNet, query: Make, stream: Make, clock: Clock, name: str, code: int, kind: str
) -> None:
    """Spark asks for the initial position again: its questions obey, too."""
    first = query(CASES[name])
    start = through_spark(first.reader.initialOffset())
    end = through_spark(first.reader.latestOffset(start, LIMIT))
    whole = sorted(planned(first.reader, start, end))
    first.reader.stop()
    absence = Absence(net, "broker-b", kind, at_code=code)
    again = stream(**CASES[name].options)
    clock.now_ms += 5_000
    start = through_spark(again.initialOffset())
    assert sorted(planned(again, start, end)) == whole
    absence.end()
    clock.now_ms += 40_000
    assert sorted(planned(again, start, end)) == whole


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("way", [{"subscribe": "T,Bills"}, {"subscribePattern": "T|Bills"},
                                 {"assign": '{"T":["broker-a:0","broker-a:1","broker-b:0"],"Bills":["broker-b:0"]}'},
                                 {"assign": '{"T":["broker-a:0",1,"broker-b:0"],"Bills":[0]}'}])  # fmt: skip
def test_a_topic_whose_only_broker_is_away_is_neither_unknown_nor_deleted(
    net: FakeNet, query: Make, stream: Make, way: dict[str, str], restarts: bool, kind: str
) -> None:
    net.brokers["broker-b"].put("Bills", 0, 4)
    case = Case({**EARLIEST, **way}, frozenset())
    made = query(case)
    made.trigger()
    absence = Absence(net, "broker-b", kind)
    if restarts:
        made.reader = stream(**case.options)
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger(31_000)
        assert made.next("Bills") == {B0: 4} and made.next()[B0] == 10
        assert made.next()[A0] == net.brokers["broker-a"].queues["T", 0].end
    absence.end()
    net.brokers["broker-b"].put("Bills", 0, 1)
    made.trigger(40_000)
    made.trigger(31_000)
    made.check_all_read_once()


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("way", [{}, {"assign": '{"T":["broker-a:0","broker-a:1","broker-b:0"]}'}])
def test_available_now_ends_with_what_the_others_have(
    net: FakeNet, query: Make, stream: Make, kind: str, way: dict[str, str]
) -> None:
    options = {**EARLIEST, **way}
    made = query(Case(options, frozenset()))
    made.trigger()
    absence = Absence(net, "broker-b", kind)
    for _ in range(2):
        net.brokers["broker-a"].put("T", 0, 1)
        made.reader = stream(**options)
        made.reader.prepareForTriggerAvailableNow()
        made.trigger()
        assert made.trigger() == [] and made.next()[B0] == 10
    absence.end()
    put(net)
    made.reader = stream(**options)
    made.reader.prepareForTriggerAvailableNow()
    made.trigger(40_000)
    made.check_all_read_once()


@pytest.mark.parametrize("kind", ["empty", "not ready"])
def test_a_closed_queue_of_a_pattern_stays_so_beside_a_name_server_that_lists_nothing(
    net: FakeNet, query: Make, kind: str
) -> None:
    """It was forgotten, and read again from its first message when it was opened."""
    made = query(Case({"subscribePattern": "T", **EARLIEST}, frozenset()))
    made.trigger()
    net.brokers["broker-b"].topics["T"] |= {"read": 0, "write": 0, "perm": 2}
    made.trigger(31_000)
    assert StreamPosition.from_json(made.position).closed == {("T", B0): 10}
    absence = NameServerAbsence(net, kind)
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        made.trigger(31_000)
    assert StreamPosition.from_json(made.position).closed == {("T", B0): 10}
    absence.end()
    net.brokers["broker-b"].topics["T"] |= {"read": 1, "write": 1, "perm": 6}
    net.brokers["broker-b"].put("T", 0, 1)
    for _ in range(2):
        made.trigger(31_000)
    made.check_all_read_once()


def test_a_queue_of_which_a_slave_does_not_know_yet_has_lost_nothing(net: FakeNet, query: Make) -> None:
    """A slave learns the settings of a topic up to 60 s late."""
    made = query(CASES["earliest"])
    made.trigger()
    broker = net.brokers["broker-a"]
    broker.processes[0].down = True
    slave = broker.processes[1]

    def of_an_old_topic(command: RemotingCommand) -> RemotingCommand:
        config = broker.topics["T"]
        now, config["queues"] = config["queues"], 1
        told = answer(slave, command)
        config["queues"] = now
        return told

    for _ in range(3):
        slave.answers = [lambda command: of_an_old_topic(command) if command.code == ENDS else answer(slave, command)]
        net.brokers["broker-b"].put("T", 0, 1)
        made.trigger()
        assert made.next()[A1] == 10
    broker.processes[0].down, slave.answers = False, []
    put(net)
    made.trigger(40_000)
    made.trigger(31_000)
    made.check_all_read_once()


def test_a_queue_that_is_closed_stays_so_while_its_broker_is_away(
    net: FakeNet, query: Make, stream: Make
) -> None:
    made = query(CASES["earliest"])
    made.trigger()
    net.brokers["broker-b"].topics["T"] |= {"read": 0, "write": 0, "perm": 2}
    made.trigger(31_000)
    closed = StreamPosition.from_json(made.position).closed
    assert closed == {("T", B0): 10}
    absence = Absence(net, "broker-b", "forgotten")
    made.reader = stream(**EARLIEST)
    net.brokers["broker-a"].put("T", 0, 1)
    made.trigger(31_000)
    assert StreamPosition.from_json(made.position).closed == closed
    absence.end()


# -- offsets of a group ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("ends", [True, False])
def test_offsets_of_a_broker_that_goes_behind_a_batch_are_owed(
    net: FakeNet, query: Make, kind: str, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = query(CASES["a group"])
    made.trigger()
    made.trigger()
    broker = net.brokers["broker-b"]
    assert broker.offsets["g", "T", 0] == 10
    put(net)
    made.commits = False
    made.trigger()
    absence = Absence(net, "broker-b", kind)
    made.trigger()
    made.trigger()
    assert net.brokers["broker-a"].offsets["g", "T", 0] == 13
    assert not {COMMIT, OFFSET, LOCK} & set(absence.calls), "the plan has met it before it commits"
    if ends:
        made.reader.stop()
        assert "the query ends, and no master has taken these offsets: " in caplog.text
        assert "at 13" in caplog.text
        return
    absence.end()
    made.trigger(40_000)
    made.trigger()
    assert broker.offsets["g", "T", 0] == 13


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_an_offset_that_an_operator_has_moved_is_not_set_back_because_its_broker_was_away(
    net: FakeNet, query: Make, stream: Make, kind: str
) -> None:
    first = query(CASES["a group"])
    first.trigger()
    first.trigger()
    first.reader.stop()
    broker = net.brokers["broker-b"]
    broker.offsets["g", "T", 0] = 12
    absence = Absence(net, "broker-b", kind)
    first.reader = stream(**GROUP)
    net.brokers["broker-a"].put("T", 0, 1)
    first.trigger()
    first.trigger()
    absence.end()
    for _ in range(3):
        net.brokers["broker-a"].put("T", 0, 1)
        first.trigger(40_000)
    assert broker.offsets["g", "T", 0] == 12


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_offsets_of_the_user_for_a_broker_that_is_away_are_not_forgotten(
    net: FakeNet, query: Make, stream: Make, kind: str
) -> None:
    case = Case({"startingOffsets": '{"T":{"broker-a:0":3,"broker-a:1":-1,"broker-b:0":4}}'}, frozenset())
    first = query(case)
    start = through_spark(first.reader.initialOffset())
    end = through_spark(first.reader.latestOffset(start, LIMIT))
    whole = [("T", A0, 3, 10), ("T", B0, 4, 10)]
    assert sorted(planned(first.reader, start, end)) == whole
    absence = Absence(net, "broker-b", kind)
    new = query(case)
    with pytest.raises(BrokerAwayError, match=r"startingOffsets names queues whose brokers are away: T-broker-b:0"):
        new.trigger()
    again = stream(**case.options)
    start = through_spark(again.initialOffset())
    assert sorted(planned(again, start, end)) == whole, "a first batch that is planned again knows where it began"
    absence.end()
    assert query(case).trigger() == whole


@pytest.mark.parametrize("name", CASES)
def test_a_master_that_hangs_beside_its_slave_is_waited_for_once(net: FakeNet, query: Make, name: str) -> None:
    made = query(CASES[name])
    made.trigger()
    made.trigger()
    master = net.brokers["broker-b"].processes[0]
    master.silent, master.asked = True, []
    net.brokers["broker-b"].put("T", 0, 1)
    made.trigger()
    first = len(master.asked)
    # A plan of a group commits what is done, too: only masters take that, after a while.
    assert first <= (1 if "group" not in CASES[name].options else 3), [command.code for command in master.asked]
    for _ in range(20):
        net.brokers["broker-b"].put("T", 0, 1)
        made.trigger(500)
    assert made.next()[B0] == net.brokers["broker-b"].queues["T", 0].end, "its slave is read"
    later = Counter(command.code for command in master.asked[first:])
    assert later.pop(FIGURES) == 3 and not later
    master.silent = False
    made.trigger(40_000)
    made.trigger()


def test_a_master_that_a_plan_has_found_silent_is_asked_nothing_for_the_lease(net: FakeNet, query: Make) -> None:
    """Not when a topic comes, nor when the query ends: each question would wait for a time-out."""
    made = query(Case({**GROUP, "subscribePattern": "T.*"}, frozenset()))
    made.trigger()
    made.trigger()
    master = net.brokers["broker-b"].processes[0]
    master.silent = True
    net.brokers["broker-a"].put("T", 0, 1)
    made.trigger()
    master.asked = []
    net.brokers["broker-a"].put("T2", 0, 3)
    assert ("T2", A0, 0, 3) in made.trigger(31_000)
    net.brokers["broker-a"].put("T", 0, 1)
    made.trigger()
    made.reader.stop()
    assert not LEASE & {command.code for command in master.asked}
    assert not net.brokers["broker-a"].locks


def test_known_ends_of_a_broker_that_is_back_are_asked_for_however_fresh_the_others_are(
    net: FakeNet, query: Make
) -> None:
    made = query(CASES["earliest"])
    made.trigger()
    absence = Absence(net, "broker-b", "silent")
    made.trigger()
    made.trigger(995)
    absence.end()
    net.brokers["broker-b"].put("T", 0, 2)
    assert made.trigger(8) == [("T", B0, 10, 12)], "the first probe was due after a second"
