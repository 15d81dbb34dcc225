"""The topic table: a broker's file, changes that keep what is not ours, and entries no topic can have."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - Spark pickles what we hand to tasks
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker.metadata.topics import DEFAULT_TOPICS, QUEUE_COUNT_MAX, TopicConfig, TopicTable
from rmq_store.errors import CorruptConfigError, UnknownTopicError, UsageError
from rmq_store.format.tables.config_json import Verbatim, dumps, loads


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    return TopicTable(tmp_path, clock=lambda: 1234)


def write(root: Path, entries: Any) -> TopicTable:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(dumps({"topicConfigTable": entries}))
    return TopicTable(root)


@pytest.mark.statement("G05")
def test_a_brokers_table_is_read_whole_and_left_untouched(golden: Path) -> None:
    root = golden / "store"
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    topics = TopicTable(root).all()
    assert len(topics) == len(loads((root / "config" / "topics.json").read_text())["topicConfigTable"])
    assert topics["BatchTopic"] == TopicConfig("BatchTopic", 2, 2)
    assert topics["rmq_sys_SYNC_BROKER_MEMBER_golden-a"].perm == 1
    assert (topics["TBW102"].read_queue_nums, topics["TBW102"].perm) == (8, 7)
    assert topics["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


def test_a_topic_added_to_a_brokers_table_leaves_all_others_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "store" / "config", tmp_path / "config")
    path = tmp_path / "config" / "topics.json"
    old = loads(path.read_text())
    TopicTable(tmp_path).create(TopicConfig("Added", 3, 4))
    new = loads(path.read_text())
    added = new["topicConfigTable"].pop("Added")
    assert new["topicConfigTable"] == old["topicConfigTable"]
    assert new["dataVersion"]["counter"] == old["dataVersion"]["counter"] + 1
    assert list(added) == list(old["topicConfigTable"]["TBW102"]), "the fields of Java, in its order"


def test_the_default_topics_are_those_of_a_fresh_broker(table: TopicTable, golden: Path) -> None:
    assert table.create_all(DEFAULT_TOPICS, exist_ok=True) == {}
    real = TopicTable(golden / "store").all()
    assert table.all() == {topic.topic_name: real[topic.topic_name] for topic in DEFAULT_TOPICS}
    assert len(DEFAULT_TOPICS) == 7


def test_a_created_topic_is_seen_by_other_tables_and_comes_back_equal(table: TopicTable, tmp_path: Path) -> None:
    other = TopicTable(tmp_path)
    assert other.all() == {}
    topic = TopicConfig("orders", 4, 8, 6, "MULTI_TAG", 1, True, {"message.type": "FIFO"})
    assert table.create(topic) == topic
    assert other.get("orders") == topic
    assert pickle.loads(pickle.dumps(other.get("orders"))) == topic  # noqa: S301


def test_creating_twice_is_an_error_or_returns_what_is_there(table: TopicTable, tmp_path: Path) -> None:
    first = table.create(TopicConfig("orders", 4, 4))
    with pytest.raises(UsageError, match="exists"):
        table.create(TopicConfig("orders", 9, 9))
    content = (tmp_path / "config" / "topics.json").read_bytes()
    assert table.create(TopicConfig("orders", 9, 9), exist_ok=True) == first
    assert (tmp_path / "config" / "topics.json").read_bytes() == content


def test_of_two_processes_that_create_one_topic_both_get_the_same(tmp_path: Path) -> None:
    program = """
import sys
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
queues = int(sys.argv[2])
table = TopicTable(sys.argv[1])
print([table.create(TopicConfig(f"t{n}", queues, queues), exist_ok=True).read_queue_nums for n in range(40)])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), queues], env=environment, stdout=subprocess.PIPE, text=True
        )
        for queues in ("3", "5")
    ]
    one, two = (process.communicate()[0] for process in processes)
    assert one == two
    assert len(TopicTable(tmp_path).all()) == 40


def test_one_bad_topic_of_several_adds_none(table: TopicTable) -> None:
    with pytest.raises(UsageError):
        table.create_all([TopicConfig("good"), TopicConfig("../bad")])
    assert table.all() == {}


