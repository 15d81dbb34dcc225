"""POP requests that wait for messages (PopLongPollingService.java).

All members of a group share its messages of a topic. So one of the waiting requests is woken up when there is
something for the group; if it gets messages, the next one is. A message whose invisible time is over wakes them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.protocol.wire.pop_headers import PopMessageRequestHeader
from rmq_store.server.requests.held_requests import HeldRequests, end_of_patience_s
from rmq_store.server.requests.request import Request

Share: TypeAlias = tuple[str, str]
"""A group and a topic."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPop:
    """A POP that found no message. It is answered `poll_time` ms after it arrived, and PATIENCE_MS_MAX at most."""

    request: Request
    header: PopMessageRequestHeader
    subscription: Subscription

    @property
    def key(self) -> Share:
        """See `Held.key`."""
        return self.header.consumer_group, self.header.topic

    @property
    def until_s(self) -> float:
        """See `Held.until_s`."""
        return end_of_patience_s(self.request, self.header.poll_time)


class HeldPops(HeldRequests[Share, HeldPop]):
    """The POPs of one store."""

    look_s = 0.005
    wakes_one = True
    looks_always = True  # at messages that are visible again

    def look(self, key: Share) -> Callable[[HeldPop], bool] | None:
        """See `HeldRequests.look`: all of them, if the group can receive something."""
        try:
            has_some = self._store.pop.rest(*key) > 0
        except Exception:  # the request itself names the error
            has_some = True
        return (lambda _: True) if has_some else None

    def stored(self, topic: str) -> None:
        """A message of the topic was stored by a client of this server."""
        if self._held:  # most sends find nobody waiting, and need no lock
            with self._turn:
                self.look_soon([share for share in self._held if share[1] == topic])

    def received(self, group: str, topic: str) -> None:
        """A request got messages: there may be more for the next one."""
        self.look_soon([(group, topic)])
