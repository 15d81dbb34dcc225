"""Appends of any size go in pieces, and nothing shows where one ends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Store
from rmq_store.errors import StoreFailedError
from rmq_store.files import durable
from rmq_store.log import filling, grouping
from rmq_store.log.append import append, append_lock
from rmq_store.log.filling import filled, frame_bounds
from rmq_store.log.grouping import in_parts

if TYPE_CHECKING:
    from .conftest import CountDown, Lab


def encoded(store: Store, lab: Lab, counts: list[int], body_bytes: int = 60) -> list[pa.RecordBatch]:
    assert store._writer is not None
    encoder = store._writer._encoder(None)
    return [encoder.encode_all(lab.batch(count, body_bytes=body_bytes)).frames for count in counts]


@pytest.mark.parametrize(("piece_bytes", "part_rows"), [(1, 1), (700, 5), (100_000, 16)])
def test_an_append_in_small_pieces_gives_the_same_bytes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, part_rows: int
) -> None:
    """Of records, queues and index: segments, queue files and index files end within the append."""
    with lab.open() as store:
        store.append(lab.batch(3))
        batches = encoded(store, lab, [5, 0, 40, 1, 23])
        batches[2] = batches[2].slice(3, 31)
    saved, now_ms = lab.save(), lab.now_ms
    with lab.open() as store, append_lock(store._log):
        whole = append(store._log, batches)
    wanted = lab.files()
    assert len(wanted) > 6
    lab.restore(saved)
    lab.now_ms = now_ms
    monkeypatch.setattr(filling, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(grouping, "PART_ROWS", part_rows)
    with lab.open() as store, append_lock(store._log):
        pieced = append(store._log, batches)
    assert lab.files() == wanted
    assert lab.is_sound()
    assert (pieced.start, pieced.end) == (whole.start, whole.end)
    assert pieced.offsets.tolist() == whole.offsets.tolist()
    assert pieced.queue_offsets.tolist() == whole.queue_offsets.tolist()


def test_parts_hold_all_rows_in_their_order(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        batches = encoded(store, lab, [4, 0, 9, 2, 2])
    monkeypatch.setattr(grouping, "PART_ROWS", 4)
    parts = in_parts(batches)
    assert [[batch.num_rows for batch in part] for part in parts] == [[4], [4], [4], [1, 2], [2]]
    assert pa.Table.from_batches(batch for part in parts for batch in part).equals(pa.Table.from_batches(batches))


def test_a_piece_holds_as_many_frames_as_fit_and_at_least_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        (batch,) = encoded(store, lab, [12])
    sizes = np.diff(frame_bounds(batch)).tolist()
    numbers = np.arange(len(sizes), dtype=np.int64)
    for piece_bytes in (1, sizes[0], sizes[0] + sizes[1], 3 * sizes[0], 100_000):
        monkeypatch.setattr(filling, "PIECE_BYTES", piece_bytes)
        wanted: list[list[int]] = []
        for size in sizes:
            if not wanted or sum(wanted[-1]) + size > piece_bytes:
                wanted.append([])
            wanted[-1].append(size)
        first = 0
        for piece, lengths in zip(filled([batch], numbers, numbers, 1, has_crc=True), wanted, strict=True):
            assert (piece.first, np.diff(piece.starts).tolist(), len(piece.frames)) == (first, lengths, sum(lengths))
            first += len(lengths)


@pytest.mark.parametrize(("piece_bytes", "used_bytes"), [(1, 1), (1, 900), (700, 900), (700, 1 << 20)])
def test_bytes_are_told_of_once_when_they_and_all_before_them_were_copied(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, used_bytes: int
) -> None:
    """Of batches that share their bytes, too: what another part still needs stays."""
    with lab.open() as store:
        batches = encoded(store, lab, [5, 0, 40, 1])
    batches[2] = batches[2].slice(3, 31)
    monkeypatch.setattr(filling, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(filling, "USED_BYTES", used_bytes)
    monkeypatch.setattr(grouping, "PART_ROWS", 8)
    used: list[tuple[int, int]] = []
    copied = 0

    def note(source: np.ndarray) -> None:
        used.append((source.ctypes.data, len(source)))
        assert sum(size for _, size in used) <= copied

    copy = np.copyto

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        nonlocal copied
        copied += len(source)
        copy(target, source)

    monkeypatch.setattr(filling.np, "copyto", copyto)
    wanted = []
    for part in in_parts(batches):
        numbers = np.arange(sum(batch.num_rows for batch in part), dtype=np.int64)
        for _ in filled(part, numbers, numbers, 1, has_crc=True, used=note):
            pass
        for batch in part:
            bounds = frame_bounds(batch)
            wanted.append((batch.column("frame").buffers()[2].address + int(bounds[0]), int(bounds[-1] - bounds[0])))
    assert joined(used) == joined(wanted)
    whole = [size for _, size in wanted]
    assert all(size >= used_bytes or size in whole or address + size in ends(wanted) for address, size in used)
    assert len(used) == len(wanted) if used_bytes > max(whole) else len(used) > len(wanted)


def ends(ranges: list[tuple[int, int]]) -> set[int]:
    return {address + size for address, size in ranges}


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one; ranges that overlap are none."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if not size:
            continue
        if found and sum(found[-1]) == address:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            assert not found or sum(found[-1]) < address
            found.append((address, size))
    return found


def test_what_is_wrong_with_a_later_piece_takes_back_the_ones_before(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by the second thread, while the first one writes."""
    monkeypatch.setattr(filling, "PIECE_BYTES", 1)
    with lab.open() as store:
        store.append(lab.batch(3))
        (batch,) = encoded(store, lab, [8])
        before = lab.files()
        seen = []

        def patch(*arguments: object) -> None:
            seen.append(arguments)
            if len(seen) == 4:
                raise MemoryError("no room for the fourth")

        monkeypatch.setattr(filling, "patch_frames", patch)
        with pytest.raises(MemoryError, match="fourth"), append_lock(store._log):
            append(store._log, [batch])
        assert lab.files() == before
        assert store._log.writing_page.intent is None


@pytest.mark.parametrize("first_k", [1, 2, 3])
def test_an_append_in_parts_whose_kth_operation_fails_leaves_the_store_as_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, fail_at: Callable[..., CountDown], first_k: int
) -> None:
    """Whichever of the two threads it happens in."""

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(grouping, "PART_ROWS", 4)
    with lab.open() as store:
        store.append(lab.batch(7))
        batches = encoded(store, lab, [14], body_bytes=300)
        before = lab.files()
        for k in range(first_k, 400, 3):
            hook = fail_at(k, fail)
            with contextlib.suppress(StoreFailedError), append_lock(store._log):
                append(store._log, batches)
            durable.hook = None
            if not hook.reached:
                break
            assert lab.files() == before
            assert store._log.writing_page.intent is None
        assert 30 < k < 400
        assert len(lab.numbers(store)) == 21
