"""SendMessage and RecallMessage: messages to store, and timers to take back (SendMessageActivity.java,
RecallMessageActivity.java).

A half message has the producer group that is named as its topic: clients over gRPC tell no group.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from rmq_store.broker.processor.local_broker import PAGE_CACHE_BUSY_MS
from rmq_store.broker.rules.timer import DELAY_MS_MAX
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS
from rmq_store.format.frames.message import Message, Origin
from rmq_store.format.frames.message_batch import batch_bytes
from rmq_store.format.properties.property_string import TRANSACTION_PREPARED
from rmq_store.format.text.host import Host
from rmq_store.protocol.results import SendResult, SendStatus
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import Code, Encoding, MessageType
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.clients import Clients
from rmq_store.server.grpc_v2.messages import message_to_store, type_of
from rmq_store.server.grpc_v2.routes import Routes, accepted_types
from rmq_store.server.grpc_v2.statuses import Refusal, status, topic_of
from rmq_store.server.grpc_v2.transactions import transaction_id
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.processors.sending import Hold
from rmq_store.server.processors.served_store import ServedStore

MESSAGES_MAX: Final = 4096
"""The most messages of one request."""

# MessageSysFlag.COMPRESSED_FLAG: the body is compressed with zlib, which is what clients call GZIP.
_COMPRESSED: Final = 1
_CODES: Final = {
    SendStatus.SEND_OK: Code.OK,
    SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


class Sending:
    """Stores what clients send, by the one thread of `workers`: the messages of a client keep their order. Recalls are
    work of `others`. Of a SYNC_MASTER, `hold` says when slaves have a message, and no thread waits for them.
    """

    def __init__(
        self,
        served: ServedStore,
        routes: Routes,
        clients: Clients,
        workers: Workers,
        others: Workers,
        hold: Hold | None = None,
    ) -> None:
        assert _COMPRESSED & COMPRESSION_FLAGS
        self._served = served
        self._routes = routes
        self._clients = clients
        self._workers = workers
        self._others = others
        self._hold = hold
        self._replica_timeout_ms = 0 if hold is not None else None
        self._timeout_ms = served.store.config.sync_flush_timeout
        self._turn = 0

    async def send(self, request: Any, caller: Caller) -> Any:
        """SendMessage. Several messages of one request become visible at once, and are of one topic; those without a
        message group lie in one queue. The sender of a half message is from now on one of the producers that are asked
        how transactions of the topic end.

        Raises:
            Refusal: a message breaks a rule; none was stored.
        """
        messages, is_compressed = self._checked(request)
        is_half = TRANSACTION_PREPARED in messages[0].properties
        if is_half:
            self._clients.produces(caller, messages[0].topic)
        store = self._store_half if is_half else self._store
        results = await self._workers.run(lambda: store(messages, is_compressed, caller.host))
        if self._hold is not None and any(result.status is SendStatus.FLUSH_SLAVE_TIMEOUT for result in results):
            reached = await _replicated(self._hold, max(result.end_offset for result in results))
            results = [replace(result, status=reached) for result in results]
        codes = {_CODES[result.status] for result in results}
        code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
        entries = [_entry(result) for result in results]
        if is_half:
            entries[0].transaction_id = transaction_id(results[0].queue_offset, results[0].commit_log_offset)
        return new("SendMessageResponse", status=status(code), entries=entries)

    async def recall(self, request: Any, caller: Caller) -> Any:
        """RecallMessage: the message is never delivered. As durable as a send.

        Raises:
            ResponseError: 604, the handle is one of another topic or broker, or the message does not wait any more.
            UsageError: no such handle.
        """
        topic, handle = topic_of(request.topic), request.recall_handle
        recalled = await self._others.run(lambda: self._served.broker.recall_message(topic, handle))
        return new("RecallMessageResponse", status=status(Code.OK), message_id=recalled)

    def _checked(self, request: Any) -> tuple[list[Message], bool]:
        if not 0 < len(request.messages) <= MESSAGES_MAX:
            raise Refusal(Code.MESSAGE_CORRUPTED, f"a request has 1..{MESSAGES_MAX} messages")
        name = topic_of(request.messages[0].topic)
        if name.startswith("%"):
            raise Refusal(Code.ILLEGAL_TOPIC, f"{name}: only the broker sends to topics of retries and dead letters")
        if any(message.topic != request.messages[0].topic for message in request.messages):
            raise Refusal(Code.MESSAGE_CORRUPTED, "the messages of a request are of one topic")
        topic = self._routes.topic(name)
        if not topic.writable or topic.write_queue_nums < 1:  # ProducerProcessor#sendMessage of the proxy
            raise Refusal(Code.FORBIDDEN, f"topic {name} has no writable queue")
        accepted = accepted_types(topic)
        for message in request.messages:
            kind = type_of(message.system_properties)
            if kind not in accepted and kind.value:
                text = f"topic {name} takes messages of type {', '.join(one.name for one in accepted)}, not {kind.name}"
                raise Refusal(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        is_compressed = any(one.system_properties.body_encoding == Encoding.GZIP for one in request.messages)
        if is_compressed and len(request.messages) > 1:
            raise Refusal(Code.BAD_REQUEST, "a compressed message is sent in a request of its own")
        kinds = {type_of(one.system_properties) for one in request.messages}
        if MessageType.TRANSACTION in kinds and len(request.messages) > 1:
            raise Refusal(Code.BAD_REQUEST, "a half message is sent in a request of its own")
        bytes_max = self._served.store.config.max_message_size
        messages = [message_to_store(message, name, bytes_max) for message in request.messages]
        # RocketMQ's proxy sends them to its broker as one batch.
        if len(messages) > 1 and (size := batch_bytes(messages)) > bytes_max:
            raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"the messages have {size} bytes in all, at most {bytes_max}")
        for message in messages:
            self._check_delivery_time(message)
        return messages, is_compressed

    def _store(self, messages: list[Message], is_compressed: bool, born_host: Host | None) -> list[SendResult]:
        store, wait_ms = self._served.store, min(self._timeout_ms, PAGE_CACHE_BUSY_MS)
        if len(messages) == 1:
            sent = store.send(
                messages[0],
                sys_flag=self._sys_flag(messages[0], is_compressed),
                lock_timeout_ms=wait_ms,
                flush_timeout_ms=self._timeout_ms,
                replica_timeout_ms=self._replica_timeout_ms,
                born_host=born_host,
                as_given=True,
            )
            return [sent]
        queue_id = self._next_queue(messages[0].topic)
        members = [one if one.sharding_key else replace(one, queue_id=queue_id) for one in messages]
        origins = [Origin(born_host)] * len(members)
        return store.send_all(
            members, lock_timeout_ms=wait_ms, flush_timeout_ms=self._timeout_ms,
            replica_timeout_ms=self._replica_timeout_ms, origins=origins, as_given=True,
        )  # fmt: skip

    def _store_half(self, messages: list[Message], is_compressed: bool, born_host: Host | None) -> list[SendResult]:
        """Store a half message for the next queue of its topic."""
        (message,) = messages
        sent = self._served.broker.send(
            message,
            self._next_queue(message.topic),
            self._timeout_ms,
            message.topic,
            sys_flag=self._sys_flag(message, is_compressed),
            born_host=born_host,
        )
        return [sent]

    def _sys_flag(self, message: Message, is_compressed: bool) -> int:
        """The system flag of the body. MQBrokerError 13: as `ServedStore.check_body`."""
        sys_flag = _COMPRESSED if is_compressed else 0
        self._served.check_body(message.body, sys_flag)
        return sys_flag

    def _next_queue(self, name: str) -> int:
        """The queue id of a topic, which exists from now on: its queues take turns."""
        queue_count = self._routes.topic(name).write_queue_nums
        if self._served.store.find_topic(name) is None:
            self._served.store.create_topic(name, queue_count, exist_ok=True)
        self._turn += 1
        return self._turn % max(queue_count, 1)

    def _check_delivery_time(self, message: Message) -> None:
        ahead_ms = (message.deliver_timestamp_ms or 0) - self._served.store.clock()
        if ahead_ms > DELAY_MS_MAX:
            text = f"the delivery time is {ahead_ms // 1000} s ahead, max is {DELAY_MS_MAX // 1000} s"
            raise Refusal(Code.ILLEGAL_DELIVERY_TIME, text)


async def _replicated(hold: Hold, end: int) -> SendStatus:
    """Wait until slaves have the log up to `end`, or their time is over."""
    loop = asyncio.get_running_loop()
    reached: asyncio.Future[SendStatus] = loop.create_future()

    def set_result(found: SendStatus) -> None:
        if not reached.done():  # the caller has gone
            reached.set_result(found)

    def answer(found: SendStatus) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(set_result, found)

    hold(end, answer)
    return await reached


def _entry(result: SendResult) -> Any:
    code = _CODES[result.status]
    if code is not Code.OK:
        text = f"stored, but not safe yet: {result.status.value}"
        return new(
            "SendResultEntry", status=status(code, text), message_id=result.msg_id, recall_handle=result.recall_handle
        )
    return new(
        "SendResultEntry", status=status(code), message_id=result.msg_id, offset=result.queue_offset,
        recall_handle=result.recall_handle,
    )  # fmt: skip
