"""The membership of one process in a consumer group: heartbeats, and the other members that live. Control plane.

Source: ConsumerManager.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from rmq_store.cluster import (
    Cluster,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    heartbeat,
    live_members,
    unregister,
)
from rmq_store.errors import LeaseHeldError, StoreError


class Membership:
    """This process as `client_id`, in a group whose name has no namespace."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.client_id = ""
        self._cluster = cluster
        self._group = group
        self._has_joined = False
        self._seen: set[str] = set()

    def beat(self, topics: Collection[str], broker_names: Collection[str] | None = None) -> None:
        """Be a member at brokers, or at all, as one that reads these topics (34). A broker forgets that after 120 s.

        Raises:
            MQBrokerError: a broker refuses; the others know it. RemotingError: none of them answers.
        """
        data = ConsumerData(
            group_name=self._cluster.wire_group(self._group),
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=tuple(
                SubscriptionData(topic=self._cluster.wire_topic(topic), sub_string="*") for topic in sorted(topics)
            ),
        )
        self._has_joined = True
        heartbeat(self._cluster, HeartbeatData(client_id=self.client_id, consumer_data_set=(data,)), broker_names)

    def leave(self) -> None:
        """Be no member any more (35); a broker that does not answer forgets it by itself."""
        if self._has_joined:
            with contextlib.suppress(StoreError):
                unregister(self._cluster, self.client_id, consumer_group=self._group)
        self._has_joined = False

    def others(self, broker_names: Collection[str] | None = None) -> list[str]:
        """The other living members, as the masters that answer know them (203), of these brokers or of all. Raises
        MQBrokerError.
        """
        return sorted(live_members(self._cluster, self._group, broker_names) - {self.client_id})

    def came(self) -> list[str]:
        """Those of the others that this call sees for the first time. Raises MQBrokerError."""
        came = [other for other in self.others() if other not in self._seen]
        self._seen |= set(came)
        return came

    def refuse_others(self, topic: str) -> None:
        """Raises LeaseHeldError if there are others; it names them."""
        others = self.others()
        if others:
            holder = ", ".join(others)
            raise LeaseHeldError(
                f"group {self._group!r} has other live members, which read topic {topic!r} or would lose their queues: "
                f"{holder}. Stop them, or set commitOffsets=false to read beside them",
                holder,
            )
