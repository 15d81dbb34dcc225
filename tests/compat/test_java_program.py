"""The Java program tells the truth: on a store that a real broker wrote, it says what that broker's clients saw.

Everything else in this directory compares us with this program, so it is compared with an independent witness first.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import RocketMQ

GOLDEN_CONF = """\
brokerName=golden-a
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=12000
maxHashSlotNum=1000
maxIndexNum=4000
messageDelayLevel=1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h
fileReservedTime=87600
mappedFileSizeTimerLog=1048576
"""
SAME_FIELDS = (
    "queueOffset commitLogOffset storeSize offsetMsgId bodyLength bodySha256 bodyCRC tags keys properties flag sysFlag"
    " storedSysFlag bornTimestamp bornHost storeTimestamp storeHost reconsumeTimes preparedTransactionOffset"
).split()


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(GOLDEN_CONF)
    return path


@pytest.fixture
def store(golden: Path, scratch: Path) -> Path:
    target = scratch / "store"
    shutil.copytree(golden / "store", target)
    return target


@pytest.fixture(scope="module")
def manifest(golden: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((golden / "manifest.json").read_text(encoding="utf-8"))
    return loaded


def test_dump_says_what_the_clients_of_the_broker_saw(
    rocketmq: RocketMQ, store: Path, conf: Path, manifest: dict[str, Any]
) -> None:
    questions = [{f: query[f] for f in ("topic", "key", "maxNum", "begin", "end")} for query in manifest["keyQueries"]]
    times = [
        {"topic": queue["topic"], "queueId": queue["queueId"], "timestamp": probe["timestamp"], "boundary": boundary}
        for queue in manifest["offsetByTime"]
        for probe in queue["probes"]
        for boundary in ("LOWER", "UPPER")
    ]
    answers = rocketmq.run("dump", store, conf, questions=[*questions, *times])

    messages = {(a["topic"], a["queueId"], a["queueOffset"]): a for a in answers if a["kind"] == "message"}
    assert len(messages) == manifest["messageCount"]
    assert all(message["frameOk"] for message in messages.values())
    ranges = {(a["topic"], a["queueId"]): (a["minOffset"], a["maxOffset"]) for a in answers if a["kind"] == "queue"}
    for topic, description in manifest["topics"].items():
        for queue_id, queue in description["queues"].items():
            assert ranges.get((topic, int(queue_id)), (0, 0)) == (queue["minOffset"], queue["maxOffset"])
            for expected in queue["messages"]:
                seen = messages[topic, int(queue_id), expected["queueOffset"]]
                assert {f: seen.get(f) for f in SAME_FIELDS} == {f: expected.get(f) for f in SAME_FIELDS}

    by_key = [a["commitLogOffsets"] for a in answers if a["kind"] == "query"]
    assert by_key == [query["brokerAnswer"].get("commitLogOffsets", []) for query in manifest["keyQueries"]]
    by_time = [a["offset"] for a in answers if a["kind"] == "time"]
    probes = [probe for queue in manifest["offsetByTime"] for probe in queue["probes"]]
    assert by_time == [offset for probe in probes for offset in (probe["lower"], probe["upper"])]


def test_dispatch_makes_the_views_again(rocketmq: RocketMQ, golden: Path, store: Path, conf: Path) -> None:
    """Byte for byte, so that the same comparison means something for a log that we wrote."""
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    rocketmq.run("dispatch", store, conf)
    queues = [path.relative_to(golden / "store") for path in (golden / "store" / "consumequeue").rglob("0*")]
    files = [path for path in queues if (golden / "store" / path).is_file()]
    assert files
    assert filecmp.cmpfiles(golden / "store", store, files, shallow=False)[1:] == ([], [])
    before = [path.read_bytes() for path in sorted((golden / "store" / "index").iterdir())]
    assert [path.read_bytes() for path in sorted((store / "index").iterdir())] == before


def test_append_puts_every_kind_of_message(rocketmq: RocketMQ, store: Path, conf: Path) -> None:
    long_topic = "%RETRY%" + "g" * 140
    puts = rocketmq.run("append", store, conf, 52, "OrderTopic", long_topic)
    assert {put["status"] for put in puts} == {"PUT_OK"}
    dump = rocketmq.run("dump", store, conf)
    messages = {a["commitLogOffset"]: a for a in dump if a["kind"] == "message"}
    added = [messages[put["commitLogOffset"]] for put in puts if put["commitLogOffset"] in messages]
    # 13 kinds over two topics and two queues; the prepared one (kind 9) is in no queue. Then a batch for each queue.
    assert len(added) == 4 * 12 + 2
    assert all(message["frameOk"] for message in added)
    assert any(message["bodyLength"] == 200 * 1024 for message in added)
    assert {message["storedSysFlag"] & 0x700 for message in added} == {0, 0x100, 0x200, 0x300}
    assert any(":" in message["bornHost"][1:-6] for message in added), "an IPv6 host"
    assert {message["topic"] for message in added} == {"OrderTopic", long_topic}


def test_a_whole_broker_sees_the_tables_of_the_manifest(
    rocketmq: RocketMQ, store: Path, conf: Path, manifest: dict[str, Any]
) -> None:
    answers = rocketmq.run("broker", store, conf)
    topics = {a["topic"]: a for a in answers if a["kind"] == "topic"}
    for topic, description in manifest["topics"].items():
        for field in ("readQueueNums", "writeQueueNums", "perm"):
            assert topics[topic][field] == description[field]
        for queue_id, queue in description["queues"].items():
            assert topics[topic]["maxOffsets"][queue_id] == queue["maxOffset"]
    groups = {a["group"] for a in answers if a["kind"] == "group"}
    assert manifest["groups"].keys() <= groups
    offsets = {a["topicAtGroup"]: a["offsets"] for a in answers if a["kind"] == "offsets"}
    assert offsets["OrderTopic@cg_partial"] == {"0": 225, "1": 175, "2": 100}
