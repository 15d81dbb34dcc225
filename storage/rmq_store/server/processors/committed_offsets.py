"""14 and 15: the offsets of groups (ConsumerManageProcessor.java).

Commits that nobody waits for (one-way, and with a pull) are gathered and written together, as a broker writes them
every few seconds. All others are in the store when they are answered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from rmq_store.errors import StoreError
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


class CommittedOffsets:
    """Committed offsets of one store. Safe for threads."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served
        self._turn = threading.Lock()
        self._waiting: dict[str, dict[tuple[str, int], int]] = {}

    def query(self, request: Request) -> RemotingCommand:
        """14."""
        header = request.header(QueryConsumerOffsetRequestHeader)
        self.write()
        queue = MessageQueue(header.topic, self._served.name, header.queue_id)
        offset = self._served.broker.query_consumer_offset(header.consumer_group, queue)
        if offset is None:
            remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            raise refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.answer(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def update(self, request: Request) -> RemotingCommand:
        """15."""
        header = request.header(UpdateConsumerOffsetRequestHeader)
        self._served.group(header.consumer_group)
        offsets = {(header.topic, header.queue_id): header.commit_offset}
        if request.command.is_oneway:
            self.commit_later(header.consumer_group, offsets)
        else:
            self.write()
            self._served.store.commit_offsets(header.consumer_group, offsets)
        return request.answer()

    def commit_later(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Remember offsets for the next `write`."""
        with self._turn:
            self._waiting.setdefault(group, {}).update(offsets)

    def write(self) -> None:
        """Commit what waits."""
        with self._turn:
            waiting, self._waiting = self._waiting, {}
        for group, offsets in waiting.items():
            try:
                self._served.store.commit_offsets(group, offsets)
            except StoreError as error:
                _log.warning("offsets of group %s are not committed: %s", group, error)
