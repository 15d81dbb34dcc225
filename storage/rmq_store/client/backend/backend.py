"""The interface between clients and the brokers that hold the messages: clients do not know which kind it is.

A backend is a cluster of one or more brokers: store directories (`client/backend/local.py`), later brokers behind a
network. Every call may raise a ClientError (`protocol/errors.py`); of the engine's own errors only those that say that
a caller did wrong (UsageError) or that a store is damaged (CorruptionError).
Source: MQClientAPIImpl.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from rmq_store.format.frames.message import Message
from rmq_store.protocol.errors import ClientErrorCode, MQClientError
from rmq_store.protocol.messages import MessageExt, MessageQueue, PoppedMessage, PullBatchResult, PullResult
from rmq_store.protocol.results import SendResult

if TYPE_CHECKING:
    from rmq_store.broker.filter.subscription import Subscription


class Broker(Protocol):
    """One broker of a cluster. Safe for threads."""

    @property
    def name(self) -> str:
        """The broker's name, unique in its backend."""

    # -- producers --------------------------------------------------------------------------------------------------

    @property
    def retry_another_broker_when_not_store_ok(self) -> bool:
        """The value for producers that do not set the option of this name themselves."""

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        """Store one message. `sys_flag` says how the body is compressed (the body is stored as it is given).

        A status other than SEND_OK (response codes 10, 11, 12) is a result: the message is stored.
        """

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        """Store messages of one topic in one queue, all or none of them; ids in the result are joined by commas, and
        the offsets are those of the first.
        """

    # -- consumers --------------------------------------------------------------------------------------------------

    def pull(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        tags: str | None = None,
        *,
        room: int = 0,
    ) -> PullResult:
        """Messages from `offset` on, at most `max_count`; `tags` ("TagA || TagB", None or "*": all) filters. Never
        waits. They belong to the caller, who writes into their properties: a dict of its own for each.

        `room`: where more messages cost no more, as in a store, up to so many of those that follow may come along.
        """

    def pull_batch(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        tags: str | None = None,
        *,
        room: int | None = None,
    ) -> PullBatchResult:
        """As `pull`, with rows for messages; `brokerName` is the name of this broker. `room` None: a batch for somebody
        who wants rows, which may be larger than any `pull`.
        """

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can be read; 0 for an unknown queue."""

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset behind the last message; 0 for an unknown queue."""

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after the time; max_offset if all are older."""

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed offset; 0 for a new group on a young queue (ConsumerManageProcessor); None:
        QUERY_NOT_FOUND.
        """

    def update_consumer_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, lock_owner: str | None = None
    ) -> set[MessageQueue]:
        """Commit offsets, durably; queues that are not named keep theirs. Returns the queues committed.

        With `lock_owner` (a client id) only queues whose lock that client holds now are committed.
        """

    def send_message_back(
        self,
        group: str,
        message: MessageExt,
        delay_level: int,
        max_reconsume_times: int | None,
        timeout_ms: int,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """CONSUMER_SEND_MSG_BACK: retry later (`delay_level` 0: the broker chooses, < 0: straight to the dead letters).
        `properties` are set on the copy. MQBrokerError(1): the message is not there any more.
        """

    def send_messages_back(
        self, group: str, rows: pa.RecordBatch, delay_level: int, max_reconsume_times: int | None, timeout_ms: int
    ) -> None:
        """CONSUMER_SEND_MSG_BACK for all rows of a batch that `pull_batch` gave, or for none: after an error they are
        the caller's still. Parameters as for `send_message_back`.
        """

    def send_to_retry(
        self, group: str, message: Message, reconsume_times: int, max_reconsume_times: int | None
    ) -> None:
        """SEND_MESSAGE to the group's retry topic, for what cannot be sent back; dead letter if the times are used up.
        `message.topic` is the original one.
        """

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        """Make `times` the maximum for all members of the group that name none themselves; the last call wins."""

    # -- membership and locks ---------------------------------------------------------------------------------------

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        """Join the group, or say that the client still lives, and which topics it has subscribed to; at least every
        minute. With `shares` it shares their queues with the group, and no stream of the group can read them.

        Raises:
            LeaseHeldError: another live client has this id; of the clients of this process only one that `joins` is
                told. Or a stream reads one of the topics: nothing has changed.
        """

    def unregister(self, group: str, client_id: str) -> None:
        """Leave the group, or end what `share_topics` began; the client's queue locks are given back too."""

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        """Say which topics the client receives from, until `unregister`: it shares their queues with the group without
        being a member. LeaseHeldError: a stream of the group reads one of them; nothing has changed.
        """

    def consumer_ids(self, group: str) -> list[str]:
        """The ids of the live clients of the group, sorted; the same for all who ask."""

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Lock queues for ordered consumption; returns those that the client holds now. Renewing is asking again."""

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Give locks of the client back; those of others are left alone."""

    # -- the broker's own work, and invisible messages ---------------------------------------------------------------

    def deliver_due(self) -> None:
        """Deliver delayed messages that are due, if the broker does not do it by itself; cheap if none are."""

    def receive_message(
        self,
        group: str,
        subscription: Subscription,
        max_messages: int,
        invisible_duration_ms: int,
        *,
        from_first: bool = False,
        max_delivery_attempts: int | None = None,
    ) -> list[PoppedMessage]:
        """Messages of a topic, at most `max_messages`, hidden from the group until their time is over; never waits.

        `from_first`: where a group without an offset begins, else at the end by RocketMQ's rule (`broker/pop/pop.py`).
        `max_delivery_attempts` None: the group's retryMaxTimes + 1; after that a message is a dead letter.
        """

    def ack_message(self, group: str, topic: str, receipt_handle: str) -> None:
        """Acknowledge a message. `topic`: the one that it was received from. InvalidReceiptHandleError."""

    def change_invisible_duration(
        self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int
    ) -> str:
        """Hide a message anew from now on; returns its new handle, the old one is void. InvalidReceiptHandleError."""


class Backend(Protocol):
    """A cluster: brokers by name, and where the queues of a topic are."""

    @property
    def clock(self) -> Callable[[], int]:
        """The time in ms, the same for clients and brokers."""

    def brokers(self) -> Mapping[str, Broker]:
        """Every broker by name."""

    def publish_queues(self, topic: str, default_topic_queue_nums: int = 4) -> list[MessageQueue]:
        """The queues that may be written, sorted; [] if there is no such topic, and none may be created.

        A topic that is missing everywhere is created with at most `default_topic_queue_nums` queues at each broker
        that allows it (autoCreateTopicEnable).
        """

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that may be read, sorted; [] if the topic does not exist (yet)."""


def broker_of(backend: Backend, queue: MessageQueue) -> Broker:
    """The broker of a queue. MQClientError: the cluster has none of that name."""
    broker = backend.brokers().get(queue.broker_name)
    if broker is None:
        code = ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION
        raise MQClientError(f"The broker[{queue.broker_name}] not exist", code)
    return broker
