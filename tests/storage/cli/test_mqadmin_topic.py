"""mqadmin's commands for topics: its columns (TopicStatusSubCommand), its names and flags, and what they change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import CorruptRecordError, Message, Store, TopicConfig
from rmq_store.broker.metadata.leases import Lease
from rmq_store.client import LitePullConsumer

from .changing import command

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    return shutil.copytree(made_store, scratch / "store")


def topics(root: Path) -> dict[str, TopicConfig]:
    with Store.open(root, read_only=True) as store:
        return dict(store.topics())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("topicList", ["topicList"]),
        ("topicList-c", ["topicList", "-c"]),
        ("topicStatus", ["topicStatus", "-t", "OrderTopic"]),
        ("topicRoute", ["topicRoute", "-t", "OrderTopic"]),
        ("topicRoute-l", ["topicRoute", "-t", "OrderTopic", "-l"]),
        ("topicClusterList", ["topicClusterList", "-t", "OrderTopic"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"mqadmin-{name}.txt").read_text()
    assert result.stderr == ""
    assert json.loads(run(*arguments, "--json").stdout)


def test_flags_that_say_where_a_broker_is_are_taken_and_not_needed(run: Run) -> None:
    plain = run("topicStatus", "-t", "FifoTopic").stdout
    assert run("topicStatus", "-c", "DefaultCluster", "-t", "FifoTopic").stdout == plain
    assert run("TOPICSTATUS", "--clusterName", "x", "--topic", "FifoTopic").stdout == plain


def test_topic_status_has_the_offsets_of_the_manifest(run: Run, golden: Path) -> None:
    wanted = json.loads((golden / "manifest.json").read_text())["topics"]
    for topic in ("OrderTopic", "%RETRY%cg_orders", "TxTopic"):
        rows = json.loads(run("topicStatus", "-t", topic, "--json").stdout)
        for row in rows:
            queue = wanted[topic]["queues"][str(row["queueId"])]
            assert (row["minOffset"], row["maxOffset"]) == (queue["minOffset"], queue["maxOffset"])
            newest = max((m["storeTimestamp"] for m in queue["messages"]), default=0)
            assert row["lastUpdateTimestamp"] == newest


@pytest.mark.parametrize("name", ["topicStatus", "topicRoute", "topicClusterList"])
def test_an_unknown_topic_is_answered_with_the_nearest(run: Run, name: str) -> None:
    result = run(name, "-t", "ordertopik")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("rmq: no topic 'ordertopik' in ")
    assert result.stderr.endswith("did you mean 'OrderTopic'?\n")


def test_update_topic_makes_one_with_mqadmins_defaults_or_what_it_is_told(root: Path) -> None:
    """UpdateTopicSubCommand.java: 8 queues; TopicConfig#toString."""
    result = command(root, "updateTopic", "-c", "DefaultCluster", "-t", "New")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (EXPECTED / "mqadmin-updateTopic.txt").read_text()
    arguments = ["-r", "4", "-w", "2", "-p", "4", "-o", "true", "-u", "true", "-a", "+message.type=FIFO"]
    assert command(root, "updateTopic", "-t", "Other", *arguments).exit_code == 0
    assert topics(root)["New"] == TopicConfig("New", 8, 8)
    assert topics(root)["Other"] == TopicConfig(
        "Other", 4, 2, 4, topic_sys_flag=1, order=True, attributes={"message.type": "FIFO"}
    )


