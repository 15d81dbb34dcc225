"""Sends the messages of a claim: batches per queue, each sharding key in order.

    order           messages that are sent one after the other        sent as
    (topic, queue)  all with sharding keys that hash to the queue     batches to this queue
    (topic)         all others                                        batches to the next queue in turn

Messages keep the ids of their stubs, also when they are sent again: consumers recognise them by these.

A message that no batch can hold (delayed, or with a queue of its own) is sent alone, at its place in the order. This
module does not know the database; no transaction is open while it sends.

    failure                                          then
    the message or its batch breaks a rule           halves of the batch, down to the message; its key stops
    not carried out: no route, no connection, busy,  its order stops; it counts as no send, the message is not to blame
    or no rights
    unknown: answer lost, time over, system error    its order stops; it counts as a send, because it may be one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from rmq_store.client import (
    ClientError,
    Message,
    MessageIllegalError,
    MessageQueue,
    MQBrokerError,
    MQClientError,
    Producer,
    RemotingError,
    ResponseCode,
    SendResult,
    select_message_queue_by_hash,
)
from rmq_store.client.delivery.outcome import SendOutcome, verdict_of
from rmq_store.errors import StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.outbox.delays import deliver_ms, is_delayed

BATCH_MESSAGES_MAX = 500
BATCH_BODY_BYTES_MAX = 1 << 20

@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that this process may send until `claim_until_ms`. `send_count` includes this send."""

    seq: int
    message_id: str
    message: Message
    send_count: int
    claim_token: str
    claim_until_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A broker has the message. The target is None for a delayed message: its offset does not tell when a group gets
    it. `deliver_ms`: the time at which the broker delivers it.
    """

    claimed: Claimed
    sent_ms: int
    result: SendResult
    deliver_ms: int | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class NotSent:
    """It is unknown whether a broker has the message. `is_counted`: this may have been a send. `error` None: nobody
    tried, and there is no reason to wait.
    """

    claimed: Claimed
    error: StoreError | None
    is_counted: bool


@dataclass(slots=True)
class _KeyOrder:
    queue: MessageQueue | None
    waiting: list[Claimed] = field(default_factory=list)


def send_claimed(
    producer: Producer, claimed: Sequence[Claimed], clock: Callable[[], int]
) -> Iterator[list[Sent | NotSent]]:
    """Send in the order of `claimed` within each sharding key. Yields results of some of them, until each has one.
    Errors of clients and stores are results; any other error is raised.
    """
    if len(claimed) == 1 and not claimed[0].message.sharding_key:  # what most transactions promise
        yield from _KeyOrderSender(producer, _KeyOrder(None, [*claimed]), clock).send()
        return
    orders: dict[tuple[str, MessageQueue | None], _KeyOrder] = {}
    routes: dict[str, list[MessageQueue] | StoreError] = {}
    for each in claimed:
        queue = None
        if key := each.message.sharding_key:
            route = _route(producer, routes, each.message.topic)
            if isinstance(route, StoreError):
                yield [_not_sent(each, route)]
                continue
            queue = select_message_queue_by_hash(route, each.message, key)
        orders.setdefault((each.message.topic, queue), _KeyOrder(queue)).waiting.append(each)
    for order in orders.values():
        yield from _KeyOrderSender(producer, order, clock).send()


def may_have_been_sent(error: StoreError) -> bool:
    """True if a broker may have carried out a send that ended with this error, or if its message is to blame. Rights
    that are missing are not the message's fault.
    """
    if not isinstance(error, MQBrokerError | MQClientError | RemotingError):
        return True
    verdict = verdict_of(error)
    return verdict.outcome is not SendOutcome.NOT_STORED and not verdict.lacks_rights


def breaks_a_rule(error: StoreError) -> bool:
    """True if a client or broker refuses the message itself."""
    if isinstance(error, MessageIllegalError):
        return True
    return isinstance(error, MQBrokerError | MQClientError) and error.response_code == ResponseCode.MESSAGE_ILLEGAL


def _route(
    producer: Producer, routes: dict[str, list[MessageQueue] | StoreError], topic: str
) -> list[MessageQueue] | StoreError:
    if topic not in routes:
        try:
            routes[topic] = producer.fetch_publish_message_queues(topic)
        except (ClientError, StoreError) as error:
            routes[topic] = error
    return routes[topic]


class _KeyOrderSender:
    def __init__(self, producer: Producer, order: _KeyOrder, clock: Callable[[], int]) -> None:
        self._producer = producer
        self._queue = order.queue
        self._clock = clock
        self._waiting = order.waiting
        self._stopped_keys: set[str] = set()
        self._stopped_by: StoreError | None = None

    def send(self) -> Iterator[list[Sent | NotSent]]:
        place = 0
        while place < len(self._waiting):
            together = _together(self._waiting, place)
            place += len(together)
            yield from self._send(together)

    def _send(self, together: Sequence[Claimed]) -> Iterator[list[Sent | NotSent]]:
        """One request, or halves of it until each has an answer."""
        ready: list[Claimed] = []
        held_back: list[Claimed] = []
        for each in together:
            (held_back if self._is_held_back(each) else ready).append(each)
        if held_back:
            yield [NotSent(each, self._stopped_by, False) for each in held_back]
        if not ready:
            return
        now_ms = self._clock()
        try:
            result = self._request(ready)
        except (ClientError, StoreError) as error:
            if not breaks_a_rule(error):
                self._stopped_by = error
                yield [_not_sent(each, error) for each in ready]
            elif len(ready) > 1:
                half = len(ready) // 2
                yield from self._send(ready[:half])
                yield from self._send(ready[half:])
            else:
                if key := ready[0].message.sharding_key:
                    self._stopped_keys.add(key)
                yield [_not_sent(ready[0], error)]
            return
        yield [_sent(each, now_ms, result, place) for place, each in enumerate(ready)]

    def _request(self, ready: Sequence[Claimed]) -> SendResult:
        if len(ready) == 1:
            return self._producer.send(ready[0].message, queue=self._queue, keep_unique_key=True)
        messages = [each.message for each in ready]
        return self._producer.send_batch(messages, queue=self._queue, keep_unique_key=True)

    def _is_held_back(self, each: Claimed) -> bool:
        if self._stopped_by is not None or each.message.sharding_key in self._stopped_keys:
            return True
        if self._clock() < each.claim_until_ms:
            return False
        # Somebody else may claim it now. A later send of this process would be a duplicate, and out of order; and what
        # is behind it in its key may have a longer claim.
        if key := each.message.sharding_key:
            self._stopped_keys.add(key)
        return True


def _together(waiting: Sequence[Claimed], place: int) -> Sequence[Claimed]:
    """The messages from `place` on that go in one request."""
    first = waiting[place].message
    if _goes_alone(first):
        return waiting[place : place + 1]
    waits, size, end = first.properties.get("WAIT", "true"), 0, place
    while end < len(waiting) and end - place < BATCH_MESSAGES_MAX:
        message = waiting[end].message
        size += len(message.body)
        if end > place and (
            size > BATCH_BODY_BYTES_MAX or _goes_alone(message) or message.properties.get("WAIT", "true") != waits
        ):
            break
        end += 1
    return waiting[place:end]


def _goes_alone(message: Message) -> bool:
    return message.queue_id is not None or is_delayed(message)


def _sent(claimed: Claimed, now_ms: int, result: SendResult, place: int) -> Sent:
    due_ms = deliver_ms(claimed.message, now_ms) if is_delayed(claimed.message) else None
    if due_ms is not None:
        return Sent(claimed, now_ms, result, due_ms)
    return Sent(claimed, now_ms, result, None, result.broker_name, result.queue_id, result.queue_offset + place)


def _not_sent(claimed: Claimed, error: StoreError) -> NotSent:
    return NotSent(claimed, error, may_have_been_sent(error))
