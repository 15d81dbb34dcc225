"""A store that is moved, deleted or replaced while somebody has it open: nobody goes on as if it were there, what is
there now is not touched, and what was moved stays sound.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import (
    Message,
    StagedFile,
    StagingArea,
    Store,
    StoreConfig,
    StoreReplacedError,
    SubscriptionGroup,
)
from rmq_store.files import durable, rooted
from rmq_store.format.bytes import native
from rmq_store.verify import verify_store

Hash = Callable[[Path], str]

# All but what nobody else sees: flushing the log, and closing, make durable what was acknowledged before.
WAYS: dict[str, Callable[[Store], object]] = {
    "send": lambda store: store.send(Message("T", b"late")),
    "send to a new topic": lambda store: store.send(Message("New", b"late")),
    "send_all": lambda store: store.send_all([Message("T", b"late")]),
    "append": lambda store: store.append(pa.RecordBatch.from_pydict({"body": [b"late"]}), "T"),
    "commit_staged": lambda store: store.commit_staged([], key="k", value=1),
    "last_unit": lambda store: store.last_unit("sink", "k"),
    "create_topic": lambda store: store.create_topic("Another"),
    "create_group": lambda store: store.create_group(SubscriptionGroup("another")),
    "update_group": lambda store: store.update_group(SubscriptionGroup("g", retry_max_times=2)),
    "commit_offsets": lambda store: store.commit_offsets("g", {("T", 0): 7}),
    "commit_offsets that stand there": lambda store: store.commit_offsets("g", {("T", 0): 5}),
    "lease": lambda store: store.lease("g", "T", "me"),
    "receive": lambda store: store.pop.receive("g", "T", 1, 1000),
    "send_back": lambda store: store.retry.send_back("g", 0),
    "deliver_due": lambda store: store.schedule.deliver_due(),
    "save_progress": lambda store: store.schedule.save_progress(),
    "retention": lambda store: store.retention.run(manual=True, file_reserved_time=0),
    "configure": lambda store: store.retention.configure(file_reserved_time=1),
    "delete_topic": lambda store: store.admin.delete_topic("U"),
    "delete_group": lambda store: store.admin.delete_group("g", remove_offsets=True),
    "flush": lambda store: store.flush(),
    "flush_async": lambda store: store.flush_async(),
    "refresh": lambda store: store.refresh(),
    "queue_range": lambda store: store.queue_range("T", 0),
    "close": lambda store: store.close(),
}


def make(root: Path, config: StoreConfig, count: int = 100) -> None:
    with Store.open(root, create=True, config=config) as store:
        for topic in ("T", "U"):
            store.create_topic(topic, queue_count=1)
        store.create_group(SubscriptionGroup("g"))
        for number in range(count):
            store.send(Message("T", b"%d" % number + b"x" * 100, keys=f"k{number}"))
        store.commit_offsets("g", {("T", 0): 5})


def is_moved(root: Path) -> None:
    root.rename(root.with_name("moved"))


def is_deleted(root: Path) -> None:
    shutil.rmtree(root)


def is_emptied(root: Path) -> None:
    """As where something is mounted: the directory itself stays."""
    for entry in root.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def loses_its_log(root: Path) -> None:
    (root / "commitlog").rename(root.with_name("moved"))
    (root / "commitlog").mkdir()


def gets_a_copy(root: Path) -> None:
    root.rename(root.with_name("moved"))
    shutil.copytree(root.with_name("moved"), root)


HAPPENS = (is_moved, is_deleted, is_emptied, loses_its_log, gets_a_copy)


class Clock:
    """Of the stores of this module: a delayed message is due when it was turned on."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def root(scratch: Path, tiny: StoreConfig) -> Path:
    make(scratch / "store", tiny)
    return scratch / "store"


@pytest.fixture
def old(root: Path) -> Iterator[Store]:
    """Open for writing, and used; a delayed message is due, and segments are old enough to go."""
    clock = Clock()
    store = Store.open(root, clock=clock)
    store.send(Message("T", b"delayed", delay_level=1))
    clock.now_ms += 10_000
    yield store
    with contextlib.suppress(StoreReplacedError):
        store.close()


def bodies(root: Path) -> list[bytes]:
    with Store.open(root, read_only=True) as store:
        batches = list(store.read("T", 0, *store.queue_range("T", 0), columns=["body"]))
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def answers(store: Store) -> dict[str, str]:
    """What each way says."""
    found = {}
    for name, way in WAYS.items():
        try:
            found[name] = f"returned {way(store)}"
        except Exception as error:
            found[name] = type(error).__name__
    return found


