"""One process at a time moves the dead letters of a group that a broker holds: a lock of the ledger's queue (41).

The lock is one of a group of its own (`remoting/cluster/locks.py`). A broker forgets that of a dead process after 60 s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rmq_store.errors import LeaseHeldError, StoreError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster import locks
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.locks import LOCK_LASTS_S, REDRIVE_SUFFIX

_LOOK_EVERY_S: Final = 1.0


class RedriveLock:
    """The right to move letters of a group that one broker holds; for a `with` block, which gets its renewal.

    Raises:
        LeaseHeldError: another process has it, for longer than a dead one could.
    """

    def __init__(
        self, cluster: Cluster, group: str, queue: MessageQueue, client_id: str, sleep: Callable[[float], None]
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._queue = queue
        self._client_id = client_id
        self._sleep = sleep

    def __enter__(self) -> Callable[[], None]:
        until_ms = self._cluster.timer() + (LOCK_LASTS_S + _LOOK_EVERY_S) * 1000
        while not self._is_granted():
            if self._cluster.timer() >= until_ms:
                self._refuse()
            self._sleep(_LOOK_EVERY_S)
        return self._renew

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(StoreError):  # a broker that does not answer forgets it by itself
            locks.unlock(self._cluster, self._group + REDRIVE_SUFFIX, self._client_id, [self._queue])

    def _is_granted(self) -> bool:
        return bool(locks.lock(self._cluster, self._group + REDRIVE_SUFFIX, self._client_id, [self._queue]))

    def _renew(self) -> None:
        if not self._is_granted():
            self._refuse()

    def _refuse(self) -> None:
        raise LeaseHeldError(
            f"another process moves dead letters of group {self._group!r} at broker {self._queue.broker_name!r}: wait "
            "until it is done",
            "unknown",
        )


@contextlib.contextmanager
def no_lock() -> Iterator[Callable[[], None]]:
    """The same for those who move nothing."""
    yield lambda: None
