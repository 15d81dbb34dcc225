"""The most anonymous memory (RssAnon) of Python processes that work on small and on large stores.

Mapped files are not counted: the kernel takes their pages back whenever it wants. The processes are looked at from
outside while they work.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.case import Case, Pair, Target
from bench.crew import Crew
from bench.messages import TOPIC, key_of, plain
from bench.rows.queue_read import read_rows
from bench.scratch import Scratch
from bench.stores import GB, large, make, of_size, rows_of
from rmq_store import Store

Make = Callable[[Path, Scratch], Path]

LOOK_S = 0.005
QUEUES_MAX = 10_000
LARGE_BODY_BYTES = 4 << 20
OPEN_FILES_MAX = 256

_ANONYMOUS = re.compile(rb"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


def medium(directory: Path, scratch: Scratch) -> Path:
    """1 GB, for `Scratch.once`."""
    return of_size(directory / "store", GB, scratch)


def many_queues(directory: Path, scratch: Scratch) -> Path:
    """10,000 queues of one topic, 100 messages each."""
    queues = scratch.rows(QUEUES_MAX)
    return make(directory / "store", 100 * queues, 100, scratch, queues=queues)


def few_queues(directory: Path, scratch: Scratch) -> Path:
    """The same messages in 4 queues."""
    return make(directory / "store", 100 * scratch.rows(QUEUES_MAX), 100, scratch)


def large_messages(directory: Path, scratch: Scratch) -> Path:
    """1 GB of messages of 4 MiB each."""
    rows = rows_of(GB // 10 if scratch.quick else GB, LARGE_BODY_BYTES)
    return make(directory / "store", rows, LARGE_BODY_BYTES, scratch)


class Watch:
    """Looks at processes as long as the block lasts; `peak_mb` of each by what `kinds()` calls it.

    `kinds`: {pid: kind}, asked each time, because processes come and go.
    """

    def __init__(self, kinds: Callable[[], dict[int, str]]) -> None:
        self.peak_mb: dict[str, float] = {}
        self._kinds = kinds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(LOOK_S):
            for pid, kind in self._kinds().items():
                with contextlib.suppress(OSError):
                    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_bytes())
                    if found:
                        self.peak_mb[kind] = max(self.peak_mb.get(kind, 0.0), int(found[1]) / 1000)


# -- the engine, without Spark ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def using(number: int, root: str) -> Iterator[Callable[[], int]]:
    """One process of a crew: reads everything, looks a message up, appends some."""

    def once() -> int:
        with Store.open(root) as store:
            rows = read_rows(store)
            assert store.query.by_key(TOPIC, key_of(1))
            store.append(plain(20_000, 100, first=10**9), TOPIC)
        return rows

    yield once


def use_mb(root: Path) -> float:
    """The most that a process of its own needs."""
    with Crew(1, using, str(root)) as crew, Watch(lambda: dict.fromkeys(crew.pids, "user")) as watch:
        crew.run()
    return watch.peak_mb["user"]


@contextlib.contextmanager
def using_stores(scratch: Scratch, ours: Make, yardstick: Make) -> Iterator[Pair]:
    """Megabytes."""
    roots = scratch.once(ours), scratch.once(yardstick)
    yield Pair(*(partial(use_mb, root) for root in roots))


@contextlib.contextmanager
def touching(number: int, root: str) -> Iterator[Callable[[], int]]:
    """One process of a crew: reads one message of each segment, and counts which files of the store are mapped."""

    def once() -> int:
        with Store.open(root, read_only=True) as store:
            start, end = store.queue_range(TOPIC, 0)
            step = max((end - start) // (2 * len(list((store.path / "commitlog").iterdir()))), 1)
            for at in range(start, end, step):
                for batch in store.read(TOPIC, 0, at, at + 1):
                    assert batch.num_rows == 1
            return Path("/proc/self/maps").read_text().count(f" {store.path}/")

    yield once


@contextlib.contextmanager
def mapping(scratch: Scratch) -> Iterator[Pair]:
    """Mapped files."""
    root = scratch.once(large)

    def ours() -> float:
        with Crew(1, touching, str(root)) as crew:
            return float(crew.run()[0].answer)

    yield Pair(ours, lambda: float(OPEN_FILES_MAX))


def _case(name: str, title: str, yardstick: str, settings: str, *stores: Make) -> Case:
    return Case(
        name=f"memory-{name}",
        title=title,
        group="memory",
        body_bytes=None,
        yardstick=yardstick,
        unit="MB",
        target=Target(1.15, at_least=False),
        settings=(settings, _JOB),
        prepare=partial(using_stores, ours=stores[0], yardstick=stores[1]),
        limit=_LIMIT,
    )


_JOB = (
    "One process without Spark opens the store for writing, reads every queue, all columns, looks one message up by "
    "its key, and appends 20,000 messages of 100 B. RssAnon is sampled every 5 ms."
)
_LIMIT = (
    "Batches that are under way, up to four areas of memory that are kept for the next batches, and 30 MB of "
    "Python, numpy, pyarrow and the engine."
)

CASES = (
    _case("20-gb", "memory of a process, 20 GB", "the same with 1 GB", "2 KiB bodies.", large, medium),
    _case(
        "10000-queues", "memory of a process, 10,000 queues", "the same messages in 4 queues",
        "100 messages of 100 B in each queue.", many_queues, few_queues,
    ),
    _case(
        "4-mib", "memory of a process, 4 MiB messages", "2 KiB messages of 1 GB as well", "1 GB.",
        large_messages, medium,
    ),
    Case(
        name="memory-maps",
        title="files that a reader of 20 GB has mapped",
        group="memory",
        body_bytes=None,
        yardstick="the limit that the engine sets itself",
        unit="maps",
        target=Target(1, at_least=False),
        settings="One message of each of some 320 segments is read.",
        prepare=mapping,
        limit="`OPEN_FILES_MAX` of the engine: the least recently used files are closed.",
    ),
)  # fmt: skip
