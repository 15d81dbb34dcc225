"""Rows become chunks in their order, as full as they may be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.client.cluster_sink import chunks
from rmq_store.client.cluster_sink.chunks import ChunkMaker, Rows, Shared, TargetQueue

TARGETS = [TargetQueue("Orders", None), TargetQueue("Bills", None)]
PLAIN, PACKED, ALONE = Shared(0, 0, False), Shared(1, 0, False), Shared(0, 0, True)


def rows_of(texts: list[bytes], target: TargetQueue, shared: Shared, first_row: int) -> Rows:
    sizes = np.array([len(text) for text in texts], np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    keys = np.repeat(np.arange(first_row, first_row + len(texts)).astype(np.uint8), 16)
    return Rows(target, shared, sizes, data, keys, np.arange(len(texts), dtype=np.uint64), first_row)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(TARGETS),
            st.sampled_from([PLAIN, PACKED, ALONE]),
            st.lists(st.integers(1, 40).map(lambda size: b"x" * size), min_size=1, max_size=12),
        ),
        max_size=12,
    )
)
def test_rows_keep_their_order_and_chunks_their_limits(parts: list[tuple[TargetQueue, Shared, list[bytes]]]) -> None:
    maker, made = ChunkMaker(), []
    given_rows: dict[TargetQueue, list[tuple[Shared, int, int]]] = {target: [] for target in TARGETS}
    number = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunks, "CHUNK_BYTES", 60)
        patched.setattr(chunks, "CHUNK_ROWS_MAX", 5)
        for target, shared, texts in parts:
            given_rows[target] += [(shared, number + place, len(text)) for place, text in enumerate(texts)]
            made += list(maker.add(rows_of(texts, target, shared, number)))
            number += len(texts)
        made += list(maker.flush())
    for chunk in made:
        assert chunk.row_count <= (1 if chunk.shared.single else 5)
        assert len(chunk.body) <= 60 or chunk.row_count == 1
        assert chunk.first_row % 256 == chunk.keys[0]
    for target in TARGETS:
        found = [
            (chunk.shared, int(key), int(size))
            for chunk in made
            if chunk.target == target
            for key, size in zip(chunk.keys[::16], np.diff(chunk.ends, prepend=0), strict=True)
        ]
        assert found == [(shared, row % 256, size) for shared, row, size in given_rows[target]]


def test_a_large_row_goes_alone() -> None:
    maker = ChunkMaker()
    big = b"x" * (chunks.CHUNK_BYTES + 1)
    made = [*maker.add(rows_of([b"a", big, b"b"], TARGETS[0], PLAIN, 0)), *maker.flush()]
    assert [len(chunk.body) for chunk in made] == [1, len(big), 1]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PENDING_BYTES_MAX", 100)
    maker = ChunkMaker()
    assert not list(maker.add(rows_of([b"x" * 80], TARGETS[0], PLAIN, 0)))
    assert [len(chunk.body) for chunk in maker.add(rows_of([b"y" * 30], TARGETS[1], PLAIN, 1))] == [80, 30]
