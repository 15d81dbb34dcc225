"""Figures of a cluster while a broker is away: what only this broker knows is unknown, and never 0 or left out.

`?` in a table, `12+?` in a sum, null in JSON; in metrics no sample, and `rmq_broker_away`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.backoff import Backoff
from rmq_store.cli import commands
from rmq_store.cli.cluster_care.cluster_samples import cluster_metrics
from rmq_store.format.text.openmetrics import MetricFamily
from rmq_store.protocol.bodies.groups import SubscriptionGroupTable
from rmq_store.protocol.bodies.topics import TopicConfig, TopicConfigTable
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

Ask = Callable[..., Result]
GROUP = "cg_bills"
AWAY = "broker-001"
# One code for each way of not answering; None: the connection is refused.
ABSENCES = [None, 2, 14, 215, 1500]


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=100, first=10)
        cluster.create_topic(f"%DLQ%{GROUP}", queue_count=1, message_count=3)
        for broker in cluster.brokers.values():
            broker.groups.add(GROUP)
            broker.offsets.update({(GROUP, "Orders", queue_id): 90 for queue_id in (0, 1)})
            broker.answer(RequestCode.GET_ALL_TOPIC_CONFIG, lambda _, broker=broker: (0, {}, _configs(broker)))
        yield cluster


def _configs(broker: Any) -> bytes:
    counts = {topic: broker.queues.counts(topic) for topic in broker.queues.topics}
    table = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write)
        for topic, (read, write) in counts.items()
    }
    return TopicConfigTable(topic_config_table=table).encode()


@pytest.fixture
def ask(cluster: SimulatedCluster) -> Ask:
    def invoke(*arguments: str) -> Result:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20"}
        words = ["-n", cluster.name_server, *arguments]
        return CliRunner().invoke(commands, words, env=clean, prog_name="rmq", catch_exceptions=False)

    return invoke


def _partial(result: Result) -> str:
    """Standard output of a command that lacks a broker."""
    assert result.exit_code == 1
    assert result.stderr.startswith(f"rmq: without broker {AWAY}: ")
    assert result.stderr.count("\n") == 1
    return result.stdout


def _rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line]


@pytest.fixture(params=ABSENCES, ids=str)
def away(request: pytest.FixtureRequest, cluster: SimulatedCluster) -> None:
    """The second broker is away in one of the ways."""
    broker = cluster.brokers[AWAY]
    if request.param is None:
        broker.stop()
        return
    for code in tuple(broker._answerers):
        broker.refuse(code, request.param)


@pytest.mark.usefixtures("away")
def test_the_lag_of_a_group_is_unknown_where_a_broker_does_not_answer(ask: Ask) -> None:
    lines = json.loads(_partial(ask("lag", GROUP, "--json")))
    assert [(one["queue"], one["committedOffset"], one["endOffset"], one["lag"]) for one in lines] == [
        ("broker-000:0", 90, 100, 10), ("broker-000:1", 90, 100, 10),
        (f"{AWAY}:0", None, None, None), (f"{AWAY}:1", None, None, None),
    ]  # fmt: skip
    assert [one.get("away") for one in lines] == [None, None, [AWAY], [AWAY]]
    assert _rows(_partial(ask("lag", GROUP)))[-1] == [GROUP, "Orders", f"{AWAY}:1", "?", "?", "?", "-", "?"]


@pytest.mark.usefixtures("away")
def test_a_sum_says_that_it_lacks_a_part(ask: Ask) -> None:
    (line,) = json.loads(_partial(ask("lag", "--json")))
    assert (line["queue"], line["committedOffset"], line["endOffset"], line["lag"]) == ("all 4", None, None, None)
    assert (line["lagMs"], line["away"]) == (None, [AWAY])
    row = _rows(_partial(ask("lag")))[1]
    assert row[:-1] == [GROUP, "Orders", "all 4", "180+?", "200+?", "20+?", "-"]
    assert row[-1].endswith("+?")


@pytest.mark.usefixtures("away")
def test_groups_and_their_queues(ask: Ask) -> None:
    (group,) = json.loads(_partial(ask("groups", "--json")))
    assert (group["lag"], group["dead"], group["deadLeft"], group["away"]) == (None, None, None, [AWAY])
    assert [(one["brokerName"], one["maxOffset"], one["lag"]) for one in group["queues"]] == [
        ("broker-000", 100, 10), ("broker-000", 100, 10), (AWAY, None, None), (AWAY, None, None),
    ]  # fmt: skip
    text = _rows(_partial(ask("groups", GROUP)))
    assert text[4] == [GROUP, "Orders", f"{AWAY}:1", "?", "?", "?"]
    assert text[-1] == [GROUP, "1", "20+?", "0", "-", "3+?", "-"]


@pytest.mark.usefixtures("away")
def test_topics_and_offsets(ask: Ask) -> None:
    orders = next(one for one in json.loads(_partial(ask("topics", "--json"))) if one["topic"] == "Orders")
    assert (orders["messages"], orders["away"], len(orders["queues"])) == (None, [AWAY], 4)
    assert orders["queues"][3] == {"brokerName": AWAY, "queueId": 1, "minOffset": None, "maxOffset": None}
    assert ["Orders", "4", "RW-", "20+?", "200+?", "180+?"] in _rows(_partial(ask("topics")))
    assert ["Orders", f"{AWAY}:0", "RW-", "?", "?", "?"] in _rows(_partial(ask("topics", "--queues")))
    places = json.loads(_partial(ask("offsets", "show", GROUP, "--json")))
    assert [one["lag"] for one in places] == [10, 10, None, None]
    assert places[3] == {
        "topic": "Orders", "brokerName": AWAY, "queueId": 1, "minOffset": None, "maxOffset": None,
        "committedOffset": None, "lag": None,
    }  # fmt: skip
    assert _rows(_partial(ask("offsets", "show", GROUP)))[4] == ["Orders", f"{AWAY}:1", "?", "?", "?", "?"]


@pytest.mark.usefixtures("away")
def test_the_live_view(ask: Ask) -> None:
    found = json.loads(_partial(ask("top", "--every", "0.01", "--json")))
    assert (found["brokers"], found["away"]) == (2, [AWAY])
    topic = next(one for one in found["topics"] if one["topic"] == "Orders")
    assert topic == {"topic": "Orders", "queues": 4, "messages": None, "inPerSecond": None}
    (group,) = found["groups"]
    assert [group[name] for name in ("lag", "lagMs", "outPerSecond", "retries", "dead")] == [None, None, None, 0, None]
    text = _rows(_partial(ask("top", "--every", "0.01")))
    assert text[1] == [f"2 brokers; away: {AWAY}"]
    assert ["Orders", "4", "180+?", "-"] in text
    assert text[-1][:2] == [GROUP, "20+?"]


def test_dead_letters_are_counted_as_far_as_they_are_known(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.brokers["broker-000"].queues.topics.pop(f"%DLQ%{GROUP}")
    cluster.create_topic("%DLQ%cg_all", queue_count=1, message_count=0)
    cluster.brokers[AWAY].stop()
    result = ask("groups", "--json")
    (group,) = json.loads(_partial(result))
    assert (group["dead"], group["deadLeft"]) == (None, None)
    (row,) = _rows(_partial(ask("groups", GROUP)))[-1:]
    assert row[-2:] == ["?", "-"]
    # Nobody knows whether there are some.
    (entry,) = json.loads(_partial(ask("dlq", "list", "cg_all", "--json")))
    assert (entry["deadLetters"], entry["redriven"], entry["away"]) == (None, None, [AWAY])
    assert _rows(_partial(ask("dlq", "list")))[1][:3] == ["cg_all", "0+?", "-"]


def test_failed_messages_at_a_broker_that_is_away_are_unknown(ask: Ask, cluster: SimulatedCluster) -> None:
    """Also of a group that has no offset at the other brokers."""
    for broker in cluster.brokers.values():
        broker.groups.add("cg_there")
    cluster.brokers[AWAY].queues.create("%RETRY%cg_there", 1, 5, 0)
    cluster.brokers[AWAY].offsets["cg_there", "Orders", 0] = 1
    cluster.brokers[AWAY].stop()
    (line,) = json.loads(_partial(ask("lag", "cg_there", "--json")))
    assert (line["topic"], line["lag"], line["away"]) == ("%RETRY%cg_there", None, [AWAY])
    group = next(one for one in json.loads(_partial(ask("groups", "--json"))) if one["group"] == "cg_there")
    assert (group["lag"], group["retries"], group["dead"]) == (None, None, 0)


def test_an_offset_that_a_broker_refuses_to_tell_is_not_none(ask: Ask, cluster: SimulatedCluster) -> None:
    """It tells the ends (202), and not the offsets (208): the lag would be that of a group without an offset."""
    cluster.brokers[AWAY].refuse(RequestCode.GET_CONSUME_STATS, 16)
    places = json.loads(_partial(ask("offsets", "show", GROUP, "-t", "Orders", "--json")))
    assert [one["lag"] for one in places] == [10, 10, None, None]


def _polls(monkeypatch: pytest.MonkeyPatch, module: str, steps: list[Callable[[], object]]) -> None:
    """A step is made after each poll; then Ctrl-C."""
    left = iter(steps)

    def sleep(_: float) -> None:
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(import_module(module), "time", SimpleNamespace(sleep=sleep, time_ns=time.time_ns))


@pytest.mark.parametrize("names", [[], [GROUP]])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_watching_keeps_the_queues_of_a_broker_that_goes(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, names: list[str], is_forgotten: bool
) -> None:
    """A broker that stops leaves the name servers at once: only the earlier polls know its queues."""

    def go() -> None:
        cluster.leave(AWAY) if is_forgotten else cluster.brokers[AWAY].stop()
        _forget_routes(monkeypatch, is_forgotten)

    monkeypatch.setattr("rmq_store.remoting.transport.connector.RECONNECTS", Backoff(1, 1))
    pauses = [lambda: time.sleep(0.01)] * 5  # until the transport connects again
    _polls(monkeypatch, "rmq_store.cli.groups.lag", [go, lambda: None, lambda: cluster.come_back(AWAY), *pauses])
    result = ask("lag", *names, "--watch", "--json")
    polls = [json.loads(line) for line in result.stdout.splitlines()]
    lags = [[one["lag"] for one in poll] for poll in polls]
    known, unknown = ([10] * 4, [10, 10, None, None]) if names else ([40], [None])
    assert lags[:3] == [known, unknown, unknown]
    assert lags[-1] == known
    assert all(one["etaMs"] is None for poll in polls for one in poll if one["lag"] is None)
    gone, back = result.stderr.splitlines()
    assert gone.startswith(f"rmq: without broker {AWAY}: ")
    assert back == f"rmq: broker {AWAY} answers again"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_live_view_keeps_the_queues_of_a_broker_that_goes(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    def go() -> None:
        cluster.leave(AWAY) if is_forgotten else cluster.brokers[AWAY].stop()
        _forget_routes(monkeypatch, is_forgotten)

    _polls(monkeypatch, "rmq_store.cli.monitoring.top", [go])
    found = json.loads(_partial(ask("top", "--json")))
    topic = next(one for one in found["topics"] if one["topic"] == "Orders")
    assert (topic["queues"], topic["messages"]) == (4, None)
    assert found["groups"][0]["lag"] is None
    assert found["groups"][0]["dead"] is None


def _forget_routes(monkeypatch: pytest.MonkeyPatch, is_wanted: bool) -> None:
    """Ask the name servers at each look."""
    if is_wanted:
        monkeypatch.setattr("rmq_store.remoting.cluster.routes.POLL_EVERY_MS", 0)


# -- metrics -----------------------------------------------------------------------------------------------------------


def _numbers(families: list[MetricFamily], name: str, broker_name: str) -> list[float]:
    return [
        number for family in families if family.metric.sample_name == name
        for labels, number in family.samples if labels[2] == broker_name
    ]  # fmt: skip


@pytest.mark.usefixtures("away")
def test_metrics_name_a_broker_that_is_away_and_have_no_lag_of_it(cluster: SimulatedCluster) -> None:
    with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)) as known:
        families = cluster_metrics(known, queues=True)
    for name in ("rocketmq_consumer_lag_messages", "rmq_consumer_queue_lag_messages", "rmq_topic_messages"):
        assert _numbers(families, name, "broker-000"), name
        assert _numbers(families, name, AWAY) == [], name
    assert _numbers(families, "rmq_broker_away", AWAY) == [1]
    assert _numbers(families, "rmq_broker_away", "broker-000") == [0]


def test_a_refusal_is_no_absence(cluster: SimulatedCluster) -> None:
    cluster.brokers[AWAY].refuse(RequestCode.GET_CONSUME_STATS, 16)
    with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)) as known:
        families = cluster_metrics(known)
    assert _numbers(families, "rmq_broker_away", AWAY) == [0]
    assert _numbers(families, "rocketmq_consumer_lag_messages", AWAY) == []
    assert set(_numbers(families, "rmq_unreadable", AWAY)) == {1}


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUME_STATS, RequestCode.GET_TOPIC_STATS_INFO])
def test_a_broker_that_goes_between_two_questions_is_away(cluster: SimulatedCluster, code: int) -> None:
    cluster.brokers[AWAY].refuse(code, 14)
    with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)) as known:
        assert _numbers(cluster_metrics(known), "rmq_broker_away", AWAY) == [1]


def test_a_broker_that_has_left_the_name_servers_is_away_until_it_is_back(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `rmq metrics --listen` reads."""
    monkeypatch.setattr("rmq_store.remoting.cluster.routes.POLL_EVERY_MS", 0)
    seen: dict[str, str] = {}
    with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)) as known:
        found = []
        for step in (lambda: None, lambda: cluster.leave(AWAY), lambda: cluster.come_back(AWAY)):
            step()
            families = cluster_metrics(known, seen=seen)
            found.append(_numbers(families, "rmq_broker_away", AWAY))
            assert bool(_numbers(families, "rocketmq_consumer_lag_messages", AWAY)) == (found[-1] == [0])
    assert found == [[0], [1], [0]]
    assert seen == {"broker-000": "simulated", AWAY: "simulated"}


def test_no_broker_is_away_from_an_empty_list_of_groups(cluster: SimulatedCluster) -> None:
    cluster.brokers[AWAY].answer(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        lambda _: (0, {}, SubscriptionGroupTable(subscription_group_table={}).encode()),
    )
    with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)) as known:
        assert _numbers(cluster_metrics(known), "rmq_broker_away", AWAY) == [0]
