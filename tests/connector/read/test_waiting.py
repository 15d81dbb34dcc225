"""Waits of a stream before it plans: for required brokers, for all of them (onBrokerAway=wait), for registrations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rmq.query import absences as absences_module
from pyspark_rmq.read import stream_reader
from rmq_store.errors import UnknownTopicError
from rmq_store.protocol.errors import BrokerAwayError, RemotingError

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, first_batch, planned, through_spark
from .absences import A0, B0, EARLIEST, SOME_KINDS, Absence, NameServerAbsence
from .conftest import Clock

Make = Callable[..., Any]
BOTH = "broker-a,broker-b"
pytestmark = pytest.mark.usefixtures("in_memory", "same_clock")


@pytest.fixture
def same_clock(clock: Clock, waits_of_leases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits move the clock, and take no time."""
    for module in (absences_module, stream_reader):
        monkeypatch.setattr(module, "monotonic", clock.now_s)
    monkeypatch.setattr(stream_reader, "sleep", clock.sleep)


def new_query(reader: Any, clock: Clock, by_ms: float = 1_000) -> tuple[dict[str, Any], dict[str, Any]]:
    """A trigger of a query without a batch yet: Spark asks for the start each time."""
    clock.now_ms += by_ms
    return first_batch(reader)


# -- required brokers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_go_on_waits_for_a_required_broker_within_the_bound(
    net: FakeNet, stream: Make, more: Make, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(requiredBrokers=BOTH, brokerAwayTimeout="60s", onBrokerAway="goOn", **EARLIEST)
    _, end = first_batch(reader)
    absence = Absence(net, "broker-b", kind)
    for _ in range(11):
        net.brokers["broker-a"].put("T", 0, 1)
        assert more(reader, end) == end, "nothing is planned meanwhile"
    said = [record.message for record in caplog.records if "broker broker-b is away: " in record.message]
    assert len(said) == 1
    assert "plans nothing until it is back, and fails after 60 s (requiredBrokers, brokerAwayTimeout)" in said[0]
    assert reader.reportLatestOffset()["away"] == ["broker-b"]
    absence.end()
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("T", A0, 10, 21)]
    net.brokers["broker-b"].put("T", 0, 1)
    last = more(reader, later, 31_000)
    Absence(net, "broker-b", kind)
    assert more(reader, last) == last, "a new absence has a bound of its own"
    with pytest.raises(BrokerAwayError, match=r"brokerAwayTimeout, 60 s.*: broker-b, for 6\d\.\d s") as raised:
        for _ in range(20):
            more(reader, last)
    assert raised.value.broker_names == ("broker-b",)


def test_the_bound_is_looked_at_although_nothing_else_changes(net: FakeNet, stream: Make, clock: Clock) -> None:
    """Spark's polls of an idle query take the short way."""
    reader = stream(requiredBrokers=BOTH, brokerAwayTimeout="2s", **EARLIEST)
    _, end = first_batch(reader)
    Absence(net, "broker-b", "silent")
    with pytest.raises(BrokerAwayError, match="broker-b"):
        for _ in range(300):
            clock.now_ms += 10
            assert through_spark(reader.latestOffset(end, LIMIT)) == end


