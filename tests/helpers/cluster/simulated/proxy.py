"""A simulated proxy of RocketMQ 5: its remoting port in front of a simulated cluster.

It serves what RemotingProtocolServer.java registers, refuses all other requests, and names itself as the address of
every process of a broker. Requests for a broker need the broker's name. Codes and remarks are those of 5.5.0
(tests/cluster/test_proxy.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.server import NOT_SUPPORTED, SUCCESS, CountingServer, Reply
from helpers.cluster.stub_server import StubConnection
from rmq_store.format.properties.property_string import parse_properties
from rmq_store.protocol.bodies.clients import LockBatchRequestBody
from rmq_store.protocol.bodies.routes import TopicRouteData
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

SYSTEM_ERROR: Final = 1
MESSAGE_ILLEGAL: Final = 13
VERSION_NOT_SUPPORTED: Final = 15
_FOR_A_BROKER: Final = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.CONSUMER_SEND_MSG_BACK,
})  # fmt: skip
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_OF_CLIENTS: Final = frozenset({
    RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
})  # fmt: skip
_LOCKS: Final = frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ})
_UNANSWERED: Final = frozenset({RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME})
_NO_TYPE_CHECK: Final = ("%RETRY%", "%DLQ%")


class SimulatedProxy(CountingServer):
    """The only address of `cluster` that clients can reach. `types`: message.type of topics, NORMAL for others."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster.loop)
        self.cluster = cluster
        self.types: dict[str, str] = {}
        self.refused: set[int] = set()

    def _answer(self, connection: StubConnection, request: RemotingCommand) -> bytes:
        if request.code in _UNANSWERED or self._broker_name(request) not in {None, "", *self.cluster.brokers}:
            self.calls[request.code] += 1
            return b""
        return super()._answer(connection, request)

    def _broker_name(self, request: RemotingCommand) -> str | None:
        """None: the request is not for one broker."""
        if request.code in _LOCKS:
            return LockBatchRequestBody.decode(request.body).mq_set[0].broker_name
        if request.code in _SENDS:
            return request.ext_fields.get("n", "")
        return request.ext_fields.get("bname", "") if request.code in _FOR_A_BROKER else None

    def _reply(self, request: RemotingCommand) -> Reply:
        self.remarks.pop(request.code, None)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(request)
        if (name := self._broker_name(request)) is not None:
            if not name:
                return self._error(request, VERSION_NOT_SUPPORTED, "Request doesn't have field bname")
            if request.code in _SENDS and (differing := self._differing_type(request)):
                return self._error(request, MESSAGE_ILLEGAL, differing)
            return self.cluster.brokers[name]._reply(request)
        if request.code in _OF_CLIENTS:
            return next(iter(self.cluster.brokers.values()))._reply(request)
        if request.code == RequestCode.END_TRANSACTION:  # answered, and forgotten: the proxy has not asked
            return SUCCESS, {}, b""
        if request.code == RequestCode.POP_MESSAGE:
            return self._error(request, SYSTEM_ERROR, 'the value of "PullMessageRequestHeader.getSysFlag()" is null')
        self.refused.add(request.code)
        return self._error(request, NOT_SUPPORTED, f" request type {request.code} not supported")

    def _error(self, request: RemotingCommand, code: int, remark: str) -> Reply:
        self.remarks[request.code] = remark
        return code, {}, b""

    def _differing_type(self, request: RemotingCommand) -> str:
        topic = request.ext_fields["b"]
        if topic.startswith(_NO_TYPE_CHECK):
            return ""
        is_known = any(topic in broker.queues.topics for broker in self.cluster.brokers.values())
        expected = self.types.get(topic, "NORMAL") if is_known else "UNSPECIFIED"
        actual = _type_of(parse_properties(request.ext_fields.get("i", "").encode()))
        if actual == expected:
            return ""
        return f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"

    def _route(self, request: RemotingCommand) -> Reply:
        code, fields, body = self.cluster._reply(request)
        if code != SUCCESS:
            return code, fields, body
        route = TopicRouteData.decode(body)
        brokers = tuple(
            replace(one, broker_addrs=dict.fromkeys(one.broker_addrs, self.address), enable_acting_master=False)
            for one in route.broker_datas
        )
        shown = replace(route, broker_datas=brokers, order_topic_conf=None, topic_queue_mapping_by_broker=None)
        return code, fields, shown.encode(quoted_keys=True)


def _type_of(properties: dict[str, str]) -> str:
    """TopicMessageType.java, parseFromMessageProperty."""
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if properties.keys() & {"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"}:
        return "DELAY"
    return "FIFO" if "__SHARDINGKEY" in properties else "NORMAL"
