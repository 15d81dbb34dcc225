"""`rmq dlq list | show | export | redrive` over a cluster: the output of those for a store, from all brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA
from rmq_store.broker.rules import failure
from rmq_store.cli import commands
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.letter_rows import ClusterLetterRows
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import SlaveBehindError
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

Ask = Callable[..., Result]
GROUP, DLQ, RETRY = "cg_bills", "%DLQ%cg_bills", "%RETRY%cg_bills"


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def retries(cluster: SimulatedCluster) -> list[SimulatedRetries]:
    """Three dead letters at each broker, with the same queue offsets; the last of each died of a ValueError."""
    found = [SimulatedRetries(broker) for broker in cluster.brokers.values()]
    for one in found:
        for number in range(3):
            reason = {failure.ERROR_CLASS: "bills.ValueError", failure.ERROR_MESSAGE: "no price"} if number == 2 else {}
            properties = {"UNIQ_KEY": f"{number:032X}", "RETRY_TOPIC": "Orders", "number": str(number), **reason}
            one.store(DLQ, 0, b"bill %d" % number, properties, reconsume_times=17)
    return found


@pytest.fixture
def ask(cluster: SimulatedCluster) -> Ask:
    def invoke(*arguments: str) -> Result:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20"}
        line = ["-n", cluster.name_server, *(() if arguments[0] == "groups" else ("dlq",)), *arguments]
        return CliRunner().invoke(commands, line, env=clean, prog_name="rmq", catch_exceptions=False)

    return invoke


def _plain(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


@pytest.mark.usefixtures("retries")
def test_the_letters_of_all_brokers_are_counted_with_their_reasons(ask: Ask) -> None:
    lines = [line.split() for line in _plain(ask("list", "--wide")).splitlines()]
    assert lines[0] == ["GROUP", "COUNT", "REDRIVEN", "ARCHIVED", "OLDEST", "NEWEST", "REASONS", "TOPICS"]
    assert lines[1][:4] == [GROUP, "6", "0", "-"]
    (entry,) = json.loads(_plain(ask("list", GROUP, "--json")))
    assert entry["reasons"] == {"(unknown)": 4, "bills.ValueError": 2}
    assert (entry["deadLetters"], entry["topics"]) == (6, {"Orders": 6})


@pytest.mark.usefixtures("retries")
def test_letters_are_shown_with_their_broker_the_newest_first(ask: Ask) -> None:
    head, *lines = _plain(ask("show", GROUP, "--reason", "ValueError", "--wide")).splitlines()
    assert head.split() == ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON", "BODY"]
    assert sorted(line.split()[0] for line in lines) == ["broker-000:0", "broker-001:0"]
    assert all("bills.ValueError: no price" in line and "bill 2" in line for line in lines)
    rows = [json.loads(line) for line in _plain(ask("show", GROUP, "--max", "4", "--json")).splitlines()]
    times = [row["storeTimestamp"] for row in rows]
    assert len(rows) == 4
    assert times == sorted(times, reverse=True)
    assert {row["redriven"] for row in rows} == {False}


@pytest.mark.usefixtures("retries")
def test_a_group_without_letters_is_named_and_the_nearest(ask: Ask, cluster: SimulatedCluster) -> None:
    result = ask("show", "cg_bill")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rmq: group 'cg_bill' has no dead letters; did you mean 'cg_bills'?\n"


@pytest.mark.usefixtures("retries")
def test_an_export_has_the_schema_of_a_store(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "dead.parquet"
    assert _plain(ask("export", GROUP, "--to", str(file))) == f"{file}: 6 dead letters of {GROUP}\n"
    table = pq.read_table(file)
    assert table.schema.equals(DEAD_LETTER_SCHEMA)
    assert sorted(zip(table["brokerName"].to_pylist(), table["queueOffset"].to_pylist(), strict=True)) == [
        (broker, offset) for broker in ("broker-000", "broker-001") for offset in range(3)
    ]
    assert set(table["body"].to_pylist()) == {b"bill 0", b"bill 1", b"bill 2"}


@pytest.mark.usefixtures("retries")
def test_letters_of_a_broker_that_does_not_answer_are_not_taken_for_none(
    ask: Ask, cluster: SimulatedCluster, tmp_path: Path
) -> None:
    cluster.brokers["broker-001"].stop()
    for arguments in (("list",), ("show", GROUP)):
        result = ask(*arguments)
        assert (result.exit_code, GROUP in result.stdout or "broker-000:0" in result.stdout) == (1, True)
        assert result.stderr.startswith("rmq: without broker broker-001: ")
    file = tmp_path / "dead.jsonl"
    for arguments in (("export", GROUP, "--to", str(file)), ("redrive", GROUP, "--yes")):
        result = ask(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("rmq: without broker broker-001: ")
    assert not file.exists()
    assert cluster.total_calls[RequestCode.SEND_MESSAGE_V2] == 0


@pytest.mark.usefixtures("retries")
def test_records_that_a_broker_refuses_are_not_taken_for_none(ask: Ask, cluster: SimulatedCluster) -> None:
    """Otherwise letters that were moved are shown as if they were not."""
    broker = cluster.brokers["broker-001"]
    broker.queues.create("PYRMQ_REDRIVEN", 1, message_count=1)
    pull = broker._answerers[RequestCode.PULL_MESSAGE]
    broker.answer(
        RequestCode.PULL_MESSAGE,
        lambda request: (16, {}, b"") if request.ext_fields["topic"] == "PYRMQ_REDRIVEN" else pull(request),
    )
    result = ask("list", "--json")
    assert (result.exit_code, json.loads(result.stdout)[0]["redriven"]) == (1, None)
    assert result.stderr.startswith("rmq: without broker broker-001: ")
    assert [line.split()[2] for line in ask("list", "--wide").stdout.splitlines()[1:]] == ["-"]
    rows = [json.loads(line) for line in ask("show", GROUP, "--json").stdout.splitlines()]
    assert {(row["brokerName"], row["redriven"]) for row in rows} == {("broker-000", False), ("broker-001", None)}


@pytest.mark.usefixtures("retries")
def test_letters_that_retention_takes_meanwhile_are_left_out(cluster: SimulatedCluster) -> None:
    settings = ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)
    with Cluster(settings) as opened:
        rows = ClusterLetterRows(opened, ClusterTarget(settings), Answers(opened), GROUP)
        cluster.brokers["broker-000"].queues.topics[DLQ][0].first = 2
        places = [
            (row["brokerName"], row["queueOffset"])
            for batch in rows.batches(("brokerName", "queueOffset"))
            for row in batch.to_pylist()
        ]
    assert places == [("broker-000", 2), ("broker-001", 0), ("broker-001", 1), ("broker-001", 2)]


def test_letters_are_moved_once_and_shown_as_moved(
    ask: Ask, cluster: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    asked = ask("redrive", GROUP)
    assert asked.exit_code == 2
    assert f"{GROUP}: this would be 6 REDRIVEN" in asked.stderr
    assert "There is no terminal to ask" in asked.stderr
    dry = json.loads(_plain(ask("redrive", GROUP, "--dry-run", "--filter", "number = '1'", "--json")))
    assert (dry["dryRun"], dry["REDRIVEN"]) == (True, 2)
    assert [one.messages(RETRY) for one in retries] == [[], []]

    first = json.loads(_plain(ask("redrive", GROUP, "--reason", "ValueError", "--yes", "--json")))
    assert (first["REDRIVEN"], first["ALREADY_REDRIVEN"]) == (2, 0)
    assert [[one.body for one in at.messages(RETRY)] for at in retries] == [[b"bill 2"], [b"bill 2"]]
    (entry,) = json.loads(_plain(ask("list", "--json")))
    assert (entry["deadLetters"], entry["redriven"]) == (6, 2)
    for one in retries:
        one.configs[GROUP] = SubscriptionGroupConfig(group_name=GROUP)
        one.broker.groups.add(GROUP)
    (group,) = json.loads(ask("groups", GROUP, "--json").stdout)
    assert (group["dead"], group["deadLeft"]) == (6, 4)
    shown = [json.loads(line) for line in _plain(ask("show", GROUP, "--json")).splitlines()]
    assert {row["queueOffset"] for row in shown if row["redriven"]} == {2}

    # Each run sends the next ones.
    counts = [json.loads(_plain(ask("redrive", GROUP, "--max", "3", "--yes", "--json")))["REDRIVEN"] for _ in range(3)]
    assert counts == [3, 1, 0]
    assert [sorted(one.body for one in at.messages(RETRY)) for at in retries] == [[b"bill 0", b"bill 1", b"bill 2"]] * 2


def test_a_slave_that_lacks_records_of_what_was_redriven_leaves_only_that_unknown(
    ask: Ask, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in retries:
        one.configs[GROUP] = SubscriptionGroupConfig(group_name=GROUP)
        one.broker.groups.add(GROUP)

    def behind(letters: ClusterDeadLetters, group: str, broker_name: str) -> None:
        raise SlaveBehindError("the slave lacks records", ("ledger", broker_name, 0), 4, 5)

    monkeypatch.setattr(ClusterDeadLetters, "redriven", behind)
    result = ask("groups", GROUP, "--json")
    (group,) = json.loads(result.stdout)
    assert (result.exit_code, group["dead"], group["deadLeft"]) == (1, 6, None)
    assert "broker-000: the slave lacks records" in result.stderr
    result = ask("list", "--json")
    (entry,) = json.loads(result.stdout)
    assert (result.exit_code, entry["deadLetters"], entry["redriven"]) == (1, 6, None)


def test_a_rate_waits_between_the_calls(
    ask: Ask, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from rmq_store.cli.target import redrive_calls

    waits: list[float] = []
    monkeypatch.setattr(redrive_calls, "time", SimpleNamespace(sleep=waits.append))
    found = json.loads(_plain(ask("redrive", GROUP, "--rate", "2", "--yes", "--json")))
    assert found["REDRIVEN"] == 6
    # Three letters of each broker, in calls of two and one.
    assert waits == [1.0, 0.5, 1.0]


@pytest.mark.usefixtures("retries")
def test_a_refused_letter_ends_with_exit_code_1(ask: Ask) -> None:
    result = ask("redrive", GROUP, "--max-replays", "0", "--yes")
    assert result.exit_code == 1
    assert "refused 6: " in result.stdout


@pytest.mark.parametrize("arguments", [("archive", "--to", "x"), ("restore", "x")])
def test_what_needs_a_store_is_refused_with_the_reason(ask: Ask, arguments: tuple[str, ...]) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert f"rmq dlq {arguments[0]} over a cluster is refused: " in result.stderr
    assert "`rmq dlq export`" in result.stderr
