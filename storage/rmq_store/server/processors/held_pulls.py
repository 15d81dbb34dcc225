"""Pulls that wait for messages of their queues (PullRequestHoldService.java)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.headers import PullMessageRequestHeader
from rmq_store.server.requests.held_requests import HeldRequests, end_of_patience_s
from rmq_store.server.requests.request import Request

QueuePlace: TypeAlias = tuple[str, int]
"""Topic and queue id."""


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
    def key(self) -> QueuePlace:
        """See `Held.key`."""
        return self.header.topic, self.header.queue_id

    @property
    def until_s(self) -> float:
        """See `Held.until_s`."""
        return end_of_patience_s(self.request, self.patience_ms)


class HeldPulls(HeldRequests[QueuePlace, HeldPull]):
    """The pulls of one store. Messages of this server's clients wake them at once."""

    look_s = 0.002

    def look(self, key: QueuePlace) -> Callable[[HeldPull], bool]:
        """See `HeldRequests.look`: the pulls before the end of their queue."""
        end = self._store.queue_range(*key).max_offset
        return lambda one: one.offset < end

    def is_prompt(self, one: HeldPull) -> bool:
        """See `HeldRequests.is_prompt`: a condition may be asked of thousands of messages."""
        return one.subscription.selector.expression_type != "SQL92"

    def stored(self, topic: str, queue_id: int) -> None:
        """A message was stored by a client of this server."""
        if (topic, queue_id) in self._held:  # most sends find nobody waiting, and need no lock
            self.look_now((topic, queue_id))
