"""A store with tiny files, and what can happen to it: failing operations, killed processes, a reboot."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Store, StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.files import durable
from rmq_store.files.locks import state_page
from rmq_store.log.append.append import append, append_lock
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.views.index_file import IndexFile
from rmq_store.verify import Report, verify_store

TOPICS = ("Alpha", "Beta")
_VIEWS_AND_LOG = ("commitlog", "consumequeue", "index")


@dataclass
class Lab:
    """One store. Its flush thread never wakes up, so that operations can be counted."""

    root: Path
    config: StoreConfig = field(
        default_factory=lambda: StoreConfig(
            mapped_file_size_commit_log=8192,
            mapped_file_size_consume_queue=100,
            max_hash_slot_num=16,
            max_index_num=50,
            flush_interval_commit_log=10**9,
            default_topic_queue_nums=2,
        )
    )
    now_ms: int = 1_700_000_000_000
    written: int = 0

    def clock(self) -> int:
        """Every append gets another storeTimestamp."""
        self.now_ms += 1500
        return self.now_ms

    def open(self, **options: Any) -> Store:
        if options.get("read_only"):
            return Store.open(self.root, **options)
        options.setdefault("clock", self.clock)
        known = StoreFile.load(self.root)
        if known is not None and known.config != self.config:
            StoreFile(known.identity, self.config).save(self.root)  # somebody changed the settings by hand
        return Store.open(self.root, create=True, config=self.config, **options)

    def sync_flush(self) -> None:
        self.config = replace(self.config, flush_disk_type="SYNC_FLUSH")

    def batch(self, count: int, *, body_bytes: int = 60) -> pa.RecordBatch:
        """`count` messages over all queues of TOPICS, each with a tag and two keys; the body begins with a number."""
        numbers = range(self.written, self.written + count)
        self.written += count
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([TOPICS[number % 2] for number in numbers], pa.string()),
                "body": pa.array([b"%08d" % number + b"." * body_bytes for number in numbers], pa.binary()),
                "tags": pa.array([f"Tag{number % 3}" for number in numbers], pa.string()),
                "keys": pa.array([f"K{number} L{number % 5}" for number in numbers], pa.string()),
            }
        )

    def numbers(self, store: Store) -> list[int]:
        """The numbers of all visible messages, each read through its queue, sorted."""
        found: list[int] = []
        for topic in TOPICS:
            if topic in store.topics():
                for queue_id, (first, last) in store.queue_ranges(topic).items():
                    for part in store.read(topic, queue_id, first, last, columns=["body"]):
                        found.extend(int(body[:8]) for body in part.column("body").to_pylist())
        return sorted(found)

    def files(self) -> dict[str, bytes]:
        """Log and views, byte for byte. Files of nothing but zeros are left out: an undone append may leave them."""
        found = {}
        for directory in _VIEWS_AND_LOG:
            for path in sorted((self.root / directory).rglob("*")):
                if path.is_file() and (data := path.read_bytes()).strip(b"\0"):
                    found[str(path.relative_to(self.root))] = data
        return found

    def views(self) -> dict[str, bytes]:
        return {name: data for name, data in self.files().items() if not name.startswith("commitlog")}

    def verify(self) -> Report:
        return verify_store(self.root)

    def is_sound(self) -> bool:
        """Whether the store contradicts itself nowhere; it may be open."""
        report = self.verify()
        return not report.problems and all(text.startswith("`abort` exists") for text in report.recovery)

    def reboot(self, *, lose_page: bool = False) -> None:
        """What the state page is after a power cut: one of another boot, or zeros."""
        path = self.root / "pyrmq" / "state"
        data = bytearray(path.read_bytes())
        data[8:24] = b"another boot id."
        path.write_bytes(bytes(4096) if lose_page else bytes(data))
        os.utime(path, (1, 1))  # before the machine was started

    def save(self) -> dict[Path, bytes]:
        """Every file of the store, for `restore`."""
        return {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def restore(self, saved: dict[Path, bytes]) -> None:
        """Bring the files back in place: device and inode of each stay what they were."""
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path.is_file() and path not in saved:
                path.unlink()
        for path, data in saved.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(data)
                file.truncate()

    def overwrite(self, start: int, data: bytes) -> None:
        """Put bytes into the log, over existing segments."""
        size = self.config.mapped_file_size_commit_log
        for number, byte in enumerate(data):
            base = (start + number) // size * size
            with (self.root / "commitlog" / f"{base:020d}").open("r+b") as file:
                file.seek(start + number - base)
                file.write(bytes([byte]))

    def cut(self, start: int) -> None:
        """Zeros from an offset of the log on."""
        size = self.config.mapped_file_size_commit_log
        for path in sorted((self.root / "commitlog").iterdir()):
            low = max(start - int(path.name), 0)
            if low < size:
                data = path.read_bytes()
                path.write_bytes(data[:low] + bytes(size - low))

    def append_unit(self, store: Store, count: int, value: int = 1, *, body_bytes: int = 300) -> tuple[int, int]:
        """Append a unit of `count` messages; [start, end) of it."""
        assert store._writer is not None
        store._writer._create_topics([(topic, 1) for topic in TOPICS])
        encoded = store._writer._encoder(None).encode(self.batch(count, body_bytes=body_bytes))
        with append_lock(store._log):
            done = append(store._log, [encoded], store._writer._bracket(UnitRecord("sink", "query", value)))
        return done.start, done.end

    def boundaries(self, start: int, end: int) -> list[int]:
        """Where the frames of [start, end) begin, blank frames included."""
        size, found, offset = self.config.mapped_file_size_commit_log, [], start
        while offset < end:
            found.append(offset)
            base = offset // size * size
            with (self.root / "commitlog" / f"{base:020d}").open("rb") as file:
                file.seek(offset - base)
                offset += int.from_bytes(file.read(4), "big")
        return found

    def broker_was_here(self, *, abort: bool = False) -> None:
        """What a Java broker leaves in `lock` at every start, and `abort` if it did not stop cleanly."""
        with (self.root / "lock").open("r+b") as file:
            file.write(b"lock")
        if abort:
            (self.root / "abort").write_text("1")
        else:
            (self.root / "abort").unlink(missing_ok=True)

    def crash(self, work: Callable[[Store], object] = lambda store: None) -> None:
        """A process opens the store, does `work` and is killed."""

        def run() -> None:
            store = self.open()
            work(store)
            os.kill(os.getpid(), signal.SIGKILL)

        assert self.in_child(run) == -signal.SIGKILL
        self.now_ms += 1_000_000

    def in_child(self, work: Callable[[], object]) -> int:
        """Run `work` in a forked process; its exit code, or minus the signal that killed it."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class CountDown:
    """Called before every operation of the file layer, in any thread; does `act` at the k-th call, and at all later
    ones if sticky.
    """

    def __init__(self, k: int, act: Callable[[], None], *, sticky: bool = False) -> None:
        self._k = k
        self._calls = count(1)
        self._act = act
        self._sticky = sticky
        self.reached = False

    def __call__(self, operation: str, path: str) -> None:
        call = next(self._calls)
        if call >= self._k:
            self.reached = True
        if call == self._k or (self._sticky and call > self._k):
            self._act()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """In memory where that is possible: these tests kill processes, not machines, and an fsync costs a millisecond."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        yield Lab(Path(directory) / "store")


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


@pytest.fixture
def fail_at() -> Callable[..., CountDown]:
    """Set the hook: `fail_at(k, act, sticky=...)`."""

    def install(k: int, act: Callable[[], None], *, sticky: bool = False) -> CountDown:
        durable.hook = CountDown(k, act, sticky=sticky)
        return durable.hook

    return install


@pytest.fixture
def memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores into mapped files count as operations: words of the state page, slots and headers of the index."""
    set_word, write_header = state_page._Word.__set__, IndexFile.write_header

    def counted_word(word: Any, page: Any, value: int) -> None:
        durable.before("word", str(word._number))
        set_word(word, page, value)

    def counted_header(file: IndexFile, data: bytes) -> None:
        durable.before("header", file.path)
        write_header(file, data)

    monkeypatch.setattr(state_page._Word, "__set__", counted_word)
    monkeypatch.setattr(IndexFile, "write_header", counted_header)
