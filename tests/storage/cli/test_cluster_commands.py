"""`rmq topics | groups | lag | read | tail | offsets | send | consume` over a cluster.

The commands have the output of those for a store. A cluster adds: a queue has its broker in front, a broker that does
not answer is named, and a command that only reads leaves no group behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.queues import START_MS, SentMessage
from helpers.cluster.simulated.server import V4_9_7
from helpers.cluster.waiting import until
from rmq_store.cli import commands
from rmq_store.cli.target.cluster.follow import ClusterFollower
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

Ask = Callable[..., Result]
GROUP = "cg_bills"


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=100, first=10)
        for number, broker in enumerate(cluster.brokers.values()):
            broker.groups.add(GROUP)
            broker.offsets[GROUP, "Orders", 0] = 90 + number
        yield cluster


@pytest.fixture
def ask(cluster: SimulatedCluster) -> Ask:
    def invoke(*arguments: str, text: str | None = None) -> Result:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20"}
        words = ["-n", cluster.name_server, *arguments]
        return CliRunner().invoke(commands, words, env=clean, prog_name="rmq", input=text, catch_exceptions=False)

    return invoke


def _plain(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_topics_have_sums_over_brokers_and_queues_with_their_broker(ask: Ask) -> None:
    assert _plain(ask("topics")) == (
        "TOPIC   QUEUES  PERM  MIN  MAX  MESSAGES\nOrders       4  RW-    40  400       360\n"
    )
    assert _plain(ask("topics", "--queues")).splitlines()[1:] == [
        f"Orders  broker-00{broker}:{queue}  RW-    10  100        90" for broker in (0, 1) for queue in (0, 1)
    ]
    (topic,) = json.loads(_plain(ask("topics", "--json")))
    assert topic["queues"][3] == {"brokerName": "broker-001", "queueId": 1, "minOffset": 10, "maxOffset": 100}
    assert (topic["readQueues"], topic["messages"], topic["inTable"]) == (4, 360, True)


@pytest.mark.parametrize("version", [V4_9_7, None])
def test_queues_that_are_not_written_any_more_are_in_every_answer(
    ask: Ask, cluster: SimulatedCluster, version: int | None
) -> None:
    """`updateTopic -r 2 -w 1`: brokers before 5.3 list only the queue that may be written."""
    for broker in cluster.brokers.values():
        broker.version = version
    cluster.set_counts("Orders", read=2, write=1)
    assert _plain(ask("topics")).splitlines()[1].split() == ["Orders", "4", "RW-", "40", "400", "360"]
    assert len(_plain(ask("read", "Orders", "--max", "1000", "--json")).splitlines()) == 360
    assert len(_plain(ask("tail", "Orders", "-n", "8", "--json")).splitlines()) == 8
    assert len(_plain(ask("offsets", "show", GROUP, "--json")).splitlines()) > 0
    assert sum(one["lag"] for one in json.loads(_plain(ask("offsets", "show", GROUP, "--json")))) == 219
    assert json.loads(_plain(ask("top", "--every", "0.01", "--json")))["topics"][0]["messages"] == 360


def test_queues_that_can_only_be_written_are_not_read_and_are_no_lag(ask: Ask, cluster: SimulatedCluster) -> None:
    """As in RocketMQ: their messages wait until readQueueNums is raised."""
    cluster.set_counts("Orders", read=1, write=2)
    assert _plain(ask("topics")).splitlines()[1].split() == ["Orders", "2", "RW-", "20", "200", "180"]
    assert len(_plain(ask("read", "Orders", "--max", "1000", "--json")).splitlines()) == 180
    assert sum(one["lag"] for one in json.loads(_plain(ask("offsets", "show", GROUP, "--json")))) == 19
    (line,) = json.loads(_plain(ask("lag", "--json")))
    assert line["lag"] == 19


def test_groups_and_lag_are_those_of_all_brokers(ask: Ask) -> None:
    text = _plain(ask("groups", GROUP))
    assert text == (
        "GROUP     TOPIC   QUEUE         COMMITTED  MAX  LAG\n"
        "cg_bills  Orders  broker-000:0         90  100   10\n"
        "cg_bills  Orders  broker-000:1          -  100  100\n"
        "cg_bills  Orders  broker-001:0         91  100    9\n"
        "cg_bills  Orders  broker-001:1          -  100  100\n"
        "\n"
        "GROUP     TOPICS  LAG  RETRIES  WAITING  DEAD  LEFT\n"
        "cg_bills       1  219        0        -     0     0\n"
    )
    (line,) = json.loads(_plain(ask("lag", "--json")))
    assert (line["group"], line["queue"], line["lag"], line["waiting"]) == (GROUP, "all 4", 219, None)
    assert line["lagMs"] > 0
    lines = json.loads(_plain(ask("lag", GROUP, "--json")))
    assert [one["queue"] for one in lines] == ["broker-000:0", "broker-000:1", "broker-001:0", "broker-001:1"]
    result = ask("groups", "cg_bill")
    assert result.exit_code == 2
    assert result.stderr == "rmq: no group 'cg_bill' in the cluster; did you mean 'cg_bills'?\n"


def test_messages_are_read_queue_by_queue(ask: Ask) -> None:
    lines = _plain(ask("read", "Orders", "--max", "91")).splitlines()
    assert lines[0].split() == ["QUEUE", "OFFSET", "STORED", "TAGS", "KEYS", "BODY"]
    assert [line.split()[:2] for line in (lines[1], lines[90], lines[91])] == [
        ["broker-000:0", "10"], ["broker-000:0", "99"], ["broker-000:1", "10"],
    ]  # fmt: skip
    rows = _plain(ask("read", "Orders", "--queue", "broker-001:1", "--from", "98", "--json")).splitlines()
    assert [(json.loads(row)["brokerName"], json.loads(row)["body"]) for row in rows] == [
        ("broker-001", "message 98"), ("broker-001", "message 99"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["read", "Order"], 2, "no topic 'Order' in the cluster; did you mean 'Orders'?"),
        (["read", "Orders", "--queue", "1"], 2, "several queues 1: broker-000:1, broker-001:1; name one of them"),
        (["read", "Orders", "--queue", "broker-000:7"], 2, "has no queue broker-000:7; it has broker-000:0, "),
        (["read", "Orders", "--queue", "broker-000:0", "--from", "101"], 1, "offset 101 is not in queue broker-000:0"),
        (["tail", "Orders", "--queue", "broker-000:0", "--from", "101"], 1, "offset 101 is not in queue broker-000:0"),
        (["tail", "Orders", "-n", "1", "--from", "latest"], 2, "-n and --from exclude each other"),
        (["tail", "Orders", "--filter", "a >"], 2, "SQL92"),
        (["offsets", "reset", GROUP, "--yes"], 2, "name one of --to-earliest"),
        (["send", "Orders"], 2, "one of FILE, --body, --file, --lines, --jsonl says what to send; given: none"),
        (["consume", "Orders", "-g", "g", "--peek", "--exec", "x"], 2, "--peek changes nothing"),
    ],
)
def test_mistakes_are_named(ask: Ask, arguments: list[str], code: int, error: str) -> None:
    result = ask(*arguments)
    assert (result.exit_code, error in result.stderr) == (code, True), result.output


def test_the_last_messages_come_in_the_order_of_their_times(ask: Ask) -> None:
    lines = [line.split()[1] for line in _plain(ask("tail", "Orders", "-n", "5")).splitlines()]
    assert sorted(lines[1:]) == [f"broker-00{broker}:{queue}:99" for broker in (0, 1) for queue in (0, 1)]
    assert lines[0].endswith(":98")
    assert _plain(ask("tail", "Orders", "-n", "0")) == ""
    rows = [json.loads(row) for row in _plain(ask("tail", "Orders", "--from", "earliest", "--json")).splitlines()]
    assert [row["queueOffset"] for row in rows] == [offset for offset in range(10, 100) for _ in range(4)]


@pytest.mark.parametrize(
    ("where", "offsets"),
    [("98", [98, 99]), ("offset:99", [99]), (str(START_MS + 97_000), [97, 98, 99]), ("latest", [])],
)
def test_read_and_tail_begin_at_the_same_messages(ask: Ask, where: str, offsets: list[int]) -> None:
    for command in ("read", "tail"):
        lines = _plain(ask(command, "Orders", "--from", where, "--json")).splitlines()
        assert sorted(json.loads(line)["queueOffset"] for line in lines) == sorted(offsets * 4), command


@pytest.mark.parametrize(
    ("start", "later"),
    [
        (lambda follower: follower.start_last(1), []),
        (lambda follower: follower.start_last(0), []),
        (lambda follower: follower.start_at(START_MS + 98_000), [98, 98, 99, 99]),
    ],
)
def test_a_broker_that_answers_later_begins_where_it_was_asked_for(
    cluster: SimulatedCluster, start: Callable[[ClusterFollower], None], later: list[int]
) -> None:
    """Otherwise its whole history is printed behind the newest messages."""
    late = cluster.brokers["broker-001"]
    late.stop()
    told: list[str] = []
    settings = ClusterSettings.of_text(cluster.name_server, timeout_ms=20_000)
    with Cluster(settings) as opened:
        route = opened.known_route("Orders")
        follower = ClusterFollower(
            opened, ClusterTarget(settings), route.read_queues(), columns=["body"], tell=told.append
        )
        start(follower)
        assert {row["brokerName"] for row in follower.take()} <= {"broker-000"}
        late.start()
        found: list[int] = []

        def answers_again() -> bool:
            found.extend(row["queueOffset"] for row in follower.take())
            return "broker broker-001 answers again" in told

        until(answers_again, "the broker is not asked again")
        assert found == later
        late.queues.topics["Orders"][1].append(SentMessage(b"new", store_ms=START_MS + 200_000))
        assert [(row["brokerName"], row["queueOffset"]) for row in follower.take()] == [("broker-001", 100)]


def test_what_is_sent_is_where_it_was_said_and_can_be_filtered(ask: Ask, tmp_path: Path) -> None:
    one = json.loads(_plain(ask("send", "Orders", "--body", "two teas", "--tags", "TagA", "--queue", "broker-001:1",
                                "--json")))  # fmt: skip
    assert (one["brokerName"], one["queueId"], one["queueOffset"], one["status"]) == ("broker-001", 1, 100, "SEND_OK")
    file = tmp_path / "lines"
    file.write_text('{"body": "one", "tags": "TagB"}\n{"body": "two", "tags": "TagA"}\n{"bodi": 1}\n')
    result = ask("send", "Orders", "--jsonl", str(file), "--queue", "broker-000:0")
    assert result.exit_code == 2
    assert result.stderr.startswith("rmq: 2 messages are stored in Orders, and then:\nrmq: line 3: ")
    assert [line.split()[-1] for line in _plain(ask("tail", "Orders", "-n", "9", "--tags", "TagA")).splitlines()] == [
        "teas", "two",
    ]  # fmt: skip
    assert _plain(ask("tail", "Orders", "-n", "9", "--filter", "TAGS = 'TagB'")).split()[-1] == "one"


def test_offsets_go_to_a_file_and_back(ask: Ask, cluster: SimulatedCluster, tmp_path: Path) -> None:
    saved = _plain(ask("offsets", "export", GROUP))
    assert json.loads(saved) == {"Orders": {"broker-000:0": 90, "broker-001:0": 91}}
    shown = _plain(ask("offsets", "show", GROUP)).splitlines()
    assert shown[0].split() == ["TOPIC", "QUEUE", "MIN", "MAX", "COMMITTED", "LAG"]
    assert shown[1].split() == ["Orders", "broker-000:0", "10", "100", "90", "10"]

    dry = ask("offsets", "reset", GROUP, "--to-earliest", "--dry-run", "--json")
    assert json.loads(dry.stdout)["reset"] is False
    assert cluster.brokers["broker-000"].offsets[GROUP, "Orders", 0] == 90

    done = ask("offsets", "reset", GROUP, "--to-earliest", "--yes")
    assert (done.exit_code, done.stderr) == (0, "4 offsets set\n")
    assert {broker.offsets[GROUP, "Orders", 1] for broker in cluster.brokers.values()} == {10}

    file = tmp_path / "offsets.json"
    file.write_text(saved)
    assert ask("offsets", "reset", GROUP, "--to-offsets", str(file), "--yes").stderr == "2 offsets set\n"
    assert [broker.offsets[GROUP, "Orders", 0] for broker in cluster.brokers.values()] == [90, 91]
    moved = ask("offsets", "reset", GROUP, "--shift", "1000", "--queue", "broker-001:0", "--yes", "--json")
    (row,) = json.loads(moved.stdout)["queues"]
    assert (row["brokerName"], row["committedOffset"], row["newOffset"], row["newLag"]) == ("broker-001", 91, 100, 0)


def test_a_reset_that_a_broker_ignores_is_an_error(ask: Ask, cluster: SimulatedCluster) -> None:
    """A broker of 5.x with a pending reset answers SUCCESS with a remark, and stores nothing."""
    for broker in cluster.brokers.values():
        broker.answer(RequestCode.UPDATE_CONSUMER_OFFSET, lambda _: (0, {}, b""))
        broker.remarks[RequestCode.UPDATE_CONSUMER_OFFSET] = "Offset has been previously reset"
    line = ("offsets", "reset", GROUP, "--shift", "-5", "--queue", "broker-001:0", "--yes")
    result = ask(*line)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "rmq: Orders broker-001:0 stays at 91: another reset is pending", "0 offsets set"
    ]  # fmt: skip
    result = ask(*line, "--json")
    assert (result.exit_code, json.loads(result.stdout)["reset"]) == (1, False)


def test_the_help_of_a_command_lists_no_argument_among_its_options(ask: Ask) -> None:
    shown = ask("consume", "--help").stdout
    assert "--until-empty" in shown
    assert not [line for line in shown.splitlines() if line.strip() == "TOPIC"]


def test_a_command_that_reads_makes_no_group_and_commits_nothing(ask: Ask, cluster: SimulatedCluster) -> None:
    before = [(set(broker.groups), dict(broker.offsets)) for broker in cluster.brokers.values()]
    cluster.forget_calls()
    for arguments in (
        ["topics", "--all"], ["groups"], ["lag"], ["lag", GROUP], ["read", "Orders"], ["tail", "Orders"],
        ["offsets", "show", GROUP], ["offsets", "export", GROUP],
        ["consume", "Orders", "-g", "cg_new", "--peek", "--max", "3"],
    ):  # fmt: skip
        _plain(ask(*arguments))
    assert [(set(broker.groups), dict(broker.offsets)) for broker in cluster.brokers.values()] == before
    changing = (RequestCode.HEART_BEAT, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.LOCK_BATCH_MQ)
    assert not set(changing) & set(cluster.total_calls)


def test_peek_begins_at_the_offsets_of_the_group(ask: Ask) -> None:
    lines = _plain(ask("consume", "Orders", "-g", GROUP, "--peek")).splitlines()
    places = [line.split()[1].rpartition(":") for line in lines]
    first = {queue: min(int(offset) for name, _, offset in places if name == queue) for queue, _, _ in places}
    assert first == {"broker-000:0": 90, "broker-000:1": 10, "broker-001:0": 91, "broker-001:1": 10}


def test_a_broker_that_does_not_answer_is_named(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.brokers["broker-001"].stop()
    for arguments in (["topics"], ["topics", "--json"], ["groups", GROUP], ["offsets", "show", GROUP], ["lag"]):
        result = ask(*arguments)
        assert result.exit_code == 1, arguments
        assert result.stderr.startswith("rmq: without broker broker-001: "), arguments
        assert result.stderr.count("\n") == 1, arguments
        assert result.stdout, arguments
    result = ask("tail", "Orders", "-n", "2")
    assert (result.exit_code, result.stdout.count("broker-000:")) == (1, 2)
    assert "without broker broker-001" in result.stderr
    # A file without its queues, and a reset of a part, would do harm later.
    result = ask("offsets", "export", GROUP)
    assert (result.exit_code, result.stdout) == (1, "")
    result = ask("offsets", "reset", GROUP, "--to-earliest", "--yes")
    assert (result.exit_code, cluster.brokers["broker-000"].offsets[GROUP, "Orders", 0]) == (1, 90)


def test_a_group_of_a_broker_that_does_not_answer_is_not_called_unknown(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.brokers["broker-001"].groups.add("cg_there")
    cluster.brokers["broker-001"].stop()
    for arguments in (["lag", "cg_there"], ["groups", "cg_there"], ["offsets", "show", "cg_there"]):
        result = ask(*arguments)
        assert (result.exit_code, result.stdout) == (1, ""), arguments
        assert result.stderr.startswith("rmq: broker broker-001"), arguments


def _polls(monkeypatch: pytest.MonkeyPatch, module: str, steps: list[Callable[[], None]]) -> None:
    """A step is made after each poll; then Ctrl-C."""
    left = iter(steps)

    def sleep(_: float) -> None:
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(import_module(module), "time", SimpleNamespace(sleep=sleep, time_ns=time.time_ns))


@pytest.mark.parametrize("names", [[], [GROUP]])
def test_watching_names_a_broker_when_it_stops_answering(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    late = cluster.brokers["broker-001"]
    _polls(monkeypatch, "rmq_store.cli.groups.lag", [lambda: None, late.stop, lambda: None])
    result = ask("lag", *names, "--watch", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 4)
    assert result.stderr.startswith("rmq: without broker broker-001: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("names", [[], [GROUP]])
def test_watching_ends_when_no_broker_answers(
    ask: Ask, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Otherwise a group that was there is "no group", or each poll is an empty table."""

    def stop() -> None:
        for broker in cluster.brokers.values():
            broker.stop()

    _polls(monkeypatch, "rmq_store.cli.groups.lag", [stop] * 9)
    result = ask("lag", *names, "--watch", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert result.stderr.startswith("rmq: broker broker-00")
    for broker in cluster.brokers.values():
        broker.start()
    _polls(monkeypatch, "rmq_store.cli.monitoring.top", [stop])
    result = ask("top", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("rmq: broker broker-00")


def test_no_broker_that_answers_is_an_error_without_a_table(ask: Ask, cluster: SimulatedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.stop()
    for arguments in (["topics"], ["groups"], ["lag"], ["read", "Orders"]):
        result = ask(*arguments)
        assert (result.exit_code, result.stdout) == (1, ""), arguments
        assert result.stderr.startswith("rmq: broker broker-00"), arguments


def test_a_broker_that_refuses_the_ends_of_a_topic_is_asked_for_each_queue(ask: Ask, cluster: SimulatedCluster) -> None:
    cluster.brokers["broker-001"].refuse(RequestCode.GET_TOPIC_STATS_INFO, 16, count=1)
    assert _plain(ask("topics")).splitlines()[1].split() == ["Orders", "4", "RW-", "40", "400", "360"]


def test_top_has_the_figures_of_all_brokers(ask: Ask) -> None:
    found = json.loads(_plain(ask("top", "--every", "0.01", "--json")))
    assert (found["cluster"], found["brokers"]) == ("simulated", 2)
    assert found["topics"] == [{"topic": "Orders", "queues": 4, "messages": 360, "inPerSecond": 0.0}]
    (group,) = found["groups"]
    assert (group["group"], group["lag"], group["outPerSecond"], group["dead"]) == (GROUP, 219, 0.0, 0)
    lines = _plain(ask("top", "--every", "0.01")).splitlines()
    assert lines[:2] == ["simulated", "2 brokers"]
