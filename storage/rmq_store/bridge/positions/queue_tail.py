"""The position of a mirror as the tail of its target queue shows it, compared with the unit that holds it.

Both agree as long as this engine recovers the store. A RocketMQ broker that opens it after a power cut keeps half a
unit, and its cleaner or a repair may remove one: then there are rows after the position, or no position at all. Each
row names the offset from which it came, and these ascend along a queue, so the last row tells where to continue.
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np

from rmq_store.bridge.records.origin import sources_of_messages
from rmq_store.bridge.records.route import Route
from rmq_store.broker.store.store import Store
from rmq_store.errors import OffsetOutOfRangeError

_LOOK_BACK_ROWS: Final = 4096
"""Others may write to the queue, too; so far back a mirror looks for its own rows."""

_CHUNK_ROWS: Final = 64
_COLUMNS: Final = ("topic", "body", "bornTimestamp", "properties")


def last_source_offset(store: Store, route: Route) -> int | None:
    """The source offset of the last message that was mirrored along `route`; None if there is none near the end."""
    while True:
        with contextlib.suppress(OffsetOutOfRangeError):  # retention was faster
            return _last_source_offset(store, route)


def _last_source_offset(store: Store, route: Route) -> int | None:
    first, end = store.queue_range(route.target_topic, route.target_partition)
    stop = max(first, end - _LOOK_BACK_ROWS)
    # The last row most often is one: a mirror that starts reads one row of each queue.
    size = 1
    while end > stop:
        start = max(stop, end - size)
        offsets = _offsets(store, route, start, end)
        if len(offsets):
            return int(offsets[-1])
        end, size = start, _CHUNK_ROWS
    return None


def first_source_offset(store: Store, route: Route) -> int | None:
    """The source offset of the first one, if it is near the beginning of the queue."""
    while True:
        start, end = store.queue_range(route.target_topic, route.target_partition)
        with contextlib.suppress(OffsetOutOfRangeError):  # retention was faster
            offsets = _offsets(store, route, start, min(end, start + _CHUNK_ROWS))
            return int(offsets[0]) if len(offsets) else None


def _offsets(store: Store, route: Route, start: int, end: int) -> np.ndarray:
    """Source offsets of the rows of this route in [start, end)."""
    found = [np.empty(0, np.int64)]
    for rows in store.read(route.target_topic, route.target_partition, start, end, columns=_COLUMNS, two_threads=False):
        sources = sources_of_messages(rows)
        is_ours = sources.is_mirrored & (sources.partitions == route.source_partition)
        for names, name in (
            (sources.clusters, route.source_cluster),
            (sources.topics, route.source_topic),
            (sources.topic_ids, route.source_topic_id),
        ):
            is_ours &= np.array([text == name for text in names.to_pylist()], np.bool_)
        found.append(sources.offsets[is_ours])
    return np.concatenate(found)
