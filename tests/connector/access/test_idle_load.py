"""What an idle stream over a cluster costs its brokers, and how soon it notices a message. A clock that tests move."""

from __future__ import annotations

from collections import Counter

import pytest

from pyspark_rmq.access.cluster_reader import ClusterReader
from pyspark_rmq.cluster_read.known_ends import ROUND_REQUESTS_PER_S
from pyspark_rmq.cluster_read.log_figures import LogFigures
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.protocol.results import QueueRange

from ...storage.remoting.cluster.fake_cluster import FakeBroker, FakeNet

pytestmark = pytest.mark.long

BROKERS = [f"broker-{number}" for number in range(10)]
TOPICS = [f"T{number:02}" for number in range(100)]
PLACE = BrokerQueueId("broker-7", 0)


class Query:
    """Asks as Spark does: every 10 ms."""

    def __init__(self, net: FakeNet) -> None:
        self.net = net
        self.now_ms = 1_000_000.0
        self.reader = ClusterReader(net.cluster(timer=lambda: self.now_ms), timer_ms=lambda: self.now_ms)
        for topic in TOPICS:
            self.reader.queue_ranges(topic)
            self.reader.find_topic(topic)
        self.asked: Counter[int] = Counter()

    def run(self, duration_ms: int) -> list[int]:
        """The number of requests of each second."""
        found = []
        for first in range(0, duration_ms, 1000):
            self.net.calls.clear()
            for _ in range(min(100, (duration_ms - first) // 10)):
                self.now_ms += 10
                self.reader.refresh()
            found.append(len(self.net.calls))
            self.asked.update(command.code for _, command in self.net.calls)
        return found

    def sees(self, end: int, topic: str = "T42") -> bool:
        return self.reader.queue_range(topic, PLACE) == QueueRange(0, end)

    def ms_until(self, end: int, at_most_ms: int) -> int:
        for waited_ms in range(10, at_most_ms + 10, 10):
            self.now_ms += 10
            self.reader.refresh()
            if self.sees(end):
                return waited_ms
        return 1 << 30


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    for name in BROKERS:
        broker = made.add_broker(name)
        for topic in TOPICS:
            broker.create_topic(topic, 1)
    return made


@pytest.fixture
def broker(net: FakeNet) -> FakeBroker:
    return net.brokers["broker-7"]


def test_a_hundred_topics_on_ten_brokers_take_fifty_requests_a_second_when_idle(net: FakeNet) -> None:
    query = Query(net)
    query.run(3_000)
    query.asked.clear()
    seconds = query.run(70_000)
    assert max(seconds) <= 50
    assert query.asked[28] <= 70 * 25 + 10 and query.asked[202] <= 70 * ROUND_REQUESTS_PER_S
    assert query.asked.keys() - {28, 202} <= {105, 106, 206}, "routes"


def test_a_new_message_is_seen_within_a_second(net: FakeNet, broker: FakeBroker) -> None:
    query = Query(net)
    query.run(5_000)
    for count in range(1, 6):
        broker.put("T42", 0, 1)
        assert query.ms_until(count, 1_000) < 700
        query.run(1_730)


def test_a_message_that_comes_to_its_queue_later_than_to_the_log_is_seen_within_a_second(
    net: FakeNet, broker: FakeBroker
) -> None:
    query = Query(net)
    query.run(5_000)
    broker.processes[0].end = 0
    broker.put("T42", 0, 1)
    query.run(900)
    broker.processes[0].end = None
    assert query.ms_until(1, 1_000) < 700
    query.run(5_000)
    broker.processes[0].end = 1
    broker.put("T42", 0, 1)
    assert broker.figures is not None
    broker.figures["dispatchBehindBytes"] = "1000"
    query.run(30_000)
    broker.processes[0].end = None
    assert query.ms_until(2, 1_000) < 1_000, "a broker that says it is behind is asked until it is not"


def test_a_message_that_no_figure_shows_is_found_by_the_round_through_all_topics(
    net: FakeNet, broker: FakeBroker
) -> None:
    broker.figures = {"commitLogMaxOffset": "77"}
    query = Query(net)
    query.run(5_000)
    broker.put("T42", 0, 1)
    all_of_them = len(BROKERS) * len(TOPICS)
    assert query.ms_until(1, int(all_of_them / ROUND_REQUESTS_PER_S * 1000) * 2) < 1 << 30


@pytest.mark.parametrize("refusal", [(16, "no permission"), (1, "AclException"), (3, "not supported"), None])
def test_brokers_without_a_figure_are_asked_for_their_topics(
    net: FakeNet, broker: FakeBroker, refusal: tuple[int, str] | None
) -> None:
    for each in net.brokers.values():
        if refusal is None:
            each.figures = {"commitLogMaxOffset": "?"}
        else:
            each.refused[28] = refusal
    query = Query(net)
    query.run(5_000)
    broker.put("T42", 0, 1)
    assert query.ms_until(1, 1_000) <= 1_000
    assert max(query.run(10_000)) <= 2_100, "a second has one or two rounds of 1,000 requests"


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_a_broker_that_is_busy_is_asked_for_its_figure_again(net: FakeNet, broker: FakeBroker, code: int) -> None:
    figures = LogFigures(net.cluster())
    broker.refused[28] = code, "not now"
    assert figures.quiet(["broker-7"], 0) == set()
    broker.refused.clear()
    assert figures.quiet(["broker-7"], 10) == set()
    assert figures.quiet(["broker-7"], 2_000) == {"broker-7"}


def test_news_at_one_broker_ask_for_its_topics_only(net: FakeNet, broker: FakeBroker) -> None:
    query = Query(net)
    query.run(5_000)
    broker.put("T42", 0, 1)
    net.calls.clear()
    assert query.ms_until(1, 1_000) < 700
    asked = Counter(address for address, command in net.calls if command.code == 202)
    assert asked.pop("broker-7-0:10911") >= 100 and sum(asked.values()) <= 20


def test_traffic_of_other_topics_costs_a_bounded_number_of_requests(net: FakeNet) -> None:
    query = Query(net)
    query.run(5_000)
    for each in net.brokers.values():
        each.create_topic("Noise", 1)
    worst = 0
    for _ in range(20):
        for each in net.brokers.values():
            each.put("Noise", 0, 1)
        (count,) = query.run(1_000)
        worst = max(worst, count)
    assert worst <= 2_100


def test_queues_that_are_opened_and_a_broker_that_goes_are_noticed_as_before(net: FakeNet, broker: FakeBroker) -> None:
    query = Query(net)
    query.run(5_000)
    broker.create_topic("T42", 2)
    query.run(60_000)
    assert BrokerQueueId("broker-7", 1) in query.reader.queue_ranges("T42")
    broker.processes[0].down = True
    query.run(2_000)
    assert not isinstance(query.reader.queue_range("T42", PLACE), QueueRange), "no master says it now"
    broker.processes[0].down = False
    query.run(2_000)
    assert isinstance(query.reader.queue_range("T42", PLACE), QueueRange)
