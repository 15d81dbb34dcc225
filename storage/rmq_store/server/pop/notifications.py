"""200054: a question whether a group could receive something, which may wait for it (NotificationProcessor.java)."""

from __future__ import annotations

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pop_headers import NotificationRequestHeader, NotificationResponseHeader
from rmq_store.server.pop.held_pops import HeldNotification, HeldNotifications
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refuse_body


class NotificationProcessor:
    """Says of one store's groups whether there is something to receive. Nothing is hidden."""

    def __init__(self, served: ServedStore, holds: HeldNotifications) -> None:
        self._served = served
        self._holds = holds

    def ask(self, request: Request) -> RemotingCommand | None:
        """200054; None: the request is held.

        Raises:
            MQBrokerError: 17 or 26, no such topic or group; 29, no such queue.
        """
        refuse_body(request)
        held = HeldNotification(request, request.header(NotificationRequestHeader))
        self._served.group(held.key.group)
        self._served.topic_with_queue(held.key.topic, held.key.one_queue)
        if self._has_some(held):
            return self._answer(held, has_some=True)
        if self._holds.hold(held):
            return None
        return self._answer(held, has_some=False, is_full=self._holds.is_full and held.header.poll_time > 0)

    def ask_again(self, held: HeldNotification, *, is_last: bool) -> RemotingCommand | None:
        """The answer to a held request that has woken up. None: another client was faster, and it is held again."""
        has_some = self._has_some(held)
        if not has_some and not is_last and self._holds.hold(held, again=True):
            return None
        return self._answer(held, has_some=has_some)

    def _has_some(self, held: HeldNotification) -> bool:
        share = held.key
        rest = self._served.store.pop.rest(
            share.group,
            share.topic,
            queue_id=share.one_queue,
            in_order=share.in_order,
            attempt_id=held.header.attempt_id,
        )
        return rest > 0

    def _answer(self, held: HeldNotification, *, has_some: bool, is_full: bool = False) -> RemotingCommand:
        return held.request.answer(header=NotificationResponseHeader(has_msg=has_some, polling_full=is_full))
