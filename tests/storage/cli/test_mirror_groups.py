"""`rmq mirror offsets --all-groups`: each group of Kafka is moved, or named with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kafka import errors

from helpers.kafka_in_memory import MemoryKafka, MemoryReader
from helpers.kafka_wire import CLUSTER_ID as KAFKA_ID
from helpers.kafka_wire import Group, WireBroker
from rmq_store import Store
from rmq_store.bridge.kafka import administration, connect
from rmq_store.bridge.mirror.into_store import IntoStore
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, options

from .changing import command

TOPIC = "orders"


@pytest.fixture
def mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic of five records that a store has; Kafka's administration is real, its records are in memory."""
    kafka = MemoryKafka(KAFKA_ID)
    kafka.create_topic(TOPIC)
    kafka.produce(TOPIC, *((b"k", b"%d" % number, ()) for number in range(5)))
    told = administration.KafkaPythonAdministration
    monkeypatch.setattr(told, "topics", lambda self, names=None: {
        name: topic for name, topic in kafka.topics.items() if names is None or name in names
    })  # fmt: skip
    monkeypatch.setattr(told, "topic_settings", lambda self, name: {})
    monkeypatch.setattr(administration, "_WAIT_S", 0.2)
    monkeypatch.setattr(connect, "open_reader", lambda connection: MemoryReader(kafka))
    root = tmp_path / "store"
    with WireBroker((4, 3)) as broker:
        connection = connect.KafkaConnection((broker.address,))
        with Store.open(root, create=True) as store, connect.connected(connection) as (asked, reader):
            IntoStore(store, reader, asked, options(TOPIC), wait=lambda seconds: False).run(until_caught_up=True)
        yield root, broker


def test_groups_of_all_types_move_and_those_that_cannot_are_named_with_the_reason(mirrored: Any) -> None:
    root, broker = mirrored
    at = {(TOPIC, 0): 3}
    broker.groups.update(
        classic=Group(at), stored=Group(at, protocol=""), new=Group(at, "Consumer"), own=Group(at, protocol="own"),
        streams=Group(at, "Streams", "streams", "Stable"), share=Group(kind="Share", protocol="share"),
        connect=Group(protocol="connect"), elsewhere=Group({("other", 0): 3}),
        secret=Group(error=errors.GroupAuthorizationFailedError.errno),
        open=Group(error=errors.UnstableOffsetCommitError.errno),
    )  # fmt: skip
    own = ("--bootstrap-servers", broker.address, "--name", "m", "--cluster-id", CLUSTER_ID, "--to", "rmq")
    result = command(root, "mirror", "offsets", *own, "--all-groups", "--yes", "--json")
    told = {group["group"]: group["error"] for group in json.loads(result.stdout)["groups"]}
    assert result.exit_code == 1
    moved = {"classic", "stored", "new", "own", "streams"}
    assert {group for group, error in told.items() if error is None} == moved
    assert told.keys() - moved == {"share", "secret", "open"}
    assert "share group" in told["share"]
    assert "transaction open" in told["open"]
    assert "Authorization" in told["secret"]
    with Store.open(root, read_only=True) as store:
        assert {group for group in store.all_committed_offsets() if group in broker.groups} == moved
