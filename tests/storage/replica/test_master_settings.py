"""The settings of a master, also of one that does not tell them for want of rights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.versions import V5_4_0
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import Master

Make = Callable[..., Master]
REFUSALS = [(16, "no permission"), (1, "org.apache.rocketmq.acl.common.AclException: no right, <AclException>")]
V4_9_7 = 401


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Make:
    """One whose 26 is refused so, or answered with `body`; it does not know 906."""

    def make(code: int, remark: str = "", body: bytes = b"", version: int = V4_9_7, **given: object) -> Master:
        made = Master(ClusterSettings(name_servers=("127.0.0.1:1",)), address="10.0.0.7:10911", **given)  # type: ignore[arg-type]

        def ask(command: RemotingCommand) -> RemotingCommand | RemotingError:
            asked = command.code == 26
            answer = response_to(command, code if asked else 3, remark if asked else "not supported", body=body)
            answer.version = version
            return answer

        monkeypatch.setattr(made, "ask", ask)
        return made

    return make


@pytest.mark.parametrize(("code", "remark"), REFUSALS)
def test_a_refusal_names_the_option(master: Make, code: int, remark: str) -> None:
    with pytest.raises(MQBrokerError, match=r"--broker-conf FILE.*mappedFileSizeCommitLog") as refused:
        master(code, remark).look()
    assert refused.value.response_code == code


@pytest.mark.parametrize(("code", "remark"), REFUSALS)
def test_a_broker_conf_stands_for_the_answer(master: Make, code: int, remark: str) -> None:
    conf = {"brokerName": "b", "brokerIP2": "10.0.0.9", "mappedFileSizeConsumeQueue": "59", "maxIndexNum": "7"}
    found = master(code, remark, broker_conf=conf).look()
    assert (found.cluster, found.broker, found.ha_address) == ("DefaultCluster", "b", "10.0.0.9:10912")
    sizes = found.config.mapped_file_size_commit_log, found.config.mapped_file_size_consume_queue
    assert sizes == (1 << 30, 60) and found.config.max_index_num == 7, "the rest is RocketMQ's own"
    assert not found.config.message_index_tags
    assert master(code, remark, version=V5_4_0, broker_conf=conf).look().config.message_index_tags


def test_what_the_broker_tells_counts(master: Make) -> None:
    body = b"brokerName=told\nbrokerClusterName=c\nmappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=40\n"
    found = master(0, body=body, broker_conf={"brokerName": "given"}).look()
    assert (found.broker, found.config.mapped_file_size_commit_log) == ("told", 4096)


def test_another_error_is_told_as_it_is(master: Make) -> None:
    with pytest.raises(MQBrokerError, match="busy"):
        master(2, "[TIMEOUT_CLEAN_QUEUE]busy", broker_conf={}).look()
