"""Messages that stay hidden while their consumer lives (DefaultReceiptHandleManager.java, RenewStrategyPolicy.java).

A push consumer over gRPC leaves renewals to the server. It gets a message for FIRST_MS. Before that time is over the
message is hidden anew, for longer each time, until the consumer has answered, has gone, or has had it for MAX_MS.

A renewal voids the handle that the consumer has. So this class exchanges it for the newest one when it comes back.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.clock import ClockFile
from rmq_store.errors import InvalidReceiptHandleError, StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import PoppedMessage
from rmq_store.server.access.user_slots import UserSlots
from rmq_store.server.processors.served_store import ServedStore

_log: Final = logging.getLogger(__name__)

# ProxyConfig.java: defaultInvisibleTimeMills, renewMaxTimeMillis, renewAheadTimeMillis, invisibleTimeMillisWhenClear
# and maxRenewRetryTimes.
FIRST_MS: Final = 60_000
MAX_MS: Final = 3 * 3_600_000
_AHEAD_MS: Final = 10_000
_LEFT_MS: Final = 1_000
_FAILURES_MAX: Final = 3
# RenewStrategyPolicy.java: 1, 3, 5, 10 and 30 minutes, then an hour each.
_STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))

RENEWED_MAX: Final = 50_000
"""The server renews so many messages at once, with some 600 bytes for each; for one user half of them at most."""


class Consumer(NamedTuple):
    """A client in one of its groups."""

    group: str
    client_id: str


@dataclass(slots=True, eq=False)
class _Renewed:
    """A message in work. `handle` is the newest; times are those of the store's clock."""

    topic: str
    user: str
    handle: str
    since_ms: int
    due_ms: int
    reconsume_times: int
    renewals: int = 0
    failures: int = 0
    is_busy: bool = False


