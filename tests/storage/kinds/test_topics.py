"""A topic with queues of batches looked empty, and a compacted one like any other, and both took messages. They are
refused one by one, by name; the other topics of the store are used as ever.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, StagingArea, Store, StoreConfig, TopicKindError, backup
from rmq_store.broker.monitoring.lag import all_lags
from rmq_store.cli import commands
from rmq_store.client import LitePullConsumer, MQClientError, Producer, SimpleConsumer
from rmq_store.verify import verify_store

NOT_READ = {
    "batch queues": {"queue.type": "BatchCQ"},
    "compaction topics": {"cleanup.policy": "COMPACTION"},
}


def rmq(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(commands, [*arguments, "--store", str(root)], prog_name="rmq", catch_exceptions=False)


@pytest.fixture
def root(tmp_path: Path, small: StoreConfig) -> Path:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=small) as store:
        for topic in ("Odd", "Plain"):
            store.create_topic(topic, 1)
            store.send(Message(topic, b"one", keys="k"))
            store.commit_offsets("G", {(topic, 0): 0})
    return root


@pytest.fixture
def mark(root: Path) -> Callable[[dict[str, str]], None]:
    """Give the topic Odd these attributes, as a broker's table would."""

    def mark(attributes: dict[str, str]) -> None:
        path = root / "config" / "topics.json"
        table = json.loads(path.read_text())
        table["topicConfigTable"]["Odd"]["attributes"] = attributes
        path.write_text(json.dumps(table))

    return mark


def map_queues(root: Path) -> None:
    """As a broker writes it: the keys of some objects are numbers."""
    mapping = '{"topicQueueMappingInfoMap":{"Odd":{"currIdMap":{0:0},"hostedQueues":{0:[{"gen":1,"queueId":0}]}}}}'
    (root / "config" / "topicQueueMapping.json").write_text(mapping)


WRITES: dict[str, Callable[[Store], object]] = {
    "send": lambda store: store.send(Message("Odd", b"x")),
    "send_all": lambda store: store.send_all([Message("Plain", b"x"), Message("Odd", b"x")]),
    "append": lambda store: store.append(pa.record_batch({"body": pa.array([b"x"])}), "Odd"),
    "append to a queue": lambda store: store.append(
        pa.record_batch({"body": pa.array([b"x"]), "queueId": pa.array([0], pa.int32())}), "Odd"
    ),
}
READS: dict[str, Callable[[Store], object]] = {
    "queue_range": lambda store: store.queue_range("Odd", 0),
    "queue_ranges": lambda store: store.queue_ranges("Odd"),
    "queue_entries": lambda store: store.queue_entries("Odd", 0, 0, 1),
    "read": lambda store: list(store.read("Odd", 0, 0, 1)),
    "pop": lambda store: store.pop.receive("G", "Odd", 1, 60_000),
}


@pytest.mark.parametrize("kind", NOT_READ)
@pytest.mark.parametrize("call", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES])
def test_a_topic_that_is_kept_in_another_way_is_refused_by_name(
    root: Path, mark: Callable[[dict[str, str]], None], kind: str, call: Callable[[Store], object]
) -> None:
    mark(NOT_READ[kind])
    with Store.open(root) as store:
        before = store.log_range()
        with pytest.raises(TopicKindError, match=r"topic 'Odd': .* can be neither read nor written here"):
            call(store)
        assert store.log_range() == before
        assert store.queue_range("Plain", 0) == (0, 1)
        store.send(Message("Plain", b"two"))


@pytest.mark.parametrize("directory", ["batchconsumequeue/Odd/0", "compaction/compactionLog/Odd/0"])
def test_the_directory_tells_it_if_the_attribute_is_lost(root: Path, directory: str) -> None:
    (root / directory).mkdir(parents=True)
    with Store.open(root, read_only=True) as store:
        with pytest.raises(TopicKindError, match="'Odd'"):
            store.queue_ranges("Odd")
        assert store.queue_range("Plain", 0) == (0, 1)


@pytest.mark.parametrize(
    "attributes", [{}, {"queue.type": "SimpleCQ"}, {"cleanup.policy": "DELETE"}, {"other": "BatchCQ"}]
)
def test_other_attributes_say_nothing_of_the_kind(
    root: Path, mark: Callable[[dict[str, str]], None], attributes: dict[str, str]
) -> None:
    mark(attributes)
    with Store.open(root) as store:
        store.send(Message("Odd", b"two"))
        assert store.queue_range("Odd", 0) == (0, 2)


def test_a_static_topic_is_read_and_not_written(root: Path) -> None:
    map_queues(root)
    with Store.open(root) as store:
        assert store.queue_ranges("Odd") == {0: (0, 1)}
        assert [batch.num_rows for batch in store.read("Odd", 0, 0, 1)] == [1]
        for name, call in WRITES.items():
            with pytest.raises(TopicKindError, match=r"'Odd': .* mapped to queues of several brokers") as raised:
                call(store)
            assert ("row 0" in str(raised.value)) == (name.startswith("append")), name
        store.send(Message("Plain", b"two"))


