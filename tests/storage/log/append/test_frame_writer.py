"""Appends of any size go in pieces, and nothing shows where one ends."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Store
from rmq_store.errors import StoreFailedError
from rmq_store.files import durable
from rmq_store.files.locks.background import HelperThread
from rmq_store.log.append import frame_writer, grouping
from rmq_store.log.append.append import append, append_lock
from rmq_store.log.append.frame_writer import FrameWriter, Piece, frame_bounds
from rmq_store.log.append.grouping import in_parts

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
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", piece_bytes)
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
        monkeypatch.setattr(frame_writer, "PIECE_BYTES", piece_bytes)
        wanted: list[list[int]] = []
        for size in sizes:
            if not wanted or sum(wanted[-1]) + size > piece_bytes:
                wanted.append([])
            wanted[-1].append(size)
        first = 0
        whole = FrameWriter([batch], numbers, numbers, 1, has_crc=True)
        for piece, lengths in zip(whole.pieces(), wanted, strict=True):
            assert (piece.first, np.diff(piece.starts).tolist(), len(piece.frames)) == (first, lengths, sum(lengths))
            first += len(lengths)


class Takers:
    """Takes all pieces of a filling as three threads might, in an order that `seed` gives; counts what is told."""

    def __init__(self, batches: list[pa.RecordBatch], seed: int) -> None:
        self.sizes = np.concatenate([np.diff(frame_bounds(batch)) for batch in batches])
        numbers = np.arange(len(self.sizes), dtype=np.int64)
        self.frame_writer = FrameWriter(
            batches, numbers, numbers, 1, has_crc=True, on_copied=self.on_copied, through=self.through
        )
        self.order = random.Random(seed)
        self.held: dict[Iterator[Piece], int] = {}
        self.taken = self.rows_through = 0
        self.used_up: list[tuple[int, int]] = []

    def first_open(self) -> int:
        """The first row that was not taken, or whose taker is not done with it."""
        return min(self.held.values(), default=self.taken)

    def on_copied(self, source: np.ndarray) -> None:
        self.used_up.append((source.ctypes.data, len(source)))
        assert sum(size for _, size in self.used_up) <= self.sizes[: self.first_open()].sum()

    def through(self, row_count: int) -> None:
        assert self.rows_through < row_count == self.first_open()
        self.rows_through = row_count

    def take_all(self) -> None:
        takers = [self.frame_writer.pieces() for _ in range(3)]
        while takers:
            taker = self.order.choice(takers)
            self.held.pop(taker, None)
            piece = next(taker, None)
            if piece is None:
                takers.remove(taker)
            else:
                assert piece.first == self.taken
                self.held[taker] = piece.first
                self.taken += len(piece.starts) - 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("piece_bytes", "used_bytes"), [(1, 1), (1, 900), (700, 900), (700, 1 << 20)])
def test_bytes_and_rows_are_told_of_once_when_all_up_to_them_are_done_with(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, used_bytes: int, seed: int
) -> None:
    """Of batches that share their bytes, too: what another part still needs stays."""
    with lab.open() as store:
        batches = encoded(store, lab, [5, 0, 40, 1])
    batches[2] = batches[2].slice(3, 31)
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(frame_writer, "USED_BYTES", used_bytes)
    monkeypatch.setattr(grouping, "PART_ROWS", 8)
    used: list[tuple[int, int]] = []
    wanted = []
    for part in in_parts(batches):
        takers = Takers(part, seed)
        takers.take_all()
        assert takers.rows_through == takers.taken == len(takers.sizes)
        used += takers.used_up
        for batch in part:
            bounds = frame_bounds(batch)
            wanted.append((batch.column("frame").buffers()[2].address + int(bounds[0]), int(bounds[-1] - bounds[0])))
    assert joined(used) == joined(wanted)
    whole = [size for _, size in wanted]
    assert all(size >= used_bytes or size in whole or address + size in ends(wanted) for address, size in used)
    assert len(used) == len(wanted) if used_bytes > max(whole) else len(used) > len(wanted)


class SlowSet(set[int]):
    """Gives the other thread time between the look whether a number is there and its removal."""

    def remove(self, number: int) -> None:
        time.sleep(0.01)
        super().remove(number)


def test_two_threads_that_are_done_at_once_tell_of_all_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        (batch,) = encoded(store, lab, [12])
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", 1)
    numbers = np.arange(12, dtype=np.int64)
    told: list[int] = []
    whole = FrameWriter([batch], numbers, numbers, 1, has_crc=True, through=told.append)
    whole._done = SlowSet()
    with ThreadPoolExecutor(2) as threads:
        rows = list(threads.map(lambda _: sum(len(piece.starts) - 1 for piece in whole.pieces()), range(2)))
    assert sum(rows) == max(told) == 12
    assert len(told) == len(set(told))


def test_nobody_gets_another_piece_after_a_stop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        (batch,) = encoded(store, lab, [12])
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", 1)
    numbers = np.arange(12, dtype=np.int64)
    whole = FrameWriter([batch], numbers, numbers, 1, has_crc=True)
    pieces = whole.pieces()
    next(pieces)
    whole.stop()
    assert not list(pieces)
    assert not list(whole.pieces())


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


@pytest.mark.parametrize(("piece_bytes", "helped"), [(frame_writer.PIECE_BYTES, False), (100, True)])
def test_a_second_thread_is_begun_for_much_only(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, helped: bool
) -> None:
    """However many batches there are: a sink's commit has two or three rows in each, and waits for every thread."""
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", piece_bytes)
    begun: list[object] = []
    begin = HelperThread.begin
    monkeypatch.setattr(HelperThread, "begin", lambda self, work: (begun.append(work), begin(self, work))[1])
    with lab.open() as store:
        store.append(lab.batch(3))
        batches = encoded(store, lab, [2, 1, 2, 3])
        with append_lock(store._log):
            append(store._log, batches)
        assert bool(begun) == helped
        assert len(lab.numbers(store)) == 11


