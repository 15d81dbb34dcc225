"""Telemetry, Heartbeat and NotifyClientTermination: clients and their settings (ClientActivity.java).

A consumer over gRPC receives messages and shares no queues: it holds its topics against streams of the group, and is on
no list of members (38). A producer is on the list of those that are asked about transactions, as long as it has a
stream of telemetry. A client id belongs to one user, over remoting and gRPC together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from rmq_store import real_time
from rmq_store.errors import StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.command import LanguageCode
from rmq_store.server.access.method_check import MethodCheck
from rmq_store.server.access.user_slots import UserSlots
from rmq_store.server.grpc_definitions.definitions import new, timestamp_fields
from rmq_store.server.grpc_definitions.enums import ClientType, Code
from rmq_store.server.grpc_definitions.retry_policy import retry_policy_of
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.grpc_peer import CommandStream, GrpcPeer
from rmq_store.server.grpc_v2.statuses import Refusal, group_of, status, topic_of
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.pop.renewals import Consumer
from rmq_store.server.processors.connected_clients import ConnectedClients, Producer
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request_needs import Need, Resource, Right

_log: Final = logging.getLogger(__name__)

CLIENTS_MAX: Final = 20_000
TOPICS_MAX: Final = 1000
"""Topics of one client in one group, and in its settings; as of a heartbeat over remoting."""

# ClientHousekeepingService.java.
_EXPIRY_S: Final = 120.0
_LOOK_S: Final = 10.0
# ProxyConfig.java: grpcClientProducerMaxAttempts and the back-off, batch and poll of consumers.
_PRODUCER_ATTEMPTS: Final = 3
_BACKOFF_MS: Final = (10, 1000)
_BACKOFF_MULTIPLIER: Final = 2.0
_BATCH: Final = 32
_POLLING_MS: Final = 20_000


@dataclass(slots=True)
class _Member:
    user: str
    topics: frozenset[str] = frozenset()
    seen_s: float = field(default_factory=real_time.monotonic)


class Clients:
    """The clients that this server has seen. All coroutines and methods belong to the event loop."""

    def __init__(self, served: ServedStore, workers: Workers, connected: ConnectedClients, check: MethodCheck) -> None:
        self._served = served
        self._workers = workers
        self._connected = connected
        self._check = check
        self._peers: dict[str, GrpcPeer] = {}
        self._members: dict[tuple[str, str], _Member] = {}
        self._peer_slots, self._member_slots = UserSlots(), UserSlots()
        self._stopping = asyncio.Event()

    async def heartbeat(self, request: Any, caller: Caller) -> Any:
        """Heartbeat: the client stays in its group for two minutes more.

        Raises:
            MQBrokerError: 16, the client id is that of another user.
        """
        self._peer(caller)
        if request.client_type != ClientType.PRODUCER and request.group.name:
            await self._see(group_of(request.group), caller, frozenset(), is_beat=True)
        return new("HeartbeatResponse", status=status(Code.OK))

    async def terminate(self, request: Any, caller: Caller) -> Any:
        """NotifyClientTermination: the client leaves its group, or produces no more. MQBrokerError: as `heartbeat`."""
        peer = self._peer(caller)
        if request.group.name:
            await self._leave(group_of(request.group), peer.client_id)
        else:
            self._produces_no_more(peer)
        self._forget_if_gone(peer)
        return new("NotifyClientTerminationResponse", status=status(Code.OK))

    async def receives(self, caller: Caller, group: str, topic: str) -> None:
        """A client receives from a topic: it holds the topic from now on.

        Raises:
            LeaseHeldError: a stream of the group reads the topic.
            MQBrokerError: 16, the client id is that of another user.
        """
        await self._see(group, caller, frozenset((topic,)))

    def lives(self, consumer: Consumer) -> bool:
        """Whether a consumer is in its group: it has been seen within two minutes. Safe for threads."""
        return consumer in self._members

    def produces(self, caller: Caller, topic: str) -> None:
        """A client sends half messages of a topic: it is asked how they end, if it has a stream of telemetry."""
        peer = self._peers.get(caller.client_id)
        if peer is not None and peer.user == caller.user and peer.streams:
            self._produces(peer, topic)

    async def telemetry(self, read: Callable[[], Any], caller: Caller, write: Callable[[Any], Any]) -> None:
        """Telemetry: settings are answered with those of the server, until the client or the server ends the stream.
        `read` returns the next command, None at the end. From its settings on a producer is asked about transactions.

        Raises:
            MQBrokerError: 16, the client id is that of another user, or the rights of a producer were withdrawn.
            TimeoutError: the client does not read.
        """
        stream, peer = CommandStream(write), None
        sending = asyncio.ensure_future(stream.send_waiting())
        ends = (asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(stream.failed.wait()), sending)
        try:
            while True:
                reading = asyncio.ensure_future(read())
                try:
                    await asyncio.wait((reading, *ends), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not reading.done():
                        reading.cancel()
                stream.raise_failure()
                if sending.done():
                    sending.result()
                if not reading.done() or reading.cancelled() or (command := reading.result()) is None:
                    return
                if command.WhichOneof("command") == "settings":
                    self._peer(caller)
                    settings = await self._settings(command.settings, caller)
                    await stream.write(new("TelemetryCommand", status=status(Code.OK), settings=settings))
                    peer = self._peer(caller)
                    if stream not in peer.streams:
                        peer.streams.append(stream)
                    for resource in settings.publishing.topics:
                        self._produces(peer, resource.name)
        finally:
            for end in ends:
                end.cancel()
            if peer is not None and stream in peer.streams:
                peer.streams.remove(stream)
                if not peer.streams:
                    self._produces_no_more(peer)

    async def expire(self) -> None:
        """Let clients leave that were silent for two minutes, and end the streams of users that are gone and of
        producers that may not send any more, until `stop`.
        """
        while not self._stopping.is_set():
            await asyncio.wait((asyncio.ensure_future(self._stopping.wait()),), timeout=_LOOK_S)
            before_s = real_time.monotonic() - _EXPIRY_S
            for key in [key for key, member in self._members.items() if member.seen_s < before_s]:
                try:
                    await self._leave(*key)
                except StoreError as error:
                    _log.warning("client %s could not leave group %s: %s", key[1], key[0], error)
            for peer in list(self._peers.values()):
                if peer.seen_s < before_s:
                    self._forget_if_gone(peer)
                self._end_if_withdrawn(peer)

    def stop(self) -> None:
        """End all streams of telemetry."""
        self._stopping.set()

    async def _settings(self, asked: Any, caller: Caller) -> Any:
        """The settings that a client gets for its own ones (GrpcClientSettingsManager.java)."""
        settings = new("Settings")
        settings.CopyFrom(asked)
        settings.metric.on = False
        kind = asked.WhichOneof("pub_sub")
        if kind == "publishing":
            _check_count(len(asked.publishing.topics))
            for resource in asked.publishing.topics:
                topic_of(resource)
            settings.publishing.max_body_size = self._served.store.config.max_message_size
            settings.publishing.validate_message_type = True
            settings.backoff_policy.max_attempts = _PRODUCER_ATTEMPTS
            initial, most = (timestamp_fields(ms) for ms in _BACKOFF_MS)
            backoff = new("ExponentialBackoff", initial=initial, max=most, multiplier=_BACKOFF_MULTIPLIER)
            settings.backoff_policy.exponential_backoff.CopyFrom(backoff)
        elif kind == "subscription":
            await self._subscribe(settings, asked.subscription, caller)
        return settings

    async def _subscribe(self, settings: Any, asked: Any, caller: Caller) -> None:
        name = group_of(asked.group)
        _check_count(len(asked.subscriptions))
        topics = frozenset(topic_of(entry.topic) for entry in asked.subscriptions)
        await self._see(name, caller, topics)
        group = await self._workers.run(lambda: self._served.group(name))
        subscription = settings.subscription
        subscription.fifo = group.consume_message_orderly
        subscription.receive_batch_size = _BATCH
        subscription.long_polling_timeout.seconds = _POLLING_MS // 1000
        settings.backoff_policy.CopyFrom(retry_policy_of(group))

    def _peer(self, caller: Caller) -> GrpcPeer:
        """The client of a call, which lives. MQBrokerError 16: its id is that of another user."""
        client_id = caller.known_id()
        peer = self._peers.get(client_id)
        if peer is None or peer.user != caller.user:
            _check_room(self._peer_slots, caller.user)
            before, peer = peer, GrpcPeer(client_id, caller.user, caller.peer, self._served.name)
            self._connected.claim(client_id, caller.user, peer)
            self._peers[client_id] = peer
            self._peer_slots.take(caller.user)
            if before is not None:
                self._peer_slots.give_back(before.user)
        peer.seen_s = real_time.monotonic()
        return peer

    async def _see(self, group: str, caller: Caller, topics: frozenset[str], *, is_beat: bool = False) -> None:
        client_id = self._peer(caller).client_id
        key = group, client_id
        member = self._members.get(key)
        if member is None:
            _check_room(self._member_slots, caller.user)
            member = _Member(caller.user)
        member.seen_s = real_time.monotonic()
        wanted = member.topics | topics
        _check_count(len(wanted))
        if is_beat or wanted != member.topics:
            await self._workers.run(lambda: self._served.broker.share_topics(group, client_id, wanted))
        member.topics |= wanted
        replaced = self._members.get(key)  # another call of the client may have been faster
        self._members[key] = member
        if replaced is None:
            self._member_slots.take(member.user)
        self._peer(caller).groups.add(group)

    async def _leave(self, group: str, client_id: str) -> None:
        member = self._members.pop((group, client_id), None)
        if member is not None:
            self._member_slots.give_back(member.user)
        if client_id in self._peers:
            self._peers[client_id].groups.discard(group)
        await self._workers.run(lambda: self._served.broker.unregister(group, client_id))

    def _produces(self, peer: GrpcPeer, topic: str) -> None:
        self._connected.produces(topic, Producer(peer.client_id, peer, LanguageCode.OTHER, 0, topic))
        peer.topics.add(topic)

    def _produces_no_more(self, peer: GrpcPeer) -> None:
        self._connected.produces_no_more(peer)
        peer.topics.clear()

    def _forget_if_gone(self, peer: GrpcPeer) -> None:
        """Give a client id back: neither a group nor a stream keeps it."""
        if self._peers.get(peer.client_id) is peer and not peer.groups and not peer.streams:
            self._connected.disconnected(peer)
            del self._peers[peer.client_id]
            self._peer_slots.give_back(peer.user)

    def _end_if_withdrawn(self, peer: GrpcPeer) -> None:
        try:
            self._check.require(peer.user, (Need(Right.PUB, Resource.TOPIC, topic) for topic in peer.topics))
        except StoreError as error:
            self._produces_no_more(peer)
            for stream in peer.streams:
                stream.fail(error)


def _check_room(slots: UserSlots, user: str) -> None:
    reason = slots.why_full(user, CLIENTS_MAX)
    if reason is not None:
        raise Refusal(Code.TOO_MANY_REQUESTS, f"no more clients: {reason}")


def _check_count(topics: int) -> None:
    if topics > TOPICS_MAX:
        raise Refusal(Code.BAD_REQUEST, f"a client has {TOPICS_MAX} topics of a group, or in its settings, at most")
