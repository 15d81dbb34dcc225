"""Test 22: descriptors, maps, threads and memory, after thousands of openings, rolls and deletions.

A forked process opens and closes one store again and again, with some traffic in between, and keeps another one open,
in which segments are begun and deleted. After a warm-up all it holds is counted; at the end it must hold as much, to
the last descriptor and map, and hardly more memory. Then it uses thousands of queues at once: files of a store that are
open are few, whatever it has.

The journal of a group's pops is history up to 1 MiB, and each opener reads all of it: half a KiB more memory for each
opening, until it is replaced. Here it is replaced at 4 KiB, and what is left of the growth is less than a tenth.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crash.dying import quiet
from crash.part import Counters, Part, Trial
from crash.protections import protection

if TYPE_CHECKING:
    from rmq_store import Store

OPENINGS_PER_ROLL = 5
# A fifth of the openings comes before anything is counted. Python's table of names is made twice as large once on the
# way, which is 2 MiB or more at once. So the memory is looked at half-way too: what leaks grows in both halves.
WARM_UP_PART = 5
_JOURNAL_BYTES = 4096
# Beyond this growth, twice that of the half in which it is smaller, something is kept.
GROWTH_BYTES_MAX = 4 << 20

QUEUES_PER_TOPIC = 1000
# Files of a store that are open at once (OPEN_FILES_MAX), and what a process needs besides. Python's maps have a
# descriptor of their own. Far from 1,024 descriptors, which a process often may have, and 65,530 maps.
LIMITS = {"descriptors": 2 * 256 + 64, "maps": 256 + 64}

START_MS = 4_000_000_000_000  # segments expire by the time of their files
_libc = ctypes.CDLL(None)


def run(trial: Trial) -> Counters:
    """Everything happens in a child, whose memory nobody else has used."""
    quiet()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            from rmq_store.broker.pop import pop_journal

            pop_journal.COMPACT_BYTES = _JOURNAL_BYTES
            answer = _cycles(trial, lambda count: os.write(write_end, b"%d\n" % count))
            os.write(write_end, json.dumps(answer).encode() + b"\n")
        except BaseException:
            os.write(write_end, json.dumps({"broken": 1, "first": traceback.format_exc()[-2000:]}).encode() + b"\n")
        os._exit(0)
    os.close(write_end)
    counters = Counters()
    with os.fdopen(read_end) as lines:
        for line in lines:
            told = json.loads(line)
            if isinstance(told, int):
                counters.cycles += told
                trial.tick(told)
            else:
                counters.broken += told["broken"]
                counters.note(told["first"])
                counters.acknowledged += told.get("acknowledged", 0)
                counters.seen.update(told.get("seen", {}))
    os.waitpid(child, 0)
    return counters


@dataclass(frozen=True)
class Held:
    """What a process holds of the store below some directory, and its memory."""

    descriptors: int
    maps: int
    deleted: int
    threads: int
    memory_bytes: int

    @classmethod
    def now(cls, root: Path) -> Held:
        maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(root) in line]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the descriptor of the listing is in every count
            len(maps),
            sum("(deleted)" in line for line in maps),
            threading.active_count(),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


def _settled(root: Path) -> Held:
    """The same, when the allocators have given back what they can."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    _libc.malloc_trim(0)
    return Held.now(root)


def _cycles(trial: Trial, tick: Callable[[int], Any]) -> dict[str, Any]:
    chance = random.Random(trial.seed)
    shutil.rmtree(trial.directory / "stores", ignore_errors=True)
    roots = trial.directory / "stores"
    roots.mkdir()
    rolls = _Rolls(roots / "rolled", chance)
    opened = _Openings(roots / "opened", chance)
    warm_up = trial.cycles // WARM_UP_PART
    half_way = (warm_up + trial.cycles) // 2
    looks: list[Held] = []
    for cycle in range(trial.cycles):
        opened.cycle()
        if cycle % OPENINGS_PER_ROLL == 0:
            rolls.cycle()
        if cycle in (warm_up, half_way):
            rolls.close()
            looks.append(_settled(roots))
            rolls.open()
        tick(1)
    deleted = _settled(roots).deleted
    rolls.close()
    before, middle, after = *looks, _settled(roots)
    found = [
        f"{name}: {getattr(before, name)} after the warm-up, {getattr(after, name)} at the end"
        for name in ("descriptors", "maps", "threads")
        if getattr(before, name) != getattr(after, name)
    ]
    growth = 2 * min(middle.memory_bytes - before.memory_bytes, after.memory_bytes - middle.memory_bytes)
    if growth > GROWTH_BYTES_MAX:
        found.append(f"{growth} bytes more memory after {trial.cycles - warm_up} cycles")
    if deleted:
        found.append(f"{deleted} maps of files that are deleted")
    peak = _many_queues(roots / "queues", 10 if trial.cycles >= 1000 else 2)
    found += [f"{peak[name]} {name} with {peak['queues']} queues" for name in LIMITS if peak[name] > LIMITS[name]]
    messages = opened.messages + rolls.messages
    seen = {
        "openings": trial.cycles, "segments deleted": rolls.deleted, "queues": peak["queues"],
        "most descriptors": peak["descriptors"], "most maps": peak["maps"], "KiB grown": max(growth, 0) >> 10,
    }  # fmt: skip
    return {"broken": len(found), "first": "; ".join(found), "seen": seen, "acknowledged": messages}


