"""The stores that are measured on hold what their makers say; a killed writer leaves what a measurement counts on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.messages import TOPIC, key_of, plain
from bench.rows.append import append_seconds, pwrite_seconds
from bench.rows.memory import Watch
from bench.rows.opening import killed
from bench.rows.queue_read import read_rows
from bench.scratch import Scratch, Shared
from bench.stores import FRAME_OVERHEAD_BYTES, UNFLUSHED, log_pieces, make, read_log
from bench.test_bench import NoProgress
from rmq_store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    space = Scratch(tmp_path, Shared(), NoProgress(), quick=True)
    return make(tmp_path / "store", 5_000, 100, space, config=UNFLUSHED)


def test_a_made_store_has_its_messages_and_their_keys(root: Path) -> None:
    with Store.open(root) as store:
        assert read_rows(store) == 5_000
        assert {end for _, end in store.queue_ranges(TOPIC).values()} == {1250}
        for number in (0, 4_999):
            (found,) = store.query.by_key(TOPIC, key_of(number))
            assert len(found.body) == 100


def test_the_log_is_read_to_the_byte(root: Path) -> None:
    with Store.open(root, read_only=True) as store:
        start, end = store.log_range()
    assert read_log(root, start, end) == end - start
    segment = root / "commitlog" / f"{0:020d}"
    assert list(log_pieces(root, 100, 200)) == [(segment, 100, 100)]


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_killed_writer_leaves_a_tail_that_must_be_scanned(root: Path, power_cut: bool) -> None:
    start, end = killed(root, 1 << 20, power_cut=power_cut)
    assert end - start == pytest.approx(1 << 20, rel=0.1)
    with Store.open(root) as store:
        assert store.recovery is not None
        assert store.recovery.trust == ("OWN" if power_cut else "SAME_BOOT")
        assert store.recovery.scanned_bytes == end - start
        assert store.log_range()[1] == end


def test_append_and_yardstick_write_as_much_and_leave_nothing(tmp_path: Path, root: Path) -> None:
    chunk = plain(300, 100)
    _, size_bytes = append_seconds(tmp_path / "new", chunk, 1_000)
    assert size_bytes == pytest.approx(1_000 * (100 + FRAME_OVERHEAD_BYTES), rel=0.05)
    assert pwrite_seconds(tmp_path / "files", bytearray(1000), size_bytes) > 0  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [root]


def test_memory_of_a_process_is_seen() -> None:
    with Watch(lambda: {os.getpid(): "this"}) as watch:
        held = bytearray(b"x") * (50 << 20)
        while "this" not in watch.peak_mb:
            pass
    assert watch.peak_mb["this"] > len(held) / 1e6
