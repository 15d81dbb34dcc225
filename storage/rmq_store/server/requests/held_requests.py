"""Requests that wait until there is something to answer (PullRequestHoldService.java, PopLongPollingService.java).

A request is held under a key, for example a queue, until a look at the key finds something for it, or its time is over,
or its client has gone. When the log has grown, whichever process has stored the message, all keys are looked at.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from rmq_store import real_time
from rmq_store.broker.store.store import Store
from rmq_store.server.requests.request import Peer, Request

_log: Final = logging.getLogger(__name__)

HELD_MAX: Final = 100_000
PATIENCE_MS_MAX: Final = 60_000
"""Clients ask for 15 s to 30 s; more would only keep requests whose clients have long forgotten them."""

# Between two looks at requests whose time is over, or whose clients have gone.
_OVERDUE_LOOK_S: Final = 0.1


class Held(Protocol):
    """A request that waits."""

    @property
    def request(self) -> Request:
        """The request; it has no body."""

    @property
    def key(self) -> Any:
        """The place that it waits for."""

    @property
    def until_s(self) -> float:
        """The monotonic time at which its time is over."""


K = TypeVar("K")
H = TypeVar("H", bound=Held)

WakeUp: TypeAlias = Callable[[H, bool, bool], None]
"""Gets the request, whether its time is over, and whether it may be answered in the calling thread."""


def end_of_patience_s(request: Request, patience_ms: int) -> float:
    """The monotonic time `patience_ms` after a request arrived, PATIENCE_MS_MAX at most."""
    return request.arrived_s + min(patience_ms, PATIENCE_MS_MAX) / 1000


class HeldRequests(ABC, Generic[K, H]):
    """Holds at most `held_max` requests, and wakes them up. A subclass says how it looks at a key. Safe for threads.

    `look_s`: between two looks at the end of the log for messages of other processes. `wakes_one`: a look wakes up one
    request, the oldest. `looks_always`: all keys are looked at every _OVERDUE_LOOK_S, whether or not the log has grown.
    """

    look_s: ClassVar[float]
    wakes_one: ClassVar[bool] = False
    looks_always: ClassVar[bool] = False

    def __init__(self, store: Store, held_max: int = HELD_MAX) -> None:
        self._store = store
        self._held_max = held_max
        self._held: dict[K, deque[H]] = {}
        self._count = 0
        self._marked: set[K] = set()
        self._gone: set[Peer] = set()
        self._lock = threading.Condition()
        self._stopping = False
        self._seen_end = -1
        self._thread: threading.Thread | None = None
        self._wake: WakeUp[H] | None = None

    @abstractmethod
    def look(self, key: K) -> Callable[[H], bool] | None:
        """Say which requests of the key have something to find now; None: none of them, and they are not gone through.
        An error is logged, and the look repeated.
        """

    def is_prompt(self, one: H) -> bool:
        """Whether its answer takes so little time that the thread of a sender may make it."""
        return True

    def start(self, wake: WakeUp[H]) -> None:
        """Begin to wake up requests: `wake` gets each of them."""
        self._wake = wake
        self._thread = threading.Thread(target=self._watch, name=f"rmq-{type(self).__name__}", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether no more are held."""
        return self._count >= self._held_max

    def count(self, key: K) -> int:
        """How many are held under a key."""
        with self._lock:
            return len(self._held.get(key, ()))

    def hold(self, held: H, *, again: bool = False) -> bool:
        """Keep a request; False if its time is over, or too many are held. `again`: it has just been woken up in vain,
        so that no look is due.
        """
        with self._lock:
            if self._stopping or self.is_full or real_time.monotonic() >= held.until_s:
                return False
            self._held.setdefault(held.key, deque()).append(held)
            self._count += 1
            if not again:  # something may have come between the request's own look and now
                self._marked.add(held.key)
            self._lock.notify()
        return True

    def look_soon(self, keys: Iterable[K]) -> None:
        """Look at keys now: something may have come."""
        with self._lock:
            known = [key for key in keys if key in self._held]
            if known:
                self._marked.update(known)
                self._lock.notify()

    def look_now(self, key: K) -> None:
        """Look at a key in the calling thread, where the first request that finds something may be answered."""
        try:
            goes = self.look(key)
        except Exception:  # the thread of the holds meets it, too, and says so
            self.look_soon([key])
            return
        if goes is not None:
            with self._lock:
                going = self._let_go([key], goes, is_last=False)
            for number, one in enumerate(going):
                self._woken(one, is_last=False, at_once=not number and self.is_prompt(one))

    def disconnected(self, peer: Peer) -> None:
        """Forget the requests of a connection that has ended: from now on none of them is woken up."""
        with self._lock:
            if self._held:
                self._gone.add(peer)

    def close(self) -> None:
        """Wake up all requests for the last time, and end the thread."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        overdue_look_s = 0.0
        while True:
            with self._lock:
                while not self._held and not self._stopping:
                    self._lock.wait()
                if not self._marked and not self._stopping:
                    self._lock.wait(self.look_s)
                keys, self._marked = self._marked, set()
                is_stopping = self._stopping
                going = self._let_go(list(self._held), lambda _: True, is_last=True) if is_stopping else []
            if is_stopping:
                for one in going:
                    self._woken(one, is_last=True)
                return
            try:
                now_s = real_time.monotonic()
                if now_s >= overdue_look_s:
                    overdue_look_s = now_s + _OVERDUE_LOOK_S
                    self._end_overdue(now_s)
                    keys = self._keys() if self.looks_always else keys
                self._look_at(keys)
            except Exception as error:  # no file descriptors left, say
                self._look_again(keys, error)

    def _keys(self) -> set[K]:
        with self._lock:
            return set(self._held)

    def _end_overdue(self, now_s: float) -> None:
        with self._lock:
            going = self._let_go(list(self._held), lambda one: one.until_s <= now_s, is_last=True)
            self._gone.clear()
        for one in going:
            self._woken(one, is_last=True)

    def _look_at(self, keys: set[K]) -> None:
        if not self._store.has_not_grown(self._seen_end):
            end = self._store.log_range()[1]
            if end != self._seen_end:
                self._seen_end = end
                keys = self._keys()
        bad: Exception | None = None
        failed: set[K] = set()
        for key in keys:
            try:
                goes = self.look(key)
            except Exception as error:  # one broken queue does not keep the requests of the others
                bad = error
                failed.add(key)
                continue
            if goes is not None:
                with self._lock:
                    going = self._let_go([key], goes, is_last=False)
                for one in going:
                    self._woken(one, is_last=False)
        if bad is not None:
            self._look_again(failed, bad)

    def _look_again(self, keys: set[K], error: Exception) -> None:
        """After an error: at these keys, behind a pause."""
        _log.warning("%s: the requests at %d places are not woken up: %s", type(self).__name__, len(keys), error)
        time.sleep(_OVERDUE_LOOK_S)
        with self._lock:
            self._marked |= keys & self._held.keys()

    def _woken(self, one: H, *, is_last: bool, at_once: bool = False) -> None:
        assert self._wake is not None
        self._wake(one, is_last, at_once)

    def _let_go(self, keys: list[K], goes: Callable[[H], bool], *, is_last: bool) -> list[H]:
        """Hold the requests of these keys that `goes` names no more, and return them; forget those of clients that have
        gone. With the lock held.
        """
        going = []
        for key in keys:
            waiting, stay = self._held.pop(key, deque()), deque[H]()
            before = len(waiting)
            while waiting:
                one = waiting.popleft()
                if one.request.peer in self._gone:
                    continue
                if not goes(one):
                    stay.append(one)
                    continue
                going.append(one)
                if self.wakes_one and not is_last:
                    break
            waiting.extendleft(reversed(stay))
            self._count -= before - len(waiting)
            if waiting:
                self._held[key] = waiting
        return going
