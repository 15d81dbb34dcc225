"""37: ends of transactions; and 39, the question to a producer that has not ended one (EndTransactionProcessor.java,
AbstractTransactionalMessageCheckListener.java).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.broker.transactions.half_records import shown_frame
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.protocol.wire.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request

_ONEWAY: Final = 2
_COMMIT, _ROLLBACK = int(SysFlag.TRANSACTION_COMMIT), int(SysFlag.TRANSACTION_ROLLBACK)


class TransactionProcessor:
    """Ends transactions of clients. `on_stored(topic, queue id)` is told of a committed message.

    It is also the producers that `TransactionChecks` asks: those that are connected, over remoting or gRPC. Safe for
    threads.
    """

    def __init__(self, served: ServedStore, members: Members, on_stored: Callable[[str, int], None]) -> None:
        self._served = served
        self._members = members
        self._on_stored = on_stored
        self._random = random.Random()

    def end(self, request: Request) -> RemotingCommand:
        """37. An end that was stored before, and one that says nothing, are answered with success."""
        header = request.header(EndTransactionRequestHeader)
        if header.commit_or_rollback in (_COMMIT, _ROLLBACK):
            self.finish(
                header.producer_group,
                header.tran_state_table_offset,
                header.commit_log_offset,
                commit=header.commit_or_rollback == _COMMIT,
                from_check=bool(header.from_transaction_check),
            )
        return request.answer()

    def finish(
        self,
        group: str,
        queue_offset: int,
        commit_log_offset: int,
        *,
        commit: bool,
        from_check: bool,
        topic: str | None = None,
        unique_key: str | None = None,
    ) -> None:
        """Commit or roll back; see `Transactions.end`, which says what it raises."""
        half = self._served.store.transactions.end(
            group, queue_offset, commit_log_offset, commit=commit, from_check=from_check, topic=topic,
            unique_key=unique_key,
        )  # fmt: skip
        if half is not None and commit:
            self._on_stored(half.topic, half.queue_id)

    def is_there(self, group: str) -> bool:
        """See `Producers.is_there`."""
        return bool(self._members.producer_peers(group))

    def ask(self, half: PendingHalf, message: StoredMessage) -> bool:
        """See `Producers.ask`: one of the group's connections, any of them (getAvailableChannel)."""
        peers = self._members.producer_peers(half.group, half.topic)
        if not peers:
            return False
        question = request_of(
            CheckTransactionStateRequestHeader(
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=half.commit_log_offset,
                msg_id=half.transaction_id,
                transaction_id=half.transaction_id,
                offset_msg_id=message.offset_msg_id,
                topic=message.topic,
                bname=self._served.name,
            )
        )
        question.flag = _ONEWAY
        question.body = shown_frame(half, message)
        self._random.choice(peers).send(question)
        return True