def test_update_topic_leaves_what_it_is_not_told(root: Path) -> None:
    """Unlike mqadmin, which sets the rest to its defaults: 8 queues, to be read and written."""
    command(root, "updateTopic", "-t", "T", "-o", "true", "-s", "true", "-a", "+message.type=FIFO")
    command(root, "updateTopic", "-t", "T", "-p", "4")
    assert topics(root)["T"] == TopicConfig(
        "T", 2, 2, 4, topic_sys_flag=2, order=True, attributes={"message.type": "FIFO"}
    )
    shown = json.loads(command(root, "updateTopic", "-t", "T", "-s", "false", "-a", "-message.type", "--json").stdout)
    assert (shown["topicSysFlag"], shown["attributes"], shown["perm"]) == (0, {}, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "TBW102"], "belongs to the broker"),
        (["-t", "a/b"], "holds characters"),
        (["-t", "T", "-r", "70000"], "not an integer in 0..65536"),
        (["-t", "T", "-a", "message.type=FIFO"], "neither +name=value nor -name"),
        (["-t", "T", "-a", "+message.type=FIFO,+message.type=NORMAL"], "comes twice"),
        (["-t", "T", "-a", "+message.type=BIG"], "message.type is one of UNSPECIFIED, NORMAL"),
        (["-t", "T", "-a", "+queue.type=BatchCQ"], "queue.type is one of SimpleCQ"),
        (["-t", "T", "-a", "+colour=red"], "known are message.type"),
    ],
)
def test_what_no_topic_can_be_is_one_line_and_changes_nothing(root: Path, arguments: list[str], message: str) -> None:
    before = topics(root)
    result = command(root, "updateTopic", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert topics(root) == before


def test_permissions_are_set_alone(root: Path) -> None:
    """UpdateTopicPermSubCommand.java."""
    result = command(root, "updateTopicPerm", "-t", "T", "-p", "4", "-b", "127.0.0.1:10911")
    assert result.stdout.splitlines()[0] == "update topic perm from 6 to 4 in 127.0.0.1:10911 success."
    assert topics(root)["T"] == TopicConfig("T", 2, 2, 4)
    assert command(root, "updateTopicPerm", "-t", "T", "-p", "4").stdout == "new perm equals to the old one!\n"
    assert command(root, "updateTopicPerm", "-t", "t", "-p", "4").exit_code == 2


def test_a_deletion_says_what_goes_and_does_it_when_it_is_told_to(root: Path) -> None:
    result = command(root, "deleteTopic", "-c", "DefaultCluster", "-t", "T", "--yes")
    assert (result.exit_code, result.stdout) == (0, "delete topic [T] from cluster [DefaultCluster] success.\n")
    assert result.stderr == (EXPECTED / "mqadmin-deleteTopic.txt").read_text()
    assert "T" not in topics(root)
    again = command(root, "updateTopic", "-t", "T", "-r", "2", "-w", "2")
    assert again.stderr == (
        "rmq: T was here before: 4 messages of it can be read again, and its offsets go on where they ended\n"
    )
    with Store.open(root) as store:
        assert store.send(Message("T", b"again", queue_id=0)).queue_offset == 4
        assert store.committed_offsets("g") == {}


def test_nothing_is_deleted_by_a_dry_run_a_no_or_where_nobody_can_be_asked(
    root: Path, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(root)
    planned: Any = json.loads(command(root, "deleteTopic", "-t", "T", "--dry-run", "--json").stdout)
    assert planned == {
        "deleted": False, "topics": ["T"], "groups": [], "offsets": {"g": ["T"]}, "popStates": [], "messagesLeft": 4,
    }  # fmt: skip
    refused = command(root, "deleteTopic", "-t", "T")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.endswith("rmq: Delete topic T? There is no terminal to ask: repeat it with --yes\n")
    answered = command(root, "deleteTopic", "-t", "T", answer="n")
    assert answered.exit_code == 1
    assert "Delete topic T? [y/N]: n" in answered.stderr
    assert tree_hash(root) == before
    assert command(root, "deleteTopic", "-t", "T", answer="y").exit_code == 0
    assert "T" not in topics(root)


def test_a_topic_that_is_being_consumed_is_not_deleted_and_the_consumer_is_named(root: Path) -> None:
    lease = Lease(root, "g", "T")
    lease.acquire("query 'orders' on host-1")
    result = command(root, "deleteTopic", "-t", "T", "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    told = "topic 'T' has running consumers: stop them first: group 'g' by \"query 'orders' on host-1\""
    assert told in result.stderr
    assert "T" in topics(root)
    assert command(root, "deleteTopic", "-t", "T", "--dry-run").exit_code == 0
    lease.release()
    assert command(root, "deleteTopic", "-t", "T", "--yes").exit_code == 0


def test_a_topic_to_which_a_new_group_has_just_subscribed_is_not_deleted(root: Path) -> None:
    """The group has no offset yet: its members say with each heartbeat what they read (HeartbeatData.java)."""
    with Store.open(root) as store:
        store.create_topic("U")
    with LitePullConsumer("brandnew", root, client_id="me") as consumer:
        consumer.subscribe("T")
        consumer.start(threads=False)
        refused = command(root, "deleteTopic", "-t", "T", "--yes")
        assert refused.exit_code == 1
        assert "topic 'T' has running consumers: stop them first: group 'brandnew' by 'me'" in refused.stderr
        consumer.subscribe("U")
        consumer.poll(0)
        assert command(root, "deleteTopic", "-t", "U", "--yes").exit_code == 1
    assert command(root, "deleteTopic", "-t", "T", "--yes").exit_code == 0


@pytest.mark.parametrize(("topic", "message"), [("SCHEDULE_TOPIC_XXXX", "belongs to the broker"), ("t", "mean 'T'?")])
def test_system_topics_and_unknown_ones_are_not_deleted(root: Path, topic: str, message: str) -> None:
    result = command(root, "deleteTopic", "-t", topic, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_damaged_newest_record_leaves_its_time_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*place: object) -> int:
        raise CorruptRecordError("commitlog", 0, "damaged")

    monkeypatch.setattr(Store, "store_timestamp", damaged)
    result = command(root, "topicStatus", "-t", "T")
    assert result.exit_code == 0
    assert [line.split()[1:] for line in result.stdout.splitlines()[1:]] == [["0", "0", "4"], ["1", "0", "0"]]


def test_the_address_is_that_of_the_broker_that_wrote_the_store(run: Run) -> None:
    """As in the offset ids of its messages, which hold storeHost."""
    assert '0:"127.0.0.1:20911"' in run("topicRoute", "-t", "OrderTopic").stdout
    assert " 127.0.0.1:20911 " in run("clusterList").stdout
