"""Sending back a message that could not be consumed.

    CONSUMER_SEND_MSG_BACK to the broker of the message       it copies its own record
    if that fails: an ordinary message to %RETRY%group        at another broker, if there is one
    if that fails too: the caller keeps the message

Sources: DefaultMQPushConsumerImpl.java (sendMessageBack, sendMessageBackAsNormalMessage, resetRetryAndNamespace),
ConsumeMessageOrderlyService.java (sendMessageBack).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmq_store.client.backend.backend import Backend, Broker
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS
from rmq_store.format.frames.message import Message
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.delay_levels import retry_level
from rmq_store.format.text.names import retry_topic
from rmq_store.lazy.arrow_compute import pc
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageExt, add_properties
from rmq_store.protocol.stored_messages import messages_of

SEND_BACK_TIMEOUT_MS = 5000
MAX_RECONSUME_TIMES_DEFAULT: Final = 16
_NORMAL_TRIES_MAX = 3  # a producer's first try and its two retries

_log = logging.getLogger(__name__)


class MessageSender:
    """Sends messages of one group back. `max_reconsume_times` None: the group's own setting decides."""

    def __init__(self, backend: Backend, group: str, max_reconsume_times: int | None) -> None:
        self._backend = backend
        self._group = group
        self._max_reconsume_times = max_reconsume_times

    def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """Send the message back for a later retry or to the dead letters; False if no broker took it."""
        broker = self._backend.brokers().get(message.broker_name)
        if broker is not None:
            try:
                broker.send_message_back(
                    self._group, message, delay_level, self._max_reconsume_times, SEND_BACK_TIMEOUT_MS
                )
                return True
            except ClientError as error:
                _log.warning("group %s: %s was not taken back: %s", self._group, message.msg_id, error)
        return self.send_as_normal_message(message)

    def send_rows_back(self, rows: pa.RecordBatch, broker_name: str, delay_level: int) -> pa.RecordBatch:
        """Send the rows of a batch back, as a listener saw them. If their broker does not take them together, each row
        is sent by `send_back`. Returns the rows that no broker took.
        """
        broker = self._backend.brokers().get(broker_name)
        if broker is not None:
            try:
                broker.send_messages_back(
                    self._group, rows, delay_level, self._max_reconsume_times, SEND_BACK_TIMEOUT_MS
                )
                return rows.slice(rows.num_rows)
            except ClientError as error:
                _log.warning("group %s: a batch of %d was not taken back together: %s", self._group, len(rows), error)
        taken = [self.send_back(message, delay_level) for message in messages_of(rows, broker_name)]
        return rows.filter(pc.invert(pa.array(taken, pa.bool_())))

    def send_as_normal_message(self, message: MessageExt) -> bool:
        """Send a copy to the group's retry topic, after the last retry to its dead letters; False: no broker took it.
        """
        copy = self._copy(message)
        # A body that lies here as it is stored is sent with the bits that say how it is compressed.
        kept = {"sys_flag": message.sys_flag & COMPRESSION_FLAGS} if message.is_compressed else {}
        for broker in self._brokers_from(message.broker_name)[:_NORMAL_TRIES_MAX]:
            try:
                broker.send_to_retry(self._group, copy, message.reconsume_times + 1, self._max_reconsume_times, **kept)
                return True
            except ClientError as error:
                _log.warning("group %s: %s does not take %s: %s", self._group, broker.name, message.msg_id, error)
        return False

    def _copy(self, message: MessageExt) -> Message:
        limit = MAX_RECONSUME_TIMES_DEFAULT if self._max_reconsume_times is None else self._max_reconsume_times
        properties = dict(message.properties)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[names.RETRY_TOPIC] = message.topic
        properties[names.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[names.MAX_RECONSUME_TIMES] = str(limit)
        properties[names.DELAY_TIME_LEVEL] = str(retry_level(message.reconsume_times))
        properties.pop(names.TRANSACTION_PREPARED, None)
        return Message(message.topic, message.body, properties=properties, flag=message.flag)

    def _brokers_from(self, last: str) -> list[Broker]:
        """All brokers, the message's broker last: it has just refused."""
        brokers = self._backend.brokers()
        return [brokers[name] for name in sorted(brokers, key=lambda name: (name == last, name))]


def reset_retry_topic(message: MessageExt, group: str, added: Mapping[str, str]) -> MessageExt:
    """The message as a listener sees it: under its original topic, with properties `added` by the client."""
    add_properties(message, added)
    if message.topic != retry_topic(group):
        return message
    return replace(message, topic=message.properties.get(names.RETRY_TOPIC, message.topic))


def reset_retry_topics(rows: pa.RecordBatch, topic: str, group: str) -> pa.RecordBatch:
    """Rows of MESSAGE_SCHEMA from one queue of `topic`, as `reset_retry_topic` shows them; nothing is added."""
    if topic != retry_topic(group):
        return rows
    column = rows.schema.get_field_index("topic")
    originals = pc.map_lookup(rows.column("properties"), names.RETRY_TOPIC, "last")
    return rows.set_column(column, rows.schema.field(column), pc.coalesce(originals, rows.column(column)))
