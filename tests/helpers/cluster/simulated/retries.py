"""The retry machinery of a simulated broker: send-backs by number (36), messages for `%RETRY%` topics (310), and the
look at one message (33). The rules are those of docs/conformance.md for 5.5.0.

    retries = SimulatedRetries(broker)
    retries.lose_answers(RequestCode.CONSUMER_SEND_MSG_BACK, 2)      # stored, but the answers say code 1
"""

from __future__ import annotations

import itertools
import struct
import time
from typing import Final

from helpers.cluster.simulated.broker import NOT_ONLINE, SimulatedBroker
from helpers.cluster.simulated.queues import SentMessage
from helpers.cluster.simulated.server import SUCCESS, Reply
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.properties.property_string import encode_properties, parse_properties
from rmq_store.protocol.bodies.groups import (
    Connection,
    ConsumerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

SYSTEM_ERROR: Final = 1
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"


class SimulatedRetries:
    """Adds the retry machinery to a broker. `push_consumers`: ids of live members of every group, which consume by
    `consume_type`. `holds_lock`: a group holds a lock of a queue, so messages for its retry topic become dead letters.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.push_consumers: list[str] = []
        self.consume_type = "CONSUME_PASSIVELY"
        self.holds_lock = False
        self.configs: dict[str, SubscriptionGroupConfig] = {}
        self._lost: dict[int, int] = {}
        self._send = broker._answerers[RequestCode.SEND_MESSAGE_V2]
        broker.queues.create(SCHEDULE, 18)
        broker._answerers |= {
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.SEND_MESSAGE_V2: self._send_to_retry,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._group_configs,
        }

    def lose_answers(self, code: int, count: int) -> None:
        """The next `count` requests are carried out, and answered with SYSTEM_ERROR."""
        self._lost[code] = count

    def store(self, topic: str, queue_id: int, body: bytes, properties: dict[str, str], **fields: int) -> StoredMessage:
        """Store a message as a producer's, and return it."""
        self.broker.queues.create(topic, queue_id + 1)
        queue = self.broker.queues.topics[topic][queue_id]
        offset, _ = queue.append(SentMessage(body, encode_properties(properties), store_ms=_now_ms(), **fields))
        return _decoded(queue.record_at(offset))

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, queue by queue."""
        queues = self.broker.queues.topics.get(topic, {}).values()
        return [_decoded(queue.record_at(offset)) for queue in queues for offset in range(queue.first, queue.end)]

    def deliver(self) -> None:
        """Whatever waits in SCHEDULE_TOPIC_XXXX is due."""
        for message in self.messages(SCHEDULE):
            self.store(
                message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]), message.body,
                {name: value for name, value in message.properties.items() if name not in ("REAL_TOPIC", "REAL_QID")},
                reconsume_times=message.reconsume_times,
            )  # fmt: skip

    def _view(self, request: RemotingCommand) -> Reply:
        message = self._at(int(request.ext_fields["offset"]))
        return (SYSTEM_ERROR, {}, b"") if message is None else (SUCCESS, {}, message)

    def _at(self, log_offset: int) -> bytes | None:
        queues = itertools.chain.from_iterable(queues.values() for queues in self.broker.queues.topics.values())
        return next(
            (one for queue in queues for one in queue.sent if struct.unpack_from(">q", one, 28)[0] == log_offset), None
        )

    def _send_back(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        found = self._at(int(fields["offset"]))
        if found is None:
            return SYSTEM_ERROR, {}, b""
        message = _decoded(found)
        group, level = fields["group"], int(fields["delayLevel"])
        properties = {**message.properties, "WAIT": "false"}
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
        most = int(fields.get("maxReconsumeTimes", self._config(group).retry_max_times))
        if level < 0 or message.reconsume_times >= most:
            properties["DELAY"] = "0"
            self._put(f"%DLQ%{group}", message, properties)
        else:
            self._park(f"%RETRY%{group}", message, properties, level or 3 + message.reconsume_times)
        return self._answer(request.code, {})

    def _send_to_retry(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        if not fields["b"].startswith("%RETRY%"):
            return self._send(request)
        properties = parse_properties(fields["i"].encode())
        times = int(fields["j"])
        message = StoredMessage(
            0, 0, 0, int(fields["h"]), 0, 0, int(fields["f"]), int(fields["g"]), None, 0, None, times - 1, 0,  # type: ignore[arg-type]
            request.body, "", properties, b"",
        )  # fmt: skip
        if self.holds_lock or times > int(fields["l"]):
            copy = self._put("%DLQ%" + fields["b"].removeprefix("%RETRY%"), message, properties)
        elif "DELAY" in properties:
            copy = self._park(fields["b"], message, properties, int(properties["DELAY"]))
        else:
            copy = self._put(fields["b"], message, properties)
        where = {"queueId": str(copy.queue_id), "queueOffset": str(copy.queue_offset)}
        return self._answer(request.code, {"msgId": copy.offset_msg_id, **where})

    def _park(self, topic: str, message: StoredMessage, properties: dict[str, str], level: int) -> StoredMessage:
        parked = {**properties, "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "0"}
        return self._put(SCHEDULE, message, parked, level - 1)

    def _put(self, topic: str, message: StoredMessage, properties: dict[str, str], queue_id: int = 0) -> StoredMessage:
        return self.store(
            topic, queue_id, message.body, properties, flag=message.flag, sys_flag=message.sys_flag,
            born_ms=message.born_timestamp_ms, reconsume_times=message.reconsume_times + 1,
        )  # fmt: skip

    def _answer(self, code: int, fields: dict[str, str]) -> Reply:
        if self._lost.get(code, 0):
            self._lost[code] -= 1
            return SYSTEM_ERROR, {}, b""
        return SUCCESS, fields, b""

    def _config(self, group: str) -> SubscriptionGroupConfig:
        return self.configs.get(group) or SubscriptionGroupConfig(group_name=group)

    def _group_configs(self, _: RemotingCommand) -> Reply:
        return SUCCESS, {}, SubscriptionGroupTable(subscription_group_table=self.configs).encode()

    def _connections(self, _: RemotingCommand) -> Reply:
        if not self.push_consumers:
            return NOT_ONLINE, {}, b""
        members = tuple(Connection(client_id=one, client_addr="") for one in self.push_consumers)
        return SUCCESS, {}, ConsumerConnection(connection_set=members, consume_type=self.consume_type).encode()


def _decoded(record: bytes) -> StoredMessage:
    return decode_frame(memoryview(record), 0, len(record))


def _now_ms() -> int:
    return int(time.time() * 1000)
