"""A message as a SimpleConsumer returns it. Source: MessageView.java, MessageViewImpl.java (5.x clients)."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.client.consume_service.send_back import reset_retry_topic
from rmq_store.format.properties.property_string import SHARDING_KEY
from rmq_store.protocol.messages import MessageExt, PoppedMessage


class MessageView:
    """One delivery of a message. Only the receipt handle can change.

    `message` is the whole record; a message that came back through the group's retry topic shows its original topic.
    `received_from` and `broker_name` are the topic and broker that hold the record.
    """

    def __init__(self, popped: PoppedMessage, group: str, broker_name: str) -> None:
        self.message: MessageExt = reset_retry_topic(popped.message, group, {})
        self.delivery_attempt = popped.delivery_attempt
        self.receipt_handle = popped.receipt_handle
        self.received_from = popped.message.topic
        self.broker_name = broker_name

    @property
    def message_id(self) -> str:
        """The id that its producer assigned."""
        return self.message.msg_id

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        return self.message.topic

    @property
    def body(self) -> bytes:
        """The body, decompressed; as it is stored if `message.is_compressed`."""
        return self.message.body

    @property
    def tag(self) -> str | None:
        """The tag."""
        return self.message.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return tuple((self.message.keys or "").split())

    @property
    def message_group(self) -> str | None:
        """The sharding key: messages with the same one are in the same queue."""
        return self.message.properties.get(SHARDING_KEY)

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, RocketMQ's own ones among them."""
        return self.message.properties

    @property
    def born_timestamp_ms(self) -> int:
        """The time at which its producer created it, ms since 1970."""
        return self.message.born_timestamp_ms

    @property
    def born_host(self) -> str:
        """The host that created it."""
        return self.message.born_host

    def __repr__(self) -> str:
        return (
            f"MessageView(message_id={self.message_id!r}, topic={self.topic!r}, tag={self.tag!r}, "
            f"delivery_attempt={self.delivery_attempt})"
        )