def test_wait_waits_for_a_required_broker_without_end(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(requiredBrokers=BOTH, brokerAwayTimeout="1s", onBrokerAway="wait", **EARLIEST)
    _, end = first_batch(reader)
    absence = Absence(net, "broker-b", "forgotten")
    for _ in range(100):
        assert more(reader, end, 60_000) == end
    absence.end()
    net.brokers["broker-b"].put("T", 0, 1)
    assert planned(reader, end, more(reader, end, 60_000)) == [("T", B0, 10, 11)]


def test_fail_ends_at_once(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(requiredBrokers=BOTH, onBrokerAway="fail", **EARLIEST)
    _, end = first_batch(reader)
    net.add_broker("broker-c")
    other = stream(requiredBrokers="broker-a,broker-c", onBrokerAway="fail", **EARLIEST)
    first_batch(other)
    Absence(net, "broker-b", "forgotten")
    with pytest.raises((BrokerAwayError, RemotingError), match="broker-b"):
        more(reader, end, 31_000)
    Absence(net, "broker-c", "silent")
    with pytest.raises(BrokerAwayError, match="broker-c"):
        more(other, end, 31_000)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_required_broker_without_the_topic_is_waited_for_too(
    net: FakeNet, stream: Make, more: Make, kind: str
) -> None:
    net.add_broker("broker-c")
    reader = stream(requiredBrokers="broker-a,broker-c", brokerAwayTimeout="60s", **EARLIEST)
    _, end = first_batch(reader)
    absence = Absence(net, "broker-c", kind)
    net.brokers["broker-a"].put("T", 0, 1)
    assert more(reader, end) == end and more(reader, end) == end
    absence.end()
    assert planned(reader, end, more(reader, end, 31_000)) == [("T", A0, 10, 11)]
    Absence(net, "broker-c", kind)
    with pytest.raises(BrokerAwayError, match="broker-c"):
        for _ in range(30):
            end = more(reader, end)


@pytest.mark.parametrize("kind", ["refused", "silent", "empty", "not ready"])
def test_a_required_broker_is_there_also_while_name_servers_are_away_or_know_nothing(
    net: FakeNet, stream: Make, more: Make, kind: str
) -> None:
    net.add_broker("broker-c")
    reader = stream(requiredBrokers="broker-a,broker-c", **EARLIEST)
    _, end = first_batch(reader)
    NameServerAbsence(net, kind)
    for _ in range(5):
        net.brokers["broker-a"].put("T", 0, 1)
        later = more(reader, end, 31_000)
        assert later != end
        end = later


@pytest.mark.parametrize("start", [
    EARLIEST, {"startingOffsets": '{"T":{"broker-a:0":3,"broker-a:1":10,"broker-b:0":4}}'},
    {"startingTimestamp": "0"},
])  # fmt: skip
@pytest.mark.parametrize("policy", ["goOn", "wait"])
@pytest.mark.parametrize("available_now", [True, False])
def test_a_new_query_waits_for_a_required_broker(
    net: FakeNet, stream: Make, clock: Clock, start: dict[str, str], policy: str, available_now: bool
) -> None:
    options = {"requiredBrokers": BOTH, "onBrokerAway": policy, **start}
    first, last = first_batch(stream(**options))
    whole = sorted(planned(stream(**options), first, last))
    assert whole[-1] == ("T", B0, 4 if 'broker-b' in str(start) else 0, 10)
    absence = Absence(net, "broker-b", "forgotten")
    reader = stream(**options)
    if available_now:
        reader.prepareForTriggerAvailableNow()
        ends_after(absence, reader, clock, 20_000)
    else:
        for _ in range(20):
            begin, end = new_query(reader, clock)
            assert begin == end
        absence.end()
    begin, end = new_query(reader, clock, 31_000)
    assert sorted(planned(reader, begin, end)) == whole
    again = stream(**options)
    assert sorted(planned(again, through_spark(again.initialOffset()), end)) == whole


def ends_after(absence: Any, reader: Any, clock: Clock, after_ms: float) -> None:
    """The absence ends while the reader waits."""
    until_ms = clock.now_ms + after_ms
    refresh = type(reader)._poll

    def poll(*given: Any) -> Any:
        if clock.now_ms >= until_ms and reader._poll is not original:
            reader._poll = original
            absence.end()
        return refresh(reader, *given)

    original = reader._poll
    reader._poll = poll


# -- AvailableNow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_available_now_waits_where_the_policy_says_so(net: FakeNet, stream: Make, clock: Clock, kind: str) -> None:
    reader = stream(onBrokerAway="wait", **EARLIEST)
    _, end = first_batch(reader)
    for queue_id in (0,):
        net.brokers["broker-b"].put("T", queue_id, 5)
    absence = Absence(net, "broker-b", kind)
    run = stream(onBrokerAway="wait", **EARLIEST)
    run.prepareForTriggerAvailableNow()
    ends_after(absence, run, clock, 300_000)
    later = through_spark(run.latestOffset(end, LIMIT))
    assert planned(run, end, later) == [("T", B0, 10, 15)]
    assert through_spark(run.latestOffset(later, LIMIT)) == later


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_available_now_fails_behind_the_bound_of_a_required_broker(net: FakeNet, stream: Make, kind: str) -> None:
    options = {"requiredBrokers": BOTH, "brokerAwayTimeout": "30s", **EARLIEST}
    _, end = first_batch(stream(**options))
    Absence(net, "broker-b", kind)
    run = stream(**options)
    run.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerAwayError, match="broker-b, for 3"):
        run.latestOffset(end, LIMIT)


def test_available_now_says_what_it_leaves(net: FakeNet, stream: Make, caplog: pytest.LogCaptureFixture) -> None:
    _, end = first_batch(stream(**EARLIEST))
    net.brokers["broker-a"].put("T", 0, 1)
    Absence(net, "broker-b", "silent")
    run = stream(onBrokerAway="goOn", **EARLIEST)
    run.prepareForTriggerAvailableNow()
    later = through_spark(run.latestOffset(end, LIMIT))
    assert planned(run, end, later) == [("T", A0, 10, 11)]
    assert through_spark(run.latestOffset(later, LIMIT)) == later
    (said,) = [record.message for record in caplog.records if "broker-b is away" in record.message]
    assert "This run (AvailableNow) ends without its rows" in said
    assert "its queues stay at T-broker-b:0 10" in said


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_a_broker_that_comes_and_goes_is_told_once_a_minute(
    net: FakeNet, stream: Make, more: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(onBrokerAway="goOn", **EARLIEST)
    _, end = first_batch(reader)
    began_ms = clock.now_ms
    for _ in range(100):
        absence = Absence(net, "broker-b", "refused")
        end = more(reader, end, 1_000)
        absence.end()
        end = more(reader, end, 2_000)
    minutes = (clock.now_ms - began_ms) / 60_000
    gone, back = ([record.message for record in caplog.records if record.levelno == logging.WARNING and text in
                   record.message] for text in ("broker-b is away", "broker-b is back"))  # fmt: skip
    assert 3 <= len(gone) <= minutes + 1 and len(back) <= len(gone)
    assert "broker broker-b is away (it went 2" in gone[1] and " times in 6" in gone[1]


def test_one_that_stays_away_behind_a_short_return_is_told(
    net: FakeNet, stream: Make, more: Make, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(onBrokerAway="goOn", **EARLIEST)
    _, end = first_batch(reader)
    absence = Absence(net, "broker-b", "refused")
    end = more(reader, end, 1_000)
    absence.end()
    end = more(reader, end, 2_000)
    Absence(net, "broker-b", "refused")
    caplog.clear()
    end = more(reader, end, 1_000)
    assert "broker-b is away" not in caplog.text
    for _ in range(7):
        assert through_spark(more(reader, end, 10_000)) == end
    assert caplog.text.count("broker-b is away") == 1


@pytest.mark.parametrize(("options", "is_told"), [({}, True), ({"onBrokerAway": "goOn"}, False),
                                                  ({"onBrokerAway": "wait"}, False)])  # fmt: skip
def test_a_stream_that_starts_says_what_going_on_means_for_state(
    net: FakeNet, stream: Make, more: Make, options: dict[str, str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(**options, **EARLIEST)
    _, end = first_batch(reader)
    more(reader, end)
    assert caplog.text.count("set onBrokerAway=wait for such a query") == is_told
    caplog.clear()
    first_batch(stream(assign='{"T":["broker-a:0","broker-a:1"]}', **EARLIEST))
    assert "onBrokerAway" not in caplog.text, "of one broker no rows come late"


# -- name servers that have just begun ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["empty", "not ready"])
@pytest.mark.parametrize("start", [
    EARLIEST, {"startingOffsets": "latest"},
    {"startingOffsets": '{"T":{"broker-a:0":3,"broker-a:1":10,"broker-b:0":4}}'},
    {"assign": '{"T":["broker-a:0","broker-b:0"]}', **EARLIEST}, {"assign": '{"T":[1]}', **EARLIEST},
    {"group": "g"}, {"group": "g", "startingOffsets": "group"},
])  # fmt: skip
@pytest.mark.parametrize("available_now", [True, False])
def test_a_new_query_waits_for_brokers_to_register(
    net: FakeNet, stream: Make, clock: Clock, kind: str, start: dict[str, str], available_now: bool
) -> None:
    for broker in net.brokers.values():
        broker.groups.add("g")
    options = {**start, "commitOffsets": "false"} if "group" in start else start
    first, last = first_batch(stream(**options))
    whole = sorted(planned(stream(**options), first, last))
    absence = NameServerAbsence(net, kind)
    reader = stream(**options)
    if available_now:
        reader.prepareForTriggerAvailableNow()
        ends_after(absence, reader, clock, 40_000)
    else:
        for _ in range(40):
            begin, end = new_query(reader, clock)
            assert begin == end
        absence.end()
    begin, end = new_query(reader, clock)
    assert sorted(planned(reader, begin, end)) == whole


@pytest.mark.parametrize("kind", ["empty", "not ready"])
def test_a_new_query_fails_when_nobody_registers(net: FakeNet, stream: Make, clock: Clock, kind: str) -> None:
    NameServerAbsence(net, kind)
    reader = stream(**EARLIEST)
    began_ms = clock.now_ms
    with pytest.raises(UnknownTopicError, match="no broker has a topic 'T'"):
        for _ in range(100):
            new_query(reader, clock)
    assert 65_000 <= clock.now_ms - began_ms <= 67_000


def test_a_topic_that_does_not_exist_is_unknown_at_once(net: FakeNet, stream: Make, clock: Clock) -> None:
    net.add_name_server("ns2:9876")
    net.unregistered = {"ns:9876": {"broker-a", "broker-b"}}
    for _ in range(2):
        with pytest.raises(UnknownTopicError, match="'Nothing'"):
            stream(subscribe="Nothing", nameServer="ns:9876;ns2:9876").initialOffset()
        net.unregistered = {"ns2:9876": {"broker-a", "broker-b"}}


@pytest.mark.parametrize("kind", ["empty", "not ready"])
@pytest.mark.parametrize("way", [{}, {"subscribePattern": "T.*"}, {"group": "g"}])
@pytest.mark.parametrize("available_now", [True, False])
def test_a_query_that_starts_again_waits_for_brokers_to_register_before_it_asks_anything(
    net: FakeNet, stream: Make, clock: Clock, more: Make, kind: str, way: dict[str, str], available_now: bool
) -> None:
    """With a group, too: there is no master yet that could lock anything."""
    options = {**way, **EARLIEST}
    first = stream(**options)
    start, end = first_batch(first)
    first.stop()
    net.brokers["broker-a"].put("T", 0, 1)
    net.brokers["broker-b"].put("T", 0, 2)
    absence = NameServerAbsence(net, kind)
    reader = stream(**options)
    whole = sorted(planned(reader, start, end))
    assert len(whole) == 3, "its last batch keeps its ranges"
    if available_now:
        reader.prepareForTriggerAvailableNow()
        ends_after(absence, reader, clock, 40_000)
    else:
        for _ in range(6):
            assert more(reader, end) == end
        absence.end()
    later = more(reader, end)
    assert sorted(planned(reader, end, later)) == [("T", A0, 10, 11), ("T", B0, 10, 12)]