ALL_REFUSED = dict.fromkeys(WAYS, "StoreReplacedError")


@pytest.mark.parametrize("happens", HAPPENS)
def test_a_writer_whose_store_was_replaced_says_so_and_touches_nothing_of_what_is_there(
    root: Path, old: Store, tiny: StoreConfig, tree_hash: Hash, happens: Callable[[Path], None]
) -> None:
    happens(root)
    if happens in (is_moved, is_deleted, is_emptied):
        make(root, tiny, 3)
    before = tree_hash(root / "commitlog" if happens is loses_its_log else root)
    with pytest.raises(StoreReplacedError, match="nothing more is read or written") as raised:
        old.send(Message("T", b"late"))
    assert raised.value.path == str(root)
    assert answers(old) == ALL_REFUSED
    assert tree_hash(root / "commitlog" if happens is loses_its_log else root) == before


@pytest.mark.parametrize("happens", [is_moved, is_deleted])
def test_a_writer_whose_store_is_gone_makes_no_other_one(
    root: Path, old: Store, happens: Callable[[Path], None]
) -> None:
    """It was a bare FileNotFoundError, or the directory was made anew."""
    happens(root)
    assert answers(old) == ALL_REFUSED
    assert not root.exists()


def test_what_was_acknowledged_is_where_the_store_was_moved_to_and_it_is_clean(
    root: Path, old: Store, tiny: StoreConfig
) -> None:
    acknowledged = bodies(root)
    is_moved(root)
    make(root, tiny, 3)
    for number in range(300):
        with pytest.raises(StoreReplacedError, match=r"was moved to .*/moved: .* open it there"):
            old.send(Message("T", b"late%d" % number + b"x" * 200))
    with pytest.raises(StoreReplacedError) as raised:
        old.close()
    moved = root.with_name("moved")
    assert raised.value.moved_to == str(moved)
    assert verify_store(moved).status == "clean"
    assert bodies(moved) == acknowledged
    assert verify_store(root).status == "clean"
    assert len(bodies(root)) == 3


