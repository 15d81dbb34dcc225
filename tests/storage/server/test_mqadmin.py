"""The commands of mqadmin, as `rmq` has them over a cluster, against a served store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.server.broker_server import BrokerServer

Ask = Callable[[str], Result]


@pytest.fixture
def ask(server: BrokerServer, scratch: Path) -> Ask:
    store = server.store
    store.create_topic("Orders", 2)
    for number in range(4):
        sent = store.send(Message("Orders", b"body %d" % number, keys="k", queue_id=number % 2))
    store.create_group(SubscriptionGroup("cg"))
    store.commit_offsets("cg", {("Orders", 0): 1, ("Orders", 1): 0})
    ids = {"offset_id": sent.offset_msg_id, "unique_key": sent.msg_id, "broker": server.address, "out": scratch / "out"}

    def invoke(line: str) -> Result:
        arguments = ["-n", server.address, *line.format(**ids).split()]
        return CliRunner().invoke(commands, arguments, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)

    return invoke


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
