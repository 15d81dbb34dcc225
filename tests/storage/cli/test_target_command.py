"""A command is declared once for both targets; what it finds are rows, which nobody has to print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from helpers.cluster.simulated import SimulatedCluster
from rmq_store import Message, Store, SubscriptionGroup
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.cli.target.command import Side, TargetCommand, by_target, target_command, text_for
from rmq_store.cli.target.commands import command_of
from rmq_store.cli.target.failure_report import FailureReport, ProcessFailureReport
from rmq_store.cli.target.lag_lines import LagGauge
from rmq_store.cli.target.rows import PlaceRow, QueueRow, Total, queue_row
from rmq_store.cli.target.store_target import StoreTarget
from rmq_store.cli.target.table import COMMANDS, Support
from rmq_store.cli.target.view import Target
from rmq_store.protocol.errors import RemotingTimeoutError
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.admin.scope import BrokerProcess
from rmq_store.remoting.transport.settings import ClusterSettings

from .test_frame import LEAVES

STORES = {path.removeprefix("rmq "): command for path, command in LEAVES}


@target_command(
    short_help="Look [store: here][cluster: there].",
    epilog="\b\nExamples:\n  rmq look T --store /data/store --queue 0\n  rmq look T",
)
@by_target(click.option("--only-store", is_flag=True))
@click.argument("topic")
@by_target(
    click.option("--queue", type=int, help="Its number."),
    click.option("--queue", metavar="BROKER:ID", help="Its name."),
)
@click.option("--last", help="Of [both].")
def look(
    target: Target, as_json: bool, topic: str, queue: int | str | None, last: str | None, only_store: bool = False
) -> None:
    """Looks at a topic[cluster:  of brokers].

    [store: One sentence.]

    Always [store: one clock][cluster: several clocks; each
    its own].
    """
    click.echo([type(target).__name__, topic, queue, only_store])


def over_cluster() -> click.Command:
    return look.over_cluster()


def test_each_target_has_its_options_and_its_texts(tmp_path: Path) -> None:
    store, cluster = (command.get_help(click.Context(command)) for command in (look, over_cluster()))
    assert store.index("--store") < store.index("--json") < store.index("--only-store") < store.index("--queue INTEGER")
    assert store.index("--queue") < store.index("--last")
    assert "Looks at a topic.\n\n  One sentence.\n\n  Always one clock.\n" in store
    assert "--only-store" not in cluster and "--queue BROKER:ID" in cluster and "--store" not in cluster
    assert "Looks at a topic of brokers.\n\n  Always several clocks; each its own.\n" in cluster
    assert "rmq -n ns1:9876 look T --queue 0\n    rmq -n ns1:9876 look T" in cluster
    assert (look.short_help, over_cluster().short_help) == ("Look here.", "Look there.")
    run = CliRunner().invoke
    assert run(look, ["T", "--queue", "1", "--store", str(tmp_path)]).output == "['StoreTarget', 'T', 1, False]\n"
    found = run(over_cluster(), ["T", "--queue", "a:1", "--name-server", "h:1"])
    assert found.output == "['ClusterTarget', 'T', 'a:1', False]\n"


def test_a_text_without_parts_stays_as_it_is() -> None:
    text = "One\n   line [GROUP].\n\n\b\nAnother."
    assert text_for(Side.STORE, text) is text
    assert text_for(Side.CLUSTER, f"{text}\n\n[cluster: a]") == "One line [GROUP].\n\n\b\nAnother.\n\na"


@pytest.mark.parametrize("path", COMMANDS)
def test_no_help_shows_what_is_said_of_the_other_target(path: str) -> None:
    for command in filter(None, (STORES.get(path), command_of(path, STORES.get(path)))):
        helps = [getattr(one, "help", "") for one in command.params]
        for text in filter(None, [command.help, command.short_help, command.epilog, *helps]):
            assert "[store:" not in text and "[cluster:" not in text, text


def test_a_command_that_is_declared_once_has_no_other_place() -> None:
    for path, row in COMMANDS.items():
        is_declared = isinstance(STORES.get(path), TargetCommand)
        assert not (is_declared and row.home), path
        assert is_declared or row.home or row.support != Support.DIFFERS, path
        assert not (is_declared and row.support == Support.REFUSED), path


# ---- what commands find


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic("Orders", 2)
        store.create_group(SubscriptionGroup("cg"))
        for number in range(5):
            store.send(Message("Orders", b"x", queue_id=number % 2))
        store.commit_offsets("cg", {("Orders", 0): 1})
    return tmp_path / "store"


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=1, message_count=5)
        for broker in cluster.brokers.values():
            broker.groups.add("cg")
            broker.offsets["cg", "Orders", 0] = 1
        yield cluster


def test_a_store_answers_with_rows_and_prints_nothing(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    with StoreTarget(root).view(told.append) as view:
        (topic,) = view.topics(show_all=False)
        (group,) = view.groups([], show_all=False)
        lines = view.lags(["cg"], LagGauge(), per_queue=True)
        places = view.places("cg", ["Orders"])
        view.failures.report()
    assert (topic.topic, topic.messages, topic.queues[0]) == ("Orders", Total(5), queue_row(None, 0, QueueRange(0, 3)))
    assert (group.group, group.lag, group.dead_left, group.waiting) == ("cg", Total(4), 0, 0)
    assert [(line.queue, line.lag) for line in lines] == [(0, Total(2)), (1, Total(2))]
    assert places == [PlaceRow("Orders", None, 0, 0, 3, 1), PlaceRow("Orders", None, 1, 0, 2, None)]
    assert (told, capfd.readouterr()) == ([], ("", ""))


def test_a_cluster_answers_with_rows_and_remembers_what_is_missing(
    cluster: SimulatedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)
    told: list[str] = []
    with ClusterTarget(settings).view(told.append) as view:
        (whole,) = view.topics(show_all=False)
        places = view.places("cg", ["Orders"])
        cluster.brokers["broker-001"].stop()
        with view.poll():
            (topic,) = view.topics(show_all=False)
        assert set(view.failures.missing) == {"broker-001"}
    assert (whole.messages, len(whole.queues)) == (Total(10), 2)
    assert places[1] == PlaceRow("Orders", "broker-001", 0, 0, 5, 1)
    unknown = Total(None, ("broker-001",))
    assert topic.messages == Total(5, ("broker-001",))
    assert topic.queues == (
        queue_row("broker-000", 0, QueueRange(0, 5)), QueueRow("broker-001", 0, unknown, unknown, unknown),
    )  # fmt: skip
    assert len(told) == 1 and told[0].startswith("without broker broker-001: ")
    assert capfd.readouterr() == ("", "")


# ---- who did not answer


def test_a_report_names_each_broker_once_without_codes(capfd: pytest.CaptureFixture[str]) -> None:
    report = FailureReport[str]()
    report.succeeded("b")
    report.report()
    report.failed("c", RemotingTimeoutError("first"))
    report.failed("a", RemotingTimeoutError("alone"))
    report.failed("c", RemotingTimeoutError("second"))
    report.require_any()
    with pytest.raises(RemotingTimeoutError, match="first"):
        report.require_all()
    with pytest.raises(click.exceptions.Exit):
        report.report()
    assert capfd.readouterr().err == "rmq: without broker a: alone\nrmq: without broker c: first\n"
    assert list(report.changes({"c", "b"})) == ["without broker a: alone", "broker b answers again"]


def test_a_report_of_mqadmin_names_each_failure_of_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    report = ProcessFailureReport()
    process = BrokerProcess("cluster", "a", 0, "10.0.0.1:10911")
    for text in ("first", "second"):
        report.failed(process, RemotingTimeoutError(text))
    assert report.report_changes(frozenset()) == {process}
    shown = "rmq: broker a (10.0.0.1:10911): "
    assert capfd.readouterr().err == f"{shown}first\n{shown}second\n"


def test_what_is_not_known_without_a_broker_ends_with_exit_code_1() -> None:
    report = FailureReport[str]()
    report.mark_incomplete()
    with pytest.raises(click.exceptions.Exit):
        report.report()
