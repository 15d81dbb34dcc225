"""14 and 15: the offsets of groups (ConsumerManageProcessor.java).

Commits that nobody waits for (one-way, and with a pull) are gathered and written together, as a broker writes them
every few seconds. All others are in the store when they are answered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from rmq_store.errors import StoreError, UsageError
from rmq_store.format.text.names import is_system_group, validate_topic
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

_log: Final = logging.getLogger(__name__)

_Queue: TypeAlias = tuple[str, int]


class CommittedOffsets:
    """Committed offsets of one store. `commit(group, offsets)`: where they go; by default into the store. Safe for
    threads.
    """

    def __init__(self, served: ServedStore, commit: Callable[[str, Mapping[_Queue, int]], None] | None = None) -> None:
        self._served = served
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[_Queue, int]] = {}
        # Held from taking what waits until it is in the store: a newer value does not overtake it, and a query does not
        # miss it.
        self._writing = threading.Lock()

    def query(self, request: Request) -> RemotingCommand:
        """14. With `setZeroIfNotFound=false` only what was committed counts, and a group that has not begun gets no 0
        (ConsumerManageProcessor#queryConsumerOffset). MQBrokerError 22: there is no offset.
        """
        header = request.header(QueryConsumerOffsetRequestHeader)
        self.write()
        offset: int | None
        if header.set_zero_if_not_found is False:
            place = header.topic, header.queue_id
            stored = self._served.store.committed_offsets(header.consumer_group).get(place, -1)
            offset = stored if stored >= 0 else None
        else:
            queue = MessageQueue(header.topic, self._served.name, header.queue_id)
            offset = self._served.broker.query_consumer_offset(header.consumer_group, queue)
        if offset is None:
            remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            raise refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.answer(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def update(self, request: Request) -> RemotingCommand:
        """15. MQBrokerError: 16, the group is the store's own; 26, there is no such group; 17, no such topic: a member
        goes on committing for a while when its topic was deleted, and whoever made the topic anew would begin there
        (ConsumerManageProcessor#updateConsumerOffset).
        """
        header = request.header(UpdateConsumerOffsetRequestHeader)
        refuse_group_of_store(header.consumer_group)
        self._served.group(header.consumer_group)
        self._served.topic(header.topic)
        queue = header.topic, header.queue_id
        if request.command.is_oneway:
            self.commit_later(header.consumer_group, queue, header.commit_offset)
            return request.answer()
        with self._writing:
            self._write()
            self._store(header.consumer_group, {queue: header.commit_offset})
        return request.answer()

    def commit_later(self, group: str, queue: _Queue, offset: int) -> None:
        """Remember an offset for the next `write`.

        Raises:
            MQBrokerError: 16, the group is the store's own.
            UsageError: no queue or no offset can be that.
        """
        refuse_group_of_store(group)
        validate_topic(queue[0])
        if not 0 <= queue[1] < 1 << 31 or not 0 <= offset < 1 << 63:
            raise UsageError(f"no offset of a queue: {queue[0]}, queue {queue[1]}, offset {offset}")
        with self._lock:
            self._waiting.setdefault(group, {})[queue] = offset

    def write(self) -> None:
        """Commit what waits. Offsets that the store refuses for a while wait for the next time."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for group, offsets in waiting.items():
            try:
                self._store(group, offsets)
            except (StoreError, OSError) as error:
                again = isinstance(error, OSError) or error.retryable
                _log.warning("offsets of group %s are %s committed: %s", group, "not yet" if again else "not", error)
                if again:
                    self._put_back(group, offsets)

    def _store(self, group: str, offsets: Mapping[_Queue, int]) -> None:
        if self._commit is not None:
            self._commit(group, offsets)
        else:
            self._served.store.commit_offsets(group, offsets)

    def _put_back(self, group: str, offsets: dict[_Queue, int]) -> None:
        with self._lock:
            self._waiting[group] = offsets | self._waiting.get(group, {})


def refuse_group_of_store(group: str) -> None:
    """MQBrokerError 16: the group is the store's own. Its offsets say which half messages are done, for example, and a
    wrong one would hide others.
    """
    if is_system_group(group):
        raise refusal(ResponseCode.NO_PERMISSION, f"the offsets of group {group} belong to the broker")
