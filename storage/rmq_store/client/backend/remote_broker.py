"""One broker of a real cluster, as clients see it: the master, and for reads a slave while the master is away.

Sources: MQClientAPIImpl.java, RemoteBrokerOffsetStore.java, DefaultMQPushConsumerImpl.java (sendMessageBack).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client.backend.remote_members import RemoteMembers
from rmq_store.client.backend.remote_pop import RemotePop
from rmq_store.client.backend.remote_pulling import RemotePulls
from rmq_store.client.backend.remote_transactions import RemoteTransactions
from rmq_store.client.delivery.outcome import STORED
from rmq_store.client.delivery.request import (
    batch_body,
    batch_request,
    properties_of,
    send_back_request,
    send_result,
    single_request,
)
from rmq_store.client.delivery.timers import is_timed, refuse_timers
from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import TRANSACTION_MASK
from rmq_store.format.frames.message import Message, changed
from rmq_store.format.properties.property_string import PRODUCER_GROUP
from rmq_store.format.text.names import retry_topic
from rmq_store.protocol.errors import MQBrokerError, MQClientError, ResponseCode
from rmq_store.protocol.messages import MessageExt, MessageQueue, PoppedMessage, PullBatchResult, PullResult, PullStatus
from rmq_store.protocol.results import SendResult
from rmq_store.protocol.stored_messages import messages_of
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from rmq_store.remoting.cluster import groups, locks, offsets
from rmq_store.remoting.cluster.cluster import Cluster

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The group that sends consumers' messages to retry topics (MixAll.CLIENT_INNER_PRODUCER_GROUP)."""
RETRY_QUEUE_NUMS: Final = 1
RETRY_TIMEOUT_MS: Final = 3000


