"""One writer, four readers and a cleaner that deletes all but the newest few segments, at the same time, in processes
of their own. A segment lives for some hundredths of a second.

A reader does one of three things, and whatever it gets must be right:

    read    a random range, message by message. All of it comes, with its bytes, or OffsetOutOfRangeError
    view    keep the mapped bytes of the oldest segment, until its file is gone and some more: they stay what they were
    pin     pin the whole log, wait, and then read all of it. With a patient cleaner all that was pinned must be there

In every second cycle the cleaner has no patience and takes segments from readers by force. A cycle is a second. Message
`n` of the only queue says that it is number `n`, and has a CRC-32 of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crash.dying import quiet
from crash.part import Counters, Part, Trial
from crash.protections import protection

if TYPE_CHECKING:
    from rmq_store import Store

TOPIC = "Race"
READERS = 4
CYCLE_S = 1.0
SEGMENT_BYTES = 64 << 10

# The cleaner leaves so many segments, the writer waits for it at so many.
KEPT, SEGMENTS_MAX = 5, 40

_NUMBER_BYTES, _CRC_BYTES = 8, 4
_ROWS = 40
_LEAST_S = 0.01

# A guard against hanging only.
_PATIENCE_S = 60.0


def run(trial: Trial) -> Counters:
    """Cycles in one store, and a look at all of it after each."""
    from rmq_store import Store, StoreConfig, StoreError

    quiet()
    root = trial.directory / "store"
    config = StoreConfig(
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=4000,
        max_hash_slot_num=64,
        max_index_num=500,
        flush_interval_commit_log=5,
        disk_space_warning_level_ratio=100,
        delete_file_batch_max=3,
        delete_commit_log_files_interval=0,
    )
    with Store.open(root, create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=1)
    counters = Counters()
    for cycle in range(trial.cycles):
        found = Counters(cycles=1)
        try:
            _cycle(root, random.Random(f"{trial.seed}/{cycle}"), cycle % 2 == 0, found)
        except StoreError as error:
            _break(found, f"cannot be opened or read: {type(error).__name__}: {error}")
        if found.violations:
            found.first = f"cycle {cycle}: {found.first}"
        counters.add(found)
        trial.tick(1)
    return counters


def _cycle(root: Path, chance: random.Random, is_patient: bool, found: Counters) -> None:
    from rmq_store import Store
    from rmq_store.verify import verify_store

    with Store.open(root) as store:
        patience_ms = int(_PATIENCE_S * 1000) if is_patient else 0
        store.retention.configure(destroy_maped_file_interval_forcibly=patience_ms)
        before = store.queue_range(TOPIC, 0).max_offset
    works: list[Callable[[random.Random, Counters], None]] = [partial(_write, root), partial(_clean, root)]
    works += [partial(_read, root, is_patient)] * READERS
    for result in [_start(work, random.Random(chance.random())) for work in works]:
        found.add(result())
    with Store.open(root) as store:
        first, last = store.queue_range(TOPIC, 0)
        _check(store, first, last, found)
    there = last - before
    if there != found.acknowledged:
        found.lost += max(found.acknowledged - there, 0)
        found.duplicated += max(there - found.acknowledged, 0)
        found.note(f"{found.acknowledged} messages acknowledged, {there} there")
    for problem in verify_store(root).problems[:1]:
        _break(found, str(problem))


def _start(work: Callable[[random.Random, Counters], None], chance: random.Random) -> Callable[[], Counters]:
    """Fork; the call of what is returned waits for the process and gives what it counted."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        counters = Counters()
        try:
            signal.alarm(int(_PATIENCE_S))
            work(chance, counters)
        except BaseException as error:
            _break(counters, f"{work}: {type(error).__name__}: {error}")
        with os.fdopen(send, "w") as pipe:
            names = ("acknowledged", "altered", "broken", "first")
            json.dump({**{name: getattr(counters, name) for name in names}, "seen": counters.seen}, pipe)
        os._exit(0)
    os.close(send)

    def result() -> Counters:
        with os.fdopen(receive) as pipe:
            text = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        counters = Counters()
        if status:
            _break(counters, f"{work} ended with {status}")  # -7: SIGBUS
            return counters
        told = json.loads(text)
        counters.seen.update(told.pop("seen"))
        for name, value in told.items():
            setattr(counters, name, value)
        return counters

    return result


def _write(root: Path, chance: random.Random, counters: Counters) -> None:
    import pyarrow as pa

    from rmq_store import Store

    with Store.open(root) as store:
        number = store.queue_range(TOPIC, 0).max_offset
        for _ in _until(CYCLE_S):
            if _segments(root) >= SEGMENTS_MAX:
                time.sleep(_LEAST_S)
                continue
            bodies = [_body(number + row, chance) for row in range(_ROWS)]
            keys = [f"K{number + row}" for row in range(_ROWS)]
            store.append(pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), "keys": keys}), TOPIC)
            number += _ROWS
            counters.acknowledged += _ROWS


def _segments(root: Path) -> int:
    return sum(1 for _ in (root / "commitlog").iterdir())


