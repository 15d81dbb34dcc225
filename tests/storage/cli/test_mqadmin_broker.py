"""mqadmin's commands for a broker over a directory: state, settings, counts, queue entries, cleaning, export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from rmq_store import ClockFile, CorruptRecordError, Message, Store, StoreConfig, SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.format.tables.config_json import loads
from rmq_store.format.views.consume_queue import ENTRY

from .changing import NOW_MS, command

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"

HOUR_MS = 3_600_000


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    """Its clock stands an hour behind the first message."""
    path = shutil.copytree(made_store, scratch / "store")
    ClockFile.create(path / "pyrmq" / "clock", NOW_MS + HOUR_MS)
    return path


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("statsAll", ["statsAll", "-t", "T"]),
        ("queryCq", ["queryCq", "-t", "T", "-q", "0", "-i", "2"]),
        ("getBrokerConfig", ["getBrokerConfig"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(root: Path, name: str, arguments: list[str]) -> None:
    result = command(root, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"mqadmin-{name}.txt").read_text()
    assert result.stderr == ""
    assert json.loads(command(root, *arguments, "--json").stdout)


def test_the_store_is_a_cluster_of_one_broker(root: Path) -> None:
    """ClusterListSubCommand#printClusterBaseInfo."""
    header, line = command(root, "clusterList").stdout.splitlines()
    assert header.split() == [
        "#Cluster", "Name", "#Broker", "Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)",
        "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED",
    ]  # fmt: skip
    assert line.split()[:5] == ["DefaultCluster", "rmq-embedded", "0", "127.0.0.1:10911", "EMBEDDED"]
    assert line.split()[9] == "1.00"  # hours since the oldest message
    (shown,) = json.loads(command(root, "clusterList", "--json").stdout)
    assert shown["hours"] == 1.0
    assert 0 < shown["diskUsedRatio"] <= 1


def test_the_state_has_the_names_of_a_brokers_runtime_information(run: Run, golden: Path) -> None:
    """DefaultMessageStore#getRuntimeInfo, ScheduleMessageService#buildRunningStats; the numbers are the manifest's."""
    state = json.loads(run("brokerStatus", "-b", "127.0.0.1:10911", "--json").stdout)
    topics = json.loads((golden / "manifest.json").read_text())["topics"]
    oldest = min(m["storeTimestamp"] for t in topics.values() for q in t["queues"].values() for m in q["messages"])
    assert (state["commitLogMinOffset"], state["earliestMessageTimeStamp"]) == ("0", str(oldest))
    assert state["scheduleMessageOffset_3"] == "603,603"
    assert state["scheduleMessageOffset_18"] == "0,5"
    text = run("brokerStatus").stdout.splitlines()
    assert [line.split()[0] for line in text] == sorted(state)
    assert all(line[32:34] == ": " for line in text)


def test_a_damaged_oldest_record_leaves_its_time_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*place: object) -> object:
        raise CorruptRecordError("commitlog", 0, "damaged")

    monkeypatch.setattr(Store, "message_at", damaged)
    state = json.loads(command(root, "brokerStatus", "--json").stdout)
    assert state["earliestMessageTimeStamp"] == "-1"  # as DefaultMessageStore#getEarliestMessageTime


