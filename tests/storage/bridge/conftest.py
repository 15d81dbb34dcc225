"""What tests with kafka-python need, also those without a released Kafka: no socket is left to be collected."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def all_sockets_are_closed(sockets_of_kafka_python_are_closed: None) -> None:
    """For each test below this folder."""
