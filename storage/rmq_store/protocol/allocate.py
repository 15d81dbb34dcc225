"""Strategies that give the queues of a topic to the members of a group: pure functions of (queues, member ids), the
same at every member.

Each member computes the whole division by itself and takes its part, so all must see the same two sorted lists. A
member that is not in the list gets nothing.
Sources: AllocateMessageQueueAveragely.java, ...AveragelyByCircle, ...ConsistentHash, ...ByConfig, ...ByMachineRoom,
AllocateMachineRoomNearby.java, ConsistentHashRouter.java.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from rmq_store.errors import UsageError
from rmq_store.protocol.messages import MessageQueue

VIRTUAL_NODE_COUNT = 10


class AllocateMessageQueueStrategy(Protocol):
    """A way to divide queues; all members of a group must use the same one."""

    @property
    def name(self) -> str:
        """RocketMQ's name of it, as brokers and tools show it."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of `client_id`; `queues` and `client_ids` are sorted and not empty."""


class AllocateMessageQueueAveragely:
    """Consecutive queues for each member; the first members get one more if the division leaves a remainder."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return queues [start, start + size)."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        size, rest = divmod(len(queues), len(client_ids))
        start = index * size + min(index, rest)
        return list(queues[start : start + size + (1 if index < rest else 0)])


class AllocateMessageQueueAveragelyByCircle:
    """Queues are assigned one by one to the members in turn."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return queues i, i + n, i + 2n ... of the i-th of n members."""
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateMessageQueueConsistentHash:
    """Members and queues on a ring of hashes; a member that comes or goes moves only the queues next to it."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = VIRTUAL_NODE_COUNT) -> None:
        if virtual_node_count < 1:
            raise UsageError(f"virtual_node_count {virtual_node_count}: a member needs a place on the ring")
        self._virtual_node_count = virtual_node_count

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose first virtual node clockwise is one of `client_id`'s."""
        if client_id not in client_ids:
            return []
        ring = {
            ring_hash(f"{member}-{number}"): member
            for member in client_ids
            for number in range(self._virtual_node_count)
        }
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            return ring[places[bisect_left(places, ring_hash(str(queue))) % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


class AllocateMessageQueueByConfig:
    """A fixed list of queues, independent of the other members."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of the topic in question."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class AllocateMessageQueueByMachineRoom:
    """Only queues of brokers named `room@broker` whose room is one of `rooms`, divided evenly. The first members get
    the remainder, one queue each.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return queues [i * size, (i + 1) * size) of the rooms, and the i-th of those left over."""
        if client_id not in client_ids:
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in self._rooms]
        index = client_ids.index(client_id)
        size, rest = divmod(len(near), len(client_ids))
        own = near[index * size : (index + 1) * size]
        return [*own, near[len(client_ids) * size + index]] if index < rest else own


class AllocateMachineRoomNearby:
    """Queues go to members of their own room, divided by `strategy`; queues of rooms without a member to all members.

    `broker_room(queue)` and `consumer_room(client_id)` return the room of a broker and of a member.
    """

    def __init__(
        self,
        strategy: AllocateMessageQueueStrategy,
        broker_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
    ) -> None:
        self._strategy = strategy
        self._broker_room = broker_room
        self._consumer_room = consumer_room
        self.name = f"MACHINE_ROOM_NEARBY-{strategy.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share in the own room, then the shares in each deserted room, by room name."""
        if client_id not in client_ids:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(self._broker_room(queue), []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for member in client_ids:
            members_by_room.setdefault(self._consumer_room(member), []).append(member)
        own_room = self._consumer_room(client_id)
        own: list[MessageQueue] = []
        for room in sorted(queues_by_room, key=lambda room: (room != own_room, room)):
            if room == own_room or room not in members_by_room:
                members = members_by_room.get(room, list(client_ids))
                own += self._strategy.allocate(group, client_id, queues_by_room[room], members)
        return own


def ring_hash(key: str) -> int:
    """The position of a key on the ring: the first four bytes of its MD5, big-endian (ConsistentHashRouter.MD5Hash)."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _room(broker_name: str) -> str | None:
    parts = broker_name.split("@")
    return parts[0] if len(parts) == 2 else None
