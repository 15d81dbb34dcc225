"""A simulated broker: a master with its queues in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from helpers.cluster.simulated.queues import PULL_MESSAGES, SentMessage, SimulatedQueue, SimulatedQueues, inner_messages
from helpers.cluster.simulated.server import SUCCESS, TOPIC_NOT_EXIST, V4_9_7, CountingServer, Reply
from helpers.cluster.stub_server import StubLoop
from rmq_store.protocol.bodies.clients import HeartbeatData, LockBatchRequestBody, LockBatchResponseBody
from rmq_store.protocol.bodies.groups import (
    ConsumerList,
    ConsumeStats,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.bodies.topics import TopicConfig, TopicOffset, TopicStatsTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

SYSTEM_ERROR: Final = 1
PULL_NOT_FOUND: Final = 19
PULL_RETRY_IMMEDIATELY: Final = 20
PULL_OFFSET_MOVED: Final = 21
QUERY_NOT_FOUND: Final = 22
GROUP_NOT_EXIST: Final = 26
INVALID_PARAMETER: Final = 29
NOT_ONLINE: Final = 206


class SimulatedBroker(CountingServer):
    """A master with its queues in memory; `stop` and `start` are the death and the return of its process."""

    def __init__(self, name: str, loop: StubLoop) -> None:
        super().__init__(loop)
        self.name = name
        self.queues = SimulatedQueues(self.server.port)
        self.groups: set[str] = {"TOOLS_CONSUMER"}
        self.members: dict[str, set[str]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        self._answerers = {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send_batch,
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_MAX_OFFSET: lambda request: self._end(request, lambda queue: queue.end),
            RequestCode.GET_MIN_OFFSET: lambda request: self._end(request, lambda queue: queue.first),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: self._end(
                request, lambda queue: queue.search(int(request.ext_fields["timestamp"]))
            ),
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda _: (NOT_ONLINE, {}, b""),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
            RequestCode.QUERY_MESSAGE: lambda _: (QUERY_NOT_FOUND, {}, b""),
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_ids,
        }

    def stop(self) -> None:
        """Refuse connections and end those that are there."""
        self.server.stop()

    def start(self) -> None:
        """Listen again on the same port."""
        self.server.start()

    def _queue(self, fields: Mapping[str, str]) -> SimulatedQueue | None:
        return self.queues.get(fields["topic"], int(fields["queueId"]))

    def _pull(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        self.groups.add(fields["consumerGroup"])
        if fields["topic"] not in self.queues.topics:
            return TOPIC_NOT_EXIST, {}, b""
        queue = self._queue(fields)
        if queue is None or queue.queue_id >= self.queues.counts(queue.topic)[0]:
            return INVALID_PARAMETER, {}, b""
        offset = int(fields["queueOffset"])
        code, records, behind = SUCCESS, [], queue.end
        if queue.first <= offset < queue.end:
            wanted = int(fields.get("maxMsgNums", PULL_MESSAGES))
            records, behind = queue.pull(offset, wanted, fields.get("subscription", "*"))
            if not records:
                code = PULL_RETRY_IMMEDIATELY
        elif offset < queue.first:
            code, behind = PULL_OFFSET_MOVED, queue.first
        else:
            code = PULL_NOT_FOUND if offset == queue.end else PULL_OFFSET_MOVED
        ends = {"nextBeginOffset": str(behind), "minOffset": str(queue.first), "maxOffset": str(queue.end)}
        return code, {"suggestWhichBrokerId": "0", **ends}, b"".join(records)

    def _send(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        message = SentMessage(
            request.body, fields.get("i", "").encode(), int(fields["h"]), int(fields["f"]), int(fields["g"]), _now_ms(),
            int(fields.get("j", 0)),
        )  # fmt: skip
        return self._store(fields, [message])

    def _send_batch(self, request: RemotingCommand) -> Reply:
        messages = list(inner_messages(request.body, request.ext_fields, _now_ms()))
        return self._store(request.ext_fields, messages)

    def _store(self, fields: Mapping[str, str], messages: list[SentMessage]) -> Reply:
        if fields["b"] not in self.queues.topics:
            return TOPIC_NOT_EXIST, {}, b""
        queue = self.queues.get(fields["b"], max(0, int(fields["e"])))
        if queue is None:
            return INVALID_PARAMETER, {}, b""
        places = [queue.append(message) for message in messages]
        ids = ",".join(f"7F000001{self.server.port:08X}{log_offset:016X}" for _, log_offset in places)
        where = {"queueId": str(queue.queue_id), "queueOffset": str(places[0][0])}
        return SUCCESS, {"msgId": ids, **where, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}, b""

    def _heartbeat(self, request: RemotingCommand) -> Reply:
        beat = HeartbeatData.decode(request.body)
        for group in beat.consumer_data_set:
            self.members.setdefault(group.group_name, set()).add(beat.client_id)
        return SUCCESS, {}, b""

    def _unregister(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        self.members.get(fields.get("consumerGroup", ""), set()).discard(fields["clientID"])
        return SUCCESS, {}, b""

    def _consumer_ids(self, request: RemotingCommand) -> Reply:
        ids = self.members.get(request.ext_fields["consumerGroup"])
        return (SUCCESS, {}, ConsumerList(consumer_id_list=sorted(ids)).encode()) if ids else (SYSTEM_ERROR, {}, b"")

    def _topic_stats(self, request: RemotingCommand) -> Reply:
        topic = request.ext_fields["topic"]
        if topic not in self.queues.topics:
            return TOPIC_NOT_EXIST, {}, b""
        read, write = self.queues.counts(topic)
        table = {
            MessageQueue(topic, self.name, queue_id): TopicOffset(
                min_offset=queue.first, max_offset=queue.end,
                last_update_timestamp=queue.store_ms_at(queue.end - 1) if queue.end > queue.first else 0,
            )
            for queue_id, queue in self.queues.topics[topic].items()
            if queue_id < (write if self.version == V4_9_7 else max(read, write))
        }  # fmt: skip
        return SUCCESS, {}, TopicStatsTable(offset_table=table).encode()

    def _runtime_info(self, _: RemotingCommand) -> Reply:
        stored = sum(queue.end for queues in self.queues.topics.values() for queue in queues.values())
        figures = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(stored * 4096), "dispatchBehindBytes": "0"}
        return SUCCESS, {}, KVTable(table=figures).encode()

    def _topic_config(self, request: RemotingCommand) -> Reply:
        topic = request.ext_fields["topic"]
        if topic not in self.queues.topics:
            return TOPIC_NOT_EXIST, {}, b""
        read, write = self.queues.counts(topic)
        config = TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write, attributes={})
        return SUCCESS, {}, config.encode()

    def _end(self, request: RemotingCommand, offset: Callable[[SimulatedQueue], int]) -> Reply:
        queue = self._queue(request.ext_fields)
        return SUCCESS, {"offset": str(0 if queue is None else offset(queue))}, b""

    def _query_offset(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        found = self.offsets.get((fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if found is None:
            return QUERY_NOT_FOUND, {}, b""
        return SUCCESS, {"offset": str(found)}, b""

    def _update_offset(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        if fields["consumerGroup"] not in self.groups:
            return GROUP_NOT_EXIST, {}, b""
        self.offsets[fields["consumerGroup"], fields["topic"], int(fields["queueId"])] = int(fields["commitOffset"])
        return SUCCESS, {}, b""

    def _all_groups(self, _: RemotingCommand) -> Reply:
        table = {group: SubscriptionGroupConfig(group_name=group) for group in sorted(self.groups)}
        return SUCCESS, {}, SubscriptionGroupTable(subscription_group_table=table).encode()

    def _consume_stats(self, request: RemotingCommand) -> Reply:
        """All queues of the topics on which the group has an offset, 0 for those without one (getConsumeStats)."""
        group = request.ext_fields["consumerGroup"]
        if group not in self.groups:
            return GROUP_NOT_EXIST, {}, b""
        table = {
            MessageQueue(topic, self.name, queue_id): OffsetWrapper(
                broker_offset=queue.end, consumer_offset=self.offsets.get((group, topic, queue_id), 0)
            )
            for topic in sorted({topic for name, topic, _ in self.offsets if name == group})
            for queue_id, queue in self.queues.topics.get(topic, {}).items()
            if queue_id < self.queues.counts(topic)[0]
        }
        return SUCCESS, {}, ConsumeStats(offset_table=table).encode()

    def _create_topic(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        self.queues.set_counts(fields["topic"], int(fields["readQueueNums"]), int(fields["writeQueueNums"]))
        return SUCCESS, {}, b""

    def _lock(self, request: RemotingCommand) -> Reply:
        wanted = LockBatchRequestBody.decode(request.body)
        held = tuple(
            queue
            for queue in wanted.mq_set
            if self.locks.setdefault((wanted.consumer_group, queue), wanted.client_id) == wanted.client_id
        )
        return SUCCESS, {}, LockBatchResponseBody(lock_ok_mq_set=held).encode()

    def _unlock(self, request: RemotingCommand) -> Reply:
        given = LockBatchRequestBody.decode(request.body)
        for queue in given.mq_set:
            if self.locks.get((given.consumer_group, queue)) == given.client_id:
                del self.locks[given.consumer_group, queue]
        return SUCCESS, {}, b""


def _now_ms() -> int:
    return int(time.time() * 1000)
