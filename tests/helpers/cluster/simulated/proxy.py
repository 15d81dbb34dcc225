"""A simulated proxy of RocketMQ 5: its remoting port in front of a simulated cluster.

It serves what RemotingProtocolServer.java registers, refuses all other requests, and names itself as the address of
every broker. Requests for a broker need the broker's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.server import NOT_SUPPORTED, SUCCESS, CountingServer, Reply
from rmq_store.protocol.bodies.clients import LockBatchRequestBody
from rmq_store.protocol.bodies.routes import TopicRouteData
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

VERSION_NOT_SUPPORTED: Final = 15
_FOR_A_BROKER: Final = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION,
})  # fmt: skip
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_OF_CLIENTS: Final = frozenset({
    RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
})  # fmt: skip
_LOCKS: Final = frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ})


class SimulatedProxy(CountingServer):
    """The only address of `cluster` that clients can reach."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster.loop)
        self.cluster = cluster
        self.refused: set[int] = set()

    def _reply(self, request: RemotingCommand) -> Reply:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(request)
        if request.code in _LOCKS:
            queues = LockBatchRequestBody.decode(request.body).mq_set
            return self._broker(queues[0].broker_name, request)
        if request.code in _SENDS:
            return self._broker(request.ext_fields.get("n", ""), request)
        if request.code in _FOR_A_BROKER:
            return self._broker(request.ext_fields.get("bname", ""), request)
        if request.code in _OF_CLIENTS:
            return self._broker(next(iter(self.cluster.brokers)), request)
        self.refused.add(request.code)
        return NOT_SUPPORTED, {}, b""

    def _broker(self, name: str, request: RemotingCommand) -> Reply:
        if not name:
            return VERSION_NOT_SUPPORTED, {}, b""
        return self.cluster.brokers[name]._reply(request)

    def _route(self, request: RemotingCommand) -> Reply:
        code, fields, body = self.cluster._reply(request)
        if code != SUCCESS:
            return code, fields, body
        route = TopicRouteData.decode(body)
        brokers = tuple(replace(one, broker_addrs={0: self.address}) for one in route.broker_datas)
        return code, fields, replace(route, broker_datas=brokers).encode(quoted_keys=True)