@pytest.mark.parametrize("helps", [False, True])
def test_what_is_wrong_with_a_later_piece_takes_back_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    """Whichever of the two threads finds it; and the other one soon has no more to do."""
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", 1)
    with lab.open() as store:
        store.append(lab.batch(3))
        (batch,) = encoded(store, lab, [200])
        before = lab.files()
        own, patched, failed = threading.get_ident(), [], threading.Event()
        both_have_one = threading.Barrier(2, timeout=30)

        def patch(*arguments: object) -> None:
            thread = threading.get_ident()
            patched.append(thread)
            if patched.count(thread) < 3:
                both_have_one.wait()
            if patched.count(thread) < 2:
                return
            if (thread != own) == helps:
                failed.set()
                raise MemoryError("no room for more")
            assert failed.wait(30)
            time.sleep(0.3)  # it writes when the other one has given up

        monkeypatch.setattr(frame_writer, "patch_frames", patch)
        with pytest.raises(MemoryError, match="no room"), append_lock(store._log):
            append(store._log, [batch])
        time.sleep(0.6)  # nobody writes any more
        assert len(patched) < 20
        assert lab.files() == before
        assert store._log.writing_page.intent is None


def test_the_second_thread_does_not_go_on_when_the_views_of_the_part_before_cannot_be_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part may have gigabytes, and all that is written would be taken back."""
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", 1)
    monkeypatch.setattr(grouping, "PART_ROWS", 100)
    patched: list[int] = []
    second_part = threading.Event()

    def patch(*arguments: object) -> None:
        patched.append(threading.get_ident())
        if len(patched) > 100:
            second_part.set()
            time.sleep(0.1)

    def dispatch(*arguments: object) -> None:
        assert second_part.wait(30)
        raise MemoryError("no room for entries")

    monkeypatch.setattr(frame_writer, "patch_frames", patch)
    monkeypatch.setattr("rmq_store.log.append.append._put_entries", dispatch)
    with lab.open() as store:
        (batch,) = encoded(store, lab, [200])
        with pytest.raises(MemoryError, match="entries"), append_lock(store._log):
            append(store._log, [batch])
    assert 100 < len(patched) < 150


@pytest.mark.parametrize("piece_bytes", [frame_writer.PIECE_BYTES, 400])
@pytest.mark.parametrize("first_k", [1, 2, 3])
def test_an_append_in_parts_whose_kth_operation_fails_leaves_the_store_as_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, fail_at: Callable[..., CountDown], first_k: int, piece_bytes: int
) -> None:
    """Whichever of the two threads it happens in."""

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(frame_writer, "PIECE_BYTES", piece_bytes)
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
