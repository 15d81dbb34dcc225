"""`rmq -n` over brokers of released versions; tests/storage/cli/test_cluster_commands.py has the details."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from click.testing import CliRunner

from cluster.test_retry_tools import produced, rows, send_back, stored
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from rmq_store.cli import commands
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings


def test_messages_are_sent_shown_consumed_and_moved_back(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("Commands"), new_name("cg-commands")
    cluster.create_topic(topic, 2)

    def ask(*arguments: str, text: str | None = None) -> str:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20"}
        words = ["-n", cluster.name_server, *arguments]
        result = CliRunner().invoke(commands, words, env=clean, prog_name="rmq", input=text, catch_exceptions=False)
        assert (result.exit_code, result.output.count("without broker")) == (0, 0), (arguments, result.output)
        return result.stdout

    one = json.loads(ask("send", topic, "--body", "two teas", "--tags", "TagA", "--queue", "broker-a:1", "--json"))
    assert (one["brokerName"], one["queueId"], one["queueOffset"]) == ("broker-a", 1, 0)
    lines = "".join(json.dumps({"body": f"cup {number}", "tags": "TagB"}) + "\n" for number in range(9))
    ask("send", topic, "--jsonl", "-", "--queue", "broker-a:0", text=lines)

    def of_topic() -> int:
        return next(one["messages"] for one in json.loads(ask("topics", "--json")) if one["topic"] == topic)

    until = time.monotonic() + 30
    while of_topic() < 10 and time.monotonic() < until:  # a broker shows messages a moment after its answer
        time.sleep(0.2)
    rows = [json.loads(row) for row in ask("read", topic, "--json").splitlines()]
    assert [(row["brokerName"], row["queueId"], row["body"]) for row in rows] == [
        *(("broker-a", 0, f"cup {number}") for number in range(9)), ("broker-a", 1, "two teas"),
    ]  # fmt: skip
    assert [json.loads(row)["body"] for row in ask("tail", topic, "--tags", "TagA", "--json").splitlines()] == [
        "two teas"
    ]
    assert len(ask("consume", topic, "-g", group, "--peek").splitlines()) == 10
    assert group not in {one["group"] for one in json.loads(ask("groups", "--all", "--json"))}

    assert len(ask("consume", topic, "-g", group, "--max", "10").splitlines()) == 10
    saved = json.loads(ask("offsets", "export", group))
    assert saved[topic] == {"broker-a:0": 9, "broker-a:1": 1}
    ask("offsets", "reset", group, "-t", topic, "--shift", "-1", "--yes")
    shown = [one for one in json.loads(ask("lag", group, "--json")) if one["topic"] == topic]
    assert [(one["queue"], one["committedOffset"], one["lag"]) for one in shown] == [
        ("broker-a:0", 8, 1), ("broker-a:1", 0, 1),
    ]  # fmt: skip
    assert all(one["lagMs"] is not None for one in shown)


def test_the_history_of_a_message_that_failed(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> None:
    topic, group = new_name("Traced"), new_name("cg-traced")
    with Cluster(ClusterSettings(name_servers=cluster.name_servers, timeout_ms=5_000)) as ours:
        (message,) = produced(ours, cluster, topic, [0])

        def ask(*arguments: str) -> str:
            words = ["-n", cluster.name_server, *arguments]
            result = CliRunner().invoke(commands, words, env={"RMQ_STORE": None}, prog_name="rmq")
            assert (result.exit_code, result.stderr) == (0, ""), result.output
            return result.stdout

        assert len(ask("consume", topic, "-g", group, "--max", "1").splitlines()) == 1
        send_back(ours, group, rows([message], [1], [False]))
        (again,) = stored(ours, f"%RETRY%{group}", 1)
        send_back(ours, group, rows([again], [-1], [False]))
        stored(ours, f"%DLQ%{group}", 1)
    until(
        lambda: len(json.loads(ask("trace", "--uniq-key", message.msg_id, "-t", topic, "--json"))[0]["steps"]) == 4,
        "the index of the broker lacks copies",
    )
    (life,) = json.loads(ask("trace", "--msg-id", message.offset_msg_id, "--json"))
    assert [(step["event"], step["attempt"]) for step in life["steps"]] == [
        ("STORED", None), ("FAILED", 1), ("RETRY", 2), ("DEAD", 2),
    ]  # fmt: skip
    stored_at, failed, retried, _ = life["steps"]
    assert stored_at["time"] <= failed["time"] < failed["due"] <= retried["time"]
    assert [(one["group"], one["state"]) for one in life["groups"]] == [(group, "DEAD")]
    assert json.loads(ask("trace", "-t", topic, "-k", "k", "--json")) == [life]
