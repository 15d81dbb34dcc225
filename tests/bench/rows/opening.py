"""Opening a store for writing: after a clean stop, after its writer was killed, after the power was cut."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.case import Case, Pair, Target
from bench.crew import Crew
from bench.scratch import Scratch
from bench.stores import append_rows, large, log_pieces, of_size, read_log, rows_of
from rmq_store import Store

TAIL_BYTES = 256 << 20
TAIL_BODY_BYTES = 1024
SMALL_BYTES = 100 * 10**6
OPENS = 20

# Words 1 and 2 of the state page, 8 bytes each: in which boot it was written.
_BOOT_WORDS = slice(8, 24)


def small(directory: Path, scratch: Scratch) -> Path:
    """100 MB, for `Scratch.once`."""
    return of_size(directory / "store", SMALL_BYTES, scratch)


def open_ms(root: Path) -> float:
    """Median of some opens in this process, each closed cleanly."""
    times_ms = []
    for _ in range(OPENS):
        begin = time.perf_counter()
        store = Store.open(root)
        times_ms.append((time.perf_counter() - begin) * 1000)
        store.close()
    return statistics.median(times_ms)


@contextlib.contextmanager
def opening_cleanly(scratch: Scratch) -> Iterator[Pair]:
    """Milliseconds."""
    old, young = scratch.once(large), scratch.once(small)
    yield Pair(lambda: open_ms(old), lambda: open_ms(young))


@contextlib.contextmanager
def appending(number: int, root: str, row_count: int) -> Iterator[Callable[[], tuple[int, int]]]:
    """One process of a crew: appends messages that nobody flushes, and says which bytes of the log they are."""
    with Store.open(root) as store:

        def once() -> tuple[int, int]:
            start = store.log_range()[1]
            for _ in append_rows(store, row_count, TAIL_BODY_BYTES):
                pass
            return start, store.log_range()[1]

        yield once


def forget_pages(root: Path) -> None:
    """Let the page cache forget every file of the store that is on disk."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def killed(root: Path, tail_bytes: int, *, power_cut: bool) -> tuple[int, int]:
    """Kill a writer that has appended so many bytes which are not flushed; returns which bytes of the log they are.

    `power_cut`: what it wrote is on disk and not in memory, and the state page is of another boot of the machine.
    """
    crew = Crew(1, appending, str(root), rows_of(tail_bytes, TAIL_BODY_BYTES))
    start, end = crew.run()[0].answer
    crew.kill()
    if power_cut:
        os.sync()
        page = root / "pyrmq" / "state"
        content = bytearray(page.read_bytes())
        content[_BOOT_WORDS] = bytes(byte ^ 0xFF for byte in content[_BOOT_WORDS])
        with page.open("r+b") as file:  # the same inode
            file.write(content)
        os.utime(page, (1, 1))  # before the machine was started
        forget_pages(root)
    return start, end


def write_log_again(root: Path, start: int, end: int) -> int:
    """Write [start, end) of the log over itself and sync it: what anybody has to do who finds it in the page cache, and
    wants it on the disk. Returns how many bytes there were.
    """
    done = 0
    for path, position, size in log_pieces(root, start, end):
        with path.open("r+b", buffering=0) as file:
            file.seek(position)
            content = file.read(size)
            file.seek(position)
            done += file.write(content)
            os.fdatasync(file.fileno())
    return done


@contextlib.contextmanager
def recovering(
    scratch: Scratch, made: Callable[[Path, Scratch], Path], *, power_cut: bool, beside: Callable[[Path, int, int], int]
) -> Iterator[Pair]:
    """MB of the tail per second; `beside` is the yardstick."""
    root = scratch.once(made)
    tail_bytes = TAIL_BYTES // 16 if scratch.quick else TAIL_BYTES
    scratch.touch_memory(4 * tail_bytes)
    tail = [(0, 0)]

    def ours() -> float:
        tail[0] = start, end = killed(root, tail_bytes, power_cut=power_cut)
        begin = time.perf_counter()
        store = Store.open(root)
        seconds = time.perf_counter() - begin
        recovery = store.recovery
        store.close()
        assert recovery is not None and recovery.scanned_bytes >= end - start, recovery
        return (end - start) / seconds / 1e6

    def yardstick() -> float:
        if power_cut:
            forget_pages(root)
        begin = time.perf_counter()
        done = beside(root, *tail[0])
        return done / (time.perf_counter() - begin) / 1e6

    ours()
    yield Pair(ours, yardstick)


def _age(made: Callable[[Path, Scratch], Path]) -> str:
    return "20 GB" if made is large else "100 MB"


TAIL = f"The tail has {TAIL_BYTES >> 20} MiB of messages of {TAIL_BODY_BYTES:,} B."
KILL = "None of it was flushed; page cache warm."
POWER_CUT = (
    "The state page is of another boot, so the views are rebuilt from the tail. For both sides the tail is on "
    "disk and not in the page cache."
)
KILL_LIMIT = (
    "The disk. The open writes the tail again and waits until it is synced, because the killed process may have seen a "
    "failed fsync. Of 155 ms the sync is 97, writing 36, and the walk over the tail with its checksums 17, as long as "
    "the yardstick's read."
)
POWER_CUT_LIMIT = (
    "Both processors and the disk. Four threads find frames, make columns of them, and write index and queues. The "
    "index waits for its own entries, which come from the same disk. Checks of files before, and syncs after, take "
    "0.05 s more."
)

CASES = (
    Case(
        name="open-clean",
        title="open after a clean stop, 20 GB",
        group="open",
        body_bytes=None,
        yardstick="the same with 100 MB",
        unit="ms",
        target=Target(1.25, at_least=False, ours_at_most=50),
        settings=f"`Store.open` for writing, median of {OPENS} opens in one process; page cache warm.",
        prepare=opening_cleanly,
        limit=(
            "Python: about a hundred checks of small files and directories. The difference is one check for each file "
            "of the log, of which 20 GB have some 320: one native call, 1.2 us a file, all of it the kernel's. Only "
            "the last record is read."
        ),
    ),
    *(
        Case(
            name=f"open-{'power-cut' if power_cut else 'kill'}-{_age(made).replace(' ', '-').lower()}",
            title=f"open after {'a power cut' if power_cut else 'kill -9'} of a store of {_age(made)}",
            group="open",
            body_bytes=None,
            yardstick="a sequential read of the tail that must be scanned",
            unit="MB/s",
            target=Target(0.5),
            settings=(TAIL, POWER_CUT if power_cut else KILL),
            prepare=partial(recovering, made=made, power_cut=power_cut, beside=read_log),
            limit=POWER_CUT_LIMIT if power_cut else KILL_LIMIT,
        )
        for power_cut in (False, True)
        for made in (small, large)
    ),
    Case(
        name="open-kill-beside-disk",
        title="open after kill -9 of a store of 100 MB",
        group="open",
        body_bytes=None,
        yardstick="the tail written over itself and synced",
        unit="MB/s",
        target=None,
        settings=(TAIL, KILL, "The yardstick: one file of the log at a time, read whole, written, fdatasync."),
        prepare=partial(recovering, made=small, power_cut=False, beside=write_log_again),
        limit=KILL_LIMIT,
    ),
)
