"""A hot copy: whole, at one moment, of a store that others write and clean up meanwhile.

Sources: docs/operations.md, section Backup; docs/design.md sections 5 and 7.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import CorruptRecordError, Message, NotAStoreError, StagingArea, Store, StoreConfig, UsageError, backup
from rmq_store.broker.backup import backup_live as module
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.errors import OffsetOutOfRangeError, StoreFailedError, StoreFullError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.segments import copying
from rmq_store.verify import verify_store

TINY = StoreConfig(
    mapped_file_size_commit_log=16384,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=64,
    max_index_num=100,
    flush_interval_commit_log=10**9,
    default_topic_queue_nums=2,
)
UNIT_ROWS = 5


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: nothing here depends on a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def count_down(k: int, act: Callable[[], None], passing_over: Path = Path("/nowhere")) -> Callable[[str, str], None]:
    """A hook that does `act` at the k-th operation that is not on files below `passing_over`."""
    count = itertools.count(1)

    def hook(operation: str, path: str) -> None:
        if not Path(path).is_relative_to(passing_over) and next(count) == k:
            act()

    return hook


def _no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def send(store: Store, number: int, *, size_bytes: int = 40) -> None:
    store.send(Message("Alpha", b"%08d" % number + b"." * size_bytes, tags="T", keys=f"K{number}"))


def commit_unit(store: Store, number: int) -> None:
    """UNIT_ROWS messages that are there together or not at all."""
    with StagingArea.for_task(store.path, f"w{number}", 0, 0) as staging:
        staging.write(
            pa.RecordBatch.from_pydict({"topic": ["Units"] * UNIT_ROWS, "body": [b"%08d" % number] * UNIT_ROWS})
        )
        staged = staging.finish()
    assert staged is not None
    store.commit_staged([staged], key="query", value=number)


def numbers(root: Path, topic: str) -> list[int]:
    with Store.open(root, read_only=True) as store:
        if topic not in store.topics():
            return []
        return sorted(
            int(body[:8])
            for queue_id, (first, last) in store.queue_ranges(topic).items()
            for batch in store.read(topic, queue_id, first, last, columns=["body"])
            for body in batch.column("body").to_pylist()
        )


def log_bytes(root: Path, start: int, end: int) -> bytes:
    size = TINY.mapped_file_size_commit_log
    data = b"".join((root / "commitlog" / f"{base:020d}").read_bytes() for base in range(start, end, size))
    return data[: end - start]


def is_clean(root: Path) -> bool:
    report = verify_store(root)
    return report.status == "clean" and not report.problems and not report.recovery


@pytest.fixture
def writing(fast: Path) -> Iterator[tuple[Path, Callable[[], int]]]:
    """A store that a child writes as fast as it can: messages, units, group offsets. `acknowledged()`: up to which
    number."""
    root = fast / "store"
    Store.open(root, create=True, config=TINY).close()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            with Store.open(root) as store:
                for number in itertools.count():
                    if number % 8:
                        send(store, number, size_bytes=random.randrange(300))
                    else:
                        commit_unit(store, number)
                    ranges = store.queue_ranges("Alpha") if number else {}
                    store.commit_offsets("cg", {("Alpha", queue): last for queue, (_, last) in ranges.items()})
                    os.write(write_end, b"%09d\n" % number)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(write_end)
    last = [-1]
    os.set_blocking(read_end, False)

    def acknowledged() -> int:
        while True:
            try:
                data = os.read(read_end, 1 << 16)
            except BlockingIOError:
                return last[0]
            assert data, "the writer died"
            last[0] = int(data[-9:])

    while acknowledged() < 20:
        pass
    yield root, acknowledged
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end)


def test_a_copy_of_a_store_that_is_written_is_whole_and_of_one_moment(
    writing: tuple[Path, Callable[[], int]], fast: Path
) -> None:
    root, acknowledged = writing
    ends, newest = set(), 0
    for copy_number in range(8):
        target = fast / f"copy-{copy_number}"
        while (before := acknowledged()) <= newest:
            pass
        report = backup(root, target)
        ends.add(report.end)
        assert is_clean(target)
        sent, units = numbers(target, "Alpha"), numbers(target, "Units")
        newest = max(sent[-1], units[-1])
        assert newest >= before
        assert sent == [number for number in range(newest + 1) if number % 8]
        assert units == [number for number in range(0, newest + 1, 8) for _ in range(UNIT_ROWS)]
        assert log_bytes(target, 0, report.end) == log_bytes(root, 0, report.end)
        with Store.open(target) as store:
            assert store.recovery is not None
            assert store.recovery.trust == "CLEAN"
            assert store.log_range() == (report.start, report.end)
            assert store.identity == report.identity == StoreFile.load(root).identity
            ranges = store.queue_ranges("Alpha")
            for (_, queue), offset in store.committed_offsets("cg").items():
                assert offset <= ranges[queue].max_offset
            assert store.last_unit("sink", "query") == units[-1]
        shutil.rmtree(target)
    assert len(ends) == 8


def test_a_plain_copy_of_the_same_store_is_torn(fast: Path) -> None:
    """Somebody writes between two files that are copied. What is copied late knows of messages that the log, which was
    copied early, does not have; or, in another order, the log has messages that it was never told to be whole."""
    root = fast / "store"
    numbers_used = itertools.count()
    torn = 0
    with Store.open(root, create=True, config=TINY) as store:
        for number in itertools.islice(numbers_used, 100):
            send(store, number)
        for attempt in range(3):
            copied = fast / f"plain-{attempt}"

            def copy(source: str, target: str) -> None:
                shutil.copyfile(source, target)
                send(store, next(numbers_used))
                ranges = store.queue_ranges("Alpha")
                store.commit_offsets("cg", {("Alpha", queue): last for queue, (_, last) in ranges.items()})

            shutil.copytree(root, copied, copy_function=copy, ignore=shutil.ignore_patterns("*.tmp"))
            with Store.open(copied, read_only=True) as plain:
                ranges = plain.queue_ranges("Alpha")
                ahead = any(
                    offset > ranges[queue].max_offset for (_, queue), offset in plain.committed_offsets("cg").items()
                )
            torn += ahead or not is_clean(copied)
            real = fast / f"real-{attempt}"
            backup(root, real)
            assert is_clean(real)
    assert torn == 3


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("state", ["open", "closed", "killed"])
def test_views_are_the_same_bytes_as_those_of_the_source(fast: Path, state: str, flush: str) -> None:
    root = fast / "store"
    config = StoreConfig(**{**_fields(TINY), "flush_disk_type": flush})
    if state == "killed":
        child = os.fork()
        if child == 0:
            store = Store.open(root, create=True, config=config)
            _fill(store)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        report = backup(root, fast / "copy")
    else:
        with Store.open(root, create=True, config=config) as store:
            _fill(store)
            if state == "open":
                report = backup(root, fast / "copy")
        if state == "closed":
            report = backup(root, fast / "copy")
    assert is_clean(fast / "copy")
    assert report.record_count == verify_store(fast / "copy").messages == 130 + UNIT_ROWS + 2
    Store.open(root).close()
    for kind in ("commitlog", "consumequeue", "index"):
        assert _contents(fast / "copy" / kind) == _contents(root / kind)


def _fields(config: StoreConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in StoreConfig.__slots__}


def _fill(store: Store) -> None:
    for number in range(130):
        send(store, number)
    commit_unit(store, 0)


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def _contents(directory: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {name: data for name, data in files.items() if data.strip(b"\0")}


def _take_segments(root: Path, count: int) -> None:
    """What retention does to the log; the queue files are left for another day, as RocketMQ leaves the newest ones."""
    for path in sorted((root / "commitlog").iterdir())[:count]:
        path.unlink()


def test_queue_offsets_of_a_store_whose_beginning_is_gone_stay_the_same(fast: Path) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(70):
            store.send(Message("Early", b"%d" % number))
        for number in range(300):
            send(store, number)
    _take_segments(root, 2)
    with Store.open(root) as store:
        early, alpha = store.queue_ranges("Early"), store.queue_ranges("Alpha")
        assert all(first == last > 0 for first, last in early.values()), "no queue without messages: nothing tested"
        assert all(0 < first < last for first, last in alpha.values())
        report = backup(root, target)
        assert report.start == store.log_range()[0] > 0
    assert is_clean(target)
    with Store.open(target) as store:
        assert store.queue_ranges("Early") == early
        assert store.queue_ranges("Alpha") == alpha
        sent = store.send(Message("Early", b"next", queue_id=0))
        assert sent.queue_offset == early[0].max_offset
    assert is_clean(target)


def test_retention_passes_over_what_is_to_be_copied_and_is_told_from_damage_if_it_does_not(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fast / "store"
    monkeypatch.setattr(module, "_PINNED_MAX", 2)
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(300):
            send(store, number)
        store.flush()
        segments = sorted((root / "commitlog").iterdir())
        assert len(segments) > 4
        looked = []

        def look(messages: int, done: int, total: int) -> None:
            looked.append([OfdLock(path).who().kind for path in segments])

        backup(root, fast / "copy", progress=look)
        assert looked[0][:3] == ["shared", "shared", "free"]
        assert looked[1][1:4] == ["shared", "shared", "free"]

        def take(messages: int, done: int, total: int) -> None:
            if done == TINY.mapped_file_size_commit_log:
                for path in segments[:4]:
                    path.unlink()

        with pytest.raises(OffsetOutOfRangeError, match="retention removed it before it was copied"):
            backup(root, fast / "second", progress=take)
    assert not (fast / "second").exists()


def test_a_segment_that_is_missing_or_damaged_is_named_and_nothing_is_made(fast: Path) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(300):
            send(store, number)
    segments = sorted((root / "commitlog").iterdir())
    with segments[1].open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptRecordError) as caught:
        backup(root, fast / "copy")
    assert caught.value.path == str(segments[1])
    assert int(segments[1].name) <= caught.value.offset <= int(segments[1].name) + 5000
    segments[1].unlink()
    with pytest.raises(CorruptRecordError, match="missing") as caught:
        backup(root, fast / "copy")
    assert caught.value.path == str(segments[1])
    assert [path.name for path in fast.iterdir()] == ["store"]


def test_damage_that_somebody_decided_to_keep_is_copied_with_its_places_in_the_queues(fast: Path) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(300):
            send(store, number)
    segments = sorted((root / "commitlog").iterdir())
    with segments[1].open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 300)
    with pytest.raises(CorruptRecordError):
        backup(root, fast / "copy")
    Store.open(root, on_corruption="keep", rebuild_views=True).close()
    with Store.open(root) as store:
        report = backup(root, fast / "copy")
    assert 290 < report.record_count < 300
    assert verify_store(fast / "copy").status == "kept"
    with Store.open(fast / "copy") as copy, Store.open(root) as source:
        assert copy.queue_ranges("Alpha") == source.queue_ranges("Alpha")
        assert copy.log_range() == source.log_range()
        assert copy.recovery is not None
        assert (copy.recovery.trust, copy.recovery.bad_ranges) == ("CLEAN", source.recovery.bad_ranges)
    for kind in ("commitlog", "consumequeue"):
        assert _contents(fast / "copy" / kind) == _contents(root / kind)
    segments[1].unlink()
    Store.open(root, on_corruption="keep").close()
    backup(root, fast / "another")
    assert verify_store(fast / "another").status == "kept"


def test_topics_groups_pop_state_and_clock_come_along_and_nothing_of_a_process_does(fast: Path) -> None:
    root, target = fast / "store", fast / "copy"
    from rmq_store import ClockFile

    with Store.open(root, create=True, config=TINY) as store:
        clock = ClockFile.create(root / "pyrmq" / "clock", 1_700_000_000_000)
    with Store.open(root) as store:
        for number in range(10):
            send(store, number)
        with StagingArea.for_task(root, "open", 0, 0) as staging:
            staging.write(pa.RecordBatch.from_pydict({"topic": ["Alpha"], "body": [b"x"]}))
            assert any((root / "pyrmq" / "staging").iterdir())
            # Which readers have had their time says nothing of the copy's: the first one would lose its file at once.
            (root / "pyrmq" / "retention.json").write_text('{"format": 1, "refused": {"0": 1}, "tried": 1}')
            backup(root, target)
        wanted = {name: (root / "config" / name).read_bytes() for name in _names(root / "config")}
    assert {name: (target / "config" / name).read_bytes() for name in _names(target / "config")} == wanted
    assert (target / "pyrmq" / "clock").read_bytes() == (root / "pyrmq" / "clock").read_bytes()
    assert clock() == 1_700_000_000_000
    for absent in ("staging", "removed", "groups", "retention.json"):
        assert not (target / "pyrmq" / absent).exists()
    for path in [target, *target.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_topic_that_is_made_while_the_copy_begins_is_there_if_its_messages_are(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        send(store, 0)
        copy_tree = module.copy_tree

        def and_then_write(source: Path, *rest: Any) -> None:
            copy_tree(source, *rest)
            if source.name == "pyrmq":  # the last that is copied before the end is taken
                store.create_topic("New", 1)
                store.send(Message("New", b"first"))
                store.commit_offsets("cg", {("New", 0): 1})

        monkeypatch.setattr(module, "copy_tree", and_then_write)
        backup(root, target)
    with Store.open(target, read_only=True) as copy:
        assert copy.queue_ranges("New")[0] == (0, 1)
        assert copy.committed_offsets("cg") == {}


@pytest.mark.slow
def test_killed_at_any_operation_it_leaves_no_target_or_a_whole_one_and_the_next_run_cleans_up(
    fast: Path, tree_hash: Callable[[Path], str]
) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(60):
            send(store, number)
        commit_unit(store, 0)
    before, made = tree_hash(root), 0
    for k in itertools.count(1):
        child = os.fork()
        if child == 0:
            durable.hook = count_down(k, lambda: os.kill(os.getpid(), signal.SIGKILL))
            backup(root, target)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert tree_hash(root) == before
        if target.exists():
            made += 1
            assert is_clean(target)
            shutil.rmtree(target)
        if not killed:
            break
        if k % 10 == 0:
            backup(root, target)
            assert sorted(path.name for path in fast.iterdir()) == ["copy", "store"]
            shutil.rmtree(target)
    assert k > 50
    assert 1 <= made <= 3  # killed behind the rename, and not at all


def test_everything_is_on_disk_before_the_target_has_its_name(fast: Path) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)
    done: list[tuple[str, str]] = []
    durable.hook = lambda operation, path: done.append((operation, Path(path).name))
    backup(root, target)
    renamed = done.index(("rename", "copy"))
    assert done[renamed:] == [("rename", "copy"), ("fsync_directory", fast.name)]
    segments = [path.name for path in (target / "commitlog").iterdir()]
    assert all(("fsync", name) in done[:renamed] for name in [*segments, "topics.json", "store.json"])
    assert ("syncfs", "store") in done[:renamed]  # queues and index


def test_an_operation_that_fails_leaves_nothing_behind(fast: Path) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(60):
            send(store, number)
    for k in range(1, 400, 3):
        durable.hook = count_down(k, _no_space, passing_over=root)
        try:
            backup(root, target)
            break
        except (StoreFullError, StoreFailedError):
            assert [path.name for path in fast.iterdir() if path != target] == ["store"]
        finally:
            durable.hook = None
        if target.exists():
            shutil.rmtree(target)
    else:
        pytest.fail("it never came to its end")
    assert is_clean(target)


def test_a_target_that_exists_or_lies_in_the_store_is_refused(fast: Path) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        send(store, 0)
    (fast / "there").mkdir()
    (fast / "link").symlink_to(fast / "nowhere")
    for target in (fast / "there", fast / "link", root / "copy", root / "pyrmq" / "copy", fast / "no" / "copy"):
        with pytest.raises(UsageError):
            backup(root, target)
    with pytest.raises(NotAStoreError):
        backup(fast / "there", fast / "copy")
    assert sorted(path.name for path in fast.iterdir()) == ["link", "store", "there"]


@pytest.mark.parametrize(("name", "last_writer"), [("config", "we"), ("pyrmq", "we"), ("config", "a broker")])
def test_no_link_takes_a_copy_out_of_the_store(fast: Path, name: str, last_writer: str) -> None:
    with Store.open(fast / "store", create=True, config=TINY) as store:
        send(store, 0)
    if last_writer == "a broker":
        (fast / "store" / "lock").write_text("lock")
    (fast / "secrets").mkdir()
    (fast / "secrets" / "key").write_text("not of the store")
    (fast / "store" / name / "more").symlink_to(fast / "secrets")
    with pytest.raises(NotAStoreError, match="more: expected a directory, found a symbolic link"):
        backup(fast / "store", fast / "copy")
    assert sorted(path.name for path in fast.iterdir()) == ["secrets", "store"]


def test_a_disk_without_copy_file_range_gets_the_same_bytes(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)

    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(copying.os, "copy_file_range", refuse)
    monkeypatch.setattr(copying, "_STEP_BYTES", 1000)
    backup(root, fast / "copy")
    assert _contents(fast / "copy" / "commitlog") == _contents(root / "commitlog")


def test_two_at_the_same_time_do_not_take_each_other_for_dead(fast: Path) -> None:
    root, target = fast / "store", fast / "copy"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)

    def run_another(messages: int, done: int, total: int) -> None:
        if done == total:
            (mine,) = fast.glob(".copy.*.partial")
            backup(root, target)
            assert mine.is_dir()

    with pytest.raises(UsageError, match="copy exists: somebody has made it meanwhile"):
        backup(root, target, progress=run_another)
    assert is_clean(target)
    assert sorted(path.name for path in fast.iterdir()) == ["copy", "store"]


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_directory_that_another_backup_removes_before_it_is_locked_is_made_anew(
    fast: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    """The other one takes it for what a killed backup has left; it has locked it, or removed it by then."""
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)
    make, others = tempfile.mkdtemp, list[OfdLock]()

    def make_and_lose(*given: Any) -> str:
        made = make(*given)
        if not others:
            others.append(OfdLock(Path(made) / "lock"))
            assert others[0].try_exclusive()
            if not is_locked:
                shutil.rmtree(made)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    backup(root, fast / "copy")
    assert is_clean(fast / "copy")
    assert others[0].path.parent.exists() == is_locked, "the other one's is not used"
    others[0].close()


def test_a_directory_that_another_backup_removes_meanwhile_is_no_leftover(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a target whose name begins with that of this one and a dot: it ends between the listing and the look."""
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)
    other = fast / ".copy.2.abc.partial"
    other.mkdir()
    lock = OfdLock.try_exclusive

    def end_then_lock(own: OfdLock) -> bool:
        if own.path.parent == other:
            shutil.rmtree(other)
        return lock(own)

    monkeypatch.setattr(OfdLock, "try_exclusive", end_then_lock)
    backup(root, fast / "copy")
    assert is_clean(fast / "copy")


