"""12 and 33: messages by key and by their place in the log (QueryMessageProcessor.java)."""

from __future__ import annotations

from typing import Final

from rmq_store.errors import UsageError
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

# BrokerConfig.java: defaultQueryMaxNum, for unique keys.
_UNIQUE_KEY_MAX: Final = 32
# Half a frame.
ANSWER_BYTES_MAX: Final = 8 << 20


class QueryProcessor:
    """Finds messages of one store."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served

    def query(self, request: Request) -> RemotingCommand:
        """12: frames, oldest first; of those that are too many for ANSWER_BYTES_MAX the newest, and one at least."""
        header = request.header(QueryMessageRequestHeader)
        query, window = self._served.store.query, {"begin_ms": header.begin_timestamp, "end_ms": header.end_timestamp}
        if header.max_num < 1:
            raise refusal(ResponseCode.QUERY_NOT_FOUND, "can not find message: maxNum is below 1")
        if header.is_unique_key:
            most = min(header.max_num, _UNIQUE_KEY_MAX)
            found = query.by_unique_key(header.topic, header.key, max_num=most, **window)
        else:
            found = query.by_key(header.topic, header.key, max_num=header.max_num, **window)
        if not found:
            raise refusal(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        newest, room = found[0], ANSWER_BYTES_MAX
        frames: list[bytes] = []
        for one in found:
            frame = self._served.store.frame_at(one.commit_log_offset)
            room -= len(frame)
            if frames and room < 0:
                break
            frames.append(frame)
        index = QueryMessageResponseHeader(
            index_last_update_timestamp=newest.store_timestamp_ms,
            index_last_update_phyoffset=newest.commit_log_offset,
        )
        return request.answer(header=index, body=b"".join(reversed(frames)))

    def view(self, request: Request) -> RemotingCommand:
        """33: one frame."""
        offset = request.header(ViewMessageRequestHeader).offset
        try:
            return request.answer(body=self._served.store.frame_at(offset))
        except UsageError as error:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}") from error
