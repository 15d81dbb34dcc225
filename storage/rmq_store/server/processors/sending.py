"""10, 310 and 320: messages to store; 36: messages to retry; 370: timers to take back (SendMessageProcessor.java,
RecallMessageProcessor.java).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from rmq_store.broker.metadata.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from rmq_store.broker.processor.local_broker import PAGE_CACHE_BUSY_MS
from rmq_store.broker.rules.delay import delay_level_of
from rmq_store.broker.rules.failure import DEAD_LETTER
from rmq_store.errors import StoreError, UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS, TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.message import Message, Origin
from rmq_store.format.frames.message_batch import read_batch
from rmq_store.format.properties.property_string import (
    CLUSTER,
    DELAY_TIME_LEVEL,
    REPLY_TO_CLIENT,
    RETRY_TOPIC,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT_STORE_MSG_OK,
    parse_properties,
)
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import RETRY_PREFIX, is_sent_by_broker_only, validate_topic
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, ResponseCode
from rmq_store.protocol.results import SendResult, SendStatus
from rmq_store.protocol.versions import V5_1_1
from rmq_store.protocol.wire import json_header
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand
from rmq_store.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.processors.served_store import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, ServedStore
from rmq_store.server.requests.request import Request, refusal

# A client sends all its messages from one address.
_host: Final = lru_cache(1024)(Host.parse)

OnStored: TypeAlias = Callable[[str, int], None]

Hold: TypeAlias = Callable[[int, Callable[[SendStatus], None]], None]
"""Calls back with SEND_OK when slaves have the log up to an offset, or with FLUSH_SLAVE_TIMEOUT."""

_SENDERS_FLAGS: Final = COMPRESSION_FLAGS | TRANSACTION_MASK
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_REGION: Final = "DefaultRegion"
# From this version on a client reports the number of the failure, not of the retries so far.
_N_PLUS_ONE_VERSION: Final = V5_1_1
_CODES: Final = {
    SendStatus.SEND_OK: ResponseCode.SUCCESS,
    SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


class SendProcessor:
    """Stores what clients send, in the order in which it is called. `on_stored(topic, queue id)` is told afterwards.
    Of a SYNC_MASTER, `hold` keeps answers until slaves have the messages: no thread waits for them.
    """

    def __init__(self, served: ServedStore, on_stored: OnStored, hold: Hold | None = None) -> None:
        self._served = served
        self._on_stored = on_stored
        self._hold = hold
        self._replica_timeout_ms = 0 if hold is not None else None
        self._timeout_ms = served.store.config.sync_flush_timeout
        self._is_sync = served.store.config.flush_disk_type == "SYNC_FLUSH"
        self._random = random.Random()
        # Their files are there. One entry for each queue that this server has stored into.
        self._used_queues: set[tuple[str, int]] = set()
        self._sent_requests = served.store.sent_requests(_answer_parts())

    def send(self, request: Request) -> RemotingCommand | None:
        """10, 310 and 320. None: it is answered when slaves have it."""
        header = self._header(request)
        is_batch = bool(header.batch) or request.command.code == RequestCode.SEND_BATCH_MESSAGE
        if header.topic.startswith(RETRY_PREFIX):
            if is_batch:  # SendMessageProcessor#sendBatchMessage
                remark = f"batch request does not support retry group {header.topic}"
                raise refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
            return self._send_to_retry(request, header)
        topic = self._topic(header)
        queue_id, born, is_half = self._queue_id(header, topic), _host(request.peer.address), False
        if is_batch:
            self._check_batch(header)
            if header.sys_flag & _COMPRESSED:
                for message in read_batch(request.command.body, header.topic, queue_id, None):
                    self._served.check_body(message.body, header.sys_flag)
            result = self._served.broker.send_batch_body(
                header.topic,
                request.command.body,
                queue_id,
                self._timeout_ms,
                sys_flag=header.sys_flag & COMPRESSION_FLAGS,
                born_timestamp_ms=header.born_timestamp,
                born_host=born,
                settings=topic,
                replica_timeout_ms=self._replica_timeout_ms,
            )
        else:
            properties = self._properties(header)
            self._check_body(header, request.command.body, properties)
            is_half = properties.get(TRANSACTION_PREPARED, "").lower() == "true"
            result = self._served.broker.send(
                _message(header, request.command.body, properties, header.flag, queue_id=queue_id),
                queue_id,
                self._timeout_ms,
                header.producer_group,
                sys_flag=header.sys_flag & _SENDERS_FLAGS,
                born_host=born,
                topic=topic,
                replica_timeout_ms=self._replica_timeout_ms,
            )
        self._used_queues.add((header.topic, queue_id))
        if not is_half:  # nobody gets it before its commit
            self._on_stored(header.topic, result.queue_id)
        return self._answer(request, result)

    def serve(self, data: memoryview, address: str) -> tuple[int, bytes]:
        """As `send_together` without `may_wait`, of the requests at the beginning of what a client has sent, by one
        call: where the first one begins that is left, and the answers to the others.
        """
        served = self._sent_requests.serve(data, address)
        if served is None:
            return 0, b""
        for topic, queue_id in served.stored:
            self._on_stored(topic, queue_id)
        return served.end, served.answers

    def send_together(self, requests: Sequence[Request], *, may_wait: bool) -> list[RemotingCommand | None] | None:
        """`send` of several messages, which are stored by one append. None: nothing was done, because one of them needs
        more than that or cannot be stored; or, without `may_wait`, because it would wait for another writer, for a
        flush, for the first file of a queue, or to inflate a body.

        Raises:
            MQBrokerError: for all of them. 1, it is unknown whether they are stored; 2, another writer has the log.
        """
        store = self._served.store
        if not may_wait and store.is_flush_late:
            return None
        try:
            topics = store.topics()
            plain = [self._plain(request, topics, may_wait=may_wait) for request in requests]
        except (RemotingCommandError, StoreError):
            return None
        messages = [message for message, _ in plain if message is not None]
        if len(messages) < len(plain):
            return None
        queues = dict.fromkeys((message.topic, message.queue_id or 0) for message in messages)
        if not may_wait and not self._used_queues.issuperset(queues):
            return None
        timeout_ms = self._timeout_ms if may_wait else 0
        try:
            results = self._served.broker.send_together(
                messages, [origin for _, origin in plain], topics, min(timeout_ms, PAGE_CACHE_BUSY_MS), timeout_ms,
                self._replica_timeout_ms,
            )  # fmt: skip
        except MQBrokerError as error:
            if error.response_code == ResponseCode.SYSTEM_ERROR or (
                may_wait and error.response_code == ResponseCode.SYSTEM_BUSY
            ):
                raise
            return None
        except StoreError:  # one of the queues is damaged: nothing was stored
            return None
        self._used_queues.update(queues)
        for topic, queue_id in queues:
            self._sent_requests.learn(topic, queue_id, topics)
            self._on_stored(topic, queue_id)
        return [self._answer(request, result) for request, result in zip(requests, results, strict=True)]

    def _plain(
        self, request: Request, topics: Mapping[str, TopicConfig], *, may_wait: bool
    ) -> tuple[Message | None, Origin]:
        """The message of a send that only stores one message of its own topic; None: another request. MQBrokerError 13:
        as `ServedStore.check_body`.
        """
        header = self._header(request)
        origin = Origin(_host(request.peer.address), header.sys_flag & _SENDERS_FLAGS)
        topic = None
        if not may_wait and header.sys_flag & _COMPRESSED:
            return None, origin
        if not (header.batch or header.topic.startswith(RETRY_PREFIX) or header.sys_flag & TRANSACTION_MASK):
            _check_topic(header.topic)
            topic = topics.get(header.topic)
        if topic is None:
            return None, origin
        properties = self._properties(header)
        if properties.get(TRANSACTION_PREPARED) or (
            (self._is_sync or self._hold is not None)
            and properties.get(WAIT_STORE_MSG_OK, "true").lower() != "true"
        ):
            return None, origin
        self._check_body(header, request.command.body, properties)
        queue_id = self._queue_id(header, topic)
        return _message(header, request.command.body, properties, header.flag, queue_id=queue_id), origin

    def send_back(self, request: Request) -> RemotingCommand:
        """36."""
        header = request.header(ConsumerSendMsgBackRequestHeader)
        self._served.store.retry.send_back(
            header.group,
            header.offset,
            delay_level=header.delay_level,
            max_reconsume_times=header.max_reconsume_times,
        )
        return request.answer()

    def recall(self, request: Request) -> RemotingCommand:
        """370. MQBrokerError 17, there is no such topic; 604, no handle of this topic and broker, or the message does
        not wait any more (Java's broker answers with success then).
        """
        header = request.header(RecallMessageRequestHeader)
        self._served.topic(header.topic)
        try:
            RecallHandle.parse(header.recall_handle)
        except UsageError as error:
            raise refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {error}") from error
        recalled = self._served.broker.recall_message(header.topic, header.recall_handle)
        return request.answer(header=RecallMessageResponseHeader(msg_id=recalled))

    def _send_to_retry(self, request: Request, header: SendMessageRequestHeader) -> RemotingCommand:
        """SEND_MESSAGE to `%RETRY%group` (handleRetryAndDLQ). The message's own DELAY counts: a client that retries
        sets it, one that sends a dead letter on does not.
        """
        properties = parse_properties((header.properties or "").encode())
        original = properties.get(RETRY_TOPIC, header.topic)
        sent = self._served.store.retry.send_to_retry(
            header.topic.removeprefix(RETRY_PREFIX),
            _message(header, request.command.body, properties, header.flag, topic=original),
            header.reconsume_times or 0,
            header.max_reconsume_times,
            n_plus_one=request.command.version >= _N_PLUS_ONE_VERSION,
            delay_level=delay_level_of(properties.get(DELAY_TIME_LEVEL)),
            sys_flag=header.sys_flag & COMPRESSION_FLAGS,
            born_host=_host(request.peer.address),
        )
        stored = self._served.store.message_at(sent.commit_log_offset)
        self._on_stored(stored.topic, stored.queue_id)
        return request.answer(header=place_of(
            stored.offset_msg_id, stored.queue_id, stored.queue_offset, properties.get(UNIQUE_KEY)
        ))  # fmt: skip

    def _check_body(self, header: SendMessageRequestHeader, body: bytes, properties: Mapping[str, str]) -> None:
        """As `ServedStore.check_body`. A dead letter that is sent on keeps its body, as a retry does."""
        if header.sys_flag & _COMPRESSED and DEAD_LETTER not in properties:
            self._served.check_body(body, header.sys_flag)

    def _header(self, request: Request) -> SendMessageRequestHeader:
        is_v1 = request.command.code == RequestCode.SEND_MESSAGE
        return request.header(SendMessageRequestHeader if is_v1 else SendMessageRequestHeaderV2)

    def _properties(self, header: SendMessageRequestHeader) -> dict[str, str]:
        properties = parse_properties((header.properties or "").encode())
        if REPLY_TO_CLIENT in properties:  # whoever replies reads it there (MessageUtil.createReplyMessage)
            properties[CLUSTER] = self._served.cluster_name
        return properties

    def _topic(self, header: SendMessageRequestHeader) -> TopicConfig:
        """The topic's settings; makes it if it is missing and may be made."""
        _check_topic(header.topic)
        topic = self._served.store.topics().get(header.topic)
        return self._made(header) if topic is None else topic

    def _made(self, header: SendMessageRequestHeader) -> TopicConfig:
        """A new topic, as the one that the producer names says (createTopicKey, TBW102 if it has named none)."""
        store = self._served.store
        if header.topic in self._served.own_topics:
            raise _system_topic(header.topic)
        if header.default_topic in ("", DEFAULT_TOPIC):
            inherited = store.config.auto_create_topic_enable
            queues, perm = DEFAULT_TOPIC_QUEUES, PERM_READ | PERM_WRITE
        else:
            pattern = store.topics().get(header.default_topic)
            inherited = pattern is not None and bool(pattern.perm & PERM_INHERIT)
            queues, perm = (pattern.write_queue_nums, pattern.perm & ~PERM_INHERIT) if pattern is not None else (0, 0)
        if not inherited:
            remark = f"topic[{header.topic}] not exist, apply first please!"
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        count = max(1, min(header.default_topic_queue_nums, queues))
        return store.create_topic(header.topic, count, perm, exist_ok=True)

    def _check_batch(self, header: SendMessageRequestHeader) -> None:
        """MQBrokerError 13: it is to be a transaction, or to wait as a whole (CommitLog#asyncPutMessages)."""
        properties = parse_properties((header.properties or "").encode())
        if header.sys_flag & TRANSACTION_MASK or delay_level_of(properties.get(DELAY_TIME_LEVEL)) > 0:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch has neither a transaction nor a delay of its own")

    def _queue_id(self, header: SendMessageRequestHeader, topic: TopicConfig) -> int:
        """The queue. A negative id means any queue."""
        if header.queue_id < 0:
            return self._random.randrange(max(topic.write_queue_nums, 1))
        return header.queue_id

    def _answer(self, request: Request, result: SendResult) -> RemotingCommand | None:
        place = place_of(
            result.offset_msg_id, result.queue_id, result.queue_offset, result.msg_id, result.recall_handle
        )
        if self._hold is None or result.status is not SendStatus.FLUSH_SLAVE_TIMEOUT:
            return request.answer(_CODES[result.status], header=place)

        def answer(status: SendStatus) -> None:
            request.reply(request.answer(_CODES[status], header=place))

        self._hold(result.end_offset, answer)
        return None


def _check_topic(name: str) -> None:
    """UsageError: no name of a topic. MQBrokerError 16: clients do not send to it."""
    validate_topic(name)
    if is_sent_by_broker_only(name):
        raise _system_topic(name)


def _system_topic(name: str) -> MQBrokerError:
    return refusal(ResponseCode.NO_PERMISSION, f"the topic[{name}] is a system topic: no sends")


def place_of(
    msg_id: str, queue_id: int, queue_offset: int, unique_key: str | None, recall_handle: str | None = None
) -> SendMessageResponseHeader:
    """The answer to a send that has stored a message there."""
    return SendMessageResponseHeader(
        msg_id=msg_id,
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=unique_key,
        recall_handle=recall_handle,
        msg_region=_REGION,
        trace_on=True,
    )


def _answer_parts() -> tuple[bytes, ...]:
    """The header of an answer to a send, for `Store.sent_requests`."""
    place = place_of("", 0, 0, "").to_ext()
    answer = RemotingCommand(ResponseCode.SUCCESS, place, flag=RESPONSE_FLAG)
    return json_header.template(answer, ("msgId", "queueId", "queueOffset", "transactionId"))


def _message(
    header: SendMessageRequestHeader, body: bytes, properties: dict[str, str], flag: int, *,
    topic: str | None = None, queue_id: int | None = None,
) -> Message:  # fmt: skip
    return Message(
        topic or header.topic, body, properties=properties, flag=flag, queue_id=queue_id,
        born_timestamp_ms=header.born_timestamp,
    )  # fmt: skip
