"""Rules for messages, and the preparation of a message for a send.

Sources: Validators.java, MessageBatch.java, MessageDecoder.java (encodeMessage), DefaultMQProducerImpl.java
(tryToCompressMessage, sendKernelImpl), MessageClientIDSetter.java.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.errors import UsageError
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.message import Message, changed, check_message
from rmq_store.format.frames.message_batch import batch_bytes
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.new_message import of_new_message
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.ids import UniqueIdGenerator, month_start_ms
from rmq_store.format.text.names import RETRY_PREFIX, is_system_topic, validate_group, validate_topic
from rmq_store.protocol.errors import MessageIllegalError

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"  # MixAll.java

_DELAYS = frozenset((names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC))
_NO_CODE = -1


class MessagePreparer:
    """Checks messages of one producer and prepares them for a send. Safe for threads, not across fork."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        # A random number stands where Java has a hash of the class loader; it tells processes and hosts apart.
        self._unique_ids = UniqueIdGenerator(b"\x7f\0\0\x01", os.getpid() & 0xFFFF, random.getrandbits(32))

    def prepare(self, message: Message, now_ms: int, *, keep_unique_key: bool) -> tuple[Message, int]:
        """The message for the broker, the same in each try (UNIQ_KEY set, body perhaps compressed, without the
        properties of another message: see `with_unique_key`), and its sysFlag.

        Raises:
            MessageIllegalError: code 13 for a missing, empty or too large body, otherwise without a code.
        """
        self.check(message)
        message = self.with_unique_key(message, now_ms, keep_unique_key=keep_unique_key)
        body, sys_flag = message.body, 0
        if len(body) >= self._config.compress_msg_body_over_howmuch:
            packed, flags = compress(body, self._config.compress_type, self._config.compress_level)
            if len(packed) < len(body):
                body, sys_flag = packed, flags
        if message.properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
            sys_flag |= SysFlag.TRANSACTION_PREPARED
        return message if body is message.body else changed(message, body=body), sys_flag

    def prepare_batch(self, messages: Sequence[Message], now_ms: int, *, keep_unique_key: bool) -> list[Message]:
        """Check messages that are to be sent in one request, and prepare them; bodies are not compressed.

        Raises:
            MessageIllegalError: as `prepare`; delayed messages, a retry topic, different topics or WAIT properties.
        """
        if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
            raise MessageIllegalError(f"a list of messages is expected, got {type(messages).__name__}", _NO_CODE)
        if not messages:
            raise MessageIllegalError("a batch needs a message", _NO_CODE)
        for message in messages:
            self.check(message)
        messages = [self.with_unique_key(message, now_ms, keep_unique_key=keep_unique_key) for message in messages]
        for message in messages:
            if not _DELAYS.isdisjoint(message.stored_properties()):
                raise MessageIllegalError("a batch cannot hold delayed messages", _NO_CODE)
            if message.topic.startswith(RETRY_PREFIX):
                raise MessageIllegalError("a batch cannot go to a retry topic", _NO_CODE)
        if len({message.topic for message in messages}) > 1:
            raise MessageIllegalError("the messages of a batch must have the same topic", _NO_CODE)
        if len({message.properties.get(names.WAIT_STORE_MSG_OK, "true") for message in messages}) > 1:
            raise MessageIllegalError("the messages of a batch must all wait for the store, or none of them", _NO_CODE)
        try:
            size = batch_bytes(messages)
        except UsageError as error:
            raise MessageIllegalError(str(error)) from error
        if size > self._config.max_message_size:
            raise MessageIllegalError(
                f"the batch has {size} bytes, more than max_message_size={self._config.max_message_size}"
            )
        return messages

    def check(self, message: Message) -> None:
        """Check the rules that concern the message alone.

        Raises:
            MessageIllegalError: it breaks one.
        """
        try:
            check_message(message)
        except UsageError as error:
            raise MessageIllegalError(str(error)) from error
        check_topic(message.topic)
        if not message.body:
            raise MessageIllegalError("the message body is empty")
        if len(message.body) > self._config.max_message_size:
            raise MessageIllegalError(
                f"the body has {len(message.body)} bytes, more than max_message_size={self._config.max_message_size}"
            )
        if not -(1 << 31) <= message.flag < 1 << 31:
            raise MessageIllegalError(f"flag={message.flag} is no 32-bit integer")
        own = of_new_message(message.properties, keep_identities=True)
        kept = message if own is message.properties else changed(message, properties=own)
        try:
            encode_properties(kept.stored_properties())
        except UsageError as error:
            raise MessageIllegalError(str(error)) from error

    def with_unique_key(self, message: Message, now_ms: int, *, keep_unique_key: bool) -> Message:
        """The message with a UNIQ_KEY of its own, and without the properties of the message that it was made of
        (`rmq_store.format.properties.new_message`). `keep_unique_key`: it is a copy, and keeps the ids that it has.
        """
        own = of_new_message(message.properties, keep_identities=keep_unique_key)
        if own is not message.properties:
            message = changed(message, properties=own)
        if own.get(names.UNIQUE_KEY):
            return message
        unique_id = self._unique_ids.next_id(now_ms, month_start_ms(now_ms))
        return changed(message, properties={names.UNIQUE_KEY: unique_id, **message.properties})


def check_half(message: Message) -> None:
    """Refuse a half message with a delay: a broker would keep it among the delayed ones, or forget the delay.

    Raises:
        MessageIllegalError: it has one.
    """
    if not _DELAYS.isdisjoint(message.stored_properties()):
        raise MessageIllegalError("a message of a transaction has no delay and no deliver time", _NO_CODE)


def check_producer_group(group: str) -> None:
    """Refuse an invalid group name, and the name that RocketMQ reserves.

    Raises:
        MessageIllegalError: says what is wrong.
    """
    try:
        validate_group(group)
    except UsageError as error:
        raise MessageIllegalError(str(error), _NO_CODE) from error
    if group == DEFAULT_PRODUCER_GROUP:
        raise MessageIllegalError(f"a producer needs a group of its own, not {DEFAULT_PRODUCER_GROUP}", _NO_CODE)


def check_topic(topic: str) -> None:
    """Refuse an invalid topic name, and topics that belong to the broker.

    Raises:
        MessageIllegalError: says what is wrong.
    """
    try:
        validate_topic(topic)
    except UsageError as error:
        raise MessageIllegalError(str(error), _NO_CODE) from error
    if is_system_topic(topic):
        raise MessageIllegalError(f"sending to {topic!r} is forbidden: it belongs to the broker", _NO_CODE)


