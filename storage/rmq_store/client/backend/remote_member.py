"""One member of a group, at real brokers: what its heartbeats say, and who else is a member.

A broker forgets a member at once when the connection is lost, and 120 s after the last heartbeat of one whose process
stands still. Sources: MQClientInstance.java (prepareHeartbeatData), ConsumerGroupInfo.java, ConsumerManager.java.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.format.text.hashing import java_hash
from rmq_store.protocol.bodies.clients import ConsumerData, HeartbeatData
from rmq_store.protocol.bodies.groups import SubscriptionData
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster


class RemoteMember:
    """The member `client_id` of a group, whose name has no namespace. It asks nobody before the first heartbeat.

    `subscriptions`: its topics, each with its subscription, None for all messages. `pulls`: it takes messages when it
    wants to (CONSUME_ACTIVELY), and has no listener. `shares`: its queues are shared with the group (CLUSTERING).
    """

    def __init__(self, cluster: Cluster, group: str, client_id: str, *, pulls: bool, shares: bool = True) -> None:
        self.client_id = client_id
        self.shares = shares
        self.subscriptions: Mapping[str, Subscription | None] = {}
        # The brokers that have answered a heartbeat since the member joined there.
        self.told: set[str] = set()
        self._cluster = cluster
        self._group = group
        self._pulls = pulls
        self._has_joined = False
        self._versions: dict[tuple[str, str], int] = {}

    def heartbeat(
        self, broker_names: Collection[str] | None = None, *, through: Cluster | None = None
    ) -> list[str]:
        """Be a member at brokers, or at all, as one that has these subscriptions (34). Returns those that have
        answered. `through`: the cluster to ask, if it is another view of it.

        Raises:
            MQBrokerError: a broker refuses; the others know it. RemotingError: none of them answers.
        """
        self._has_joined = True
        data = HeartbeatData(client_id=self.client_id, consumer_data_set=(self._data(),))
        reached = groups.heartbeat(through or self._cluster, data, broker_names)
        self.told.update(reached)
        return reached

    def leave(self, broker_names: Collection[str] | None = None) -> None:
        """Be no member any more at brokers, or at all (35). One that does not answer finds that out by itself."""
        if not self._has_joined:
            return
        if broker_names is None:
            self._has_joined = False
            self.told.clear()
        else:
            self.told.difference_update(broker_names)
        groups.unregister(self._cluster, self.client_id, consumer_group=self._group, broker_names=broker_names)

    def others_at(
        self, broker_names: Collection[str] | None = None, *, through: Cluster | None = None
    ) -> dict[str, set[str]]:
        """The ids of the other members, by broker, as those masters know them that answer, of these brokers or of all
        (203). MQBrokerError: one refuses.
        """
        told = groups.gather_members(through or self._cluster, self._group, broker_names).those_that_answer()
        return {name: members - {self.client_id} for name, members in told.items()}

    def _data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._cluster.wire_group(self._group),
            consume_type="CONSUME_ACTIVELY" if self._pulls else "CONSUME_PASSIVELY",
            message_model="CLUSTERING" if self.shares else "BROADCASTING",
            subscription_data_set=tuple(self._subscription(*each) for each in self.subscriptions.items()),
        )

    def _subscription(self, topic: str, subscription: Subscription | None) -> SubscriptionData:
        kind, text = "TAG", "*"
        if subscription is not None:
            kind, text = subscription.selector.expression_type, subscription.selector.expression
        tags = TagFilter.parse(text) if kind == "TAG" else None
        return SubscriptionData(
            topic=self._cluster.wire_topic(topic),
            sub_string=text,
            tags_set=() if tags is None else tags.tags,
            code_set=() if tags is None else tuple(java_hash(tag) for tag in tags.tags),
            sub_version=self._version(topic, f"{kind} {text}"),
            expression_type=kind,
        )

    def _version(self, topic: str, expression: str) -> int:
        """The version of a subscription. Brokers take one of a higher version for the newer one."""
        newest = max(self._versions.values(), default=0)
        return self._versions.setdefault((topic, expression), max(time.time_ns() // 1_000_000, newest + 1))
