"""RocketMQ's own queryMessage on an index that we wrote, and our queries on an index that RocketMQ wrote.

Ours check the keys, as RocketMQ's client does and its store does not: of Java's answers the true matches are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import Store, StoreConfig

from .test_java_agrees import GEOMETRY, LONG_TOPIC, UNICODE, copy, java_conf

if TYPE_CHECKING:
    from .conftest import RocketMQ

START_MS = 1_700_000_000_000
STEP_MS = 700
FOREVER = (1 << 63) - 1
TOPICS = ("Orders", LONG_TOPIC)


def fill(root: Path, config: StoreConfig) -> None:
    """40 appends with 700 ms between them: several index files, long chains, keys of one hash."""
    times = iter(range(START_MS, START_MS + 10_000_000, STEP_MS))
    now_ms = next(times)
    with Store.open(root, create=True, config=config, clock=lambda: now_ms) as store:
        for topic in TOPICS:
            store.create_topic(topic, queue_count=2)
        for first in range(0, 6_000, 150):
            numbers = range(first, first + 150)
            store.append(
                pa.record_batch(
                    {
                        "topic": pa.array([TOPICS[n % 3 == 2] for n in numbers]),
                        "body": pa.array([b"%d" % n for n in numbers], pa.binary()),
                        "tags": pa.array(["TagA"] * len(numbers)),
                        # One key of its own, one of two of the same hash, one or two that come again.
                        "keys": [f"k-{n}  {('AaAa', 'BBBB')[n % 2]} {UNICODE[n % 5]}-{n % 300}" for n in numbers],
                    }
                )
            )
            now_ms = next(times)


def questions() -> list[dict[str, Any]]:
    """Keys of one message, of some, of thousands, of none, in windows around one append, to the ms."""
    keys = [f"k-{n}" for n in (0, 1, 2, 2_999, 5_999)] + ["AaAa", "BBBB", "AaBB", "nobody", "T#TagA"]
    keys += [f"{UNICODE[n % 5].split()[0]}-{n}" for n in range(0, 300, 37)]
    middle = START_MS + 20 * STEP_MS
    windows = [(0, FOREVER), (0, middle), (middle, FOREVER), (middle + 2, middle + 1), (FOREVER, FOREVER)]
    windows += [(middle + shift, middle + shift + width) for shift in (-1, 0, 1, 299, 301) for width in (0, 1000, 4000)]
    return [
        {"topic": topic, "key": key, "maxNum": count, "begin": begin, "end": end}
        for topic in TOPICS
        for key in keys
        for begin, end in windows
        for count in (64, 3)
    ]


@pytest.mark.statement("F01", "F08", "F12")
def test_java_and_we_answer_alike_on_an_index_that_we_wrote(rocketmq: RocketMQ, scratch: Path, tmp_path: Path) -> None:
    config = StoreConfig(**GEOMETRY)
    root = scratch / "store"
    fill(root, config)
    assert len(list((root / "index").iterdir())) > 3
    asked = questions()
    answers = rocketmq.run("dump", copy(root, "java"), java_conf(tmp_path, config), questions=asked)
    keys = {answer["commitLogOffset"]: answer["keys"].split() for answer in answers if answer.get("keys")}
    java = [answer for answer in answers if answer["kind"] == "query"]
    assert len(java) == len(asked)
    equal = full = 0
    with Store.open(root, read_only=True) as store:
        for question, answer in zip(asked, java, strict=True):
            key, limit = question["key"], question["maxNum"]
            window = {"begin_ms": question["begin"], "end_ms": question["end"]}
            messages = store.query.by_key(question["topic"], key, **window, max_num=limit)
            ours = [message.commit_log_offset for message in reversed(messages)]
            theirs = [offset for offset in answer["commitLogOffsets"] if key in keys[offset]]
            if len(theirs) == len(answer["commitLogOffsets"]) or len(answer["commitLogOffsets"]) < limit:
                assert ours == theirs, question
                equal += bool(ours)
            else:
                # Keys of the same hash took places in Java's answer.
                assert ours[len(ours) - len(theirs) :] == theirs, question
                full += len(ours) > len(theirs)
            if (question["begin"], question["end"]) == (0, FOREVER) and len(ours) < limit:
                assert ours == store.query.find(question["topic"], [key])["commit_log_offset"].to_pylist()
    assert equal > 100
    assert full > 50


@pytest.mark.statement("F01", "F02", "F10")
def test_we_find_every_message_in_an_index_that_java_wrote(rocketmq: RocketMQ, scratch: Path, tmp_path: Path) -> None:
    """Appended by RocketMQ to a store of ours, its index going on where ours ended; ids as Java prints them."""
    config = StoreConfig(**GEOMETRY)
    root = scratch / "store"
    fill(root, config)
    conf = java_conf(tmp_path, config)
    rocketmq.run("append", root, conf, 520, *TOPICS)
    answers = rocketmq.run("dump", copy(root, "java"), conf)
    messages = [answer for answer in answers if answer["kind"] == "message" and answer["topic"] in TOPICS]
    assert len(messages) > 6_400
    with Store.open(root, read_only=True) as store:
        for topic in TOPICS:
            own = [message for message in messages if message["topic"] == topic]
            wanted = sorted({key for message in own for key in (message.get("keys") or "").split(" ") if key})
            expected = {
                (key, message["commitLogOffset"])
                for message in own
                for key in (message.get("keys") or "").split(" ")
                if key
            }
            found = store.query.find(topic, wanted).to_pylist()
            assert {(row["key"], row["commit_log_offset"]) for row in found} == expected
            unique = [message for message in own if "UNIQ_KEY" in message["properties"]]
            table = store.query.find(topic, [message["msgId"] for message in unique], unique=True)
            assert set(table["commit_log_offset"].to_pylist()) == {message["commitLogOffset"] for message in unique}
            for message in own[::50]:
                by_id = store.query.by_offset_id(message["offsetMsgId"])
                assert by_id.commit_log_offset == message["commitLogOffset"]
