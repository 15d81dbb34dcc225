"""One message at a time: how long a put takes, what waiting for the disk costs, and what group commit gives back."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.case import Case, Pair, Target
from bench.crew import Crew, span_s
from bench.messages import BODY_BYTES, TOPIC
from bench.rows.append import SEGMENT_BYTES
from bench.scratch import Scratch
from bench.stores import QUEUES
from rmq_store import Message, Store, StoreConfig
from rmq_store.files import durable

PUTS = 20_000
SYNC_PUTS = 2_000
WRITERS = 16
SLOW_SYNC_MS = 4
SYNC = StoreConfig(flush_disk_type="SYNC_FLUSH")


def message(body_bytes: int) -> Message:
    return Message(TOPIC, os.urandom(body_bytes), tags="TagA", keys="ORD-1234567")


@contextlib.contextmanager
def new_store(root: Path, config: StoreConfig | None = None) -> Iterator[Store]:
    """A store with the topic, removed afterwards. One message was put: the files are there."""
    with Store.open(root, create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=QUEUES)
        store.send(message(100))
        yield store
    shutil.rmtree(root)


def percentiles_us(once: Callable[[], object], count: int) -> tuple[float, float]:
    """p50 and p99 of so many calls, in microseconds."""
    times_ns = np.empty(count + 1, np.int64)
    times_ns[0] = time.perf_counter_ns()
    for number in range(count):
        once()
        times_ns[number + 1] = time.perf_counter_ns()
    p50, p99 = np.percentile(np.diff(times_ns) / 1000, (50, 99)).tolist()
    return p50, p99


def put_us(store: Store, body_bytes: int, count: int) -> tuple[float, float]:
    """p50 and p99 of `Store.send` in microseconds."""
    sent = message(body_bytes)
    return percentiles_us(lambda: store.send(sent), count)


def put_rate(store: Store, body_bytes: int, count: int) -> float:
    """Messages per second of one thread that puts one after the other."""
    sent = message(body_bytes)
    begin = time.perf_counter()
    for _ in range(count):
        store.send(sent)
    return count / (time.perf_counter() - begin)


class BareFile:
    """Frames of one size, one behind the other, into a preallocated file of a segment's size."""

    def __init__(self, path: Path, frame_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._fd, 0, SEGMENT_BYTES)
        os.fsync(self._fd)
        self._frame = os.urandom(frame_bytes)
        self._position = 0

    def write(self) -> None:
        os.pwrite(self._fd, self._frame, self._position)
        self._position = (self._position + len(self._frame)) % (SEGMENT_BYTES - len(self._frame))

    def write_and_sync(self) -> None:
        self.write()
        os.fdatasync(self._fd)


def frame_bytes(store: Store, body_bytes: int) -> int:
    """How many bytes one message takes."""
    offset = store.send(message(body_bytes)).commit_log_offset
    return store.log_range()[1] - offset


