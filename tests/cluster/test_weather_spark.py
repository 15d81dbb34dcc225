"""Clients of all kinds outlive the outages of their cluster: streams into `foreachBatch`, into another topic and with
`consume`, push, lite pull and POP consumers, producers, a relay, and mirrors into a real Kafka run together, while
brokers and name servers go and come.

    RMQ_CLUSTER_DONE=build/cluster-done python -m pytest -m cluster tests/cluster/test_weather_spark.py

Each event leaves a file below build/weather, with ages of rows, plans that waited, and what processes use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import kafka_server
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.weather.events import EVENTS, Event
from helpers.cluster.weather.scene import SPARK, WITHOUT_SPARK, Scene
from helpers.kafka_server import KafkaServer
from helpers.server_fixtures import require

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

RESULTS = Path(__file__).resolve().parents[2] / "build" / "weather"
_NUMBERS = itertools.count(1)
SINKS = ("read", "copy", "mirror")
"""Where a message may not come twice."""
STOP_S = 10.0
STREAMS = {"Spark": SPARK, "without Spark": WITHOUT_SPARK}


class Layout(NamedTuple):
    """Masters, and slaves of each."""

    masters: int
    slaves: int = 0


LAYOUTS = {"2 masters": Layout(2), "2 masters with slaves": Layout(2, 1), "3 masters": Layout(3)}


@pytest.fixture(scope="module", params=[(version, layout) for version in VERSIONS for layout in LAYOUTS], ids=", ".join)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    version, layout = request.param
    require_released(version)
    masters, slaves = LAYOUTS[layout]
    with RocketmqCluster(version, groups=masters, slaves=slaves, name_servers=2) as cluster:
        yield cluster


# By name, and no other: a source that has read of what its broker lost, and a sink with a batch in doubt there.
LOSSES = ("DataLossError", "before: the broker has lost messages")


class Stage:
    """The scene of a cluster, in which one event follows another, until one of them ends badly."""

    def __init__(self, cluster: RocketmqCluster, directory: Path, streams: str, kafka: KafkaServer) -> None:
        self.cluster = cluster
        self._kafka = kafka
        self._streams = streams
        self._directory = directory
        self._scene: Scene | None = None

    def scene(self) -> Scene:
        """All clients at work."""
        self.cluster.heal()
        if self._scene is None:
            name = f"Weather-{next(_NUMBERS)}"
            self._scene = Scene(self.cluster, self._directory, name, self._streams, self._kafka)
            self._scene.start()
        return self._scene

    def end(self) -> None:
        """The next event has a scene of its own."""
        scene, self._scene = self._scene, None
        if scene is not None:
            scene.close()


@pytest.fixture(scope="module")
def mirrored_kafka(sockets_of_kafka_python_are_closed: None) -> KafkaServer:
    require(kafka_server.kafka())
    kafka_server.kafka().start()
    return kafka_server.kafka()


@pytest.fixture(scope="module", params=STREAMS)
def stage(
    whole_cluster: RocketmqCluster, mirrored_kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Stage]:  # fmt: skip
    made = Stage(whole_cluster, tmp_path_factory.mktemp("weather"), STREAMS[request.param], mirrored_kafka)
    yield made
    made.end()


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_nothing_ends_nothing_is_lost_and_no_sink_stores_twice(
    stage: Stage, event: Event, request: pytest.FixtureRequest
) -> None:
    is_well = False
    try:
        scene = stage.scene()
        outcome = scene.meet(event)
        outcome.write(RESULTS / f"{request.node.callspec.id}.json")
        ended = [one for one in outcome.ended if not (event.loses and any(word in one for word in LOSSES))]
        assert not ended, f"{ended}\n{scene.log()}"
        assert not any(outcome.errors.values()), outcome.errors
        if event.loses:
            # Members and mirrors skip as many messages as their broker has lost, as RocketMQ's own do. It may also have
            # lost copies.
            assert not outcome.read_unstored or any(one.startswith("read:") for one in outcome.ended), outcome
            assert outcome.lost["read"] == 0, outcome
        else:
            assert (outcome.unstored, set(outcome.lost.values())) == (0, {0}), outcome
        assert not any(outcome.more[name] for name in SINKS), outcome
        assert outcome.stop_s < STOP_S
        is_well = not event.loses
    finally:
        if not is_well:
            stage.end()
