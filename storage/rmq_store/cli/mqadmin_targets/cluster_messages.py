"""The messages of a cluster: found, read, sent. Every broker of the topic is asked, and the key of every found message
is compared. Source: MQAdminImpl.java.

Messages are pulled under TOOLS_CONSUMER, or --pull-group: no group's offset moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rmq_store.broker.monitoring.message_track import MessageTrack, TrackType, matches, not_online
from rmq_store.cli.mqadmin_print.messages import no_message
from rmq_store.cli.mqadmin_print.traces import TRACE_TOPIC, trace_views
from rmq_store.cli.mqadmin_targets.cluster_scope import masters_of, require_route
from rmq_store.cli.shared.output import printable
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.admin.groups import topic_groups
from rmq_store.remoting.admin.scope import ask
from rmq_store.remoting.cluster.offsets import query_consumer_offset
from rmq_store.remoting.cluster.queries import Found
from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

if TYPE_CHECKING:
    from rmq_store import SendResult, StoredMessage
    from rmq_store.cli.target.answers import Answers
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.client.backend.remote import RemoteBackend
    from rmq_store.format.frames.message import Message
    from rmq_store.protocol.bodies.groups import SubscriptionData
    from rmq_store.remoting.cluster.cluster import Cluster

# As mqadmin: one that no other client has.
_PRODUCER_GROUP = "RMQ_TOOLS_PRODUCER"


class ClusterMessages:
    """Messages by key, id, queue and time; and one that is sent. `answers` has the brokers that do not answer."""

    def __init__(self, target: ClusterTarget, cluster: Cluster, answers: Answers) -> None:
        self._target = target
        self._cluster = cluster
        self._answers = answers
        # Offset id of a message that was found -> its broker.
        self._brokers: dict[str, str] = {}
        self._tracker = ClusterTracker(cluster, self._brokers)
        self.max_message_bytes = 0
        """Brokers do not tell their maxMessageSize."""

    def by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> list[StoredMessage]:
        """The newest messages of each broker with a key, in the order of its log. Stderr says so if a broker has
        perhaps more. ResponseError: no broker has one. UnknownTopicError.
        """
        require_route(self._cluster, topic)
        found = self._query(topic, key, begin_ms, end_ms, max_num)
        messages = [message for _, message in found if key in (message.keys or "").split(" ")]
        if not messages:
            self._answers.require_all()
            raise no_message()
        return messages

    def by_ids(self, msg_ids: Sequence[str], topic: str | None) -> list[StoredMessage]:
        """A message for each id: an offset id, otherwise a unique id of `topic` (MQAdminImpl#viewMessage). Only an
        address that a broker of this cluster has registered is asked.

        Raises:
            ResponseError: there is no such message. UsageError: this is no id. UnknownTopicError.
        """
        return [self._by_id(msg_id, topic) for msg_id in msg_ids]

    def by_unique_key(self, topic: str, msg_id: str) -> list[StoredMessage]:
        """The newest first. ResponseError: there is none. UnknownTopicError."""
        from rmq_store.remoting.cluster.queries import query_by_unique_key

        require_route(self._cluster, topic)
        answers = query_by_unique_key(self._cluster, topic, msg_id, on_missing=self._answers.failed)
        _tell_full(answers)
        found = [one for _, one in self._remembered(answers) if msg_id in (one.msg_id, one.java_unique_key)]
        if not found:
            self._answers.require_all()
            raise no_message()
        return sorted(found, key=lambda one: one.store_timestamp_ms, reverse=True)

    def by_offset(self, topic: str, broker: str | None, queue_id: int, offset: int) -> StoredMessage:
        """ResponseError: the queue has no such message. UsageError: no broker, or several, have such a queue."""
        from rmq_store.remoting.cluster.pull_request import pull

        queue = queue_of(self._cluster, topic, broker, queue_id)
        answer = pull(self._cluster, queue, offset, 1, self._target.filter())
        found = self._remembered([Found(queue.broker_name, answer.frames, False)])
        if not found or found[0][1].queue_offset != offset:
            span = f"[{answer.min_offset}, {answer.max_offset})"
            raise no_message(f"{queue.broker_name} queue {queue_id} of {topic} has the offsets {span}, not {offset}")
        return found[0][1]

    def traces(self, msg_id: str, topic: str, begin_ms: int, end_ms: int, max_num: int) -> list[dict[str, Any]]:
        """The entries of `trace_views`. ResponseError: no client traced the message. UnknownTopicError."""
        traces: list[tuple[str, StoredMessage]] = []
        if topic != TRACE_TOPIC or self._cluster.refresh_route(topic) is not None:
            require_route(self._cluster, topic)
            traces = self._query(topic, msg_id, begin_ms, end_ms, max_num)
        found = [view for _, one in traces for view in trace_views(one, msg_id)]
        if not found:
            self._answers.require_all()
            raise no_message("query message by key finished, but no message. No client traced it.")
        return found

    def track(self, message: StoredMessage) -> Sequence[MessageTrack]:
        """The tracks of a message that was found here, one for each group of its topic."""
        return self._tracker.track(message)

    def queues(self, topic: str, broker: str | None = None, queue_id: int | None = None) -> list[MessageQueue]:
        """The queues of a topic that may be read, those of one broker, or this one.

        Raises:
            UsageError: the broker does not have the topic; no broker, or several, have such a queue. UnknownTopicError.
        """
        if queue_id is not None:
            return [queue_of(self._cluster, topic, broker, queue_id)]
        known = require_route(self._cluster, topic).read_queues()
        queues = [one for one in known if broker is None or one.broker_name == broker.strip()]
        if known and not queues:
            names = ", ".join(sorted({one.broker_name for one in known}))
            raise UsageError(f"broker {broker!r} does not have the topic {topic!r}; brokers: {names}")
        return queues

    def between(self, queue: MessageQueue, begin: str | None, end: str | None) -> tuple[int, int]:
        """The queue offsets for two times, as MQAdminImpl#searchOffset finds them; by default all. UsageError: this is
        no time.
        """
        from rmq_store.remoting.cluster.offsets import queue_ranges, search_offset

        first, last = queue_ranges(self._cluster, [queue])[queue]
        now_ms = time.time_ns() // 1_000_000
        if begin is not None:
            first = max(first, search_offset(self._cluster, queue, parse_time(begin, now_ms)))
        if end is not None:
            last = min(last, search_offset(self._cluster, queue, parse_time(end, now_ms)))
        return first, last

    def read(self, queue: MessageQueue, first: int, last: int, tags: str) -> Iterator[StoredMessage]:
        """The messages [first, last) of a queue that have these tags, some blocks of 1 MiB at a time."""
        from rmq_store.broker.filter.tags import TagFilter
        from rmq_store.remoting.cluster.pulling import read_range

        if first >= last:
            return
        wanted = TagFilter.parse(tags)
        for block in read_range(self._cluster, queue, first, last, self._target.filter(tags)):
            for _, message in messages_of(self._cluster, [Found(queue.broker_name, block, False)]):
                # Brokers compare hashes of tags.
                if wanted is None or message.tags in wanted.tags:
                    yield message

    def send(self, message: Message, broker: str | None, queue_id: int | None) -> tuple[SendResult, str]:
        """Send a message, to this broker and its queue if they are named: the result, and the broker's name.

        Raises:
            UsageError: the queue cannot be written.
        """
        from rmq_store.client import Producer
        from rmq_store.client.backend.remote import RemoteBackend

        with RemoteBackend(self._cluster) as backend, Producer(_PRODUCER_GROUP, backend) as producer:
            queue = None if broker is None else _queue_to_write(backend, message.topic, broker.strip(), queue_id)
            result = producer.send(message, queue=queue)
        return result, result.broker_name or ""

    def _by_id(self, msg_id: str, topic: str | None) -> StoredMessage:
        from rmq_store.format.text.ids import check_message_id
        from rmq_store.remoting.cluster.queries import view_message

        check_message_id(msg_id)
        reason = "no such message"
        try:
            answer = view_message(self._cluster, msg_id)
            if answer is not None:
                return self._remembered([answer])[0][1]
        except UsageError as error:
            reason = str(error)
        if topic is None:
            hint = f"if a producer made this id: rmq queryMsgByUniqueKey -i {msg_id} -t TOPIC"
            raise no_message(f"{reason}; {hint}")
        return self.by_unique_key(topic, msg_id)[0]

    def _query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int
    ) -> list[tuple[str, StoredMessage]]:
        from rmq_store.remoting.cluster.queries import query_by_key

        answers = query_by_key(
            self._cluster, topic, key, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num,
            on_missing=self._answers.failed,
        )  # fmt: skip
        _tell_full(answers)
        return messages_of(self._cluster, answers)

    def _remembered(self, answers: Iterable[Found]) -> list[tuple[str, StoredMessage]]:
        found = messages_of(self._cluster, answers)
        self._brokers.update((message.offset_msg_id, name) for name, message in found)
        return found


class ClusterTracker:
    """Finds the groups that have consumed a message: the lines below it. `brokers`: offset id of a message -> its
    broker, for messages to come.

    As for a store, the offset decides first, and a group that has not consumed the message and has no member is
    NOT_ONLINE. mqadmin says NOT_ONLINE of every group without members. Source: DefaultMQAdminExtImpl.java
    (messageTrackDetail).
    """

    def __init__(self, cluster: Cluster, brokers: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._brokers = brokers

    def track(self, message: StoredMessage) -> list[MessageTrack]:
        """One track for each group of the message's topic at its broker; UNKNOWN with the reason if a broker refuses or
        does not answer.
        """
        try:
            groups = self.groups(message.topic, self._brokers[message.offset_msg_id])
        except (MQBrokerError, RemotingError) as error:
            return [MessageTrack("-", TrackType.UNKNOWN, str(error))]
        return [self.track_of(group, message) for group in groups]

    def groups(self, topic: str, broker_name: str) -> list[str]:
        """The groups that consume a topic at a broker, or have offsets there, sorted. Raises as `topic_groups`."""
        route = self._cluster.route(topic)
        mine = [one for one in masters_of(route) if one.broker_name == broker_name] if route is not None else []
        return topic_groups(self._cluster, mine, topic)

    def track_of(self, group: str, message: StoredMessage) -> MessageTrack:
        """The track of one group; UNKNOWN with the reason if the broker refuses or does not answer."""
        queue = MessageQueue(message.topic, self._brokers[message.offset_msg_id], message.queue_id)
        try:
            return self._of_group(message, queue, group)
        except (MQBrokerError, RemotingError) as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))

    def _of_group(self, message: StoredMessage, queue: MessageQueue, group: str) -> MessageTrack:
        route = self._cluster.known_route(queue.topic)
        mine = next(one for one in masters_of(route) if one.broker_name == queue.broker_name)
        online = ask(self._cluster, mine, ask_consumer_connections(self._cluster, group), read_consumer_connections)
        if online is not None and online.message_model == "BROADCASTING":
            return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
        if online is not None and online.consume_type == "CONSUME_ACTIVELY":
            return MessageTrack(group, TrackType.PULL)
        offset = query_consumer_offset(self._cluster, group, queue, set_zero_if_not_found=False) or 0
        if offset > message.queue_offset:
            filters = {} if online is None else online.subscription_table
            is_taken = _is_taken(message, filters.get(self._cluster.wire_topic(message.topic)))
            return MessageTrack(group, TrackType.CONSUMED if is_taken else TrackType.CONSUMED_BUT_FILTERED)
        return not_online(group) if online is None else MessageTrack(group, TrackType.NOT_CONSUME_YET)


def _is_taken(message: StoredMessage, subscription: SubscriptionData | None) -> bool:
    if subscription is None:
        return True
    try:
        return matches(subscription.expression_type, subscription.sub_string, message.properties, message.tags)
    except UsageError:
        return True  # an expression that another client understands


def queue_of(cluster: Cluster, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
    """A queue of a topic that may be read. `broker` None: the only broker that has it.

    Raises:
        UsageError: no broker, or several, have such a queue. UnknownTopicError: no broker has the topic.
    """
    queues = [one for one in require_route(cluster, topic).read_queues() if one.queue_id == queue_id]
    found = [one for one in queues if broker is None or one.broker_name == broker.strip()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.broker_name for one in queues) or "none"
    if found:
        raise UsageError(f"several brokers have a queue {queue_id} of {topic}: name one of {names}")
    where = "no broker" if broker is None else f"broker {broker.strip()!r}"
    raise UsageError(f"topic {topic} has a queue {queue_id} at these brokers: {names}; asked for is {where}")


def messages_of(cluster: Cluster, answers: Iterable[Found]) -> list[tuple[str, StoredMessage]]:
    """(broker, message) of frames, topics without the namespace. CorruptRecordError: a frame is no sound message."""
    from rmq_store.format.frames.frame_walk import frames_of_answer
    from rmq_store.format.frames.stored_message import decode_frame

    found = []
    for answer in answers:
        view = memoryview(answer.frames)
        positions, _ = frames_of_answer(view)
        for at in positions:
            one = decode_frame(view, int(at), len(view))
            found.append((answer.broker_name, replace(one, topic=cluster.plain_name(one.topic))))
    return found


def _tell_full(answers: Iterable[Found]) -> None:
    for answer in answers:
        if answer.is_full:
            text = f"rmq: broker {answer.broker_name} gives no more messages in one answer: there may be more"
            click.echo(printable(text), err=True)


def _queue_to_write(backend: RemoteBackend, topic: str, broker: str, queue_id: int | None) -> MessageQueue:
    queues = backend.publish_queues(topic)
    found = [one for one in queues if one.broker_name == broker and queue_id in (None, one.queue_id)]
    if not found:
        known = ", ".join(sorted({one.broker_name for one in queues})) or "no broker"
        which = "" if queue_id is None else f"queue {queue_id} of "
        raise UsageError(f"{which}{topic} cannot be written at broker {broker!r}; brokers that can be written: {known}")
    return found[0]
