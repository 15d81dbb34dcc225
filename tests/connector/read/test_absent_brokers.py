"""Brokers that are away when a read is planned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.cluster import BrokerAwayError
from rmq_store.errors import UnknownTopicError

from ...storage.remoting.cluster.fake_cluster import FakeBroker, FakeNet
from ..planned_batches import first_batch, planned
from .absences import A0, A1, B0
from .conftest import Clock, batch, rows

Make = Callable[..., Any]
ALL = [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
BOTH = "broker-a,broker-b"
pytestmark = pytest.mark.usefixtures("in_memory")


def slices(reader: Any) -> list[tuple[Any, ...]]:
    return [tuple(part.part) for part in reader.partitions()]


def leave(net: FakeNet, name: str = "broker-b") -> FakeBroker:
    """The broker's processes are gone: a name server forgets it at once."""
    return net.brokers.pop(name)


def hang(net: FakeNet) -> None:
    """Its processes stand still: a name server notices only after two minutes."""
    for process in net.brokers["broker-b"].processes.values():
        process.silent = True


def shut_down(net: FakeNet) -> None:
    net.brokers["broker-b"].refused[28] = (14, "the broker is shutting down")


@pytest.mark.parametrize("goes", [leave, hang, shut_down])
@pytest.mark.parametrize("subscription", [{}, {"subscribePattern": "T.*"}, {"subscribePattern": "None.*"},
                                          {"assign": '{"T":["broker-a:0"]}'}])  # fmt: skip
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_read_without_a_required_broker_fails_by_name_before_any_row(
    net: FakeNet, stream: Make, goes: Callable[[FakeNet], Any], subscription: dict[str, str], kind: str
) -> None:
    goes(net)
    options = {**subscription, "requiredBrokers": BOTH} | ({"onBrokerAway": "fail"} if kind == "stream" else {})
    with pytest.raises(BrokerAwayError, match=r"required brokers are away.*broker-b: ") as raised:
        batch(**options).partitions() if kind == "batch" else stream(**options).initialOffset()
    assert raised.value.broker_names == ("broker-b",)
    assert "broker-a:" not in str(raised.value)
    assert 11 not in net.codes(), "no message was pulled"


def test_all_brokers_that_are_missing_are_named(net: FakeNet) -> None:
    leave(net)
    with pytest.raises(BrokerAwayError, match=r"no name server of ns:9876 knows it; broker-c: no name") as raised:
        batch(requiredBrokers="broker-b,broker-a,broker-c").partitions()
    assert raised.value.broker_names == ("broker-b", "broker-c")


def test_a_name_that_differs_in_case_is_named(net: FakeNet) -> None:
    with pytest.raises(BrokerAwayError, match=r"Broker-B: no name server of ns:9876 knows it \(it knows broker-b\)$"):
        batch(requiredBrokers="broker-a,Broker-B").partitions()


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_name_server_that_has_just_begun_is_passed_over(net: FakeNet, stream: Make, kind: str) -> None:
    """Brokers register every 30 s. Until then it shows a part of the cluster."""
    net.add_name_server("ns2:9876")
    servers = {"nameServer": "ns:9876;ns2:9876", "requiredBrokers": BOTH}
    for fresh, other in (("ns:9876", "ns2:9876"), ("ns2:9876", "ns:9876")):
        net.unregistered = {fresh: {"broker-b"}}
        if kind == "batch":
            assert slices(batch(**servers)) == ALL
        else:
            reader = stream(startingOffsets="earliest", **servers)
            start, end = first_batch(reader)
            assert planned(reader, start, end) == ALL
        net.unregistered[other] = {"broker-b"}
        with pytest.raises(BrokerAwayError, match="broker-b: no name server of ns:9876;ns2:9876 knows it"):
            batch(**servers).partitions()
    net.unregistered = {"ns:9876": {"broker-b"}, "ns2:9876": {"broker-a"}}
    with pytest.raises(BrokerAwayError, match="none knows all of broker-a, broker-b") as raised:
        batch(**servers).partitions()
    assert raised.value.broker_names == ("broker-a", "broker-b")


def test_with_all_required_brokers_a_batch_is_the_same(net: FakeNet, caplog: pytest.LogCaptureFixture) -> None:
    assert slices(batch(requiredBrokers=BOTH)) == slices(batch()) == ALL
    reader = batch(requiredBrokers=BOTH)
    assert len(rows(reader, reader.partitions())) == 30
    assert not caplog.records


def test_a_required_broker_need_not_have_the_topic(net: FakeNet) -> None:
    net.add_broker("broker-c")
    assert slices(batch(requiredBrokers="broker-c")) == ALL
    net.brokers["broker-c"].processes[0].down = True
    with pytest.raises(BrokerAwayError, match=r"broker-c.*connect to broker-c-0"):
        batch(requiredBrokers="broker-c").partitions()


def test_a_slave_answers_for_its_master(net: FakeNet) -> None:
    net.brokers["broker-b"].processes[0].down = True
    assert slices(batch(requiredBrokers=BOTH)) == ALL
    net.brokers["broker-b"].processes[1].down = True
    with pytest.raises(BrokerAwayError, match="broker-b"):
        batch(requiredBrokers=BOTH).partitions()