def test_an_update_keeps_the_fields_of_newer_versions(tmp_path: Path) -> None:
    table = write(tmp_path, {"orders": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "future": {"a": 1}}})
    table.update(replace(table.get("orders"), perm=4))
    assert table.get("orders").perm == 4
    entry = loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]["orders"]
    assert entry["future"] == {"a": 1}
    with pytest.raises(UnknownTopicError):
        table.update(TopicConfig("absent"))


def test_a_topic_can_be_deleted_but_not_one_of_the_broker(table: TopicTable) -> None:
    table.create_all([*DEFAULT_TOPICS, TopicConfig("orders")])
    assert table.delete("orders") is True
    assert table.delete("orders") is False
    with pytest.raises(UnknownTopicError, match="orders"):
        table.get("orders")
    with pytest.raises(UsageError):
        table.delete("SCHEDULE_TOPIC_XXXX")
    assert len(table.all()) == len(DEFAULT_TOPICS)


def test_missing_fields_have_the_defaults_of_java(tmp_path: Path) -> None:
    assert write(tmp_path, {"old": {}}).get("old") == TopicConfig("old", 16, 16, 6)


def test_perm_bits_say_who_may_use_a_topic() -> None:
    assert [(TopicConfig("t", perm=p).readable, TopicConfig("t", perm=p).writable) for p in (0, 2, 4, 6)] == [
        (False, False), (False, True), (True, False), (True, True)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "a\0", "a@g", "ａ", "x" * 128, 7])
def test_a_bad_name_is_refused_from_the_caller_and_costs_no_other_topic_on_the_disk(
    table: TopicTable, tmp_path: Path, name: Any
) -> None:
    with pytest.raises(UsageError):
        table.create(TopicConfig(name))
    assert not (tmp_path / "config").exists()
    table = write(tmp_path, {name: {"perm": 6}, "orders": {}})
    assert list(table.all()) == ["orders"]
    assert len(table.odd()) == 1
    with pytest.raises(CorruptConfigError, match=r"topics\.json"):
        table.get(name)
    table.create(TopicConfig("new"))
    assert loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"][name] == {"perm": 6}


@pytest.mark.parametrize(
    "change",
    [
        {"readQueueNums": -1}, {"readQueueNums": QUEUE_COUNT_MAX + 1}, {"writeQueueNums": "4"}, {"perm": True},
        {"perm": 16}, {"order": 1}, {"topicSysFlag": 1 << 31}, {"topicFilterType": 5}, {"attributes": []},
        {"attributes": {"a": 1}}, None, "orders", [4], {"perm": Verbatim("99999999999999999999")},
    ],
)  # fmt: skip
def test_an_entry_that_no_topic_can_have_is_kept_and_an_error_only_if_it_is_asked_for(
    tmp_path: Path, change: Any
) -> None:
    write(tmp_path, {"orders": {}}).get("orders")
    table = write(tmp_path, {"orders": change, "other": {}})
    assert list(table.all()) == ["other"]
    for ask in (
        lambda: table.get("orders"), lambda: table.all().get("orders"), lambda: "orders" in table.all(),
        lambda: table.create(TopicConfig("orders")), lambda: table.create(TopicConfig("orders"), exist_ok=True),
        lambda: table.update(TopicConfig("orders")),
        lambda: table.change("orders", lambda topic: topic, default=TopicConfig("orders")),
    ):  # fmt: skip
        with pytest.raises(CorruptConfigError, match=r"'orders'.*kept as it is"):
            ask()
    table.create_all([TopicConfig("new"), TopicConfig("other")], exist_ok=True)
    stored = loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert stored["orders"] == change
    assert table.delete("orders")
    assert not table.odd()


def test_null_members_have_the_defaults_of_java(tmp_path: Path) -> None:
    table = write(tmp_path, {"orders": {"writeQueueNums": None, "attributes": None, "perm": 4}})
    assert table.get("orders") == TopicConfig("orders", perm=4)


@pytest.mark.parametrize("entries", [[], 5, None, "x"])
def test_a_table_of_another_shape_is_corrupt_and_stays(tmp_path: Path, entries: Any) -> None:
    table = write(tmp_path, entries)
    content = (tmp_path / "config" / "topics.json").read_bytes()
    with pytest.raises(CorruptConfigError):
        table.all()
    with pytest.raises(CorruptConfigError):
        table.create(TopicConfig("orders"))
    assert (tmp_path / "config" / "topics.json").read_bytes() == content