@contextlib.contextmanager
def putting(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """p50 and p99, in microseconds."""
    count = scratch.rows(PUTS)
    with new_store(scratch.directory / "store") as store:
        bare = BareFile(scratch.directory / "bare", frame_bytes(store, body_bytes))
        yield Pair(lambda: put_us(store, body_bytes, count), lambda: percentiles_us(bare.write, count))


@contextlib.contextmanager
def putting_in_sync(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    count = scratch.rows(SYNC_PUTS)
    with new_store(scratch.directory / "store", SYNC) as store:
        bare = BareFile(scratch.directory / "bare", frame_bytes(store, body_bytes))

        def yardstick() -> float:
            begin = time.perf_counter()
            for _ in range(count):
                bare.write_and_sync()
            return count / (time.perf_counter() - begin)

        yield Pair(lambda: put_rate(store, body_bytes, count), yardstick)


def threads_rate(store: Store, body_bytes: int, count: int, writers: int) -> float:
    """Messages per second of so many threads, `count` messages each."""
    start = threading.Barrier(writers + 1)
    sent = message(body_bytes)

    def work() -> None:
        start.wait()
        for _ in range(count):
            store.send(sent)

    threads = [threading.Thread(target=work) for _ in range(writers)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return writers * count / (time.perf_counter() - begin)


@contextlib.contextmanager
def slower_disk(sync_ms: float) -> Iterator[None]:
    """In this process each fsync of the log takes so much longer."""

    def wait(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            time.sleep(sync_ms / 1000)

    durable.hook = wait if sync_ms else None
    try:
        yield
    finally:
        durable.hook = None


@contextlib.contextmanager
def writer(number: int, root: str, body_bytes: int, count: int, sync_ms: float) -> Iterator[Callable[[], None]]:
    """One process of a crew: puts `count` messages into a store that is there."""
    with Store.open(root) as store, slower_disk(sync_ms):
        sent = message(body_bytes)

        def once() -> None:
            for _ in range(count):
                store.send(sent)

        yield once


@contextlib.contextmanager
def group_commit(scratch: Scratch, *, processes: bool, sync_ms: float) -> Iterator[Pair]:
    """Messages per second."""
    count = scratch.rows(SYNC_PUTS // 4 if sync_ms else SYNC_PUTS)
    share = count // 4
    body_bytes = BODY_BYTES[0]
    with (
        new_store(scratch.directory / "store", SYNC) as store,
        contextlib.ExitStack() as ends,
        slower_disk(sync_ms),
    ):

        def yardstick() -> float:
            return put_rate(store, body_bytes, count)

        if processes:
            crew = ends.enter_context(Crew(WRITERS, writer, str(store.path), body_bytes, share, sync_ms))
            yield Pair(lambda: WRITERS * share / span_s(crew.run()), yardstick)
        else:
            yield Pair(lambda: threads_rate(store, body_bytes, share, WRITERS), yardstick)


PUT_LIMIT = (
    "The append is one call of the extension (ADR 0036). A bare loop in C with its system calls takes a fifth of the "
    "time (`python -m bench.lone`); most of the rest is Python in front of that call, which checks message and topic."
)
SYNC_PUT_LIMIT = (
    "The put in Python adds to the fsync, and both are slower together on this virtual machine. After the sleep "
    "of an fsync, a put takes twice its time, with cold caches. After that much work, an fsync takes twice the "
    "time of one in a bare loop."
)
_GROUP_COMMIT = (
    f"SYNC_FLUSH, {SYNC_PUTS // 4:,} messages of each writer, beside {SYNC_PUTS:,} of one writer. With the slower "
    f"disk each fsync sleeps for {SLOW_SYNC_MS} ms first, and a quarter as many messages are sent."
)
GROUP_COMMIT_LIMIT = (
    "The processor: an fsync takes 0.2 to 0.5 ms, and sixteen threads need 0.12 ms of processor time for a message "
    "(ADR 0038), one at a time. Two to seven messages share an fsync. The rows with the slower disk show the gain "
    "where it costs more."
)
SLOW_GROUP_COMMIT_LIMIT = (
    "With this fsync a put of one writer takes 4.7 ms. Of sixteen threads 5.6 messages share one fsync, of "
    "sixteen processes 7.7; the other messages arrive while it is under way."
)

CASES = (
    *(
        Case(
            name=f"put-{body_bytes}",
            title="one-message put",
            group="one message",
            body_bytes=body_bytes,
            yardstick="a bare `pwrite` of as many bytes",
            unit="us",
            target=None,
            settings=f"{PUTS:,} times `Store.send` by one thread: tag, key, UNIQ_KEY, queue and index; ASYNC_FLUSH.",
            prepare=partial(putting, body_bytes=body_bytes),
            figures=("p50", "p99"),
            limit=PUT_LIMIT,
        )
        for body_bytes in BODY_BYTES
    ),
    *(
        Case(
            name=f"put-sync-{body_bytes}",
            title="one-message put, SYNC_FLUSH, one writer",
            group="one message",
            body_bytes=body_bytes,
            yardstick="a bare loop of `pwrite` and `fdatasync`",
            unit="msgs/s",
            target=Target(0.7),
            settings=f"{SYNC_PUTS:,} messages; the bare loop writes as many bytes each time into a preallocated file.",
            prepare=partial(putting_in_sync, body_bytes=body_bytes),
            limit=SYNC_PUT_LIMIT,
        )
        for body_bytes in BODY_BYTES
    ),
    *(
        Case(
            name=f"put-sync-{WRITERS}-{kind}" + (f"-{sync_ms}-ms" if sync_ms else ""),
            title=f"group commit, {WRITERS} {kind}" + (f", a disk that needs {sync_ms} ms more" if sync_ms else ""),
            group="one message",
            body_bytes=BODY_BYTES[0],
            yardstick="one writer of the same store",
            unit="msgs/s",
            target=Target(6),
            settings=_GROUP_COMMIT,
            prepare=partial(group_commit, processes=kind == "processes", sync_ms=sync_ms),
            limit=SLOW_GROUP_COMMIT_LIMIT if sync_ms else GROUP_COMMIT_LIMIT,
        )
        for sync_ms in (0, SLOW_SYNC_MS)
        for kind in ("threads", "processes")
    ),
)
