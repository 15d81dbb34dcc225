"""What some kinds of stores hold beside the standard traffic. Each function returns what the broker answered."""

from __future__ import annotations

import json
import time
from typing import Any

from . import traffic
from .brokers import Broker

POP_MESSAGE, ACK_MESSAGE, HEART_BEAT, EXPORT_TABLES, CREATE_STATIC_TOPIC = 200050, 200051, 34, 355, 513
HOURS_MS = 3_600_000


def nothing(broker: Broker) -> dict[str, Any]:
    return {}


def waiting_five_minutes(broker: Broker) -> dict[str, Any]:
    """Messages of a level that RocketMQ's own table gives ten seconds, and of the one that is between."""
    messages = [
        {"body": f"five minutes {n}", "keys": f"W-{n}", "delayLevel": level} for n, level in enumerate((3, 3, 4, 2))
    ]
    return {"waiting": broker.ask("send", topic="Late", queueId=0, messages=messages)}


def light_queues(broker: Broker) -> dict[str, Any]:
    """Messages that are in the queues of LMQ, too, and a group of each sort that has committed in them."""
    dispatched = [
        {"body": f"light {n}", "keys": f"Q-{n}", "tags": "TagQ", "properties": {"INNER_MULTI_DISPATCH": queues}}
        for n, queues in enumerate(("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b", "%LMQ%a"))
    ]
    said = {"light": broker.ask("send", topic="Events", queueId=0, messages=dispatched)}
    traffic.create_group(broker, "cg_light")
    traffic.commit(broker, "cg_light", "%LMQ%a", 0, 2)
    traffic.commit(broker, "%LMQ%cg", "%LMQ%a", 0, 1)
    traffic.commit(broker, "%LMQ%cg", "%LMQ%b", 0, 1)
    return said


def group_without_a_name(broker: Broker) -> dict[str, Any]:
    """The heartbeat of the C++ client's producer: it names a consumer group, and the name is empty."""
    heartbeat = {
        "clientID": "127.0.0.1@cpp",
        "producerDataSet": [{"groupName": "pg_cpp"}],
        "consumerDataSet": [
            {
                "groupName": "", "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False,
            }
        ],
    }  # fmt: skip
    return {"heartbeat": broker.ask("request", code=HEART_BEAT, body=json.dumps(heartbeat))}


def several_segments(broker: Broker) -> dict[str, Any]:
    """So many that a reader which makes the queues of the last segments anew has not seen the first messages."""
    long = [{"bodyLength": 28000, "keys": f"S-{n}"} for n in range(8)]
    return {"segments": broker.ask("send", topic="Orders", queueId=3, messages=long)}


def exported_tables(broker: Broker) -> dict[str, Any]:
    fields = {"configType": "topics;subscriptionGroups;consumerOffsets"}
    return {"export": broker.ask("request", code=EXPORT_TABLES, fields=fields)}


def compaction(broker: Broker) -> dict[str, Any]:
    traffic.create_topic(broker, "Compacted", 1, "+cleanup.policy=COMPACTION")
    messages = [{"body": f"value {n}", "keys": f"C-{n % 2}"} for n in range(6)]
    return {"compacted": broker.ask("send", topic="Compacted", queueId=0, messages=messages)}


def batch_queues(broker: Broker) -> dict[str, Any]:
    """A topic whose queue entries are batches: one message, a batch of three, one message."""
    traffic.create_topic(broker, "Inner", 1, "+queue.type=BatchCQ")
    batch = [{"body": f"inner {n}", "keys": f"I-{n}", "tags": "TagI"} for n in range(3)]
    one = [{"body": "alone", "keys": "I-alone"}]
    return {
        "inner": [
            broker.ask("send", topic="Inner", queueId=0, messages=one),
            broker.ask("batch", topic="Inner", queueId=0, messages=batch),
            broker.ask("send", topic="Inner", queueId=0, messages=one),
        ]
    }


def static_topic(broker: Broker) -> dict[str, Any]:
    """One logical queue that begins at 1000, so that logical offsets are not those of the files."""
    item = {
        "gen": 1, "queueId": 0, "bname": "fixture-a", "logicOffset": 1000, "startOffset": 0, "endOffset": -1,
        "timeOfStart": -1, "timeOfEnd": -1,
    }  # fmt: skip
    mapping = {
        "topic": "Static", "scope": "__global__", "totalQueues": 1, "bname": "fixture-a", "epoch": 1, "dirty": False,
        "hostedQueues": {"0": [item]}, "currIdMap": {"0": 0},
    }  # fmt: skip
    fields = {
        "topic": "Static", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "force": "true",
    }  # fmt: skip
    answer = broker.ask("request", code=CREATE_STATIC_TOPIC, fields=fields, body=json.dumps(mapping))
    assert answer["code"] == traffic.SUCCESS, answer
    traffic.await_route(broker, "Static")
    messages = [{"body": f"static {n}", "keys": f"X-{n}"} for n in range(4)]
    return {"static": broker.ask("send", topic="Static", queueId=0, messages=messages)}


def timers(broker: Broker) -> dict[str, Any]:
    """Messages of the wheel: some that it delivers in the time, some that wait for hours."""
    now_ms = int(time.time() * 1000)
    messages = [
        {"body": "timer soon", "keys": "M-0", "properties": {"TIMER_DELAY_SEC": "2"}},
        {"body": "timer 2 h", "keys": "M-1", "tags": "TagM", "properties": {"TIMER_DELAY_SEC": "7200"}},
        {"body": "timer 3 h", "keys": "M-2", "properties": {"TIMER_DELIVER_MS": str(now_ms + 3 * HOURS_MS)}},
        {"body": "timer 90 min", "keys": "M-3", "properties": {"TIMER_DELAY_MS": str(HOURS_MS * 3 // 2)}},
    ]
    said = broker.ask("send", topic="Late", queueId=0, messages=messages)
    time.sleep(8)
    return {"timers": said}


def popped(broker: Broker) -> dict[str, Any]:
    """A group that pops three messages for two hours and acknowledges the first of them."""
    traffic.create_group(broker, "cg_pop")
    fields = {
        "consumerGroup": "cg_pop", "topic": "Events", "queueId": "0", "maxMsgNums": "3", "pollTime": "0",
        "invisibleTime": str(2 * HOURS_MS), "bornTime": str(int(time.time() * 1000)), "initMode": "0", "expType": "TAG",
        "exp": "*", "order": "false",
    }  # fmt: skip
    popped = broker.ask("request", code=POP_MESSAGE, fields=fields)
    assert popped["code"] == traffic.SUCCESS, popped
    known = popped["fields"]
    begin = known["startOffsetInfo"].split(";")[0].split(" ")[2]
    handle = f"{begin} {known['popTime']} {known['invisibleTime']} {known['reviveQid']} 0 fixture-a 0 0"
    acknowledgement = {"consumerGroup": "cg_pop", "topic": "Events", "queueId": "0", "extraInfo": handle, "offset": "0"}
    acknowledged = broker.ask("request", code=ACK_MESSAGE, fields=acknowledgement)
    assert acknowledged["code"] == traffic.SUCCESS, acknowledged
    time.sleep(5)
    return {"pop": known, "ack": acknowledged}


def timers_and_pops(broker: Broker) -> dict[str, Any]:
    return {**timers(broker), **popped(broker)}
