"""The fixture `kafka`: a running Kafka, the same one for all tests of a process.

Tests share the broker, and each makes its own topics (`kafka.new_topic()`). Where Kafka cannot be had they are skipped,
and say so; in CI (RMQ_TEST_SERVERS=required) they fail.

A test that has this Kafka, and no other fixture of the name `kafka`, gets the marker `kafka_versions`: `make
kafka-versions` runs it with each of some released versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from helpers import kafka_server
from helpers.server_fixtures import require

_RELEASED = "released_kafka"


@pytest.fixture
def kafka(released_kafka: kafka_server.KafkaServer) -> kafka_server.KafkaServer:
    """The running broker; it is started again if a test has killed it."""
    return released_kafka


@pytest.fixture(name=_RELEASED)
def start_released_kafka(sockets_of_kafka_python_are_closed: None) -> kafka_server.KafkaServer:
    """`kafka`, by a name that tests do not take for a Kafka in memory."""
    require(kafka_server.kafka())
    kafka_server.kafka().start()
    return kafka_server.kafka()


@pytest.fixture(scope="session")
def sockets_of_kafka_python_are_closed() -> Iterator[None]:
    """kafka-python forgets to close a socket whose connection fails, or is given up under way, and one whose client is
    closed before all is sent. Python collects it later, with a warning that would fail whatever test runs then.
    """
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.transport import KafkaTCPTransport

    connect, send = KafkaNetSocket.sock_connect, KafkaTCPTransport._write_to_sock

    async def connecting(self: Any, net: Any, sock: Any, *where: Any, **limits: Any) -> Any:
        try:
            return await connect(self, net, sock, *where, **limits)
        except BaseException:
            sock.close()
            raise

    async def sending(self: Any) -> None:
        try:
            await send(self)
        except BaseException:
            if self._sock is not None:
                self._sock.close()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaNetSocket, "sock_connect", connecting)
        patch.setattr(KafkaTCPTransport, "_write_to_sock", sending)
        yield


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if _RELEASED in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka_versions)
