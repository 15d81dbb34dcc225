"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

A group whose settings say `consumeMessageOrderly` receives in order, whatever its clients say: a queue gives out
nothing while one of its messages is hidden, and messages of one message group lie in one queue.
Sources: ReceiveMessageActivity.java, AckMessageActivity.java, ChangeInvisibleDurationActivity.java,
ForwardMessageToDLQActivity.java.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.broker.pop.pop import MESSAGES_MAX
from rmq_store.broker.pop.receipt_handle import ReceiptHandle
from rmq_store.errors import InvalidReceiptHandleError, UnknownTopicError, UsageError
from rmq_store.protocol.messages import PoppedMessage
from rmq_store.server.grpc_definitions.definitions import ms_of, new, timestamp_fields
from rmq_store.server.grpc_definitions.enums import Code, FilterType
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.clients import Clients
from rmq_store.server.grpc_v2.grpc_peer import READ_S
from rmq_store.server.grpc_v2.held_receives import HeldReceives
from rmq_store.server.grpc_v2.messages import received_message
from rmq_store.server.grpc_v2.routes import Routes
from rmq_store.server.grpc_v2.statuses import Refusal, group_of, status, status_of, topic_of
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.pop.held_pops import Share
from rmq_store.server.pop.renewals import Consumer, Renewals
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.transport.working_bytes import WorkingBytes

POLLING_MS_MAX: Final = 20_000
"""The longest that a receive is held (grpcClientConsumerMaxLongPollingTimeoutMillis)."""

UNREAD_BYTES_MAX: Final = 256 << 20
"""Bodies that consumers were given and have not read, of all consumers."""

# minInvisibleTimeMillsForRecv, maxInvisibleTimeMills.
_INVISIBLE_MS: Final = (10_000, 12 * 3_600_000)
# Kept back from a client's deadline, so that "no message" reaches it before.
_MARGIN_S: Final = 0.2
# A message that is sent to the dead letters stays hidden meanwhile.
_FORWARDING_MS: Final = 60_000
_ENTRIES_MAX: Final = 1024
_EXPRESSION_MAX: Final = 16 << 10

Write = Callable[[Any], Any]


