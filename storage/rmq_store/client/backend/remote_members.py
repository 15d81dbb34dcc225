"""The groups that clients of this process are members of, at real brokers: heartbeats, members, resets.

A broker keeps one client id for each connection and group. It forgets a member at once when the connection is lost; the
next look at the members finds that, and registers again. Sources: ConsumerGroupInfo.java, MQClientInstance.java,
ClientRemotingProcessor.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Final

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.errors import UsageError
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.late.dataclasses import dataclass
from rmq_store.protocol.bodies.clients import ConsumerData, HeartbeatData
from rmq_store.protocol.bodies.groups import ResetOffsetBody, SubscriptionData
from rmq_store.protocol.errors import ClientError, MQClientError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import NotifyConsumerIdsChangedRequestHeader, ResetOffsetRequestHeader
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import SQL92

LITE_PULL_SUFFIX: Final = "@STREAM"
"""The end of the client ids of lite pull consumers, in Java, too."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Member:
    client_id: str
    shares: bool
    # The brokers that know of it.
    told: set[str] = field(default_factory=set)
    subscriptions: dict[str, Subscription | None] = field(default_factory=dict)
    versions: dict[tuple[str, str], int] = field(default_factory=dict)

    def version(self, topic: str, expression: str) -> int:
        """The version of a subscription. Brokers take one of a higher version for the newer one."""
        newest = max(self.versions.values(), default=0)
        return self.versions.setdefault((topic, expression), max(time.time_ns() // 1_000_000, newest + 1))


class RemoteMembers:
    """The members that this process has, one in each group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: dict[str, _Member] = {}
        # Queues that a broker has ordered to reset, and where to. (Group, queue) -> offset.
        self._resets: dict[tuple[str, MessageQueue], int] = {}

    def heartbeat(
        self,
        broker_name: str,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, Subscription | None],
        *,
        shares: bool,
    ) -> None:
        """Tell one broker about a member. A broker that does not answer is left out while another one answers: it
        learns of the member by the next heartbeat.

        Raises:
            UsageError: this backend has another member of the group.
            RemotingError: no broker of the cluster answers.
            MQBrokerError: the broker refuses.
        """
        member = self._members.setdefault(group, _Member(client_id, shares))
        if member.client_id != client_id:
            raise UsageError(
                f"group {group!r} has the member {member.client_id!r} in this backend: brokers tell members apart by "
                "their connections, so give each consumer a backend, or a text as rmq://ns1:9876, of its own"
            )
        member.subscriptions = dict(subscriptions)
        try:
            groups.heartbeat(self._cluster, self._data(group, member), [broker_name])
            member.told.add(broker_name)
        except RemotingError as error:
            if not self._another_answers(broker_name, group):
                raise
            _log.warning("group %s: no heartbeat to %s: %s", group, broker_name, error)

    def condition(self, group: str, topic: str) -> str | None:
        """The SQL92 condition of this process's member for a topic; None if it has none."""
        member = self._members.get(group)
        subscription = None if member is None else member.subscriptions.get(topic)
        if subscription is None or subscription.selector.expression_type != SQL92:
            return None
        return subscription.selector.expression

    def unregister(self, broker_name: str, group: str, client_id: str) -> None:
        """Leave a group at one broker; does nothing if this process has no such member."""
        member = self._members.get(group)
        if member is not None and member.client_id == client_id:
            member.told.discard(broker_name)
            groups.unregister(self._cluster, client_id, consumer_group=group, broker_names=[broker_name])
            if not member.told:
                self._members.pop(group, None)

    def leave_all(self) -> None:
        """Leave all groups; brokers that do not answer find out by themselves."""
        for group, member in list(self._members.items()):
            for broker_name in list(member.told):
                try:
                    self.unregister(broker_name, group, member.client_id)
                except ClientError as error:
                    _log.warning("group %s: %s does not know that we left: %s", group, broker_name, error)

    def consumer_ids(self, broker_name: str, group: str) -> list[str]:
        """The members of the group as a broker knows them; a member of this process that it has lost is told again.

        Raises:
            MQClientError: the broker has none of the group's topics, so members of other languages may be unknown to
                it.
            RemotingError, MQBrokerError: the broker does not answer, or refuses.
        """
        member = self._members.get(group)
        if member is not None and not self._has_topics(broker_name, member.subscriptions):
            raise MQClientError(f"broker {broker_name} has none of the topics of group {group!r}")
        ids = groups.consumer_ids(self._cluster, group, broker_name)
        if member is not None and member.client_id not in ids:
            groups.heartbeat(self._cluster, self._data(group, member), [broker_name])
            ids = groups.consumer_ids(self._cluster, group, broker_name)
        return ids

    def take_reset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset to which a broker has ordered the group to go back in this queue, once; None: it has not."""
        return self._resets.pop((group, queue), None)

    # -- what brokers send ------------------------------------------------------------------------------------------

    def on_change(self, address: str, command: RemotingCommand) -> None:
        """The members of a group changed (40). Members look for that every second by themselves."""
        header = NotifyConsumerIdsChangedRequestHeader.from_ext(command.ext_fields)
        _log.info("group %s: its members changed, says %s", header.consumer_group, address)

    def on_reset(self, address: str, command: RemotingCommand) -> None:
        """A broker of 4.x, or one without useServerSideResetOffset, orders a reset (220)."""
        header = ResetOffsetRequestHeader.from_ext(command.ext_fields)
        group = self._cluster.plain_name(header.group)
        if group in self._members:
            for queue, offset in ResetOffsetBody.decode(command.body).offset_table.items():
                plain = MessageQueue(self._cluster.plain_name(queue.topic), queue.broker_name, queue.queue_id)
                self._resets[group, plain] = offset
            _log.warning("group %s: reset of topic %s, ordered by %s", group, header.topic, address)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _data(self, group: str, member: _Member) -> HeartbeatData:
        is_lite = member.client_id.endswith(LITE_PULL_SUFFIX)
        subscriptions = tuple(
            self._subscription(member, topic, subscription) for topic, subscription in member.subscriptions.items()
        )
        data = ConsumerData(
            group_name=self._cluster.wire_group(group),
            consume_type="CONSUME_ACTIVELY" if is_lite else "CONSUME_PASSIVELY",
            message_model="CLUSTERING" if member.shares else "BROADCASTING",
            subscription_data_set=subscriptions,
        )
        return HeartbeatData(client_id=member.client_id, consumer_data_set=(data,))

    def _subscription(self, member: _Member, topic: str, subscription: Subscription | None) -> SubscriptionData:
        kind, text = "TAG", "*"
        if subscription is not None:
            kind, text = subscription.selector.expression_type, subscription.selector.expression
        tags = TagFilter.parse(text) if kind == "TAG" else None
        return SubscriptionData(
            topic=self._cluster.wire_topic(topic),
            sub_string=text,
            tags_set=() if tags is None else tags.tags,
            code_set=() if tags is None else tuple(java_hash(tag) for tag in tags.tags),
            sub_version=member.version(topic, f"{kind} {text}"),
            expression_type=kind,
        )

    def _has_topics(self, broker_name: str, topics: Collection[str]) -> bool:
        routes = [self._cluster.route(topic) for topic in topics if not topic.startswith(RETRY_PREFIX)]
        known = [route for route in routes if route is not None]
        return not known or any(broker_name in route.queues for route in known)

    def _another_answers(self, broker_name: str, group: str) -> bool:
        for name in self._cluster.broker_names():
            if name != broker_name:
                try:
                    groups.consumer_ids(self._cluster, group, name)
                    return True
                except ClientError:
                    continue
        return False
