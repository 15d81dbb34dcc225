"""Name servers and brokers in memory, behind the interface of RemotingClient. Facts: FINDINGS of real brokers.

A broker has processes by id; all of them share its messages, each up to its own `end` (a slave may lag). Whatever a
test puts into `answers` comes first.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from rmq_store.broker.filter.sql92 import compile_selector
from rmq_store.format.batches.batch_bodies import MessageParts
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import parse_properties
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.calls import Call, Request
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.settings import ClusterSettings

HOST = Host.parse("10.0.0.1:10911")
LISTS_READABLE = 473
"""MQVersion.V5_3_0: older brokers list in 202 only queues that may be written."""
NAME_SERVER = "ns:9876"

Answer = Callable[[RemotingCommand], RemotingCommand] | Exception


def frame(topic: str, queue_id: int, offset: int, body: bytes = b"body", tags: str = "") -> bytes:
    properties = f"TAGS\x01{tags}\x02UNIQ_KEY\x01{offset:032X}\x02" if tags else f"UNIQ_KEY\x01{offset:032X}\x02"
    return encode_frame(
        topic=topic, body=body, properties=properties.encode(), queue_id=queue_id, queue_offset=offset,
        commit_log_offset=7_000 * (offset + 1), born_timestamp_ms=1_700_000_000_000, born_host=HOST,
        store_timestamp_ms=1_700_000_000_000 + offset, store_host=HOST,
    )  # fmt: skip


def stored_ms(frame: bytes) -> int:
    """When the message of a frame was stored."""
    return int.from_bytes(frame[56:64])


@dataclass
class FakeQueue:
    """Messages of one queue by offset; a missing one is a hole."""

    frames: dict[int, bytes] = field(default_factory=dict)
    min_offset: int = 0

    @property
    def end(self) -> int:
        return max(self.frames, default=-1) + 1


@dataclass
class FakeProcess:
    """A broker's process: `down` refuses connections, `silent` gives no answer. It has no message before `begin`,
    nor from `end` on.
    """

    broker: FakeBroker
    broker_id: int
    down: bool = False
    silent: bool = False
    begin: int = 0
    end: int | None = None
    version: int = 500
    suggest: int = 0
    port: int = 10911
    asked: list[RemotingCommand] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.broker.name}-{self.broker_id}:{self.port}"


@dataclass
class FakeBroker:
    """A broker of one cluster. `per_pull` messages and `pull_bytes` are what one answer has at most."""

    name: str
    processes: dict[int, FakeProcess] = field(default_factory=dict)
    queues: dict[tuple[str, int], FakeQueue] = field(default_factory=dict)
    topics: dict[str, dict[str, object]] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=lambda: {"TOOLS_CONSUMER"})
    locks: dict[tuple[str, str, int], str] = field(default_factory=dict)
    members: dict[str, dict[str, dict[str, object]]] = field(default_factory=lambda: defaultdict(dict))
    pending_reset: dict[tuple[str, str, int], int] = field(default_factory=dict)
    per_pull: int = 32
    pull_bytes: int = 256 << 10
    acting: bool = False
    cluster: str = "DefaultCluster"
    property_filter: bool = False
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)
    sent: list[RemotingCommand] = field(default_factory=list)
    sent_back: list[dict[str, str]] = field(default_factory=list)
    send_code: int = 0
    # What 28 tells beside the end of the log, which grows with every message; None: it is not answered.
    figures: dict[str, str] | None = field(default_factory=dict)
    popped: int = 0
    acked: list[tuple[str, int, int]] = field(default_factory=list)

    def create_topic(self, topic: str, queues: int = 1, perm: int = 6, **attributes: object) -> None:
        self.topics[topic] = {"queues": queues, "perm": perm, **attributes}
        for queue_id in range(queues):
            self.queues.setdefault((topic, queue_id), FakeQueue())

    def put(self, topic: str, queue_id: int, count: int, body: bytes = b"body", tags: str = "") -> None:
        if (topic, queue_id) not in self.queues:
            self.create_topic(topic, queue_id + 1)
        queue = self.queues[topic, queue_id]
        for offset in range(queue.end, queue.end + count):
            queue.frames[offset] = frame(topic, queue_id, offset, body, tags)


class FakeNet:
    """RemotingClient's calls, answered by brokers and name servers of this process."""

    def __init__(self) -> None:
        self.brokers: dict[str, FakeBroker] = {}
        self.name_servers: dict[str, FakeProcess] = {}
        # By the address of a name server the brokers that have not registered there.
        self.unregistered: dict[str, set[str]] = {}
        self.calls: list[tuple[str, RemotingCommand]] = []
        self.held: list[tuple[Future[RemotingCommand], str, RemotingCommand]] | None = None
        self.closed = False
        self.handlers: dict[int, Callable[[str, RemotingCommand], RemotingCommand | None]] = {}
        self.order_topic_conf: dict[str, str] = {}
        self.extra_route: dict[str, object] = {}
        self.add_name_server(NAME_SERVER)

    def add_name_server(self, address: str) -> FakeProcess:
        self.name_servers[address] = FakeProcess(FakeBroker(address), 0)
        return self.name_servers[address]

    def add_broker(self, name: str = "broker-a", slaves: int = 0) -> FakeBroker:
        broker = self.brokers[name] = FakeBroker(name)
        broker.processes = {number: FakeProcess(broker, number) for number in range(slaves + 1)}
        return broker

    def cluster(self, namespace: str = "", **given: object) -> Cluster:
        settings = ClusterSettings(name_servers=tuple(self.name_servers), namespace=namespace)
        return Cluster(settings, client=self, **given)  # type: ignore[arg-type]

    # -- RemotingClient ---------------------------------------------------------------------------------------------

    def call(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        assert timeout_ms > 0
        self.calls.append((address, command))
        process = self.name_servers.get(address) or self._process(address)
        if process is None or process.down:
            raise RemotingConnectError(f"connect to {address} failed")
        process.asked.append(command)
        if process.silent:
            raise RemotingTimeoutError(f"{address} gave no answer in {timeout_ms} ms")
        if process.answers:
            given = process.answers.pop(0)
            if isinstance(given, Exception):
                raise given
            return given(command)
        if address in self.name_servers:
            return self._name_server(address, command)
        return answer(process, command)

    def submit(self, address: str, command: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        future: Future[RemotingCommand] = Future()
        if self.held is not None:
            self.held.append((future, address, command))
            return future
        self._settle(future, address, command)
        return future

    def submit_all(
        self, address: str, requests: Sequence[Request], done: Callable[[Call], object], timeout_ms: int
    ) -> list[Call]:
        commands = [one if isinstance(one, RemotingCommand) else one.command() for one in requests]
        calls = [Call(address, command, timeout_ms, time.monotonic(), done) for command in commands]
        for call, command in zip(calls, commands, strict=True):
            self.submit(address, command, timeout_ms).add_done_callback(partial(_hand_on, call))
        return calls

    def submit_round(self, waiting: PullRound) -> PullRound:
        """Each answer comes as a command, and leaves the round."""
        waiting.start_at(1)
        for opaque, pull in zip(waiting.opaques, waiting.pulls, strict=True):
            command = waiting.template.request(*pull).command()
            call = waiting.alone(opaque)
            assert call is not None
            self.submit(waiting.address, command, waiting.timeout_ms).add_done_callback(partial(_hand_on, call))
        return waiting

    def call_oneway(self, address: str, command: RemotingCommand) -> None:
        self.call(address, command, 1)

    def on_request(self, code: int, handler: Callable[[str, RemotingCommand], RemotingCommand | None]) -> None:
        self.handlers[code] = handler

    def close(self) -> None:
        self.closed = True

    # -- what tests ask ---------------------------------------------------------------------------------------------

    def release(self, place: int = 0) -> None:
        """Answer one of the requests that are held back."""
        assert self.held is not None
        self._settle(*self.held.pop(place))

    def codes(self, name_servers: bool = False) -> list[int]:
        return [command.code for address, command in self.calls if (address in self.name_servers) == name_servers]

    def _settle(self, future: Future[RemotingCommand], address: str, command: RemotingCommand) -> None:
        try:
            future.set_result(self.call(address, command, 1))
        except RemotingError as error:
            future.set_exception(error)

    def _process(self, address: str) -> FakeProcess | None:
        for broker in self.brokers.values():
            for process in broker.processes.values():
                if process.address == address:
                    return process
        return None

    def _name_server(self, address: str, command: RemotingCommand) -> RemotingCommand:
        unknown = self.unregistered.get(address, ())
        brokers = [broker for broker in self.brokers.values() if broker.processes and broker.name not in unknown]
        if command.code == 105:
            topic = command.ext_fields["topic"]
            having = [broker for broker in brokers if topic in broker.topics]
            if not having:
                return response_to(command, 17, f"No topic route info in name server for the topic: {topic}")
            route: dict[str, object] = {
                "brokerDatas": [_broker_data(broker, acting=True) for broker in having],
                "filterServerTable": {},
                "queueDatas": [_queue_data(broker, topic) for broker in having],
                **self.extra_route,
            }
            if topic in self.order_topic_conf:
                route["orderTopicConf"] = self.order_topic_conf[topic]
            return response_to(command, 0, body=json.dumps(route).encode())
        if command.code == 106:
            table = {broker.name: _broker_data(broker) for broker in brokers}
            clusters: dict[str, list[str]] = defaultdict(list)
            for name in sorted(table):
                clusters[self.brokers[name].cluster].append(name)
            info = {"brokerAddrTable": table, "clusterAddrTable": clusters}
            return response_to(command, 0, body=json.dumps(info).encode())
        if command.code == 206:
            topics = sorted({topic for broker in self.brokers.values() for topic in broker.topics})
            return response_to(command, 0, body=json.dumps({"topicList": topics}).encode())
        if command.code == 216:
            return response_to(command, 0)
        return response_to(command, 3, f" request type {command.code} not supported")


def _hand_on(call: Call, future: Future[RemotingCommand]) -> None:
    call.end(future.exception() or future.result())


def _broker_data(broker: FakeBroker, acting: bool = False) -> dict[str, object]:
    addresses = {str(number): process.address for number, process in broker.processes.items()}
    if acting and broker.acting and "0" not in addresses:
        addresses["0"] = addresses.pop(min(addresses))
    return {
        "brokerAddrs": addresses,
        "brokerName": broker.name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.acting,
    }


def _queue_data(broker: FakeBroker, topic: str) -> dict[str, object]:
    config = broker.topics[topic]
    return {
        "brokerName": broker.name,
        "perm": config["perm"],
        "readQueueNums": config.get("read", config["queues"]),
        "writeQueueNums": config.get("write", config["queues"]),
        "topicSysFlag": 0,
    }


# -- brokers -----------------------------------------------------------------------------------------------------------


def answer(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    made = _answer(process, command)
    made.version = process.version
    return made


def _answer(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    broker, ext, code = process.broker, command.ext_fields, command.code
    if code in broker.refused:
        return response_to(command, *broker.refused[code])
    if code == 11:
        return _pull(process, command)
    if code in (30, 31):
        queue = broker.queues.get((ext["topic"], int(ext["queueId"])))
        offset = 0 if queue is None else max(queue.min_offset, process.begin) if code == 31 else _end(process, queue)
        return response_to(command, 0, ext_fields={"offset": str(-1 if queue is None and code == 31 else offset)})
    if code == 202:
        return _topic_stats(process, command)
    if code == 28 and broker.figures is not None:
        end = 1000 * sum(len(queue.frames) for queue in broker.queues.values())
        table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(end), "dispatchBehindBytes": "0"}
        return response_to(command, 0, body=json.dumps({"table": table | broker.figures}).encode())
    if code == 29:
        queue = broker.queues[ext["topic"], int(ext["queueId"])]
        since_ms = int(ext["timestamp"])
        later = [at for at in sorted(queue.frames) if at >= process.begin and stored_ms(queue.frames[at]) >= since_ms]
        old_end = queue.end if process.version >= 413 else max(queue.end - 1, 0)
        return response_to(command, 0, ext_fields={"offset": str(later[0] if later else old_end)})
    if code in (14, 15):
        return _offsets(process, command)
    if code in (34, 35, 38, 41, 42, 203):
        return _members(process, command)
    if code == 351:
        return _topic_config(process, command)
    if code == 17:
        broker.create_topic(ext["topic"], int(ext["writeQueueNums"]), int(ext["perm"]))
        return response_to(command, 0)
    if code == 215:
        broker.topics.pop(ext["topic"], None)
        return response_to(command, 0)
    if code == 200:
        broker.groups.add(json.loads(command.body)["groupName"])
        return response_to(command, 0)
    if code in (310, 320):
        return _send(process, command)
    if code in (200050, 200051, 200053):
        return _pop(process, command)
    if code == 36:
        broker.sent_back.append(ext)
        return response_to(command, 0)
    if code == 33:
        found = [raw for queue in broker.queues.values() for raw in queue.frames.values()]
        for raw in found:
            if int.from_bytes(raw[28:36]) == int(ext["offset"]):
                return response_to(command, 0, body=raw)
        return response_to(command, 1, "can not find message by the offset")
    if code == 12:
        found = [raw for key, queue in broker.queues.items() for raw in queue.frames.values() if key[0] == ext["topic"]]
        body = b"".join([raw for raw in found if ext["key"].encode() in raw][: int(ext["maxNum"])])
        return response_to(command, 0 if body else 22, None if body else "can not find message", body=body, ext_fields={
            "indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "2",
        })  # fmt: skip
    return response_to(command, 3, f" request type {code} not supported")


def _pop(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    """Pops come from queue 0; each message is given once."""
    broker, ext = process.broker, command.ext_fields
    if process.version < 413:
        return response_to(command, 3, f" request type {command.code} not supported")
    if command.code == 200051:
        broker.acked.append((ext["topic"], int(ext["queueId"]), int(ext["offset"])))
        return response_to(command, 0)
    if command.code == 200053:
        return response_to(command, 0, None, {"popTime": "9", "invisibleTime": ext["invisibleTime"], "reviveQid": "4"})
    queue = broker.queues[ext["topic"], 0]
    found = [queue.frames[at] for at in range(broker.popped, queue.end)][: int(ext["maxMsgNums"])]
    if not found:
        return response_to(command, 19, "no new message")
    first, broker.popped = broker.popped, broker.popped + len(found)
    offsets = ",".join(str(first + number) for number in range(len(found)))
    fields = {
        "popTime": "5", "invisibleTime": ext["invisibleTime"], "reviveQid": "3", "restNum": "0",
        "startOffsetInfo": f"0 0 {first}", "msgOffsetInfo": f"0 0 {offsets}",
    }  # fmt: skip
    return response_to(command, 0, "FOUND", fields, b"".join(found))


def _send(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    broker, ext = process.broker, command.ext_fields
    topic, queue_id = ext["b"], int(ext["e"])
    if topic not in broker.topics:
        if ext["c"] not in broker.topics:
            return response_to(command, 17, f"topic[{topic}] not exist, apply first please!")
        broker.create_topic(topic, int(ext["d"]))
    broker.sent.append(command)
    first = broker.queues[topic, queue_id].end
    bodies = [command.body] if command.code == 310 else _batch_bodies(command.body)
    for body in bodies:
        broker.put(topic, queue_id, 1, body)
    ids = ",".join(offset_message_id(HOST, 7_000 * (first + number + 1)) for number in range(len(bodies)))
    fields = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(first)}
    return response_to(command, broker.send_code, None, fields)


def _batch_bodies(body: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(body):
        size, length = int.from_bytes(body[at : at + 4]), int.from_bytes(body[at + 16 : at + 20])
        bodies.append(body[at + 20 : at + 20 + length])
        at += size
    return bodies


def _end(process: FakeProcess, queue: FakeQueue) -> int:
    return queue.end if process.end is None else min(queue.end, process.end)


def _pull(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    ext, broker = command.ext_fields, process.broker
    queue = broker.queues.get((ext["topic"], int(ext["queueId"])))
    if queue is None:
        return response_to(command, 17, f"topic[{ext['topic']}] not exist, apply first please!")
    config = broker.topics.get(ext["topic"], {})
    if int(ext["queueId"]) >= int(str(config.get("read", 1 << 31))):
        return response_to(command, 1, f"queueId[{ext['queueId']}] is illegal")
    offset, end = int(ext["queueOffset"]), _end(process, queue)
    key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
    if key in broker.pending_reset:
        moved = broker.pending_reset.pop(key)
        return response_to(command, 21, "OFFSET_RESET", {
            "nextBeginOffset": str(moved), "minOffset": str(queue.min_offset), "maxOffset": str(end),
            "suggestWhichBrokerId": "0",
        })  # fmt: skip
    if ext.get("expressionType") == "SQL92" and not broker.property_filter:
        return response_to(command, 1, "The broker does not support consumer to filter message by SQL92")
    selector = compile_selector(ext["subscription"]) if ext.get("expressionType") == "SQL92" else None
    tags = set() if selector else {tag.strip() for tag in ext["subscription"].split("||")} - {"*"}
    found, next_offset, size = [], offset, 0
    code, remark = 0, "FOUND"
    if offset < queue.min_offset:
        code, remark, next_offset = 21, "OFFSET_TOO_SMALL", queue.min_offset
    elif offset > end:
        code, remark, next_offset = 21, "OFFSET_OVERFLOW_BADLY", end
    elif offset == end:
        code, remark = 19, "OFFSET_OVERFLOW_ONE"
    else:
        most = min(int(ext["maxMsgNums"]), broker.per_pull)
        while next_offset < end and len(found) < most and next_offset - offset < 800:
            raw = queue.frames.get(next_offset)
            if raw is not None and selector and not selector.matches(parse_properties(MessageParts(raw).properties)):
                raw = None
            if raw is not None and (not tags or any(f"TAGS\x01{tag}\x02".encode() in raw for tag in tags)):
                if found and size + len(raw) > broker.pull_bytes:
                    break
                found.append(raw)
                size += len(raw)
            next_offset += 1
        if not found:
            code, remark = 20, "NO_MATCHED_MESSAGE"
    if code == 21 and process.broker_id > 0 and process.version >= 413:
        code, next_offset = 20, offset
    return response_to(command, code, remark, body=b"".join(found), ext_fields={
        "nextBeginOffset": str(next_offset), "minOffset": str(queue.min_offset), "maxOffset": str(end),
        "suggestWhichBrokerId": str(process.suggest),
    })  # fmt: skip


def _topic_stats(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    topic = command.ext_fields["topic"]
    config = process.broker.topics.get(topic)
    if config is None:
        return response_to(command, 17, f"topic[{topic}] not exist")
    rows = []
    counts = [int(str(config.get(kind, config["queues"]))) for kind in ("write", "read")]
    for queue_id in range(max(counts) if process.version >= LISTS_READABLE else counts[0]):
        queue = process.broker.queues.get((topic, queue_id), FakeQueue())
        name = f'{{"brokerName":"{process.broker.name}","queueId":{queue_id},"topic":"{topic}"}}'
        end = _end(process, queue)
        last = queue.frames.get(end - 1)
        at_ms = 0 if last is None else stored_ms(last)
        rows.append(f'{name}:{{"lastUpdateTimestamp":{at_ms},"maxOffset":{end},"minOffset":{queue.min_offset}}}')
    return response_to(command, 0, body=f'{{"offsetTable":{{{",".join(rows)}}}}}'.encode())


def _offsets(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    ext, broker = command.ext_fields, process.broker
    key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
    if command.code == 15:
        if process.version >= 413 and key[0] not in broker.groups:
            return response_to(command, 26, f"Group {key[0]} not exist!")
        if key in broker.pending_reset:
            return response_to(command, 0, "Offset has been previously reset", ext_fields={})
        broker.offsets[key] = int(ext["commitOffset"])
        return response_to(command, 0)
    if key in broker.pending_reset:
        return response_to(command, 0, ext_fields={"offset": str(broker.pending_reset[key])})
    if key in broker.offsets:
        return response_to(command, 0, ext_fields={"offset": str(broker.offsets[key])})
    knows_field = process.version >= 413 and ext.get("setZeroIfNotFound") == "false"
    if broker.queues[key[1:]].min_offset == 0 and not knows_field:
        return response_to(command, 0, ext_fields={"offset": "0"})
    return response_to(command, 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


def _members(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    broker, ext, code = process.broker, command.ext_fields, command.code
    if code == 34:
        beat = json.loads(command.body)
        for data in beat.get("consumerDataSet", []):
            broker.groups.add(data["groupName"])
            broker.members[data["groupName"]][beat["clientID"]] = data
        return response_to(command, 0)
    if code == 35:
        broker.members[ext.get("consumerGroup", "")].pop(ext["clientID"], None)
        return response_to(command, 0)
    if code in (38, 203):
        members = broker.members[ext["consumerGroup"]]
        if not members:
            return response_to(command, 1 if code == 38 else 206, f"no consumer for the group, {ext['consumerGroup']}")
        if code == 38:
            return response_to(command, 0, body=json.dumps({"consumerIdList": list(members)}).encode())
        connections = [
            {"clientId": client_id, "clientAddr": "10.1.1.1:5", "language": "JAVA", "version": 409}
            for client_id in members
        ]
        body = {"connectionSet": connections, "subscriptionTable": {}, "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}  # fmt: skip
        return response_to(command, 0, body=json.dumps(body).encode())
    asked = json.loads(command.body)
    granted = []
    for queue in asked["mqSet"]:
        key = (asked["consumerGroup"], queue["topic"], queue["queueId"])
        if code == 41 and broker.locks.setdefault(key, asked["clientId"]) == asked["clientId"]:
            granted.append(queue)
        if code == 42 and broker.locks.get(key) == asked["clientId"]:
            del broker.locks[key]
    return response_to(command, 0, body=json.dumps({"lockOKMQSet": granted}).encode() if code == 41 else b"")


def _topic_config(process: FakeProcess, command: RemotingCommand) -> RemotingCommand:
    topic = command.ext_fields["topic"]
    config = process.broker.topics.get(topic)
    if process.version < 413:
        return response_to(command, 3, " request type 351 not supported")
    if config is None:
        return response_to(command, 17, f"No topic in this broker. topic: {topic}")
    body = {"topicName": topic, "readQueueNums": config["queues"], "writeQueueNums": config["queues"],
            "perm": config["perm"], "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            "attributes": config.get("attributes", {})}  # fmt: skip
    return response_to(command, 0, body=json.dumps(body).encode())
