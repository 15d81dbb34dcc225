"""A tiny store with one file of every kind, in the states in which it can be found, and put back after each cycle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

TOPICS = ("Orders", "Others")
GROUP = "billing"
RECORD_BYTES = 256  # so that one wrong bit of an offset leads to another record of the same size
MESSAGES = 16  # in each topic, one after the other
UNIT = ("sink", "query")
UNIT_VALUE = 5
_NOW_MS = 1_700_000_000_000

Rows = dict[tuple[str, int], tuple[bytes, str]]
"""(topic, queue offset asked for) -> (body, keys)."""


def make(root: Path) -> Rows:
    """Make the store, cleanly closed; returns what a reader gets."""
    import pyarrow as pa

    from rmq_store import Message, StagingArea, Store, StoreConfig, SubscriptionGroup
    from rmq_store.broker.metadata.offsets import DelayOffsetTable
    from rmq_store.broker.write import units

    config = StoreConfig(
        mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=16, max_index_num=40,
        flush_interval_commit_log=10**9,
    )  # fmt: skip
    clock = _Clock()
    with Store.open(root, create=True, config=config, clock=clock) as store:
        for topic in TOPICS:
            store.create_topic(topic, queue_count=1)
        store.send(Message("Orders", b"", tags="T", keys="k000"))
        missing = RECORD_BYTES - store.log_range()[1]
    shutil.rmtree(root)
    with Store.open(root, create=True, config=config, clock=clock) as store:
        for topic in TOPICS:
            store.create_topic(topic, queue_count=1)
        store.create_group(SubscriptionGroup(GROUP))
        for number in range(2 * MESSAGES):
            body = (b"%s %03d " % (TOPICS[number % 2].encode(), number)).ljust(missing, b".")
            store.send(Message(TOPICS[number % 2], body, tags="T", keys=f"k{number:03d}"))
        store.commit_offsets(GROUP, {("Orders", 0): 3})
        store.commit_offsets(GROUP, {("Others", 0): 9})
        DelayOffsetTable(root).advance({3: 0, 4: 0})
        kept, units._SAVE_AFTER = units._SAVE_AFTER, 1
        for value in (4, UNIT_VALUE):
            with StagingArea.for_task(root, "write", 0, 0, topic="Others") as area:
                area.write(pa.RecordBatch.from_pydict({"body": [b"%d" % value]}))
                staged = area.finish()
            assert staged is not None
            store.commit_staged([staged], purpose=UNIT[0], key=UNIT[1], value=value)
        store.last_unit(*UNIT)
        units._SAVE_AFTER = kept
        store.pop.receive(GROUP, "Orders", 2, 60_000)
    return read_rows(root)


class _Clock:
    """Every look is a second later, so that times tell records apart."""

    def __init__(self) -> None:
        self.now_ms = _NOW_MS

    def __call__(self) -> int:
        self.now_ms += 1000
        return self.now_ms


def kill(root: Path, send: bool = True) -> None:
    """Open the store, perhaps append, and die: locks are gone, everything else stays as it is."""
    from rmq_store import Message, Store

    store = Store.open(root, clock=_Clock())
    if send:
        store.send(Message("Orders", b"the last one", keys="last"))
    assert store._flusher is not None
    store._flusher.stop()
    store._log.close()


def reboot(root: Path) -> None:
    """Another boot than that in which the state page was written."""
    with (root / "pyrmq" / "state").open("r+b") as page:
        page.seek(8)
        page.write(b"\x01" * 16)


def broker_was_here(root: Path) -> None:
    """A broker wrote last, and was killed."""
    with (root / "lock").open("r+b") as lock:
        lock.write(b"lock")


def read_rows(root: Path, **options: Any) -> Rows:
    """Every message that can be asked for, by the place that was asked; errors of damaged ones are passed over."""
    from rmq_store import Store

    with Store.open(root, read_only=True, **options) as store:
        return rows_of(store)


def rows_of(store: Any) -> Rows:
    from rmq_store import StoreError

    rows: Rows = {}
    for topic in TOPICS:
        first, last = store.queue_range(topic, 0)
        try:
            found = _read(store, topic, first, last)
        except StoreError:
            found = []
            for offset in range(first, last):
                with suppress(StoreError):
                    found += [(offset, row) for _, row in _read(store, topic, offset, offset + 1)]
        rows.update(((topic, offset), row) for offset, row in found)
    return rows


def _read(store: Any, topic: str, first: int, last: int) -> list[tuple[int, tuple[bytes, str]]]:
    found: list[tuple[int, tuple[bytes, str]]] = []
    for batch in store.read(topic, 0, first, last, columns=["body", "keys"]):
        columns = batch.column("body").to_pylist(), batch.column("keys").to_pylist()
        found += [(first + len(found) + n, row) for n, row in enumerate(zip(*columns, strict=True))]
    return found


class Pristine:
    """The bytes of a directory, to put back. Files keep their inodes where they were only written to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        self.directories = {path for path in root.rglob("*") if path.is_dir()}

    def restore(self) -> None:
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if path not in self.directories:
                    path.rmdir()
            elif path not in self.files:
                path.unlink()
        for path in sorted(self.directories):
            path.mkdir(exist_ok=True)
        for path, data in self.files.items():
            if not path.exists():
                path.write_bytes(data)
            elif path.read_bytes() != data:
                fd = os.open(path, os.O_WRONLY)
                os.ftruncate(fd, len(data))
                os.pwrite(fd, data, 0)
                os.close(fd)

    def flip(self, path: Path, bits: list[int]) -> None:
        data = bytearray(self.files[path])
        for bit in bits:
            data[bit >> 3] ^= 1 << (bit & 7)
        with path.open("r+b") as file:
            file.write(data)


States = dict[str, Pristine]


def states(directory: Path) -> tuple[States, dict[str, Rows], Rows]:
    """The store as it can be found: `clean`, `killed` (in this boot), `rebooted` (and not closed), `broker` (killed).

    Also what a reader of each gets.
    """
    made: dict[str, Callable[[Path], None]] = {
        "clean": lambda root: None,
        "killed": kill,
        "rebooted": lambda root: (kill(root), reboot(root))[-1],
        "broker": lambda root: (kill(root), broker_was_here(root))[-1],
    }
    found, rows = {}, {}
    first: Rows = {}
    for name, change in made.items():
        root = directory / name
        first = make(root)
        change(root)
        found[name] = Pristine(root)
        rows[name] = read_rows(root)
        found[name].restore()
    return found, rows, first
