"""mqadmin's commands for groups: its columns (ConsumerProgressSubCommand), its counts, and what they change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Message, Store, SubscriptionGroup
from rmq_store.broker.metadata.leases import Lease
from rmq_store.broker.processor.local_groups import LocalGroups
from rmq_store.clock import system_clock
from rmq_store.protocol.messages import MessageQueue

from .changing import command

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    return shutil.copytree(made_store, scratch / "store")


@pytest.fixture
def group_with_all(root: Path) -> Path:
    """The group g with settings, retries, dead letters, POP state."""
    with Store.open(root) as store:
        store.create_group(SubscriptionGroup("g"))
        for topic in ("%RETRY%g", "%DLQ%g"):
            store.create_topic(topic, queue_count=1)
            store.send(Message(topic, b"again", queue_id=0))
        store.commit_offsets("g", {("%RETRY%g", 0): 0})
        store.pop.receive("g", "T", 1, 60_000)
    return root


def groups(root: Path) -> dict[str, SubscriptionGroup]:
    with Store.open(root, read_only=True) as store:
        return dict(store.groups())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("consumerProgress", ["consumerProgress"]),
        ("consumerProgress-g", ["consumerProgress", "-g", "cg_partial"]),
        ("consumerProgress-s", ["consumerProgress", "-g", "cg_orders", "-t", "OrderTopic", "-s", "true"]),
        ("getConsumerConfig", ["getConsumerConfig", "-g", "cg_orders"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"mqadmin-{name}.txt").read_text()
    assert result.stderr == ""


def test_progress_is_that_of_the_manifest_for_every_group_and_queue(run: Run, golden: Path) -> None:
    sums = {row["group"]: row["diffTotal"] for row in json.loads(run("consumerProgress", "--json").stdout)}
    compared = 0
    for name, group in json.loads((golden / "manifest.json").read_text())["groups"].items():
        if group["totalLag"] is None:  # no %RETRY% topic: mqadmin does not list it
            assert name not in sums
            continue
        assert sums.pop(name) == group["totalLag"]
        if not group["queues"]:
            continue
        shown = json.loads(run("consumerProgress", "-g", name, "--json").stdout)
        assert (shown["diffTotal"], shown["inflightTotal"]) == (group["totalLag"], 0)
        rows = {
            (row["topic"], row["queueId"]): (
                row["brokerOffset"], row["consumerOffset"] or 0, row["diff"], row["lastTimestamp"]
            )
            for row in shown["queues"]
        }  # fmt: skip
        for queue in group["queues"]:
            wanted = queue["brokerOffset"], queue["committedOffset"], queue["lag"], queue["lastTimestamp"]
            assert rows.pop((queue["topic"], queue["queueId"])) == wanted
            compared += 1
        assert rows == {}
    # A POP retry topic (KeyBuilder#buildPopRetryTopicV1) looks like that of a group, to mqadmin too.
    assert sums == {"cg_pop_PopTopic": 0}
    assert compared > 20


def test_progress_counts_what_pops_have_in_their_hands_and_retries(group_with_all: Path) -> None:
    shown = json.loads(command(group_with_all, "consumerProgress", "-g", "g", "--json").stdout)
    counts = {(q["topic"], q["queueId"]): (q["diff"], q["inflight"]) for q in shown["queues"]}
    assert counts == {("%RETRY%g", 0): (1, 0), ("T", 0): (2, 1), ("T", 1): (0, 0)}
    assert (shown["diffTotal"], shown["inflightTotal"]) == (3, 1)


def test_progress_names_who_holds_a_queue_and_how_many_are_at_work(root: Path) -> None:
    members = LocalGroups(root, system_clock)
    members.heartbeat("g", "10.0.0.1@4711#1")
    alone = json.loads(command(root, "consumerProgress", "-g", "g", "-s", "true", "--json").stdout)["queues"]
    assert [queue["client"] for queue in alone] == ["10.0.0.1@4711#1"] * 2
    members.lock_queues("g", "10.0.0.1@4711#1", [MessageQueue("T", "b", 1)])
    lease = Lease(root, "g2", "T")
    lease.acquire("query 7")
    with Store.open(root) as store:
        store.commit_offsets("g2", {("T", 0): 0})
    of_group = json.loads(command(root, "consumerProgress", "-g", "g", "-s", "true", "--json").stdout)["queues"]
    assert [queue["client"] for queue in of_group] == [None, "10.0.0.1@4711#1"]
    line = command(root, "consumerProgress", "-g", "g", "-s", "true").stdout.splitlines()[2]
    assert " 10.0.0.1  " in line
    of_stream = json.loads(command(root, "consumerProgress", "-g", "g2", "-s", "true", "--json").stdout)["queues"]
    assert [queue["client"] for queue in of_stream] == ["query 7", "query 7"]
    text = command(root, "consumerProgress").stdout.splitlines()
    assert [line.split()[1:3] for line in text[1:]] == [["1", "EMBEDDED"], ["1", "EMBEDDED"]]
    members.close()
    lease.release()
    text = command(root, "consumerProgress").stdout.splitlines()
    assert [line.split()[1:3] for line in text[1:]] == [["0", "OFFLINE"], ["0", "OFFLINE"]]


def test_update_sub_group_makes_one_with_mqadmins_defaults_and_changes_only_what_it_is_told(root: Path) -> None:
    """UpdateSubGroupSubCommand.java: consumeFromMinEnable and consumeBroadcastEnable are false there."""
    result = command(root, "updateSubGroup", "-c", "DefaultCluster", "-g", "new", "-r", "3")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (EXPECTED / "mqadmin-updateSubGroup.txt").read_text()
    made = SubscriptionGroup(
        "new", consume_broadcast_enable=False, consume_from_min_enable=False, retry_max_times=3
    )
    assert groups(root)["new"] == made
    shown = json.loads(
        command(
            root, "updateSubGroup", "-g", "new", "-q", "2", "-s", "false", "-o", "true", "-d", "true", "-m", "true",
            "-i", "1", "-w", "2", "-a", "false", "--json",
        ).stdout
    )  # fmt: skip
    assert groups(root)["new"] == SubscriptionGroup(
        "new", retry_max_times=3, retry_queue_nums=2, consume_enable=False, consume_message_orderly=True, broker_id=1,
        which_broker_when_consume_slowly=2, notify_consumer_ids_changed_enable=False,
    )  # fmt: skip
    assert (shown["retryMaxTimes"], shown["retryQueueNums"], shown["consumeEnable"]) == (3, 2, False)


def test_a_group_goes_with_its_settings_only_or_with_all_that_is_its_own(group_with_all: Path) -> None:
    root = group_with_all
    only = command(root, "deleteSubGroup", "-g", "g", "-b", "127.0.0.1:10911", "--yes")
    assert (only.exit_code, only.stderr) == (0, "delete the settings of group g\n")
    assert only.stdout == "delete subscription group [g] from broker [127.0.0.1:10911] success.\n"
    assert "g" not in groups(root)
    with Store.open(root, read_only=True) as store:
        assert store.committed_offsets("g").keys() == {("T", 0), ("T", 1), ("%RETRY%g", 0)}
    whole = command(root, "deleteSubGroup", "-g", "g", "-r", "true", "--yes")
    assert whole.exit_code == 0
    assert whole.stderr == (EXPECTED / "mqadmin-deleteSubGroup.txt").read_text()
    with Store.open(root, read_only=True) as store:
        assert store.committed_offsets("g") == {}
        assert not store.topics().keys() & {"%RETRY%g", "%DLQ%g"}
    assert command(root, "deleteSubGroup", "-g", "g", "-r", "true", "--yes").exit_code == 2


def test_no_group_is_deleted_by_a_dry_run_a_no_without_a_terminal_or_under_a_consumer(
    group_with_all: Path, tree_hash: Callable[[Path], str]
) -> None:
    root, arguments = group_with_all, ["deleteSubGroup", "-g", "g", "-r", "true"]
    before = tree_hash(root)
    planned: Any = json.loads(command(root, *arguments, "--dry-run", "--json").stdout)
    assert planned == {
        "deleted": False, "topics": ["%RETRY%g", "%DLQ%g"], "groups": ["g"], "offsets": {"g": ["%RETRY%g", "T"]},
        "popStates": [["g", "T"]], "messagesLeft": 2,
    }  # fmt: skip
    assert "There is no terminal to ask" in command(root, *arguments).stderr
    assert "Delete group g? [y/N]: n" in command(root, *arguments, answer="n").stderr
    assert tree_hash(root) == before
    lease = Lease(root, "g", "T")
    lease.acquire("query 7")
    refused = command(root, *arguments, "--yes")
    assert refused.exit_code == 1
    assert "query 7" in refused.stderr
    lease.release()
    assert "g" in groups(root)


def test_who_consumes_is_listed_and_nobody_is_an_answer_of_its_own(root: Path) -> None:
    """ConsumerConnectionSubCommand.java; ResponseCode.CONSUMER_NOT_ONLINE."""
    nobody = command(root, "consumerConnection", "-g", "g")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert nobody.stderr == "rmq: CODE: 206  DESC: the consumer group[g] not online\n"
    members = LocalGroups(root, system_clock)
    members.heartbeat("g", "10.0.0.1@4711#1")
    result = command(root, "consumerConnection", "-g", "g")
    expected = (EXPECTED / "mqadmin-consumerConnection.txt").read_text()
    pid = f"process {os.getpid()}"
    assert result.stdout == expected.replace(f"{'process PID':22}", f"{pid:22}")
    shown = json.loads(command(root, "consumerConnection", "-g", "g", "--json").stdout)
    assert shown["connections"] == [{"clientId": "10.0.0.1@4711#1", "pid": os.getpid()}]
    assert shown["subscriptions"] == {"T": "*"}
    members.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["consumerProgress", "-g", "G"], "no group 'G'"),
        (["consumerProgress", "-t", "T"], "-t and -s go with -g"),
        (["getConsumerConfig", "-g", "g"], "group 'g' has no settings; consumers use the defaults"),
        (["getConsumerConfig", "-g", "gg"], "no group 'gg'"),
        (["consumerConnection", "-g", "gg"], "no group 'gg'"),
        (["deleteSubGroup", "-g", "G", "--yes"], "did you mean 'g'?"),
        (["deleteSubGroup", "-g", "g", "--yes"], "which removeOffset (-r true) deletes"),  # -r was not given
        (["updateSubGroup", "-g", "a/b"], "holds characters"),
        (["updateSubGroup", "-g", "g", "-p", "x"], "is no JSON"),
        (["updateSubGroup", "-g", "g", "-p", '{"type": "x"}'], "one of EXPONENTIAL, CUSTOMIZED"),
        (["updateSubGroup", "-g", "g", "--attributes", "a=b"], "neither +name=value nor -name"),
        (["updateSubGroup", "-g", "g", "-q", "70000"], "retryQueueNums 70000 is not in 0..65536"),
    ],
)
def test_a_mistake_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    result = command(root, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_retry_policy_and_attributes_are_kept_for_brokers(root: Path) -> None:
    """UpdateSubGroupSubCommand.java: -p is GroupRetryPolicy as JSON, --attributes as of a topic."""
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}
    command(root, "updateSubGroup", "-g", "g", "-p", json.dumps(policy), "--attributes", "+priority.factor=50,+a=b")
    shown = json.loads(command(root, "updateSubGroup", "-g", "g", "--attributes", "-a", "--json").stdout)
    assert (shown["groupRetryPolicy"], shown["attributes"]) == (policy, {"priority.factor": "50"})
