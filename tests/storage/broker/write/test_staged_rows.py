"""Which row of a task is at fault, when one cannot be staged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import ResponseError, SendBackArea, StagingArea, Store, StoreConfig, UnknownTopicError, UsageError

TEXT_MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("T", queue_count=3)
        store.retry.prepare("cg")
    return scratch / "store"


@pytest.mark.parametrize(
    ("column", "good", "bad", "reason"),
    [
        ("topic", "T", "a b/../c", "the topic name 'a b/../c' holds"),
        ("topic", "T", "", "a topic needs a name"),
        ("topic", "T", "x" * 128, "128 characters"),
        ("topic", "T", "SCHEDULE_TOPIC_XXXX", "system topic"),
        ("topic", "T", None, "column 'topic' is null"),
        ("body", b"x", None, "a message needs a body"),
        ("body", b"x", bytes(5 << 20), "5242880 bytes, more than"),
        ("body", b"x", bytes(1 << 20), "does not fit a segment of"),
        ("tags", "A", "a\x01b", "a separator"),
        ("queueId", 2, 3, "has no queue 3"),
        ("delayLevel", 1, -1, "no delay level"),
        ("properties", [], [("k", "v" * 40_000)], "more than 32767"),
        ("deliverTimestamp", None, datetime(2200, 1, 1, tzinfo=UTC), "timerMaxDelaySec"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_message_that_breaks_a_rule_is_named_by_its_row_in_the_task(
    root: Path, column: str, good: object, bad: object, reason: str
) -> None:
    types = {
        "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "queueId": pa.int32(), "delayLevel": pa.int32(),
        "properties": TEXT_MAP, "deliverTimestamp": pa.timestamp("us", "UTC"),
    }  # fmt: skip

    def rows(*values: object) -> pa.RecordBatch:
        given = {"topic": ["T"] * len(values), "body": [b"x"] * len(values)} | {column: list(values)}
        return pa.record_batch({name: pa.array(values, types[name]) for name, values in given.items()})

    with StagingArea.for_task(root, "w", 7, 0, use_queue_id=True) as area:
        area.write(rows(good, good, good))
        with pytest.raises(UsageError, match=rf"^partition 7, row 4.*{reason}"):
            area.write(rows(good, bad))


def test_a_topic_that_is_not_made_is_named_by_its_row_and_is_still_its_own_error(scratch: Path) -> None:
    config = StoreConfig(auto_create_topic_enable=False)
    with Store.open(scratch / "strict", create=True, config=config) as store:
        store.create_topic("T", queue_count=3)
    with (
        StagingArea.for_task(scratch / "strict", "w", 0, 0) as area,
        pytest.raises(UnknownTopicError, match=r"row 1: no topic .Orders."),
    ):
        area.write(pa.record_batch({"topic": ["T", "Orders"], "body": [b"x", b"x"]}))


def test_a_row_to_send_back_that_names_no_message_is_named_by_its_row_in_the_task(root: Path) -> None:
    with Store.open(root) as store:
        store.append(pa.record_batch({"body": [b"a", b"b"]}), "T")
        ends = store.queue_ranges("T").items()
        found = [row for queue, limits in ends for part in store.read("T", queue, *limits) for row in part.to_pylist()]

    def rows(ids: list[str | None], shift: int = 0) -> pa.RecordBatch:
        offsets = [row["commitLogOffset"] + shift for row in found]
        return pa.record_batch({"commitLogOffset": offsets, "msgId": pa.array(ids, pa.string())})

    right = [row["msgId"] for row in found]
    with SendBackArea.for_task(root, "w", 7, 0, group="cg", max_reconsume_times=None) as area:
        area.write(rows(right))
        with pytest.raises(UsageError, match=r"^partition 7, row 3: the message at .* is .*, not 'other'"):
            area.write(rows([right[0], "other"]))
        with pytest.raises(UsageError, match=r"^partition 7, row 3: column 'msgId' is null"):
            area.write(rows([right[0], None]))
        with pytest.raises(ResponseError, match="DESC: partition 7, row 2: look message by offset failed"):
            area.write(rows(right, shift=1))
