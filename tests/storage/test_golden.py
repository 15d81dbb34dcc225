"""What a real RocketMQ 5.5.0 broker wrote, read by `Store`.

The manifest was read from the running broker by the Java client: every field of every message, positions of groups,
answers to searches by time. The crash stores carry what the broker's own recovery made of them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MESSAGE_SCHEMA, Message, Store, StoreConfig, UnknownTopicError
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.verify import verify_store

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def manifest(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "manifest.json").read_text())


@pytest.fixture
def store(golden: Path) -> Iterator[Store]:
    with Store.open(golden / "store", read_only=True) as opened:
        yield opened


def queues_of(manifest: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for topic, description in manifest["topics"].items():
        for queue_id, queue in description["queues"].items():
            yield topic, int(queue_id), queue


def time_of(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def row_of(message: dict[str, Any], broker_name: str) -> dict[str, Any]:
    """A message of the manifest as a row of MESSAGE_SCHEMA, with the body's SHA-256 in place of the body."""
    return {
        "topic": message["topic"],
        "queueId": message["queueId"],
        "queueOffset": message["queueOffset"],
        "msgId": message["uniqKey"] or message["offsetMsgId"],
        "body": message["bodySha256"],
        "tags": message["tags"],
        "keys": message["keys"],
        "properties": message["properties"],
        "reconsumeTimes": message["reconsumeTimes"],
        "flag": message["flag"],
        "sysFlag": message["sysFlag"],
        "bornTimestamp": time_of(message["bornTimestamp"]),
        "bornHost": message["bornHost"],
        "storeTimestamp": time_of(message["storeTimestamp"]),
        "storeHost": message["storeHost"],
        "commitLogOffset": message["commitLogOffset"],
        "brokerName": broker_name,
    }


def rows_of(store: Store, topic: str, queue_id: int, **options: Any) -> list[dict[str, Any]]:
    first, last = store.queue_range(topic, queue_id)
    return [row for batch in store.read(topic, queue_id, first, last, **options) for row in batch.to_pylist()]


def test_the_answers_are_about_the_store_that_is_shipped(golden: Path) -> None:
    """The store is packed in examples/data, the answers in tests/data. The checksums were taken beside the broker."""
    _, *rows = (golden / "files.tsv").read_text(encoding="utf-8").splitlines()
    taken = {path: (int(size), digest) for path, size, digest, _ in (row.split("\t") for row in rows)}
    found = {}
    for path in (golden / "store").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found[str(path.relative_to(golden / "store"))] = (len(content), hashlib.sha256(content).hexdigest())
    assert found == taken != {}


def test_every_field_of_every_message_is_what_the_java_client_saw(store: Store, manifest: dict[str, Any]) -> None:
    compared = 0
    for topic, queue_id, queue in queues_of(manifest):
        rows = rows_of(store, topic, queue_id)
        assert len(rows) == queue["count"]
        for row, message in zip(rows, queue["messages"], strict=True):
            assert list(row) == MESSAGE_SCHEMA.names
            assert len(row["body"]) == message["bodyLength"]
            row["body"] = hashlib.sha256(row["body"]).hexdigest()
            row["properties"] = dict(row["properties"])
            assert row == row_of(message, manifest["brokerName"])
            compared += 1
    assert compared == manifest["messageCount"] - _without_a_queue(store, manifest)


def _without_a_queue(store: Store, manifest: dict[str, Any]) -> int:
    """Records of the log that no consume queue names: they are in messageCount, but no reader sees them."""
    report = verify_store(store.path)
    assert report.messages == manifest["messageCount"]
    return report.messages - report.queue_entries


def test_raw_bodies_are_the_stored_bytes_and_keep_the_compression_flag(store: Store, manifest: dict[str, Any]) -> None:
    for topic, queue_id, queue in queues_of(manifest):
        rows = rows_of(store, topic, queue_id, columns=["body", "sysFlag"], raw_body=True)
        found = [(len(row["body"]), row["sysFlag"]) for row in rows]
        assert found == [(m["storedBodyLength"], m["storedSysFlag"]) for m in queue["messages"]]


def test_minimum_and_maximum_offsets_are_the_brokers(store: Store, manifest: dict[str, Any]) -> None:
    for topic, queue_id, queue in queues_of(manifest):
        assert store.queue_range(topic, queue_id) == (queue["minOffset"], queue["maxOffset"])


