"""One store in one process, beside RocketMQ's own in a JVM: bulk append, queue read, puts one by one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC, plain
from bench.rows import append, queue_read
from bench.rows.one_message import (
    GROUP_COMMIT_LIMIT,
    PUT_LIMIT,
    PUTS,
    SYNC,
    SYNC_PUT_LIMIT,
    SYNC_PUTS,
    WRITERS,
    new_store,
    put_rate,
    put_us,
    threads_rate,
)
from bench.scratch import Scratch
from bench.stores import chunk_rows, make
from rmq_store import Store

BATCHES = (100, 1000)
READ_BATCH = 1000
WARM_UP_PUTS = 200_000
# So that a read of 1,000 messages is not cut short.
READ_SETTINGS = {
    f"maxTransfer{kind}OnMessageIn{place}": limit
    for kind, limit in (("Count", 2000), ("Bytes", 64 << 20))
    for place in ("Memory", "Disk")
}
_JVM = (
    "RocketMQ 5.5.0, DefaultMessageStore in a JVM of 2 GiB (G1) that lives for all pairs, with its defaults unless "
    "another setting is named."
)


@contextlib.contextmanager
def appending(scratch: Scratch, body_bytes: int, batch: int) -> Iterator[Pair]:
    """Messages per second; `batch` 0: Java puts one by one."""
    rows = scratch.rows(append.ROWS[body_bytes])
    chunk = plain(min(chunk_rows(body_bytes), rows), body_bytes)
    peer = scratch.peer()
    command = "store.putBatches" if batch else "store.put"
    scratch.touch_memory(3 * rows * (body_bytes + 300))

    def yardstick() -> float:
        with peer.store(scratch.directory / "java"):
            done = peer.ask(command, topic=TOPIC, bodyBytes=body_bytes, count=rows, batch=batch)
        return float(done["caughtUpRate"])

    yield Pair(
        ours=lambda: rows / append.append_seconds(scratch.directory / "store", chunk, rows)[0],
        yardstick=yardstick,
    )


@contextlib.contextmanager
def reading(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    rows = scratch.rows(queue_read.ROWS[body_bytes])
    root = make(scratch.directory / "store", rows, body_bytes, scratch, queues=1)
    peer = scratch.peer()
    with Store.open(root, read_only=True) as store, peer.store(scratch.directory / "java", **READ_SETTINGS):
        peer.ask("store.putBatches", topic=TOPIC, bodyBytes=body_bytes, count=rows, batch=READ_BATCH)

        def ours() -> float:
            begin = time.perf_counter()
            read = queue_read.read_rows(store)
            seconds = time.perf_counter() - begin
            assert read == rows
            return rows / seconds

        def yardstick() -> float:
            done = peer.ask("store.read", topic=TOPIC, batch=READ_BATCH)
            assert (done["count"], done["bodyBytes"]) == (rows, rows * body_bytes)
            return float(done["rate"])

        yield Pair(ours, yardstick)


@contextlib.contextmanager
def putting(scratch: Scratch, body_bytes: int, percentile: int) -> Iterator[Pair]:
    """Microseconds; `percentile` 0: p50, 1: p99."""
    count = scratch.rows(PUTS)
    name = ("p50Us", "p99Us")[percentile]
    sizes = {"topic": TOPIC, "bodyBytes": body_bytes}
    peer = scratch.peer()
    with new_store(scratch.directory / "store") as store, peer.store(scratch.directory / "java"):
        peer.ask("store.put", count=scratch.rows(WARM_UP_PUTS), **sizes)
        yield Pair(
            ours=lambda: put_us(store, body_bytes, count)[percentile],
            yardstick=lambda: float(peer.ask("store.putTimes", count=count, threads=1, **sizes)[name]),
        )


@contextlib.contextmanager
def putting_in_sync(scratch: Scratch, writers: int) -> Iterator[Pair]:
    """Messages per second."""
    count = scratch.rows(SYNC_PUTS if writers == 1 else SYNC_PUTS // 4)
    body_bytes = BODY_BYTES[0]
    peer = scratch.peer()

    def yardstick() -> float:
        done = peer.ask("store.putTimes", topic=TOPIC, bodyBytes=body_bytes, count=count, threads=writers)
        return float(done["rate"])

    with (
        new_store(scratch.directory / "store", SYNC) as store,
        peer.store(scratch.directory / "java", flushDiskType="SYNC_FLUSH"),
    ):
        ours = partial(put_rate, store, body_bytes, count)
        yield Pair(ours if writers == 1 else partial(threads_rate, store, body_bytes, count, writers), yardstick)


def _append(body_bytes: int, batch: int) -> Case:
    kind = f"batch-{batch}" if batch else "single"
    how = f"putMessages with batches of {batch:,}, built and encoded as by a producer" if batch else "putMessage"
    return Case(
        name=f"java-append-{kind}-{body_bytes}",
        title="bulk append, one process, with CRC, queues and index",
        group="append",
        body_bytes=body_bytes,
        yardstick=f"Java, batches of {batch:,}" if batch else "Java, one by one",
        unit="msgs/s",
        target=Target(1.5 if batch else 2.5),
        settings=(
            f"{append.ROWS[body_bytes]:,} messages to a new store each time, ours from Arrow batches of "
            f"{chunk_rows(body_bytes):,} that are there.",
            "Ours makes UNIQ_KEY; its frames are 20 B longer, by the checksum of their properties.",
            f"Java: {how}, one thread, one queue, until queue and index have caught up.",
            _JVM,
        ),
        prepare=partial(appending, body_bytes=body_bytes, batch=batch),
        limit=append.LIMIT,
        peers=True,
    )


def _put(body_bytes: int, percentile: int) -> Case:
    name = ("p50", "p99")[percentile]
    return Case(
        name=f"java-put-{name}-{body_bytes}",
        title=f"one-message put, {name}",
        group="one message",
        body_bytes=body_bytes,
        yardstick=f"{name} of Java's putMessage",
        unit="us",
        target=None if percentile else Target(20, at_least=False),
        settings=(
            f"{PUTS:,} times `Store.send` by one thread, beside as many putMessage, whose consume queue and index are "
            f"written by another thread later. Java is warm after {WARM_UP_PUTS:,} puts.",
            _JVM,
        ),
        prepare=partial(putting, body_bytes=body_bytes, percentile=percentile),
        limit=PUT_LIMIT,
        peers=True,
    )


CASES = (
    *(_append(body_bytes, batch) for body_bytes in BODY_BYTES for batch in (*BATCHES, 0)),
    *(
        Case(
            name=f"java-queue-read-{body_bytes}",
            title="queue read to record batches, all 17 columns",
            group="queue read",
            body_bytes=body_bytes,
            yardstick="Java, getMessage and decode",
            unit="msgs/s",
            target=Target(limit),
            settings=(
                f"{queue_read.ROWS[body_bytes]:,} messages in one queue, in order, page cache warm.",
                f"Ours: two threads. Java: one, getMessage of {READ_BATCH:,}, MessageDecoder.decode of each frame with "
                "its body, larger transfers (maxTransferCount 2,000, maxTransferBytes 64 MiB).",
                _JVM,
            ),
            prepare=partial(reading, body_bytes=body_bytes),
            limit=queue_read.LIMIT,
            peers=True,
        )
        for body_bytes, limit in zip(BODY_BYTES, (2, 1.5), strict=True)
    ),
    *(_put(body_bytes, percentile) for body_bytes in BODY_BYTES for percentile in (0, 1)),
    *(
        Case(
            name=f"java-put-sync-{writers}",
            title=f"one-message put, SYNC_FLUSH, {'one writer' if writers == 1 else f'{writers} threads'}",
            group="one message",
            body_bytes=BODY_BYTES[0],
            yardstick="Java's putMessage from as many threads",
            unit="msgs/s",
            target=None,
            settings=(
                f"{SYNC_PUTS if writers == 1 else SYNC_PUTS // 4:,} messages of each writer; SYNC_FLUSH on both sides.",
                _JVM,
            ),
            prepare=partial(putting_in_sync, writers=writers),
            limit=SYNC_PUT_LIMIT if writers == 1 else GROUP_COMMIT_LIMIT,
            peers=True,
        )
        for writers in (1, WRITERS)
    ),
)
