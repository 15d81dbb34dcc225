"""Pulls that wait for messages (PullRequestHoldService.java).

A pull is held until its queue has a message at its offset, whichever process has stored it, or its time is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.store.store import Store
from rmq_store.errors import StoreError
from rmq_store.protocol.wire.headers import PullMessageRequestHeader
from rmq_store.server.requests.request import Request

_log: Final = logging.getLogger(__name__)

# Between two looks at the end of the log for messages of other processes. Those of clients wake their pulls at once.
_LOOK_S: Final = 0.002
_OVERDUE_LOOK_S: Final = 0.1

QueuePlace: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class HeldPull:
    """A pull that found no message; it is answered `patience_ms` after it arrived at the latest."""

    request: Request
    header: PullMessageRequestHeader
    subscription: Subscription
    patience_ms: int

    @property
    def place(self) -> QueuePlace:
        """Topic and queue id."""
        return self.header.topic, self.header.queue_id

    @property
    def until_s(self) -> float:
        """The monotonic time at which its time is over."""
        return self.request.arrived_s + self.patience_ms / 1000


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
            now_s = time.monotonic()
            if now_s >= overdue_look_s:
                overdue_look_s = now_s + _OVERDUE_LOOK_S
                with self._turn:
                    self._let_go(list(self._held), partial(_is_over, now_s=now_s), is_last=True)
            try:
                self._wake_up(places)
            except StoreError as error:
                _log.warning("held pulls are not woken up: %s", error)
                time.sleep(_OVERDUE_LOOK_S)

    def _wake_up(self, places: set[QueuePlace]) -> None:
        if not self._store.has_not_grown(self._seen_end):
            end = self._store.log_range()[1]
            if end != self._seen_end:
                self._seen_end = end
                with self._turn:
                    places = set(self._held)
        for place in places:
            last = self._store.queue_range(*place).max_offset
            with self._turn:
                self._let_go([place], partial(_has_message, end=last), is_last=False)

    def _let_go(self, places: list[QueuePlace], goes: Callable[[HeldPull], bool], *, is_last: bool) -> None:
        """Wake up the pulls of these queues that `goes` names; with the lock held."""
        assert self._wake is not None
        for place in places:
            held = self._held.pop(place, [])
            stay = [one for one in held if not goes(one)]
            if stay:
                self._held[place] = stay
            self._count -= len(held) - len(stay)
            for one in held:
                if one not in stay:
                    self._wake(one, is_last)


def _is_over(held: HeldPull, *, now_s: float) -> bool:
    return held.until_s <= now_s


def _has_message(held: HeldPull, *, end: int) -> bool:
    return held.header.queue_offset < end
