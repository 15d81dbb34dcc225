"""One delayed message hop by hop, and the hops of a real broker: what it delivered, we deliver the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.broker.rules.timer import PYRMQ_TIMER_TOPIC
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.text.names import RETRY_PREFIX, SCHEDULE_TOPIC
from rmq_store.verify import verify_store

TAG_A = java_hash("TagA")


def tags_code(store: Store, topic: str, queue_id: int) -> int:
    code: int = store._log.views.queue(topic, queue_id).entry(0)[2]
    return code


def places(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], row["queueId"]


def properties(row: dict[str, Any]) -> dict[str, str]:
    return dict(row["properties"])


@pytest.mark.parametrize("sent_as", ["message", "row"])
@pytest.mark.statement("C04", "C05", "C06", "C10")
def test_a_delayed_message_hop_by_hop(parking: Any, sent_as: str) -> None:
    """HookUtils#transformDelayLevelMessage, then ScheduleMessageService#messageTimeUp."""
    with parking.open() as store:
        user = {"user": "value"}
        if sent_as == "message":
            asked = {**user, "DELAY": "3"}
            store.send(Message("T", b"body", tags="TagA", keys="k1", properties=asked, queue_id=1, flag=5))
        else:
            columns = {
                "body": pa.array([b"body"], pa.binary()), "tags": ["TagA"], "keys": ["k1"], "delayLevel": [3],
                "flag": [5], "queueId": [1],
                "properties": pa.array([list(user.items())], pa.map_(pa.string(), pa.string())),
            }  # fmt: skip
            store.append(pa.RecordBatch.from_pydict(columns), "T")
        (parked,) = parking.rows(store, SCHEDULE_TOPIC, 2)
        stored_ms = parking.now_ms
        assert tags_code(store, SCHEDULE_TOPIC, 2) == stored_ms + 10_000
        assert parking.bodies(store) == []

        parking.now_ms += 10_000
        assert store.schedule.deliver_due() == Delivery(1, None)
        (due,) = parking.rows(store, "T", 1)
        assert tags_code(store, "T", 1) == TAG_A
        for row in (parked, due):
            found = properties(row)
            assert len(found.pop("UNIQ_KEY")) == 32
            assert found == {
                "TAGS": "TagA", "KEYS": "k1", "user": "value", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1",
            }  # fmt: skip
        own = {"topic", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp"}
        assert {name for name in parked if parked[name] != due[name]} <= own
        assert (parked["reconsumeTimes"], parked["flag"]) == (0, 5)
        assert due["storeTimestamp"].timestamp() * 1000 == stored_ms + 10_000
    report = verify_store(parking.root)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems


@pytest.mark.statement("C10")
def test_a_message_for_a_time_hop_by_hop(parking: Any) -> None:
    due_ms = parking.now_ms + 90_000
    with parking.open() as store:
        store.send(Message("T", b"body", tags="TagA", properties={"TIMER_DELIVER_MS": str(due_ms)}, queue_id=1))
        (parked,) = parking.rows(store, PYRMQ_TIMER_TOPIC, 1)
        assert tags_code(store, PYRMQ_TIMER_TOPIC, 1) == due_ms
        parking.now_ms = due_ms
        assert store.schedule.deliver_due() == Delivery(1, None)
        (due,) = parking.rows(store, "T", 1)
        assert tags_code(store, "T", 1) == TAG_A
        assert properties(parked) == properties(due)
        assert properties(due).items() >= {"TIMER_OUT_MS": str(due_ms), "TIMER_DELIVER_MS": str(due_ms)}.items()
    assert verify_store(parking.root).status == "clean"


@pytest.mark.statement("C06")
def test_every_message_that_a_broker_delivered_we_deliver_the_same(
    golden: Path, working_copy: Callable[[Path], Path]
) -> None:
    """The golden store with the broker's progress taken away: whatever waited at any time is delivered once more, and
    each copy is the one that the broker made, but for its place and time. The property string byte for byte.
    """
    root = working_copy(golden / "store")
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (root / "config" / name).unlink()
    config = StoreConfig(
        message_delay_level="1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h", enabled_append_prop_crc=False
    )
    with Store.open(root, config=config, clock=lambda: 1_795_320_000_000) as store:
        topics = ["DelayTopic", *(name for name in store.topics() if name.startswith(RETRY_PREFIX))]
        ranges = {(topic, queue): ends for topic in topics for queue, ends in store.queue_ranges(topic).items()}
        parked = [store.queue_range(SCHEDULE_TOPIC, level - 1) for level in range(1, 19)]
        count = sum(last - first for first, last in parked)
        assert count > 1500
        assert store.schedule.deliver_due() == Delivery(count, None)

        def frames(topic: str, queue: int, first: int, last: int) -> dict[tuple[object, ...], bytes]:
            """By what tells the hops of one message apart: everything that a copy keeps; and the property string."""
            found = {}
            for offset in range(first, last):
                position = store._log.views.queue(topic, queue).entry(offset)[0]
                message = store._log.message_at(position)
                assert message is not None
                delay = message.properties.get("DELAY")
                if delay is None:
                    continue  # a message that never waited
                key = (
                    topic, queue, message.properties["UNIQ_KEY"], message.reconsume_times, message.body,
                    message.flag, message.sys_flag, message.born_timestamp_ms, str(message.born_host),
                    str(message.store_host), message.prepared_transaction_offset,
                )  # fmt: skip
                assert key not in found
                segment = store._log.segments.open(store._log.segments.base_of(position)).map
                size = store._log.views.queue(topic, queue).entry(offset)[1]
                start = position - store._log.segments.base_of(position)
                found[key] = _tail(segment, start, size)
            return found

        theirs: dict[tuple[object, ...], bytes] = {}
        ours: dict[tuple[object, ...], bytes] = {}
        for (topic, queue), (first, last) in ranges.items():
            theirs |= frames(topic, queue, first, last)
            ours |= frames(topic, queue, last, store.queue_range(topic, queue).max_offset)
    pending = [key for key in ours if key not in theirs]
    assert len(ours) == count
    assert [key for key in theirs if key not in ours] == []
    assert len(pending) == 5  # level 18, which the broker had not delivered yet
    assert len(theirs) == count - 5
    assert all(ours[key] == theirs[key] for key in theirs)


def _tail(segment: Any, start: int, size: int) -> bytes:
    """The property string of a frame of version 1 or 2: what stands behind its length, up to the end."""
    body_at = start + 84
    topic_at = body_at + 4 + int.from_bytes(segment[body_at : body_at + 4], "big")
    is_v2 = segment[start + 4 : start + 8] == b"\xda\xa3\x20\xab"
    topic_bytes = int.from_bytes(segment[topic_at : topic_at + 1 + is_v2], "big")
    tail: bytes = segment[topic_at + 1 + is_v2 + topic_bytes + 2 : start + size]
    return tail
