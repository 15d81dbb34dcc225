"""Settings, figures and cleaning of single brokers (AdminBrokerProcessor.java)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.errors import UsageError
from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.bodies.topics import BrokerStatsData, QueryConsumeQueueResponseBody
from rmq_store.protocol.wire.admin_headers import (
    CleanExpiredConsumeQueueRequestHeader,
    CleanUnusedTopicRequestHeader,
    DeleteExpiredCommitLogRequestHeader,
    GetBrokerConfigRequestHeader,
    GetBrokerRuntimeInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    UpdateBrokerConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster, checked, is_nothing

CLEAN_TIMEOUT_MS: Final = 60_000
"""A broker answers when it has walked over all of its queues."""
_SPECIAL = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"})


def runtime_info(cluster: Cluster, process: BrokerProcess) -> dict[str, str]:
    """The figures of a process, as texts by their names (28). Raises as `scope.ask`."""
    return dict(KVTable.decode(ask(cluster, process, request(GetBrokerRuntimeInfoRequestHeader())).body).table)


def broker_config(cluster: Cluster, process: BrokerProcess) -> dict[str, str]:
    """The settings of a process, in the order of its answer (26). Raises as `scope.ask`."""
    text = ask(cluster, process, request(GetBrokerConfigRequestHeader())).body.decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def require_setting(settings: Mapping[BrokerProcess, Mapping[str, str]], name: str) -> None:
    """Raise UsageError if the settings of a process lack a name; it names all of these processes."""
    without = [process for process, known in settings.items() if name not in known]
    if without:
        places = ", ".join(f"{process.broker_name} ({process.address})" for process in without)
        raise UsageError(f"broker {places} has no setting {name!r}: nothing is changed at any broker")


def update_broker_config(cluster: Cluster, process: BrokerProcess, name: str, value: str) -> None:
    """Change one setting of a process (25); it is in the broker's file on return.

    A broker answers "success" for a name that it does not know: `require_setting` looks it up before.

    Raises as `scope.ask`.
    """
    # java.util.Properties: what would end the name or the line is escaped.
    line = f"{name}={value.translate(_SPECIAL)}\n"
    ask(cluster, process, request(UpdateBrokerConfigRequestHeader(), line.encode()))


def stats(cluster: Cluster, process: BrokerProcess, name: str, key: str) -> BrokerStatsData | None:
    """One rate of a broker, as TOPIC_PUT_NUMS of a topic (315); None: the broker has none. Raises as `scope.ask`."""
    header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    answer = ask(cluster, process, request(header), ok=None)
    return None if is_nothing(answer) else BrokerStatsData.decode(checked(answer, process.broker_name).body)


def queue_entries(
    cluster: Cluster,
    process: BrokerProcess,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    group: str | None = None,
) -> QueryConsumeQueueResponseBody:
    """`count` entries of a queue's files from offset `index` on (321), as far as there are some.

    With `group` each entry says whether the group's filter takes it. Raises as `scope.ask`.
    """
    header = QueryConsumeQueueRequestHeader(
        topic=cluster.wire_topic(topic),
        queue_id=queue_id,
        index=index,
        count=count,
        # A broker of 4.9 needs the field.
        consumer_group=cluster.wire_group(group) if group else "",
    )
    return QueryConsumeQueueResponseBody.decode(ask(cluster, process, request(header)).body)


def clean_expired_consume_queues(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete queue files whose messages are gone (306). Raises as `scope.ask`."""
    _clean(cluster, process, request(CleanExpiredConsumeQueueRequestHeader()))


def delete_expired_commit_log(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete files of the log that are older than fileReservedTime, at whatever hour (329). Raises as `scope.ask`."""
    _clean(cluster, process, request(DeleteExpiredCommitLogRequestHeader()))


def clean_unused_topics(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete the queues of topics that the broker does not have any more (316). Raises as `scope.ask`."""
    _clean(cluster, process, request(CleanUnusedTopicRequestHeader()))


def _clean(cluster: Cluster, process: BrokerProcess, command: RemotingCommand) -> None:
    ask(cluster, process, command, CLEAN_TIMEOUT_MS)
