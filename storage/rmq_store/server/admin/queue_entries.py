"""321: entries of a queue's files, and which of them a group subscribes to (AdminBrokerProcessor#queryConsumeQueue)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.protocol.bodies.groups import SubscriptionData
from rmq_store.protocol.bodies.topics import ConsumeQueueData, QueryConsumeQueueResponseBody
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import QueryConsumeQueueRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.members import Members, subscription_of
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

ENTRIES_MAX: Final = 10_000
"""Entries of one answer."""


class QueueEntries:
    """The entries of one store's queues."""

    def __init__(self, served: ServedStore, members: Members) -> None:
        self._served = served
        self._members = members

    def query(self, request: Request) -> RemotingCommand:
        """321. With a group whose members are connected each entry says whether they subscribe to its message.

        Raises:
            MQBrokerError: 17, no such topic; 1, no such queue.
        """
        header = request.header(QueryConsumeQueueRequestHeader)
        topic, queue_id = self._served.topic(header.topic), header.queue_id
        if not 0 <= queue_id < topic.read_queue_nums:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{header.topic} is not exist!")
        store = self._served.store
        low, high = store.queue_range(header.topic, queue_id)
        start = min(max(header.index, low), high)
        end = min(start + min(max(header.count, 0), ENTRIES_MAX), high)
        group = header.consumer_group or None
        data = self._members.subscription(group, header.topic) if group is not None else None
        takes = self._subscribed(data)
        body = QueryConsumeQueueResponseBody(
            subscription_data=data.to_json() if data is not None else None,
            filter_data=f"{group}@{header.topic} is not online!" if group is not None and data is None else None,
            queue_data=tuple(
                ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=code, eval=takes(offset, code))
                for offset, size, code in store.queue_entries(header.topic, queue_id, start, end).tolist()
            ),
            max_queue_index=high,
            min_queue_index=low,
        )
        return request.answer(body=body.encode())

    def _subscribed(self, data: SubscriptionData | None) -> Callable[[int, int], bool]:
        """Say of a log offset and a tag's hash whether the subscription takes the message."""
        if data is None:
            return lambda offset, code: False
        wanted = subscription_of(data)
        if wanted.selector.expression_type == "SQL92":
            return lambda offset, code: wanted.matches(self._served.store.message_at(offset).properties)
        tags = TagFilter.parse(wanted.tags)
        return lambda offset, code: tags is None or bool(tags.may_match(np.array([code]))[0])