def test_opening_the_copy_has_nothing_to_make_again(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []
    open_store = Store.open

    def opened(path: Path, **options: Any) -> Store:
        store = open_store(path, **options)
        reports.append(store.recovery)
        return store

    with Store.open(fast / "store", create=True, config=TINY) as store:
        _fill(store)
        monkeypatch.setattr(module.Store, "open", opened)
        backup(fast / "store", fast / "copy")
    assert [(report.trust, report.scanned_bytes) for report in reports if report] == [("OWN", 0)]


def test_a_store_of_ours_is_refused_while_a_broker_runs_on_it(fast: Path) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=TINY) as store:
        _fill(store)
    read_end, write_end = os.pipe()
    broker = os.fork()
    if broker == 0:  # as FileChannel.tryLock(0, 1) does: a POSIX lock
        with (root / "lock").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.write(write_end, b"x")
            signal.pause()
    try:
        os.read(read_end, 1)
        with pytest.raises(StoreLockedError, match=f"process {broker}") as caught:
            backup(root, fast / "copy")
        assert caught.value.pid == broker
    finally:
        os.kill(broker, signal.SIGKILL)
        os.waitpid(broker, 0)
        os.close(read_end)
        os.close(write_end)

    def start_broker(messages: int, done: int, total: int) -> None:
        with (root / "lock").open("r+b") as file:
            file.write(b"lock")

    with pytest.raises(StoreLockedError, match="meanwhile"):
        backup(root, fast / "copy", progress=start_broker)
    assert [path.name for path in fast.iterdir()] == ["store"]


