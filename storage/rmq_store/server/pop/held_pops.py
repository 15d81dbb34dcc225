"""POP requests that wait for messages (PopLongPollingService.java).

All members of a group share its messages of a topic. So one of the waiting requests is woken up when there is
something for the group; if it gets messages, the next one is. A message that another process has stored wakes them,
too, and so does a message whose invisible time is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.store.store import Store
from rmq_store.protocol.wire.pop_headers import PopMessageRequestHeader
from rmq_store.server.processors.held_pulls import PATIENCE_MS_MAX
from rmq_store.server.requests.request import Peer, Request

_log: Final = logging.getLogger(__name__)

# Between two looks at the end of the log, and two at messages that are visible again.
_LOOK_S: Final = 0.005
_VISIBLE_LOOK_S: Final = 0.1

Share: TypeAlias = tuple[str, str]
"""A group and a topic."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPop:
    """A POP that found no message. It is answered `poll_time` ms after it arrived, and PATIENCE_MS_MAX at most."""

    request: Request
    header: PopMessageRequestHeader
    subscription: Subscription

    @property
    def share(self) -> Share:
        """The group and the topic."""
        return self.header.consumer_group, self.header.topic

    @property
    def until_s(self) -> float:
        """The monotonic time at which its time is over."""
        return self.request.arrived_s + min(self.header.poll_time, PATIENCE_MS_MAX) / 1000


WakeUp: TypeAlias = Callable[[HeldPop, bool], None]
"""Called in the thread of the holds: the POP, and whether its time is over. Must not wait."""


class HeldPops:
    """`wake` gets each POP that wakes up. At most `held_max` are held. Safe for threads."""

    def __init__(self, store: Store, held_max: int = 100_000) -> None:
        self._store = store
        self._held_max = held_max
        self._held: dict[Share, deque[HeldPop]] = {}
        self._count = 0
        self._woken: set[Share] = set()
        self._gone: set[Peer] = set()
        self._turn = threading.Condition()
        self._stopping = False
        self._seen_end = -1
        self._thread: threading.Thread | None = None
        self._wake: WakeUp | None = None

    def start(self, wake: WakeUp) -> None:
        """Begin to wake up requests."""
        self._wake = wake
        self._thread = threading.Thread(target=self._watch, name="rmq-held-pops", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether no more are held."""
        return self._count >= self._held_max

    def count(self, group: str, topic: str) -> int:
        """How many are held for a group and a topic."""
        with self._turn:
            return len(self._held.get((group, topic), ()))

    def hold(self, held: HeldPop, *, again: bool = False) -> bool:
        """Keep a request; False if its time is over, or too many are held. `again`: it has been woken up in vain."""
        with self._turn:
            if self._stopping or self.is_full or time.monotonic() >= held.until_s:
                return False
            self._held.setdefault(held.share, deque()).append(held)
            self._count += 1
            if not again:  # a message may have come between the look of the POP and now
                self._woken.add(held.share)
            self._turn.notify()
        return True

    def stored(self, topic: str) -> None:
        """A message of the topic was stored by a client of this server."""
        if self._held:
            with self._turn:
                self._woken |= {share for share in self._held if share[1] == topic}
                self._turn.notify()

    def received(self, group: str, topic: str) -> None:
        """A request got messages: there may be more for the next one."""
        with self._turn:
            if (group, topic) in self._held:
                self._woken.add((group, topic))
                self._turn.notify()

    def disconnected(self, peer: Peer) -> None:
        """Forget the requests of a connection that has ended: nothing is hidden for a client that has gone."""
        with self._turn:
            if self._held:
                self._gone.add(peer)
                self._turn.notify()

    def close(self) -> None:
        """Wake up all requests for the last time, and end the thread."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        visible_look_s = 0.0
        while True:
            with self._turn:
                while not self._held and not self._stopping:
                    self._turn.wait()
                if not self._woken and not self._gone and not self._stopping:
                    self._turn.wait(_LOOK_S)
                if self._stopping:
                    self._end(lambda _: True)
                    return
                shares, self._woken = self._woken & self._held.keys(), set()
                self._forget_gone()
            try:
                now_s = time.monotonic()
                if now_s >= visible_look_s:
                    visible_look_s = now_s + _VISIBLE_LOOK_S
                    shares = self._end_overdue(now_s)
                self._wake_up(shares)
            except Exception as error:  # no file descriptors left, say
                self._look_again(shares, error)

    def _end_overdue(self, now_s: float) -> set[Share]:
        """Wake up the requests whose time is over, and return the shares of the others."""
        with self._turn:
            self._end(lambda one: one.until_s <= now_s)
            return set(self._held)

    def _wake_up(self, shares: set[Share]) -> None:
        """Wake up one request of each share for which there is something to receive."""
        assert self._wake is not None
        if not self._store.has_not_grown(self._seen_end):
            end = self._store.log_range()[1]
            if end != self._seen_end:
                self._seen_end = end
                with self._turn:
                    shares = set(self._held)
        for share in shares:
            try:
                has_some = self._store.pop.rest(*share) > 0
            except Exception:  # the request itself names the error
                has_some = True
            with self._turn:
                waiting = self._held.get(share)
                if has_some and waiting:
                    one = waiting.popleft()
                    self._count -= 1
                    if not waiting:
                        del self._held[share]
                    self._wake(one, False)

    def _look_again(self, shares: set[Share], error: Exception) -> None:
        """After an error: at these shares, behind a pause."""
        _log.warning("held POPs of %d groups and topics are not woken up: %s", len(shares), error)
        time.sleep(_VISIBLE_LOOK_S)
        with self._turn:
            self._woken |= shares & self._held.keys()

    def _forget_gone(self) -> None:
        if self._gone:
            self._take(lambda one: one.request.peer in self._gone)
            self._gone.clear()

    def _end(self, ends: Callable[[HeldPop], bool]) -> None:
        """Wake up the requests that `ends` names for the last time; with the lock held."""
        assert self._wake is not None
        for one in self._take(ends):
            self._wake(one, True)

    def _take(self, goes: Callable[[HeldPop], bool]) -> list[HeldPop]:
        """Forget the requests that `goes` names, and return them; with the lock held."""
        gone: list[HeldPop] = []
        for share, waiting in list(self._held.items()):
            stay: deque[HeldPop] = deque()
            for one in waiting:
                (gone if goes(one) else stay).append(one)
            if stay:
                self._held[share] = stay
            else:
                del self._held[share]
        self._count -= len(gone)
        return gone
