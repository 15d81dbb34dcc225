"""29, 30, 31, 32 and 202: where queues begin and end, and times (AdminBrokerProcessor.java)."""

from __future__ import annotations

from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.protocol.bodies.topics import TopicOffset, TopicStatsTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.admin_headers import GetTopicStatsInfoRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request

_NO_TIME = -1


class QueueEndsProcessor:
    """Ranges of queues of one store."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served

    def search(self, request: Request) -> RemotingCommand:
        """29."""
        header = request.header(SearchOffsetRequestHeader)
        boundary = "upper" if (header.boundary_type or "").upper() == "UPPER" else "lower"
        offset = self._served.store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return request.answer(header=SearchOffsetResponseHeader(offset=offset))

    def maximum(self, request: Request) -> RemotingCommand:
        """30."""
        header = request.header(GetMaxOffsetRequestHeader)
        offset = self._served.store.queue_range(header.topic, header.queue_id).max_offset
        return request.answer(header=GetMaxOffsetResponseHeader(offset=offset))

    def minimum(self, request: Request) -> RemotingCommand:
        """31."""
        header = request.header(GetMinOffsetRequestHeader)
        offset = self._served.store.queue_range(header.topic, header.queue_id).min_offset
        return request.answer(header=GetMinOffsetResponseHeader(offset=offset))

    def earliest_time(self, request: Request) -> RemotingCommand:
        """32."""
        header = request.header(GetEarliestMsgStoretimeRequestHeader)
        first, _ = self._served.store.queue_range(header.topic, header.queue_id)
        time_ms = self._store_time(header.topic, header.queue_id, first)
        return request.answer(header=GetEarliestMsgStoretimeResponseHeader(timestamp=time_ms))

    def topic_stats(self, request: Request) -> RemotingCommand:
        """202: the queues that are read or written (AdminBrokerProcessor#getTopicStatsInfo)."""
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        settings = self._served.topic(topic)
        table = {}
        for queue_id in range(max(settings.read_queue_nums, settings.write_queue_nums)):
            first, last = self._served.store.queue_range(topic, queue_id)
            time_ms = self._store_time(topic, queue_id, last - 1) if last > first else 0
            offsets = TopicOffset(min_offset=first, max_offset=last, last_update_timestamp=max(time_ms, 0))
            table[MessageQueue(topic, self._served.name, queue_id)] = offsets
        return request.answer(body=TopicStatsTable(offset_table=table).encode())

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        try:
            return self._served.store.store_timestamp(topic, queue_id, offset)
        except OffsetOutOfRangeError:
            return _NO_TIME
