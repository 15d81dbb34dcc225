"""RocketMQ's own example of POP at a released broker and at a served store: the same mode, kept in the same file."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.pop_example import GROUP, TOPIC, VERSION, PopExample
from rmq_store import Message, StoreConfig
from rmq_store.client import Producer
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.pop.request_modes import RequestMode, RequestModeTable


def _run(name_server: str, home: Path) -> None:
    """The example gets what is sent: 20 messages in all queues."""
    home.mkdir()
    with PopExample(name_server, home) as example:
        bodies = {f"message {number:02}".encode() for number in range(20)}
        with Producer("p", f"rmq://{name_server}") as producer:
            for body in sorted(bodies):
                producer.send(Message(TOPIC, body))
        missing = set(bodies)
        while missing:
            line = example.received()
            missing -= {body for body in missing if str(list(body))[1:-1] in line}


def _modes(store: Path) -> str:
    return (store / "config" / "messageRequestMode.json").read_text()


@pytest.mark.slow
def test_the_example_runs_at_both_and_leaves_the_same_file(tmp_path: Path) -> None:
    require_released(VERSION)
    with RocketmqCluster(VERSION) as brokers:
        brokers.create_topic(TOPIC, 4)
        _run(brokers.name_server, tmp_path / "at a broker")
        store = brokers.broker().directory / "store"
        of_broker = _modes(store)
        assert RequestModeTable(store).get(TOPIC, GROUP) == RequestMode("POP", 8)

    root = tmp_path / "store"
    with BrokerServer(root, config=StoreConfig(), create=True, admin=True) as server:
        server.store.create_topic(TOPIC, 4)
        _run(server.address, tmp_path / "at a store")
    assert _modes(root) == of_broker

    with BrokerServer(root, admin=True) as server:
        _run(server.address, tmp_path / "at a store that was served before")
