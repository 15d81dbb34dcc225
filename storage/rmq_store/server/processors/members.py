"""34, 35, 38 and 46: the clients of groups (ClientManageProcessor.java, ConsumerManager.java).

The store's own list of members counts, so that clients of other processes are on it, too. Here is added what only
connections know: through which one a client can be reached, and its subscriptions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.clients import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
)
from rmq_store.protocol.bodies.groups import (
    Connection,
    ConsumerConnection,
    ConsumerList,
    ProducerConnection,
    SubscriptionData,
)
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import LanguageCode, RemotingCommand
from rmq_store.protocol.wire.group_headers import (
    GetConsumerListByGroupRequestHeader,
    HeartbeatResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.protocol.wire.signature import ACCESS_KEY
from rmq_store.server.processors.connected_clients import ConnectedClients, Producer
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Peer, Request, refusal

_log: Final = logging.getLogger(__name__)

_ONEWAY: Final = 2
_BROADCASTING: Final = "BROADCASTING"

HEARTBEAT_NAMES_MAX: Final = 1000
"""Groups of a heartbeat, and topics: each one of a consumer is a file."""


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a consumer group, as its last heartbeat has told."""

    client_id: str
    peer: Peer
    language: int
    version: int
    data: ConsumerData


class Members:
    """The consumers and producers that are connected. Safe for threads.

    `on_left(group, client id)` is told of a consumer that has left its group by 35.
    """

    def __init__(self, served: ServedStore, on_left: Callable[[str, str], None]) -> None:
        self._served = served
        self._on_left = on_left
        self._lock = threading.RLock()
        self._consumers: dict[str, dict[str, Member]] = {}
        self.connected = ConnectedClients()
        self._known_ids: dict[str, list[str]] = {}

    # -- requests ---------------------------------------------------------------------------------------------------

    def heartbeat(self, request: Request) -> RemotingCommand:
        """34. A group that is refused does not keep the client out of its other groups; its error is the answer.
        MQBrokerError 16: the client id is that of another user.
        """
        beat = HeartbeatData.decode(request.command.body)
        _check_size(beat)
        self.connected.claim(beat.client_id, _user(request), request.peer)
        errors: list[Exception] = []
        for producer in beat.producer_data_set:
            try:
                self.connected.produces(producer.group_name, _producer(request, beat.client_id))
            except (UsageError, MQBrokerError) as error:
                errors.append(error)
        for consumer in beat.consumer_data_set:
            try:
                self._beat(request, beat.client_id, consumer)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return request.answer(header=HeartbeatResponseHeader())

    def unregister(self, request: Request) -> RemotingCommand:
        """35. Old clients send "" for no group. MQBrokerError 16: the client id is that of another user."""
        header = request.header(UnregisterClientRequestHeader)
        self.connected.check_owner(header.client_id, _user(request), request.peer)
        if header.producer_group:
            self.connected.left(header.producer_group, header.client_id)
        if header.consumer_group:
            self._on_left(header.consumer_group, header.client_id)
            self._leave(header.consumer_group, header.client_id)
        return request.answer()

    def consumer_list(self, request: Request) -> RemotingCommand:
        """38."""
        group = request.header(GetConsumerListByGroupRequestHeader).consumer_group
        ids = self._served.broker.consumer_ids(group)
        if not ids:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.answer(body=ConsumerList(consumer_id_list=tuple(ids)).encode())

    def check_client(self, request: Request) -> RemotingCommand:
        """46: whether a condition can be evaluated."""
        data = CheckClientRequestBody.decode(request.command.body).subscription_data
        try:
            subscription_of(data)
        except UsageError as error:
            raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return request.answer()

    # -- for other processors ---------------------------------------------------------------------------------------

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The newest subscription of the group's members to a topic."""
        with self._lock:
            found = [
                data
                for member in self._consumers.get(group, {}).values()
                for data in member.data.subscription_data_set
                if data.topic == topic
            ]
        return max(found, key=lambda data: data.sub_version, default=None)

    def broadcasts(self, group: str) -> bool:
        """Whether a member of the group takes the messages of all queues."""
        with self._lock:
            members = self._consumers.get(group, {}).values()
            return any(member.data.message_model == _BROADCASTING for member in members)

    def groups_of(self, topic: str) -> list[str]:
        """The groups whose members subscribe to the topic."""
        with self._lock:
            return [
                group
                for group, members in self._consumers.items()
                if any(one.topic == topic for member in members.values() for one in member.data.subscription_data_set)
            ]

    def topics_of(self, group: str) -> set[str]:
        """The topics to which the group's members subscribe."""
        with self._lock:
            members = self._consumers.get(group, {}).values()
            return {data.topic for member in members for data in member.data.subscription_data_set}

    def connection(self, group: str) -> ConsumerConnection | None:
        """203: the connected members; None if there is none."""
        with self._lock:
            members = list(self._consumers.get(group, {}).values())
        if not members:
            return None
        data = members[0].data
        return ConsumerConnection(
            connection_set=tuple(_connection(member) for member in members),
            subscription_table={one.topic: one for member in members for one in member.data.subscription_data_set},
            consume_type=data.consume_type,
            message_model=data.message_model,
            consume_from_where=data.consume_from_where,
        )

    def member(self, group: str, client_id: str) -> Member | None:
        """A connected member of a consumer group; None: it is not online here."""
        with self._lock:
            return self._consumers.get(group, {}).get(client_id)

    def members(self, group: str) -> list[Member]:
        """The connected members of a consumer group."""
        with self._lock:
            return list(self._consumers.get(group, {}).values())

    def producer_peer(self, client_id: str) -> Peer | None:
        """The connection of a client that produces, in whichever group; None: it is not online here."""
        return self.connected.producer(client_id)

    def producer_peers(self, group: str, topic: str | None = None) -> list[Peer]:
        """The connections of a producer group; with a topic those that its half messages may be shown to."""
        return [one.peer for one in self.connected.producers(group, topic)]

    def producer_connection(self, group: str) -> ProducerConnection | None:
        """204: the connected producers; None if there is none."""
        producers = self.connected.producers(group)
        return ProducerConnection(connection_set=tuple(map(_connection, producers))) if producers else None

    def consumer_peers(self, group: str) -> list[Peer]:
        """The connections of a consumer group."""
        with self._lock:
            return [member.peer for member in self._consumers.get(group, {}).values()]

    def disconnected(self, peer: Peer) -> None:
        """A connection has ended: its clients leave their groups, and keep their locks (ClientHousekeepingService)."""
        with self._lock:
            gone = [
                (group, client_id)
                for group, members in self._consumers.items()
                for client_id, member in members.items()
                if member.peer is peer
            ]
        self.connected.disconnected(peer)
        for group, client_id in gone:
            self._leave(group, client_id)

    def notify_changes(self) -> None:
        """Tell members of groups whose list has changed, whichever process the change came from (request 40)."""
        with self._lock:
            groups = [group for group, members in self._consumers.items() if members]
        for group in groups:
            self._notify_if_changed(group)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _beat(self, request: Request, client_id: str, data: ConsumerData) -> None:
        served, group = self._served, data.group_name
        settings = served.group(group)
        served.make_retry_topic(settings)
        topics = [one.topic for one in data.subscription_data_set]
        shares = data.message_model != _BROADCASTING
        served.broker.heartbeat(group, client_id, topics=topics, shares=shares)
        member = Member(client_id, request.peer, request.command.language, request.command.version, data)
        with self._lock:
            self._consumers.setdefault(group, {})[client_id] = member
        self._notify_if_changed(group)

    def _leave(self, group: str, client_id: str) -> None:
        with self._lock:
            _forget(self._consumers, group, client_id)
        try:
            self._served.broker.unregister(group, client_id, keeps_locks=True)
        except Exception as error:
            _log.warning("client %r could not leave group %r: %s", client_id, group, error)
        self._notify_if_changed(group)

    def _notify_if_changed(self, group: str) -> None:
        """Never raises: clients look for themselves every 20 s."""
        try:
            ids = self._served.broker.consumer_ids(group)
            with self._lock:
                if self._known_ids.get(group, []) == ids:
                    return
                self._known_ids[group] = ids
                if not ids:
                    del self._known_ids[group]
                peers = self.consumer_peers(group)
            notice = request_of(NotifyConsumerIdsChangedRequestHeader(consumer_group=group))
            notice.flag = _ONEWAY
            for peer in peers:
                peer.send(notice)
        except Exception as error:
            _log.warning("members of group %r are not told of a change: %s", group, error)


