"""Groups that are set to a time or to an offset, broker by broker.

The broker is told first (222): one of 5.x keeps the new offsets and hands them out at the next pull, one of 4.x tells
the members that are online. A broker of 4.x without members refuses (206); then the offsets are written (15).

Source: DefaultMQAdminExtImpl.java (resetOffsetByTimestamp, resetOffsetByQueueId, resetOffsetByTimestampOld).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from rmq_store.errors import UsageError
from rmq_store.protocol.bodies.groups import ResetOffsetBody
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.versions import V5_0_0
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster import offsets
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.brokers import ask_runtime_info
from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections
from rmq_store.remoting.questions.offsets import ALL_QUEUES, ask_reset


class Way(StrEnum):
    """How a broker carried out a reset."""

    BY_BROKER = "by the broker"
    WRITTEN = "offsets were written"


class ResetDone(NamedTuple):
    """The work of one broker: the offsets that it told, or that were written, by queue.

    `left_out`: queues that were wanted and that the broker has not set. One of 4.x sets only queues that may be written
    (Broker2Client#resetOffset), and its members would overwrite an offset that is written.
    """

    way: Way
    offsets: Mapping[MessageQueue, int]
    left_out: Sequence[MessageQueue] = ()


def reset_at(
    cluster: Cluster,
    process: BrokerProcess,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool,
    wanted: Mapping[MessageQueue, int],
    queue_id: int = ALL_QUEUES,
    offset: int | None = None,
) -> ResetDone:
    """Set a group to a time at one master of the topic, or to `offset` in one queue.

    `wanted` are the offsets that the caller has found for this time; they are written if the broker refuses (206).

    Raises:
        UsageError: one queue only, and a broker of 4.x with members online: it would set all queues.
        MQBrokerError: another refusal. RemotingError: no answer.
    """
    if queue_id != ALL_QUEUES and _is_older_than_5(cluster, process):
        # A broker of 4.x does not read the queue's number, and would set all queues.
        if not _is_offline(cluster, process, group):
            raise UsageError(
                f"broker {process.broker_name} is older than 5.0, where one queue of a group cannot be set while its "
                f"members run: stop the members of {group!r}"
            )
        return _written(cluster, group, wanted)
    command = ask_reset(cluster, group, topic, timestamp_ms, force=force, queue_id=queue_id, offset=offset)
    answer = ask(cluster, process, command, lambda answer, _: answer)
    is_offline = answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    if answer.code == ResponseCode.SYSTEM_ERROR and answer.version < V5_0_0:
        # A broker of 4.x knows no offset of the group in some queue ("not exist"), and looks for members afterwards.
        is_offline = _is_offline(cluster, process, group)
    if is_offline:
        return _written(cluster, group, wanted)
    checked(answer, process.broker_name)
    told = ResetOffsetBody.decode(answer.body).offset_table if answer.body else {}
    plain = {MessageQueue(topic, queue.broker_name, queue.queue_id): value for queue, value in told.items()}
    return ResetDone(Way.BY_BROKER, plain, sorted(wanted.keys() - plain.keys()) if plain else ())


def _written(cluster: Cluster, group: str, wanted: Mapping[MessageQueue, int]) -> ResetDone:
    return ResetDone(Way.WRITTEN, offsets.update_consumer_offsets(cluster, group, wanted))


def _is_offline(cluster: Cluster, process: BrokerProcess, group: str) -> bool:
    """Whether the broker knows no member of the group."""
    return ask(cluster, process, ask_consumer_connections(cluster, group), read_consumer_connections) is None


def _is_older_than_5(cluster: Cluster, process: BrokerProcess) -> bool:
    """Every answer has the version of its broker."""
    return ask(cluster, process, ask_runtime_info(), checked).version < V5_0_0
