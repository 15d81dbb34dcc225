"""What released brokers answer, as far as our clients rely on it. Each fact holds on both versions, or says for which.

Requests are raw here: only the codec is ours. docs/cluster.md names these facts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.brokers import RocketmqCluster
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

NewName = Callable[[str], str]
SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED = 0, 1, 3
MESSAGE_ILLEGAL, TOPIC_NOT_EXIST = 13, 17
PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED = 19, 20, 21
QUERY_NOT_FOUND, GROUP_NOT_EXIST, INVALID_PARAMETER, NOT_ONLINE = 22, 26, 29, 206
PULL_MAX = 32


@pytest.fixture
def master(cluster: RocketmqCluster) -> Iterator[Connection]:
    with cluster.connect() as connection:
        yield connection


@pytest.fixture
def name_server(cluster: RocketmqCluster) -> Iterator[Connection]:
    with cluster.connect_to(cluster.name_server) as connection:
        yield connection


@pytest.fixture
def is_old(cluster: RocketmqCluster) -> bool:
    """4.9, and not 5.x."""
    return cluster.version.startswith("4.")


@pytest.fixture
def topic(cluster: RocketmqCluster, new_name: NewName) -> str:
    """Of one queue with 100 messages."""
    name = cluster.create_topic(new_name("Facts"), 1)
    with cluster.connect() as connection:
        answer = requests.send_batch(
            connection, name, [b"%d" % number for number in range(100)], properties={"KEYS": "k"}
        )
        requests.await_end(connection, name, 100)
    assert answer.code == SUCCESS, answer
    return name


def positions(answer: RemotingCommand) -> tuple[int, int, int]:
    """(next begin offset, min offset, max offset)."""
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    return tuple(int(answer.ext_fields[name]) for name in names)  # type: ignore[return-value]


# -- pulls ------------------------------------------------------------------------------------------------------------


def test_a_pull_of_the_tools_group_needs_neither_a_heartbeat_nor_a_member(master: Connection, topic: str) -> None:
    answer = requests.pull(master, topic)
    assert (answer.code, answer.remark) == (SUCCESS, "FOUND")
    assert [requests.body_of(frame) for frame in requests.frames(answer)] == [b"%d" % number for number in range(32)]
    assert positions(answer) == (32, 0, 100)
    assert requests.pull(master, topic, sys_flag=0).code == 24


@pytest.mark.parametrize("count", [33, 1000, 100_000])
def test_a_pull_gives_32_messages_however_many_are_asked_for(master: Connection, topic: str, count: int) -> None:
    assert len(requests.frames(requests.pull(master, topic, count=count))) == PULL_MAX


def test_a_pull_gives_256_kib_at_most_but_one_message(
    cluster: RocketmqCluster, master: Connection, new_name: NewName
) -> None:
    large = cluster.create_topic(new_name("Large"), 1)
    requests.send_batch(master, large, [b"x" * 100_000] * 5)
    requests.send_batch(master, large, [b"y" * 1_000_000])
    requests.await_end(master, large, 6)
    assert len(requests.frames(requests.pull(master, large))) == 2
    assert len(requests.frames(requests.pull(master, large, 0, 5))) == 1


def test_the_position_of_a_pull_outside_the_queue(master: Connection, topic: str) -> None:
    at_the_end, beyond, below = (requests.pull(master, topic, 0, offset) for offset in (100, 101, -1))
    assert (at_the_end.code, at_the_end.remark, positions(at_the_end)) == (
        PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", (100, 0, 100),
    )  # fmt: skip
    assert (beyond.code, beyond.remark, positions(beyond)) == (
        PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", (100, 0, 100),
    )  # fmt: skip
    assert (below.code, below.remark, positions(below)) == (PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", (0, 0, 100))


def test_a_pull_of_what_is_not_there(
    cluster: RocketmqCluster, master: Connection, topic: str, new_name: NewName, is_old: bool
) -> None:
    assert requests.pull(master, new_name("Nowhere")).code == TOPIC_NOT_EXIST
    assert requests.pull(master, topic, 9).code == (SYSTEM_ERROR if is_old else INVALID_PARAMETER)
    empty = cluster.create_topic(new_name("Empty"), 1)
    first, later = requests.pull(master, empty), requests.pull(master, empty, 0, 5)
    assert (first.code, first.remark) == (PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    assert (later.code, later.remark, positions(later)) == (PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", (0, 0, 0))


def test_a_lite_pull_is_unknown_to_old_brokers(master: Connection, topic: str, is_old: bool) -> None:
    answer = requests.pull(master, topic, code=RequestCode.LITE_PULL_MESSAGE, sys_flag=20)
    assert answer.code == (NOT_SUPPORTED if is_old else SUCCESS)
    assert requests.pull(master, topic, sys_flag=20).code == SUCCESS


def test_an_sql_condition_that_does_not_parse_matches_everything(master: Connection, topic: str) -> None:
    """So a condition is parsed and evaluated on our side, too."""
    nothing = requests.pull(master, topic, subscription="a > 1", expression_type="SQL92")
    assert (nothing.code, positions(nothing)[0]) == (PULL_RETRY_IMMEDIATELY, 100)
    nonsense = requests.pull(master, topic, subscription="a >", expression_type="SQL92")
    assert (nonsense.code, len(requests.frames(nonsense))) == (SUCCESS, 32)


def test_a_pull_makes_the_group_that_it_names(master: Connection, topic: str, new_name: NewName) -> None:
    group = new_name("pulled")
    assert group.encode() not in master.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    requests.pull(master, topic, group=group)
    body = master.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    assert f'"{group}"'.encode() in body and b'"TOOLS_CONSUMER"' in body


# -- routes, ranges and offsets ---------------------------------------------------------------------------------------


def test_offsets_of_a_topic_that_is_not_there_are_zero_but_its_ranges_are_an_error(
    master: Connection, new_name: NewName
) -> None:
    nowhere = new_name("Nowhere")
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        answer = master.ask(code, {"topic": nowhere, "queueId": 0})
        assert (answer.code, answer.ext_fields) == (SUCCESS, {"offset": "0"})
    assert master.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": nowhere}).code == TOPIC_NOT_EXIST


def test_one_request_has_the_ranges_of_all_queues(
    cluster: RocketmqCluster, master: Connection, new_name: NewName
) -> None:
    wide = cluster.create_topic(new_name("Wide"), 16)
    requests.send_batch(master, wide, [b"1", b"2"], 3)
    requests.await_end(master, wide, 2, 3)
    body = master.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": wide}).body.decode()
    found = re.findall(r'"queueId":(\d+),[^}]*}:{[^}]*"maxOffset":(\d+)', body)
    assert sorted((int(queue), int(end)) for queue, end in found) == [(queue, 2 * (queue == 3)) for queue in range(16)]


def test_a_commit_wants_a_group_on_5_and_takes_any_offset(
    master: Connection, topic: str, new_name: NewName, is_old: bool
) -> None:
    group = new_name("committing")
    unknown = requests.commit(master, group, topic, 7)
    assert unknown.code == (SUCCESS if is_old else GROUP_NOT_EXIST)
    requests.pull(master, topic, group=group)
    for offset in (7, 3, 99_999):
        assert requests.commit(master, group, topic, offset).code == SUCCESS
        assert requests.committed(master, group, topic).ext_fields == {"offset": str(offset)}
    missing = requests.commit(master, group, new_name("Nowhere"), 1)
    assert missing.code == (SUCCESS if is_old else TOPIC_NOT_EXIST)


def test_a_commit_is_ignored_while_a_reset_is_pending(
    cluster: RocketmqCluster, master: Connection, topic: str, new_name: NewName, is_old: bool
) -> None:
    group = new_name("resetting")
    requests.pull(master, topic, group=group)
    requests.commit(master, group, topic, 50)
    fields = {"group": group, "topic": topic, "timestamp": 0, "isForce": "true", "queueId": -1}
    reset = master.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    if is_old:
        assert reset.code == NOT_ONLINE
        return
    assert reset.code == SUCCESS
    ignored = requests.commit(master, group, topic, 60)
    assert (ignored.code, ignored.remark) == (SUCCESS, "Offset has been previously reset")
    assert requests.committed(master, group, topic).ext_fields == {"offset": "0"}
    pulled = requests.pull(master, topic, 0, 60, group=group)
    assert (pulled.code, pulled.remark, positions(pulled)[0]) == (PULL_OFFSET_MOVED, "OFFSET_RESET", 0)
    assert requests.commit(master, group, topic, 60).remark is None
    assert requests.committed(master, group, topic).ext_fields == {"offset": "60"}


# -- members and locks ------------------------------------------------------------------------------------------------


def test_a_group_without_members_is_not_online_and_a_member_leaves_with_its_connection(
    cluster: RocketmqCluster, master: Connection, topic: str, new_name: NewName
) -> None:
    group = new_name("members")

    def members() -> RemotingCommand:
        return master.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})

    assert members().code == NOT_ONLINE
    with cluster.connect() as member:
        assert requests.heartbeat(member, "client-1", group, topic).code == SUCCESS
        assert [command.code for command in member.unasked] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        assert [one["clientId"] for one in json.loads(members().body)["connectionSet"]] == ["client-1"]
    deadline_s = time.monotonic() + 10
    while members().code == SUCCESS and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert members().code == NOT_ONLINE


def test_a_lock_needs_no_group_and_has_one_owner(master: Connection, new_name: NewName) -> None:
    group = new_name("lease")
    made_up = new_name("NoSuchTopic")
    held = [{"brokerName": "no-such-broker", "queueId": 7, "topic": made_up}]

    def lock(client: str, code: int = RequestCode.LOCK_BATCH_MQ) -> list[dict[str, object]]:
        return requests.lock(master, group, client, made_up, 7, broker_name="no-such-broker", code=code)

    assert lock("client-1") == held
    assert lock("client-2") == []
    assert lock("client-1") == held
    lock("client-2", RequestCode.UNLOCK_BATCH_MQ)
    assert lock("client-2") == []
    lock("client-1", RequestCode.UNLOCK_BATCH_MQ)
    assert lock("client-2") == held
    assert group.encode() not in master.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body


def test_a_slave_grants_locks_of_its_own(cluster: RocketmqCluster, master: Connection, new_name: NewName) -> None:
    """So a lease is on masters only."""
    group = new_name("lease")
    assert requests.lock(master, group, "client-1", "T")
    with cluster.connect("broker-a", 1) as slave:
        assert requests.lock(slave, group, "client-2", "T")


# -- sends ------------------------------------------------------------------------------------------------------------


def test_old_brokers_add_the_outer_properties_of_a_batch_to_each_message(
    cluster: RocketmqCluster, master: Connection, new_name: NewName, is_old: bool
) -> None:
    name = cluster.create_topic(new_name("Batches"), 1)
    answer = requests.send_batch(
        master, name, [b"1", b"2"], properties={"UNIQ_KEY": "mine"}, outer={"UNIQ_KEY": "theirs"}
    )
    assert answer.code == SUCCESS
    assert len(answer.ext_fields["msgId"].split(",")) == 2 and answer.ext_fields["queueOffset"] == "0"
    requests.await_end(master, name, 2)
    found = [requests.properties_of(frame) for frame in requests.frames(requests.pull(master, name))]
    expected = {"UNIQ_KEY": "theirs", "CLUSTER": "rmq-tests"} if is_old else {"UNIQ_KEY": "mine"}
    assert found == [expected] * 2


def test_a_batch_with_wait_alone_keeps_the_properties_of_its_messages(
    cluster: RocketmqCluster, master: Connection, new_name: NewName, is_old: bool
) -> None:
    name = cluster.create_topic(new_name("Batches"), 1)
    assert requests.send_batch(master, name, [b"1"], properties={"UNIQ_KEY": "mine", "KEYS": "k"}).code == SUCCESS
    requests.await_end(master, name, 1)
    (frame,) = requests.frames(requests.pull(master, name))
    added = {"CLUSTER": "rmq-tests", "WAIT": "true"} if is_old else {}
    assert requests.properties_of(frame) == {"UNIQ_KEY": "mine", "KEYS": "k"} | added


def test_a_batch_is_never_for_retries_or_delays(
    cluster: RocketmqCluster, master: Connection, new_name: NewName, is_old: bool
) -> None:
    retry = requests.send_batch(master, f"%RETRY%{new_name('g')}", [b"1"])
    # Stored as an ordinary message: no count of retries, no way into the dead letters.
    assert retry.code == (SUCCESS if is_old else MESSAGE_ILLEGAL)
    name = cluster.create_topic(new_name("Delayed"), 1)
    assert requests.send_batch(master, name, [b"at once"], properties={"DELAY": "18"}).code == SUCCESS
    requests.await_end(master, name, 1)
    assert len(requests.frames(requests.pull(master, name))) == 1


def test_what_is_too_large_is_refused(master: Connection, topic: str, is_old: bool) -> None:
    """Code 1 of 5.x does not say whether a message is stored, so that a batch must not come near its limit."""
    batch = requests.send_batch(master, topic, [b"x" * (1 << 20)] * 5)
    assert batch.code == (MESSAGE_ILLEGAL if is_old else SYSTEM_ERROR)
    # The broker of 5.x counts what it adds itself: region, cluster, trace, key.
    nearly = requests.send(master, topic, properties={"k": "v" * 32_700})
    assert nearly.code == (SUCCESS if is_old else MESSAGE_ILLEGAL)
    assert requests.send(master, topic, properties={"k": "v" * 32_768}).code == MESSAGE_ILLEGAL


@pytest.mark.parametrize("maximum", [None, 3])
def test_a_send_to_a_retry_topic_goes_to_the_dead_letters_when_the_retries_are_used_up(
    master: Connection, new_name: NewName, is_old: bool, maximum: int | None
) -> None:
    group = new_name("retrying")
    last = (maximum or 16) - 1 if is_old else (maximum or 16)
    for times in (0, 1, last, last + 1):
        answer = requests.send(
            master, f"%RETRY%{group}", body=b"%d" % times, properties={"RETRY_TOPIC": "T"}, reconsume_times=times,
            max_reconsume_times=maximum,
        )  # fmt: skip
        assert answer.code == SUCCESS, answer
    requests.await_end(master, f"%DLQ%{group}", 1)
    retries, dead = (requests.frames(requests.pull(master, f"%{kind}%{group}")) for kind in ("RETRY", "DLQ"))
    assert [requests.body_of(frame) for frame in retries] == [b"0", b"1", b"%d" % last]
    assert [requests.body_of(frame) for frame in dead] == [b"%d" % (last + 1)]


def test_a_send_to_a_retry_topic_is_a_dead_letter_at_once_while_its_group_holds_a_lock(
    master: Connection, new_name: NewName, is_old: bool
) -> None:
    """On 5.x. So groups with ordered members are served by request 36."""
    group = new_name("ordered")
    assert requests.send(master, f"%RETRY%{group}", body=b"before").code == SUCCESS
    requests.lock(master, group, "client-1", "T")
    assert requests.send(master, f"%RETRY%{group}", body=b"while").code == SUCCESS
    requests.await_end(master, f"%{'RETRY' if is_old else 'DLQ'}%{group}", 2 if is_old else 1)
    ends = [requests.max_offset(master, f"%{kind}%{group}") for kind in ("RETRY", "DLQ")]
    assert ends == ([2, 0] if is_old else [1, 1])


# -- queries ----------------------------------------------------------------------------------------------------------


def test_queries_by_key_are_cut_off_at_64_and_by_unique_key_at_32(
    cluster: RocketmqCluster, master: Connection, topic: str, new_name: NewName
) -> None:
    name = cluster.create_topic(new_name("Keys"), 1)
    assert (
        requests.send_batch(master, name, [b"x"] * 100, properties={"KEYS": "many", "UNIQ_KEY": "same"}).code == SUCCESS
    )
    deadline_s = time.monotonic() + 10
    while len(requests.frames(requests.query(master, name, "many"))) < 64 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(requests.frames(requests.query(master, name, "many", count=1000))) == 64
    assert len(requests.frames(requests.query(master, name, "same", unique=True, count=1000))) == 32
    assert requests.query(master, name, "none").code == QUERY_NOT_FOUND


def test_a_message_by_its_place_in_the_log_is_the_record_itself(master: Connection, topic: str) -> None:
    first, *_ = requests.frames(requests.pull(master, topic))
    place = int.from_bytes(first[28:36], "big")
    assert master.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}).body == first
    assert master.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place + 1}).code == SYSTEM_ERROR


# -- slaves -----------------------------------------------------------------------------------------------------------


def test_a_slave_says_not_yet_and_never_that_an_offset_has_moved(
    cluster: RocketmqCluster, master: Connection, new_name: NewName, is_old: bool
) -> None:
    name = cluster.create_topic(new_name("Copied"), 1, on_slaves=True)
    requests.send_batch(master, name, [b"1", b"2"])
    requests.await_end(master, name, 2)
    cluster.await_replicated(name)
    with cluster.connect("broker-a", 1) as slave:
        assert requests.pull(slave, name).code == SUCCESS
        assert requests.pull(slave, name, 0, 2).code == PULL_NOT_FOUND
        for offset in (3, -1):
            answer = requests.pull(slave, name, 0, offset)
            assert (answer.code, positions(answer)) == (PULL_RETRY_IMMEDIATELY, (offset, 0, 2))
        assert requests.pull(slave, new_name("Nowhere")).code == TOPIC_NOT_EXIST
        assert requests.send(slave, name).code == (14 if is_old else 2)


def test_a_slave_reads_on_5_only_with_slave_read_enable(
    cluster: RocketmqCluster, master: Connection, new_name: NewName, is_old: bool
) -> None:
    name = cluster.create_topic(new_name("Copied"), 1, on_slaves=True)
    requests.send(master, name)
    requests.await_end(master, name, 1)
    cluster.await_replicated(name)
    with cluster.connect("broker-a", 1) as slave:
        slave.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"slaveReadEnable=false")
        try:
            refused = requests.pull(slave, name)
        finally:
            slave.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"slaveReadEnable=true")
        assert refused.code == (SUCCESS if is_old else 2)
        assert requests.pull(slave, name).code == SUCCESS


def test_a_slave_serves_what_it_has_when_its_master_is_dead(
    cluster: RocketmqCluster, master: Connection, name_server: Connection, new_name: NewName
) -> None:
    name = cluster.create_topic(new_name("Orphan"), 1, on_slaves=True)
    requests.send(master, name, body=b"kept")
    requests.await_end(master, name, 1)
    cluster.await_replicated(name)
    cluster.broker().kill()
    cluster.await_gone(("broker-a", 0))
    route = json.loads(name_server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}).body)
    # The permission does not change: whether somebody takes sends is in the addresses.
    assert [(queue["brokerName"], queue["perm"]) for queue in route["queueDatas"]] == [("broker-a", 6)]
    assert [broker["brokerAddrs"] for broker in route["brokerDatas"]] == [{"1": cluster.address("broker-a", 1)}]
    with cluster.connect("broker-a", 1) as slave:
        (frame,) = requests.frames(requests.pull(slave, name))
    assert requests.body_of(frame) == b"kept"
