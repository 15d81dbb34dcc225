"""One stream reads and one writes while a master dies, or stands still, and comes back: nothing is lost, nothing is
delivered or stored twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from pyspark_rmq.access import cluster_pool

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]
NewName = Callable[[str], str]

DIES, STAYS = "broker-a", "broker-b"
QUEUES = 2
EVERY_S = 0.02
# Time-outs of 3 s come one after the other while a master stands still, and the machine has few processors.
PATIENCE_S = 300


class Place(NamedTuple):
    broker: str
    queue_id: int
    offset: int


class Orders:
    """Sends 0, 1, 2 ... in the background, in turn to the masters of `brokers`; a `with` block ends it.

    `acknowledged` are the numbers that a broker has taken for certain.
    """

    def __init__(self, cluster: RocketmqCluster, topic: str) -> None:
        self.brokers: tuple[str, ...] = (DIES, STAYS)
        self.acknowledged: set[int] = set()
        self._cluster = cluster
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        connections: dict[str, Any] = {}
        number = 0
        while not self._over.wait(EVERY_S):
            name = self.brokers[number % len(self.brokers)]
            try:
                broker = connections.get(name) or connections.setdefault(name, self._cluster.connect(name, timeout_s=2))
                queue_id = number // len(self.brokers) % QUEUES
                if requests.send(broker, self._topic, queue_id, b"%d" % number).code == 0:
                    self.acknowledged.add(number)
            except OSError:
                # Whether it is stored is not known, and nobody sends it again.
                if name in connections:
                    connections.pop(name).close()
            number += 1
        for broker in connections.values():
            broker.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


class Deliveries:
    """What a stream has delivered, batch by batch. A batch that comes again, because its query ended, is the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Place]] = {}

    def take(self, rows: Any, batch: int) -> None:
        places = sorted(Place(*row) for row in rows.select("brokerName", "queueId", "queueOffset").collect())
        assert self.batches.setdefault(batch, places) == places

    def of(self, broker: str) -> int:
        return sum(place.broker == broker for places in list(self.batches.values()) for place in places)

    def times(self) -> Counter[Place]:
        return Counter(place for places in self.batches.values() for place in places)


@pytest.fixture(scope="module", params=VERSIONS)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2, slaves=1) as cluster:
        yield cluster


@pytest.fixture
def brokers(whole_cluster: RocketmqCluster) -> Iterator[RocketmqCluster]:
    whole_cluster.heal()
    yield whole_cluster
    cluster_pool.close_unused()


def ends(cluster: RocketmqCluster, topic: str, broker: str, broker_id: int = 0) -> int:
    """How many messages a broker has of a topic."""
    with cluster.connect(broker, broker_id) as connection:
        return sum(requests.max_offset(connection, topic, queue_id) for queue_id in range(QUEUES))


def wait_for(queries: list[Any], fulfilled: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        for query in queries:
            if query.exception() is not None:
                raise query.exception()
        assert time.monotonic() < deadline_s, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.1)


