"""The groups that clients of this process are members of, at real brokers: heartbeats, members, resets.

A broker keeps one client id for each connection and group. It forgets a member at once when the connection is lost; the
next look at the members finds that, and registers again. Sources: ConsumerGroupInfo.java, MQClientInstance.java,
ClientRemotingProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client.backend.remote_member import RemoteMember
from rmq_store.errors import UsageError
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.protocol.bodies.groups import ResetOffsetBody
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


class RemoteMembers:
    """The members that this process has, one in each group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: dict[str, RemoteMember] = {}
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
        pulls = client_id.endswith(LITE_PULL_SUFFIX)
        member = self._members.setdefault(
            group, RemoteMember(self._cluster, group, client_id, pulls=pulls, shares=shares)
        )
        if member.client_id != client_id:
            raise UsageError(
                f"group {group!r} has the member {member.client_id!r} in this backend: brokers tell members apart by "
                "their connections, so give each consumer a backend, or a text as rmq://ns1:9876, of its own"
            )
        member.subscriptions = dict(subscriptions)
        try:
            member.heartbeat([broker_name])
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
            member.leave([broker_name])
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
            member.heartbeat([broker_name])
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
