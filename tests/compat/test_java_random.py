"""Test 21: random messages, written by us and read by RocketMQ, written by RocketMQ and read by us, every field equal.

1,000 each way; RMQ_COMPAT_MESSAGES=100000 is the full figure, in stores of 10,000 each way.
"""

from __future__ import annotations

import hashlib
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import INPUT_SCHEMA, Message, StagingArea, Store, StoreConfig

from .test_java_agrees import GEOMETRY, LONG_TOPIC, assert_java_sees_what_we_see, copy, java_conf, place

if TYPE_CHECKING:
    from .conftest import Answer, RocketMQ

MESSAGES = int(os.environ.get("RMQ_COMPAT_MESSAGES", "1000"))
ROUND = 10_000
TOPICS = ("Orders", "Events", LONG_TOPIC)
ALPHABETS = ((0x20, 0x7E), (0xA1, 0x17F), (0x410, 0x44F), (0x4E00, 0x9FA5), (0x1F300, 0x1F5FF))
NOW = datetime(2026, 11, 21, tzinfo=UTC)
PREPARED, ROLLBACK = 4, 12

Row = dict[str, Any]


def text(chance: random.Random, length: int) -> str:
    low, high = chance.choice(ALPHABETS)
    return "".join(chr(chance.randint(low, high)) for _ in range(length))


