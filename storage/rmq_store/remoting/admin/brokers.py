"""Settings, figures and cleaning of single brokers (AdminBrokerProcessor.java). All raise as `scope.ask`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.errors import UsageError
from rmq_store.protocol.bodies.topics import BrokerStatsData, QueryConsumeQueueResponseBody
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions import brokers as questions
from rmq_store.remoting.questions.answer import checked

CLEAN_TIMEOUT_MS: Final = 60_000
"""A broker answers when it has walked over all of its queues."""


def runtime_info(cluster: Cluster, process: BrokerProcess) -> dict[str, str]:
    """The figures of a process, as texts by their names (28)."""
    return ask(cluster, process, questions.ask_runtime_info(), questions.read_runtime_info)


def broker_config(cluster: Cluster, process: BrokerProcess) -> dict[str, str]:
    """The settings of a process, in the order of its answer (26)."""
    return ask(cluster, process, questions.ask_broker_config(), questions.read_broker_config)


def require_setting(settings: Mapping[BrokerProcess, Mapping[str, str]], name: str) -> None:
    """Raise UsageError if the settings of a process lack a name; it names all of these processes."""
    without = [process for process, known in settings.items() if name not in known]
    if without:
        places = ", ".join(f"{process.broker_name} ({process.address})" for process in without)
        raise UsageError(f"broker {places} has no setting {name!r}: nothing is changed at any broker")


def update_broker_config(cluster: Cluster, process: BrokerProcess, name: str, value: str) -> None:
    """Change one setting of a process (25); it is in the broker's file on return.

    A broker answers "success" for a name that it does not know: `require_setting` looks it up before.
    """
    ask(cluster, process, questions.ask_update_broker_config(name, value), checked)


def stats(cluster: Cluster, process: BrokerProcess, name: str, key: str) -> BrokerStatsData | None:
    """One rate of a broker, as TOPIC_PUT_NUMS of a topic (315); None: the broker has none."""
    return ask(cluster, process, questions.ask_stats(name, key), questions.read_stats)


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

    With `group` each entry says whether the group's filter takes it.
    """
    command = questions.ask_queue_entries(cluster, topic, queue_id, index, count, group)
    return ask(cluster, process, command, questions.read_queue_entries)


def clean_expired_consume_queues(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete queue files whose messages are gone (306)."""
    ask(cluster, process, questions.ask_clean_expired_consume_queues(), checked, CLEAN_TIMEOUT_MS)


def delete_expired_commit_log(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete files of the log that are older than fileReservedTime, at whatever hour (329)."""
    ask(cluster, process, questions.ask_delete_expired_commit_log(), checked, CLEAN_TIMEOUT_MS)


def clean_unused_topics(cluster: Cluster, process: BrokerProcess) -> None:
    """Delete the queues of topics that the broker does not have any more (316)."""
    ask(cluster, process, questions.ask_clean_unused_topics(), checked, CLEAN_TIMEOUT_MS)
