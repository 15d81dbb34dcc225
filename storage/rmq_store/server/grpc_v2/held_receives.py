"""Receives that wait for messages (PopLongPollingService.java).

A receive is held until its topic has grown, whichever process has stored the message, or a message may have become
visible again, or its time is over. A receive in order also wakes up when a message of its group is acknowledged. Of
the receives of a group on a topic one wakes up; it wakes the next one if it has found messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from rmq_store.broker.store.store import Store
from rmq_store.errors import StoreError
from rmq_store.server.access.user_slots import UserSlots
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.statuses import Refusal
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.pop.held_pops import Share

_log: Final = logging.getLogger(__name__)

# Between two looks at the end of the log, and between two at messages whose invisible time may be over.
_LOOK_S: Final = 0.002
_INVISIBLE_LOOK_S: Final = 0.2
HELD_MAX: Final = 20_000


class HeldReceives:
    """All methods belong to the event loop."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._held: dict[Share, deque[asyncio.Future[None]]] = {}
        self._slots = UserSlots()
        self._ends: dict[str, int] = {}
        self._seen_end = -1
        self._arrived = asyncio.Event()
        self.is_stopping = False

    @contextlib.contextmanager
    def place(self, user: str) -> Iterator[None]:
        """Count a receive of this user as held, for the block of a `with` statement.

        Raises:
            Refusal: TOO_MANY_REQUESTS, too many receives are held, of all users or of this one.
        """
        reason = self._slots.why_full(user, HELD_MAX)
        if reason is not None:
            raise Refusal(Code.TOO_MANY_REQUESTS, f"no more receives are held: {reason}")
        self._slots.take(user)
        try:
            yield
        finally:
            self._slots.give_back(user)

    async def wait(self, key: Share, until_s: float) -> None:
        """Wait until a receive may find something, or the loop's time is `until_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._held.setdefault(key, deque()).append(future)
        self._arrived.set()
        try:
            await asyncio.wait((future,), timeout=max(0.0, until_s - loop.time()))
        finally:
            self._forget(key, future)

    def wake(self, key: Share) -> None:
        """Wake the receive that has waited longest for these messages."""
        for future in self._held.get(key, ()):
            if not future.done():
                future.set_result(None)
                return

    def stop(self) -> None:
        """Wake all; those that come wait no more."""
        self.is_stopping = True
        for futures in self._held.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)
        self._arrived.set()

    async def watch(self) -> None:
        """Wake receives, until `stop`."""
        loop = asyncio.get_running_loop()
        look_s = 0.0
        while not self.is_stopping:
            if not self._held:
                self._arrived.clear()
                await self._arrived.wait()
            await asyncio.sleep(_LOOK_S)
            try:
                if loop.time() >= look_s:
                    look_s = loop.time() + _INVISIBLE_LOOK_S
                    self._wake_topics(set(self._ends) | {share.topic for share in self._held})
                if self._store.has_not_grown(self._seen_end):
                    continue
                self._seen_end = self._store.log_range()[1]
                topics = {share.topic for share in self._held}
                ends = await self._workers.run(lambda topics=topics: {one: self._end(one) for one in topics})  # type: ignore[misc]
                grown = {topic for topic, end in ends.items() if self._ends.get(topic) != end}
                self._ends = ends
                self._wake_topics(grown)
            except (StoreError, OSError) as error:
                _log.warning("held receives are not woken up: %s", error)
                await asyncio.sleep(_INVISIBLE_LOOK_S)

    def _wake_topics(self, topics: set[str]) -> None:
        for key in list(self._held):
            if key.topic in topics:
                self.wake(key)

    def _end(self, topic: str) -> int:
        """The sum of the ends of a topic's queues; it grows with each message."""
        found = self._store.find_topic(topic)
        if found is None:
            return -1
        return sum(self._store.queue_range(topic, queue_id).max_offset for queue_id in range(found.read_queue_nums))

    def _forget(self, key: Share, future: asyncio.Future[None]) -> None:
        futures = self._held.get(key)
        if futures is not None:
            futures.remove(future)
            if not futures:
                del self._held[key]
