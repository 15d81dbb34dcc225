"""A store as metrics: the numbers of a real broker's store, the meanings of RocketMQ's names, what is damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from rmq_store import CorruptQueueError, Message, Store, StoreConfig, SubscriptionGroup, UnknownTopicError
from rmq_store.broker.delay import backlog
from rmq_store.broker.monitoring import metric_table
from rmq_store.broker.monitoring.metrics import store_metrics, write_openmetrics
from rmq_store.format.text.openmetrics import MetricFamily, openmetrics_text

NOW_MS = 1_800_000_000_000


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(scratch: Path, small: StoreConfig, clock: Clock) -> Iterator[Store]:
    """Orders with 5 messages in queue 0, a second apart, the first at NOW_MS + 1000."""
    with Store.open(scratch / "store", create=True, config=small, clock=clock) as store:
        store.create_topic("Orders", queue_count=2)
        for number in range(5):
            clock.now_ms += 1000
            store.send(Message("Orders", b"%d" % number, queue_id=0))
        yield store


def numbers(families: Iterable[MetricFamily], name: str, *by: str) -> dict[tuple[str, ...], float]:
    """{values of the labels `by`: number} of one metric, as the official parser reads the text."""
    read = parse(openmetrics_text(families))
    (family,) = (family for family in read if name in (family.name, f"{family.name}_total"))
    found = {tuple(sample.labels[label] for label in by): sample.value for sample in family.samples}
    assert len(found) == len(family.samples)
    return found


# ---- a real broker's store


def test_a_parser_reads_back_every_metric_with_its_type_unit_and_labels(golden: Path) -> None:
    with Store.open(golden / "store", read_only=True) as store:
        families = store_metrics(store, "GoldenCluster", queues=True)
        node = {"cluster": "GoldenCluster", "node_type": "broker", "node_id": store.broker_name}
    metrics = (*metric_table.STORE_METRICS, *metric_table.QUEUE_METRICS)
    read = list(parse(openmetrics_text(families)))
    assert [(one.name, one.type, one.unit, one.documentation) for one in read] == [
        (metric.name, metric.kind, metric.unit, metric.help) for metric in metrics
    ]
    for metric, family in zip(metrics, read, strict=True):
        for sample in family.samples:
            assert sample.name == metric.sample_name
            assert sample.labels.keys() == set(metric.labels)
            assert sample.labels.items() >= node.items()
    # Nobody of ours has it open, and nothing of it is damaged.
    assert [family.name for family in read if not family.samples] == [
        "rocketmq_storage_flush_behind_bytes",
        "rmq_unreadable",
    ]


def test_lag_and_dead_letters_are_those_of_the_manifest(golden: Path) -> None:
    manifest = json.loads((golden / "manifest.json").read_text())
    with Store.open(golden / "store", read_only=True) as store:
        families = store_metrics(store, queues=True)
    shown = numbers(families, "rocketmq_consumer_lag_messages", "consumer_group", "topic")
    per_queue = numbers(families, "rmq_consumer_queue_lag_messages", "consumer_group", "topic", "queue_id")
    compared = 0
    for name, group in manifest["groups"].items():
        if group["totalLag"] is None or name not in {group for group, _ in shown}:
            continue
        assert sum(number for (found, _), number in shown.items() if found == name) == group["totalLag"]
        for queue in group["queues"]:
            assert per_queue[name, queue["topic"], str(queue["queueId"])] == queue["lag"]
            compared += 1
    assert compared > 20
    ends = numbers(families, "rmq_queue_max_offset", "topic", "queue_id")
    put = numbers(families, "rmq_topic_put_messages_total", "topic")
    for name, topic in manifest["topics"].items():
        queues = topic["queues"].items()
        assert {int(queue_id): ends.get((name, queue_id), 0) for queue_id, _ in queues} == {
            int(queue_id): queue["maxOffset"] for queue_id, queue in queues
        }
        assert put[name,] == sum(queue["maxOffset"] for _, queue in queues)
    dead = {("cg_fifo",): 2, ("cg_orders",): 297}
    assert numbers(families, "rmq_dead_letters", "consumer_group") == dead
    assert numbers(families, "rocketmq_send_to_dlq_messages_total", "consumer_group") == dead


# ---- groups


def test_lag_is_in_messages_and_in_milliseconds_and_says_what_is_a_retry(store: Store, clock: Clock) -> None:
    store.commit_offsets("G", {("Orders", 0): 2})
    clock.now_ms = NOW_MS + 13_000
    families = store_metrics(store)
    labels = "consumer_group", "topic", "is_retry", "is_system"
    assert numbers(families, "rocketmq_consumer_lag_messages", *labels) == {("G", "Orders", "false", "false"): 3}
    assert numbers(families, "rocketmq_consumer_lag_latency_milliseconds", "topic") == {("Orders",): 10_000}
    store.create_group(SubscriptionGroup("G"), exist_ok=True)
    store.send(Message("%RETRY%G", b"again"))
    store.commit_offsets("G", {("%RETRY%G", 0): 0})
    store.commit_offsets("CID_RMQ_SYS_x", {("Orders", 0): 5})
    shown = numbers(store_metrics(store), "rocketmq_consumer_lag_messages", *labels)
    assert shown["G", "%RETRY%G", "true", "false"] == 1
    assert shown["CID_RMQ_SYS_x", "Orders", "false", "true"] == 0


def test_what_a_pop_gave_out_is_in_flight_and_the_rest_is_ready(store: Store, clock: Clock) -> None:
    taken = store.pop.receive("G", "Orders", 3, 60_000)
    store.pop.ack("G", "Orders", taken[0].receipt_handle)
    store.pop.close()  # commits what is acknowledged
    clock.now_ms = NOW_MS + 20_000
    families = store_metrics(store)
    by = {
        name: numbers(families, f"rocketmq_consumer_{name}", "consumer_group", "topic")["G", "Orders"]
        for name in ("lag_messages", "inflight_messages", "ready_messages", "lag_latency_milliseconds",
                     "queueing_latency_milliseconds")
    }  # fmt: skip
    assert by == {
        "lag_messages": 4, "inflight_messages": 2, "ready_messages": 2,
        "lag_latency_milliseconds": 18_000, "queueing_latency_milliseconds": 16_000,
    }  # fmt: skip


def test_an_offset_beyond_the_end_is_no_lag(store: Store) -> None:
    """ConsumerLagCalculator#calculateMessageCount: never negative, although mqadmin shows it so."""
    store.commit_offsets("G", {("Orders", 0): 9})
    families = store_metrics(store, queues=True)
    assert numbers(families, "rocketmq_consumer_lag_messages", "topic") == {("Orders",): 0}
    assert numbers(families, "rmq_consumer_queue_lag_messages", "queue_id") == {("0",): 0, ("1",): 0}
    assert numbers(families, "rmq_consumer_queue_offset", "queue_id") == {("0",): 9}


