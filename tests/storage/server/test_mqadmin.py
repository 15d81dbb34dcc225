"""The commands of mqadmin, as `rmq` has them over a cluster, against a served store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.client import SimpleConsumer
from rmq_store.server.broker_server import BrokerServer

Ask = Callable[[str], Result]


def rmq(line: str) -> Result:
    return CliRunner().invoke(commands, line.split(), env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)


@pytest.fixture
def ask(server: BrokerServer, scratch: Path) -> Ask:
    store = server.store
    store.create_topic("Orders", 2)
    for number in range(4):
        sent = store.send(Message("Orders", b"body %d" % number, keys="k", queue_id=number % 2))
    store.create_group(SubscriptionGroup("cg"))
    store.commit_offsets("cg", {("Orders", 0): 1, ("Orders", 1): 0})
    ids = {"offset_id": sent.offset_msg_id, "unique_key": sent.msg_id, "broker": server.address, "out": scratch / "out"}

    return lambda line: rmq(f"-n {server.address} {line.format(**ids)}")


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("queryMsgById -i {offset_id}", "Queue Offset:        1"),
        ("queryMsgByKey -t Orders -k k", "#Message ID"),
        ("queryMsgByUniqueKey -t Orders -i {unique_key}", "Message Body:        body 3"),
        ("queryMsgByOffset -t Orders -b rmq-embedded -i 0 -o 0", "trackType=CONSUMED"),
        ("printMsg -t Orders", "BODY: body 3"),
        ("printMsgByQueue -t Orders -a rmq-embedded -i 1 -p true", "queueOffset=1"),
        ("sendMessage -t Orders -p hello", "SEND_OK"),
        ("consumeMessage -t Orders", "Consume ok"),
        ("topicStatus -t Orders", "rmq-embedded                      1     0                     2"),
        ("topicRoute -t Orders", '"readQueueNums":2'),
        ("topicList", "Orders"),
        ("topicClusterList -t Orders", "DefaultCluster"),
        ("updateTopic -b {broker} -t New", "create topic to {broker} success"),
        ("updateTopic -c DefaultCluster -t Orders -w 4", "writeQueueNums=4"),
        ("updateTopicPerm -b {broker} -t Orders -p 4", "from 6 to 4"),
        ("deleteTopic -c DefaultCluster -t Orders --yes", "delete topic [Orders] from NameServer success."),
        ("consumerProgress -g cg", "Consume Diff Total: 3"),
        ("consumerProgress", "OFFLINE"),
        ("updateSubGroup -b {broker} -g new -r 3", "retryMaxTimes=3"),
        ("deleteSubGroup -b {broker} -g cg -r true --yes", "delete subscription group [cg]"),
        ("getConsumerConfig -g cg", "retryMaxTimes                           =  16"),
        ("resetOffsetByTime -g cg -t Orders -s -1 --yes", "rmq-embedded          1"),
        ("skipAccumulatedMessage -g cg -t Orders --yes", "#rollbackOffset"),
        ("clusterList", "rmq-embedded            0     {broker}"),
        ("brokerStatus -b {broker}", "commitLogMinOffset"),
        ("cleanExpiredCQ -b {broker}", "success"),
        ("deleteExpiredCommitLog -b {broker} --yes", "success"),
        ("cleanUnusedTopic -b {broker} --yes", "success"),
        ("getBrokerConfig -b {broker}", f"{'brokerClusterName':50}=  DefaultCluster"),
        ("exportConfigs -c DefaultCluster -f {out}", "configs.json success"),
        ("statsAll -t Orders", "Orders"),
        ("queryCq -t Orders -q 0 -i 0 -b {broker} -c 1", "max: 2, min: 0"),
        ("exportMetadata -c DefaultCluster -f {out}", "metadata.json success"),
    ],
)
def test_a_command_of_mqadmin_works(ask: Ask, server: BrokerServer, line: str, printed: str) -> None:
    done = ask(line)
    assert done.exit_code == 0, done.output
    assert printed.format(broker=server.address) in done.output


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("consumerConnection -g cg", "CODE: 206"),
        ("updateBrokerConfig -b {broker} -k fileReservedTime -v 24", "CODE: 16"),
        ("queryMsgTraceById -i x", "CODE: 208"),
        ("deleteTopic -c DefaultCluster -t Missing --yes", "Missing"),
        ("consumerProgress -g cgg", "no broker of the cluster knows a group 'cgg'; did you mean 'cg'?"),
    ],
)
def test_a_command_that_cannot_be_answered_says_why(ask: Ask, line: str, reason: str) -> None:
    done = ask(line)
    assert done.exit_code != 0
    assert reason in done.output


def test_what_mqadmin_changes_is_in_the_store(ask: Ask, server: BrokerServer) -> None:
    store = server.store
    ask("skipAccumulatedMessage -g cg -t Orders --yes")
    assert store.committed_offsets("cg") == {("Orders", 0): 2, ("Orders", 1): 2}
    ask("resetOffsetByTime -g cg -t Orders -s 0 --yes")
    assert store.committed_offsets("cg") == {("Orders", 0): 0, ("Orders", 1): 0}
    ask("cloneGroupOffset -s cg -d other -t Orders --yes")
    ask("deleteSubGroup -b {broker} -g cg -r true --yes")
    assert "cg" not in store.groups() and store.committed_offsets("cg") == {}
    ask("deleteTopic -c DefaultCluster -t Orders --yes")
    assert store.find_topic("Orders") is None and store.committed_offsets("other") == {}


def test_queues_without_an_offset_count_for_the_lag(ask: Ask, server: BrokerServer) -> None:
    server.store.create_group(SubscriptionGroup("part"))
    server.store.commit_offsets("part", {("Orders", 0): 1})
    lines = ask("consumerProgress -g part").stdout.splitlines()
    assert [line.split()[2:6] for line in lines[1:3]] == [["0", "2", "1", "1"], ["1", "2", "0", "2"]]
    assert "Consume Diff Total: 3" in lines
    assert ask("lag part").stdout.count("\n") == 3
    assert ask("groups part --json").stdout.count('"committedOffset": null') == 1


def test_a_group_without_offsets_is_no_unknown_one(ask: Ask, server: BrokerServer) -> None:
    server.store.create_group(SubscriptionGroup("young"))
    done = ask("consumerProgress -g young")
    assert (done.exit_code, done.stderr) == (0, "") and "Consume Diff Total: 0" in done.stdout


def test_messages_that_a_pop_gave_out_are_in_flight(ask: Ask, server: BrokerServer) -> None:
    with SimpleConsumer("cg_pop", server.store, {"Orders": "*"}) as consumer:
        assert len(consumer.receive(2, timedelta(seconds=300))) == 2
        assert "Consume Inflight Total: 2" in ask("consumerProgress -g cg_pop").stdout


def test_a_unique_id_whose_end_is_no_offset_is_found(ask: Ask, server: BrokerServer) -> None:
    unique_id = "C0000202371F5FFDAB2767134429005D"
    server.store.send(Message("Orders", b"high bit", properties={"UNIQ_KEY": unique_id}), as_given=True)
    for place in ("-n " + server.address, f"--store {server.store.path}"):
        asked = f"{place} queryMsgById" if place.startswith("-n") else f"queryMsgById {place}"
        shown = rmq(f"{asked} -i {unique_id} -t Orders")
        assert "high bit" in shown.stdout, shown.output
        hint = rmq(f"{asked} -i {unique_id}")
        assert (hint.exit_code, f"rmq queryMsgByUniqueKey -i {unique_id} -t TOPIC" in hint.stderr) == (1, True)


def test_no_offset_is_not_shown_or_saved_as_the_offset_0(ask: Ask, server: BrokerServer) -> None:
    server.store.create_group(SubscriptionGroup("part"))
    server.store.commit_offsets("part", {("Orders", 1): 1})
    assert ask("offsets show part").stdout.splitlines()[1].split()[-2:] == ["-", "2"]
    assert json.loads(ask("offsets export part").stdout) == {"Orders": {"rmq-embedded:1": 1}}
    cloned = ask("cloneGroupOffset -s part -d copy -t Orders --yes")
    assert cloned.stderr == "Orders rmq-embedded queue 1: no offset -> 1\n"
    assert server.store.committed_offsets("copy") == {("Orders", 1): 1}


def test_many_messages_for_no_topic_say_how_to_make_it(ask: Ask, scratch: Path) -> None:
    (scratch / "lines").write_text("a\n", encoding="utf-8")
    done = ask(f"send Missing --lines {scratch}/lines")
    made = "--lines and --jsonl make none; `rmq updateTopic -t Missing` does"
    assert (done.exit_code, done.stderr) == (2, f"rmq: no topic 'Missing' in the cluster: {made}\n")