def test_topics_have_the_queues_and_permissions_of_the_broker(store: Store, manifest: dict[str, Any]) -> None:
    assert store.broker_name == manifest["brokerName"]
    for name, description in manifest["topics"].items():
        topic = store.topic(name)
        found = (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        assert found == (description["readQueueNums"], description["writeQueueNums"], description["perm"])
    with pytest.raises(UnknownTopicError, match="NoSuchTopic"):
        store.queue_ranges("NoSuchTopic")


@pytest.mark.statement("G06")
def test_committed_offsets_and_lags_of_all_groups_are_the_brokers(store: Store, manifest: dict[str, Any]) -> None:
    compared = 0
    for group, description in manifest["groups"].items():
        committed = store.committed_offsets(group)
        lags = 0
        for queue in description["queues"]:
            offset = committed.get((queue["topic"], queue["queueId"]), 0)
            end = store.queue_range(queue["topic"], queue["queueId"]).max_offset
            assert (offset, end, end - offset) == (queue["committedOffset"], queue["brokerOffset"], queue["lag"])
            lags += end - offset
            compared += 1
        if description["totalLag"] is not None:
            assert lags == description["totalLag"]
            assert store.groups()[group].retry_max_times == description["retryMaxTimes"]
    assert compared > 20


def test_searches_by_time_give_the_brokers_answers(store: Store, manifest: dict[str, Any]) -> None:
    compared = 0
    for queue in manifest["offsetByTime"]:
        for probe in queue["probes"]:
            where = (queue["topic"], queue["queueId"], probe["timestamp"])
            for boundary in ("lower", "upper"):
                assert (where, store.offset_by_time(*where, boundary)) == (where, probe[boundary])
                compared += 1
    assert compared > 500


@pytest.mark.statement("G02", "G04")
def test_offsets_in_the_log_and_sizes_are_the_brokers(store: Store, manifest: dict[str, Any]) -> None:
    for topic, queue_id, queue in queues_of(manifest):
        sizes = [message["storeSize"] for message in queue["messages"]]
        assert store.bytes_between(topic, queue_id, 0, len(sizes)) == sum(sizes)
        assert store.commit_log_offset_before(topic, queue_id, 0) == -1
        for number, message in enumerate(queue["messages"][:50]):
            assert store.commit_log_offset_before(topic, queue_id, number + 1) == message["commitLogOffset"]
            assert store.store_timestamp(topic, queue_id, number) == message["storeTimestamp"]
            # As many bytes as this many messages have, and one less.
            assert store.offset_after_bytes(topic, queue_id, 0, len(sizes), sum(sizes[: number + 1])) == number + 1
            assert store.offset_after_bytes(topic, queue_id, 0, len(sizes), sum(sizes[: number + 1]) - 1) == max(
                number, 1
            )


@pytest.mark.parametrize("expression", ["TagA || TagC", "AaAa", "BBBB", "中文标签||TagB", "NoSuchTag"])
def test_tags_choose_by_text_even_where_hashes_agree(store: Store, manifest: dict[str, Any], expression: str) -> None:
    wanted = {tag.strip() for tag in expression.split("||")}
    for queue_id in range(4):
        messages = manifest["topics"]["OrderTopic"]["queues"][str(queue_id)]["messages"]
        rows = rows_of(store, "OrderTopic", queue_id, columns=["queueOffset"], tags=expression)
        assert [row["queueOffset"] for row in rows] == [m["queueOffset"] for m in messages if m["tags"] in wanted]


def test_reading_a_brokers_store_changes_nothing_on_disk(
    golden: Path, tree_hash: Callable[[Path], str], manifest: dict[str, Any]
) -> None:
    before = tree_hash(golden / "store")
    with Store.open(golden / "store", read_only=True) as store:
        for topic, queue_id, _ in queues_of(manifest):
            rows_of(store, topic, queue_id)
        store.refresh()
        store.groups(), store.topics(), store.all_committed_offsets(), store.log_range()
        assert store.identity == ""
    assert tree_hash(golden / "store") == before


def test_a_clean_store_of_a_broker_opens_for_writing_with_all_its_messages(
    golden: Path, manifest: dict[str, Any], working_copy: Callable[[Path], Path]
) -> None:
    root = working_copy(golden / "store")
    with Store.open(root) as store:
        assert store.recovery is not None
        assert (store.recovery.trust, store.recovery.removed_bytes) == ("BROKER_CLEAN", 0)
        for topic, queue_id, queue in queues_of(manifest):
            assert store.queue_range(topic, queue_id) == (queue["minOffset"], queue["maxOffset"])
        sent = store.send(Message("OrderTopic", b"after the broker", keys="K-after", queue_id=2))
        assert sent.queue_offset == manifest["topics"]["OrderTopic"]["queues"]["2"]["maxOffset"]
    report = verify_store(root)
    assert (report.status, report.messages) == ("clean", manifest["messageCount"] + 1), report.problems


@pytest.mark.parametrize("name", ["store", "store-torn"])
def test_a_crashed_store_recovers_to_what_the_brokers_own_recovery_made_of_it(
    golden_crash: Path, working_copy: Callable[[Path], Path], name: str
) -> None:
    expected = json.loads((golden_crash / f"{name}-recovered.json").read_text())
    root = working_copy(golden_crash / name)
    with Store.open(root) as store:
        assert store.log_range() == (expected["minCommitLogOffset"], expected["maxCommitLogOffset"])
        found = {topic: _ranges(store, topic, queues) for topic, queues in expected["queues"].items()}
        assert found == expected["queues"]
        _acknowledged_messages_are_there(store, golden_crash) if name == "store" else None
    segments = sorted(path.name for path in (root / "commitlog").iterdir())
    assert segments == expected["commitLogFilesAfterRecovery"][: len(segments)]
    assert int(segments[-1]) + 1048576 >= expected["maxCommitLogOffset"]
    report = verify_store(root)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems
    if name == "store":
        _acknowledged_keys_are_found(root, golden_crash)


def test_a_crashed_store_shows_the_same_to_a_reader_that_changes_nothing(
    golden_crash: Path, tree_hash: Callable[[Path], str]
) -> None:
    for name in ("store", "store-torn"):
        expected = json.loads((golden_crash / f"{name}-recovered.json").read_text())
        before = tree_hash(golden_crash / name)
        with Store.open(golden_crash / name, read_only=True) as store:
            assert store.log_range()[1] == expected["maxCommitLogOffset"]
            found = {topic: _ranges(store, topic, queues) for topic, queues in expected["queues"].items()}
            assert found == expected["queues"]
            if name == "store":
                _acknowledged_messages_are_there(store, golden_crash)
        assert tree_hash(golden_crash / name) == before


def _ranges(store: Store, topic: str, queues: dict[str, Any]) -> dict[str, dict[str, int]]:
    ranges = {queue_id: store.queue_range(topic, int(queue_id)) for queue_id in queues}
    return {
        queue_id: {"minOffset": found.min_offset, "maxOffset": found.max_offset} for queue_id, found in ranges.items()
    }


def _acknowledged(golden_crash: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (golden_crash / "acked.jsonl").read_text().splitlines()]


def _acknowledged_messages_are_there(store: Store, golden_crash: Path) -> None:
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    acknowledged = _acknowledged(golden_crash)
    assert len(acknowledged) > 1000
    for message in acknowledged:
        where = (message["topic"], message["queueId"])
        if where not in rows:
            rows[where] = rows_of(store, *where, columns=["msgId", "body", "keys"])
        row = rows[where][message["queueOffset"]]
        body = hashlib.sha256(row["body"]).hexdigest()
        assert (row["msgId"], row["keys"], body) == (message["msgId"], message["keys"], message["bodySha256"])


def _acknowledged_keys_are_found(root: Path, golden_crash: Path) -> None:
    """Walk the chains of the index files by hand for every 50th acknowledged message."""
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    for message in _acknowledged(golden_crash)[::50]:
        offset = int(message["offsetMsgId"][-16:], 16)
        for key in [message["msgId"], *(message["keys"] or "").split()]:
            wanted = index_hash(java_hash(f"{message['topic']}#{key}"))
            assert any(offset in _chain(file, wanted) for file in files)


def _chain(file: bytes, wanted: int, slots: int = 1000) -> list[int]:
    offsets = []
    number = struct.unpack_from(">i", file, 40 + wanted % slots * 4)[0]
    while number:
        key_hash, offset, _, number = struct.unpack_from(">iqii", file, 40 + slots * 4 + number * 20)
        if key_hash == wanted:
            offsets.append(offset)
    return offsets


def _frames(root: Path) -> Iterator[dict[str, Any]]:
    """The records of a small store, taken apart by hand; those with a queue entry only."""
    for segment in sorted((root / "commitlog").iterdir()):
        data, position = segment.read_bytes(), 0
        while position + 8 <= len(data) and (size := int.from_bytes(data[position : position + 4], "big")):
            magic = data[position + 4 : position + 8].hex()
            if magic == "cbd43194":
                break
            frame = data[position : position + size]
            queue_id, flag, queue_offset, offset, sys_flag, born = struct.unpack_from(">iiqqiq", frame, 12)
            hosts, at = [], 48
            for is_v6, gap in ((sys_flag & 16, 8), (sys_flag & 32, 0)):
                address = frame[at : at + (16 if is_v6 else 4)]
                at += len(address)
                hosts.append((address, int.from_bytes(frame[at : at + 4], "big")))
                at += 4 + gap
            stored = int.from_bytes(frame[at - len(hosts[1][0]) - 12 : at - len(hosts[1][0]) - 4], "big")
            reconsumed, _, body_length = struct.unpack_from(">iqi", frame, at)
            body = frame[at + 16 : at + 16 + body_length]
            at += 16 + body_length
            width = 1 if magic.endswith("a7") else 2
            topic_length = int.from_bytes(frame[at : at + width], "big")
            topic = frame[at + width : at + width + topic_length].decode()
            if sys_flag & 12 in (0, 8):
                yield {
                    "topic": topic, "queueId": queue_id, "queueOffset": queue_offset, "flag": flag, "sysFlag": sys_flag,
                    "commitLogOffset": offset, "bornTimestamp": time_of(born), "storeTimestamp": time_of(stored),
                    "reconsumeTimes": reconsumed, "body": body, "bornPort": hosts[0][1],
                    "bornIsV6": bool(sys_flag & 16),
                }  # fmt: skip
            position += size


@pytest.mark.parametrize("name", ["normal", "propcrc", "crash"])
def test_the_small_stores_of_the_java_store_classes_are_read_and_recovered(
    golden_small: Path, working_copy: Callable[[Path], Path], name: str
) -> None:
    expected = list(_frames(golden_small / name))
    assert len(expected) == 16
    assert {frame["bornIsV6"] for frame in expected} == {False, True}
    assert max(len(frame["topic"]) for frame in expected) > 127
    keys = {(frame["topic"], frame["queueId"]) for frame in expected}
    for root, read_only in ((golden_small / name, True), (working_copy(golden_small / name), False)):
        with Store.open(root, read_only=read_only) as store:
            found = [row for topic, queue_id in keys for row in rows_of(store, topic, queue_id)]
        for row, frame in zip(sorted(found, key=lambda row: row["commitLogOffset"]), expected, strict=True):
            host = row["bornHost"]
            assert {**frame, "bornPort": int(host.rpartition(":")[2]), "bornIsV6": host.startswith("[")} == {
                **frame, **{column: row[column] for column in frame if column in row}
            }  # fmt: skip
            assert "__CRC32#" not in dict(row["properties"])
    report = verify_store(root)  # Java's classes of the store make no topics
    assert {problem.path for problem in report.problems} == {"config/topics.json"}


@pytest.mark.parametrize("name", ["normal", "propcrc"])
@pytest.mark.statement("C05", "F10", "G02")
def test_views_built_anew_from_javas_log_are_javas_views_byte_for_byte(
    golden_small: Path, working_copy: Callable[[Path], Path], name: str
) -> None:
    root = working_copy(golden_small / name)
    queues = {
        path.relative_to(root): path.read_bytes() for path in (root / "consumequeue").rglob("0*") if path.is_file()
    }
    indexes = [path.read_bytes() for path in (root / "index").iterdir()]
    for view in ("consumequeue", "index"):
        shutil.rmtree(root / view)
    settings = StoreConfig(
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=100,
        max_index_num=20,
        message_index_tags=False,  # as before 5.5.0
    )
    with Store.open(root, config=settings):
        pass
    assert {path: (root / path).read_bytes() for path in queues} == queues
    # The name of an index file is the time when Java's thread made it: only the content can be told from the log.
    assert [path.read_bytes() for path in (root / "index").iterdir()] == indexes