def test_the_age_of_a_topic_is_not_known_if_that_of_one_queue_is_not(store: Store, clock: Clock) -> None:
    store.send(Message("Orders", b"another queue", queue_id=1))
    store.commit_offsets("G", {("Orders", 0): 2})
    place = store.query.by_queue_offset("Orders", 0, 2).commit_log_offset
    store.close()
    with next((store.path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(place + 4)
        file.write(b"\xff\xff\xff\xff")
    with Store.open(store.path, read_only=True, clock=clock) as reader:
        families = store_metrics(reader, queues=True)
    assert numbers(families, "rocketmq_consumer_lag_messages", "topic") == {("Orders",): 4}
    assert numbers(families, "rocketmq_consumer_lag_latency_milliseconds", "topic") == {}
    assert numbers(families, "rmq_consumer_queue_lag_seconds", "queue_id") == {("1",): 0}
    # Of the 1,024 queues of BenchmarkTest none was ever used.
    assert numbers(families, "rmq_queue_max_offset", "topic", "queue_id") == {("Orders", "0"): 5, ("Orders", "1"): 1}


def test_who_is_at_work_as_a_group_is_counted_also_before_it_commits(store: Store) -> None:
    store.commit_offsets("idle", {("Orders", 0): 1})
    with_lease = store.lease("busy", "Orders", "a stream")
    shown = numbers(store_metrics(store), "rocketmq_consumer_connections", "consumer_group")
    assert shown == {("idle",): 0, ("busy",): 1}
    with_lease.release()


def test_a_group_that_cannot_be_read_takes_no_other_group_along(store: Store) -> None:
    for group in ("broken", "G"):
        store.commit_offsets(group, {("Orders", 0): 1})
    journal = store.path / "pyrmq" / "pop" / "broken" / "Orders" / "journal"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"x" * 128)
    families = store_metrics(store)
    assert numbers(families, "rmq_unreadable", "consumer_group") == {("broken",): 1}
    assert numbers(families, "rocketmq_consumer_lag_messages", "consumer_group") == {("G",): 4}


# ---- messages


def test_dead_letters_are_counted_now_and_for_ever(store: Store) -> None:
    store.create_group(SubscriptionGroup("G", retry_max_times=0), exist_ok=True)
    for offset in range(2):
        store.retry.send_back("G", store.query.by_queue_offset("Orders", 0, offset).commit_log_offset)
    families = store_metrics(store)
    assert numbers(families, "rmq_dead_letters", "consumer_group") == {("G",): 2}
    assert numbers(families, "rocketmq_send_to_dlq_messages_total", "consumer_group") == {("G",): 2}
    assert numbers(families, "rmq_topic_messages", "topic")["%DLQ%G",] == 2


def test_messages_that_wait_are_counted_by_level_and_overdue_if_nobody_delivers(store: Store, clock: Clock) -> None:
    for level in (3, 3, 4):  # 10 s, 30 s
        clock.now_ms += 1000
        store.send(Message("Orders", b"later", delay_level=level))
    store.send(Message("Orders", b"at", deliver_timestamp_ms=clock.now_ms + 5000))
    by = "delay_level"
    with Store.open(store.path, read_only=True, clock=clock) as reader:
        for looked in (store, reader):
            families = store_metrics(looked)
            assert numbers(families, "rmq_delayed_messages", by) == {("3",): 2, ("4",): 1, ("timer",): 1}
            assert set(numbers(families, "rmq_delayed_overdue_seconds", by).values()) == {0}
        clock.now_ms += 20_000
        overdue = numbers(store_metrics(reader), "rmq_delayed_overdue_seconds", by)
        assert overdue == {("3",): 12, ("4",): 0, ("timer",): 15}
        store.schedule.deliver_due()
        families = store_metrics(reader)
        assert numbers(families, "rmq_delayed_messages", by) == {("4",): 1}
        assert numbers(families, "rmq_topic_put_messages_total", "topic")["Orders",] == 8


@pytest.mark.parametrize("times", [1, 3])
def test_retention_may_take_a_queue_file_while_the_waiting_messages_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    store.send(Message("Orders", b"later", delay_level=3))
    failing, levels = [FileNotFoundError("taken")] * times, backlog._levels

    def taken(*arguments: Any) -> Any:
        if failing:
            raise failing.pop()
        return levels(*arguments)

    monkeypatch.setattr(backlog, "_levels", taken)
    if times == 1:
        assert store.delay_backlogs() == [backlog.Backlog(3, 1, NOW_MS + 15_000)]
    else:
        with pytest.raises(FileNotFoundError):
            store.delay_backlogs()


def test_a_topic_that_cannot_be_read_takes_no_other_topic_along(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("Others")
    for topic in ("Orders", "Others"):
        store.commit_offsets(f"of_{topic}", {(topic, 0): 0})
    ranges = store.queue_ranges

    def damaged(topic: str) -> Any:
        if topic == "Orders":
            raise CorruptQueueError("queue", 0, "one of the queue's files is missing")
        return ranges(topic)

    monkeypatch.setattr(store, "queue_ranges", damaged)
    families = store_metrics(store)
    (unreadable,) = (found for found in parse(openmetrics_text(families)) if found.name == "rmq_unreadable")
    told = [(sample.labels.get("consumer_group"), sample.labels.get("topic")) for sample in unreadable.samples]
    assert told == [("of_Orders", None), (None, "Orders")]
    assert ("Others",) in numbers(families, "rmq_topic_messages", "topic")
    assert numbers(families, "rocketmq_consumer_lag_messages", "topic") == {("Others",): 0}


def test_a_topic_that_is_deleted_during_the_look_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = store.queue_ranges

    def deleted(topic: str) -> Any:
        if topic == "Orders":
            raise UnknownTopicError(topic)
        return ranges(topic)

    monkeypatch.setattr(store, "queue_ranges", deleted)
    shown = numbers(store_metrics(store), "rmq_topic_messages", "topic")
    assert ("TBW102",) in shown
    assert ("Orders",) not in shown


# ---- disk


def test_the_log_its_age_and_what_is_not_flushed(store: Store, clock: Clock) -> None:
    clock.now_ms = NOW_MS + 31_000
    families = store_metrics(store)
    assert numbers(families, "rocketmq_storage_message_reserve_time_milliseconds") == {(): 30_000}
    end = store.log_range()[1]
    assert numbers(families, "rmq_commit_log_min_offset_bytes") == {(): 0}
    assert numbers(families, "rmq_commit_log_max_offset_bytes") == {(): end}
    assert 0 <= numbers(families, "rocketmq_storage_flush_behind_bytes")[()] <= end
    store.flush()
    assert numbers(store_metrics(store), "rocketmq_storage_flush_behind_bytes") == {(): 0}
    status = os.statvfs(store.path)
    used = numbers(store_metrics(store), "rocketmq_storage_size_bytes")[()]
    assert used == pytest.approx((status.f_blocks - status.f_bfree) * status.f_frsize, rel=0.2)
    assert 0 < numbers(families, "rmq_disk_usage_ratio")[()] <= 1
    store.close()
    with Store.open(store.path, read_only=True) as reader:
        assert numbers(store_metrics(reader), "rocketmq_storage_flush_behind_bytes") == {}


def test_files_and_their_disk_space_are_counted_by_part(store: Store) -> None:
    families = store_metrics(store)
    files, sizes = numbers(families, "rmq_storage_files", "part"), numbers(families, "rmq_storage_bytes", "part")
    for part in ("commitlog", "consumequeue", "index", "config", "pyrmq"):
        found = [path for path in (store.path / part).rglob("*") if path.is_file()]
        assert files[part,] == len(found) > 0
        assert sizes[part,] == sum(path.stat().st_blocks * 512 for path in found) > 0


def test_a_damaged_oldest_record_has_no_age(golden: Path, scratch: Path) -> None:
    root = shutil.copytree(golden / "store", scratch / "store")
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff\xff\xff\xff")
    with Store.open(root, read_only=True) as store:
        families = store_metrics(store)
    assert numbers(families, "rocketmq_storage_message_reserve_time_milliseconds") == {}
    assert len(numbers(families, "rocketmq_consumer_lag_messages", "consumer_group", "topic")) > 10


# ---- files


def test_a_file_is_whole_and_can_be_read_by_the_collector_of_another_user(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "rmq.prom"
    target.write_text("old")
    old = target.open()
    families = store_metrics(store)
    write_openmetrics(target, families)
    assert target.read_text() == openmetrics_text(families)
    assert old.read() == "old"  # whoever reads it goes on with the old one
    old.close()
    umask = os.umask(0o022)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o644 & ~umask
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("rmq.prom")] == ["rmq.prom"]
    with pytest.raises(FileNotFoundError):
        write_openmetrics(tmp_path / "absent" / "rmq.prom", families)
