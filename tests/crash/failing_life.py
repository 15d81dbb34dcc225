"""One life of a store in which one call fails, or all from one on: what the parts of `failing_calls` do and check.

A scenario prepares a store, then does what may fail, then everything works again. Whatever failed: only errors of our
own types leave the engine; what was acknowledged is there once; what was refused is not; after a failed fsync of the
log nothing is acknowledged until the store was opened anew, and what that opener does not write again is lost with the
next power cut, because the kernel has taken those pages for clean.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from crash.kill import forget_boot
from crash.oracle import make_body, read_body
from crash.part import Counters
from rmq_store import Message, StagingArea, Store, StoreConfig
from rmq_store.errors import StagingError, StoreError, StoreFullError
from rmq_store.files import durable
from rmq_store.verify import verify_store

TOPIC = "Orders"
_QUEUES = 2
_SEGMENT_BYTES = 8192
_GROUP = "readers"
_DAY_MS = 86_400_000

TINY = StoreConfig(
    mapped_file_size_commit_log=_SEGMENT_BYTES, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=50, flush_interval_commit_log=10**9, default_topic_queue_nums=_QUEUES,
)  # fmt: skip

Fired = Callable[[], tuple[str, str] | None]
"""(operation, path) of the first call that was made to fail; None if none was."""


@dataclass(slots=True)
class Doomed:
    """Bytes of the log that the kernel takes for clean although they never reached the disk."""

    start: int
    end: int


@dataclass
class Life:
    """One run; `fired` says what has failed so far."""

    root: Path
    chance: random.Random
    counters: Counters
    fired: Fired
    config: StoreConfig = TINY
    payload_bytes_max: int = 400
    sync: bool = False
    name: str = ""
    store: Store | None = None
    now_ms: int = 1_700_000_000_000
    next: int = 0
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    delayed: set[int] = field(default_factory=set)
    calls: list[range] = field(default_factory=list)
    offsets: set[int] = field(default_factory=lambda: {-1})
    doomed: Doomed | None = None
    noted: bool = False
    written: list[tuple[int, int]] = field(default_factory=list)
    ends: tuple[int, int] = (0, 0)
    units: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    count_fsyncs: Callable[[], int] | None = None

    # -- doing ----------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        self.now_ms += 7
        return self.now_ms

    def open(self) -> None:
        flush_disk_type = "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH"
        config = replace(self.config, flush_disk_type=flush_disk_type)
        self.store = Store.open(self.root, create=True, config=config, clock=self.clock)

    def begin(self, count: int) -> None:
        """A store with some messages, on disk."""
        self.open()
        self.opened.create_topic(TOPIC, _QUEUES)
        self.append(count)
        self.opened.flush()

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def abandon(self, *, reboot: bool = False) -> None:
        """The process is gone, or the whole machine: nothing was closed."""
        store = self.opened
        page = store._log.writing_page
        self.ends = page.flushed_end, page.appended_end
        assert store._flusher is not None
        store._flusher.stop()
        store._closed = True
        store._log.close()
        self.store = None
        if reboot:
            self.reboot()

    def reboot(self) -> None:
        forget_boot(self.root)

    def attempt(self, what: Callable[[], object], sequences: range = range(0), *, put: bool = True) -> bool:
        """Make a call that may fail; returns whether it was acknowledged."""
        failed_before = self._note_failed_fsync()
        self.calls.append(sequences)
        fsyncs = self.count_fsyncs() if self.count_fsyncs else 0
        try:
            what()
        except StoreError as error:
            self.errors[type(error).__name__] += 1
            self._note_failed_fsync()
            # A call that says "nothing was written" can be made again; StoreFailedError says that nobody knows.
            if isinstance(error, StoreFullError | StagingError):
                self.refused.update(sequences)
            return False
        except MemoryError:
            self._note_failed_fsync()
            return False
        except BaseException as error:
            where = [
                f"{Path(frame.f_code.co_filename).name}:{line}"
                for frame, line in traceback.walk_tb(error.__traceback__)
                if "rmq_store" in frame.f_code.co_filename
            ]
            self.broken(f"{type(error).__name__} left the engine: {error}, through {' '.join(where[-4:])}")
            return False
        self.acknowledged.update(sequences)
        self.counters.acknowledged += len(sequences)
        if put and sequences:
            if failed_before:
                self.broken("acknowledged after an fsync of the log had failed")
            if self.sync and self.count_fsyncs and self.count_fsyncs() == fsyncs:
                self.broken("acknowledged under SYNC_FLUSH, and no fsync was made")
        return True

    def broken(self, text: str) -> None:
        self.counters.broken += 1
        self.counters.note(f"{self.name}: {text}")

    def _note_failed_fsync(self) -> bool:
        """Whether an fsync of the log has failed; remembers what that means for its bytes."""
        if not self.noted and (fired := self.fired()) is not None:
            operation, path = fired
            of_log = operation in ("fsync", "fdatasync") and "/commitlog/" in path
            page = self.store._log.page if self.store is not None else None
            # The directory is synced in a flush; also when a segment is made, and then the append fails, nothing else.
            of_log |= operation == "fsync_directory" and path.endswith("/commitlog") and bool(page and page.flushing)
            if of_log or operation == "syncfs":
                self.noted = True
                start, end = (page.flushed_end, page.appended_end) if page else self.ends
                self.doomed = Doomed(start, end)
                self.counters.seen["failed fsyncs of the log"] += 1
        return self.doomed is not None

    def bodies(self, count: int) -> tuple[range, list[bytes]]:
        first, self.next = self.next, self.next + count
        payload = self.chance.randbytes(self.chance.randrange(20, self.payload_bytes_max))
        sequences = range(first, first + count)
        return sequences, [make_body(0, sequence, first, count, 0, payload) for sequence in sequences]

    def append(self, count: int) -> bool:
        sequences, bodies = self.bodies(count)
        columns = {"body": pa.array(bodies, pa.binary()), "keys": [f"K{sequence}" for sequence in sequences]}
        batch = pa.RecordBatch.from_pydict(columns)
        return self.attempt(lambda: self.opened.append(batch, topic=TOPIC), sequences)

    def send(self, *, delay_level: int = 0) -> bool:
        sequences, [body] = self.bodies(1)
        message = Message(TOPIC, body, keys=f"K{sequences[0]}", delay_level=delay_level)
        if delay_level:
            self.delayed.update(sequences)
        return self.attempt(lambda: self.opened.send(message), sequences)

    def send_all(self, count: int) -> bool:
        sequences, bodies = self.bodies(count)
        return self.attempt(lambda: self.opened.send_all([Message(TOPIC, body) for body in bodies]), sequences)

    def commit_staged(self, tries: int = 2) -> None:
        """A sink's commit; its driver tries again with the same number, as Spark does."""
        sequences, bodies = self.bodies(12)
        batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
        self.units += 1

        def once() -> None:
            files = []
            with StagingArea.for_task(self.root, f"write-{self.units}", 0, 0, topic=TOPIC) as area:
                area.write(batch)
                file = area.finish()
                assert file is not None
                files.append(file)
            self.opened.commit_staged(files, key="query", value=self.units)

        for _ in range(tries):
            self.refused.difference_update(sequences)
            if self.attempt(once, sequences):
                return

    def commit_offsets(self) -> None:
        wanted = self.next
        self.offsets.add(wanted)
        if self.attempt(lambda: self.opened.commit_offsets(_GROUP, {(TOPIC, 0): wanted})):
            self.offsets = {wanted}

    def deliver(self) -> None:
        self.now_ms += _DAY_MS
        self.attempt(lambda: self.opened.schedule.deliver_due(), put=False)

    def close(self) -> bool:
        closed = self.attempt(lambda: self.opened.close())
        self.store = None
        return closed

    # -- checking -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing fails any more: the store goes on, is closed, opened again and compared."""
        self._note_failed_fsync()
        if self.store is not None:
            poisoned = self.doomed is not None
            if self.send() == poisoned:
                self.broken("a writer was acknowledged behind a failed fsync" if poisoned else "no writing after it")
            if self.close() == poisoned:
                self.broken("closed as if no fsync had failed" if poisoned else "cannot be closed")
        with self._noting_writes():
            self._reopen()
        if self.store is None:
            return
        failed, self.doomed = self.doomed, None
        if not self.send():
            self.broken("no writing after the reopening")
        self.close()
        self._verify()
        if failed is not None:
            self._lose(failed)
            self.reboot()
            self._reopen()
            if self.store is not None:
                self.close()
                self._verify()

    def _reopen(self) -> None:
        if not self.attempt(self.open):
            self.broken("cannot be opened again")
            return
        try:
            self.compare()
        except StoreError as error:
            self.broken(f"cannot be read: {error}")

    def compare(self, *, deliver: bool = True) -> None:
        """What can be read; with `deliver`, after everything that waits was delivered."""
        store = self.opened
        self.now_ms += _DAY_MS
        while deliver and store.schedule.deliver_due().delivered:
            pass
        found: Counter[int] = Counter()
        for queue_id, (first, last) in store.queue_ranges(TOPIC).items() if TOPIC in store.topics() else ():
            newest = -1
            for batch in store.read(TOPIC, queue_id, first, last, columns=["body"]):
                for body in batch.column("body").to_pylist():
                    sent = read_body(body)
                    if sent is None:
                        self.counters.altered += 1
                        self.counters.note(f"{self.name}: altered body")
                        continue
                    found[sent.sequence] += 1
                    if sent.sequence in self.delayed:
                        continue
                    if sent.sequence < newest:
                        self.counters.reordered += 1
                        self.counters.note(f"{self.name}: {sent.sequence} behind {newest}")
                    newest = sent.sequence
        expected = self.acknowledged if deliver else self.acknowledged - self.delayed
        if lost := sorted(expected - found.keys()):
            self.counters.lost += len(lost)
            self.counters.note(f"{self.name}: lost {lost[:5]}")
        if twice := [sequence for sequence, times in found.items() if times > 1]:
            self.counters.duplicated += len(twice)
            self.counters.note(f"{self.name}: {twice[:5]} more than once")
        if there := sorted(self.refused & found.keys()):
            self.broken(f"{there[:5]} are there, and were said not to be")
        for call in self.calls:
            if len({sequence in found for sequence in call}) > 1:
                self.broken(f"a part of {call} is there")
        committed = store.committed_offsets(_GROUP).get((TOPIC, 0), -1)
        if committed not in self.offsets:
            self.broken(f"committed offset {committed}, expected one of {sorted(self.offsets)}")

    def _verify(self) -> None:
        report = verify_store(self.root)
        if report.status != "clean":
            self.broken(f"verify says {report.status}: {[*report.problems[:2], *report.recovery[:2]]}")

    def _noting_writes(self) -> Any:
        """Which bytes of the log are written again before the opener syncs."""
        real, life = durable.write_fully, self

        def write_fully(fd: int, data: bytes | memoryview, offset: int, path: str | Path = "") -> None:
            real(fd, data, offset, path)
            if "/commitlog/" in str(path):
                base = int(Path(path).name)
                life.written.append((base + offset, base + offset + len(data)))

        return patch.object(durable, "write_fully", write_fully)

    def _lose(self, doomed: Doomed) -> None:
        """The power cut: pages that were taken for clean were never written."""
        for offset in range(doomed.start, doomed.end):
            if not any(low <= offset < high for low, high in self.written):
                with suppress(FileNotFoundError), (self.root / "commitlog" / self._file_of(offset)).open("r+b") as file:
                    file.seek(offset % _SEGMENT_BYTES)
                    file.write(b"\0")

    def _file_of(self, offset: int) -> str:
        return f"{offset // _SEGMENT_BYTES * _SEGMENT_BYTES:020d}"