def _config(**settings: Any) -> Any:
    from rmq_store import StoreConfig

    return StoreConfig(
        **{
            "mapped_file_size_commit_log": 16384, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 64,
            "max_index_num": 200, "message_delay_level": "1s 5s", "disk_space_warning_level_ratio": 100, **settings,
        }
    )  # fmt: skip


class _Openings:
    """A store that is opened, used and closed."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._now_ms = START_MS
        self.messages = 0

    def cycle(self) -> None:
        from rmq_store import Store

        self._now_ms += 2000
        with Store.open(self._root, create=True, config=_config(), clock=lambda: self._now_ms) as store:
            for _ in range(3):
                _send(store, self._chance)
            self.messages += 3
            if self._chance.random() < 0.3:
                store.schedule.deliver_due()
                for one in store.pop.receive("cg", "Alpha", 4, 1000):
                    store.pop.ack("cg", "Alpha", one.receipt_handle)
                store.commit_offsets("cg", {("Alpha", 0): 1})
            if self._chance.random() < 0.1:
                with Store.open(self._root, read_only=True) as reader:
                    _read(reader)
            if self._chance.random() < 0.05:
                store.retention.run(manual=True, file_reserved_time=0)


class _Rolls:
    """A store that stays open while segments are begun and deleted."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._now_ms = START_MS
        self.deleted = 0
        self.messages = 0
        self.open()

    def open(self) -> None:
        from rmq_store import Store

        self._store = Store.open(self._root, create=True, config=_config(), clock=lambda: self._now_ms)

    def cycle(self) -> None:
        self._now_ms += 2000
        for _ in range(12):
            _send(self._store, self._chance, size_bytes=1500)
        self.messages += 12
        _read(self._store)
        self._store.schedule.deliver_due()
        self.deleted += len(self._store.retention.run(manual=True, file_reserved_time=0).removed)

    def close(self) -> None:
        self._store.close()
        del self._store


def _send(store: Store, chance: random.Random, size_bytes: int = 100) -> None:
    from rmq_store import Message

    properties = {"DELAY": "1"} if chance.random() < 0.2 else {}
    store.send(Message("Alpha", b"." * chance.randrange(size_bytes), tags="T", keys="K", properties=properties))


def _read(store: Store) -> None:
    """Some of each queue, as Arrow arrays over maps that must not outlive them."""
    for queue_id, (first, last) in store.queue_ranges("Alpha").items():
        for batch in store.read("Alpha", queue_id, max(first, last - 20), last):
            assert batch.num_rows


def _many_queues(root: Path, topics: int) -> dict[str, int]:
    """Write and read thousands of queues; what is open at most."""
    import pyarrow as pa

    from rmq_store import Store

    peak = {"queues": topics * QUEUES_PER_TOPIC, "descriptors": 0, "maps": 0}

    def look() -> None:
        held = Held.now(root)
        peak["descriptors"] = max(peak["descriptors"], held.descriptors)
        peak["maps"] = max(peak["maps"], held.maps)

    with Store.open(root, create=True, config=_config(mapped_file_size_commit_log=1 << 20)) as store:
        for number in range(topics):
            store.create_topic(f"T{number}", QUEUES_PER_TOPIC)
            rows = {
                "topic": pa.array([f"T{number}"] * QUEUES_PER_TOPIC),
                "queueId": pa.array(range(QUEUES_PER_TOPIC), pa.int32()),
                "body": pa.array([b"x"] * QUEUES_PER_TOPIC, pa.binary()),
            }
            store.append(pa.RecordBatch.from_pydict(rows))
            look()
        for number in range(topics):
            for queue_id in range(0, QUEUES_PER_TOPIC, 7):
                assert sum(batch.num_rows for batch in store.read(f"T{number}", queue_id, 0, 1)) == 1
            look()
    return peak


@protection("bounded_files", "the least recently used files of a store are closed")
def _no_bound() -> Iterator[None]:
    from rmq_store.files.segments.open_files import OpenFiles

    with mock.patch.object(OpenFiles.__init__, "__defaults__", (1 << 30,)):
        yield


@protection("closed_locks", "who closes a store closes its lock files")
def _no_closed_locks() -> Iterator[None]:
    from rmq_store.files.locks.lock import OfdLock

    with mock.patch.object(OfdLock, "close", lambda lock, timeout_ms=0: lock.release()):
        yield


@protection("forgotten_files", "a file that is deleted is not kept open")
def _no_forgotten_files() -> Iterator[None]:
    from rmq_store.files.segments.open_files import OpenFiles

    with (
        mock.patch.object(OpenFiles, "forget", lambda files, path: None),
        mock.patch.object(OpenFiles, "_let_go", lambda files: None),
    ):
        yield


PARTS = (
    Part(
        "leaks", "22", "descriptors, maps, threads and memory after openings, rolls and deletions", "openings",
        harness=500, crash=2500, soak=10_000, chunk=2500, run=run,
        protections=("bounded_files", "closed_locks", "forgotten_files"), bites_within=60,
    ),
)  # fmt: skip
