"""Topics at single brokers, and at all name servers: settings, routes, ordered queues (AdminBrokerProcessor.java)."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.protocol.bodies.topics import TopicConfig
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions import name_servers
from rmq_store.remoting.questions import topics as questions
from rmq_store.remoting.questions.answer import checked


def topic_config(cluster: Cluster, process: BrokerProcess, topic: str) -> TopicConfig | None:
    """A topic's settings at one broker (351; of an older broker 21); None: it has no such topic. Raises as
    `scope.ask`.
    """
    try:
        return ask(cluster, process, questions.ask_topic_config(cluster, topic), questions.read_topic_config)
    except MQBrokerError as error:
        if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    configs = ask(cluster, process, questions.ask_topic_configs(), questions.read_topic_configs)
    return configs.get(cluster.wire_topic(topic))


def delete_route(cluster: Cluster, topic: str, cluster_name: str | None = None) -> None:
    """Delete a topic from the routes of all name servers (216), for one cluster only if it is named.

    Raises:
        MQBrokerError: a name server refuses. RemotingError: one does not answer: repeat the call.
    """
    command = name_servers.ask_delete_route(cluster.wire_topic(topic), cluster_name)
    for address, answer in cluster.name_servers.call_each(command, cluster.settings.timeout_ms).items():
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
        known_or_none = ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND
        asked = name_servers.ask_order_conf(key)
        answer = cluster.name_servers.call(asked, cluster.settings.timeout_ms, known_or_none)
        checked(answer, "a name server", known_or_none)
        pairs = (entry.partition(":") for entry in answer.ext_fields.get("value", "").split(";"))
        known = {name: count for name, colon, count in pairs if colon}
    known |= {name: str(count) for name, count in counts.items()}
    text = ";".join(f"{name}:{count}" for name, count in sorted(known.items()))
    command = name_servers.ask_put_order_conf(key, text)
    for address, given in cluster.name_servers.call_each(command, cluster.settings.timeout_ms).items():
        checked(given, f"name server {address}")
    return text
