"""`rmq -n ... --required-brokers`: a broker that is away ends a command by its name, before any output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.queues import START_MS, SentMessage
from rmq_store.cli import commands
from rmq_store.cli.target.cluster.follow import ClusterFollower
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.cli.target.commands import command_of
from rmq_store.cli.target.table import COMMANDS
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import BrokerAwayError
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.admin.required_brokers import parse_broker_names
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

Ask = Callable[..., Result]
GROUP = "cg_bills"
BOTH = "broker-000,broker-001"
AWAY = "rmq: required brokers are away, so nothing is read: broker-001: "


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=100, first=10)
        cluster.create_topic(f"%DLQ%{GROUP}", queue_count=1, message_count=3)
        for broker in cluster.brokers.values():
            broker.groups.add(GROUP)
            broker.offsets[GROUP, "Orders", 0] = 90
        yield cluster


@pytest.fixture
def ask(cluster: SimulatedCluster) -> Ask:
    def invoke(*arguments: str, **environment: str) -> Result:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20", **environment}
        words = ["-n", cluster.name_server, *arguments]
        return CliRunner().invoke(commands, words, env=clean, prog_name="rmq", catch_exceptions=False)

    return invoke


@pytest.mark.parametrize("goes", [SimulatedCluster.leave, lambda cluster, name: cluster.brokers[name].stop()])
@pytest.mark.parametrize(
    "words",
    [("read", "Orders"), ("read", "Orders", "--queue", "broker-000:0"), ("tail", "Orders"), ("topics",), ("lag",),
     ("groups",), ("top",), ("offsets", "show", GROUP), ("dlq", "list"), ("dlq", "show", GROUP), ("topicStatus", "-t",
     "Orders"), ("consumerProgress", "-g", GROUP), ("trace", "-t", "Orders", "-k", "k"), ("clusterList",)],
)  # fmt: skip
def test_nothing_is_shown_without_a_required_broker(
    ask: Ask, cluster: SimulatedCluster, words: tuple[str, ...], goes: Callable[[SimulatedCluster, str], None]
) -> None:
    goes(cluster, "broker-001")
    result = ask(*words, "--required-brokers", BOTH)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(AWAY) and "broker-000" not in result.stderr


def test_with_all_required_brokers_the_output_is_the_same(ask: Ask) -> None:
    for words in (("read", "Orders", "--json"), ("topics",), ("lag", GROUP)):
        first, second = ask(*words), ask(*words, "--required-brokers", "broker-001; broker-000")
        assert first.exit_code == second.exit_code == 0 and not second.stderr
        assert len(first.stdout.splitlines()) == len(second.stdout.splitlines())


def test_the_names_may_be_in_the_environment(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.leave("broker-001")
    rows = ask("read", "Orders", "--json", "--max", "500").stdout.splitlines()
    assert {json.loads(row)["brokerName"] for row in rows} == {"broker-000"}, "never refused by default"
    assert ask("read", "Orders", RMQ_REQUIRED_BROKERS=BOTH).exit_code == 1
    cluster.come_back("broker-001")
    assert ask("read", "Orders", RMQ_REQUIRED_BROKERS=BOTH).exit_code == 0


def test_names_are_checked(ask: Ask) -> None:
    for text, why in (("a:10911", "'a:10911' is an address"), (",", "no broker is named"), ("a b", "no name of")):
        result = ask("read", "Orders", "--required-brokers", text)
        assert result.exit_code == 2 and result.stderr.startswith("rmq: --required-brokers: ")
        assert why in result.stderr
        with pytest.raises(UsageError, match=why):
            parse_broker_names(text)


def test_every_command_over_a_cluster_takes_them() -> None:
    without = []
    for path, row in COMMANDS.items():
        if not row.home:
            continue
        command = command_of(path, None)
        assert isinstance(command, click.Command)
        if "required_brokers" not in {param.name for param in command.params}:
            without.append(path)
    assert without == []


def _polls(monkeypatch: pytest.MonkeyPatch, module: str, steps: list[Callable[[], None]]) -> None:
    """Between the polls of a command, one step each; behind the last one Ctrl-C."""

    def sleep(seconds: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(import_module(module), "time", SimpleNamespace(sleep=sleep, time_ns=time.time_ns))


def test_watching_ends_when_a_required_broker_goes(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = cluster.brokers["broker-001"]
    _polls(monkeypatch, "rmq_store.cli.groups.lag", [lambda: None, late.stop, lambda: None])
    result = ask("lag", "--watch", "--json", "--required-brokers", BOTH)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
    assert result.stderr.startswith(AWAY)


def test_a_broker_that_has_left_the_routes_is_named_by_whoever_watches(cluster: SimulatedCluster) -> None:
    """It was known before: its lag, or its new messages, must not be missing without a word."""
    clock = SimpleNamespace(now_ms=0.0)
    settings = ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)
    told: list[str] = []
    with Cluster(settings, timer=lambda: clock.now_ms) as opened:
        queues = opened.known_route("Orders").read_queues()
        required = ClusterTarget(settings, required_brokers=("broker-001",))
        followers = [
            ClusterFollower(opened, target, queues, columns=["body"], tell=told.append)
            for target in (ClusterTarget(settings), required)
        ]
        for follower in followers:
            follower.start_at(START_MS + 99_000)
            assert len(list(follower.take())) == 4
        cluster.leave("broker-001")
        clock.now_ms += 31_000
        assert list(followers[0].take()) == []
        assert told == ["without broker broker-001: no name server knows it any more"]
        with pytest.raises(BrokerAwayError, match="broker-001: no name server knows it any more"):
            list(followers[1].take())
        cluster.come_back("broker-001")
        clock.now_ms += 31_000
        assert list(followers[0].take()) == [] and told[-1] == "broker broker-001 answers again"


def test_whoever_follows_a_topic_gets_the_new_messages_of_a_broker_that_was_away(cluster: SimulatedCluster) -> None:
    """And nothing of its history, which is older than the command."""
    clock = SimpleNamespace(now_ms=0.0)
    settings = ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)
    cluster.leave("broker-001")
    with Cluster(settings, timer=lambda: clock.now_ms) as opened:
        follower = ClusterFollower(
            opened, ClusterTarget(settings), opened.known_route("Orders").read_queues(), columns=["body"],
            tell=lambda line: None, takes_new_queues=True,
        )  # fmt: skip
        follower.start_last(0)
        assert list(follower.take()) == []
        now_ms = time.time_ns() // 1_000_000
        late = cluster.brokers["broker-001"].queues.topics["Orders"][1]
        late.append(SentMessage(b"new", store_ms=now_ms + 1))
        cluster.come_back("broker-001")
        clock.now_ms += 31_000
        assert [(row["brokerName"], row["queueOffset"]) for row in follower.take()] == [("broker-001", 100)]


@pytest.mark.parametrize("command", ["lag", "top"])
def test_polls_name_a_broker_that_has_left_the_routes(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from rmq_store.remoting.cluster import routes

    monkeypatch.setattr(routes, "POLL_EVERY_MS", 0)
    module = "rmq_store.cli.groups.lag" if command == "lag" else "rmq_store.cli.monitoring.top"
    _polls(monkeypatch, module, [lambda: cluster.leave("broker-001")])
    result = ask(command, "--json", *(["--watch"] if command == "lag" else []))
    assert result.exit_code == 1
    assert "rmq: without broker broker-001: no name server knows it any more" in result.stderr


def test_the_check_is_one_request_for_each_broker(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.forget_calls()
    ask("read", "Orders", "--required-brokers", BOTH)
    assert cluster.total_calls[RequestCode.GET_BROKER_RUNTIME_INFO] == 2
