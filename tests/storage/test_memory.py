"""Memory of batches: given out again when nobody has any of it, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Store
from rmq_store.broker.read import queue_reader
from rmq_store.format.bytes import native
from rmq_store.memory import BatchMemory

MIB = 1 << 20


def place(piece: np.ndarray) -> int:
    return int(piece.__array_interface__["data"][0])


def test_an_area_has_pieces_of_the_sizes_that_were_asked_for_beside_each_other() -> None:
    pieces = BatchMemory().carve({"a": 3 * MIB + 1, "none": 0, "b": 64, "c": 5})
    assert [(name, piece.dtype, len(piece)) for name, piece in pieces.items()] == [
        ("a", np.uint8, 3 * MIB + 1), ("none", np.uint8, 0), ("b", np.uint8, 64), ("c", np.uint8, 5),
    ]  # fmt: skip
    assert all(place(piece) % 64 == 0 for piece in pieces.values())
    for number, piece in enumerate(pieces.values()):
        piece[:] = number
    assert [sorted(set(piece.tolist())) for piece in pieces.values()] == [[0], [], [2], [3]]


@pytest.mark.parametrize(
    "keep",
    [
        lambda piece: piece[5:6],
        lambda piece: piece[:8].view(np.int64),
        lambda piece: pa.array(piece[:8].view(np.int64)),
        lambda piece: pa.py_buffer(piece).slice(10, 1),
        lambda piece: memoryview(piece)[7:8],
        lambda piece: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(piece)], offset=2).slice(1).to_numpy(),
    ],
    ids=["slice", "view", "array", "buffer", "memoryview", "numpy of an array"],
)
def test_an_area_is_given_out_again_when_nothing_of_it_is_left(keep: Callable[[np.ndarray], Any]) -> None:
    memory = BatchMemory()
    pieces = memory.carve({"a": MIB, "b": MIB})
    first = place(pieces["a"])
    kept = [keep(pieces["b"])]
    del pieces
    meanwhile = memory.carve({"a": 2 * MIB})
    assert place(meanwhile["a"]) != first
    kept.clear()
    again = memory.carve({"a": 2 * MIB})
    assert place(again["a"]) == first


def test_the_smallest_kept_area_that_is_large_enough_is_taken() -> None:
    memory = BatchMemory()
    sizes = [3 * MIB, MIB, 8 * MIB]
    areas = {size: memory.carve({"a": size}) for size in sizes}
    places = {size: place(area["a"]) for size, area in areas.items()}
    areas.clear()
    assert place(memory.carve({"a": 2 * MIB})["a"]) == places[3 * MIB]
    assert place(memory.carve({"a": 9 * MIB})["a"]) not in places.values()
    assert sorted(map(len, memory._free)) == [MIB, 3 * MIB, 8 * MIB, 9 * MIB]


def test_the_four_largest_areas_are_kept_unless_they_are_too_large() -> None:
    memory = BatchMemory()
    areas = [memory.carve({"a": size * MIB}) for size in (2, 32, 5, 1, 3, 33)]
    areas.clear()
    assert sorted(map(len, memory._free)) == [2 * MIB, 3 * MIB, 5 * MIB, 32 * MIB]


def test_small_pieces_and_those_of_a_process_that_may_have_no_more_maps_come_from_the_heap() -> None:
    memory = BatchMemory()
    with patch("rmq_store.memory.mmap.mmap", side_effect=OSError(12, "Cannot allocate memory")) as maps:
        assert len(memory.carve({"a": 1000})["a"]) == 1000
        assert maps.call_count == 0
        assert len(memory.carve({"a": 2 * MIB})["a"]) == 2 * MIB
        assert maps.call_count == 1


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_batches_that_somebody_keeps_stay_what_they_are_while_others_are_read(tmp_path: Path) -> None:
    """By two threads, and every third batch is kept by nothing but a slice of one of its columns."""
    rows = 40_000
    bodies = [b"%08d" % number * 10 for number in range(rows)]
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic("T", queue_count=1)
        for _ in range(4):
            store.append(pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())}), "T")
        wanted = bodies * 4

        def read(found: list[bool]) -> None:
            kept: list[tuple[int, pa.Array]] = []
            at = 0
            for number, batch in enumerate(store.read("T", 0, 0, 4 * rows)):
                if number % 3 == 0:
                    kept.append((at + 100, batch.column("body").slice(100, 50)))
                found.append(batch.column("body").to_pylist() == wanted[at : at + batch.num_rows])
                at += batch.num_rows
            found += [part.to_pylist() == wanted[start : start + 50] for start, part in kept]
            found.append(at == 4 * rows)

        founds: list[list[bool]] = [[], []]
        threads = [threading.Thread(target=read, args=(found,)) for found in founds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [all(found) and len(found) > 6 for found in founds] == [True, True]
    assert 1 <= len(queue_reader._memory._free) <= 5
