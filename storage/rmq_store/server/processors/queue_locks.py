"""41 and 42: locks of queues for ordered consumption (RebalanceLockManager.java).

A lock of the directory ends with its holder's process. All clients of the network are one process there, so their locks
have a time besides: a client that does not ask again for EXPIRES_S loses its lock. A connection that breaks takes no
lock away, because its client may still consume.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from rmq_store import real_time
from rmq_store.protocol.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

_log: Final = logging.getLogger(__name__)

EXPIRES_S: Final = 60.0
"""REBALANCE_LOCK_MAX_LIVE_TIME. Clients ask again every 20 s."""
QUEUES_MAX: Final = 1000
"""In one request: each lock is a file."""

_Holder: TypeAlias = tuple[str, str]


class QueueLocks:
    """The locks of network clients, by group and client id. Safe for threads."""

    def __init__(self, served: ServedStore, clock: Callable[[], float] = real_time.monotonic) -> None:
        self._served = served
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s: dict[_Holder, dict[MessageQueue, float]] = {}

    def lock(self, request: Request) -> RemotingCommand:
        """41. MQBrokerError 1: too many queues."""
        asked = LockBatchRequestBody.decode(request.command.body)
        if len(asked.mq_set) > QUEUES_MAX:
            remark = f"{len(asked.mq_set)} queues to lock in one request; at most {QUEUES_MAX} are taken"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)
        holder = asked.consumer_group, asked.client_id
        with self._lock:
            self._end_expired()
            held = self._served.broker.lock_queues(*holder, asked.mq_set)
            mine = tuple(queue for queue in asked.mq_set if queue in held)
            if mine:
                self._asked_s.setdefault(holder, {}).update(dict.fromkeys(mine, self._clock()))
        return request.answer(body=LockBatchResponseBody(lock_ok_mq_set=mine).encode())

    def unlock(self, request: Request) -> RemotingCommand:
        """42."""
        asked = LockBatchRequestBody.decode(request.command.body)
        with self._lock:
            self._unlock((asked.consumer_group, asked.client_id), list(asked.mq_set))
        return request.answer()

    def release(self, group: str, client_id: str) -> None:
        """End all locks of a client that has left its group."""
        with self._lock:
            self._unlock((group, client_id), list(self._asked_s.get((group, client_id), ())))

    def end_expired(self) -> None:
        """End the locks whose clients have not asked for them again in time."""
        with self._lock:
            self._end_expired()

    def _end_expired(self) -> None:
        oldest_s = self._clock() - EXPIRES_S
        for holder, queues in list(self._asked_s.items()):
            if late := [queue for queue, asked_s in queues.items() if asked_s < oldest_s]:
                _log.info("client %s of group %s loses the locks of %d queues", holder[1], holder[0], len(late))
                self._unlock(holder, late)

    def _unlock(self, holder: _Holder, queues: list[MessageQueue]) -> None:
        self._served.broker.unlock_queues(*holder, queues)
        known = self._asked_s.get(holder, {})
        for queue in queues:
            known.pop(queue, None)
        if not known:
            self._asked_s.pop(holder, None)
