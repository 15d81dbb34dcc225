"""Pulls that wait for messages (PullRequestHoldService.java).

A pull is held until its queue has a message at its offset, whichever process has stored it, or its time is over, or
its client has gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.store.store import Store
from rmq_store.protocol.wire.headers import PullMessageRequestHeader
from rmq_store.server.requests.request import Peer, Request

_log: Final = logging.getLogger(__name__)

# Between two looks at the end of the log for messages of other processes. Those of clients wake their pulls at once.
_LOOK_S: Final = 0.002
_OVERDUE_LOOK_S: Final = 0.1
# Clients ask for 15 s to 30 s; more would only keep pulls whose clients have long forgotten them.
PATIENCE_MS_MAX: Final = 60_000

QueuePlace: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class HeldPull:
    """A pull that found no message from `offset` on; it is answered `patience_ms` after it arrived at the latest, and
    PATIENCE_MS_MAX at most. `skipped`: there were messages before `offset`, and none matched.
    """

    request: Request
    header: PullMessageRequestHeader
    subscription: Subscription
    patience_ms: int
    offset: int
    skipped: bool = False

    @property
    def place(self) -> QueuePlace:
        """Topic and queue id."""
        return self.header.topic, self.header.queue_id

    @property
    def until_s(self) -> float:
        """The monotonic time at which its time is over."""
        return self.request.arrived_s + min(self.patience_ms, PATIENCE_MS_MAX) / 1000


WakeUp: TypeAlias = Callable[[HeldPull, bool], None]
"""Called in the thread of the holds: the pull, and whether its time is over. Must not wait."""


class HeldPulls:
    """`wake` gets each pull that wakes up. At most `held_max` are held."""

    def __init__(self, store: Store, held_max: int = 100_000) -> None:
        self._store = store
        self._held_max = held_max
        self._held: dict[QueuePlace, list[HeldPull]] = {}
        self._count = 0
        self._stored: set[QueuePlace] = set()
        self._gone: set[Peer] = set()
        self._turn = threading.Condition()
        self._stopping = False
        self._seen_end = -1
        self._thread: threading.Thread | None = None
        self._wake: WakeUp | None = None

    def start(self, wake: WakeUp) -> None:
        """Begin to wake up pulls."""
        self._wake = wake
        self._thread = threading.Thread(target=self._watch, name="rmq-held-pulls", daemon=True)
        self._thread.start()

    def hold(self, held: HeldPull) -> bool:
        """Keep a pull; False if its time is over, or too many are held."""
        with self._turn:
            if self._stopping or self._count >= self._held_max or time.monotonic() >= held.until_s:
                return False
            self._held.setdefault(held.place, []).append(held)
            self._count += 1
            # A message may have come between the look of the pull and now.
            self._stored.add(held.place)
            self._turn.notify()
        return True

    def stored(self, topic: str, queue_id: int) -> None:
        """A message was stored by a client of this server."""
        if (topic, queue_id) in self._held:
            with self._turn:
                self._stored.add((topic, queue_id))
                self._turn.notify()

    def disconnected(self, peer: Peer) -> None:
        """Forget the pulls of a connection that has ended; soon, and those of many in one pass."""
        with self._turn:
            if self._held:
                self._gone.add(peer)

    def close(self) -> None:
        """Wake up all pulls for the last time, and end the thread."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        overdue_look_s = 0.0
        while True:
            with self._turn:
                while not self._held and not self._stopping:
                    self._turn.wait()
                if not self._stored and not self._stopping:
                    self._turn.wait(_LOOK_S)
                if self._stopping:
                    self._let_go(list(self._held), lambda _: True, is_last=True)
                    return
                places, self._stored = self._stored, set()
            try:
                now_s = time.monotonic()
                if now_s >= overdue_look_s:
                    overdue_look_s = now_s + _OVERDUE_LOOK_S
                    self._end_overdue(now_s)
                self._wake_up(places)
            except Exception as error:  # no file descriptors left, say
                self._look_again(places, error)

    def _end_overdue(self, now_s: float) -> None:
        with self._turn:
            if self._gone:
                self._take(list(self._held), lambda one: one.request.peer in self._gone)
                self._gone.clear()
            self._let_go(list(self._held), lambda one: one.until_s <= now_s, is_last=True)

    def _wake_up(self, places: set[QueuePlace]) -> None:
        if not self._store.has_not_grown(self._seen_end):
            end = self._store.log_range()[1]
            if end != self._seen_end:
                self._seen_end = end
                with self._turn:
                    places = set(self._held)
        bad: Exception | None = None
        failed: set[QueuePlace] = set()
        for place in places:
            try:
                last = self._store.queue_range(*place).max_offset
            except Exception as error:  # one broken queue does not keep the pulls of the others
                bad = error
                failed.add(place)
                continue
            with self._turn:
                self._let_go([place], lambda one, last=last: one.offset < last, is_last=False)  # type: ignore[misc]
        if bad is not None:
            self._look_again(failed, bad)

    def _look_again(self, places: set[QueuePlace], error: Exception) -> None:
        """After an error: at these queues, behind a pause."""
        _log.warning("held pulls of %d queues are not woken up: %s", len(places), error)
        time.sleep(_OVERDUE_LOOK_S)
        with self._turn:
            self._stored |= places & self._held.keys()

    def _let_go(self, places: list[QueuePlace], goes: Callable[[HeldPull], bool], *, is_last: bool) -> None:
        """Wake up the pulls of these queues that `goes` names; with the lock held."""
        assert self._wake is not None
        for one in self._take(places, goes):
            self._wake(one, is_last)

    def _take(self, places: list[QueuePlace], goes: Callable[[HeldPull], bool]) -> list[HeldPull]:
        """Forget the pulls of these queues that `goes` names, and return them; with the lock held."""
        gone: list[HeldPull] = []
        for place in places:
            stay: list[HeldPull] = []
            for one in self._held.pop(place, ()):
                (gone if goes(one) else stay).append(one)
            if stay:
                self._held[place] = stay
        self._count -= len(gone)
        return gone