def _body(number: int, chance: random.Random) -> bytes:
    data = number.to_bytes(_NUMBER_BYTES, "big") + chance.randbytes(chance.randrange(100, 3000))
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def _clean(root: Path, chance: random.Random, counters: Counters) -> None:
    from rmq_store import Store

    with Store.open(root) as store:
        for _ in _until(CYCLE_S):
            if _segments(root) <= KEPT:
                time.sleep(_LEAST_S / 10)
                continue
            report = store.retention.run(manual=True, file_reserved_time=0)
            counters.seen["segments deleted"] += len(report.removed)
            counters.seen["taken by force"] += sum(fate.goes and fate.is_kept for fate in report.plan.segments)
            counters.seen["files of views deleted"] += report.queue_files + report.index_files
            if not report.removed:
                counters.seen["kept by a reader"] += 1
                time.sleep(_LEAST_S / 10)


def _read(root: Path, is_patient: bool, chance: random.Random, counters: Counters) -> None:
    from rmq_store import OffsetOutOfRangeError, Store

    for _ in _until(CYCLE_S):
        with Store.open(root, read_only=True) as store:
            for _ in range(5):
                try:
                    _look(store, chance, is_patient, counters)
                except OffsetOutOfRangeError as error:
                    if not error.requested < error.minimum <= error.maximum:
                        _break(counters, f"no range that anybody could go on with: {error}")
                    counters.seen["out of range"] += 1


def _look(store: Store, chance: random.Random, is_patient: bool, counters: Counters) -> None:
    kind = chance.choice(("read", "read", "view", "pin"))
    if kind == "read":
        first, last = store.queue_range(TOPIC, 0)
        if first < last:
            start = chance.randrange(first, last)
            time.sleep(chance.choice((0, _LEAST_S)))  # what it was told may have gone when it comes back
            _check(store, start, chance.randrange(start, last) + 1, counters)
    elif kind == "view":
        _keep_view(store, chance, counters)
    else:
        _pin(store, chance, is_patient, counters)
    counters.seen[kind] += 1


def _check(store: Store, start: int, end: int, counters: Counters) -> None:
    """Every message of [start, end) is there, in order, with its own bytes."""
    number = start
    for batch in store.read(TOPIC, 0, start, end, columns=["body"]):
        for body in batch.column("body").to_pylist():
            if int.from_bytes(body[:_NUMBER_BYTES], "big") != number:
                counters.altered += 1
                counters.note(f"message {number} says that it is another one")
            elif zlib.crc32(body[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "big") != body[-_CRC_BYTES:]:
                counters.altered += 1
                counters.note(f"message {number} has other bytes")
            number += 1
    if number != end:
        _break(counters, f"[{start}, {end}) was read up to {number}")
    counters.seen["messages read"] += number - start


def _keep_view(store: Store, chance: random.Random, counters: Counters) -> None:
    segments = store._log.segments
    base = store.log_range()[0]
    try:
        view = memoryview(segments.open(base).buffer)
    except FileNotFoundError:
        return
    if base + SEGMENT_BYTES > store.log_range()[1]:
        return  # somebody still writes to it
    before = zlib.crc32(view)
    store._log.files.forget(str(segments.path(base)))  # the map stays, what kept the file does not
    for _ in _until(chance.uniform(0, 0.1)):
        if not segments.exists(base):
            counters.seen["views that outlived their file"] += 1
            break
        time.sleep(_LEAST_S / 10)
    if zlib.crc32(view) != before:
        counters.altered += 1
        counters.note(f"the bytes of segment {base} changed under a view")


def _pin(store: Store, chance: random.Random, is_patient: bool, counters: Counters) -> None:
    from rmq_store import OffsetOutOfRangeError

    start, end = store.log_range()
    with store.pin(start, end) as pin:
        if pin.start > start:  # the cleaner was there before: its file may still be seen, and goes
            counters.seen["pinned a part"] += 1
            return
        first, last = store.queue_range(TOPIC, 0)
        time.sleep(chance.uniform(0, 0.03))
        try:
            _check(store, first, last, counters)
            counters.seen["pinned ranges read"] += 1
        except OffsetOutOfRangeError as error:
            if is_patient:
                _break(counters, f"[{first}, {last}) was pinned, and went: {error}")
            counters.seen["pins taken by force"] += 1


def _until(seconds: float) -> Iterator[None]:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield


def _break(counters: Counters, reason: str) -> None:
    counters.broken += 1
    counters.note(reason)


@protection("pins", "a segment that a reader keeps stays until it is free, or the cleaner's patience has ended")
def _no_pins() -> Iterator[None]:
    import contextlib

    from rmq_store.broker.store import retention
    from rmq_store.files.segments import pin

    @contextlib.contextmanager
    def alone(path: Path) -> Iterator[bool]:
        yield True

    with mock.patch.object(pin, "alone", alone), mock.patch.object(retention, "is_pinned", lambda path: False):
        yield


@protection("oldest_first", "segments go from the oldest on, so the log has no hole")
def _any_order() -> Iterator[None]:
    from rmq_store.log import retention

    removable = retention.removable

    def newest_first(log: Any, end: int) -> list[int]:
        return removable(log, end)[::-1]

    def remove(log: Any, base: int, *, forced: bool) -> bool:
        log.segments.remove(base)
        return True

    with (
        mock.patch.object(retention, "removable", newest_first),
        mock.patch.object(retention, "remove_segment", remove),
    ):
        yield


PARTS = (
    Part(
        name="retention_race",
        number="18",
        title="one writer, four readers, and a cleaner that deletes all the time",
        unit="seconds",
        harness=8,
        crash=60,
        soak=600,
        chunk=30,
        run=run,
        protections=("pins", "oldest_first"),
        bites_within=4,
    ),
)
