"""A real broker's deliveries once more: its store, its consumers' failures, another group, a clock that only we move.

The broker's log of deliveries (RocketMQ 5.5.0, ladder `1s 1s 2s 2s 3s 3s ...`) says what each listener answered. A
group of ours reads the same messages and answers the same; what it is given, and what is stored for it, must be what
the broker gave and stored.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Store, StoreConfig
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LocalBackend,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    PushConsumer,
)
from rmq_store.client.group.consumer_config import ConsumeFromWhere, PushConsumerConfig

LADDER = "1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h"
RETRY_GAPS_MS = [2000, 2000, 3000]  # levels 3, 4, 5 of it
AFTER_THE_BROKER_MS = 1_795_221_000_000
GROUP = "cg_replay"

Delivery = dict[str, Any]


@dataclass
class Clock:
    now_ms: int = AFTER_THE_BROKER_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Replay:
    store: Store
    clock: Clock
    backend: LocalBackend

    def run(self, consumer: PushConsumer, step_ms: int, duration_ms: int) -> None:
        end_ms = self.clock.now_ms + duration_ms
        while self.clock.now_ms < end_ms:
            while consumer.run_once():
                pass
            self.clock.now_ms += step_ms

    def rows(self, topic: str, queue_ids: Sequence[int]) -> Iterator[dict[str, Any]]:
        for queue_id in queue_ids:
            first, last = self.store.queue_range(topic, queue_id)
            for batch in self.store.read(topic, queue_id, first, last, raw_body=True):
                yield from batch.to_pylist()


@pytest.fixture
def deliveries(golden: Path) -> list[Delivery]:
    return [json.loads(line) for line in (golden / "deliveries.jsonl").read_text().splitlines()]


@pytest.fixture
def replay(golden: Path, scratch: Path, copy_store: Callable[[Path, Path], Path]) -> Iterator[Replay]:
    clock = Clock()
    config = StoreConfig(
        message_delay_level=LADDER, broker_host="127.0.0.1:20911", broker_name="golden-a",
        enabled_append_prop_crc=False, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=12_000,
        max_hash_slot_num=1000, max_index_num=4000, flush_interval_commit_log=10**9,
    )  # fmt: skip
    with Store.open(copy_store(golden / "store", scratch / "store"), config=config, clock=clock) as store:
        yield Replay(store, clock, LocalBackend(store))


def stored(row: dict[str, Any], group: str) -> tuple[tuple[str, int], dict[str, Any]]:
    """A record without its place and its time, the group's name taken out; by message and retry count."""
    said = {
        name: row[name]
        for name in ("topic", "body", "tags", "keys", "flag", "sysFlag", "bornTimestamp", "bornHost", "storeHost")
    }
    said["topic"] = row["topic"].replace(group, "*")
    said["properties"] = {name: value.replace(group, "*") for name, value in row["properties"]}
    return (row["msgId"], row["reconsumeTimes"]), said


@pytest.mark.statement("B02", "B03", "B05", "B06", "B09", "B14", "C03", "C04", "C05", "C06", "C08", "C09", "C13", "D01")
def test_a_concurrent_group_walks_the_ladder_of_the_real_one(replay: Replay, deliveries: list[Delivery]) -> None:
    """Deliveries of cg_orders: 593 messages fail, 296 of them twice, 297 four times and are dead."""
    expected: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for delivery in deliveries:
        if delivery["group"] == "cg_orders":
            seen = delivery["topicSeen"], delivery["reconsumeTimes"], delivery["result"]
            expected[delivery["msgId"]].append(seen)
    answers = {
        (msg_id, times): "SUCCESS" not in result for msg_id, all_ in expected.items() for _, times, result in all_
    }
    given: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    times_ms: dict[str, list[int]] = defaultdict(list)

    def consume(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        fails = answers[message.msg_id, message.reconsume_times]
        result = "RECONSUME_LATER" if fails else "SUCCESS"
        given[message.msg_id].append((message.topic, message.reconsume_times, result))
        times_ms[message.msg_id].append(replay.clock.now_ms)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if fails else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    config = PushConsumerConfig(
        max_reconsume_times=3, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer = PushConsumer(GROUP, replay.backend, config)
    consumer.subscribe("OrderTopic")
    consumer.register_message_listener(MessageListenerConcurrently(consume))
    consumer.start(threads=False)
    replay.run(consumer, step_ms=500, duration_ms=12_000)
    consumer.shutdown()

    assert given == expected
    gaps = {
        (number, after - before)
        for moments in times_ms.values()
        for number, (before, after) in enumerate(pairwise(moments))
    }
    assert gaps == set(enumerate(RETRY_GAPS_MS))

    hops = [("SCHEDULE_TOPIC_XXXX", [2, 3, 4]), ("%RETRY%{}", [0]), ("%DLQ%{}", [0])]
    counts = [593 + 593 + 297, 593 + 593 + 297, 297]
    for (topic, queue_ids), count in zip(hops, counts, strict=True):
        by_broker, by_us = (
            dict(
                stored(row, group)
                for row in replay.rows(topic.format(group), queue_ids)
                if dict(row["properties"]).get("REAL_TOPIC") == f"%RETRY%{group}"
            )
            for group in ("cg_orders", GROUP)
        )
        assert by_us == by_broker
        assert len(by_us) == count
    assert replay.store.committed_offsets(GROUP)["%RETRY%" + GROUP, 0] == counts[1]


@pytest.mark.statement("B12", "D01", "D04")
def test_an_ordered_group_keeps_the_order_of_the_real_one(replay: Replay, deliveries: list[Delivery]) -> None:
    """Deliveries of cg_fifo: two messages of a queue fail three times each, the others of the queue wait for them."""
    expected: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for delivery in deliveries:
        if delivery["group"] == "cg_fifo":
            seen = delivery["queueOffset"], delivery["reconsumeTimes"], delivery["result"]
            expected[delivery["queueId"]].append(seen)
    failing = {delivery["keys"] for delivery in deliveries if delivery["result"] == "SUSPEND"}
    given: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    suspended_ms: list[int] = []

    def consume(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        (message,) = messages
        fails = message.properties["KEYS"] in failing
        given[message.queue_id].append(
            (message.queue_offset, message.reconsume_times, "SUSPEND" if fails else "SUCCESS")
        )
        if fails:
            suspended_ms.append(replay.clock.now_ms)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if fails else ConsumeOrderlyStatus.SUCCESS

    config = PushConsumerConfig(
        max_reconsume_times=2, suspend_current_queue_time_millis=200,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )  # fmt: skip
    consumer = PushConsumer(GROUP, replay.backend, config)
    consumer.subscribe("FifoTopic")
    consumer.register_message_listener(MessageListenerOrderly(consume))
    consumer.start(threads=False)
    replay.run(consumer, step_ms=50, duration_ms=3000)
    consumer.shutdown()

    assert given == expected
    pauses_ms = [after - before for before, after in pairwise(suspended_ms)]
    assert pauses_ms == [200, 200, 0, 200, 200]

    dead = {
        group: [
            (row["body"], row["tags"], row["flag"], row["reconsumeTimes"], row["queueId"], dict(row["properties"]))
            for row in replay.rows(f"%DLQ%{group}", [0])
        ]
        for group in ("cg_fifo", GROUP)
    }
    assert dead[GROUP] == dead["cg_fifo"]
    assert len(dead[GROUP]) == 2
