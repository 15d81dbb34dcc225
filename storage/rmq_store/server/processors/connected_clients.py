"""Keeps what each connection has told of itself: its client ids, whose they are, and the groups in which they produce.

Replies and questions about transactions go to whoever has told a client id or a group. So a client id belongs to one
user as long as one of its connections lives, and nothing is sent to the producers that Java makes for itself. Clients
over gRPC are on the same lists.
"""

from __future__ import annotations

import threading
from dataclasses import field
from typing import Final

from rmq_store.clock import system_clock
from rmq_store.format.text.names import validate_group
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.access.rights import is_clients_own_producer
from rmq_store.server.requests.request import Peer, refusal

CONNECTION_NAMES_MAX: Final = 2000
"""Client ids of one connection, and groups in which they produce, all together."""
CLIENT_ID_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Producer:
    """A client of a producer group, as it has told last, at `told_ms`. `topic`: half messages of this one only may be
    shown to it.
    """

    client_id: str
    peer: Peer
    language: int
    version: int
    topic: str | None = None
    told_ms: int = field(default_factory=system_clock)


@dataclass(slots=True)
class _Owner:
    user: str
    peers: set[Peer] = field(default_factory=set)


class ConnectedClients:
    """The client ids and producers of all connections. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, _Owner] = {}
        self._producers: dict[str, dict[str, Producer]] = {}
        self._told: dict[Peer, set[tuple[str | None, str]]] = {}

    def claim(self, client_id: str, user: str, peer: Peer) -> None:
        """Make a client id that of a user, and of one more connection.

        Raises:
            MQBrokerError: 16, a connection of another user has it; 1, it is no client id, or the connection has told
                too many names.
        """
        if not (client_id.isprintable() and 0 < len(client_id) <= CLIENT_ID_CHARACTERS_MAX):
            remark = f"a client id has 1 to {CLIENT_ID_CHARACTERS_MAX} printable characters, not {client_id[:64]!r}"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)
        with self._lock:
            self._refuse_foreign(client_id, user, peer)
            self._tell(peer, None, client_id)
            owner = self._owners.setdefault(client_id, _Owner(user))
            owner.user = user
            owner.peers.add(peer)

    def check_owner(self, client_id: str, user: str, peer: Peer) -> None:
        """MQBrokerError 16: a connection of another user has this client id."""
        with self._lock:
            self._refuse_foreign(client_id, user, peer)

    def produces(self, group: str, producer: Producer) -> None:
        """Note that a client produces in a group. Nothing is noted of the producers that Java makes for itself.

        Raises:
            UsageError: no name of a group.
            MQBrokerError: 1, the connection has told too many names.
        """
        if is_clients_own_producer(group):
            return
        validate_group(group)
        client_id = producer.client_id
        with self._lock:
            self._tell(producer.peer, group, client_id)
            before = self._producers.setdefault(group, {}).get(client_id)
            if before is not None and before.peer is not producer.peer:
                self._told[before.peer].discard((group, client_id))
            self._producers[group][client_id] = producer

    def left(self, group: str, client_id: str) -> None:
        """Forget that a client produces in a group."""
        with self._lock:
            known = self._producers.get(group, {}).get(client_id)
            if known is not None:
                self._told[known.peer].discard((group, client_id))
                self._forget(group, client_id)

    def produces_no_more(self, peer: Peer) -> None:
        """Forget all groups in which the clients of a connection produce; their client ids stay theirs."""
        with self._lock:
            for group, client_id in list(self._told.get(peer, ())):
                if group is not None:
                    self._told[peer].discard((group, client_id))
                    self._forget(group, client_id)

    def producer(self, client_id: str) -> Peer | None:
        """The connection of a client that produces half messages of any topic, in whichever group; None: it is not
        online here.
        """
        with self._lock:
            found = (known[client_id] for known in self._producers.values() if client_id in known)
            return next((one.peer for one in found if one.topic is None), None)

    def producers(self, group: str, topic: str | None = None) -> list[Producer]:
        """The connected clients of a producer group; with a topic those that its half messages may be shown to."""
        with self._lock:
            known = self._producers.get(group, {}).values()
            return [one for one in known if topic is None or one.topic in (None, topic)]

    def all_producers(self) -> dict[str, list[Producer]]:
        """The connected clients of each producer group."""
        with self._lock:
            return {group: list(known.values()) for group, known in self._producers.items()}

    def disconnected(self, peer: Peer) -> None:
        """Forget all that a connection has told."""
        with self._lock:
            for group, client_id in self._told.pop(peer, ()):
                if group is not None:
                    self._forget(group, client_id)
                    continue
                owner = self._owners[client_id]
                owner.peers.discard(peer)
                if not owner.peers:
                    del self._owners[client_id]

    def _refuse_foreign(self, client_id: str, user: str, peer: Peer) -> None:
        owner = self._owners.get(client_id)
        if owner is not None and owner.user != user and owner.peers != {peer}:
            remark = f"the client id {client_id!r} is that of a connected client of another user"
            raise refusal(ResponseCode.NO_PERMISSION, remark)

    def _tell(self, peer: Peer, group: str | None, client_id: str) -> None:
        told = self._told.setdefault(peer, set())
        if (group, client_id) not in told and len(told) >= CONNECTION_NAMES_MAX:
            remark = f"at most {CONNECTION_NAMES_MAX} client ids and producer groups are taken from one connection"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)
        told.add((group, client_id))

    def _forget(self, group: str, client_id: str) -> None:
        known = self._producers[group]
        del known[client_id]
        if not known:
            del self._producers[group]
