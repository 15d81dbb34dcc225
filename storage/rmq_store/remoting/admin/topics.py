"""Topics at single brokers and at name servers: settings, creation, deletion (AdminBrokerProcessor.java)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.protocol.bodies.topics import TopicConfig, TopicConfigTable
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.name_server_headers import GetKVConfigRequestHeader, PutKVConfigRequestHeader
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster, checked

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG: the queues of ordered topics, at the name servers."""
_DEFAULT_TOPIC: Final = "TBW102"


def topic_config(cluster: Cluster, process: BrokerProcess, topic: str) -> TopicConfig | None:
    """A topic's settings at one broker (351; of an older broker 21); None: it has no such topic. Raises as
    `scope.ask`.
    """
    wire_topic = cluster.wire_topic(topic)
    absent, unknown = ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    answer = ask(
        cluster, process, request(GetTopicConfigRequestHeader(topic=wire_topic)),
        ok=(ResponseCode.SUCCESS, absent, unknown),
    )  # fmt: skip
    if answer.code == unknown:
        return topic_configs(cluster, process).get(wire_topic)
    return None if answer.code == absent else TopicConfig.decode(answer.body)


def topic_configs(cluster: Cluster, process: BrokerProcess) -> dict[str, TopicConfig]:
    """The settings of all topics of a broker (21), by their names on the wire. Raises as `scope.ask`."""
    answer = ask(cluster, process, request(GetAllTopicConfigRequestHeader()))
    return dict(TopicConfigTable.decode(answer.body).topic_config_table)


def create_topic(
    cluster: Cluster, process: BrokerProcess, config: TopicConfig, attributes: Mapping[str, str | None]
) -> None:
    """Make a topic at one broker, or change it (17). `attributes` are changes: a value, or None to remove one.

    On return the broker has stored the topic. Raises as `scope.ask`.
    """
    changes = [f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items()]
    header = CreateTopicRequestHeader(
        topic=cluster.wire_topic(config.topic_name),
        default_topic=_DEFAULT_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(changes) or None,
    )
    ask(cluster, process, request(header))


def delete_topic(cluster: Cluster, process: BrokerProcess, topic: str) -> None:
    """Delete a topic with its messages at one broker (215). Raises as `scope.ask`."""
    ask(cluster, process, request(DeleteTopicRequestHeader(topic=cluster.wire_topic(topic))))


def delete_route(cluster: Cluster, topic: str, cluster_name: str | None = None) -> None:
    """Delete a topic from the routes of all name servers (216), for one cluster only if it is named.

    Raises:
        MQBrokerError: a name server refuses. RemotingError: one does not answer: repeat the call.
    """
    header = DeleteTopicFromNamesrvRequestHeader(topic=cluster.wire_topic(topic), cluster_name=cluster_name)
    answers = cluster.name_servers.call_each(request(header), cluster.settings.timeout_ms)
    for address, answer in answers.items():
        checked(answer, f"name server {address}")
    cluster.refresh_route(topic)


def set_order_conf(cluster: Cluster, topic: str, counts: Mapping[str, int], *, replaces: bool) -> str:
    """Write the queues of an ordered topic, broker -> their number, at all name servers (100): the new text, as
    `broker-a:8;broker-b:8`. Without `replaces` the entries of other brokers stay (DefaultMQAdminExtImpl
    #createOrUpdateOrderConf). Raises as `delete_route`.
    """
    key = cluster.wire_topic(topic)
    known: dict[str, str] = {}
    if not replaces:
        asked = request(GetKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=key))
        answer = cluster.name_servers.call(asked, cluster.settings.timeout_ms)
        checked(answer, "a name server", (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
        pairs = (entry.partition(":") for entry in answer.ext_fields.get("value", "").split(";"))
        known = {name: count for name, colon, count in pairs if colon}
    known |= {name: str(count) for name, count in counts.items()}
    text = ";".join(f"{name}:{count}" for name, count in sorted(known.items()))
    header = PutKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=key, value=text)
    for address, given in cluster.name_servers.call_each(request(header), cluster.settings.timeout_ms).items():
        checked(given, f"name server {address}")
    return text