class RemoteBroker:
    """A broker of a cluster as a Broker (`client/backend/backend.py`). Safe for threads.

    `queue_nums(topic)`: with how many queues the first message makes a topic.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        members: RemoteMembers,
        transactions: RemoteTransactions,
        queue_nums: Callable[[str], int],
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._members = members
        self._transactions = transactions
        self._queue_nums = queue_nums
        self._pulls = RemotePulls(name, cluster)
        self._pop = RemotePop(name, cluster)

    # -- producers --------------------------------------------------------------------------------------------------

    @property
    def may_forget_offsets(self) -> bool:
        """It does: a broker writes them to its disk every 5 s, and drops one of two first commits of a group."""
        return True

    @property
    def retry_another_broker_when_not_store_ok(self) -> bool:
        """False: it is a setting of producers."""
        return False

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        """See `Broker.send`.

        Raises:
            TimerNotSupportedError: the message has a deliver time, and the broker has no timers.
            MQClientError: a half message, and this backend has no producer of transactions for the group.
        """
        if is_timed(message.stored_properties()):
            refuse_timers(self._cluster, message.topic, [self.name], timeout_ms)
        if sys_flag & TRANSACTION_MASK:
            self._transactions.make_known(self.name, producer_group, timeout_ms)
            # Of the wire, as in the end of the transaction: brokers compare the two.
            group = {PRODUCER_GROUP: self._cluster.wire_group(producer_group)}
            message = changed(message, properties={**message.properties, **group})
        command = self._request(
            message, message.topic, queue_id, producer_group,
            sys_flag=sys_flag, new_topic_queues=self._queue_nums(message.topic),
        )  # fmt: skip
        answer = self._cluster.call_broker(self.name, command, timeout_ms, ok=STORED)
        return send_result(answer, self.name, [message])

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        """See `Broker.send_batch`."""
        topic = messages[0].topic
        command = batch_request(
            self._cluster, MessageQueue(topic, self.name, queue_id),
            batch_body(messages, self._cluster.settings.namespace), group=self._cluster.wire_group(producer_group),
            born_ms=_now_ms(), new_topic_queues=self._queue_nums(topic),
        )  # fmt: skip
        answer = self._cluster.call_broker(self.name, command, timeout_ms, ok=STORED)
        return send_result(answer, self.name, messages)

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """See `Broker.recall_message`. A broker answers that it has recalled a message also when it was delivered."""
        header = RecallMessageRequestHeader(
            topic=self._cluster.wire_topic(topic), recall_handle=recall_handle, bname=self.name
        )
        answer = self._cluster.call_broker(self.name, request(header))
        return RecallMessageResponseHeader.from_ext(answer.ext_fields).msg_id

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
        """See `Broker.pull`. The broker gives what one answer holds, 32 messages or 256 KiB by default."""
        found = self.pull_batch(group, queue, offset, max_count, tags, room=room)
        messages = [message for batch in found.batches for message in messages_of(batch, self.name)]
        return PullResult(found.status, found.next_begin_offset, found.min_offset, found.max_offset, messages)

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
        """See `Broker.pull_batch`. While the queue has no message at the offset the broker holds the request, and each
        call looks whether the answer is there.
        """
        reset = self._members.take_reset(group, queue)
        if reset is not None and reset != offset:
            return PullBatchResult(PullStatus.OFFSET_ILLEGAL, reset, reset, reset)
        condition = self._members.condition(group, queue.topic)
        return self._pulls.pull(group, queue, offset, max_count, tags, condition)

    def min_offset(self, queue: MessageQueue) -> int:
        """See `Broker.min_offset`."""
        return offsets.queue_ranges(self._cluster, [queue])[queue].min_offset

    def max_offset(self, queue: MessageQueue) -> int:
        """See `Broker.max_offset`."""
        return offsets.queue_ranges(self._cluster, [queue])[queue].max_offset

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `Broker.offset_by_time`."""
        return offsets.search_offset(self._cluster, queue, timestamp_ms)

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """See `Broker.query_consumer_offset`."""
        return offsets.query_consumer_offset(self._cluster, group, queue)

    def update_consumer_offsets(
        self, group: str, offsets_: Mapping[MessageQueue, int], *, lock_owner: str | None = None
    ) -> set[MessageQueue]:
        """See `Broker.update_consumer_offsets`: at the master only, which writes them to its disk within 5 s. Locks are
        renewed first; a broker does not compare them with commits. An offset that the broker ignores because it resets
        the group counts as committed: the reset wins.
        """
        ours = dict(offsets_)
        if lock_owner is not None:
            held = locks.lock(self._cluster, group, lock_owner, ours)
            ours = {queue: offset for queue, offset in ours.items() if queue in held}
        try:
            offsets.update_consumer_offsets(self._cluster, group, ours)
        except MQBrokerError as error:
            if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            groups.create_group(self._cluster, group, self.name)
            offsets.update_consumer_offsets(self._cluster, group, ours)
        return set(ours)

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
        """See `Broker.send_message_back`. The broker copies its own record, so it cannot add properties: UsageError if
        there are any.
        """
        if properties:
            raise UsageError("a broker adds no properties to a message that is sent back: send it to the retry topic")
        command = send_back_request(
            self.name, self._cluster.wire_group(group), commit_log_offset=message.commit_log_offset,
            msg_id=message.msg_id, wire_topic=self._cluster.wire_topic(message.topic), delay_level=delay_level,
            max_reconsume_times=max_reconsume_times,
        )  # fmt: skip
        self._cluster.call_broker(self.name, command, timeout_ms)

    def send_messages_back(
        self, group: str, rows: pa.RecordBatch, delay_level: int, max_reconsume_times: int | None, timeout_ms: int
    ) -> None:
        """See `Broker.send_messages_back`. A broker takes messages one at a time, so only a single row can be sent as a
        whole; for more nothing is sent, and the caller sends each by itself.
        """
        if rows.num_rows > 1:
            raise MQClientError(f"broker {self.name} takes messages back one at a time")
        for message in messages_of(rows, self.name):
            self.send_message_back(group, message, delay_level, max_reconsume_times, timeout_ms)

    def send_to_retry(
        self,
        group: str,
        message: Message,
        reconsume_times: int,
        max_reconsume_times: int | None,
        *,
        sys_flag: int = 0,
    ) -> None:
        """See `Broker.send_to_retry`."""
        topic = retry_topic(group)
        route = self._cluster.route(topic)
        queues = None if route is None else route.queues.get(self.name)
        command = self._request(
            message, topic, random.randrange(queues.write_queue_nums) if queues else 0, INNER_PRODUCER,
            sys_flag=sys_flag, new_topic_queues=RETRY_QUEUE_NUMS,
            reconsume_times=reconsume_times, max_reconsume_times=max_reconsume_times,
        )  # fmt: skip
        self._cluster.call_broker(self.name, command, RETRY_TIMEOUT_MS, ok=STORED)

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        """Nothing: a consumer tells brokers its maximum with each message that it sends back."""

    # -- membership and locks ---------------------------------------------------------------------------------------

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        """See `Broker.heartbeat`. `topics` may be a Mapping of topic to Subscription, which the broker is told then.

        Brokers do not refuse a client id that another process has: each consumer needs an id of its own.
        """
        told: dict[str, Subscription | None] = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
        self._members.heartbeat(self.name, group, client_id, told, shares=shares)

    def unregister(self, group: str, client_id: str) -> None:
        """See `Broker.unregister`."""
        self._pulls.forget(group)
        self._members.unregister(self.name, group, client_id)

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        """Nothing: a broker gives each message of POP to one receiver, and knows no others."""

    def consumer_ids(self, group: str) -> list[str]:
        """See `Broker.consumer_ids`."""
        return self._members.consumer_ids(self.name, group)

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """See `Broker.lock_queues`. A broker forgets a lock that is not renewed for 60 s."""
        return locks.lock(self._cluster, group, client_id, queues)

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """See `Broker.unlock_queues`."""
        locks.unlock(self._cluster, group, client_id, queues)

    # -- the broker's own work, and invisible messages ---------------------------------------------------------------

    def deliver_due(self) -> None:
        """Nothing: a broker delivers delayed messages by itself."""

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
        """See `Broker.receive_message`; at most 32 messages. UsageError: the broker is older than 5.0; or
        `max_delivery_attempts` is given, for which a broker has the group's setting retryMaxTimes.
        """
        if max_delivery_attempts is not None:
            raise UsageError("max_delivery_attempts: a broker takes the group's retryMaxTimes (rmq updateSubGroup)")
        return self._pop.receive(group, subscription, max_messages, invisible_duration_ms, from_first=from_first)

    def ack_message(self, group: str, topic: str, receipt_handle: str) -> None:
        """See `Broker.ack_message`."""
        self._pop.ack(group, topic, receipt_handle)

    def change_invisible_duration(self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int) -> str:
        """See `Broker.change_invisible_duration`."""
        return self._pop.change(group, topic, receipt_handle, invisible_duration_ms)

    def _request(
        self,
        message: Message,
        topic: str,
        queue_id: int,
        group: str,
        *,
        sys_flag: int,
        new_topic_queues: int,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
    ) -> RemotingCommand:
        """The request for a client's message (310), to a topic that may be another one than the message's."""
        return single_request(
            self._cluster, MessageQueue(topic, self.name, queue_id), message.body,
            properties_of(message, self._cluster.settings.namespace).decode(),
            group=self._cluster.wire_group(group), born_ms=_now_ms(), flag=message.flag, sys_flag=sys_flag,
            reconsume_times=reconsume_times, max_reconsume_times=max_reconsume_times,
            new_topic_queues=new_topic_queues,
        )  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
