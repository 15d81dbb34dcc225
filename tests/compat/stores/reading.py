"""What a broker said about a store, against what our reader says. Expected values come from the manifest alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rmq_store import MESSAGE_SCHEMA, Store
from rmq_store.broker.monitoring.lag import group_lag

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPRESSED = 1
COLUMNS = [*MESSAGE_SCHEMA.names, "javaMsgId"]
SAME_FIELDS = "topic queueId queueOffset commitLogOffset tags keys flag bornHost storeHost reconsumeTimes".split()
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
Manifest = dict[str, Any]


def check_manifest(manifest: Manifest) -> None:
    """A broker that answers nothing would agree with a reader that sees nothing."""
    messages = [message for _, _, queue in queues_of(manifest) for message in queue["messages"]]
    assert len(messages) >= 55
    assert {message["topic"] for message in messages} >= {"Orders", "Events", "Batches", "Late", "Tx"}
    assert manifest["stats"]["cg_orders"]
    # Without index files the broker finds nothing by key, which is right.
    assert any(query["commitLogOffsets"] for query in manifest["queries"]) or "index-off" in manifest["kind"]


def queues_of(manifest: Manifest) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for topic, queues in manifest["queues"].items():
        for queue_id, queue in queues.items():
            yield topic, int(queue_id), queue


def time_of(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def rows_of(store: Store, topic: str, queue_id: int) -> list[dict[str, Any]]:
    first, last = store.queue_range(topic, queue_id)
    batches = store.read(topic, queue_id, first, last, columns=COLUMNS)
    return [row for batch in batches for row in batch.to_pylist()]


def expected_row(message: dict[str, Any], own_id: str, broker_name: str) -> dict[str, Any]:
    """A message as the client decoded it, as a row; the body as length and SHA-256. Of two ids ours is the first."""
    ids = {"UNIQ_KEY": own_id} if "UNIQ_KEY" in message["properties"] else {}
    return {
        **{name: message[name] for name in SAME_FIELDS},
        "msgId": own_id,
        "javaMsgId": message["getMsgId"],
        "bodyLength": message["bodyLength"],
        "bodySha256": message["bodySha256"],
        "properties": {**message["properties"], **ids},
        # Java leaves the flag of a body that it has decompressed; the column's body is no longer compressed.
        "sysFlag": message["sysFlag"] & ~COMPRESSED,
        "bornTimestamp": time_of(message["bornTimestamp"]),
        "storeTimestamp": time_of(message["storeTimestamp"]),
        "brokerName": broker_name,
    }


def found_row(row: dict[str, Any]) -> dict[str, Any]:
    body = row.pop("body")
    return {
        **row,
        "properties": dict(row["properties"]),
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
    }


def check_ranges(store: Store, manifest: Manifest) -> None:
    found = {(topic, queue): tuple(store.queue_range(topic, queue)) for topic, queue, _ in queues_of(manifest)}
    assert found == {(t, queue_id): (q["minOffset"], q["maxOffset"]) for t, queue_id, q in queues_of(manifest)}


def check_messages(store: Store, manifest: Manifest) -> int:
    """Every field of every message. How many were compared."""
    compared = 0
    for topic, queue_id, queue in queues_of(manifest):
        rows = rows_of(store, topic, queue_id)
        assert len(rows) == queue["maxOffset"] - queue["minOffset"], (topic, queue_id)
        if not queue["messages"]:  # a system topic of 4.x, which the broker lets nobody pull
            assert topic.startswith(("SCHEDULE_", "RMQ_SYS_"))
            continue
        broker_name = manifest["settings"]["brokerName"]
        expected = [expected_row(message, first_id(manifest, message), broker_name) for message in queue["messages"]]
        assert [found_row(row) for row in rows] == expected
        compared += len(rows)
    return compared


def first_id(manifest: Manifest, message: dict[str, Any]) -> str:
    """The id of this message alone. Members of a batch of a 5.x client share what getMsgId() says; the answer to the
    send names each of them.
    """
    for sent in manifest["sent"]["batch"]:
        if (sent["topic"], sent["queueId"]) == (message["topic"], message["queueId"]):
            return str(sent["msgId"].split(",")[message["queueOffset"] - sent["queueOffset"]])
    return str(message["getMsgId"])


def check_offsets_and_lags(store: Store, manifest: Manifest) -> int:
    """Committed offsets of all groups, and lags as the broker counts them. How many queues were compared."""
    expected: dict[str, dict[tuple[str, int], int]] = {}
    for topic_at_group, offsets in manifest["tables"]["offsets"]["offsetTable"].items():
        topic, group = topic_at_group.split("@")
        expected.setdefault(group, {}).update({(topic, int(queue)): offset for queue, offset in offsets.items()})
    for topic_at_group, offset in manifest["tables"]["offsets"].get("lmqOffsetTable", {}).items():
        topic, group = topic_at_group.split("@")
        expected.setdefault(group, {})[topic, 0] = offset
    assert {group: store.committed_offsets(group) for group in expected} == expected
    compared = 0
    for group, queues in manifest["stats"].items():
        if not isinstance(queues, list):
            continue
        found = {(lag.topic, lag.queue_id): lag for lag in group_lag(store, group).queues}
        for queue in queues:
            lag = found[queue["topic"], queue["queueId"]]
            said = (queue["brokerOffset"], queue["consumerOffset"], queue["brokerOffset"] - queue["consumerOffset"])
            assert (lag.broker_offset, lag.consumer_offset or 0, lag.diff) == said, (group, queue)
            compared += 1
    return compared


def check_tables(store: Store, manifest: Manifest) -> None:
    topics = store.topics()
    for name, config in manifest["tables"]["topics"]["topicConfigTable"].items():
        found = topics[name]
        assert (found.read_queue_nums, found.write_queue_nums, found.perm, dict(found.attributes)) == (
            config["readQueueNums"], config["writeQueueNums"], config["perm"], config.get("attributes", {})
        ), name  # fmt: skip
    groups = store.groups()
    for name, config in manifest["tables"]["groups"]["subscriptionGroupTable"].items():
        if name:
            assert groups[name].retry_max_times == config["retryMaxTimes"], name
    assert "" not in list(groups)  # not `in groups`: to ask for that entry is an error


def check_waiting(store: Store, manifest: Manifest) -> int:
    """What waits for each level, and when the first of it is due. How many messages."""
    table = manifest["settings"].get("messageDelayLevel", DEFAULT_LEVELS)
    delays_ms = [int(number) * UNITS_MS[unit] for number, unit in re.findall(r"(\d+)([smhd])", table)]
    expected = {}
    for queue_id, queue in manifest["queues"].get("SCHEDULE_TOPIC_XXXX", {}).items():
        level = int(queue_id) + 1
        begin = manifest["tables"]["delayOffsets"]["offsetTable"].get(str(level), 0)
        due = [m["storeTimestamp"] + delays_ms[level - 1] for m in queue["messages"] if m["queueOffset"] >= begin]
        if begin < queue["maxOffset"]:
            expected[level] = (queue["maxOffset"] - begin, due[0] if due else None)
    backlogs = {backlog.level: backlog for backlog in store.delay_backlogs() if backlog.level is not None}
    assert {level: backlog.messages for level, backlog in backlogs.items()} == {
        level: count for level, (count, _) in expected.items()
    }
    for level, (_, due) in expected.items():
        assert due is None or backlogs[level].first_due_ms == due, level
    return sum(count for count, _ in expected.values())


def check_broker_backlog(store: Store, manifest: Manifest) -> int:
    """Timers that the wheel has not delivered, with the due times of the broker, and the undecided transaction."""
    rows = [row for batch in store.broker_backlog() for row in batch.to_pylist()]
    undecided = [row["msgId"] for row in rows if row["kind"] == "half message"]
    assert undecided == [manifest["sent"]["half"]["UNKNOW"]["msgId"]]
    delivered = {message["keys"] for message in manifest["queues"]["Late"]["0"]["messages"]}
    wheel = manifest["queues"].get("rmq_sys_wheel_timer", {}).get("0", {"messages": []})["messages"]
    expected = {
        message["keys"]: time_of(int(message["properties"]["TIMER_OUT_MS"]))
        for message in wheel
        if message["keys"] not in delivered
    }
    assert {row["keys"]: row["dueTimestamp"] for row in rows if row["kind"] == "timer"} == expected
    return len(rows)


def check_queries(store: Store, manifest: Manifest) -> int:
    """What the broker's index finds by key and by getMsgId(), in log order. How many questions had an answer."""
    answered = 0
    for query in manifest["queries"]:
        by_key = store.query.by_key(query["topic"], query["key"])
        by_id = store.query.by_unique_key(query["topic"], query["key"], begin_ms=0)
        messages = [*by_key, *by_id]
        if "places" in query:  # what a tier answers has log offsets of the tier
            found = sorted({(message.queue_id, message.queue_offset) for message in messages})
            expected = sorted((queue_id, offset) for queue_id, offset in query["places"])
        else:
            found = sorted({(0, message.commit_log_offset) for message in messages})
            expected = sorted({(0, offset) for offset in query["commitLogOffsets"]})
        assert found == expected, (query["topic"], query["key"])
        answered += bool(found)
    for sent in manifest["sent"]["batch"]:
        for number, msg_id in enumerate(sent["msgId"].split(",")):
            (message,) = store.query.by_unique_key(sent["topic"], msg_id)
            assert message.queue_offset == sent["queueOffset"] + number
    return answered


def check_times(store: Store, manifest: Manifest) -> int:
    """4.x brokers answer with any message of a time, and with the nearest if there is none; ours as 5.x does."""
    compared = 0
    for asked in manifest["times"]:
        messages = manifest["queues"][asked["topic"]][str(asked["queueId"])]["messages"]
        if (
            manifest["version"].startswith("4.")
            and sum(m["storeTimestamp"] == asked["timestamp"] for m in messages) != 1
        ):
            continue
        offset = store.offset_by_time(asked["topic"], asked["queueId"], asked["timestamp"])
        assert offset == asked["offset"], asked
        compared += 1
    return compared
