"""The messages of a store: found, read, sent."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.messages import no_message
from rmq_store.cli.mqadmin_print.traces import TRACE_TOPIC, trace_views
from rmq_store.cli.shared.name_lookup import require_queue, require_topic
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.protocol.messages import MessageQueue

if TYPE_CHECKING:
    from rmq_store import SendResult, Store, StoredMessage
    from rmq_store.broker.monitoring.message_track import MessageTrack, Tracker
    from rmq_store.format.frames.message import Message


class StoreMessages:
    """Messages by key, id, queue and time; a store that was opened for writing can take one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.max_message_bytes = store.config.max_message_size

    def by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> list[StoredMessage]:
        """The newest messages with a key, in the order of the log, as a broker sorts them (DefaultMessageStore
        #queryMessage). ResponseError: there is none. UnknownTopicError.
        """
        require_topic(self._store, topic)
        found = self._store.query.by_key(topic, key, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num)
        if not found:
            raise no_message()
        return found[::-1]

    def by_ids(self, msg_ids: Sequence[str], topic: str | None) -> list[StoredMessage]:
        """A message for each id: an offset id, otherwise a unique id of `topic` (MQAdminImpl#viewMessage).

        Raises:
            ResponseError: there is no such message. UsageError: this is no id. UnknownTopicError.
        """
        return [self._by_id(msg_id, topic) for msg_id in msg_ids]

    def by_unique_key(self, topic: str, msg_id: str) -> list[StoredMessage]:
        """The newest first. ResponseError: there is none. UnknownTopicError."""
        require_topic(self._store, topic)
        found = self._store.query.by_unique_key(topic, msg_id, begin_ms=0)
        if not found:
            raise no_message()
        return found

    def by_offset(self, topic: str, broker: str | None, queue_id: int, offset: int) -> StoredMessage:
        """ResponseError: the queue has no such message. UsageError: there is no such queue."""
        (queue,) = self.queues(topic, broker, queue_id)
        try:
            return self._store.query.by_queue_offset(topic, queue.queue_id, offset)
        except OffsetOutOfRangeError as error:
            raise no_message(str(error)) from error

    def traces(self, msg_id: str, topic: str, begin_ms: int, end_ms: int, max_num: int) -> list[dict[str, Any]]:
        """The entries of `trace_views`. ResponseError: no client traced the message. UnknownTopicError."""
        if topic != TRACE_TOPIC:
            require_topic(self._store, topic)
        traces = self._store.query.by_key(topic, msg_id, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num)
        found = [view for one in traces for view in trace_views(one, msg_id, self.max_message_bytes)]
        if not found:
            raise no_message(
                "query message by key finished, but no message. No client traced it. The history that the "
                f"store knows: rmq trace --uniq-key {msg_id}"
            )
        return found

    def track(self, message: StoredMessage) -> Sequence[MessageTrack]:
        """The tracks of a message, one for each group of its topic."""
        return self._tracker.track(message)

    def queues(self, topic: str, broker: str | None = None, queue_id: int | None = None) -> list[MessageQueue]:
        """The queues of a topic, or this one.

        Raises:
            UsageError: this is another broker's store, or there is no such queue. UnknownTopicError.
        """
        self._require_broker(broker)
        if queue_id is None:
            numbers = sorted(self._store.queue_ranges(require_topic(self._store, topic)))
        else:
            numbers = [require_queue(self._store, topic, queue_id)]
        return [MessageQueue(topic, self._store.broker_name, number) for number in numbers]

    def between(self, queue: MessageQueue, begin: str | None, end: str | None) -> tuple[int, int]:
        """The queue offsets for two times, as MQAdminImpl#searchOffset finds them; by default all. UsageError: this is
        no time.
        """
        first, last = self._store.queue_range(queue.topic, queue.queue_id)
        now_ms = self._store.clock()
        if begin is not None:
            first = self._store.query.by_time(queue.topic, queue.queue_id, parse_time(begin, now_ms))
        if end is not None:
            last = self._store.query.by_time(queue.topic, queue.queue_id, parse_time(end, now_ms))
        return first, last

    def read(self, queue: MessageQueue, first: int, last: int, tags: str) -> Iterator[StoredMessage]:
        """The messages [first, last) of a queue that have these tags."""
        if first >= last:
            return
        for batch in self._store.read(
            queue.topic, queue.queue_id, first, last, columns=["commitLogOffset"], tags=tags
        ):
            for offset in batch.column("commitLogOffset").to_pylist():
                yield self._store.message_at(offset)

    def send(self, message: Message, broker: str | None, queue_id: int | None) -> tuple[SendResult, str]:
        """Store a message, in this queue if one is named: the result, and the broker's name. UsageError: this is
        another broker's store, or there is no such queue.
        """
        self._require_broker(broker)
        return self._store.send(replace(message, queue_id=queue_id)), self._store.broker_name

    @functools.cached_property
    def _tracker(self) -> Tracker:
        from rmq_store.broker.monitoring.message_track import Tracker

        return Tracker(self._store)

    def _by_id(self, msg_id: str, topic: str | None) -> StoredMessage:
        from rmq_store.format.text.ids import check_message_id

        check_message_id(msg_id)
        try:
            return self._store.query.by_offset_id(msg_id)
        except UsageError as error:
            if topic is None:
                hint = f"if a producer made this id: rmq queryMsgByUniqueKey -i {msg_id} -t TOPIC"
                raise no_message(f"{error}; {hint}") from error
        return self.by_unique_key(topic, msg_id)[0]

    def _require_broker(self, name: str | None) -> None:
        """Raise UsageError if -b names another broker than the store's, instead of answering with its messages."""
        if name is not None and name.strip() != self._store.broker_name:
            raise UsageError(f"-b {name!r}: this is the store of the broker {self._store.broker_name!r}")
