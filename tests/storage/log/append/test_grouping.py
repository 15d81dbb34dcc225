"""Rows are grouped by their queue, whatever their queue ids are."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.log.append.grouping import Groups


def _rows(topics: list[str], queue_ids: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {"topic": topics, "queue_id": pa.array(queue_ids, pa.int32()), "dispatchable": [True] * len(topics)}
    )


def test_queue_ids_far_apart_are_grouped_as_small_ones_are_and_take_no_table_of_their_size() -> None:
    far = 1 << 30

    def grouped_with(step: int) -> Groups:
        return Groups([[_rows(["B", "A", "B", "A"], [step, 0, 0, 0])], [_rows(["A", "B"], [0, step])]])

    groups = {1: grouped_with(1)}  # first, for what is imported on the first call
    tracemalloc.start()
    groups[far] = grouped_with(far)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert groups[far].keys == [("B", 0), ("B", far), ("A", 0)]
    for step, grouped in groups.items():
        grouped.start_at([10, 20, 30])
        assert grouped.ranges() == [(("B", 0), 10, 1), (("B", step), 20, 2), (("A", 0), 30, 3)]
        first, second = grouped.number(0), grouped.number(1)
        assert grouped.keys == [("B", 0), ("B", step), ("A", 0)]
        np.testing.assert_array_equal(first.queue_offsets, [20, 30, 10, 31])
        np.testing.assert_array_equal(second.queue_offsets, [32, 21])


@pytest.mark.parametrize("topics", [["A", "A", "A"], ["A", "B", "A"]])
def test_rows_without_a_queue_entry_are_no_members(topics: list[str]) -> None:
    rows = _rows(topics, [1, 0, 1])
    rows = rows.set_column(2, "dispatchable", pa.array([False, True, True]))
    groups = Groups([[rows]])
    groups.start_at([5] * len(groups.keys))
    numbered = groups.number(0)
    assert sorted(numbered.rows.tolist()) == [1, 2]
    np.testing.assert_array_equal(numbered.queue_offsets, [0, 5, 5])
