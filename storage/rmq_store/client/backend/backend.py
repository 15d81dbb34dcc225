"""The interface between clients and the brokers that hold the messages. Clients do not know the kind of broker.

A backend is a cluster of one or more brokers: store directories (`local.py`), or brokers reached over a network
(`remote.py`). Every call may raise a ClientError (`protocol/errors.py`). Of the engine's own errors a call raises only
two: UsageError (the caller's mistake) and CorruptionError (a damaged store). Source: MQClientAPIImpl.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from rmq_store.client.backend.transactions import OnCheck, Transactions
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

    @property
    def may_forget_offsets(self) -> bool:
        """Whether committed offsets may go back, so that consumers have to commit them again and again."""

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        """Store one message. `sys_flag` says how the body is compressed (the broker stores the body as given).

        A status other than SEND_OK (response codes 10, 11, 12) is a result: the message is stored.
        """

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        """Store messages of one topic in one queue, all or none of them; ids in the result are joined by commas, and
        the offsets are those of the first.
        """

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a message with a delivery time back, and return its unique key. MQBrokerError: it is refused, or the
        message does not wait any more (604).
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
        waits. The messages belong to the caller, who writes into their properties: each has a dict of its own.

        `room`: a broker for which more messages cost no more, such as a store, may add up to this number of the next
        messages.
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
        """As `pull`, with rows for messages; `brokerName` is the name of this broker. `room` None: the caller wants
        rows, and the batch may be larger than any `pull`.
        """

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can be read; 0 for an unknown queue."""

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset after the last message; 0 for an unknown queue."""

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after the time; max_offset if all are older."""

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The committed offset; 0 for a new group on a young queue (ConsumerManageProcessor); None: QUERY_NOT_FOUND."""

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
        `properties` are set on the copy. MQBrokerError(1): the message no longer exists.
        """

    def send_messages_back(
        self, group: str, rows: pa.RecordBatch, delay_level: int, max_reconsume_times: int | None, timeout_ms: int
    ) -> None:
        """CONSUMER_SEND_MSG_BACK for all rows of a batch from `pull_batch`, or for none. After an error the caller
        still owns the rows. Parameters as for `send_message_back`.
        """

    def send_to_retry(
        self,
        group: str,
        message: Message,
        reconsume_times: int,
        max_reconsume_times: int | None,
        *,
        sys_flag: int = 0,
    ) -> None:
        """SEND_MESSAGE to the group's retry topic, for a message that cannot be sent back. It becomes a dead letter if
        its retries are used up. `message.topic` is the original topic, `sys_flag` says how the body is compressed.
        """

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        """Make `times` the maximum for all members of the group that set none themselves; the last call wins."""

    # -- membership and locks ---------------------------------------------------------------------------------------

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        """Join the group, or report that the client is alive, and its subscribed topics; at least once a minute. With
        `shares` the client shares their queues with the group, and no stream of the group can read them. A Mapping of
        topics also has their subscriptions, as far as they are known, for brokers that want them.

        Raises:
            LeaseHeldError: another live client has this id; among the clients of this process only one that `joins`
                gets this error. Or a stream reads one of the topics: nothing has changed.
        """

    def unregister(self, group: str, client_id: str) -> None:
        """Leave the group, or end `share_topics`. The broker releases the client's queue locks, too."""

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        """Register the topics that the client receives from, until `unregister`. The client shares their queues with
        the group without being a member. LeaseHeldError: a stream of the group reads one of them; nothing has changed.
        """

    def consumer_ids(self, group: str) -> list[str]:
        """The ids of the live clients of the group, sorted; every caller gets the same list."""

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Lock queues for ordered consumption; returns those that the client holds now. The same call renews a lock."""

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Release locks of the client; locks of others stay."""

    # -- the broker's own work, and invisible messages ---------------------------------------------------------------

    def deliver_due(self) -> None:
        """Deliver delayed messages that are due, unless the broker does so itself. Cheap if none is due."""

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
        """Messages of a topic, at most `max_messages`, hidden from the group until their invisible duration ends; never
        waits.

        `from_first`: a group without an offset begins at the first message, else at the end by RocketMQ's rule
        (`broker/pop/pop.py`). `max_delivery_attempts` None: the group's retryMaxTimes + 1; after that a message becomes
        a dead letter.
        """

    def ack_message(self, group: str, topic: str, receipt_handle: str) -> None:
        """Acknowledge a message. `topic`: the topic that it was received from. InvalidReceiptHandleError."""

    def change_invisible_duration(self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int) -> str:
        """Hide a message again, from now on; returns its new handle, the old one is void. InvalidReceiptHandleError."""


class Backend(Protocol):
    """A cluster: brokers by name, and the queues of each topic."""

    @property
    def clock(self) -> Callable[[], int]:
        """The time in ms, the same for clients and brokers."""

    def brokers(self) -> Mapping[str, Broker]:
        """Every broker by name."""

    def publish_queues(self, topic: str, default_topic_queue_nums: int = 4) -> list[MessageQueue]:
        """The queues that may be written, sorted; [] if the topic does not exist and may not be created.

        If no broker has the topic, each broker that allows it (autoCreateTopicEnable) creates it, with at most
        `default_topic_queue_nums` queues.
        """

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that may be read, sorted; [] if the topic does not exist (yet)."""

    def transactions(self, group: str, client_id: str, on_check: OnCheck) -> Transactions:
        """Make a client a member of a producer group. From then on brokers take half messages of this group, and may
        ask this client for the outcome of any transaction of the group.

        Raises:
            UsageError: the backend has a member of the group, or its brokers have no transactions.
        """


def broker_of(backend: Backend, queue: MessageQueue) -> Broker:
    """The broker of a queue. MQClientError: the cluster has none of that name."""
    broker = backend.brokers().get(queue.broker_name)
    if broker is None:
        code = ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION
        raise MQClientError(f"The broker[{queue.broker_name}] not exist", code)
    return broker


def brokers_for(backend: Backend, topics: Collection[str]) -> list[Broker]:
    """Every broker, sorted by name. If no name server lists them, the brokers in the routes of `topics`: a proxy
    may hide the route of SELF_TEST_TOPIC, which names all.
    """
    known = backend.brokers()
    if not known:
        for topic in topics:
            backend.subscribe_queues(topic)
        known = backend.brokers()
    return [broker for _, broker in sorted(known.items())]
