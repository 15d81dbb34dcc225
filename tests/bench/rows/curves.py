"""How the engine's speed changes with the size of messages, the number of topics and of writers, and the store's age.

A figure is the median of three, ours and the yardstick in turn.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.crew import Crew, span_s
from bench.curve import Curve, Point
from bench.messages import TOPIC, plain
from bench.rows.append import append_seconds, pwrite_seconds
from bench.rows.lookup import Lookups
from bench.rows.opening import open_ms
from bench.rows.queue_read import ALL_COLUMNS, copy_log, read_rows
from bench.scratch import Progress, Scratch
from bench.stores import FRAME_OVERHEAD_BYTES, GB, UNFLUSHED, append_rows, chunk_rows, large, rows_of
from rmq_store import Store

TURNS = 3
BODY_BYTES = (16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
TOPICS = (1, 3, 10, 30, 100, 300, 1000)
WRITERS = (1, 2, 4, 8)
STORE_GB = (1, 2, 5, 10, 20, 35, 50)

# Written for one figure, but for small messages: then so many of them.
FIGURE_BYTES = 200 << 20
FIGURE_ROWS_MAX = 400_000

# What is appended and read at each size of the store.
SAMPLE_BYTES = 256 << 20
STORE_BODY_BYTES = 4096
LOOKUPS = 2000
_OTHER_KEYS = 10**9


def medians(*sides: Callable[[], float]) -> list[float]:
    """What each side gives, in the median of TURNS turns after a warm-up; the order changes from turn to turn."""
    taken: list[list[float]] = [[] for _ in sides]
    for turn in range(TURNS + 1):
        for number in range(len(sides)) if turn % 2 else reversed(range(len(sides))):
            figure = sides[number]()
            if turn:
                taken[number].append(figure)
    return [statistics.median(figures) for figures in taken]


def some(wanted: Sequence[int], scratch: Scratch) -> Sequence[int]:
    """All of them, or two if it is only to be seen whether it works."""
    return wanted[:2] if scratch.quick else wanted


def random_bytes(size_bytes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, size_bytes, dtype=np.uint8)


# -- size of messages -------------------------------------------------------------------------------------------------


def message_sizes(scratch: Scratch, progress: Progress) -> list[Point]:
    """MB of the log per second."""
    wanted = some(BODY_BYTES, scratch)
    progress.total(len(wanted))
    scratch.touch_memory(3 * FIGURE_BYTES)
    points = []
    for body_bytes in wanted:
        rows = scratch.rows(min(rows_of(FIGURE_BYTES, body_bytes), FIGURE_ROWS_MAX))
        chunk = plain(min(chunk_rows(body_bytes), rows), body_bytes)
        _, size_bytes = append_seconds(scratch.directory / "size", chunk, rows)
        data = random_bytes(size_bytes * chunk.num_rows // rows)
        megabytes = size_bytes / 1e6
        points += _points(
            body_bytes, ("append", "pwrite of the same bytes"),
            medians(
                lambda: megabytes / append_seconds(scratch.directory / "store", chunk, rows)[0],  # noqa: B023
                lambda: megabytes / pwrite_seconds(scratch.directory / "files", data, size_bytes),  # noqa: B023
            ),
        )  # fmt: skip
        points += _points(
            body_bytes, ("queue read, 17 columns", "numpy copy of the same bytes"),
            _read_and_copy(scratch.directory / "store", chunk, rows),
        )  # fmt: skip
        progress.step()
    return points


def _read_and_copy(root: Path, chunk: pa.RecordBatch, row_count: int) -> list[float]:
    """MB of the log per second, of a new store that is removed."""
    with Store.open(root, create=True) as store:
        store.create_topic(TOPIC)
        for first in range(0, row_count, chunk.num_rows):
            store.append(chunk.slice(0, row_count - first), TOPIC)
        store.flush()
        start, end = store.log_range()
        figures = medians(
            lambda: (end - start) / 1e6 / _seconds(lambda: read_rows(store)),
            lambda: (end - start) / 1e6 / _seconds(lambda: copy_log(root, start, end)),
        )
    shutil.rmtree(root)
    return figures


def read_queues(store: Store, offsets: Mapping[int, int]) -> None:
    """Read each queue from its offset on (0 if there is none), all columns."""
    for queue_id, (_, end) in store.queue_ranges(TOPIC).items():
        for batch in store.read(TOPIC, queue_id, offsets.get(queue_id, 0), end, columns=ALL_COLUMNS):
            assert batch.num_rows


# -- number of topics -------------------------------------------------------------------------------------------------


def topic_counts(scratch: Scratch, progress: Progress) -> list[Point]:
    """Messages per second."""
    wanted = some(TOPICS, scratch)
    progress.total(len(wanted))
    rows = scratch.rows(200_000)
    chunk = plain(rows // 2, 100)
    scratch.touch_memory(4 * rows * 400)
    points = []
    for topics in wanted:
        root = scratch.directory / "store"
        names = pa.array([f"{TOPIC}-{number}" for number in range(topics)])
        of_rows = names.take(pa.array(np.arange(chunk.num_rows) % topics))
        given = chunk.append_column("topic", of_rows)
        with Store.open(root, create=True) as store:
            store.append(given)  # topics, queues and files are made
            start = store.log_range()[1]
            store.append(given)
            size_bytes = store.log_range()[1] - start
            data = random_bytes(size_bytes)

            def ours() -> float:
                return rows / _seconds(lambda: [store.append(given) for _ in range(2)])  # noqa: B023

            def yardstick() -> float:
                return rows / pwrite_seconds(scratch.directory / "files", data, 2 * size_bytes)  # noqa: B023

            points += _points(topics, ("append", "pwrite of the same bytes"), medians(ours, yardstick))
        shutil.rmtree(root)
        progress.step()
    return points


# -- number of writers ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def appender(number: int, root: str, chunk_row_count: int, chunks: int) -> Iterator[Callable[[], None]]:
    """One process of a crew: appends chunks of 1 KiB messages to a store that is there."""
    chunk = plain(chunk_row_count, 1024)
    with Store.open(root) as store:

        def once() -> None:
            for _ in range(chunks):
                store.append(chunk, TOPIC)

        yield once


@contextlib.contextmanager
def bare_writer(number: int, directory: str, chunk_bytes: int, chunks: int) -> Iterator[Callable[[], None]]:
    """One process of a crew: writes as much to files of its own."""
    data = random_bytes(chunk_bytes)
    yield lambda: void(pwrite_seconds(Path(directory) / str(number), data, chunk_bytes * chunks))


def void(_: object) -> None:
    """Nothing that JSON would have to hold."""


def writer_counts(scratch: Scratch, progress: Progress) -> list[Point]:
    """Messages per second of all of them."""
    wanted = some(WRITERS, scratch)
    progress.total(len(wanted))
    chunk_row_count = scratch.rows(5_000)
    chunks_in_all = 32
    size_bytes = chunk_row_count * (1024 + FRAME_OVERHEAD_BYTES)
    scratch.touch_memory(4 * size_bytes * chunks_in_all)
    points = []
    for writers in wanted:
        root = scratch.directory / f"store-{writers}"
        with Store.open(root, create=True) as store:
            store.create_topic(TOPIC)
        chunks = chunks_in_all // writers
        files = scratch.directory / f"files-{writers}"
        files.mkdir()
        rows = chunks * writers * chunk_row_count
        with (
            Crew(writers, appender, str(root), chunk_row_count, chunks) as ours,
            Crew(writers, bare_writer, str(files), size_bytes, chunks) as yardstick,
        ):
            figures = medians(
                lambda: rows / span_s(ours.run()),  # noqa: B023
                lambda: rows / span_s(yardstick.run()),  # noqa: B023
            )
        points += _points(writers, ("append to one store", "pwrite, each to files of its own"), figures)
        shutil.rmtree(root)
        progress.step()
    return points


# -- size of the store ------------------------------------------------------------------------------------------------


def store_sizes(scratch: Scratch, progress: Progress) -> list[Point]:
    """Each series as a share: appends of pwrite, reads of a copy, look-ups and opens of their own first figure."""
    scratch.forget(large)  # nobody needs it any more, and the disk may be small
    root = scratch.directory / "store"
    free_bytes = shutil.disk_usage(scratch.directory).free
    sizes = some([size for size in STORE_GB if size * GB <= 0.75 * free_bytes], scratch)
    progress.total(len(sizes))
    first: dict[str, float] = {}
    points = []
    keys = 0
    for size in sizes:
        keys = _grow(root, size * GB // (20 if scratch.quick else 1), keys, scratch)
        for series, figure in _figures_at_this_size(root, keys, scratch).items():
            points.append(Point(size, series, figure / first.setdefault(series, figure if "its own" in series else 1)))
        points.append(Point(size, "yardstick", 1))
        progress.step()
    return points


def _grow(root: Path, size_bytes: int, keys: int, scratch: Scratch) -> int:
    """Append messages with keys of their own, counted from `keys`; returns how many keys there are then."""
    with Store.open(root, create=True, config=UNFLUSHED) as store:
        store.create_topic(TOPIC, exist_ok=True)
        rows = rows_of(max(size_bytes - store.log_range()[1], 1), STORE_BODY_BYTES)
        for _ in append_rows(store, rows, STORE_BODY_BYTES, keys):
            scratch.tick(f"{store.log_range()[1] / GB:.1f} GB")
    return keys + rows


def _figures_at_this_size(root: Path, keys: int, scratch: Scratch) -> dict[str, float]:
    rows = scratch.rows(rows_of(SAMPLE_BYTES, STORE_BODY_BYTES))
    chunk = plain(min(chunk_rows(STORE_BODY_BYTES), rows), STORE_BODY_BYTES, first=_OTHER_KEYS)
    starts = []
    with Store.open(root) as store:

        def append() -> None:
            starts.append((store.log_range()[1], {queue: end for queue, (_, end) in store.queue_ranges(TOPIC).items()}))
            for first in range(0, rows, chunk.num_rows):
                store.append(chunk.slice(0, rows - first), TOPIC)

        data = random_bytes(chunk.num_rows * (STORE_BODY_BYTES + FRAME_OVERHEAD_BYTES))
        size_bytes = rows * (STORE_BODY_BYTES + FRAME_OVERHEAD_BYTES)
        appended_s, written_s = medians(
            lambda: _seconds(append), lambda: pwrite_seconds(scratch.directory / "files", data, size_bytes)
        )
        start, offsets = starts[-1]
        end = store.log_range()[1]
        read_s, copied_s = medians(
            lambda: _seconds(lambda: read_queues(store, offsets)), lambda: _seconds(lambda: copy_log(root, start, end))
        )
        # The same ones twice: the first time, what the page cache does not hold comes from the disk.
        found_us = [Lookups(store, keys).one_by_one_us("key", scratch.rows(LOOKUPS))[0] for _ in range(2)][1]
    return {
        "append / pwrite": written_s / appended_s,
        "queue read / numpy copy": copied_s / read_s,
        "look-up by key, p50 / its own at 1 GB": found_us,
        "open / its own at 1 GB": open_ms(root),
    }


def _seconds(once: Callable[[], object]) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def _points(x: float, series: tuple[str, ...], figures: list[float]) -> list[Point]:
    return [Point(x, name, figure) for name, figure in zip(series, figures, strict=True)]


CURVES = (
    Curve(
        name="curve-message-size",
        title="Size of messages",
        x_label="bytes of a body",
        y_label="MB/s of the log",
        log_x=True,
        points=message_sizes,
        settings=(
            f"{FIGURE_BYTES >> 20} MiB for each figure, at most {FIGURE_ROWS_MAX:,} messages; otherwise as the rows "
            "of bulk append and queue read."
        ),
        limit=(
            "Below 1 KiB a message costs the same, whatever its size: 0.8 us to append, 0.3 us to read. From 4 KiB on "
            "copying costs most: an append copies a body three times (frame, piece, page cache) and computes its "
            "checksums; a read copies it once."
        ),
    ),
    Curve(
        name="curve-topics",
        title="Number of topics",
        x_label="topics, of 4 queues each",
        y_label="messages/s",
        log_x=True,
        points=topic_counts,
        settings="Bulk append of 100 B messages, 100,000 at once, topics in turn, by one process.",
        limit=(
            "An append costs some 80 us for each of its queues, which shows from 100 topics (400 queues) on. It looks "
            "up the end of the queue and writes its entries, and opens the file for both, because a store keeps at "
            "most 256 files open."
        ),
    ),
    Curve(
        name="curve-writers",
        title="Number of writers",
        x_label="processes",
        y_label="messages/s of all",
        log_x=True,
        points=writer_counts,
        settings="Bulk append of 1 KiB messages to one store, 5,000 at once; as many in all, for any process count.",
        limit="One process appends at a time, and the threads of one writer keep two processors busy.",
    ),
    Curve(
        name="curve-store-size",
        title="Size of the store",
        x_label="GB",
        y_label="share",
        log_x=True,
        points=store_sizes,
        settings=(
            f"A store of {STORE_BODY_BYTES:,} B messages grows; at each size {SAMPLE_BYTES >> 20} MiB are appended and "
            f"read, {LOOKUPS:,} random messages looked up one at a time, and the store is opened after a clean stop. "
            "A size is left out if the disk has less room than 4/3 of it."
        ),
        limit=(
            "Look-ups and opens depend on the number of files. From 256 segments (17 GB) on, a look-up of a random "
            "message opens and maps its segment; an open checks the name and size of each."
        ),
    ),
)