def test_a_broker_without_rights_for_its_figures_is_there(net: FakeNet) -> None:
    for name, refusal in (("broker-a", (16, "no permission")), ("broker-b", (1, "AclException: no"))):
        net.brokers[name].refused[28] = refusal
    assert slices(batch(requiredBrokers=BOTH)) == ALL


def test_brokers_of_a_proxy_are_known_by_the_routes_of_topics(net: FakeNet) -> None:
    from rmq_store.protocol.wire.command import response_to

    ask = net._name_server
    net._name_server = lambda address, command: (  # type: ignore[method-assign]
        response_to(command, 3, "not supported") if command.code == 106 else ask(address, command)
    )
    assert slices(batch(requiredBrokers=BOTH)) == ALL
    with pytest.raises(BrokerAwayError, match="broker-c"):
        batch(requiredBrokers="broker-c").partitions()


def test_the_topic_of_a_broker_that_is_away_is_not_called_unknown(net: FakeNet) -> None:
    net.brokers["broker-b"].put("Bills", 0, 3)
    leave(net)
    with pytest.raises(UnknownTopicError):
        batch(subscribe="Bills,T").partitions()
    with pytest.raises(BrokerAwayError, match="broker-b"):
        batch(subscribe="Bills,T", requiredBrokers="broker-b").partitions()


def test_a_broker_that_has_just_come_back_is_there_with_its_queues(net: FakeNet, monkeypatch: Any) -> None:
    """Routes are kept for 30 s by a process that reads again."""
    from pyspark_rmq.access import cluster_location

    shared = net.cluster(timer=lambda: 1_000.0)
    monkeypatch.setattr(cluster_location, "take", lambda options: shared)
    gone = leave(net)
    assert slices(batch()) == ALL[:2]
    with pytest.raises(BrokerAwayError, match="broker-b"):
        batch(requiredBrokers=BOTH).partitions()
    net.brokers["broker-b"] = gone
    assert slices(batch(requiredBrokers=BOTH)) == ALL


@pytest.mark.parametrize("goes", [leave, hang])
def test_a_stream_ends_when_a_required_broker_goes(
    net: FakeNet, stream: Make, more: Make, goes: Callable[[FakeNet], Any]
) -> None:
    fails = {"requiredBrokers": BOTH, "onBrokerAway": "fail"}
    reader, other = stream(**fails), stream()
    _, end = first_batch(reader)
    first_batch(other)
    net.brokers["broker-a"].put("T", 0, 1)
    goes(net)
    with pytest.raises(BrokerAwayError, match="broker-b"):
        more(reader, end, 31_000)
    with pytest.raises(BrokerAwayError, match="broker-b"):
        stream(**fails).partitions(end, end)


def test_a_running_stream_asks_for_nothing_more_than_ends(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(requiredBrokers=BOTH)
    _, end = first_batch(reader)
    net.calls.clear()
    for _ in range(3):
        end = more(reader, end)
    assert 28 not in net.codes()
    away = net.brokers["broker-b"].processes[0]
    away.down = True
    for _ in range(5):
        end = more(reader, end, by_ms=150)
    assert net.codes().count(28) <= 4, "its slave is asked, at most once a second; and its master before it"


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_what_the_process_has_seen_of_a_broker_is_told(
    net: FakeNet, stream: Make, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    batch().partitions()
    leave(net)
    with caplog.at_level(logging.WARNING):
        batch().partitions() if kind == "batch" else first_batch(stream())
    assert "brokers that had queues of T are away, broker-b: no name server of ns:9876 knows them now" in caplog.text
    assert "requiredBrokers" in caplog.text


def test_what_a_checkpoint_has_of_a_broker_is_told_once(
    net: FakeNet, stream: Make, more: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_rmq.cluster_read.awaited_brokers import KnownBrokers

    _, end = first_batch(stream(startingOffsets="earliest"))
    gone = leave(net)
    monkeypatch.setattr(KnownBrokers, "_of_process", {})
    again = stream()
    with caplog.at_level(logging.WARNING):
        later = more(again, end)
        assert "queues of T are away, broker-b" in caplog.text
        caplog.clear()
        later = more(again, later)
        assert not caplog.text
        more(stream(), later)
        assert "queues of T are away, broker-b" in caplog.text, "also when the position has it closed"
    gone.put("T", 0, 2)
    net.brokers["broker-b"] = gone
    last = more(again, later, 31_000)
    assert planned(again, later, last) == [("T", B0, 10, 12)], "nothing is lost or skipped"


def test_an_ordered_topic_tells_of_a_broker_that_a_new_process_never_saw(
    net: FakeNet, caplog: pytest.LogCaptureFixture
) -> None:
    net.order_topic_conf["T"] = "broker-a:2;broker-b:1"
    leave(net)
    assert slices(batch()) == ALL[:2]
    assert "queues of T are away, broker-b" in caplog.text


def test_a_topic_that_a_broker_has_no_more_is_no_absence(
    net: FakeNet, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    batch().partitions()
    net.brokers["broker-b"].topics.pop("T")
    clock.now_ms += 31_000
    assert slices(batch()) == ALL[:2]
    assert "away" not in caplog.text
    leave(net)
    batch().partitions()
    assert "away" not in caplog.text, "it is forgotten"
