"""RocketMQ reads what we write, and we read what RocketMQ adds to it.

Our other tests compare our reader with our writer: a rule that we misunderstood in both is invisible to them. Here one
side is RocketMQ's own code: `Main.java` on the released jars.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import Message, StagingArea, Store, StoreConfig
from rmq_store.errors import StoreLockedError

from .conftest import JavaRefusedError, write_conf

if TYPE_CHECKING:
    from .conftest import Answer, RocketMQ

BROKER_CONF = Path(__file__).resolve().parents[2] / "conf" / "broker.conf"
LONG_TOPIC = "%RETRY%" + "g" * 140  # over 127 characters: a V2 frame
GEOMETRY = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 12_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}
UNICODE = ("中文订单", "Grüße", "Привет", "😀🎉", "naïve\tcafé")


def java_conf(directory: Path, config: StoreConfig) -> Path:
    return write_conf(
        directory / "broker.conf",
        brokerName=config.broker_name,
        brokerIP1=config.broker_host.rpartition(":")[0],
        listenPort=config.broker_host.rpartition(":")[2],
        messageDelayLevel=config.message_delay_level,
        mappedFileSizeCommitLog=config.mapped_file_size_commit_log,
        mappedFileSizeConsumeQueue=config.mapped_file_size_consume_queue,
        maxHashSlotNum=config.max_hash_slot_num,
        maxIndexNum=config.max_index_num,
        enabledAppendPropCRC=str(config.enabled_append_prop_crc).lower(),
        # Java then refuses every frame whose own checksum is missing or wrong, instead of passing it over.
        forceVerifyPropCRC=str(config.enabled_append_prop_crc).lower(),
        fileReservedTime=87600,
    )


def orders(count: int, first: int = 0) -> pa.RecordBatch:
    """Messages with and without each optional part, ASCII and not, over three topics."""
    numbers = range(first, first + count)
    texts = [UNICODE[n % len(UNICODE)] for n in numbers]
    bodies = [f"{text} {n}".encode() for n, text in zip(numbers, texts, strict=True)]
    if count > 10:
        bodies[3] = bytes(range(256)) * 800  # 200 KiB
        bodies[4] = b"\x00"
    return pa.record_batch(
        {
            "topic": pa.array([("Orders", "Events", LONG_TOPIC)[n % 3] for n in numbers]),
            "body": pa.array(bodies, pa.binary()),
            "tags": pa.array([None if n % 4 == 3 else ("TagA", "TagB", "标签")[n % 4] for n in numbers]),
            # AaAa and BBBB have the same Java hash; runs of spaces make no empty keys.
            "keys": pa.array([None if n % 5 == 4 else f"k-{n}  {('AaAa', 'BBBB')[n % 2]}" for n in numbers]),
            "properties": pa.array(
                [[("region", text), ("ключ", str(n))] if n % 3 else [] for n, text in zip(numbers, texts, strict=True)],
                pa.map_(pa.string(), pa.string()),
            ),
            "flag": pa.array([(-(2**31), 0, 7)[n % 3] for n in numbers], pa.int32()),
        }
    )


@pytest.fixture(params=[True, False], ids=["crc", "no-crc"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return StoreConfig(**GEOMETRY, enabled_append_prop_crc=request.param)


@pytest.fixture
def root(scratch: Path) -> Path:
    return scratch / "store"


# In batches, sent one by one, and as a sink's unit.
FILLED = 6_000 + 2 + 300
# Holds the records of units: messages to Java, no topic of the user's to us.
UNIT_TOPIC = "rmq_sys_pyrmq_units"


def fill(root: Path, config: StoreConfig) -> None:
    """FILLED messages, in several commit log, consume queue and index files, through every way in."""
    with Store.open(root, create=True, config=config) as store:
        for topic in ("Orders", "Events", LONG_TOPIC):
            store.create_topic(topic, queue_count=2)
        for first in range(0, 6_000, 1_000):
            store.append(orders(1_000, first))
        store.send(Message(topic="Orders", body=b"one", tags="TagA", keys="single", properties={"a": "b"}, queue_id=1))
        store.send(Message(topic="Events", body="中".encode() * 70_000, keys=["many", "keys"]))
        with StagingArea.for_task(root, "write", 0, 0, compress_over_bytes=40) as staging:
            staging.write(orders(300, 6_000))
            staged = staging.finish()
        assert staged is not None
        assert store.commit_staged([staged], key="query", value=0).committed


def rows(root: Path) -> Iterator[Answer]:
    """What our reader gives for every message, in the words of the Java program."""
    with Store.open(root, read_only=True) as store:
        for topic in store.topics():
            for queue_id, span in store.queue_ranges(topic).items():
                wanted = (topic, queue_id, span.min_offset, span.max_offset)
                seen = [row for batch in store.read(*wanted) for row in batch.to_pylist()]
                raw = [row for batch in store.read(*wanted, raw_body=True) for row in batch.to_pylist()]
                for row, stored in zip(seen, raw, strict=True):
                    yield {
                        **{name: row[name] for name in ("topic", "queueId", "queueOffset", "commitLogOffset", "msgId")},
                        **{name: row[name] for name in ("tags", "keys", "reconsumeTimes", "flag", "sysFlag")},
                        "properties": dict(row["properties"]),
                        "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
                        "storedSysFlag": stored["sysFlag"],
                        "storedBodySha256": hashlib.sha256(stored["body"]).hexdigest(),
                        "bornTimestamp": milliseconds(row["bornTimestamp"]),
                        "storeTimestamp": milliseconds(row["storeTimestamp"]),
                        "bornHost": host(row["bornHost"]),
                        "storeHost": host(row["storeHost"]),
                    }


def milliseconds(moment: Any) -> int:
    return round(moment.timestamp() * 1000)


def host(text: str) -> tuple[Any, int]:
    """Java writes IPv6 addresses in another of their spellings."""
    address, port = text.rsplit(":", 1)
    return ipaddress.ip_address(address.strip("[]")), int(port)


def place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def assert_java_sees_what_we_see(answers: list[Answer], root: Path) -> list[Answer]:
    """Every message, every field, every queue; returns our rows."""
    ours = {place(row): row for row in rows(root)}
    java = {place(answer): answer for answer in answers if answer["kind"] == "message"}
    units = [java.pop(key) for key in list(java) if key[0] == UNIT_TOPIC]
    assert units
    assert all(unit["frameOk"] for unit in units)
    assert java.keys() == ours.keys()
    for key, row in ours.items():
        answer = java[key]
        assert answer["frameOk"]
        assert answer["entryQueueOffset"] == row["queueOffset"]
        expected = {name: answer.get(name) for name in row}
        expected["properties"] = {name: value for name, value in answer["properties"].items() if name != "__CRC32#"}
        expected["bornHost"], expected["storeHost"] = host(answer["bornHost"]), host(answer["storeHost"])
        assert row == expected

    with Store.open(root, read_only=True) as store:
        ranges = {
            (topic, queue_id): (span.min_offset, span.max_offset)
            for topic in store.topics()
            for queue_id, span in store.queue_ranges(topic).items()
            if span.max_offset > 0
        }
        (log,) = (answer for answer in answers if answer["kind"] == "log")
        assert (log["minPhyOffset"], log["maxPhyOffset"]) == store.log_range()
    queues = {(a["topic"], a["queueId"]): (a["minOffset"], a["maxOffset"]) for a in answers if a["kind"] == "queue"}
    first, last = queues.pop((UNIT_TOPIC, 0))
    assert last - first == len(units)
    assert {queue: span for queue, span in queues.items() if span[1] > 0} == ranges
    return list(ours.values())


def copy(root: Path, name: str) -> Path:
    target = root.with_name(name)
    shutil.copytree(root, target)
    return target


def test_java_reads_every_message_that_we_wrote(
    rocketmq: RocketMQ, root: Path, config: StoreConfig, tmp_path: Path
) -> None:
    fill(root, config)
    for kind in ("commitlog", "index", "consumequeue/Orders/0"):
        assert len(list((root / kind).iterdir())) > 1, f"{kind} has not rolled, so this test would prove less"
    answers = rocketmq.run("dump", copy(root, "java"), java_conf(tmp_path, config))
    assert len(assert_java_sees_what_we_see(answers, root)) == FILLED
    with_crc = ["__CRC32#" in answer["properties"] for answer in answers if answer["kind"] == "message"]
    assert set(with_crc) == {config.enabled_append_prop_crc}
    bodies = {a["bodySha256"] == a["storedBodySha256"] for a in answers if a["kind"] == "message"}
    assert bodies == {True, False}, "some of the unit's bodies are stored compressed"


@pytest.mark.statement("F10")
def test_java_finds_our_messages_by_key_and_by_time(rocketmq: RocketMQ, root: Path, tmp_path: Path) -> None:
    config = StoreConfig(**GEOMETRY)
    fill(root, config)
    ours = list(rows(root))
    some = ours[:: len(ours) // 40]
    by_key = [
        {"topic": row["topic"], "key": key} for row in some for key in [*(row["keys"] or "").split(), row["msgId"]]
    ]
    by_key = [question for question in by_key if question["key"] not in ("AaAa", "BBBB")]  # too many for one answer
    by_time = [
        {
            "topic": row["topic"],
            "queueId": row["queueId"],
            "timestamp": row["storeTimestamp"] + shift,
            "boundary": boundary,
        }
        for row in some
        for shift in (-1, 0, 1)
        for boundary in ("LOWER", "UPPER")
    ]
    answers = rocketmq.run("dump", copy(root, "java"), java_conf(tmp_path, config), questions=[*by_key, *by_time])

    found = [answer for answer in answers if answer["kind"] == "query"]
    assert len(found) == len(by_key) > 50
    for answer in found:
        assert answer["commitLogOffsets"] == sorted(
            row["commitLogOffset"]
            for row in ours
            if row["topic"] == answer["topic"] and answer["key"] in [*(row["keys"] or "").split(), row["msgId"]]
        )
    with Store.open(root, read_only=True) as store:
        for answer in (answer for answer in answers if answer["kind"] == "time"):
            boundary = answer["boundary"].lower()
            offset = store.offset_by_time(answer["topic"], answer["queueId"], answer["timestamp"], boundary)
            assert offset == answer["offset"], answer


def queue_files(store: Path) -> dict[Path, bytes]:
    base = store / "consumequeue"
    return {path.relative_to(base): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def index_files(store: Path) -> list[bytes]:
    """They are named by the time of their creation; their order and content are what counts."""
    return [path.read_bytes() for path in sorted((store / "index").iterdir())]


@pytest.mark.statement("F04", "F05", "G02", "G04")
def test_java_dispatches_our_log_to_the_very_bytes_of_our_views(
    rocketmq: RocketMQ, root: Path, config: StoreConfig, tmp_path: Path
) -> None:
    """Consume queues and index are views of the log: deleted, Java makes them again, and nothing may differ.

    Not only the answers: an index chain in another order gives other answers once there are too many. The index is that
    of 5.4.0 and later, which holds the tag of a message behind its keys.
    """
    fill(root, config)
    java = copy(root, "java")
    shutil.rmtree(java / "consumequeue")
    shutil.rmtree(java / "index")
    rocketmq.run("dispatch", java, java_conf(tmp_path, config))
    assert queue_files(java) == queue_files(root)
    assert len(index_files(root)) > 1
    assert index_files(java) == index_files(root)


def test_we_read_what_java_appends_and_go_on_from_there(
    rocketmq: RocketMQ, root: Path, config: StoreConfig, tmp_path: Path
) -> None:
    fill(root, config)
    conf = java_conf(tmp_path, config)
    before = {place(row) for row in rows(root)}
    puts = rocketmq.run("append", root, conf, 78, "Orders", "Events", LONG_TOPIC)
    assert {put["status"] for put in puts} == {"PUT_OK"}

    ours = assert_java_sees_what_we_see(rocketmq.run("dump", copy(root, "java"), conf), root)
    added = [row for row in ours if place(row) not in before]
    # 13 kinds for 3 topics and 2 queues, of which the prepared message is in no queue; and two batches of five.
    assert len(added) == 6 * 12 + 10
    assert {row["bodySha256"] == row["storedBodySha256"] for row in added} == {True, False}, "some were compressed"

    with Store.open(root) as store:
        store.append(orders(500, 10_000))
        sent = store.send(Message(topic="Orders", body=b"after Java", keys="after-java", queue_id=0))
    ours = assert_java_sees_what_we_see(rocketmq.run("dump", copy(root, "java-again"), conf), root)
    assert len(ours) == FILLED + 82 + 501
    assert place({"topic": "Orders", "queueId": 0, "queueOffset": sent.queue_offset}) in {place(row) for row in ours}


def test_java_opens_a_store_of_which_we_deleted_the_beginning(
    rocketmq: RocketMQ, root: Path, config: StoreConfig, tmp_path: Path
) -> None:
    """deleteExpiredFileByTime: segments, then queue files and index files; Java finds the same minima."""
    fill(root, config)
    before = len(list(rows(root)))
    with Store.open(root) as store:
        expired = sorted((root / "commitlog").iterdir())[:-2]
        for path in expired:
            os.utime(path, (0, 0))
        removed, views = 0, 0
        while report := store.retention.run(manual=True):
            removed, views = removed + len(report.removed), views + report.queue_files * report.index_files
            if not report.removed:
                break
        assert removed == len(expired)
        assert views > 0
        assert store.last_unit("sink", "query") == 0
    ours = assert_java_sees_what_we_see(rocketmq.run("dump", copy(root, "java"), java_conf(tmp_path, config)), root)
    assert 0 < len(ours) < before
    assert min(row["commitLogOffset"] for row in ours) > 0
    with Store.open(root) as store:
        assert not store.commit_staged([], key="query", value=0, repeatable=False).committed


def test_java_recovers_a_store_that_we_had_no_time_to_close(
    rocketmq: RocketMQ, root: Path, config: StoreConfig, tmp_path: Path
) -> None:
    """A copy taken while the store is open is what a killed process leaves: `abort`, an old checkpoint, zero tails."""
    fill(root, config)
    conf = java_conf(tmp_path, config)
    with Store.open(root) as store:
        store.append(orders(700, 20_000))
        killed = copy(root, "killed")
    assert (killed / "abort").exists()
    answers = rocketmq.run("dump", killed, conf)
    assert len(assert_java_sees_what_we_see(answers, root)) == FILLED + 700


def test_java_and_we_keep_each_other_out(rocketmq: RocketMQ, root: Path, tmp_path: Path) -> None:
    config = StoreConfig(**GEOMETRY)
    fill(root, config)
    conf = java_conf(tmp_path, config)
    java = rocketmq.hold(root, conf)
    try:
        with pytest.raises(StoreLockedError) as refused:
            Store.open(root)
        assert refused.value.pid == java.pid
    finally:
        java.communicate()
    with Store.open(root), pytest.raises(JavaRefusedError, match="Lock failed"):
        rocketmq.run("dispatch", root, conf)
    with Store.open(root) as store:
        assert store.queue_range("Orders", 1).max_offset > 0


def test_a_whole_broker_opens_a_default_store_with_the_sample_settings(rocketmq: RocketMQ, root: Path) -> None:
    """conf/broker.conf as it is shipped; only the directory is another."""
    with Store.open(root, create=True) as store:
        store.create_topic("Orders", queue_count=3)
        store.append(orders(600))
        store.commit_offsets("cg_compat", {("Orders", 0): 17, ("Orders", 2): 3})
        topics, groups = store.topics(), store.groups()
        ranges = {topic: store.queue_ranges(topic) for topic in topics}
        log = store.log_range()
    answers = rocketmq.run("broker", copy(root, "java"), BROKER_CONF)

    assert (answers[0]["minPhyOffset"], answers[0]["maxPhyOffset"]) == log
    assert answers[0]["brokerName"] == "rmq-embedded"
    seen = {answer["topic"]: answer for answer in answers if answer["kind"] == "topic"}
    assert {"Orders", "Events", LONG_TOPIC} <= topics.keys()
    for name, topic in topics.items():
        assert seen[name]["readQueueNums"] == topic.read_queue_nums
        assert seen[name]["writeQueueNums"] == topic.write_queue_nums
        assert seen[name]["perm"] == topic.perm
        assert seen[name]["maxOffsets"] == {str(queue): span.max_offset for queue, span in ranges[name].items()}
    assert groups.keys() <= {answer["group"] for answer in answers if answer["kind"] == "group"}
    offsets = {answer["topicAtGroup"]: answer["offsets"] for answer in answers if answer["kind"] == "offsets"}
    assert offsets["Orders@cg_compat"] == {"0": 17, "2": 3}


def test_the_sample_settings_are_our_defaults() -> None:
    assert StoreConfig.from_broker_conf(BROKER_CONF) == StoreConfig(file_reserved_time=87_600)