class Receiving:
    """Gives out messages by the engine of simple consumers (`rmq_store/broker/pop`)."""

    def __init__(
        self,
        served: ServedStore,
        routes: Routes,
        clients: Clients,
        holds: HeldReceives,
        renewals: Renewals,
        workers: Workers,
    ) -> None:
        self._served = served
        self._routes = routes
        self._clients = clients
        self._holds = holds
        self._renewals = renewals
        self._workers = workers
        self._unread = WorkingBytes(UNREAD_BYTES_MAX, lambda _: None)

    async def receive(self, request: Any, caller: Caller, write: Write, check: Callable[[], None]) -> None:
        """ReceiveMessage: a status, messages, and the time. Without messages it waits for `long_polling_timeout`.
        `check` raises if the client may receive no more; it is asked when there are messages, before they are sent. In
        order a repeated `attempt_id` gets the messages in flight again that its first answer had.

        A client that goes away while it waits gets none; a message that could not be sent to it is visible again at
        once.

        Raises:
            TimeoutError: the client does not read.
        """
        if self._unread.is_full:
            raise Refusal(Code.TOO_MANY_REQUESTS, "the broker is busy: consumers do not read what they were given")
        group, topic = group_of(request.group), topic_of(request.message_queue.topic)
        expression = request.filter_expression
        settings, subscription = await self._workers.run(
            lambda: (self._served.group(group), _subscription(topic, expression))
        )
        self._routes.topic(topic)
        fixed_ms = _invisible_ms(request, settings.consume_timeout_minute)
        batch = max(1, min(request.batch_size, MESSAGES_MAX))
        await self._clients.receives(caller, group, topic)
        share = Share(group, topic, in_order=settings.consume_message_orderly)
        take = partial(self._take, share, subscription, batch, fixed_ms, request.attempt_id or None)
        if request.auto_renew:
            take = partial(self._take_renewed, take, share, caller)
        show_again = partial(self._show_again, share, caller)
        popped = await self._take_or_wait(take, show_again, share, _polling_s(request, caller), caller.user)
        if not popped:
            await write(new("ReceiveMessageResponse", status=status(Code.MESSAGE_NOT_FOUND, "no new message")))
            return
        unsent, size = list(popped), sum(len(one.message.body) for one in popped)
        self._unread.add(size)
        try:
            check()
            async with asyncio.timeout(READ_S):
                await write(new("ReceiveMessageResponse", status=status(Code.OK)))
                while unsent:
                    invisible_ms = ReceiptHandle.parse(unsent[0].receipt_handle).invisible_ms
                    await write(new("ReceiveMessageResponse", message=received_message(unsent[0], invisible_ms)))
                    unsent.pop(0)
                now = timestamp_fields(self._served.store.clock())
                await write(new("ReceiveMessageResponse", delivery_timestamp=now))
        finally:
            self._unread.add(-size)
            if unsent:
                self._workers.submit(partial(show_again, unsent))

    async def ack(self, request: Any, caller: Caller) -> Any:
        """AckMessage: each entry has a status of its own. An entry that is OK is as durable as a stored message."""
        group, topic = group_of(request.group), topic_of(request.topic)
        if not 0 < len(request.entries) <= _ENTRIES_MAX:
            raise Refusal(Code.BAD_REQUEST, f"a request has 1..{_ENTRIES_MAX} entries")
        statuses = await self._workers.run(
            lambda: [self._ack(group, topic, entry.receipt_handle, caller) for entry in request.entries]
        )
        self._freed(group, topic)
        codes = {one.code for one in statuses}
        whole = statuses[0] if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)
        entries = [
            {"message_id": entry.message_id, "receipt_handle": entry.receipt_handle, "status": one}
            for entry, one in zip(request.entries, statuses, strict=True)
        ]
        return new("AckMessageResponse", status=whole, entries=entries)

    async def change_invisible_duration(self, request: Any, caller: Caller) -> Any:
        """ChangeInvisibleDuration: hide a message for a time from now on. The new handle voids the old one."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 < invisible_ms <= _INVISIBLE_MS[1]:
            raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisible time is not in 1..{_INVISIBLE_MS[1]} ms")

        def change() -> str:
            with self._renewals.taken(Consumer(group, caller.client_id), topic, request.receipt_handle) as newest:
                return self._served.broker.change_invisible_duration(group, topic, newest, invisible_ms)

        handle = await self._workers.run(change)
        return new("ChangeInvisibleDurationResponse", status=status(Code.OK), receipt_handle=handle)

    async def forward_to_dead_letters(self, request: Any, caller: Caller) -> Any:
        """ForwardMessageToDeadLetterQueue. After a crash in the middle the message comes again: it is never lost."""
        group, topic = group_of(request.group), topic_of(request.topic)
        await self._workers.run(lambda: self._forward(group, topic, request.receipt_handle, caller))
        self._freed(group, topic)
        return new("ForwardMessageToDeadLetterQueueResponse", status=status(Code.OK))

    async def _take_or_wait(
        self,
        take: Callable[[], list[PoppedMessage]],
        show_again: Callable[[list[PoppedMessage]], None],
        share: Share,
        polling_s: float,
        user: str,
    ) -> list[PoppedMessage]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + polling_s
        popped: list[PoppedMessage] = await self._workers.run(take, show_again)
        if not popped and polling_s > 0:
            with self._holds.place(user):
                while not popped and loop.time() < until_s and not self._holds.is_stopping:
                    await self._holds.wait(share, until_s)
                    popped = await self._workers.run(take, show_again)
        if popped:
            self._holds.wake(share)  # there may be more
        return popped

    def _freed(self, group: str, topic: str) -> None:
        """Messages are done with: in order, others of their queues may come now."""
        self._holds.wake(Share(group, topic, in_order=True))

    def _take_renewed(
        self, take: Callable[..., list[PoppedMessage]], share: Share, caller: Caller
    ) -> list[PoppedMessage]:
        """Take messages that are renewed from now on, or for a fixed time if too many are."""
        if not self._renewals.has_room(caller.user):
            return take()
        popped = take(invisible_ms=self._renewals.first_ms)
        if popped:
            self._renewals.add(Consumer(share.group, caller.client_id), caller.user, share.topic, popped)
        return popped

    def _take(
        self,
        share: Share,
        subscription: Subscription,
        batch: int,
        fixed_ms: int,
        attempt_id: str | None,
        invisible_ms: int | None = None,
    ) -> list[PoppedMessage]:
        invisible_ms = fixed_ms if invisible_ms is None else invisible_ms
        try:
            return self._served.broker.receive_message(
                share.group, subscription, batch, invisible_ms, in_order=share.in_order, attempt_id=attempt_id
            )
        except UnknownTopicError:
            return []  # the first send makes it: `Routes.topic` has said so
        except Exception as error:
            if isinstance(error.__cause__, UnknownTopicError):
                return []
            raise

    def _show_again(self, share: Share, caller: Caller, popped: list[PoppedMessage]) -> None:
        consumer = Consumer(share.group, caller.client_id)
        for one in popped:
            with (
                contextlib.suppress(InvalidReceiptHandleError),  # a repeated receive has got it meanwhile
                self._renewals.taken(consumer, share.topic, one.receipt_handle) as newest,
            ):
                self._served.broker.change_invisible_duration(share.group, share.topic, newest, 0)

    def _ack(self, group: str, topic: str, handle: str, caller: Caller) -> Any:
        try:
            with self._renewals.taken(Consumer(group, caller.client_id), topic, handle) as newest:
                self._served.broker.ack_message(group, topic, newest)
        except Exception as error:
            return status_of(error, "AckMessage", caller.peer)
        return status(Code.OK)

    def _forward(self, group: str, topic: str, handle: str, caller: Caller) -> None:
        place = ReceiptHandle.parse(handle).commit_log_offset
        if place is None:
            raise Refusal(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is one of a client that does not speak gRPC")
        # A handle is text of a client: hiding the message anew proves that it is one of this group and topic.
        with self._renewals.taken(Consumer(group, caller.client_id), topic, handle) as newest:
            new_handle = self._served.broker.change_invisible_duration(group, topic, newest, _FORWARDING_MS)
        self._served.store.retry.send_back(group, place, delay_level=-1)
        self._served.broker.ack_message(group, topic, new_handle)


def _subscription(topic: str, expression: Any) -> Subscription:
    if len(expression.expression) > _EXPRESSION_MAX:
        text = f"an expression of {len(expression.expression)} characters, max is {_EXPRESSION_MAX}"
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, text)
    by = MessageSelector.by_sql if expression.type == FilterType.SQL else MessageSelector.by_tag
    try:
        return Subscription(topic, by(expression.expression or "*"))
    except UsageError as error:
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def _invisible_ms(request: Any, timeout_minutes: int) -> int:
    """The client's wish. A client that leaves renewals to the server gets the group's consumeTimeoutMinute if none can
    be renewed.
    """
    low, high = _INVISIBLE_MS
    if request.auto_renew:
        return max(low, min(timeout_minutes * 60_000, high))
    invisible_ms = ms_of(request.invisible_duration)
    if not low <= invisible_ms <= high:
        text = f"the invisible time is {invisible_ms} ms, not in {low}..{high} ms"
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, text)
    return invisible_ms


def _polling_s(request: Any, caller: Caller) -> float:
    polling_ms = ms_of(request.long_polling_timeout) if request.HasField("long_polling_timeout") else POLLING_MS_MAX
    polling_s = max(0, min(polling_ms, POLLING_MS_MAX)) / 1000
    if caller.remaining_s is not None:
        polling_s = min(polling_s, caller.remaining_s - _MARGIN_S)
    return max(0.0, polling_s)
