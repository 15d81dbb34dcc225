"""EndTransaction: commits and roll-backs of half messages (EndTransactionActivity.java).

A transaction id is the place of its half message, so that a server that was started anew knows it: 32 hexadecimal
digits, first the queue offset, then the offset in the log. Nobody ends a transaction by its id alone: topic and message
id have to be those of the half message, and the right to send to the topic is needed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from rmq_store.errors import ResponseError
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import Code, TransactionResolution, TransactionSource
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.statuses import Refusal, status, topic_of
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.processors.transactions import TransactionProcessor

_ID: Final = re.compile("([0-7][0-9A-F]{15})([0-7][0-9A-F]{15})")
_ENDS: Final = (TransactionResolution.COMMIT, TransactionResolution.ROLLBACK)


def transaction_id(queue_offset: int, commit_log_offset: int) -> str:
    """The id of the transaction of the half message at this place."""
    return f"{queue_offset:016X}{commit_log_offset:016X}"


class EndTransactions:
    """Ends transactions of clients by the rules of `TransactionProcessor`."""

    def __init__(self, processor: TransactionProcessor, workers: Workers) -> None:
        self._processor = processor
        self._workers = workers

    async def end(self, request: Any, caller: Caller) -> Any:
        """EndTransaction. An end that was stored before, and one that says nothing, are answered with OK. As durable as
        a send.

        Raises:
            Refusal: INVALID_TRANSACTION_ID, the half message with this topic and message id is not there.
            ResponseError: 604, the end comes too late.
        """
        topic, place = topic_of(request.topic), _ID.fullmatch(request.transaction_id)
        if place is None:
            raise Refusal(Code.INVALID_TRANSACTION_ID, f"{request.transaction_id[:64]!r} is no transaction id")
        if request.resolution in _ENDS:
            await self._workers.run(lambda: self._end(request, topic, int(place[1], 16), int(place[2], 16)))
        return new("EndTransactionResponse", status=status(Code.OK))

    def _end(self, request: Any, topic: str, queue_offset: int, commit_log_offset: int) -> None:
        try:
            # The producer group of clients over gRPC is named as the topic.
            self._processor.finish(
                topic, queue_offset, commit_log_offset,
                commit=request.resolution == TransactionResolution.COMMIT,
                from_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
                topic=topic, unique_key=request.message_id,
            )  # fmt: skip
        except ResponseError as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                raise
            text = f"no half message of topic {topic} has this transaction id and message id: {error.remark}"
            raise Refusal(Code.INVALID_TRANSACTION_ID, text) from error
