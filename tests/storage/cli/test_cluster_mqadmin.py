"""mqadmin's commands over a cluster: which brokers are asked, what is printed, and who refused or did not answer.

tests/cluster/test_mqadmin.py compares them with the released mqadmin on real brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated.administration import AdministeredCluster
from helpers.cluster.simulated.queues import START_MS
from helpers.cluster.simulated.server import V4_9_7
from rmq_store.cli import commands
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol.bodies.routes import BrokerData, ClusterInfo
from rmq_store.protocol.wire.request_codes import RequestCode

Ask = Callable[..., Result]
A, B = "broker-000", "broker-001"
NO_RIGHTS = 16


@pytest.fixture
def cluster() -> Iterator[AdministeredCluster]:
    with AdministeredCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=5)
        yield cluster


@pytest.fixture
def ask(cluster: AdministeredCluster) -> Ask:
    def invoke(*arguments: str) -> Result:
        line = ["-n", cluster.name_server, *arguments]
        return CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)

    return invoke


def passed(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_topic_status_has_the_queues_of_each_master(ask: Ask) -> None:
    assert passed(ask("topicStatus", "-t", "Orders")).splitlines() == [
        "#Broker Name                      #QID  #Min Offset           #Max Offset             #Last Updated",
        *(
            f"{name}                        {queue_id}     0                     5                       "
            "2023-11-14 22:13:24,000"
            for name in (A, B)
            for queue_id in (0, 1)
        ),
    ]
    rows = json.loads(passed(ask("topicStatus", "-t", "Orders", "-c", "simulated", "--json")))
    assert [(row["brokerName"], row["queueId"]) for row in rows] == [(A, 0), (A, 1), (B, 0), (B, 1)]


def test_topic_route_has_the_columns_of_mqadmin(ask: Ask, cluster: AdministeredCluster) -> None:
    head, *rows, rule, total = passed(ask("topicRoute", "-t", "Orders", "-l")).splitlines()
    assert head.split() == ["#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"]
    assert [row.split() for row in rows] == [
        ["simulated", name, f"{{0={broker.address}}}", "2", "2", "6"] for name, broker in cluster.brokers.items()
    ]
    assert (rule, total.split()) == ("-" * 158, ["Total:", "2", "4", "4"])
    route = json.loads(passed(ask("topicRoute", "-t", "Orders", "--json")))
    assert [queue["brokerName"] for queue in route["queueDatas"]] == [A, B]


@pytest.mark.parametrize("name", ["topicStatus", "topicRoute", "topicClusterList", "deleteTopic", "printMsg"])
def test_an_unknown_topic_is_answered_with_the_nearest(ask: Ask, cluster: AdministeredCluster, name: str) -> None:
    result = ask(name, "-t", "orderz")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rmq: no broker of the cluster has a topic 'orderz'; did you mean 'Orders'?\n"
    assert cluster.changes == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("resetOffsetByTime", "-g", "cg_bills", "-s", "now", "--yes"),
        ("skipAccumulatedMessage", "-g", "cg_bills", "--yes"),
        ("topicStatus",),
    ],
)
def test_a_cluster_that_does_not_have_the_topic_is_a_mistake(
    ask: Ask, cluster: AdministeredCluster, arguments: tuple[str, ...]
) -> None:
    """Not a success that has done nothing."""
    result = ask(*arguments, "-t", "Orders", "-c", "simulatde")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "rmq: no broker of a cluster 'simulatde' has the topic 'Orders'; clusters: simulated\n"
    )
    assert cluster.changes == []


def test_a_broker_that_does_not_have_the_topic_is_a_mistake(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.brokers[A].queues.create("Bills", 2)
    address = cluster.brokers[B].address
    result = ask("updateTopicPerm", "-t", "Bills", "-p", "4", "-b", address)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"rmq: no broker of '{address}' has the topic 'Bills'; brokers that have it: {A}\n"
    result = ask("consumeMessage", "-t", "Bills", "-b", "broker-00")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"rmq: broker 'broker-00' does not have the topic 'Bills'; brokers: {A}\n"
    assert cluster.changes == []


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_shown(
    ask: Ask, cluster: AdministeredCluster
) -> None:
    cluster.brokers[B].stop()
    for arguments in (("topicStatus", "-t", "Orders"), ("brokerStatus",), ("clusterList",), ("getBrokerConfig",)):
        result = ask(*arguments)
        assert result.exit_code == 1
        assert A in result.stdout or cluster.brokers[A].address in result.stdout
        assert B not in result.stdout
        assert result.stderr.startswith(f"rmq: broker {B} ({cluster.brokers[B].address}): ")
        assert result.stderr.count("\n") == 1


def test_a_topic_is_made_at_every_master_and_a_refusal_is_named(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.brokers[A].refuse(RequestCode.UPDATE_AND_CREATE_TOPIC, NO_RIGHTS)
    result = ask("updateTopic", "-t", "Bills")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"create topic to {cluster.brokers[B].address} success.",
        "TopicConfig [topicName=Bills, readQueueNums=8, writeQueueNums=8, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=false, attributes={}]",
    ]
    assert result.stderr.startswith(f"rmq: broker {A} ({cluster.brokers[A].address}): CODE: 16")
    assert cluster.changes == [(B, RequestCode.UPDATE_AND_CREATE_TOPIC)]


def test_settings_without_an_option_stay_as_each_broker_has_them(ask: Ask, cluster: AdministeredCluster) -> None:
    passed(ask("updateTopic", "-t", "Bills", "-r", "3", "-w", "3", "-p", "4", "-b", cluster.brokers[A].address))
    passed(ask("updateTopic", "-t", "Bills", "-w", "5"))
    made = {name: each.topics["Bills"] for name, each in cluster.administration.items()}
    assert (made[A].read_queue_nums, made[A].write_queue_nums, made[A].perm) == (3, 5, 4)
    assert (made[B].read_queue_nums, made[B].write_queue_nums, made[B].perm) == (8, 5, 6)


def test_only_registered_addresses_are_asked(ask: Ask, cluster: AdministeredCluster) -> None:
    """-b names an address, and so does a message id: whoever writes it must not choose what is dialled."""
    stranger = AdministeredCluster(brokers=1)
    with stranger:
        address = stranger.brokers[A].address
        for arguments in (
            ("brokerStatus", "-b", address),
            ("updateBrokerConfig", "-k", "fileReservedTime", "-v", "1", "-b", address),
            ("updateTopic", "-t", "Bills", "-b", address),
        ):
            result = ask(*arguments)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"rmq: no broker has registered the address '{address}'")
        result = ask("queryMsgById", "-i", offset_message_id(Host.parse(address), 4096))
        assert result.exit_code == 1
        assert "which is none of this cluster: nothing was asked" in result.stderr
        assert stranger.connections == 0
    assert cluster.changes == []


def test_deletions_ask_and_a_dry_run_changes_nothing(ask: Ask, cluster: AdministeredCluster) -> None:
    for each in cluster.administration.values():
        each.commit("cg_bills", "Orders", 0, 3)
    for arguments in (
        ("deleteTopic", "-t", "Orders"),
        ("deleteSubGroup", "-g", "cg_bills", "-r", "true"),
        ("cleanUnusedTopic",),
        ("resetOffsetByTime", "-g", "cg_bills", "-t", "Orders", "-s", "now"),
        ("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders"),
    ):
        result = ask(*arguments)
        assert result.exit_code == 2
        assert "There is no terminal to ask: repeat it with --yes" in result.stderr
        assert ask(*arguments, "--dry-run").exit_code == 0
    assert cluster.changes == []
    assert cluster.deleted_routes == []


def test_a_topic_is_deleted_at_the_masters_and_then_at_the_name_servers(
    ask: Ask, cluster: AdministeredCluster
) -> None:
    cluster.brokers[B].refuse(RequestCode.DELETE_TOPIC_IN_BROKER, NO_RIGHTS, count=1)
    result = ask("deleteTopic", "-t", "Orders", "--yes")
    # The route stays, so that the command can be repeated.
    assert (result.exit_code, result.stdout, cluster.deleted_routes) == (1, "", [])
    assert f"rmq: broker {B} (" in result.stderr
    assert passed(ask("deleteTopic", "-t", "Orders", "-c", "simulated", "--yes")).splitlines() == [
        "delete topic [Orders] from cluster [simulated] success.",
        "delete topic [Orders] from NameServer success.",
    ]
    assert cluster.deleted_routes == ["Orders"]


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (
            ("deleteTopic", "-t", "Orders"),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            "groups with members or offsets",
        ),
        (("deleteSubGroup", "-g", "cg_bills"), RequestCode.GET_CONSUMER_CONNECTION_LIST, "running members"),
    ],
)
def test_a_deletion_says_at_which_brokers_users_are_not_known(
    ask: Ask, cluster: AdministeredCluster, arguments: tuple[str, ...], code: int, what: str
) -> None:
    """Nobody must take a refusal for "none": the line comes before the question."""
    cluster.brokers[B].refuse(code, NO_RIGHTS)
    line = f"{what} at broker {B} ({cluster.brokers[B].address}) are not known: CODE: 16"
    result = ask(*arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.index(line) < result.stderr.index("There is no terminal to ask")
    assert cluster.changes == []
    dry = ask(*arguments, "--dry-run")
    assert (dry.exit_code, line in dry.stderr) == (0, True)


def test_groups_are_made_shown_and_deleted_at_every_master(ask: Ask, cluster: AdministeredCluster) -> None:
    lines = passed(ask("updateSubGroup", "-g", "cg_bills", "-r", "5")).splitlines()
    assert lines[:2] == [f"create subscription group to {one.address} success." for one in cluster.brokers.values()]
    assert lines[2].startswith("SubscriptionGroupConfig{groupName=cg_bills, consumeEnable=true, consumeFromMinEnable=f")
    passed(ask("updateSubGroup", "-g", "cg_bills", "-s", "false", "-b", cluster.brokers[A].address))
    shown = json.loads(passed(ask("getConsumerConfig", "-g", "cg_bills", "--json")))
    assert [(one["brokerName"], one["retryMaxTimes"], one["consumeEnable"]) for one in shown] == [
        (A, 5, False),
        (B, 5, True),
    ]
    text = passed(ask("getConsumerConfig", "-g", "cg_bills"))
    assert f"{'=' * 29}simulated:{A}{'=' * 29}\ngroupName                               =  cg_bills\n" in text
    assert passed(ask("deleteSubGroup", "-g", "cg_bills", "--yes")).splitlines() == [
        f"delete subscription group [cg_bills] from broker [{one.address}] in cluster [simulated] success."
        for one in cluster.brokers.values()
    ]
    assert ask("getConsumerConfig", "-g", "cg_bills").stderr == (
        "rmq: no broker of the cluster has settings of a group 'cg_bills'\n"
    )


def test_consumer_progress_adds_up_what_the_brokers_say(ask: Ask, cluster: AdministeredCluster) -> None:
    for name, offset in ((A, 3), (B, 5)):
        cluster.administration[name].commit("cg_bills", "Orders", 1, offset)
    lines = passed(ask("consumerProgress", "-g", "cg_bills")).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["Orders", A, "1", "5", "3", "2", "0", "N/A"],
        ["Orders", B, "1", "5", "5", "0", "0", "N/A"],
    ]
    assert lines[3:] == ["", "Consume TPS: 0.00", "Consume Diff Total: 2", "Consume Inflight Total: 0"]
    passed(ask("updateSubGroup", "-g", "cg_bills"))
    assert passed(ask("consumerProgress")).splitlines()[1].split() == ["cg_bills", "0", "OFFLINE", "0", "2"]
    result = ask("consumerConnection", "-g", "cg_bills")
    assert (result.exit_code, result.stderr) == (1, "rmq: CODE: 206  DESC: the consumer group[cg_bills] not online\n")


@pytest.mark.parametrize("refusal", [206, 1])
def test_a_reset_is_told_to_the_brokers_and_written_where_one_refuses_it(
    ask: Ask, cluster: AdministeredCluster, refusal: int
) -> None:
    """A broker of 4.x without members answers 206, and 1 where the group has no offset in some queue."""
    for each in cluster.administration.values():
        each.commit("cg_bills", "Orders", 0, 5)
    cluster.brokers[B].refuse(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, refusal)
    result = ask("resetOffsetByTime", "-g", "cg_bills", "-t", "Orders", "-s", str(START_MS + 2000), "--yes")
    lines = passed(result).splitlines()
    assert lines[0] == (
        "reset consumer offset by specified consumerGroup[cg_bills], topic[Orders], force[true], "
        f"timestamp(string)[{START_MS + 2000}], timestamp(long)[{START_MS + 2000}]"
    )
    assert [line.split() for line in lines[2:]] == [
        [A, "0", "5", "5", "2", "2"],
        [A, "1", "5", "0", "2", "2"],
        [B, "0", "5", "5", "2", "2"],
        [B, "1", "5", "0", "2", "2"],
    ]
    assert result.stderr.splitlines() == [f"{A}: by the broker", f"{B}: offsets were written"]
    for broker in cluster.brokers.values():
        assert broker.offsets["cg_bills", "Orders", 0] == broker.offsets["cg_bills", "Orders", 1] == 2
    assert cluster.brokers[A].calls[RequestCode.UPDATE_CONSUMER_OFFSET] == 0


def test_queues_that_an_old_broker_leaves_out_of_a_reset_are_named(ask: Ask, cluster: AdministeredCluster) -> None:
    """A broker of 4.x sets only queues that may be written, and says nothing of the others."""
    cluster.set_counts("Orders", read=2, write=1)
    cluster.brokers[B].version = V4_9_7
    for each in cluster.administration.values():
        for queue_id in (0, 1):
            each.commit("cg_bills", "Orders", queue_id, 5)
    words = ("resetOffsetByTime", "-g", "cg_bills", "-t", "Orders", "-s", str(START_MS + 2000), "--yes", "--json")
    result = ask(*words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"rmq: {B} has not set queue 1: a broker of 4.x sets only queues that may be written while members run; stop "
        "the members and repeat the command"
    )
    queues = json.loads(result.stdout)["queues"]
    assert [(one["brokerName"], one["queueId"]) for one in queues] == [(A, 0), (A, 1), (B, 0)]


@pytest.mark.parametrize("version", [V4_9_7, None])
def test_topic_status_has_queues_that_are_not_written_any_more(
    ask: Ask, cluster: AdministeredCluster, version: int | None
) -> None:
    cluster.brokers[B].version = version
    cluster.set_counts("Orders", read=2, write=1)
    rows = json.loads(passed(ask("topicStatus", "-t", "Orders", "--json")))
    assert [(row["brokerName"], row["queueId"], row["maxOffset"]) for row in rows] == [
        (A, 0, 5), (A, 1, 5), (B, 0, 5), (B, 1, 5),
    ]  # fmt: skip
    assert (rows[3]["lastUpdateTimestamp"] > 0) == (version is None)


def test_without_force_a_reset_never_goes_forward(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.administration[A].commit("cg_bills", "Orders", 0, 1)
    report = json.loads(
        passed(ask("skipAccumulatedMessage", "-g", "cg_bills", "-t", "Orders", "-f", "false", "--yes", "--json"))
    )
    assert report == {"reset": False, "queues": [], "brokers": {}}
    assert cluster.changes == []


def test_a_clone_copies_the_offsets_of_one_topic(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    result = ask("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "--yes")
    assert passed(result) == "clone group offset success. srcGroup[cg_bills], destGroup=[cg_new], topic[Orders]\n"
    assert cluster.brokers[A].offsets["cg_new", "Orders", 0] == 3
    assert ("cg_new", "Orders", 1) not in cluster.brokers[A].offsets


def test_a_clone_says_which_queues_keep_a_pending_reset(ask: Ask, cluster: AdministeredCluster) -> None:
    """A broker of 5.x answers SUCCESS with a remark, and stores nothing."""
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    cluster.administration[A].commit("cg_new", "Orders", 0, 1)
    cluster.brokers[A].answer(RequestCode.UPDATE_CONSUMER_OFFSET, lambda _: (0, {}, b""))
    cluster.brokers[A].remarks[RequestCode.UPDATE_CONSUMER_OFFSET] = "Offset has been previously reset"
    line = ("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "--yes")
    result = ask(*line)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"Orders {A} queue 0: stays at 1: another reset is pending"
    result = ask(*line, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["reset"], found["queues"][0]["resetOffset"]) == (1, False, 1)


def test_a_clone_is_refused_where_members_are_not_known(ask: Ask, cluster: AdministeredCluster) -> None:
    """Members that run would write their own offsets again."""
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    cluster.brokers[B].refuse(RequestCode.GET_CONSUMER_CONNECTION_LIST, NO_RIGHTS)
    result = ask("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "CODE: 16" in result.stderr
    assert ("cg_new", "Orders", 0) not in cluster.brokers[A].offsets
    assert cluster.changes == []


def test_a_clone_names_queues_that_perhaps_have_no_offset(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    cluster.administration[B].commit("cg_bills", "Orders", 1, 0)
    result = ask("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "--yes")
    passed(result)
    assert result.stderr.splitlines() == [
        f"Orders {B} queue 1: left out: the broker is older than 5.0, and answers 0 whether or not cg_bills has an "
        "offset",
        f"Orders {A} queue 0: no offset -> 3",
    ]
    assert ("cg_new", "Orders", 1) not in cluster.brokers[B].offsets


def test_a_setting_that_a_broker_does_not_have_is_refused(ask: Ask, cluster: AdministeredCluster) -> None:
    """A broker answers "success" for any name."""
    result = ask("updateBrokerConfig", "-k", "fileReservedTimes", "-v", "48")
    assert result.exit_code == 2
    assert result.stderr.endswith("has no setting 'fileReservedTimes': nothing is changed at any broker\n")
    assert cluster.changes == []
    lines = passed(ask("updateBrokerConfig", "-k", "fileReservedTime", "-v", "48")).splitlines()
    assert lines == [f"update broker config success, {one.address}" for one in cluster.brokers.values()]
    assert [each.settings["fileReservedTime"] for each in cluster.administration.values()] == ["48", "48"]


def test_a_setting_is_changed_at_no_broker_if_one_does_not_have_it(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.administration[A].settings["timerWheelEnable"] = "true"
    result = ask("updateBrokerConfig", "-k", "timerWheelEnable", "-v", "false")
    assert result.exit_code == 2
    assert result.stderr == (
        f"rmq: broker {B} ({cluster.brokers[B].address}) has no setting 'timerWheelEnable': nothing is changed at any "
        "broker\n"
    )
    assert cluster.changes == []


def test_a_setting_is_changed_where_brokers_answer(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.brokers[A].stop()
    result = ask("updateBrokerConfig", "-k", "fileReservedTime", "-v", "48")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"rmq: broker {A} (")
    assert result.stdout == f"update broker config success, {cluster.brokers[B].address}\n"


def test_a_setting_is_changed_at_slaves_if_it_is_asked_for(ask: Ask, cluster: AdministeredCluster) -> None:
    addresses = {number: broker.address for number, broker in enumerate(cluster.brokers.values())}
    data = BrokerData(cluster="simulated", broker_name=A, broker_addrs=addresses)
    info = ClusterInfo(broker_addr_table={A: data}, cluster_addr_table={"simulated": (A,)})
    cluster.answer(RequestCode.GET_BROKER_CLUSTER_INFO, lambda _: (0, {}, info.encode()))
    line = ("updateBrokerConfig", "-k", "fileReservedTime", "-v", "48")
    assert passed(ask(*line, "-a", "false")) == f"update broker config success, {addresses[0]}\n"
    assert passed(ask(*line, "-a", "true")) == "".join(
        f"update broker config success, {address}\n" for address in addresses.values()
    )
    assert [each.settings["fileReservedTime"] for each in cluster.administration.values()] == ["48", "48"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("queryMsgById", "-g", "cg"), "-g (consumerGroup): hands the message to a running client"),
        (("queryMsgById", "-d", "10.0.0.1@1"), "-d (clientId): hands the message to a running client"),
        (("queryMsgById", "-s", "true"), "-s (sendMessage): sends the message again; `rmq sendMessage` sends one"),
        (("queryMsgByUniqueKey", "-t", "Orders", "-g", "cg"), "-g (consumerGroup): hands"),
        (("queryMsgByUniqueKey", "-t", "Orders", "-d", "c"), "-d (clientId): hands"),
    ],
)
def test_flags_that_need_a_running_client_are_refused_with_the_reason(
    ask: Ask, arguments: tuple[str, ...], reason: str
) -> None:
    result = ask(*arguments, "-i", "7F000001000051AF0000000000009E67")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr


def test_flags_of_mqadmin_without_a_meaning_here_are_taken(ask: Ask, cluster: AdministeredCluster) -> None:
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    passed(ask("sendMessage", "-t", "Orders", "-p", "tea", "-b", A, "-i", "0", "-m", "true"))
    passed(ask("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "-o", "true", "--yes"))
    for arguments in (
        ("queryMsgById", "-i", offset_message_id(Host.parse(cluster.brokers[A].address), 4096), "-u", "u", "-c", "x"),
        ("queryMsgByKey", "-t", "Orders", "-k", "key", "-c", "simulated"),
        ("queryMsgByUniqueKey", "-t", "Orders", "-i", "7F000001000051AF0000000000009E67", "-c", "simulated"),
        ("queryCq", "-t", "Orders", "-q", "0", "-i", "0", "-b", cluster.brokers[A].address, "-g", "cg_bills"),
    ):
        result = ask(*arguments)
        assert (result.exit_code, "o such option" in result.stderr) == (1, False), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("deleteTopic", "-t", "Orders", "--yes"),
        ("skipAccumulatedMessage", "-g", "cg_bills", "-t", "Orders", "--yes"),
        ("cloneGroupOffset", "-s", "cg_bills", "-d", "cg_new", "-t", "Orders", "--yes"),
    ],
)
def test_a_broker_that_a_command_cannot_choose_is_not_ignored(
    ask: Ask, cluster: AdministeredCluster, arguments: tuple[str, ...]
) -> None:
    cluster.administration[A].commit("cg_bills", "Orders", 0, 3)
    result = ask(*arguments, "-b", cluster.brokers[A].address)
    assert (result.exit_code, "No such option" in result.stderr) == (2, True)
    assert cluster.changes == []


def test_a_cluster_is_listed_with_its_rates(ask: Ask, cluster: AdministeredCluster) -> None:
    rows = [line.split() for line in passed(ask("clusterList")).splitlines()[1:]]
    assert rows == [
        ["simulated", name, "0", one.address, "V5_5_0", "1.50(0,0ms)", "2.50(0,0ms)", "0", "0.00", "0.2500", "true"]
        for name, one in cluster.brokers.items()
    ]
    totals = [line.split() for line in passed(ask("clusterList", "-m")).splitlines()[1:]]
    assert totals == [["simulated", name, "3", "2", "5", "3"] for name in (A, B)]
    rates = passed(ask("statsAll", "-t", "Orders")).splitlines()
    assert rates[1].split() == ["Orders", "0", "2.00", "400", "NO_CONSUMER"]


def test_a_list_that_is_repeated_names_a_broker_once(
    ask: Ask, cluster: AdministeredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([cluster.brokers[B].stop, lambda: None])

    def sleep(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("rmq_store.cli.mqadmin.broker.time", SimpleNamespace(sleep=sleep))
    result = ask("clusterList", "-i", "1", "--json")
    assert result.exit_code == 1
    assert result.stdout.count(A) == 3
    assert result.stdout.count(B) == 1
    assert result.stderr.startswith(f"rmq: broker {B} (")
    assert result.stderr.count("\n") == 1


def test_messages_are_printed_from_every_queue(ask: Ask) -> None:
    lines = passed(ask("printMsg", "-t", "Orders")).splitlines()
    heads = [line for line in lines if line.startswith("minOffset=")]
    assert heads == [
        f"minOffset=0, maxOffset=5, MessageQueue [topic=Orders, brokerName={name}, queueId={queue_id}]"
        for name in (A, B)
        for queue_id in (0, 1)
    ]
    assert sum(line.startswith("MSGID: ") for line in lines) == 20
    result = ask("queryMsgByOffset", "-t", "Orders", "-i", "0", "-o", "1")
    assert result.stderr == f"rmq: several brokers have a queue 0 of Orders: name one of {A}, {B}\n"
    text = passed(ask("queryMsgByOffset", "-t", "Orders", "-b", A, "-i", "0", "-o", "1"))
    assert "Queue Offset:        1\n" in text
    assert text.endswith("WARN: No Consumer\n")
    result = ask("queryMsgByOffset", "-t", "Orders", "-b", A, "-i", "0", "-o", "7")
    assert (result.exit_code, "has the offsets [0, 5), not 7" in result.stderr) == (1, True)


def test_a_message_is_sent_to_the_broker_that_is_named(ask: Ask, cluster: AdministeredCluster) -> None:
    line = passed(ask("sendMessage", "-t", "Orders", "-p", "tea", "-b", B, "-i", "1")).splitlines()[1]
    assert line.split()[:3] == [B, "1", "SEND_OK"]
    assert cluster.brokers[B].queues.topics["Orders"][1].end == 6
    shown = passed(ask("consumeMessage", "-t", "Orders", "-b", B, "-i", "1", "-o", "5"))
    assert "BODY: tea\n" in shown
