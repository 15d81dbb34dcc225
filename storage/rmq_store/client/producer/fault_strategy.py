"""Brokers that a producer avoids after slow or failed sends (MQFaultStrategy.java, LatencyFaultToleranceImpl.java).

The first row from the right whose latency was reached counts; a failed send counts as a fixed latency instead:

    4.x  latency ms        >= 50   100    550   1000    2000    3000   15000     failed: 30000
         not available ms      0     0  30000  60000  120000  180000  600000             600000
    5.x  latency ms        >= 50   100    550   1800    3000    5000   15000     failed: 10000
         not available ms      0     0   2000   5000    6000   10000   30000              10000

Choice of a queue while the strategy is on:

    4.x  the next queue of an available broker; else of one of the better half of those known; else the next queue
    5.x  the next queue of an available broker that is not the last one; else of another one; else the next queue

Off, only the last broker is avoided. The 5.x detector, which knocks at brokers on its own, is off by default there and
does not exist here, so every broker counts as reachable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Literal

from rmq_store.client.backend.queue_selection import ThreadLocalIndex, next_queue, select_one_message_queue
from rmq_store.files.locks.guard import Guard
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue

LatencyPreset = Literal["4.x", "5.x"]


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """The rows of the table above; a failed send counts as `isolation_latency_ms`."""

    latency_max_ms: tuple[int, ...]
    not_available_ms: tuple[int, ...]
    isolation_latency_ms: int

    def not_available_duration_ms(self, latency_ms: float) -> int:
        """How long a broker is avoided after a send of this latency."""
        for limit, duration in zip(reversed(self.latency_max_ms), reversed(self.not_available_ms), strict=True):
            if latency_ms >= limit:
                return duration
        return 0


LATENCY_TABLES: Final[dict[LatencyPreset, LatencyTable]] = {
    "4.x": LatencyTable((50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30000, 60000, 120000, 180000, 600000), 30000),
    "5.x": LatencyTable((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10000, 30000), 10000),
}


@dataclass(slots=True)
class _FaultItem:
    latency_ms: float
    available_from_ms: float


class MQFaultStrategy:
    """Records the latency of brokers, and chooses queues by it. Safe for threads. `timer` gives ms."""

    def __init__(
        self,
        preset: LatencyPreset,
        *,
        send_latency_fault_enable: bool,
        timer: Callable[[], float],
        random_start: Callable[[], int] = lambda: random.getrandbits(31),
    ) -> None:
        self.preset = preset
        self.send_latency_fault_enable = send_latency_fault_enable
        self._table = LATENCY_TABLES[preset]
        self._timer = timer
        self._items: dict[str, _FaultItem] = {}
        self._worst = ThreadLocalIndex(random_start)
        self._guard = Guard()

    def update_fault_item(self, broker_name: str, latency_ms: float, *, isolation: bool) -> None:
        """Record the latency of a try. `isolation`: the try failed in a way that counts against the broker."""
        if not self.send_latency_fault_enable:
            return
        counted_ms = self._table.isolation_latency_ms if isolation else latency_ms
        duration_ms = self._table.not_available_duration_ms(counted_ms)
        now_ms = self._timer()
        with self._guard.entered():
            item = self._items.setdefault(broker_name, _FaultItem(latency_ms, now_ms))
            item.latency_ms = latency_ms
            if self.preset == "4.x":
                item.available_from_ms = now_ms + duration_ms
            elif duration_ms > 0:
                # A later success does not shorten an isolation.
                item.available_from_ms = max(item.available_from_ms, now_ms + duration_ms)

    def is_available(self, broker_name: str) -> bool:
        """False while the broker must be avoided."""
        item = self._items.get(broker_name)
        return item is None or self._timer() >= item.available_from_ms

    def select_one_message_queue(
        self, queues: Sequence[MessageQueue], index: ThreadLocalIndex, last_broker_name: str | None = None
    ) -> MessageQueue:
        """The queue for the next try. `last_broker_name`: the broker of the previous try, None for the first try."""
        if self.send_latency_fault_enable:
            chosen = (
                self._select_4x(queues, index)
                if self.preset == "4.x"
                else self._select_5x(queues, index, last_broker_name)
            )
            return chosen or next_queue(queues, index)
        return next_queue(queues, index, last_broker_name)

    def _select_5x(
        self, queues: Sequence[MessageQueue], index: ThreadLocalIndex, last_broker_name: str | None
    ) -> MessageQueue | None:
        def is_other(queue: MessageQueue) -> bool:
            return queue.broker_name != last_broker_name

        return select_one_message_queue(
            queues, index, lambda queue: is_other(queue) and self.is_available(queue.broker_name)
        ) or select_one_message_queue(queues, index, is_other)

    def _select_4x(self, queues: Sequence[MessageQueue], index: ThreadLocalIndex) -> MessageQueue | None:
        available = select_one_message_queue(queues, index, lambda queue: self.is_available(queue.broker_name))
        if available is not None:
            return available
        broker_name = self._pick_one_at_least()
        of_broker = [queue for queue in queues if queue.broker_name == broker_name]
        if of_broker:
            return of_broker[index.increment_and_get() % len(of_broker)]
        if broker_name is not None:
            with self._guard.entered():
                self._items.pop(broker_name, None)
        return None

    def _pick_one_at_least(self) -> str | None:
        """A broker of the better half, in turn. Better means: available, then faster, then available sooner."""
        now_ms = self._timer()
        with self._guard.entered():
            names = sorted(
                self._items,
                key=lambda name: (
                    now_ms < self._items[name].available_from_ms,
                    self._items[name].latency_ms,
                    self._items[name].available_from_ms,
                ),
            )
        half = max(1, len(names) // 2)
        return names[self._worst.increment_and_get() % half] if names else None
