"""The fixture `kafka`: a running Kafka, the same one for all tests of a process.

Tests share the broker, and each makes its own topics (`kafka.new_topic()`). Where Kafka cannot be had they are skipped,
and say so; in CI (RMQ_TEST_SERVERS=required) they fail.
"""

from __future__ import annotations

import pytest

from helpers import kafka_server
from helpers.server_fixtures import require


@pytest.fixture
def kafka() -> kafka_server.KafkaServer:
    """The running broker; it is started again if a test has killed it."""
    require(kafka_server.kafka())
    kafka_server.kafka().start()
    return kafka_server.kafka()
