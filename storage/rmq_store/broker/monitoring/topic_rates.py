"""How many messages of a topic were stored lately, from the store times of its queues (BrokerStatsManager.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def stored_lately(store: Store, topic: str, period_ms: int) -> int:
    """The messages that a topic got in the last `period_ms` ms from all processes, and that are still there. Raises as
    `Store.offset_by_time`.
    """
    since_ms = store.clock() - period_ms
    ranges = store.queue_ranges(topic).items()
    return sum(span.max_offset - store.offset_by_time(topic, queue_id, since_ms) for queue_id, span in ranges)