class Renewals:
    """The messages in work of consumers that leave renewals to the server. Safe for threads.

    `lives` tells whether a consumer is still there. `wait_ms` is the time that a group has before the next attempt of a
    message, by its reconsumeTimes.
    """

    def __init__(
        self,
        served: ServedStore,
        lives: Callable[[Consumer], bool],
        wait_ms: Callable[[SubscriptionGroup, int], int],
    ) -> None:
        self._served = served
        self._lives = lives
        self._wait_ms = wait_ms
        self._clock = served.store.clock
        # A clock that jumps leaves no moment for renewals between two times.
        self.first_ms = MAX_MS if isinstance(self._clock, ClockFile) else FIRST_MS
        self._of: dict[Consumer, dict[str, _Renewed]] = {}
        self._slots = UserSlots()
        self._due_ms: float = math.inf
        self._changed = threading.Condition()

    def has_room(self, user: str) -> bool:
        """Whether messages of this user can be renewed; otherwise they are given out for a fixed time."""
        with self._changed:
            return self._slots.why_full(user, RENEWED_MAX) is None

    def add(self, consumer: Consumer, user: str, topic: str, popped: Sequence[PoppedMessage]) -> None:
        """Keep messages hidden that the consumer was given for `first_ms`, from now on."""
        now_ms = self._clock()
        due_ms = now_ms + self.first_ms - _AHEAD_MS
        with self._changed:
            own = self._of.setdefault(consumer, {})
            for one in popped:
                own[one.receipt_handle] = _Renewed(
                    topic, user, one.receipt_handle, now_ms, due_ms, one.delivery_attempt - 1
                )
                self._slots.take(user)
            self._due_ms = min(self._due_ms, due_ms)

    @contextlib.contextmanager
    def taken(self, consumer: Consumer, topic: str, handle: str) -> Iterator[str]:
        """The newest handle for the one that the consumer has, in a `with` statement; the message is renewed no more.
        An error other than InvalidReceiptHandleError leaves all as it was. A handle that is not known is given back.
        """
        with self._changed:
            renewed = self._of.get(consumer, {}).get(handle)
            while renewed is not None and renewed.is_busy:
                self._changed.wait()
                renewed = self._of.get(consumer, {}).get(handle)
            if renewed is not None and renewed.topic == topic:
                self._remove(consumer, handle)
            else:
                renewed = None
        try:
            yield handle if renewed is None else renewed.handle
        except InvalidReceiptHandleError:
            raise
        except BaseException:
            if renewed is not None:
                with self._changed:
                    self._of.setdefault(consumer, {})[handle] = renewed
                    self._slots.take(renewed.user)
                    self._due_ms = min(self._due_ms, renewed.due_ms)
            raise

    def renew_due(self) -> None:
        """Hide anew what is visible soon, and show the messages of consumers that have gone in a second."""
        with self._changed:
            consumers = list(self._of)
        for consumer in consumers:
            if not self._lives(consumer):
                self._each(consumer, math.inf, self._show)
        now_ms = self._clock()
        if now_ms < self._due_ms:
            return
        with self._changed:
            self._due_ms = math.inf
            consumers = list(self._of)
        for consumer in consumers:
            self._each(consumer, now_ms, self._renew)
        with self._changed:
            left = (renewed.due_ms for own in self._of.values() for renewed in own.values())
            self._due_ms = min(left, default=math.inf)

    def close(self) -> None:
        """Show messages whose consumers have a void handle: after a restart nobody could exchange it. The others stay
        hidden until their time is over, and their handles hold.
        """
        with self._changed:
            consumers = list(self._of)
        for consumer in consumers:
            self._each(consumer, math.inf, lambda one, renewed: renewed.renewals > 0 and self._show(one, renewed))

    def _each(self, consumer: Consumer, due_ms: float, change: Callable[[Consumer, _Renewed], object]) -> None:
        """Change the consumer's messages that are due by then. One that `change` does not return true for is renewed no
        more; nobody else changes it meanwhile.
        """
        with self._changed:
            handles = [handle for handle, one in self._of.get(consumer, {}).items() if one.due_ms <= due_ms]
        for handle in handles:
            with self._changed:
                renewed = self._of.get(consumer, {}).get(handle)
                if renewed is None:
                    continue
                renewed.is_busy = True
            stays = False
            try:
                stays = bool(change(consumer, renewed))
            except InvalidReceiptHandleError:
                _log.debug("a message of %s is renewed no more: it was given out again", consumer.group)
            except StoreError as error:
                renewed.failures += 1
                stays = renewed.failures < _FAILURES_MAX
                _log.warning("a message of group %s is not renewed: %s", consumer.group, error)
            finally:
                with self._changed:
                    renewed.is_busy = False
                    if not stays:
                        self._remove(consumer, handle)
                    self._changed.notify_all()

    def _renew(self, consumer: Consumer, renewed: _Renewed) -> bool:
        now_ms = self._clock()
        if now_ms - renewed.since_ms >= MAX_MS:
            group = self._served.group(consumer.group)
            self._hide(consumer, renewed, self._wait_ms(group, renewed.reconsume_times))
            return False
        step_ms = _STEPS_MS[min(renewed.renewals, len(_STEPS_MS) - 1)]
        renewed.handle = self._hide(consumer, renewed, step_ms)
        renewed.renewals += 1
        renewed.failures = 0
        renewed.due_ms = now_ms + step_ms - _AHEAD_MS
        return True

    def _show(self, consumer: Consumer, renewed: _Renewed) -> bool:
        self._hide(consumer, renewed, _LEFT_MS)
        return False

    def _hide(self, consumer: Consumer, renewed: _Renewed, invisible_ms: int) -> str:
        change = self._served.broker.change_invisible_duration
        return change(consumer.group, renewed.topic, renewed.handle, invisible_ms)

    def _remove(self, consumer: Consumer, handle: str) -> None:
        own = self._of[consumer]
        self._slots.give_back(own.pop(handle).user)
        if not own:
            del self._of[consumer]
