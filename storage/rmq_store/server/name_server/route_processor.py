"""103 to 106, 206, 224, 304 and 322: requests about routes (DefaultRequestProcessor.java)."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

from rmq_store.protocol.bodies.compressed_registration import decode_compressed_registration
from rmq_store.protocol.bodies.routes import BrokerData, RegisterBrokerBody, TopicList
from rmq_store.protocol.bodies.topics import DataVersion
from rmq_store.protocol.errors import RemotingCommandError, ResponseCode
from rmq_store.protocol.versions import V4_9_4
from rmq_store.protocol.wire.admin_headers import DeleteTopicFromNamesrvRequestHeader
from rmq_store.protocol.wire.command import LanguageCode, RemotingCommand
from rmq_store.protocol.wire.name_server_headers import (
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from rmq_store.server.name_server.kv_configs import ORDER_TOPIC_CONFIG, KVConfigs
from rmq_store.server.name_server.route_table import EXPIRES_MS, RouteTable
from rmq_store.server.requests.request import Request, refusal

# From V4_9_4 on clients read JSON whose numeric keys are in quotes.
_QUOTED_VERSION: Final = V4_9_4
_SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"


class RouteProcessor:
    """Answers about one route table. `kv_configs` has the orders of queues, where there are any."""

    def __init__(self, table: RouteTable, kv_configs: KVConfigs | None = None) -> None:
        self._table = table
        self._kv_configs = kv_configs or KVConfigs()

    def route(self, request: Request) -> RemotingCommand:
        """105. It has the order of the topic's queues if one was put (100); Java says it only if it is set up to."""
        header = request.header(GetRouteInfoRequestHeader)
        route = self._table.route(header.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic}"
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        is_quoted = request.command.version >= _QUOTED_VERSION or bool(header.accept_standard_json_only)
        order = self._kv_configs.value(ORDER_TOPIC_CONFIG, header.topic)
        return request.answer(body=replace(route, order_topic_conf=order).encode(quoted_keys=is_quoted))

    def clusters(self, request: Request) -> RemotingCommand:
        """106."""
        is_quoted = request.command.version >= _QUOTED_VERSION
        return request.answer(body=self._table.clusters().encode(quoted_keys=is_quoted))

    def topics(self, request: Request) -> RemotingCommand:
        """206."""
        return request.answer(body=TopicList(topic_list=tuple(self._table.topics())).encode())

    def topics_of_cluster(self, request: Request) -> RemotingCommand:
        """224."""
        cluster = request.header(GetTopicsByClusterRequestHeader).cluster
        return request.answer(body=TopicList(topic_list=tuple(self._table.topics(cluster))).encode())

    def system_topics(self, request: Request) -> RemotingCommand:
        """304: names of clusters and brokers, which are topics of Java's brokers, and the address of a broker, which a
        client then asks for the others (RouteInfoManager#getSystemTopicList).
        """
        known = self._table.clusters()
        names = {*known.cluster_addr_table, *known.broker_addr_table}
        addresses = [broker.broker_addrs[min(broker.broker_addrs)] for broker in known.broker_addr_table.values()]
        body = TopicList(topic_list=tuple(sorted(names)), broker_addr=addresses[0] if addresses else None)
        return request.answer(body=body.encode())

    def delete_topic(self, request: Request) -> RemotingCommand:
        """216: a topic of brokers in other processes, or of those in one cluster (RouteInfoManager#deleteTopic). One of
        this process is in the routes while its store has it.
        """
        header = request.header(DeleteTopicFromNamesrvRequestHeader)
        self._table.delete_topic(header.topic, header.cluster_name or None)
        return request.answer()

    def register(self, request: Request) -> RemotingCommand:
        """103. A name of a broker that is known with another address is refused, so that two do not take turns.

        A Java broker registers the topics that have just changed alone (BrokerController#registerIncrementBrokerData),
        and nothing says so: SELF_TEST_TOPIC, which each of them has from its start, is then not among them. A slave is
        told where it copies its master's log; a Java slave learns it nowhere else (haMasterAddress).
        """
        header = request.header(RegisterBrokerRequestHeader)
        known = self._table.address_of(header.broker_name, header.broker_id)
        if known not in (None, header.broker_addr):
            remark = f"broker {header.broker_name} is registered with the address {known}"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)
        wrapper = _registration(request.command.body, header).topic_config_serialize_wrapper
        is_java = request.command.language == LanguageCode.JAVA
        master = self._table.register(
            BrokerData(cluster=header.cluster_name, broker_name=header.broker_name, broker_addrs={}),
            header.broker_id,
            header.broker_addr,
            wrapper.topic_config_table,
            version=wrapper.data_version,
            peer=request.peer,
            expires_ms=header.heartbeat_timeout_millis or EXPIRES_MS,
            is_whole=_SELF_TEST_TOPIC in wrapper.topic_config_table or not is_java,
            ha_address=header.ha_server_addr,
        )
        ha_address = self._table.ha_address_of_master(header.broker_name) if master is not None else None
        return request.answer(header=RegisterBrokerResponseHeader(ha_server_addr=ha_address, master_addr=master))

    def data_version(self, request: Request) -> RemotingCommand:
        """322. A broker whose topics have not changed is alive by this question, and need not register again."""
        header = request.header(QueryDataVersionRequestHeader)
        asked = DataVersion.decode(request.command.body)
        known = self._table.seen(header.broker_name, header.broker_id, header.broker_addr, asked)
        answer = QueryDataVersionResponseHeader(changed=known != asked)
        return request.answer(header=answer, body=known.encode() if known is not None else b"")

    def unregister(self, request: Request) -> RemotingCommand:
        """104."""
        header = request.header(UnRegisterBrokerRequestHeader)
        self._table.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return request.answer()


def _registration(body: bytes, header: RegisterBrokerRequestHeader) -> RegisterBrokerBody:
    if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
        raise RemotingCommandError("the CRC of the registration is wrong")
    return decode_compressed_registration(body) if header.compressed else RegisterBrokerBody.decode(body)