def _open_same_boot(life: Life) -> Callable[[], None]:
    life.begin(20)
    life.append(9)
    life.abandon()
    return lambda: _try_open(life)


def _open_after_reboot(life: Life) -> Callable[[], None]:
    life.begin(20)
    life.append(9)
    life.opened.flush()
    life.abandon(reboot=True)
    return lambda: _try_open(life)


def _try_open(life: Life) -> None:
    if life.attempt(life.open):
        life.send()


def _append(life: Life) -> Callable[[], None]:
    life.begin(3)

    def body() -> None:
        life.append(30)
        life.append(2)
        life.send()

    return body


def _group_commit(life: Life) -> Callable[[], None]:
    life.sync = True
    life.begin(3)

    def body() -> None:
        life.send()
        life.send_all(3)
        life.append(25)
        life.send()

    return body


def _flush(life: Life) -> Callable[[], None]:
    life.begin(3)

    def body() -> None:
        life.append(25)
        life.attempt(lambda: life.opened.flush())
        life.append(2)
        life.attempt(lambda: life.opened.flush())

    return body


def _staged(life: Life) -> Callable[[], None]:
    life.begin(3)

    def body() -> None:
        life.commit_staged()
        life.commit_staged()

    return body


def _offsets(life: Life) -> Callable[[], None]:
    life.begin(3)

    def body() -> None:
        life.commit_offsets()
        life.attempt(lambda: life.opened.create_topic("Other", 1))
        life.commit_offsets()

    return body


def _deliver(life: Life) -> Callable[[], None]:
    life.begin(3)
    for _ in range(6):
        life.send(delay_level=1)

    def body() -> None:
        life.deliver()
        life.send(delay_level=2)
        life.deliver()

    return body


def _close(life: Life) -> Callable[[], None]:
    life.begin(20)
    life.append(5)

    def body() -> None:
        life.close()

    return body


SCENARIOS: dict[str, Callable[[Life], Callable[[], None]]] = {
    "open": _open_same_boot,
    "open after a reboot": _open_after_reboot,
    "append": _append,
    "group commit": _group_commit,
    "flush": _flush,
    "staged commit": _staged,
    "offsets": _offsets,
    "deliver": _deliver,
    "close": _close,
}
"""Each prepares a store, and returns what may fail. After it: `Life.finish`."""

