"""The same small traffic for every kind of store, and what the broker then says about all of it."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from .brokers import Broker

CREATE_TOPIC, UPDATE_OFFSET, SEARCH_OFFSET, MAX_OFFSET, MIN_OFFSET = 17, 15, 29, 30, 31
ALL_TOPICS, ALL_OFFSETS, ALL_DELAY_OFFSETS, UPDATE_GROUP, ALL_GROUPS, CONSUME_STATS = 21, 43, 45, 200, 201, 208
ROUTE, SUCCESS = 105, 0
ORDERS_QUEUES = 4
DEFAULT_TOPICS = ("TBW102", "BenchmarkTest")
# Their queues exist whether or not the broker's table of topics has them.
SYSTEM_TOPICS = (("SCHEDULE_TOPIC_XXXX", 18), ("RMQ_SYS_TRANS_HALF_TOPIC", 1), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1))


def lenient(text: str) -> Any:
    """JSON as Java libraries write it: numbers as names of members are allowed there."""
    return json.loads(re.sub(r"([{,]\s*)(-?\d+)\s*:", r'\1"\2":', text))


def create_topic(broker: Broker, topic: str, queues: int, attributes: str = "", **fields: object) -> None:
    given = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", **fields,
    }  # fmt: skip
    if attributes:
        given["attributes"] = attributes
    answer = broker.ask("request", code=CREATE_TOPIC, fields={name: str(value) for name, value in given.items()})
    assert answer["code"] == SUCCESS, answer
    await_route(broker, topic)


def await_route(broker: Broker, topic: str) -> None:
    """Until the name server knows the topic: brokers tell it in their own time."""
    deadline = time.monotonic() + 60
    while broker.ask("request", code=ROUTE, fields={"topic": topic}, nameServer=True)["code"] != SUCCESS:
        assert time.monotonic() < deadline, f"the name server does not know {topic}"
        time.sleep(0.2)


def create_group(broker: Broker, group: str) -> None:
    config = {
        "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
        "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip
    answer = broker.ask("request", code=UPDATE_GROUP, body=json.dumps(config))
    assert answer["code"] == SUCCESS, answer


def commit(broker: Broker, group: str, topic: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    answer = broker.ask("request", code=UPDATE_OFFSET, fields=fields)
    assert answer["code"] == SUCCESS, answer


def order(number: int) -> dict[str, Any]:
    message: dict[str, Any] = {
        "body": f"order {number}: Grüße, 订单" + (" fail-me" if number == 7 else ""),
        "keys": f"K-{number} shared",
        "flag": number,
        "properties": {"amount": str(number * 10), "region": "Ω" if number % 2 else "north"},
    }
    if number % 3:
        message["tags"] = "TagA" if number % 3 == 1 else "TagB"
    return message


def standard(broker: Broker) -> dict[str, Any]:
    """What every kind of store holds. Ends with messages that wait for hours, so a fixture stays as it is."""
    for topic, queues in (("Orders", ORDERS_QUEUES), ("Events", 2), ("Batches", 2), ("Late", 1), ("Tx", 1)):
        create_topic(broker, topic, queues)
    said: dict[str, Any] = {}
    said["orders"] = broker.ask("send", topic="Orders", queues=ORDERS_QUEUES, messages=[order(n) for n in range(24)])
    events: list[dict[str, Any]] = [{"body": f"event {n}", "keys": f"E-{n}"} for n in range(6)]
    said["events"] = broker.ask("send", topic="Events", queues=2, messages=events)
    long = [{"bodyLength": 9000, "keys": "long", "tags": "Long"}, {"bodyLength": 30000, "keys": "long", "tags": "Long"}]
    said["long"] = broker.ask("send", topic="Orders", queueId=1, messages=[*long, long[1]])
    said["compressed"] = broker.ask("send", topic="Orders", queueId=2, messages=long, compress=True)
    members = [{"body": f"member {n}", "keys": f"B-{n}", "tags": "TagA" if n % 2 else "TagB"} for n in range(5)]
    said["batch"] = [broker.ask("batch", topic="Batches", queueId=queue, messages=members) for queue in (0, 1)]
    late = [
        {"body": f"late {number}", "keys": f"L-{number}", "tags": "TagL", "delayLevel": level}
        for number, level in enumerate((1, 1, 18, 18, 16))
    ]
    said["late"] = broker.ask("send", topic="Late", queueId=0, messages=late)
    said["half"] = {
        outcome: broker.ask(
            "half", topic="Tx", outcome=outcome, message={"body": f"tx {outcome}", "keys": f"T-{outcome}"}
        )
        for outcome in ("COMMIT", "ROLLBACK", "UNKNOW")
    }
    said["consumed"] = {
        # Fails once on one message, which comes back; waits for the retry.
        "cg_orders": broker.ask(
            "consume", group="cg_orders", topic="Orders", count=30, fail="once", only="fail-me", level=1
        ),
        # Fails on all: dead letters at once, and messages that wait for their next try.
        "cg_dead": broker.ask("consume", group="cg_dead", topic="Events", count=6, fail="always", times=0),
        "cg_waiting": broker.ask(
            "consume", group="cg_waiting", topic="Events", count=6, fail="always", only="event 4", level=17
        ),
    }
    create_group(broker, "cg_partial")
    for queue_id, offset in ((0, 2), (1, 3)):
        commit(broker, "cg_partial", "Orders", queue_id, offset)
    return said


def offset_of(broker: Broker, code: int, topic: str, queue_id: int, **fields: object) -> int:
    given = {"topic": topic, "queueId": str(queue_id), **{name: str(value) for name, value in fields.items()}}
    answer = broker.ask("request", code=code, fields=given)
    assert answer["code"] == SUCCESS, answer
    return int(answer["fields"]["offset"])


def messages_of(
    broker: Broker, topic: str, queue_id: int, first: int, last: int, **options: str
) -> list[dict[str, Any]]:
    """All that a client can pull from a queue. Brokers of 4.x let nobody pull from some system topics, which are empty
    here, and from dead letters, which are asked for by key.
    """
    messages: list[dict[str, Any]] = []
    offset, tries = first, 0
    while offset < last and tries < 20:
        answer = broker.ask("pull", topic=topic, queueId=queue_id, offset=offset, **options)
        messages += answer["messages"]
        following = int((answer["fields"] or {}).get("nextBeginOffset", offset))
        tries = tries + 1 if following <= offset else 0
        offset = max(offset, following)
    if not messages and topic.startswith("%DLQ%"):
        for number in range(6):
            messages += broker.ask("query", topic=topic, key=f"E-{number}", full=True)["messages"]
    return sorted(messages, key=lambda message: int(message["queueOffset"]))


def view(broker: Broker, extra: tuple[tuple[str, int], ...] = ()) -> dict[str, Any]:
    """All that the broker answers: tables, ranges, messages with all fields, offsets, lags, queries by key and time.

    `extra` names queues that no topic of the table has, such as those of LMQ.
    """
    tables = {name: _table(broker, code) for name, code in (
        ("topics", ALL_TOPICS), ("groups", ALL_GROUPS), ("offsets", ALL_OFFSETS), ("delayOffsets", ALL_DELAY_OFFSETS)
    )}  # fmt: skip
    configs = tables["topics"]["topicConfigTable"]
    known = [(name, max(config["readQueueNums"], config["writeQueueNums"])) for name, config in configs.items()]
    wanted = {
        (name, queue)
        for name, count in [*known, *SYSTEM_TOPICS]
        for queue in range(count)
        if name not in DEFAULT_TOPICS
    }
    queues: dict[str, dict[str, Any]] = {}
    for topic, queue_id in sorted(wanted | set(extra)):
        last = offset_of(broker, MAX_OFFSET, topic, queue_id)
        if last > 0:
            first = offset_of(broker, MIN_OFFSET, topic, queue_id)
            messages = messages_of(broker, topic, queue_id, first, last)
            queues.setdefault(topic, {})[str(queue_id)] = {"minOffset": first, "maxOffset": last, "messages": messages}
    groups = sorted(group for group in tables["groups"]["subscriptionGroupTable"] if group.startswith("cg_"))
    return {
        "tables": tables,
        "queues": queues,
        "stats": {group: _stats(broker, group) for group in groups},
        "queries": _queries(broker, queues),
        "times": _times(broker, queues),
    }


def _table(broker: Broker, code: int) -> Any:
    answer = broker.ask("request", code=code)
    assert answer["code"] == SUCCESS, answer
    return lenient(answer["body"]) if answer["body"] else {}


def _stats(broker: Broker, group: str) -> Any:
    """As the broker prints it; its map is keyed by objects, so each entry becomes a list here."""
    answer = broker.ask("request", code=CONSUME_STATS, fields={"consumerGroup": group})
    if answer["code"] != SUCCESS:
        return {"code": answer["code"], "remark": answer["remark"]}
    entry = re.compile(r'(\{[^{}]*"queueId"[^{}]*\}):(\{[^{}]*\})')
    found = [{**json.loads(queue), **json.loads(value)} for queue, value in entry.findall(answer["body"])]
    names = ("topic", "queueId", "brokerOffset", "consumerOffset")
    return sorted(
        ({name: queue[name] for name in names} for queue in found),
        key=lambda queue: (queue["topic"], queue["queueId"]),
    )


def _queries(broker: Broker, queues: dict[str, Any]) -> list[dict[str, Any]]:
    """Each key once, the ids of some messages, and what is not there."""
    questions: dict[tuple[str, str], None] = {}
    for topic, per_queue in queues.items():
        if topic.startswith(("SCHEDULE_", "RMQ_SYS_", "rmq_sys")):
            continue
        for queue in per_queue.values():
            for message in queue["messages"]:
                for key in (message["keys"] or "").split():
                    questions[topic, key] = None
                questions[topic, message["getMsgId"]] = None
    questions["Orders", "no such key"] = None
    return [_query(broker, topic, key) for topic, key in questions]


def _query(broker: Broker, topic: str, key: str) -> dict[str, Any]:
    """`places`: queue id and queue offset of each message, which a tier keeps; log offsets are its own there."""
    answer = broker.ask("query", topic=topic, key=key, full=True)
    messages = answer.pop("messages")
    places = sorted({(message["queueId"], message["queueOffset"]) for message in messages})
    return {"topic": topic, "key": key, **answer, "places": places}


def _times(broker: Broker, queues: dict[str, Any]) -> list[dict[str, Any]]:
    answers = []
    for topic in ("Orders", "Events", "Batches"):
        for queue_id, queue in queues.get(topic, {}).items():
            times = sorted({message["storeTimestamp"] for message in queue["messages"]})[:4]
            for time_ms in [0, *times, *([times[0] + 1] if times else []), 4102444800000]:
                offset = offset_of(broker, SEARCH_OFFSET, topic, int(queue_id), timestamp=time_ms)
                answers.append({"topic": topic, "queueId": int(queue_id), "timestamp": time_ms, "offset": offset})
    return answers
