"""The maximum of retries of `consume` over a cluster: each broker has its own, and some do not tell it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.retry import batch_consumer
from pyspark_rmq.retry.batch_consumer import BatchConsumer
from pyspark_rmq.retry.consumed_from import ConsumedFrom, ConsumedStore, consumed_from
from rmq_store.cluster import lacks_rights
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.wire.request_codes import RequestCode

SETTINGS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        for broker, times in zip(brokers.brokers.values(), (1, 5), strict=True):
            retries = SimulatedRetries(broker)
            retries.configs["g"] = SubscriptionGroupConfig(group_name="g", retry_max_times=times)
        yield brokers
        cluster_pool.close_unused()


def place_of(brokers: SimulatedCluster) -> ConsumedFrom:
    return consumed_from(None, {"nameServer": brokers.name_server}, "consume")


def sink_options(place: ConsumedFrom, most: int | None, of_group: int) -> dict[str, Any]:
    """The options with which failures of a batch are written."""
    results = MagicMock()
    consumer = BatchConsumer(MagicMock(), "row", place, "g", most, None, True, (), MagicMock(), None, None)
    consumer._send_back(results, "query", 7, of_group)
    options = results.where.return_value.select.return_value.write.format.return_value.mode.return_value.options
    found: dict[str, Any] = options.call_args.kwargs
    return found


def test_the_setting_of_one_broker_is_not_told_to_the_others(brokers: SimulatedCluster) -> None:
    place = place_of(brokers)
    assert place.location.retry_max_times("g") == 1
    assert "maxReconsumeTimes" not in sink_options(place, None, 1)
    assert sink_options(place, 3, 1)["maxReconsumeTimes"] == "3"


def test_a_store_is_told_the_setting_of_its_group() -> None:
    assert sink_options(ConsumedStore("/data/store"), None, 5)["maxReconsumeTimes"] == "5"


def test_a_broker_that_may_not_tell_its_settings_is_passed_over(brokers: SimulatedCluster) -> None:
    location = place_of(brokers).location
    for broker, expected in zip(brokers.brokers.values(), (5, 16), strict=True):
        broker.refuse(SETTINGS, 16)
        assert location.retry_max_times("g") == expected


def test_another_refusal_is_an_error(brokers: SimulatedCluster) -> None:
    brokers.brokers["broker-000"].refuse(SETTINGS, 1)
    with pytest.raises(MQBrokerError):
        place_of(brokers).location.retry_max_times("g")


def test_a_broker_that_is_away_is_passed_over_if_another_tells_it(brokers: SimulatedCluster) -> None:
    brokers.brokers["broker-000"].stop()
    location = place_of(brokers).location
    assert location.retry_max_times("g") == 5
    with pytest.raises(RemotingError, match="broker-000"):
        location.retry_max_times("of nobody that answers")


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_a_broker_that_is_busy_is_away(brokers: SimulatedCluster, code: int) -> None:
    brokers.brokers["broker-000"].refuse(SETTINGS, code)
    location = place_of(brokers).location
    assert location.retry_max_times("g") == 5
    with pytest.raises(MQBrokerError, match=f"CODE: {code}"):
        location.retry_max_times("of nobody that answers")


def test_a_group_counts_as_read_while_a_broker_is_away_that_may_know_its_members(brokers: SimulatedCluster) -> None:
    location = place_of(brokers).location
    assert not location.is_consuming("g"), "both say that it has no member"
    brokers.brokers["broker-000"].refuse(RequestCode.GET_CONSUMER_CONNECTION_LIST, 2)
    assert location.is_consuming("g")
    brokers.brokers["broker-000"].refuse(RequestCode.GET_CONSUMER_CONNECTION_LIST, 206)
    assert not location.is_consuming("g")
    brokers.brokers["broker-001"].stop()
    assert location.is_consuming("g")


def test_a_group_counts_as_read_while_no_name_server_answers_or_shows_a_broker(brokers: SimulatedCluster) -> None:
    location = place_of(brokers).location
    for name in brokers.brokers:
        brokers.leave(name)
    assert location.is_consuming("g"), "they have just begun"
    cluster_pool.close_unused()
    brokers.server.stop()
    assert location.is_consuming("g")


def test_a_name_server_that_refuses_for_another_reason_is_no_sign_of_a_reader(brokers: SimulatedCluster) -> None:
    brokers.refuse(RequestCode.GET_BROKER_CLUSTER_INFO, 16)
    with pytest.raises(MQBrokerError, match="CODE: 16"):
        place_of(brokers).location.is_consuming("g")


def test_a_broker_that_stands_still_keeps_no_batch_waiting(brokers: SimulatedCluster) -> None:
    first, second = brokers.brokers.values()

    def silent(connection: Any, request: Any) -> None:
        pass

    first.server.handler = silent
    assert place_of(brokers).location.retry_max_times("g") == 5
    assert second.calls[SETTINGS] == 1, "what it told was enough"


def consumer_of(brokers: SimulatedCluster, away: str) -> BatchConsumer:
    place = consumed_from(None, {"nameServer": brokers.name_server, "brokerAwayTimeout": away}, "consume")
    return BatchConsumer(MagicMock(), "row", place, "g", None, None, True, (), MagicMock(), None, None)


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_consume_waits_for_the_setting_while_brokers_are_away(
    brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(SETTINGS, code, count=6)  # each try asks twice
    pauses: list[float] = []
    monkeypatch.setattr(batch_consumer, "sleep", pauses.append)
    assert consumer_of(brokers, "1m")._group_maximum() == 1
    assert 1 <= len(pauses) <= 3 and caplog.text.count("its maximum of retries is not known, and waited for, 60 s") == 1


def test_consume_fails_by_name_when_the_bound_is_over(brokers: SimulatedCluster) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(SETTINGS, 2)
    with pytest.raises(MQBrokerError, match="BROKER: broker-00"):
        consumer_of(brokers, "1ms")._group_maximum()


def test_consume_waits_for_no_broker_that_refuses(brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(SETTINGS, 1)
    monkeypatch.setattr(batch_consumer, "sleep", lambda _: pytest.fail("it will not tell it later, either"))
    with pytest.raises(MQBrokerError, match="CODE: 1"):
        consumer_of(brokers, "1m")._group_maximum()


def test_brokers_of_both_versions_refuse_for_want_of_rights() -> None:
    assert lacks_rights(MQBrokerError(16, "no right"))
    assert lacks_rights(MQBrokerError(1, "org.apache.rocketmq.acl.common.AclException: no right"))
    assert not lacks_rights(MQBrokerError(1, "no room"))
