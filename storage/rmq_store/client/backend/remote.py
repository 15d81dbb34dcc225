"""A cluster of real brokers, over the network.

    with Producer("pg_orders", "rmq://ns1:9876;ns2:9876") as producer: ...

Source: MQClientInstance.java.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from rmq_store.arguments import checked_methods
from rmq_store.client.backend.remote_broker import RemoteBroker
from rmq_store.client.backend.remote_members import RemoteMembers
from rmq_store.client.backend.remote_transactions import RemoteGroup, RemoteTransactions
from rmq_store.client.backend.transactions import OnCheck
from rmq_store.errors import TopicKindError
from rmq_store.format.text.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from rmq_store.protocol.errors import MQClientError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import topics
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import PERM_WRITE
from rmq_store.remoting.transport.settings import ClusterSettings

TOPIC_QUEUE_NUMS: Final = 4


@checked_methods(constructor=True)
class RemoteBackend:
    """The brokers of a cluster. `cluster`: a text as `rmq://ns1:9876;ns2:9876`, settings, or an open Cluster, which
    `close` leaves open. Safe for threads, not across fork.

    Brokers tell the members of a group apart by their connections, so each member needs a backend of its own. A client
    that gets a text has one.

    Raises:
        UsageError: a malformed address.
    """

    def __init__(self, cluster: Cluster | ClusterSettings | str) -> None:
        settings = ClusterSettings.of_text(cluster) if isinstance(cluster, str) else cluster
        self._closes = not isinstance(settings, Cluster)
        self.cluster = settings if isinstance(settings, Cluster) else Cluster(settings)
        self._members = RemoteMembers(self.cluster)
        self._transactions = RemoteTransactions(self.cluster)
        self._brokers: dict[str, RemoteBroker] = {}
        # Topic -> with how many queues its first message makes it.
        self._queue_nums: dict[str, int] = {}
        self._checked_topics = topics.CheckedTopics(self.cluster)
        self.cluster.client.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members.on_change)
        self.cluster.client.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._members.on_reset)

    def close(self) -> None:
        """Leave all groups, and close the connections. Does nothing the second time."""
        self._transactions.close()
        self._members.leave_all()
        if self._closes:
            self.cluster.close()

    def __enter__(self) -> RemoteBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def clock(self) -> int:
        """The time in ms. Brokers have clocks of their own, which should show the same."""
        return time.time_ns() // 1_000_000

    def brokers(self) -> Mapping[str, RemoteBroker]:
        """See `Backend.brokers`: those that the name servers know, at most 30 s ago."""
        known = self._brokers
        names = self.cluster.broker_names()
        if list(known) != names:
            self._brokers = known = {name: known.get(name) or self._broker(name) for name in names}
        return known

    def publish_queues(self, topic: str, default_topic_queue_nums: int = TOPIC_QUEUE_NUMS) -> list[MessageQueue]:
        """See `Backend.publish_queues`. A topic that no broker has is made by its first message, at the broker that
        gets it, if brokers allow that (autoCreateTopicEnable). Retry and dead-letter topics are never created here.
        """
        self._look_at(topic)
        route = self.cluster.route(topic)
        if route is not None:
            return route.publish_queues()
        defaults = None if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else self.cluster.route(AUTO_CREATE_TOPIC)
        if defaults is None:
            return []
        self._queue_nums[topic] = default_topic_queue_nums
        return [
            MessageQueue(topic, name, queue_id)
            for name, queues in sorted(defaults.queues.items())
            if queues.perm & PERM_WRITE and name in defaults.brokers and defaults.brokers[name].master is not None
            for queue_id in range(min(default_topic_queue_nums, queues.write_queue_nums))
        ]

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """See `Backend.subscribe_queues`."""
        self._look_at(topic)
        route = self.cluster.route(topic)
        return [] if route is None else route.read_queues()

    def transactions(self, group: str, client_id: str, on_check: OnCheck) -> RemoteGroup:
        """See `Backend.transactions`."""
        return self._transactions.open(group, client_id, on_check)

    def default_topic_queue_nums(self, topic: str) -> int:
        """With how many queues the first message makes a topic."""
        return self._queue_nums.get(topic, TOPIC_QUEUE_NUMS)

    def _broker(self, name: str) -> RemoteBroker:
        return RemoteBroker(name, self.cluster, self._members, self._transactions, self.default_topic_queue_nums)

    def _look_at(self, topic: str) -> None:
        """Refuse a topic of another kind."""
        try:
            self._checked_topics.refuse_to_read(topic)
        except TopicKindError as error:
            raise MQClientError(str(error)) from error