def body(chance: random.Random) -> bytes:
    """Of any length up to the limit, short ones as often as long ones; noise, or bytes that compress."""
    size = int((200_000 if chance.random() < 0.003 else 8_000) ** chance.random()) - 1
    return chance.randbytes(size) if chance.random() < 0.5 else (b"RocketMQ \x01\x02\x00" * (size // 12 + 1))[:size]


def message(chance: random.Random, number: int) -> Row:
    """A row of INPUT_SCHEMA with each optional part there or not."""
    properties = {"p" + text(chance, chance.randrange(10)): "v" + text(chance, chance.randrange(60)) for _ in range(5)}
    properties = dict(list(properties.items())[: chance.randrange(6)])
    keys = " ".join(text(chance, chance.randint(1, 20)).replace(" ", "_") for _ in range(chance.randint(1, 4)))
    return {
        "topic": chance.choice(TOPICS),
        "body": body(chance),
        "tags": text(chance, chance.randint(1, 12)).replace("||", "__") if chance.random() < 0.75 else None,
        "keys": keys if chance.random() < 0.75 else None,
        "properties": list({**properties, "number": str(number)}.items()),
        "flag": chance.randint(-(2**31), 2**31 - 1),
        "bornTimestamp": NOW - timedelta(milliseconds=chance.randrange(1 << 30)),
        "queueId": chance.randrange(2),
        "delayLevel": chance.randint(1, 18) if chance.random() < 0.08 else None,
    }


def write(root: Path, config: StoreConfig, count: int, chance: random.Random) -> list[Row]:
    """Store random messages through every way in; returns the rows, by number."""
    sent = [message(chance, number) for number in range(count)]
    with Store.open(root, create=True, config=config) as store:
        for topic in TOPICS:
            store.create_topic(topic, queue_count=2)
        done = commits = 0
        while done < count:
            rows = sent[done : done + chance.choice((1, 2, 17, 200, 900))]
            done += len(rows)
            batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([INPUT_SCHEMA.field(name) for name in rows[0]]))
            way = chance.choice(("append", "staged", "send"))
            if way == "append":
                store.append(batch)
            elif way == "staged":
                with StagingArea.for_task(
                    root, "random", commits, 0, use_queue_id=True, compress_over_bytes=chance.choice((40, 4_000))
                ) as area:
                    area.write(batch)
                    staged = area.finish()
                assert staged is not None
                assert store.commit_staged([staged], key="random", value=commits).committed
                commits += 1
            else:
                store.send_all([one_message(row) for row in rows])
        with StagingArea.for_task(root, "last", 0, 0) as area:
            area.write(pa.RecordBatch.from_pydict({"topic": ["Orders"], "body": [b"last"]}))
            staged = area.finish()
        assert staged is not None
        store.commit_staged([staged], key="last", value=0)
    return sent


def one_message(row: Row) -> Message:
    return Message(
        row["topic"], row["body"], tags=row["tags"], keys=row["keys"].split() if row["keys"] else None,
        properties=dict(row["properties"]), flag=row["flag"], queue_id=row["queueId"],
        delay_level=row["delayLevel"] or 0, born_timestamp_ms=round(row["bornTimestamp"].timestamp() * 1000),
    )  # fmt: skip


def assert_is(sent: Row, seen: Answer) -> None:
    """What Java reads is what we were given."""
    properties = seen["properties"]
    parked = sent["delayLevel"] is not None
    topic, queue_id = (properties["REAL_TOPIC"], int(properties["REAL_QID"])) if parked else place(seen)[:2]
    assert (topic, queue_id) == (sent["topic"], sent["queueId"])
    assert (seen["topic"] == "SCHEDULE_TOPIC_XXXX") == parked
    assert seen["bodySha256"] == hashlib.sha256(sent["body"]).hexdigest()
    assert (seen.get("tags"), seen.get("keys")) == (sent["tags"], sent["keys"])
    assert (seen["flag"], seen["reconsumeTimes"]) == (sent["flag"], 0)
    assert seen["bornTimestamp"] == round(sent["bornTimestamp"].timestamp() * 1000)
    assert properties.items() >= dict(sent["properties"]).items()
    ours = {"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"}
    assert properties.keys() - ours == dict(sent["properties"]).keys()


def assert_was_put(put: Answer, row: Row) -> None:
    """What we read is what Java was given."""
    same = ("flag", "reconsumeTimes", "bornTimestamp", "properties", "bodySha256")
    assert {name: row[name] for name in same} == {name: put[name] for name in same}
    assert (row["tags"], row["keys"]) == (put.get("tags"), put.get("keys"))
    assert put["isBatch"] or row["commitLogOffset"] == put["commitLogOffset"]


@pytest.mark.timeout(120 + MESSAGES // 25)
@pytest.mark.parametrize("first", range(0, MESSAGES, ROUND))
def test_random_messages_of_either_side_are_equal_on_the_other(
    rocketmq: RocketMQ, scratch: Path, tmp_path: Path, first: int
) -> None:
    seed, count = 20261121 + first, min(ROUND, MESSAGES - first)
    root, config = scratch / "store", StoreConfig(**GEOMETRY, enabled_append_prop_crc=first // ROUND % 2 == 0)
    conf = java_conf(tmp_path, config)
    sent = write(root, config, count, random.Random(seed))
    puts = rocketmq.run("random", root, conf, count, seed, *TOPICS)
    assert len(puts) == count
    assert {put["status"] for put in puts} == {"PUT_OK"}

    answers = rocketmq.run("dump", copy(root, "java"), conf)
    ours = assert_java_sees_what_we_see(answers, root)  # of both sides' messages, every field
    queued = [put for put in puts if put["transaction"] not in (PREPARED, ROLLBACK)]
    assert len(ours) == count + 1 + len(queued)
    seen = {a["properties"]["number"]: a for a in answers if a["kind"] == "message" and "number" in a["properties"]}
    assert len(seen) == count
    for number, row in enumerate(sent):
        assert_is(row, seen[str(number)])
    by_place = {place(row): row for row in ours}
    for put in queued:
        assert_was_put(put, by_place[place(put)])
    with Store.open(root, read_only=True) as store:  # half messages are in no queue
        for put in puts:
            if put not in queued:
                half = store._log.message_at(put["commitLogOffset"])
                assert half is not None
                assert (half.topic, half.flag, half.reconsume_times) == tuple(
                    put[name] for name in ("topic", "flag", "reconsumeTimes")
                )
    assert {row["bodySha256"] == row["storedBodySha256"] for row in ours} == {True, False}, "some are compressed"
