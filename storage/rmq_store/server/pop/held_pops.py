"""POPs and notifications that wait for messages of a group (PopLongPollingService.java).

All members of a group share its messages of a topic. So one of the POPs that wait is woken up when there is something
for the group; if it gets messages, the next one is. A notification takes nothing, so that all of them are woken up. A
message whose invisible time is over wakes them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.pop_headers import NotificationRequestHeader, PopMessageRequestHeader
from rmq_store.server.requests.held_requests import Held, HeldRequests, end_of_patience_s
from rmq_store.server.requests.request import Request

ANY_QUEUE = -1


class Share(NamedTuple):
    """The messages of a topic that a group receives: of one queue or ANY_QUEUE, in any order or in that of queues."""

    group: str
    topic: str
    queue_id: int = ANY_QUEUE
    in_order: bool = False

    @property
    def one_queue(self) -> int | None:
        """The queue; None: all of them."""
        return None if self.queue_id == ANY_QUEUE else self.queue_id


Header = TypeVar("Header", PopMessageRequestHeader, NotificationRequestHeader)


@dataclass(frozen=True, slots=True, eq=False)
class _HeldOfShare(Generic[Header]):
    """Answered `poll_time` ms after it arrived, and after PATIENCE_MS_MAX at most."""

    request: Request
    header: Header

    @property
    def key(self) -> Share:
        """See `Held.key`."""
        header = self.header
        return Share(header.consumer_group, header.topic, header.queue_id, bool(header.order))

    @property
    def until_s(self) -> float:
        """See `Held.until_s`."""
        return end_of_patience_s(self.request, self.header.poll_time)


@dataclass(frozen=True, slots=True, eq=False)
class HeldPop(_HeldOfShare[PopMessageRequestHeader]):
    """A POP that found no message."""

    subscription: Subscription


class HeldNotification(_HeldOfShare[NotificationRequestHeader]):
    """A question whether there is something to receive; it waits as a POP does."""

    __slots__ = ()


H = TypeVar("H", bound=Held)


class _HeldOfShares(HeldRequests[Share, H]):
    look_s = 0.005
    looks_always = True  # at messages that are visible again

    def look(self, key: Share) -> Callable[[H], bool] | None:
        """See `HeldRequests.look`: all of them, if the group can receive something."""
        try:
            rest = self._store.pop.rest(key.group, key.topic, queue_id=key.one_queue, in_order=key.in_order)
            has_some = rest > 0
        except Exception:  # the request itself names the error
            has_some = True
        return (lambda _: True) if has_some else None

    def stored(self, topic: str) -> None:
        """A message of the topic was stored by a client of this server."""
        self._look_where(lambda share: share.topic == topic)

    def freed(self, group: str, topic: str) -> None:
        """The group may have more to receive: a request got messages, or acknowledged some."""
        self._look_where(lambda share: (share.group, share.topic) == (group, topic))

    def _look_where(self, concerns: Callable[[Share], bool]) -> None:
        if self._held:  # mostly nobody waits, and no lock is needed
            with self._lock:
                self.look_soon([share for share in self._held if concerns(share)])


class HeldPops(_HeldOfShares[HeldPop]):
    """The POPs of one store."""

    wakes_one = True


class HeldNotifications(_HeldOfShares[HeldNotification]):
    """The notifications of one store."""
