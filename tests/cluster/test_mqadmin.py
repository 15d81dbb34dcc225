"""mqadmin's commands of `rmq -n` beside the released mqadmin of the brokers' version, at the same brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.mqadmin import Mqadmin
from helpers.cluster.waiting import until
from rmq_store.cli import commands

NewName = Callable[[str], str]
Rmq = Callable[..., list[str]]


@pytest.fixture
def rmq(cluster: RocketmqCluster) -> Rmq:
    """The lines that our command prints, as `Mqadmin.run` gives those of Java's."""

    def run(*arguments: str) -> list[str]:
        line = ["-n", cluster.name_server, *arguments, "--timeout", "20"]
        result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return [line.rstrip() for line in result.stdout.splitlines() if line.strip()]

    return run


@pytest.fixture
def java(cluster: RocketmqCluster) -> Iterator[Mqadmin]:
    with Mqadmin(cluster) as java:
        yield java


@pytest.mark.slow
def test_one_topic_is_shown_as_by_mqadmin(cluster: RocketmqCluster, java: Mqadmin, rmq: Rmq, new_name: NewName) -> None:
    topic = cluster.create_topic(new_name("Shown"), 2)
    rmq("sendMessage", "-t", topic, "-p", "tea", "-k", "K1", "-c", "TagA", "-b", "broker-a", "-i", "1")
    for arguments in (
        ("topicStatus", "-t", topic),
        ("topicRoute", "-t", topic, "-l") if cluster.version.startswith("5.") else ("topicClusterList", "-t", topic),
        ("topicClusterList", "-t", topic),
    ):
        assert without_rates(rmq(*arguments)) == without_rates(java.run(*arguments))


@pytest.mark.slow
def test_what_is_made_is_told_as_by_mqadmin(
    cluster: RocketmqCluster, java: Mqadmin, rmq: Rmq, new_name: NewName
) -> None:
    address = cluster.address()
    for arguments in (
        ("updateTopic", "-t", "TOPIC", "-r", "3", "-w", "5", "-c", "rmq-tests"),
        ("updateTopicPerm", "-t", "TOPIC", "-p", "4", "-b", address),
        ("updateBrokerConfig", "-k", "fileReservedTime", "-v", "71", "-b", address),
        ("cleanUnusedTopic", "-b", address),
        ("deleteTopic", "-t", "TOPIC", "-c", "rmq-tests"),
    ):
        if arguments[0] == "updateTopic":
            names = new_name("Made"), new_name("Made")
        told = []
        for run, name in zip((java.run, rmq), names, strict=True):
            sure = ("--yes",) if run is rmq and arguments[0] in ("deleteTopic", "cleanUnusedTopic") else ()
            lines = run(*(name if one == "TOPIC" else one for one in arguments), *sure)
            told.append([line.replace(name, "TOPIC") for line in lines])
        # 4.9 has no attributes in its text.
        assert [re.sub(r", attributes=[^\]]*", "", line) for line in told[1]] == [
            re.sub(r", attributes=[^\]]*", "", line) for line in told[0]
        ]
    assert ["71"] == [line.split()[-1] for line in rmq("getBrokerConfig", "-b", address) if "fileReservedTime" in line]
    ours = rmq("getBrokerConfig", "-b", address)
    assert sorted(ours) == sorted(java.run("getBrokerConfig", "-b", address))
    shown = [sorted(name_of(line) for line in run("brokerStatus", "-b", address)) for run in (java.run, rmq)]
    assert shown[0] == shown[1]


@pytest.mark.slow
def test_a_group_is_shown_and_moved_as_by_mqadmin(
    cluster: RocketmqCluster, java: Mqadmin, rmq: Rmq, new_name: NewName
) -> None:
    topic, group = cluster.create_topic(new_name("Moved"), 2), new_name("cg_moved")
    for body in "abc":
        rmq("sendMessage", "-t", topic, "-p", body, "-b", "broker-a", "-i", "1")
    java.run("updateSubGroup", "-g", group, "-c", "rmq-tests", "-r", "5")
    java.run("updateTopic", "-t", f"%RETRY%{group}", "-c", "rmq-tests", "-r", "1", "-w", "1")
    ours, theirs = (run("getConsumerConfig", "-g", group) for run in (rmq, java.run))
    left_out = ("groupRetryPolicy", "attributes", "subscriptionDataSet", "groupSysFlag", "consumeTimeoutMinute")
    shown = [[line for line in lines if not line.startswith(left_out)] for lines in (ours, theirs)]
    # 4.9 shows fewer settings.
    assert set(shown[1]) <= set(shown[0])
    for time in ("0", "now"):
        ours = rmq("resetOffsetByTime", "-g", group, "-t", topic, "-s", time, "--yes")
        assert columns(progress(java, group, topic)) == columns(progress(rmq, group, topic))
        offset = {"0": "0", "now": "3"}[time]
        assert [line.split()[4] for line in progress(rmq, group, topic)] == ["0", offset]
        assert [line.split()[5] for line in ours[2:]] == ["0", offset]
    one_queue = ("-q", "1", "-o", "2", "-b", cluster.address())
    rmq("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", *one_queue, "--yes")
    assert [line.split()[4] for line in progress(rmq, group, topic)] == ["0", "2"]
    clone = new_name("cg_clone")
    rmq("cloneGroupOffset", "-s", group, "-d", clone, "-t", topic, "--yes")
    assert "2" in {line.split()[4] for line in progress(rmq, clone, topic)}
    rmq("skipAccumulatedMessage", "-g", group, "-t", topic, "--yes")
    assert [line.split()[4] for line in progress(rmq, group, topic)] == ["0", "3"]
    rmq("deleteSubGroup", "-g", group, "-r", "true", "--yes")
    assert f"%RETRY%{group}" not in rmq("topicList")


