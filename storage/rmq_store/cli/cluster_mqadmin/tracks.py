"""The groups that have consumed a message of a cluster: the lines below a message.

As for a store, the offset decides first, and a group that has not consumed the message and has no member is NOT_ONLINE.
mqadmin says NOT_ONLINE of every group without members. Source: DefaultMQAdminExtImpl.java (messageTrackDetail).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_store.broker.monitoring.message_track import MessageTrack, TrackType, matches, not_online
from rmq_store.cli.cluster_mqadmin.common import masters_of
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.admin.groups import topic_groups
from rmq_store.remoting.admin.scope import ask
from rmq_store.remoting.cluster.offsets import query_consumer_offset
from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

if TYPE_CHECKING:
    from rmq_store import StoredMessage
    from rmq_store.protocol.bodies.groups import SubscriptionData
    from rmq_store.remoting.cluster.cluster import Cluster


class ClusterTracker:
    """Finds the tracks of messages. `brokers`: offset id of a message -> its broker, for messages to come."""

    def __init__(self, cluster: Cluster, brokers: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._brokers = brokers

    def track(self, message: StoredMessage) -> list[MessageTrack]:
        """One track for each group of the message's topic at its broker; UNKNOWN with the reason if a broker refuses or
        does not answer.
        """
        try:
            groups = self.groups(message.topic, self._brokers[message.offset_msg_id])
        except (MQBrokerError, RemotingError) as error:
            return [MessageTrack("-", TrackType.UNKNOWN, str(error))]
        return [self.track_of(group, message) for group in groups]

    def groups(self, topic: str, broker_name: str) -> list[str]:
        """The groups that consume a topic at a broker, or have offsets there, sorted. Raises as `topic_groups`."""
        route = self._cluster.route(topic)
        mine = [one for one in masters_of(route) if one.broker_name == broker_name] if route is not None else []
        return topic_groups(self._cluster, mine, topic)

    def track_of(self, group: str, message: StoredMessage) -> MessageTrack:
        """The track of one group; UNKNOWN with the reason if the broker refuses or does not answer."""
        queue = MessageQueue(message.topic, self._brokers[message.offset_msg_id], message.queue_id)
        try:
            return self._of_group(message, queue, group)
        except (MQBrokerError, RemotingError) as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))

    def _of_group(self, message: StoredMessage, queue: MessageQueue, group: str) -> MessageTrack:
        route = self._cluster.known_route(queue.topic)
        mine = next(one for one in masters_of(route) if one.broker_name == queue.broker_name)
        online = ask(self._cluster, mine, ask_consumer_connections(self._cluster, group), read_consumer_connections)
        if online is not None and online.message_model == "BROADCASTING":
            return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
        if online is not None and online.consume_type == "CONSUME_ACTIVELY":
            return MessageTrack(group, TrackType.PULL)
        offset = query_consumer_offset(self._cluster, group, queue, set_zero_if_not_found=False) or 0
        if offset > message.queue_offset:
            filters = {} if online is None else online.subscription_table
            is_taken = _is_taken(message, filters.get(self._cluster.wire_topic(message.topic)))
            return MessageTrack(group, TrackType.CONSUMED if is_taken else TrackType.CONSUMED_BUT_FILTERED)
        return not_online(group) if online is None else MessageTrack(group, TrackType.NOT_CONSUME_YET)


def _is_taken(message: StoredMessage, subscription: SubscriptionData | None) -> bool:
    if subscription is None:
        return True
    try:
        return matches(subscription.expression_type, subscription.sub_string, message.properties, message.tags)
    except UsageError:
        return True  # an expression that another client understands
