"""Calls that have versions, against brokers of each version of Kafka: no answer of an old one is misunderstood."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from kafka import errors
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from helpers.kafka_wire import CLUSTER_ID, END, Group, WireBroker
from helpers.mirrored import record, records
from rmq_store import GroupInUseError, KafkaRefusedError
from rmq_store.bridge.kafka import administration as module
from rmq_store.bridge.kafka.administration import KafkaPythonAdministration
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader
from rmq_store.bridge.kafka.writer import KafkaPythonWriters

SUPPORTED = [version for version in BROKER_API_VERSIONS if version >= (2, 7)]
TOO_OLD = (2, 6)
NEWEST = max(SUPPORTED)


@contextmanager
def asked(broker: WireBroker) -> Iterator[KafkaPythonAdministration]:
    with closing(KafkaPythonAdministration(KafkaConnection((broker.address,)))) as opened:
        yield opened


@pytest.mark.parametrize("version", SUPPORTED, ids=lambda version: ".".join(map(str, version)))
def test_each_version_tells_its_id_and_its_groups_and_moves_them(version: tuple[int, int]) -> None:
    with WireBroker(version) as broker, asked(broker) as administration:
        broker.groups["billing"] = Group({("orders", 0): 7, ("orders", 1): 8})
        broker.groups["busy"] = Group(state="Stable")
        assert administration.cluster_id() == CLUSTER_ID
        assert set(administration.groups()) == {"billing", "busy"}
        assert administration.group_offsets("billing") == {Partition("orders", 0): 7, Partition("orders", 1): 8}
        assert administration.group_member_count("billing") == administration.group_member_count("nobody") == 0
        administration.commit_group_offsets("billing", {Partition("orders", 0): 9})
        assert administration.group_offsets("billing") == {Partition("orders", 0): 9}
        with pytest.raises(GroupInUseError, match="busy"):
            administration.commit_group_offsets("busy", {Partition("orders", 0): 9})


@pytest.mark.parametrize("version", SUPPORTED, ids=lambda version: ".".join(map(str, version)))
def test_each_version_makes_topics_tells_their_ends_and_takes_transactions(version: tuple[int, int]) -> None:
    with WireBroker(version) as broker, asked(broker) as administration:
        connection = KafkaConnection((broker.address,))
        assert administration.create_topic("orders", 2, {}).partition_count == 2
        administration.grow_topic("orders", 3)
        (topic,) = administration.topics().values()
        assert (topic.partition_count, bool(topic.topic_id.int)) == (3, version >= (2, 8))
        assert administration.topics(["nobody's"]) == {}
        assert administration.topic_settings("orders") == {"cleanup.policy": "compact"}
        place = Partition("orders", 0)
        with closing(KafkaPythonReader(connection)) as reader:
            assert reader.stable_ends([place]) == reader.starts([place]) == {place: END}
        with closing(KafkaPythonWriters(connection.settings(), lambda topic: {}, patience_ms=5_000)) as writers:
            assert writers.high_watermark(place) == END
            writer = writers.writer("id")
            writer.begin()
            writer.add(place, records(record(b"value")))
            assert writer.flush() == {place: END + 1}
            writer.commit()
        assert ("InitProducerIdRequest", 4) in broker.asked and broker.asked[-1][0] == "EndTxnRequest"


def test_an_older_broker_is_refused_in_one_sentence_that_names_the_version() -> None:
    with WireBroker(TOO_OLD) as broker:
        options = KafkaConnection((broker.address,)).settings()
        with closing(KafkaPythonWriters(options, lambda topic: {}, patience_ms=5_000)) as writers:
            with pytest.raises(KafkaRefusedError, match=r"too old .* Kafka 2\.7 or later is needed") as refused:
                writers.writer("id").begin()
        assert "\n" not in str(refused.value)
    with WireBroker((2, 4)) as broker, asked(broker) as administration:
        assert administration.cluster_id() == CLUSTER_ID
        with pytest.raises(KafkaRefusedError, match=r"Kafka 2\.7 or later is needed"):
            administration.group_offsets("billing")


def test_a_list_without_states_does_not_make_members() -> None:
    with WireBroker((2, 5)) as broker, asked(broker) as administration:
        broker.groups["billing"] = Group({("orders", 0): 7})
        broker.groups["busy"] = Group(state="Stable")
        assert (administration.group_member_count("billing"), administration.group_member_count("busy")) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [("Classic", "consumer"), ("Classic", ""), ("Classic", "own"), ("Consumer", "consumer"), ("Streams", "streams")],
)
def test_groups_of_each_type_and_protocol_are_listed_with_their_offsets(kind: str, protocol: str) -> None:
    with WireBroker(NEWEST) as broker, asked(broker) as administration:
        broker.groups["g"] = Group({("orders", 0): 7}, kind, protocol)
        assert list(administration.groups()) == ["g"]
        assert administration.group_offsets("g") == {Partition("orders", 0): 7}


def test_a_share_group_is_listed_and_refused_because_it_has_no_offsets() -> None:
    with WireBroker(NEWEST) as broker, asked(broker) as administration:
        broker.groups["g"] = Group(kind="Share", protocol="share")
        with pytest.raises(KafkaRefusedError, match="'g' is a share group"):
            administration.group_offsets("g")
        with pytest.raises(KafkaRefusedError, match="'g' is a share group"):
            administration.commit_group_offsets("g", {Partition("orders", 0): 7})
        assert list(administration.groups()) == ["g"]


def test_one_group_with_an_open_transaction_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    with WireBroker(NEWEST) as broker, asked(broker) as administration:
        broker.groups["g"] = Group(error=errors.UnstableOffsetCommitError.errno)
        with pytest.raises(KafkaRefusedError, match="'g' has a transaction open"):
            administration.group_offsets("g")