def _user(request: Request) -> str:
    """The user who has signed; "" where there are no users, unless the client signs all the same."""
    return request.command.ext_fields.get(ACCESS_KEY, "")


def _check_size(beat: HeartbeatData) -> None:
    groups = len(beat.consumer_data_set) + len(beat.producer_data_set)
    topics = sum(len(one.subscription_data_set) for one in beat.consumer_data_set)
    if max(groups, topics) > HEARTBEAT_NAMES_MAX:
        remark = f"a heartbeat of {groups} groups and {topics} topics; at most {HEARTBEAT_NAMES_MAX} of each are taken"
        raise refusal(ResponseCode.SYSTEM_ERROR, remark)


def _forget(clients: dict[str, dict[str, Member]], group: str, client_id: str) -> None:
    known = clients.get(group, {})
    known.pop(client_id, None)
    if not known:
        clients.pop(group, None)


def subscription_of(data: SubscriptionData) -> Subscription:
    """The condition compiled. UsageError: it is wrong."""
    if data.expression_type == "SQL92":
        return Subscription.of(data.topic, MessageSelector.by_sql(data.sub_string))
    return Subscription.of(data.topic, data.sub_string)


def _producer(request: Request, client_id: str) -> Producer:
    return Producer(client_id, request.peer, request.command.language, request.command.version)


def language_name(code: int) -> str:
    """The name of a client's language; OTHER if it is unknown."""
    return {int(code): code.name for code in LanguageCode}.get(code, "OTHER")


def _connection(member: Member | Producer) -> Connection:
    return Connection(
        client_id=member.client_id,
        client_addr=member.peer.address,
        language=language_name(member.language),
        version=member.version,
    )