def test_settings_that_say_how_a_store_is_looked_after_can_be_changed(root: Path) -> None:
    result = command(root, "updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "48")
    assert (result.exit_code, result.stdout) == (0, "update broker config success, 127.0.0.1:10911\n")
    with Store.open(root, read_only=True) as store:
        assert store.config.file_reserved_time == 48
    assert json.loads(command(root, "getBrokerConfig", "--json").stdout)["fileReservedTime"] == 48
    shown = command(root, "updateBrokerConfig", "-k", "cleanFileForciblyEnable", "-v", "false", "--json").stdout
    assert json.loads(shown)["cleanFileForciblyEnable"] is False


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mappedFileSizeCommitLog", "1048576", "cannot be changed; these can: fileReservedTime, deleteWhen, "),
        ("fileReservedTme", "48", "did you mean 'fileReservedTime'?"),
        ("fileReservedTime", "soon", "fileReservedTime='soon' is no int"),
        ("deleteWhen", "25", "is no hour of the day"),
    ],
)
def test_other_settings_and_bad_values_are_refused(root: Path, key: str, value: str, message: str) -> None:
    before = (root / "pyrmq" / "store.json").read_bytes()
    result = command(root, "updateBrokerConfig", "-k", key, "-v", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert (root / "pyrmq" / "store.json").read_bytes() == before


def test_what_came_in_is_counted_from_the_messages_times(root: Path) -> None:
    """StatsAllSubCommand.java: the last minute per second, the last 24 hours; NO_CONSUMER."""
    with Store.open(root) as store:
        store.create_topic("U", queue_count=1)
        for _ in range(30):
            store.send(Message("U", b"now"))
    shown = {row["topic"]: row for row in json.loads(command(root, "statsAll", "-a", "--json").stdout)}
    assert shown == {
        "T": {"topic": "T", "consumerGroup": "g", "accumulation": 2, "inTps": 0.0, "inMsg24Hour": 4},
        "U": {"topic": "U", "consumerGroup": None, "accumulation": 0, "inTps": 0.5, "inMsg24Hour": 30},
    }
    line = command(root, "statsAll", "-t", "U").stdout.splitlines()[1]
    assert line.split() == ["U", "0", "0.50", "30", "NO_CONSUMER"]
    (root / "pyrmq" / "clock").write_bytes(np.int64(NOW_MS + 26 * HOUR_MS).tobytes())
    assert json.loads(command(root, "statsAll", "-a", "--json").stdout) == []


def test_queue_entries_are_those_of_the_file(run: Run, golden: Path) -> None:
    shown: Any = json.loads(run("queryCq", "-t", "FifoTopic", "-q", "1", "-i", "7", "-c", "3", "--json").stdout)
    file = np.fromfile(golden / "store/consumequeue/FifoTopic/1" / ("0" * 20), ENTRY)
    assert [tuple(entry.values()) for entry in shown["entries"]] == [
        (number, *(int(value) for value in file[number])) for number in (7, 8, 9)
    ]
    end = shown["maxOffset"]
    assert json.loads(run("queryCq", "-t", "FifoTopic", "-q", "1", "-i", str(end), "--json").stdout)["entries"] == []
    beyond = run("queryCq", "-t", "FifoTopic", "-q", "1", "-i", "0", "-c", "10000", "--json").stdout
    assert len(json.loads(beyond)["entries"]) == end


def test_a_cluster_is_listed_again_every_so_many_seconds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClusterListSubCommand.java -i"""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("rmq_store.cli.mqadmin.broker.time.sleep", sleep)
    result = command(root, "clusterList", "-i", "3")
    assert (result.exit_code, waits) == (0, [3, 3])
    assert result.stdout.count("#Cluster Name") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["queryCq", "-t", "FifoTopic", "-q", "9", "-i", "0"],
        ["queryMsgByOffset", "-t", "FifoTopic", "-i", "9", "-o", "0"],
        ["read", "FifoTopic", "--queue", "9"],
    ],
)
def test_a_queue_that_the_topic_has_not_is_told(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rmq: topic FifoTopic has no queue 9; it has 4 queues\n"


def test_the_settings_name_the_broker_as_everything_else_does(run: Run, golden: Path) -> None:
    """The store's broker left its name; a setting of ours is only what a new store would have."""
    assert json.loads(run("getBrokerConfig", "--json").stdout)["brokerName"] == "golden-a"


def test_expired_files_of_the_log_are_deleted_by_retention(scratch: Path, tiny: StoreConfig) -> None:
    """DefaultMessageStore#executeDeleteFilesManually."""
    root = scratch / "store"
    with Store.open(root, create=True, config=tiny) as store:
        store.create_topic("T", queue_count=1)
        for _ in range(60):
            store.send(Message("T", bytes(1000)))
        store.retention.configure(file_reserved_time=0)
    before = sorted((root / "commitlog").iterdir())
    assert command(root, "deleteExpiredCommitLog").exit_code == 2
    assert "stays" not in command(root, "deleteExpiredCommitLog", "--dry-run").stdout
    assert sorted((root / "commitlog").iterdir()) == before
    result = command(root, "deleteExpiredCommitLog", "-c", "DefaultCluster", answer="y")
    assert result.exit_code == 0, result.output
    assert " segments, bytes 0 to " in result.stderr
    assert len(list((root / "commitlog").iterdir())) == 1


def test_old_queue_files_go_and_the_last_one_stays(scratch: Path, tiny: StoreConfig) -> None:
    """ConsumeQueueStore#cleanExpired takes that, too, and begins again at 0."""
    root = scratch / "store"
    with Store.open(root, create=True, config=tiny) as store:
        store.create_topic("T", queue_count=1)
        for _ in range(60):
            store.send(Message("T", bytes(1000)))
        queue = root / "consumequeue" / "T" / "0"
        copies = {path.name: path.read_bytes() for path in queue.iterdir()}
        store.retention.run(manual=True, file_reserved_time=0)
        left = {path.name for path in queue.iterdir()}
    for name in copies.keys() - left:  # as if the pass had died before it came to them
        (queue / name).write_bytes(copies[name])
    assert len(copies.keys() - left) > 0
    result = command(root, "cleanExpiredCQ", "-c", "DefaultCluster")
    assert (result.exit_code, result.stdout) == (0, "success\n")
    assert {path.name for path in queue.iterdir()} == left
    assert json.loads(command(root, "cleanExpiredCQ", "--json").stdout) == {"removedQueueFiles": 0}


def test_offsets_on_topics_that_are_gone_are_cleaned(root: Path, tree_hash: Callable[[Path], str]) -> None:
    with Store.open(root) as store:
        store.commit_offsets("g", {("Gone", 0): 5})
        store.commit_offsets("h", {("Gone", 0): 7})
    before = tree_hash(root)
    planned = json.loads(command(root, "cleanUnusedTopic", "--dry-run", "--json").stdout)
    assert planned["offsets"] == {"g": ["Gone"], "h": ["Gone"]}
    assert command(root, "cleanUnusedTopic").exit_code == 2
    assert "Forget these? [y/N]: n" in command(root, "cleanUnusedTopic", answer="n").stderr
    assert tree_hash(root) == before
    result = command(root, "cleanUnusedTopic", "--yes")
    assert (result.exit_code, result.stdout) == (0, "success\n")
    assert result.stderr == "delete the offsets of group g on Gone\ndelete the offsets of group h on Gone\n"
    with Store.open(root, read_only=True) as store:
        assert store.all_committed_offsets() == {"g": {("T", 0): 2}}
    assert command(root, "cleanUnusedTopic").exit_code == 0  # nothing to ask


def test_metadata_of_users_is_exported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ExportMetadataCommand.java: the names of the files, what is left out."""
    with Store.open(root) as store:
        store.create_topic("%RETRY%g", queue_count=1)
        store.create_group(SubscriptionGroup("g"))
        store.create_group(SubscriptionGroup("TOOLS_CONSUMER"))
        store.create_group(SubscriptionGroup("CID_RMQ_SYS_TRANS"))
    directory = root.parent / "export" / "today"
    result = command(root, "exportMetadata", "-c", "DefaultCluster", "-f", str(directory))
    assert (result.exit_code, result.stdout) == (0, f"export {directory}/metadata.json success\n")
    assert [path.stat().st_mode & 0o777 for path in (directory, directory.parent)] == [0o700, 0o700]
    found = loads((directory / "metadata.json").read_bytes())
    assert (set(found["topicConfigTable"]), set(found["subscriptionGroupTable"])) == ({"T"}, {"g"})
    assert found["topicConfigTable"]["T"]["readQueueNums"] == 2
    assert found["exportTime"] == NOW_MS + HOUR_MS
    monkeypatch.chdir(directory)
    here = command(root, "exportMetadata")
    assert here.stdout == f"export {directory}/metadata.json success\n"
    command(root, "exportMetadata", "-t", "-s", "-f", str(directory))
    assert set(loads((directory / "topic.json").read_bytes())["topicConfigTable"]) == {"T", "%RETRY%g"}
    command(root, "exportMetadata", "-g", "-f", str(directory))
    assert set(loads((directory / "subscriptionGroup.json").read_bytes())) == {"exportTime", "subscriptionGroupTable"}
    assert json.loads(command(root, "exportMetadata", "--json").stdout) == found
    assert command(root, "exportMetadata", "-t", "-g").exit_code == 2


def test_settings_are_exported(root: Path) -> None:
    """ExportConfigsCommand.java."""
    directory = root.parent
    assert command(root, "exportConfigs", "-f", str(directory)).stdout == f"export {directory}/configs.json success\n"
    found = loads((directory / "configs.json").read_bytes())
    assert found["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 0, "slaveBrokerSize": 0}
    settings = found["brokerConfigs"]["rmq-embedded"]
    assert (settings["fileReservedTime"], settings["autoCreateTopicEnable"]) == ("72", "true")
    assert json.loads(command(root, "exportConfigs", "--json").stdout) == found


MQADMIN = [
    "topicList", "topicStatus", "topicRoute", "topicClusterList", "updateTopic", "updateTopicPerm", "deleteTopic",
    "consumerProgress", "updateSubGroup", "deleteSubGroup", "getConsumerConfig", "consumerConnection",
    "resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset", "clusterList", "brokerStatus",
    "getBrokerConfig", "updateBrokerConfig", "statsAll", "queryCq", "cleanExpiredCQ", "deleteExpiredCommitLog",
    "cleanUnusedTopic", "exportMetadata", "exportConfigs",
]  # fmt: skip


@pytest.mark.parametrize("name", MQADMIN)
def test_every_command_has_help_with_an_example_the_store_option_and_json(run: Run, name: str) -> None:
    text = run(name, "--help").stdout
    assert f"    rmq {name} " in text
    assert "Example" in text
    assert "--store PATH" in text
    assert "--json" in text
    assert commands.commands[name].get_short_help_str()


def test_the_help_says_which_commands_of_mqadmin_are_not_here(run: Run) -> None:
    text = run("--help").stdout
    assert "because a store directory has nothing for them" in text
    assert "wipeWritePerm" in text
