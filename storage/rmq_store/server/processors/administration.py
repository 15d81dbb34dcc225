"""Settings and figures that mqadmin asks for (AdminBrokerProcessor.java): topics, groups, consumers."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

from rmq_store.broker.metadata import groups as stored_groups
from rmq_store.broker.metadata import topics as stored_topics
from rmq_store.broker.metadata.json_table import ConfigFile
from rmq_store.format.tables.config_json import dumps
from rmq_store.format.text.names import SYSTEM_TOPICS
from rmq_store.protocol.attributes import TOPIC_ATTRIBUTES, attribute_changes, changed_attributes
from rmq_store.protocol.bodies.groups import (
    GroupList,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.routes import TIMER_MESSAGES, KVTable, TopicList
from rmq_store.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.versions import version_name
from rmq_store.protocol.wire.admin_headers import (
    CreateTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rmq_store.protocol.wire.command import VERSION, RemotingCommand
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.members import Members, language_name
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal


class AdministrationProcessor:
    """Answers mqadmin about one store."""

    def __init__(self, served: ServedStore, members: Members, offsets: CommittedOffsets) -> None:
        self._served = served
        self._members = members
        self._offsets = offsets
        self._started_s = time.time()

    def create_topic(self, request: Request) -> RemotingCommand:
        """17: a topic, new or changed; attributes that the request does not name stay."""
        header = request.header(CreateTopicRequestHeader)
        self._served.refuse_own_topic(header.topic)
        attributes = attribute_changes(header.attributes or "", TOPIC_ATTRIBUTES)

        def changed(known: stored_topics.TopicConfig) -> stored_topics.TopicConfig:
            return replace(
                known,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
                attributes=changed_attributes(known.attributes, attributes),
            )

        self._served.store.admin.update_topic(header.topic, changed, default=stored_topics.TopicConfig(header.topic))
        return request.answer()

    def topic_config(self, request: Request) -> RemotingCommand:
        """351."""
        name = request.header(GetTopicConfigRequestHeader).topic
        return request.answer(body=topic_config_of(self._served.topic(name)).encode())

    def topic_configs(self, request: Request) -> RemotingCommand:
        """21."""
        version = self._version(stored_topics.TopicTable.file_name)  # first: what changes now is asked for again
        table = {name: topic_config_of(topic) for name, topic in self._served.store.topics().items()}
        return request.answer(body=TopicConfigTable(topic_config_table=table, data_version=version).encode())

    def system_topics(self, request: Request) -> RemotingCommand:
        """305: those of every broker, and its own (TopicValidator.java). A dashboard leaves them out of its list."""
        names = tuple(sorted(SYSTEM_TOPICS | self._served.own_topics))
        return request.answer(body=TopicList(topic_list=names).encode())

    def groups(self, request: Request) -> RemotingCommand:
        """201."""
        version = self._version(stored_groups.GroupTable.file_name)
        table = {name: _group_of(group) for name, group in self._served.store.groups().items()}
        body = SubscriptionGroupTable(subscription_group_table=table, data_version=version)
        return request.answer(body=body.encode())

    def _version(self, file_name: str) -> DataVersion:
        """That of a table: a slave takes the table again when it has another one."""
        version = ConfigFile(self._served.store.path, file_name).load().get("dataVersion")
        return DataVersion.decode(dumps(version).encode()) if isinstance(version, dict) else DataVersion()

    def group(self, request: Request) -> RemotingCommand:
        """352, which mqadmin of 5.x asks for one group. MQBrokerError 26: there is none; a broker would make it."""
        name = request.header(GetSubscriptionGroupConfigRequestHeader).group
        found = self._served.store.groups().get(name)
        if found is None:
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {name}")
        return request.answer(body=_group_of(found).encode())

    def consumer_connection(self, request: Request) -> RemotingCommand:
        """203."""
        group = request.header(GetConsumerConnectionListRequestHeader).consumer_group
        found = self._members.connection(group)
        if found is None:
            raise refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        return request.answer(body=found.encode())

    def producer_connection(self, request: Request) -> RemotingCommand:
        """204."""
        group = request.header(GetProducerConnectionListRequestHeader).producer_group
        found = self._members.producer_connection(group)
        if found is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return request.answer(body=found.encode())

    def producers(self, request: Request) -> RemotingCommand:
        """328: the connected producers of all groups. A client over gRPC has no language here, and no version."""
        table = {
            group: tuple(
                ProducerInfo(
                    client_id=one.client_id, remote_ip=f"/{one.peer.address}", language=language_name(one.language),
                    version=one.version, last_update_timestamp=one.told_ms,
                )
                for one in producers
            )
            for group, producers in self._members.connected.all_producers().items()
        }  # fmt: skip
        return request.answer(body=ProducerTableInfo(data=table).encode())

    def groups_of_topic(self, request: Request) -> RemotingCommand:
        """300."""
        topic = request.header(QueryTopicConsumeByWhoRequestHeader).topic
        self._offsets.write()
        committed = self._served.store.all_committed_offsets()
        names = {group for group, offsets in committed.items() if any(place[0] == topic for place in offsets)}
        names |= set(self._members.groups_of(topic))
        return request.answer(body=GroupList(group_list=tuple(sorted(names))).encode())

    def runtime_info(self, request: Request) -> RemotingCommand:
        """28. clusterList of 4.9 and of 5.x fail without the rate that is read, each under its own name; and in 5.x a
        broker without `brokerActive` is shown as not activated (ClusterListSubCommand.java).
        """
        first, end = self._served.store.log_range()
        figures = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": version_name(VERSION),
            TIMER_MESSAGES: "true",
            "bootTimestamp": str(int(self._started_s * 1000)),
            "commitLogMinOffset": str(first),
            "commitLogMaxOffset": str(end),
            "putTps": "0.0 0.0 0.0",
            "getTransferredTps": "0.0 0.0 0.0",
            "getTransferedTps": "0.0 0.0 0.0",
            "brokerActive": "true",
            "runtime": f"[ {int(time.time() - self._started_s)} seconds ]",
        }
        return request.answer(body=KVTable(table=figures).encode())


def topic_config_of(topic: stored_topics.TopicConfig) -> TopicConfig:
    """The settings of a topic as they are sent."""
    return TopicConfig(**_shared_values(topic, TopicConfig))


def _group_of(group: stored_groups.SubscriptionGroup) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(**_shared_values(group, SubscriptionGroupConfig))


def _shared_values(
    stored: stored_topics.TopicConfig | stored_groups.SubscriptionGroup, body: type[JsonBody]
) -> dict[str, Any]:
    """The values of the fields that a body has, too. A body is a class of its own: None means "not sent" there, which
    a stored topic or group cannot say.
    """
    names = {field.name for field in fields(body)}
    return {field.name: getattr(stored, field.name) for field in fields(stored) if field.name in names}