def test_holes_stay_holes(fast: Path) -> None:
    sparse = fast / "sparse"
    with sparse.open("wb") as file:
        file.write(b"begin")
        file.seek(32 << 20)
        file.write(b"end")
    with sparse.open("rb") as file:
        copying.copy_start(file.fileno(), fast / "copied", (32 << 20) + 3, 64 << 20)
    assert (fast / "copied").read_bytes() == sparse.read_bytes() + bytes((32 << 20) - 3)
    assert (fast / "copied").stat().st_blocks * 512 < 1 << 20


def test_what_lies_behind_the_end_is_no_block_either(fast: Path) -> None:
    root = fast / "store"
    with Store.open(root, create=True, config=StoreConfig(flush_interval_commit_log=10**9)) as store:
        send(store, 0)
        backup(root, fast / "copy")
    status = (fast / "copy" / "commitlog" / f"{0:020d}").stat()
    assert status.st_size == 64 << 20
    assert status.st_blocks * 512 < 1 << 20


def test_a_brokers_store_at_rest_is_copied_as_it_is(
    golden: Path, scratch: Path, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(golden / "store")
    report = backup(golden / "store", scratch / "copy")
    assert tree_hash(golden / "store") == before
    assert (report.identity, report.record_count) == ("", 0)
    ours, theirs = _contents(scratch / "copy"), _contents(golden / "store")
    assert ours == theirs
    with Store.open(scratch / "copy") as store, Store.open(golden / "store", read_only=True) as source:
        assert store.log_range() == source.log_range()


def test_the_names_of_a_brokers_files_are_on_disk_before_the_copy_is_there(
    golden: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file was synced, and its name was not: a power cut could leave empty directories."""
    done: list[tuple[str, Path]] = []
    monkeypatch.setattr(durable, "hook", lambda operation, path: done.append((operation, Path(path))))
    backup(golden / "store", scratch / "copy")
    renamed = done.index(("rename", scratch / "copy"))
    files = [(at, path) for at, (operation, path) in enumerate(done[:renamed]) if operation == "fsync"]
    assert len([path for _, path in files if path.name.isdigit()]) > 1
    for at, path in files:
        assert ("fsync_directory", path.parent) in done[at:renamed], path


def test_a_brokers_store_that_somebody_opens_is_refused(
    golden: Path, working_copy: Callable[[Path], Path], scratch: Path
) -> None:
    root = working_copy(golden / "store")
    lock = OfdLock(root / "lock")
    lock.try_exclusive()
    with pytest.raises(StoreLockedError, match="process"):
        backup(root, scratch / "copy")
    lock.close()

    def open_it(messages: int, done: int, total: int) -> None:
        if done == total:
            (root / "config" / "topics.json").write_text("{}")

    with pytest.raises(StoreLockedError, match="changed"):
        backup(root, scratch / "copy", progress=open_it)
    assert not (scratch / "copy").exists()
    backup(root, scratch / "copy")


def test_progress_tells_messages_and_bytes(fast: Path) -> None:
    root, told = fast / "store", []
    with Store.open(root, create=True, config=TINY) as store:
        for number in range(300):
            send(store, number)
        report = backup(root, fast / "copy", progress=lambda *numbers: told.append(numbers))
    assert told[0] == (0, 0, report.end)
    assert told[-1] == (300, report.end, report.end)
    assert len(told) == -(-report.end // TINY.mapped_file_size_commit_log) + 1
    assert told == sorted(told)


def test_the_report_is_json_of_plain_values(fast: Path) -> None:
    with Store.open(fast / "store", create=True, config=TINY) as store:
        send(store, 0)
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(backup(fast / "store", fast / "copy"))))["record_count"] == 1


def test_an_empty_store_can_be_copied(fast: Path) -> None:
    Store.open(fast / "store", create=True, config=TINY).close()
    assert backup(fast / "store", fast / "copy").end == 0
    with Store.open(fast / "copy") as store:
        send(store, 0)
    assert is_clean(fast / "copy")
