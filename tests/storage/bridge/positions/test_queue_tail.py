"""The position that the tail of a target queue shows, while retention deletes the rows that are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_store.bridge.positions.queue_tail import first_source_offset, last_source_offset
from rmq_store.bridge.records.route import Route
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.protocol.results import QueueRange


class DeletingStore:
    """The first look at the range is the last one before retention deletes the queue up to its last row."""

    def __init__(self) -> None:
        self.ranges = iter([QueueRange(0, 5)])
        self.asked: list[tuple[int, int]] = []

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        return next(self.ranges, QueueRange(4, 5))

    def read(self, topic: str, queue_id: int, start: int, end: int, **_: Any) -> Iterator[Any]:
        self.asked.append((start, end))
        if start < 4:
            raise OffsetOutOfRangeError("retention was faster", start, 4, 5)
        return iter(())


@pytest.mark.parametrize(
    ("look", "asked"),
    [(first_source_offset, [(0, 5), (4, 5)]), (last_source_offset, [(4, 5), (0, 4), (4, 5)])],
)
def test_rows_that_retention_takes_are_looked_for_again(
    look: Callable[[Any, Route], int | None], asked: list[tuple[int, int]]
) -> None:
    store = DeletingStore()
    assert look(store, Route("kafka", "T", 0, "rmq", "T", 0)) is None
    assert store.asked == asked
