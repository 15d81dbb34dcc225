"""Settings, figures and cleaning of a broker's process (AdminBrokerProcessor.java).

`read_*` raise MQBrokerError if the answer is a refusal, and the error itself if one stands in its place.
"""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.bodies.topics import BrokerStatsData, QueryConsumeQueueResponseBody
from rmq_store.protocol.wire.admin_headers import (
    CleanExpiredConsumeQueueRequestHeader,
    CleanUnusedTopicRequestHeader,
    DeleteExpiredCommitLogRequestHeader,
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    GetBrokerConfigRequestHeader,
    GetBrokerRuntimeInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    UpdateBrokerConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.questions.answer import Given, Names, checked, is_not_told, is_nothing

CLEAN_TIMEOUT_MS: Final = 60_000
"""A broker answers an order to clean (306, 316, 329) when it has walked over all of its queues."""

_SPECIAL = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"})


def ask_runtime_info() -> RemotingCommand:
    """The figures of a process (28): brokerVersionDesc, putTps, commitLogMaxOffset, ..."""
    return request(GetBrokerRuntimeInfoRequestHeader())


def read_runtime_info(answer: Given, broker_name: str) -> dict[str, str]:
    """Texts by their names."""
    return dict(KVTable.decode(checked(answer, broker_name).body).table)


def ask_broker_config() -> RemotingCommand:
    """The settings of a process (26)."""
    return request(GetBrokerConfigRequestHeader())


def read_broker_config(answer: Given, broker_name: str) -> dict[str, str]:
    """In the order of the answer, a line `name=value` each."""
    lines = checked(answer, broker_name).body.decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def ask_ha_address() -> RemotingCommand:
    """Ask where a master has its HA port (906). Brokers of 4.x do not know the question."""
    return request(ExchangeHAInfoRequestHeader())


def read_ha_address(answer: Given, broker_name: str) -> str | None:
    """host:port, as slaves dial it (brokerIP2); None: the broker does not tell, or is no master."""
    if isinstance(answer, RemotingCommand) and is_not_told(answer):
        return None
    return ExchangeHAInfoResponseHeader.from_ext(checked(answer, broker_name).ext_fields).master_ha_address or None


def ask_update_broker_config(name: str, value: str) -> RemotingCommand:
    """Change one setting of a process (25). It answers "success" also for a name that it does not know."""
    # java.util.Properties: what would end the name or the line is escaped.
    return request(UpdateBrokerConfigRequestHeader(), f"{name}={value.translate(_SPECIAL)}\n".encode())


def ask_stats(name: str, key: str) -> RemotingCommand:
    """One rate of a broker, as TOPIC_PUT_NUMS of a topic (315)."""
    return request(ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key))


def read_stats(answer: Given, broker_name: str) -> BrokerStatsData | None:
    """None: the broker has none (1)."""
    return None if is_nothing(answer) else BrokerStatsData.decode(checked(answer, broker_name).body)


def ask_queue_entries(
    names: Names, topic: str, queue_id: int, index: int, count: int, group: str | None = None
) -> RemotingCommand:
    """`count` entries of a queue's files from offset `index` on (321). With `group` each entry says whether the
    group's filter takes it; a broker of 4.9 needs the field.
    """
    header = QueryConsumeQueueRequestHeader(
        topic=names.wire_topic(topic),
        queue_id=queue_id,
        index=index,
        count=count,
        consumer_group=names.wire_group(group) if group else "",
    )
    return request(header)


def read_queue_entries(answer: Given, broker_name: str) -> QueryConsumeQueueResponseBody:
    """As far as there are some."""
    return QueryConsumeQueueResponseBody.decode(checked(answer, broker_name).body)


def ask_clean_expired_consume_queues() -> RemotingCommand:
    """Delete queue files whose messages are gone (306)."""
    return request(CleanExpiredConsumeQueueRequestHeader())


def ask_delete_expired_commit_log() -> RemotingCommand:
    """Delete files of the log that are older than fileReservedTime, at whatever hour (329)."""
    return request(DeleteExpiredCommitLogRequestHeader())


def ask_clean_unused_topics() -> RemotingCommand:
    """Delete the queues of topics that the broker does not have any more (316)."""
    return request(CleanUnusedTopicRequestHeader())
