"""Telemetry, Heartbeat and NotifyClientTermination: clients and their settings (ClientActivity.java).

A consumer over gRPC receives messages and shares no queues: it holds its topics against streams of the group, and is on
no list of members (38).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_store.errors import StoreError
from rmq_store.server.grpc_definitions.definitions import new, timestamp_fields
from rmq_store.server.grpc_definitions.enums import ClientType, Code
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.statuses import Refusal, group_of, status, topic_of
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.processors.served_store import ServedStore

_log: Final = logging.getLogger(__name__)

CLIENTS_MAX: Final = 20_000
TOPICS_MAX: Final = 1000
"""Topics of one client in one group; as of a heartbeat over remoting."""

# ClientHousekeepingService.java.
_EXPIRY_S: Final = 120.0
_EXPIRY_LOOK_S: Final = 10.0
# ProxyConfig.java: grpcClientProducerMaxAttempts and the back-off, batch and poll of consumers.
_PRODUCER_ATTEMPTS: Final = 3
_BACKOFF_MS: Final = (10, 1000)
_BACKOFF_MULTIPLIER: Final = 2.0
_BATCH: Final = 32
_POLLING_MS: Final = 20_000
# CustomizedRetryPolicy.java: before the second attempt, the third, and so on.
_RETRY_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(slots=True)
class _Member:
    topics: frozenset[str] = frozenset()
    seen_s: float = field(default_factory=time.monotonic)


class Clients:
    """The consumers that this server has seen. All coroutines belong to the event loop."""

    def __init__(self, served: ServedStore, workers: Workers) -> None:
        self._served = served
        self._workers = workers
        self._members: dict[tuple[str, str], _Member] = {}
        self._stopping = asyncio.Event()

    async def heartbeat(self, request: Any, caller: Caller) -> Any:
        """Heartbeat: the client stays in its group for two minutes more."""
        client_id = caller.known_id()
        if request.client_type != ClientType.PRODUCER and request.group.name:
            await self._see(group_of(request.group), client_id, frozenset(), is_beat=True)
        return new("HeartbeatResponse", status=status(Code.OK))

    async def terminate(self, request: Any, caller: Caller) -> Any:
        """NotifyClientTermination: the client leaves its group."""
        client_id = caller.known_id()
        if request.group.name:
            await self._leave(group_of(request.group), client_id)
        return new("NotifyClientTerminationResponse", status=status(Code.OK))

    async def receives(self, caller: Caller, group: str, topic: str) -> None:
        """A client receives from a topic: it holds the topic from now on.

        Raises:
            LeaseHeldError: a stream of the group reads the topic.
        """
        await self._see(group, caller.known_id(), frozenset((topic,)))

    async def telemetry(self, read: Callable[[], Any], caller: Caller, write: Callable[[Any], Any]) -> None:
        """Telemetry: settings are answered with those of the server, until the client or the server ends the stream.
        `read` returns the next command, None at the end.
        """
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(read())
                try:
                    await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not reading.done():
                        reading.cancel()
                if not reading.done() or reading.cancelled() or (command := reading.result()) is None:
                    return
                if command.WhichOneof("command") == "settings":
                    settings = await self._settings(command.settings, caller)
                    await write(new("TelemetryCommand", status=status(Code.OK), settings=settings))
        finally:
            stopping.cancel()

    async def expire(self) -> None:
        """Let clients leave that were silent for two minutes, until `stop`."""
        while not self._stopping.is_set():
            await asyncio.wait((asyncio.ensure_future(self._stopping.wait()),), timeout=_EXPIRY_LOOK_S)
            before_s = time.monotonic() - _EXPIRY_S
            for key in [key for key, member in self._members.items() if member.seen_s < before_s]:
                try:
                    await self._leave(*key)
                except StoreError as error:
                    _log.warning("client %s could not leave group %s: %s", key[1], key[0], error)

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
        if len(asked.subscriptions) > TOPICS_MAX:
            raise Refusal(Code.BAD_REQUEST, f"a client subscribes to {TOPICS_MAX} topics of a group at most")
        topics = frozenset(topic_of(entry.topic) for entry in asked.subscriptions)
        await self._see(name, caller.known_id(), topics)
        group = await self._workers.run(lambda: self._served.group(name))
        subscription = settings.subscription
        subscription.fifo = group.consume_message_orderly
        subscription.receive_batch_size = _BATCH
        subscription.long_polling_timeout.seconds = _POLLING_MS // 1000
        settings.backoff_policy.max_attempts = max(1, group.retry_max_times + 1)
        nexts = [{"seconds": seconds} for seconds in _RETRY_S]
        settings.backoff_policy.customized_backoff.CopyFrom(new("CustomizedBackoff", next=nexts))

    async def _see(self, group: str, client_id: str, topics: frozenset[str], *, is_beat: bool = False) -> None:
        key = (group, client_id)
        member = self._members.get(key)
        if member is None:
            if len(self._members) >= CLIENTS_MAX:
                raise Refusal(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are here already")
            member = _Member()
        member.seen_s = time.monotonic()
        wanted = member.topics | topics
        if len(wanted) > TOPICS_MAX:
            raise Refusal(Code.BAD_REQUEST, f"a client subscribes to {TOPICS_MAX} topics of a group at most")
        if is_beat or wanted != member.topics:
            await self._workers.run(lambda: self._served.broker.share_topics(group, client_id, wanted))
        member.topics |= wanted
        self._members[key] = member

    async def _leave(self, group: str, client_id: str) -> None:
        self._members.pop((group, client_id), None)
        await self._workers.run(lambda: self._served.broker.unregister(group, client_id))