def broker_was_here(root: Path) -> None:
    """Whoever opens the store next for writing takes queue entries from the log."""
    shutil.rmtree(root / "pyrmq")
    (root / "lock").write_bytes(b"lock")
    (root / "abort").touch()


@pytest.mark.parametrize("told_by", ["attribute", "directory"])
def test_nobody_makes_queues_of_a_topic_that_has_them_elsewhere(
    root: Path, mark: Callable[[dict[str, str]], None], told_by: str
) -> None:
    """A broker that finds `consumequeue/Odd` beside the queues of batches does not start any more."""
    shutil.rmtree(root / "consumequeue" / "Odd")
    if told_by == "attribute":
        mark(NOT_READ["batch queues"])
    else:
        (root / "batchconsumequeue" / "Odd" / "0").mkdir(parents=True)
    broker_was_here(root)
    report = verify_store(root)
    assert (report.problems, report.queues) == ([], 1)
    with Store.open(root, read_only=True) as store:
        assert store.queue_range("Plain", 0) == (0, 1)
    with Store.open(root) as store:
        assert store.recovery is not None
        assert store.recovery.record_count == 2
        store.send(Message("Plain", b"two"))
        assert store.queue_range("Plain", 0) == (0, 2)
    assert rmq(root, "repair", "--queues", "--index", "--yes").exit_code == 0
    backup(root, root.parent / "copy")
    for place in (root, root.parent / "copy"):
        assert not (place / "consumequeue" / "Odd").exists()
        report = verify_store(place)
        assert (report.status, report.messages, report.queues) == ("clean", 3, 1)


def test_what_is_due_for_such_a_topic_waits_on_and_is_named(
    tmp_path: Path, small: StoreConfig, caplog: pytest.LogCaptureFixture
) -> None:
    now, root = 1_700_000_000_000, tmp_path / "store"
    with Store.open(root, create=True, config=small, clock=lambda: now) as store:
        for topic in ("Odd", "Plain"):
            store.create_topic(topic, 1)
            store.send(Message(topic, b"later", delay_level=1))
    (root / "batchconsumequeue" / "Odd" / "0").mkdir(parents=True)
    now += 60_000
    with Store.open(root, clock=lambda: now) as store:
        assert store.schedule.deliver_due().delivered == 1
        assert store.queue_range("Plain", 0) == (0, 1)
        assert store.backlog_by_topic() == {"Odd": 1}
    assert "what is due for Odd-0 waits on" in caplog.text
    assert "queues of these topics hold batches" in caplog.text
    assert not (root / "consumequeue" / "Odd").exists()


def test_a_task_of_a_sink_stages_nothing_for_such_a_topic(root: Path) -> None:
    map_queues(root)
    area = StagingArea.for_task(root, "w", 0, 0, topic="Odd")
    with pytest.raises(TopicKindError, match="several brokers"):
        area.write(pa.record_batch({"body": pa.array([b"x"])}))
    area.abort()


def test_clients_are_told_too(root: Path, mark: Callable[[dict[str, str]], None]) -> None:
    mark(NOT_READ["batch queues"])
    with Producer("P", root) as producer:
        with pytest.raises(MQClientError, match="'Odd': queues of these topics hold batches"):
            producer.send(Message("Odd", b"x"))
        producer.send(Message("Plain", b"x"))
    with LitePullConsumer("G", root) as consumer, pytest.raises(MQClientError, match="'Odd'"):
        consumer.fetch_message_queues("Odd")
    with SimpleConsumer("G", root, {"Odd": "*"}) as simple, pytest.raises(MQClientError, match="'Odd'"):
        simple.receive(1, timedelta(seconds=60))


def test_what_looks_at_the_whole_store_goes_on_and_names_the_topic(
    root: Path, mark: Callable[[dict[str, str]], None], caplog: pytest.LogCaptureFixture
) -> None:
    mark(NOT_READ["compaction topics"])
    answer = rmq(root, "topics")
    assert "not read: compaction topics" in answer.output
    found: list[dict[str, Any]] = json.loads(rmq(root, "topics", "--json").stdout)
    assert {topic["topic"]: (topic["messages"], topic.get("kind")) for topic in found} == {
        "Odd": (None, "compaction topics"), "Plain": (1, None),
    }  # fmt: skip
    with Store.open(root, read_only=True) as store:
        (lag,) = all_lags(store)
        assert [queue.topic for queue in lag.queues] == ["Plain"]
    assert "no lag is known of topic 'Odd'" in caplog.text
    for command in (["statsAll"], ["lag"], ["groups"], ["top", "--every", "0.01"], ["metrics"]):
        assert rmq(root, *command).exit_code == 0, command
    refused = rmq(root, "read", "Odd")
    assert refused.exit_code == 2
    assert "can be neither read nor written here; all others can" in refused.stderr
