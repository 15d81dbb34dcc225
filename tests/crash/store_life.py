"""A chance-made life of one store while everything that it does to its files is recorded.

Messages one by one and in batches over rolled files, units, delayed deliveries, committed offsets, new topics, flushes,
clean stops and kills; and at each step what had been acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa

from crash.disk_image import Image
from crash.dying import BEFORE_BOOT
from crash.pieces import write_in_small_pieces
from crash.recorded_disk import IDENTITIES, Recorder
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.write.flusher import Flusher
from rmq_store.files.locks import state_page
from rmq_store.log.append import append as append_module
from rmq_store.log.append import flush as flush_module
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord

GROUP = "readers"
TOPICS = ("T0", "T1")
UNIT = ("sink", "query")
SLOTS = 110  # of an index file: its header and slots fill more than one sector


def tiny_config(flush_disk_type: str) -> StoreConfig:
    """Every kind of file rolls often; flushes are steps of a life."""
    return StoreConfig(
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=SLOTS,
        max_index_num=40,
        flush_disk_type=flush_disk_type,
        default_topic_queue_nums=2,
        flush_interval_commit_log=10**9,
    )


@dataclass(slots=True)
class Promise:
    """What holds from operation `at` on. `end`: where the log ends at least; `offset`: what the group committed;
    `written`: where the log ended, promised or not.
    """

    at: int
    end: int = 0
    offset: int = 0
    topics: frozenset[str] = frozenset()
    written: int = 0


class Workplace:
    """A directory in which images are laid out; a `boot` of the kernel lasts until the next one is."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "store"
        self.keep = directory / "kept"
        self.keep.mkdir()
        self._boots = 0

    def reboot(self) -> None:
        self._boots += 1

    def boot_id(self) -> bytes:
        return self._boots.to_bytes(16, "big")

    def lay_out(self, image: Image) -> None:
        """Make the store's directory what the image says. Files that hold their own inode number are given by name."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        base = f"{self.root}/"
        for path in sorted(image.directories):
            if path:
                Path(base + path).mkdir()
        for path, (inode, data) in image.files:
            kept = f"{self.keep}/{inode}" if path in IDENTITIES else ""
            if kept:
                os.link(kept, base + path)
            fd = os.open(base + path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
            if path == "pyrmq/state":
                os.utime(base + path, BEFORE_BOOT)


@dataclass
class Life:
    """One recording."""

    steps: ClassVar[tuple[str, ...]] = (
        *["send"] * 6, *["batch"] * 3, *["unit"] * 3, *["offsets"] * 2, "topic", "flush", "flush", "progress", "reopen",
        "killed", "delayed",
    )  # fmt: skip
    step_count: ClassVar[tuple[int, int]] = (4, 14)

    place: Workplace
    chance: random.Random
    config: StoreConfig
    numbers: Iterator[int]
    recorder: Recorder
    now_ms: int
    promises: list[Promise] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)  # operation, offset of the group asked for from then on
    units: list[tuple[int, int]] = field(default_factory=list)

    def clock(self) -> int:
        self.now_ms += 700
        return self.now_ms

    def open(self) -> Store:
        write_in_small_pieces()
        return Store.open(self.place.root, create=True, config=self.config, clock=self.clock)

    def promise(self, store: Store, *, offset: int | None = None) -> None:
        """Write down what has been acknowledged up to now."""
        end = self.promised_end(store)
        self.recorder.catch_up()
        known = self.promises[-1].offset if offset is None else offset
        written = store._log.writing_page.appended_end
        topics = frozenset(store.topics())
        self.promises.append(Promise(len(self.recorder.operations), end, known, topics, written))

    def promised_end(self, store: Store) -> int:
        """Up to where the log survives a power cut."""
        page = store._log.writing_page
        return page.appended_end if self.config.flush_disk_type == "SYNC_FLUSH" else page.flushed_end

    def live(self) -> None:
        """Open the store, do what chance says, and end somehow. A new one begins with many files of every kind, before
        anything else is on disk.
        """
        store = self.open()
        self.promise(store)
        if not store.log_range()[1]:
            store.append(self._rows(40))
            self.promise(store)
        for _ in range(self.chance.randint(*self.step_count)):
            step = self.chance.choice(self.steps)
            store = getattr(self, f"_{step}")(store) or store
            self.promise(store)
        if self.chance.random() < 0.5:
            store.close()
            self.promise(store)
        else:
            kill(store)

    def _message(self, **options: Any) -> Message:
        number = next(self.numbers)
        body = b"%08d" % number + self.chance.randbytes(self.chance.choice((0, 40, 200, 900)))
        return Message(self.chance.choice(TOPICS), body, keys=f"K{number}", tags=f"G{number % 3}", **options)

    def _rows(self, count: int) -> pa.RecordBatch:
        messages = [self._message() for _ in range(count)]
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([message.topic for message in messages], pa.string()),
                "body": pa.array([message.body for message in messages], pa.binary()),
                "keys": pa.array([message.keys for message in messages], pa.string()),
            }
        )

    def _send(self, store: Store) -> None:
        store.send(self._message())

    def _batch(self, store: Store) -> None:
        store.append(self._rows(self.chance.choice((1, 3, 12))))

    def _unit(self, store: Store) -> None:
        assert store._writer is not None
        rows = store._writer._encoder(None).encode_all(self._rows(self.chance.choice((1, 4, 10))))
        store._writer._create_topics(list(rows.queues.items()))
        last = store.last_unit(*UNIT)
        with self._noting_units():
            store._writer.append_unit([rows.frames], UnitRecord(*UNIT, (last or 0) + 1), expect=last)

    def _delayed(self, store: Store) -> None:
        store.send(self._message(delay_level=1))
        self.now_ms += 1500
        with self._noting_units():
            store.schedule.deliver_due()

    @contextlib.contextmanager
    def _noting_units(self) -> Iterator[None]:
        """Remember the place of a unit before its records are written: an image may hold a part of them."""
        writing_records = append_module._writing_records

        def call(log: CommitLog, part: Any, *arguments: Any) -> contextlib.AbstractContextManager[None]:
            self.units.append((int(part.layout.offsets[0]), part.layout.end))
            return writing_records(log, part, *arguments)

        with patch.object(append_module, "_writing_records", call):
            yield

    def _offsets(self, store: Store) -> None:
        wanted = self.promises[-1].offset + 1
        self.begun.append((len(self.recorder.operations), wanted))
        store.commit_offsets(GROUP, {(TOPICS[0], 0): wanted, (TOPICS[0], 1): 2 * wanted})
        self.promise(store, offset=wanted)

    def _topic(self, store: Store) -> None:
        store.create_topic(f"New{next(self.numbers)}", 1)

    def _flush(self, store: Store) -> None:
        store.flush()

    def _progress(self, store: Store) -> None:
        flush_module.save_progress(store._log)

    def _reopen(self, store: Store) -> Store:
        store.close()
        return self.open()

    def _killed(self, store: Store) -> Store:
        kill(store)
        return self.open()


def kill(store: Store) -> None:
    """What is left of a store whose process was killed: files, a page in memory, and no lock."""
    store._closed = True
    store._log.close()


@contextlib.contextmanager
def engine(place: Workplace, seed: str) -> Iterator[None]:
    """The engine without threads, in boots of our own, silent, and with the same chance each time."""
    log = logging.getLogger("rmq_store")
    level, state = log.level, random.getstate()
    random.seed(seed)
    with (
        patch.object(Flusher, "start", lambda self: None),
        patch.object(Flusher, "stop", lambda self: None),
        patch.object(state_page, "boot_id", place.boot_id),
        patch.object(os, "getpid", lambda: 4242),  # a part of unique ids, and so of places in the index
    ):
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)
            random.setstate(state)
