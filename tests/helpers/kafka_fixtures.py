"""The fixture `kafka`: a running Kafka, the same one for all tests of a process.

Tests share the broker, and each makes its own topics (`kafka.new_topic()`). Where Kafka cannot be had they are skipped,
and say so; in CI (RMQ_TEST_SERVERS=required) they fail.

A test that has this Kafka, and no other fixture of the name `kafka`, gets the marker `kafka_versions`: `make
kafka-versions` runs it with each of some released versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from helpers import kafka_server
from helpers.server_fixtures import require

_RELEASED = "released_kafka"


@pytest.fixture
def kafka(released_kafka: kafka_server.KafkaServer) -> kafka_server.KafkaServer:
    """The running broker; it is started again if a test has killed it."""
    return released_kafka


@pytest.fixture(name=_RELEASED)
def start_released_kafka() -> kafka_server.KafkaServer:
    """`kafka`, by a name that tests do not take for a Kafka in memory."""
    require(kafka_server.kafka())
    kafka_server.kafka().start()
    return kafka_server.kafka()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if _RELEASED in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka_versions)