def test_a_store_that_came_back_to_its_place_is_written_as_before(root: Path, old: Store) -> None:
    is_moved(root)
    with pytest.raises(StoreReplacedError):
        old.send(Message("T", b"refused"))
    root.with_name("moved").rename(root)
    old.send(Message("T", b"taken"))
    old.close()
    assert bodies(root)[-1] == b"taken"
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("operation", ["open", "allocate", "write", "rename"])
def test_an_append_in_whose_middle_the_store_is_replaced_goes_to_the_one_that_was_opened(
    root: Path, old: Store, tiny: StoreConfig, tree_hash: Hash, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """It looks before it begins; what it makes after that must not come into another store, either."""
    other = root.with_name("other")
    make(other, tiny, 3)
    before = tree_hash(other)
    done: list[str] = []

    def replace_now(found: str, path: str) -> None:
        if found == operation and not done and f"{root}/" in path:
            done.append(path)
            root.rename(root.with_name("moved"))
            other.rename(root)

    monkeypatch.setattr(durable, "hook", replace_now)
    old.append(pa.RecordBatch.from_pydict({"body": [b"x" * 200] * 1000}), "T")
    monkeypatch.setattr(durable, "hook", None)
    assert done
    assert tree_hash(root) == before
    with pytest.raises(StoreReplacedError):
        old.close()
    assert tree_hash(root) == before
    moved = root.with_name("moved")
    assert verify_store(moved).status == "clean"
    assert bodies(moved)[-1000:] == [b"x" * 200] * 1000


def test_files_that_are_made_ahead_do_not_come_into_another_store(
    root: Path, tiny: StoreConfig, tree_hash: Hash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread, at any moment."""
    from rmq_store.files.segments import segments

    monkeypatch.setattr(segments, "_AHEAD_BYTES_MIN", 0)
    other = root.with_name("other")
    make(other, tiny, 3)
    before = tree_hash(other)
    made: list[str] = []
    swapped = threading.Event()

    def in_the_thread(operation: str, path: str) -> None:
        if threading.current_thread().name == "rmq-files" and operation == "open":
            if not swapped.is_set():
                root.rename(root.with_name("moved"))
                other.rename(root)
                swapped.set()
            made.append(path)

    old = Store.open(root)
    monkeypatch.setattr(durable, "hook", in_the_thread)
    with contextlib.suppress(StoreReplacedError):
        for _ in range(1000):
            old.send(Message("T", b"x" * 1000))
    with pytest.raises(StoreReplacedError):
        old.close()
    assert made
    assert tree_hash(root) == before
    assert verify_store(root.with_name("moved")).status == "clean"


@pytest.mark.parametrize("happens", HAPPENS)
def test_a_task_that_stages_for_a_store_which_is_replaced_leaves_nothing_in_the_new_one(
    root: Path, tiny: StoreConfig, tree_hash: Hash, happens: Callable[[Path], None]
) -> None:
    with StagingArea.for_task(root, "write-1", 0, 0, topic="T") as area:
        happens(root)
        if not root.exists() or not any(root.iterdir()):
            make(root, tiny, 3)
        before = tree_hash(root)
        with pytest.raises(StoreReplacedError):
            stage_and_finish(area)
    if happens is not loses_its_log:
        assert tree_hash(root) == before


def stage_and_finish(area: StagingArea) -> StagedFile | None:
    area.write(pa.RecordBatch.from_pydict({"body": [b"late"]}))
    return area.finish()


@pytest.mark.parametrize("happens", HAPPENS)
def test_a_reader_whose_store_was_replaced_says_so(
    root: Path, tiny: StoreConfig, happens: Callable[[Path], None]
) -> None:
    """It showed the old one for ever; and of one that was deleted, that there is no message in it."""
    looks: list[Callable[[Store], object]] = [
        lambda store: store.refresh(),
        lambda store: store.queue_range("T", 0),
        lambda store: store.queue_ranges("T"),
        lambda store: store.log_range(),
    ]
    with Store.open(root, read_only=True) as reader:
        assert reader.queue_range("T", 0).max_offset == 100
        happens(root)
        for look in looks:
            with pytest.raises(StoreReplacedError, match=r"was moved to|was deleted"):
                look(reader)
        if happens in (is_moved, is_deleted, is_emptied):
            make(root, tiny, 3)
        for look in looks:
            with pytest.raises(StoreReplacedError, match=r"was moved to|was deleted"):
                look(reader)


def test_each_append_looks_once(root: Path, old: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look(self: rooted.Root) -> bool:
        looks.append(str(self.path))
        return True

    monkeypatch.setattr(rooted.Root, "is_in_place", look)
    monkeypatch.setattr(native, "LOADED", False)  # the extension looks for itself, see test_lone_append.py
    for _ in range(10):
        old.send(Message("T", b"x"))
    assert looks == [str(root)] * 10


_EVERY_WAY = """
import json, os, sys, time
import pyarrow as pa
from rmq_store import *
root, seen, config = sys.argv[1], [], StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=100)
Store.open(root, create=True, config=config).close()

def look(event, arguments):
    if event in EVENTS:
        for path in arguments[:2]:
            path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
            if path.startswith(root):
                seen.append(f"{event} {path}")

EVENTS = {"open", "os.listdir", "os.scandir"}
EVENTS |= {f"os.{name}" for name in ("rename", "remove", "mkdir", "rmdir", "link", "truncate")}
now = [time.time_ns() // 1_000_000]
store = Store.open(root, clock=lambda: now[0])
sys.addaudithook(look)
store.create_topic("T", queue_count=1); store.create_topic("U")
for n in range(300):
    store.send(Message("T", b"x" * 200, keys=f"k{n}", delay_level=int(n % 7 == 0)))
store.send_all([Message("T", b"y")] * 3)
store.append(pa.RecordBatch.from_pydict({"body": [b"x" * 100] * 3000}), "T")
now[0] += 10_000
assert store.schedule.deliver_due().delivered
store.create_group(SubscriptionGroup("g")); store.commit_offsets("g", {("T", 0): 5})
with_lease = store.lease("g", "T", "me"); with_lease.heartbeat(); with_lease.release()
given = store.pop.receive("g", "T", 3, 1000)
store.pop.ack("g", "T", given[0].receipt_handle)
store.retry.send_back("g", given[1].row.column("commitLogOffset")[0].as_py())
store.flush(); store.retention.configure(file_reserved_time=1)
store.admin.delete_topic("U"); store.admin.delete_group("g", remove_offsets=True)
now[0] += 1_000_000_000
assert store.retention.run(manual=True, file_reserved_time=0).removed
store.send(Message("T", b"last"))
store.close()
print(json.dumps(seen))
"""


def test_a_writer_reaches_every_file_through_the_directory_that_it_has_opened(scratch: Path) -> None:
    """Not by its path, which may lead to another store at any moment."""
    command = [sys.executable, "-c", _EVERY_WAY, str(scratch / "store")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