@pytest.mark.slow
def test_messages_are_shown_as_by_mqadmin(
    cluster: RocketmqCluster, java: Mqadmin, rmq: Rmq, new_name: NewName, tmp_path: Path
) -> None:
    topic = cluster.create_topic(new_name("Found"), 1)
    for number in range(3):
        rmq("sendMessage", "-t", topic, "-p", f"body {number}", "-k", f"K{number} all", "-c", "TagA")

    def indexed() -> bool:
        line = ["-n", cluster.name_server, "queryMsgByKey", "-t", topic, "-k", "all", "--json"]
        result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq")
        return result.exit_code == 0 and len(json.loads(result.stdout)) == 3

    until(indexed, f"the broker does not find the messages of {topic} by their key")
    keys = [run("queryMsgByKey", "-t", topic, "-k", "all")[1:] for run in (java.run, rmq)]
    assert [line.split()[:3] for line in keys[0]] == [line.split()[:3] for line in keys[1]]
    assert len(keys[1]) == 3
    place = ("-t", topic, "-b", "broker-a", "-i", "0", "-o", "1")
    one = [fields(run("queryMsgByOffset", *place)) for run in (java.run, rmq)]
    assert one[1]["Message Body"] == "body 1"
    for found in one:
        for changing in ("Message Body", "Message Body Path", "Properties"):
            found.pop(changing, None)
    assert one[0] == one[1]
    by_id = []
    for run in (java.run, rmq):
        # mqadmin of 5.x ends here without -t, and that of 4.9 does not know it.
        more = ("-t", topic) if run is not rmq and cluster.version.startswith("5.") else ()
        by_id.append(fields(run("queryMsgById", "-i", one[1]["OffsetID"], *more)))
    assert [found["Store Timestamp"] for found in by_id] == [one[0]["Store Timestamp"]] * 2
    printed = [run("printMsg", "-t", topic) for run in (java.run, rmq)]
    texts = [[re.sub(r"properties=\{.*?\}, body=\[.*?\]", "", line) for line in lines] for lines in printed]
    assert texts[0] == texts[1]
    counts = [run("printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", "0", "-f", "true") for run in (java.run, rmq)]
    assert counts[0] == counts[1] == ["Tag: TagA                           Count: 3"]
    entries = [run("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "3") for run in (java.run, rmq)]
    shown = [[re.sub(r", (extend|bitMap).*\}", "}", line) for line in lines] for lines in entries]
    assert shown[0] == shown[1]
    for name in ("exportMetadata", "exportConfigs"):
        paths = []
        for who, run in (("java", java.run), ("ours", rmq)):
            run(name, "-c", "rmq-tests", "-f", str(tmp_path / who))
            paths.append(next(path for path in (tmp_path / who).iterdir() if path.stem in ("metadata", "configs")))
        found_both = [json.loads(path.read_text()) for path in paths]
        for path in paths:
            path.unlink()
        if name == "exportConfigs":
            assert found_both[0]["clusterScale"] == found_both[1]["clusterScale"]
            known = found_both[0]["brokerConfigs"]["broker-a"]
            ours = found_both[1]["brokerConfigs"]["broker-a"]
            assert {key: known[key] for key in ours} == ours
        else:
            assert found_both[0]["topicConfigTable"].keys() == found_both[1]["topicConfigTable"].keys()
            assert found_both[0]["subscriptionGroupTable"].keys() == found_both[1]["subscriptionGroupTable"].keys()


def test_a_master_that_is_gone_is_named_and_its_slave_is_not_asked_to_change(
    cluster: RocketmqCluster, rmq: Rmq, new_name: NewName
) -> None:
    topic = cluster.create_topic(new_name("There"), 1)
    assert rmq("topicStatus", "-t", topic)[1].split() == ["broker-a", "0", "0", "0"]
    rows = rmq("clusterList")
    assert [line.split()[1:3] for line in rows[1:]] == [["broker-a", "0"], ["broker-a", "1"]]
    cluster.broker().suspend()
    line = ["-n", cluster.name_server, "updateTopic", "-t", new_name("Never"), "--timeout", "1"]
    result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"rmq: broker broker-a ({cluster.address()}): ")


def progress(run: Mqadmin | Rmq, group: str, topic: str) -> list[str]:
    # mqadmin of 4.9 has no -t.
    lines = run.run("consumerProgress", "-g", group) if isinstance(run, Mqadmin) else run(
        "consumerProgress", "-g", group, "-t", topic
    )  # fmt: skip
    return [line for line in lines if line.startswith(topic)]


def columns(lines: list[str]) -> list[list[str]]:
    """Up to the lag: 4.9 does not show what is in flight."""
    return [line.split()[:6] for line in lines]


def fields(lines: list[str]) -> dict[str, str]:
    """The labels of a message and their values."""
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith(("MessageTrack", "WARN")))
    return {label.strip(): value.strip() for label, _, value in pairs}


def name_of(line: str) -> str:
    return line.partition(":")[0].strip()


def without_rates(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("Topic Put TPS")]
