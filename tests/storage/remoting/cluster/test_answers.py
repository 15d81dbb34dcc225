"""What each code means as an answer to each question: the same code is judged in one way, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rmq.cluster_read.message_locations import MessageLocations
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.cluster_retry.originals import MessageLocation, OriginalReading
from rmq_store.client.delivery.outcome import verdict_of
from rmq_store.errors import ResponseError, StoreError
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol import answers
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.messages import MessageQueue, PullStatus
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.admin.scope import ask, masters
from rmq_store.remoting.cluster import groups, queries
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import PullFilter
from rmq_store.remoting.questions.brokers import ask_stats, read_stats
from rmq_store.remoting.questions.groups import (
    ask_consume_stats,
    ask_consumer_connections,
    read_consume_stats,
    read_consumer_connections,
)

from .fake_cluster import FakeNet, FakeProcess

ACL_4X = "org.apache.rocketmq.acl.common.AclException: No default permission"
QUEUE = MessageQueue("Orders", "broker-a", 0)
ADDRESS = "10.0.0.1:10911"


class AtAddress(FakeProcess):
    @property
    def address(self) -> str:
        return ADDRESS


@pytest.fixture
def cluster(net: FakeNet) -> Cluster:
    broker = net.add_broker()
    broker.put("Orders", 0, 1)
    broker.processes = {0: AtAddress(broker, 0), 1: FakeProcess(broker, 1)}
    return net.cluster()


def _original(cluster: Cluster) -> Any:
    try:
        return OriginalReading(cluster, 0, lambda _: None).read([MessageLocation("broker-a", 7_000, "id")], 0)
    except MQBrokerError:
        raise
    except ResponseError as error:
        assert "has no message there (any more)" in str(error)
        return None


Question = Callable[[Cluster], Any]
THINGS: dict[str, tuple[int, Question]] = {
    "members": (38, lambda cluster: groups.consumer_ids(cluster, "g", "broker-a") or None),
    "a message by its id": (
        33, lambda cluster: queries.view_message(cluster, offset_message_id(Host.parse(ADDRESS), 7_000))
    ),
    "the original of a send-back": (33, _original),
    "a rate": (
        315,
        lambda cluster: ask(cluster, masters(cluster)[0], ask_stats("TOPIC_PUT_NUMS", "Orders"), read_stats),
    ),
}  # fmt: skip
GROUPS: dict[str, tuple[int, Question]] = {
    "progress at a broker": (
        208,
        lambda cluster: ask(cluster, masters(cluster)[0], ask_consume_stats(cluster, "g"), read_consume_stats),
    ),
    "progress everywhere": (208, lambda cluster: groups.consume_stats(cluster, "g") or None),
    "connections at a broker": (
        203,
        lambda cluster: ask(
            cluster, masters(cluster)[0], ask_consumer_connections(cluster, "g"), read_consumer_connections
        ),
    ),
    "connections everywhere": (203, lambda cluster: groups.consumer_connections(cluster, "g") or None),
    "live members": (203, lambda cluster: groups.live_members(cluster, "g") or None),
}
REFUSALS = [(1, ACL_4X), (16, "no right"), (2, "[OVERLOAD]system busy"), (3, "not supported")]


def outcome(cluster: Cluster, question: Question) -> Any:
    """The value, or the code of the refusal."""
    try:
        return question(cluster)
    except MQBrokerError as error:
        return error.response_code


@pytest.mark.parametrize("name", THINGS)
def test_1_says_that_a_thing_is_not_there_unless_rights_are_missing(net: FakeNet, cluster: Cluster, name: str) -> None:
    code, question = THINGS[name]
    net.brokers["broker-a"].refused[code] = (1, "can not find it")
    assert outcome(cluster, question) is None
    for refusal in REFUSALS:
        net.brokers["broker-a"].refused[code] = refusal
        assert outcome(cluster, question) == refusal[0], refusal


@pytest.mark.parametrize("name", GROUPS)
def test_206_says_that_nobody_is_there_and_no_refusal_does(net: FakeNet, cluster: Cluster, name: str) -> None:
    code, question = GROUPS[name]
    for unknown in (206, *([26] if code == 208 else [])):
        net.brokers["broker-a"].refused[code] = (unknown, "not online")
        assert outcome(cluster, question) is None
    for refusal in [(1, "no such group"), *REFUSALS]:
        net.brokers["broker-a"].refused[code] = refusal
        # Of members that answer whoever can. A broker that is busy does not.
        is_left_out = name == "live members" and refusal[0] == 2
        assert outcome(cluster, question) == (None if is_left_out else refusal[0]), refusal


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_a_slave_shows_a_message_while_its_master_is_busy(net: FakeNet, cluster: Cluster, code: int) -> None:
    def busy(command: RemotingCommand) -> RemotingCommand:
        return response_to(command, code, "not now")

    locations, master = MessageLocations(cluster, PullFilter()), net.brokers["broker-a"].processes[0]
    master.answers += [busy] * 2
    assert locations.location(QUEUE, 0) is not None
    assert not cluster.held_off, "tasks go on at the master, with pauses"
    locations.forget()
    net.brokers["broker-a"].refused[11] = code, "not now"
    with pytest.raises(MQBrokerError, match=f"CODE: {code}"):
        locations.location(QUEUE, 0)


@pytest.mark.parametrize("code", [2, 14, 17])
def test_a_slave_that_does_not_give_messages_now_is_no_refusal(net: FakeNet, cluster: Cluster, code: int) -> None:
    cluster.known_route("Orders")
    locations, broker = MessageLocations(cluster, PullFilter()), RemoteBackend(cluster).brokers()["broker-a"]
    net.brokers["broker-a"].refused[11] = (code, "not here")
    with pytest.raises(MQBrokerError):
        broker.pull("g", QUEUE, 0, 32, None)
    if code == 17:
        assert locations.location(QUEUE, 0) is None, "no topic, no message"
    else:
        with pytest.raises(MQBrokerError):
            locations.location(QUEUE, 0)
    locations.forget()
    net.brokers["broker-a"].processes[0].down = True
    with pytest.raises(StoreError, match=ADDRESS):
        broker.pull("g", QUEUE, 0, 32, None)
    assert broker.pull("g", QUEUE, 0, 32, None).status is PullStatus.NO_NEW_MSG
    assert locations.location(QUEUE, 0) is None


@pytest.mark.parametrize(
    ("code", "remark", "passes", "is_busy", "is_of_rights", "is_nothing_there"),
    [
        (1, "no such message", False, False, False, True),
        (1, ACL_4X, False, False, True, False),
        (2, "busy", True, True, False, False),
        (14, "shuts down", True, False, False, False),
        (16, "no right", False, False, True, False),
        (17, "no topic", False, False, False, False),
        (22, "no offset", False, False, False, False),
        (26, "no group", False, False, False, False),
        (206, "nobody is online", False, False, False, False),
        (215, "slower", True, True, False, False),
        (1500, "go away", True, False, False, False),
        (42900, "too many requests", True, True, False, False),
    ],
)
def test_a_code_means_one_thing(
    code: int, remark: str, passes: bool, is_busy: bool, is_of_rights: bool, is_nothing_there: bool
) -> None:
    error = MQBrokerError(code, remark)
    assert error.retryable is passes
    assert (code in answers.BUSY, verdict_of(error).is_busy) == (is_busy, is_busy)
    assert answers.is_lack_of_rights(code, remark) is is_of_rights
    assert answers.is_nothing_there(code, remark) is is_nothing_there