@pytest.mark.statement("G20")
@pytest.mark.parametrize(
    ("is_suspended", "has_directory"),
    [
        pytest.param(False, True, id="killed, records in a directory"),
        pytest.param(False, False, id="killed, records in a topic"),
        pytest.param(True, False, id="suspended, records in a topic"),
    ],
)
def test_streams_go_on_through_a_master_that_is_away_and_comes_back(
    spark: Any, brokers: RocketmqCluster, new_name: NewName, tmp_path: Path, is_suspended: bool, has_directory: bool
) -> None:
    orders = brokers.create_topic(new_name("Orders"), QUEUES, on_slaves=True)
    bills = brokers.create_topic(new_name("Bills"), QUEUES, on_slaves=True)
    delivered = Deliveries()

    def source(**options: object) -> Any:
        given = {"nameServer": brokers.name_server, "subscribe": orders, "startingOffsets": "earliest", **options}
        return spark.readStream.format("rmq").options(**given).load()

    def everything(topic: str) -> Any:
        return spark.read.format("rmq").option("nameServer", brokers.name_server).option("subscribe", topic).load()

    group = new_name("cg")

    def start_reading() -> Any:
        stream = source(group=group).writeStream.foreachBatch(delivered.take)
        return stream.option("checkpointLocation", str(tmp_path / "r")).trigger(processingTime="1 second").start()

    def start_writing() -> Any:
        # While it waits for a master, a task keeps its place from the reading query, four times in turn.
        given = {"nameServer": brokers.name_server, "topic": bills, "settleTime": "1200ms"}
        given |= {"sendTimeout": "20s", "brokerAwayTimeout": "20s"}
        if has_directory:
            given["markerPath"] = str(tmp_path / "records")
        stream = source().select("body").writeStream.format("rmq").options(**given)
        return stream.option("checkpointLocation", str(tmp_path / "w")).trigger(processingTime="1 second").start()

    queries: list[Any] = []
    try:
        with Orders(brokers, orders) as sender:
            # One after the other: Spark gives each Python process ten seconds to start, beside six brokers.
            queries.append(start_reading())
            wait_for(queries, lambda: delivered.of(STAYS) > 0, "the first order")
            queries.append(start_writing())
            wait_for(
                queries,
                lambda: min(delivered.of(DIES), delivered.of(STAYS)) >= 50
                and min(ends(brokers, bills, DIES), ends(brokers, bills, STAYS)) >= 50,
                "the first orders and bills",
            )

            read, written = delivered.of(STAYS), ends(brokers, bills, STAYS)
            if is_suspended:
                brokers.broker(DIES).suspend()
            else:
                brokers.broker(DIES).kill()
            sender.brokers = (STAYS,)
            # With two masters records in a topic may not be missed: tasks wait for the one that is away, and fail.
            alive = queries if has_directory else queries[:1]
            wait_for(alive, lambda: delivered.of(STAYS) >= read + 100, f"orders of {STAYS}")
            if has_directory:
                wait_for(alive, lambda: ends(brokers, bills, STAYS) >= written + 100, f"bills at {STAYS}")
            # All that the slave has comes from it, also to a query that begins, or goes on from its checkpoint, now.
            at_slave = ends(brokers, orders, DIES, 1)
            assert everything(orders).where(f"brokerName = '{DIES}'").count() == at_slave > 0
            wait_for(alive, lambda: delivered.of(DIES) >= at_slave, f"orders of {DIES} from its slave")
            queries[0].stop()
            alive[0] = queries[0] = start_reading()
            read = delivered.of(STAYS)
            wait_for(alive, lambda: delivered.of(STAYS) >= read + 50, f"orders of {STAYS} after a restart")

            read, written = delivered.of(DIES), ends(brokers, bills, STAYS)
            brokers.heal()
            if not has_directory:
                ended = queries[1].exception()
                assert ended is None or "SendInDoubtError" in str(ended), ended
                queries[1].stop()
                queries[1] = start_writing()
            at_master = ends(brokers, bills, DIES)
            sender.brokers = (DIES, STAYS)
            wait_for(queries, lambda: delivered.of(DIES) >= read + 100, f"orders of {DIES} from its master")
            wait_for(queries, lambda: ends(brokers, bills, DIES) >= at_master + 50, f"bills at {DIES}")
            wait_for(queries, lambda: ends(brokers, bills, STAYS) >= written + 50, f"bills at {STAYS}")
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()

    def rows(topic: str) -> list[Any]:
        columns = ("brokerName", "queueId", "queueOffset", "int(string(body)) AS number")
        return everything(topic).selectExpr(*columns).collect()

    stored = rows(orders)
    numbers = Counter(row.number for row in stored)
    assert sender.acknowledged <= numbers.keys() and set(numbers.values()) == {1}
    assert delivered.times() == Counter(Place(row.brokerName, row.queueId, row.queueOffset) for row in stored)
    assert Counter(row.number for row in rows(bills)) == numbers
