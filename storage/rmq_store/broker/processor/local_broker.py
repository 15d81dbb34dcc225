"""One store directory as a broker: answers requests in this process, as a broker's processors do.

Pulls are in `local_pull`. Sources: SendMessageProcessor.java, ConsumerManageProcessor.java, ClientManageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.pop.pop import BYTES_MAX
from rmq_store.broker.pop.pop_messages import ConsumeInitMode
from rmq_store.broker.processor.local_answers import Answers
from rmq_store.broker.processor.local_groups import LocalGroups
from rmq_store.broker.processor.local_pull import PULL_BATCH_BYTES_MAX, PULL_BYTES_MAX, PULL_ROOM_BYTES_MAX, LocalPull
from rmq_store.broker.rules.hot_queue import starts_at_first_message
from rmq_store.broker.store.store import Store
from rmq_store.format.frames.frame_check import TRANSACTION_MASK
from rmq_store.format.frames.message import Message, Origin, changed
from rmq_store.format.properties.property_string import TRANSACTION_PREPARED
from rmq_store.format.text.host import Host
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageExt, MessageQueue, PoppedMessage, PullBatchResult, PullResult
from rmq_store.protocol.results import SendResult, result_of_batch
from rmq_store.protocol.stored_messages import messages_of

PAGE_CACHE_BUSY_MS = 1_000  # osPageCacheBusyTimeOutMills


class LocalBroker:
    """A store as a Broker (`client/backend/backend.py`).

    `strict_last_offset`: the broker never lets a group without a committed offset start at 0. `liveness_clock`: the
    time in ms by which members and locks of this process live; None is the store's clock.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        strict_last_offset: bool = False,
        liveness_clock: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.takes_half_messages: Callable[[str], bool] = lambda group: True
        """Whether a producer of the group can be asked; a half message of another one is refused."""
        self._answers = Answers(name)
        self._pull = LocalPull(name, store, self._answers)
        self._strict_last_offset = strict_last_offset
        self._groups = LocalGroups(store.path, liveness_clock or store.clock)

    # -- producers --------------------------------------------------------------------------------------------------

    @property
    def may_forget_offsets(self) -> bool:
        """It does not: a commit is durable when it returns."""
        return False

    @property
    def retry_another_broker_when_not_store_ok(self) -> bool:
        """The store's setting."""
        return self.store.config.retry_another_broker_when_not_store_ok

    def send(
        self,
        message: Message,
        queue_id: int,
        timeout_ms: int,
        producer_group: str,
        *,
        sys_flag: int = 0,
        born_host: Host | None = None,
        topic: TopicConfig | None = None,
        replica_timeout_ms: int | None = None,
    ) -> SendResult:
        """See `Broker.send`; `born_host` None: the store's own. An append that has to wait for a second is answered
        with SYSTEM_BUSY, as by a broker. A message with TRAN_MSG becomes a half message. `topic`: its settings, if the
        caller has just looked them up. `replica_timeout_ms`: as `Store.send`.
        """
        self._check_send(message.topic, queue_id, topic)
        if message.properties.get(TRANSACTION_PREPARED, "").lower() == "true":
            if not self.takes_half_messages(producer_group):
                reason = "half messages need a TransactionProducer, which is asked for the outcome"
                raise self._answers.error(ResponseCode.NO_PERMISSION, reason)
            with self._answers.answering():
                half = self.store.transactions.prepare(
                    message, queue_id, producer_group, sys_flag=sys_flag & ~TRANSACTION_MASK, born_host=born_host
                )
            return self._named(half)
        if sys_flag & TRANSACTION_MASK:
            reason = f"only a message with the property {TRANSACTION_PREPARED} is a half message"
            raise self._answers.error(ResponseCode.NO_PERMISSION, reason)
        with self._answers.answering():
            result = self.store.send(
                message if message.queue_id == queue_id else changed(message, queue_id=queue_id),
                sys_flag=sys_flag,
                lock_timeout_ms=min(timeout_ms, PAGE_CACHE_BUSY_MS),
                flush_timeout_ms=timeout_ms,
                replica_timeout_ms=replica_timeout_ms,
                born_host=born_host,
                as_given=True,
            )
        return self._named(result)

    def send_batch(
        self,
        messages: Sequence[Message],
        queue_id: int,
        timeout_ms: int,
        producer_group: str,
        *,
        born_host: Host | None = None,
    ) -> SendResult:
        """See `Broker.send_batch`; `born_host` None: the store's own."""
        self._check_send(messages[0].topic, queue_id)
        with self._answers.answering():
            results = self.store.send_all(
                [one if one.queue_id == queue_id else changed(one, queue_id=queue_id) for one in messages],
                lock_timeout_ms=min(timeout_ms, PAGE_CACHE_BUSY_MS),
                flush_timeout_ms=timeout_ms,
                origins=[Origin(born_host)] * len(messages),
                as_given=True,
            )
        return replace(result_of_batch(results), broker_name=self.name)

    def send_together(
        self,
        messages: Sequence[Message],
        origins: Sequence[Origin],
        topics: Mapping[str, TopicConfig],
        lock_timeout_ms: int,
        flush_timeout_ms: int,
        replica_timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """As `send` for each message, which names its queue, but all are stored, or none. `topics` has the settings of
        their topics, which the caller has just looked up. MQBrokerError 1: it is unknown whether they are stored. Any
        other error: nothing was.
        """
        for message in messages:
            assert message.queue_id is not None
            self._check_send(message.topic, message.queue_id, topics[message.topic])
        with self._answers.answering():
            if len(messages) == 1:  # without the arrays that pay for several
                ((born_host, sys_flag),) = origins
                results = [
                    self.store.send(
                        messages[0],
                        sys_flag=sys_flag,
                        lock_timeout_ms=lock_timeout_ms,
                        flush_timeout_ms=flush_timeout_ms,
                        replica_timeout_ms=replica_timeout_ms,
                        born_host=born_host,
                        as_given=True,
                    )
                ]
            else:
                results = self.store.send_all(
                    messages,
                    lock_timeout_ms=lock_timeout_ms,
                    flush_timeout_ms=flush_timeout_ms,
                    replica_timeout_ms=replica_timeout_ms,
                    origins=origins,
                    as_given=True,
                )
        return [self._named(result) for result in results]

    def send_batch_body(
        self,
        topic: str,
        body: bytes,
        queue_id: int,
        timeout_ms: int,
        *,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: Host,
        settings: TopicConfig,
        replica_timeout_ms: int | None = None,
    ) -> SendResult:
        """As `send_batch`, of a batch as it came over the network. `sys_flag` says how their bodies are compressed.
        `settings`: those of the topic, which the caller has just looked up.
        """
        self._check_send(topic, queue_id, settings)
        with self._answers.answering():
            result = self.store.send_batch(
                topic,
                body,
                queue_id,
                sys_flag=sys_flag,
                born_timestamp_ms=born_timestamp_ms,
                lock_timeout_ms=min(timeout_ms, PAGE_CACHE_BUSY_MS),
                flush_timeout_ms=timeout_ms,
                replica_timeout_ms=replica_timeout_ms,
                born_host=born_host,
            )
        return self._named(result)

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """See `Broker.recall_message`."""
        with self._answers.answering():
            return self.store.recall_message(topic, recall_handle)

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
        """See `Broker.pull`. At most 256 KiB of stored messages, but at least one; a filter looks at 16,000 at most."""
        with self._answers.trying():
            found = self._pull.pull_batch(group, queue, offset, max_count, tags, PULL_BYTES_MAX, room)
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
        """See `Broker.pull_batch`. As `pull`, but at most 4 MiB of stored messages, with `room` 2 MiB."""
        bytes_max = PULL_BATCH_BYTES_MAX if room is None else PULL_ROOM_BYTES_MAX
        with self._answers.trying():
            return self._pull.pull_batch(group, queue, offset, max_count, tags, bytes_max, room or 0)

    def min_offset(self, queue: MessageQueue) -> int:
        """See `Broker.min_offset`."""
        with self._answers.trying():
            return self.store.queue_range(queue.topic, queue.queue_id).min_offset

    def max_offset(self, queue: MessageQueue) -> int:
        """See `Broker.max_offset`."""
        with self._answers.trying():
            return self.store.queue_range(queue.topic, queue.queue_id).max_offset

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `Broker.offset_by_time`."""
        with self._answers.trying():
            return self.store.offset_by_time(queue.topic, queue.queue_id, timestamp_ms)

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """See `Broker.query_consumer_offset`."""
        with self._answers.trying():
            stored = self.store.committed_offsets(group).get((queue.topic, queue.queue_id), -1)
            if stored >= 0:
                return stored
            if self._strict_last_offset or self.min_offset(queue) > 0:
                return None
            max_offset = self.max_offset(queue)
            return 0 if starts_at_first_message(self.store, queue.topic, queue.queue_id, max_offset) else None

    def update_consumer_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, lock_owner: str | None = None
    ) -> set[MessageQueue]:
        """See `Broker.update_consumer_offsets`."""
        with self._answers.answering():
            mine = {
                queue: offset
                for queue, offset in offsets.items()
                if lock_owner is None or self._groups.holds(group, lock_owner, queue)
            }
            self.store.commit_offsets(group, {(q.topic, q.queue_id): offset for q, offset in mine.items()})
        return set(mine)

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
        """See `Broker.send_message_back`."""
        with self._answers.answering():
            self.store.retry.send_back(
                group,
                message.commit_log_offset,
                delay_level=delay_level,
                max_reconsume_times=max_reconsume_times,
                msg_id=message.msg_id,
                properties=properties,
            )

    def send_messages_back(
        self, group: str, rows: pa.RecordBatch, delay_level: int, max_reconsume_times: int | None, timeout_ms: int
    ) -> None:
        """See `Broker.send_messages_back`: one unit of the store."""
        levels = pa.array(np.full(rows.num_rows, delay_level, np.int32))
        asked = pa.RecordBatch.from_arrays(
            [rows.column("commitLogOffset"), rows.column("msgId"), levels], ["commitLogOffset", "msgId", "delayLevel"]
        )
        with self._answers.answering():
            self.store.retry.send_back_all(group, asked, max_reconsume_times=max_reconsume_times)

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
        with self._answers.answering():
            self.store.retry.send_to_retry(group, message, reconsume_times, max_reconsume_times, sys_flag=sys_flag)

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        """See `Broker.set_max_reconsume_times`."""
        with self._answers.answering():
            self.store.retry.set_max_reconsume_times(group, times)

    # -- membership and locks ---------------------------------------------------------------------------------------

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        """See `Broker.heartbeat`."""
        with self._answers.trying():
            self._groups.heartbeat(group, client_id, joins=joins, topics=topics, shares=shares)

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        """See `Broker.share_topics`."""
        with self._answers.trying():
            self._groups.share_topics(group, client_id, topics)

    def unregister(self, group: str, client_id: str, *, keeps_locks: bool = False) -> None:
        """See `Broker.unregister`; with `keeps_locks` the client's locks stay until `unlock_queues`."""
        with self._answers.trying():
            self._groups.unregister(group, client_id, keeps_locks=keeps_locks)

    def consumer_ids(self, group: str) -> list[str]:
        """See `Broker.consumer_ids`."""
        with self._answers.trying():
            return self._groups.consumer_ids(group)

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """See `Broker.lock_queues`."""
        with self._answers.trying():
            return self._groups.lock_queues(group, client_id, queues)

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """See `Broker.unlock_queues`."""
        with self._answers.trying():
            self._groups.unlock_queues(group, client_id, queues)

    # -- the broker's own work, and invisible messages ---------------------------------------------------------------

    def deliver_due(self) -> None:
        """See `Broker.deliver_due`."""
        with self._answers.answering():
            self.store.schedule.deliver_due()

    def receive_message(
        self,
        group: str,
        subscription: Subscription,
        max_messages: int,
        invisible_duration_ms: int,
        *,
        from_first: bool = False,
        max_delivery_attempts: int | None = None,
        bytes_max: int = BYTES_MAX,
        queue_id: int | None = None,
        in_order: bool = False,
        attempt_id: str | None = None,
    ) -> list[PoppedMessage]:
        """See `Broker.receive_message`; what comes after `max_delivery_attempts` is that of `Pop.receive`."""
        with self._answers.answering():
            popped = self.store.pop.receive(
                group,
                subscription.topic,
                max_messages,
                invisible_duration_ms,
                tags=subscription.tags,
                accepts=subscription.matches if subscription.selector.expression_type == "SQL92" else None,
                init_mode=ConsumeInitMode.MIN if from_first else ConsumeInitMode.MAX,
                max_delivery_attempts=max_delivery_attempts,
                bytes_max=bytes_max,
                queue_id=queue_id,
                in_order=in_order,
                attempt_id=attempt_id,
            )
        if not popped:
            return []
        messages = messages_of(pa.concat_batches([one.row for one in popped]), self.name)
        return [
            PoppedMessage(message, one.receipt_handle, one.delivery_attempt)
            for message, one in zip(messages, popped, strict=True)
        ]

    def ack_message(self, group: str, topic: str, receipt_handle: str) -> None:
        """See `Broker.ack_message`."""
        with self._answers.answering():
            self.store.pop.ack(group, topic, receipt_handle)

    def change_invisible_duration(self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int) -> str:
        """See `Broker.change_invisible_duration`."""
        with self._answers.answering():
            return self.store.pop.change_invisible_duration(group, topic, receipt_handle, invisible_duration_ms)

    def close(self) -> None:
        """Leave all groups; the store stays open."""
        self._groups.close()

    def _named(self, result: SendResult) -> SendResult:
        """The result with this broker's name. All fields by hand: `replace` takes longer than the queue's entry."""
        return SendResult(
            result.topic, result.queue_id, result.queue_offset, result.commit_log_offset, result.msg_id,
            result.offset_msg_id, result.status, self.name, result.recall_handle, result.end_offset,
        )  # fmt: skip

    def _check_send(self, topic: str, queue_id: int, known: TopicConfig | None = None) -> None:
        """SendMessageProcessor's checks before it reads the message. The store itself handles a missing topic."""
        if known is None:
            known = self.store.topics().get(topic)
        if known is None:
            return
        if not known.writable:
            reason = f"topic {topic!r} may not be written (perm {known.perm})"
            raise self._answers.error(ResponseCode.NO_PERMISSION, reason)
        count = max(known.write_queue_nums, known.read_queue_nums)
        if not 0 <= queue_id < count:
            reason = f"topic {topic!r} has no queue {queue_id}: it has {count} queues"
            raise self._answers.error(ResponseCode.INVALID_PARAMETER, reason)
