"""One message appended by one call of the extension: the same bytes as from Python, the same steps in the same order,
and Python wherever something is unusual.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.errors import StoreFailedError, StoreFullError, StoreLockedError, StoreReplacedError, UsageError
from rmq_store.files.locks import state_page
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.bytes import native
from rmq_store.format.text.host import Host
from rmq_store.format.views.index import entry_position
from rmq_store.log.append import append as append_module
from rmq_store.log.append import lone_append
from rmq_store.log.append.append import OneRecord
from rmq_store.log.append.lone_append import LoneAppend
from rmq_store.verify import verify_store

if TYPE_CHECKING:
    from ..conftest import Lab

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

MESSAGES = 10_000
TOPICS = ("Alpha", "Beta")
KEYS = ["K0 L0", "K1", "", "K2 K2 M2"]
STORES = [
    "index_file", "index_header_0", "intent_start", "intent_end", "appended_end", "last_record", "store_timestamp",
]  # fmt: skip
STEPS = [
    *(("store", word) for word in STORES[:4]), ("write", "segment"), ("half", "segment"), ("write", "queue file"),
    ("half", "queue file"), ("write", "index file"), ("half", "index file"), *[("store", "index slot")] * 3,
    ("store", "index header"), *(("store", word) for word in STORES[4:]),
]  # fmt: skip
PUBLISHES = STEPS.index(("store", "appended_end"))


@pytest.fixture(autouse=True)
def unwatched(lab: Lab) -> Iterator[None]:
    lab.config = replace(lab.config, mapped_file_size_consume_queue=20 * 500)
    yield
    lone_append.watch = None


def message(number: int, topic: str = "Alpha", **options: Any) -> Message:
    return Message(topic, b"%08d" % number + b"." * 40, tags="TagA", keys=f"K{number}", queue_id=0, **options)


def lone(store: Store) -> LoneAppend:
    assert store._writer is not None
    return store._writer._lone_append


@contextmanager
def counted(store: Store) -> Iterator[list[bool]]:
    """For each message, whether the extension appended it."""
    seen: list[bool] = []
    real = lone(store).append

    def append(record: OneRecord, now_ms: int) -> tuple[int, int] | None:
        placed = real(record, now_ms)
        seen.append(placed is not None)
        return placed

    lone(store).append = append  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del lone(store).append  # type: ignore[method-assign]


def opened(lab: Lab) -> Store:
    """A store with two messages: the second one shows that the next goes through the extension."""
    store = lab.open()
    for topic in TOPICS:
        store.create_topic(topic, 1)
    send(store, 0)
    with counted(store) as seen:
        send(store, 1)
    assert seen == [True]
    return store


def send(store: Store, number: int, topic: str = "Alpha") -> None:
    store.send(message(number, topic))


def sent_by(store: Store, number: int, topic: str = "Alpha") -> bool:
    """Send one; whether the extension did it."""
    with counted(store) as seen:
        send(store, number, topic)
    return seen == [True]


# -- bytes ------------------------------------------------------------------------------------------------------------


def random_message(chance: random.Random, number: int) -> Message:
    body = chance.randbytes(chance.choice((0, 1, 7, 100, 100, 100, 300, 1024)))
    properties = {f"name{each}": "v" * chance.randrange(1, 9) for each in range(chance.randrange(3))}
    return Message(
        chance.choice(("Alpha", "Beta", "Gamma_" + "g" * 60)),
        body or b"-",
        tags=chance.choice((None, "TagA", "T\u00e4g")),
        keys=chance.choice(KEYS) or None,
        properties=properties | {"UNIQ_KEY": f"{number:032X}"},
        queue_id=chance.randrange(3),
        flag=chance.choice((0, 0, -5, 1 << 30)),
        delay_level=1 if chance.random() < 0.01 else 0,
    )


def live(root: Path, config: StoreConfig, count: int) -> list[bool]:
    """Send random messages; whether each one was appended by the extension."""
    chance, now_ms = random.Random(0), 1_700_000_000_000

    def clock() -> int:
        return now_ms

    with Store.open(root, create=True, config=config, clock=clock) as store:
        for topic in ("Alpha", "Beta", "Gamma_" + "g" * 60):
            store.create_topic(topic, 3)
        with counted(store) as seen:
            for number in range(count):
                now_ms += chance.choice((0, 0, 1, 700))
                born = Host.parse("[fe80::1]:1234") if chance.random() < 0.1 else Host.parse("10.1.2.3:999")
                store.send(random_message(chance, number), born_host=born, as_given=True)
    assert not verify_store(root).problems
    return seen


@pytest.mark.long
@pytest.mark.parametrize("crc_property", [True, False])
@pytest.mark.parametrize("index", [True, False])
def test_the_same_bytes_as_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crc_property: bool, index: bool
) -> None:
    """Files roll: some messages of each kind go the Python way in between."""
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 500, max_hash_slot_num=500,
        max_index_num=4000, flush_interval_commit_log=10**9, delete_commit_log_files_interval=0,
        enabled_append_prop_crc=crc_property, message_index_enable=index, broker_host="10.0.0.1:10911",
    )  # fmt: skip
    count = MESSAGES if crc_property and index else MESSAGES // 10
    seen = live(tmp_path / "lone", config, count)
    assert sum(seen) > 0.9 * count
    monkeypatch.setattr(LoneAppend, "append", lambda lone, record, now_ms: None)
    assert not any(live(tmp_path / "python", config, count))
    found = [files(tmp_path / name) for name in ("lone", "python")]
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []
    assert len([name for name in found[0] if name.startswith("commitlog")]) > 1 or count < MESSAGES


def files(root: Path) -> dict[str, bytes]:
    """Log and views."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("commitlog", "consumequeue", "index")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def test_the_words_of_the_page_have_the_same_numbers() -> None:
    """The extension knows those up to `open_looked`; the others say what slaves have."""
    known = tuple(native.functions.state_words().split())
    assert known == state_page.WORDS[: len(known)]
    assert known[-1] == "open_looked"


# -- killed, and interrupted ------------------------------------------------------------------------------------------


class AtStep:
    """Acts before the k-th step; `steps` are all that came."""

    def __init__(self, k: int, act: Callable[[], object]) -> None:
        self._k = k
        self._act = act
        self.steps: list[tuple[str, str]] = []

    def __call__(self, operation: str, target: str, fd: int, position: int, data: bytes) -> None:
        self.steps.append((operation, target))
        if len(self.steps) == self._k + 1:
            self._act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(lab: Lab, k: int) -> None:
    """A process opens the store, sends one message, and is killed before step k of the next one."""

    def work() -> None:
        store = lab.open()
        send(store, 2)
        lone_append.watch = AtStep(k, die)
        send(store, 3)

    assert lab.in_child(work) == -signal.SIGKILL


def test_the_steps_are_those_of_an_append_in_their_order(lab: Lab) -> None:
    with opened(lab) as store:
        lone_append.watch = watch = AtStep(-1, die)
        assert sent_by(store, 2)
    assert watch.steps == STEPS


@pytest.mark.long
@pytest.mark.parametrize("k", range(len(STEPS)), ids=[f"{number}-{step[1]}" for number, step in enumerate(STEPS)])
def test_killed_before_a_step_the_message_is_there_or_it_is_not(lab: Lab, k: int) -> None:
    """The next opener finds it as soon as it was published, and before that no trace of it."""
    with opened(lab):
        pass
    before = lab.files()
    killed_at(lab, k)
    published = k > PUBLISHES
    with lab.open() as store:
        assert lab.numbers(store) == [0, 1, 2, *([3] if published else [])]
        assert lab.is_sound()
        assert sent_after(store)
    assert lab.is_sound()
    assert before.keys() <= lab.files().keys()


def sent_after(store: Store) -> bool:
    """Two more messages get the next offsets; the second one by the extension."""
    first = store.send(message(7))
    with counted(store) as seen:
        second = store.send(message(8))
    return second.queue_offset == first.queue_offset + 1 and seen == [True]


@pytest.mark.long
@pytest.mark.parametrize("k", range(len(STEPS)))
def test_another_writer_undoes_what_a_killed_one_left(lab: Lab, k: int) -> None:
    with opened(lab) as store:
        log = store._log
        end, count = log.writing_page.appended_end, len(lab.numbers(store))

        def work() -> None:
            with lab.open() as other:
                other.send(message(2))
                lone_append.watch = AtStep(k, die)
                other.send(message(3))

        assert lab.in_child(work) == -signal.SIGKILL
        page = log.writing_page
        assert (page.intent is not None) == (STEPS.index(("store", "intent_end")) < k <= PUBLISHES)
        assert page.appended_end > end
        assert not sent_by(store, 4), "another process has appended"
        assert page.intent is None
        assert sent_by(store, 5)
        assert len(lab.numbers(store)) == count + 3 + (k > PUBLISHES)
        assert lab.is_sound()


def test_without_the_undo_a_killed_append_is_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above have teeth."""
    with opened(lab) as store:

        def work() -> None:
            with lab.open() as other:
                other.send(message(2))
                lone_append.watch = AtStep(PUBLISHES, die)
                other.send(message(3))

        assert lab.in_child(work) == -signal.SIGKILL
        monkeypatch.setattr(append_module, "undo", lambda log: setattr(log.writing_page, "intent_end", 0))
        intended = store._log.writing_page.intent
        assert intended is not None
        store._log.segments.write(intended[0], bytes(8))  # as a machine that writes what it likes
        assert not sent_by(store, 4)
        assert not lab.is_sound()


@pytest.mark.parametrize("k", range(len(STEPS)))
def test_an_error_in_the_middle_is_typed_and_nothing_stays(lab: Lab, k: int) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(lab) as store:
        before = lab.files()
        lone_append.watch = AtStep(k, fail)
        with pytest.raises(StoreFullError):
            send(store, 2)
        lone_append.watch = None
        if k <= PUBLISHES:
            assert lab.files() == before
        assert store._log.writing_page.intent is None
        send(store, 3)
        assert sent_by(store, 4)
        assert lab.is_sound()


@pytest.mark.parametrize("file", ["segment", "queue file", "index file"])
def test_a_write_that_fails_leaves_the_message_to_python(lab: Lab, file: str) -> None:
    """The descriptor takes no bytes; what was begun is undone, and the message is stored once."""
    with opened(lab) as store:
        place, queue = lone(store)._place, lone(store)._queues["Alpha", 0][0]
        assert place is not None
        numbers = queue.numbers if file == "queue file" else place[0].numbers
        which = {"queue file": 0, "segment": 2, "index file": 5}[file]
        path = Path(f"/proc/self/fd/{numbers[which]}").readlink()
        reader = os.open(path, os.O_RDONLY)
        numbers[which] = reader
        try:
            assert not sent_by(store, 2)
        finally:
            os.close(reader)
        assert lab.numbers(store) == [0, 1, 2]
        assert store._log.writing_page.intent is None
        assert lab.is_sound()


# -- the Python way ---------------------------------------------------------------------------------------------------


def flushing(store: Store) -> None:
    store._log.writing_page.flushing = 1


def begun_elsewhere(store: Store) -> None:
    page = store._log.writing_page
    state = store._log.views.index_state()
    page.declare(page.appended_end, page.appended_end + 100, state.file, state.header)


def time_set_back(store: Store) -> None:
    store._log.writing_page.store_timestamp = 1 << 60


def flush_claimed(store: Store) -> None:
    store._log.flush_lock.claim.take((1, None))


def queue_file_gone(store: Store) -> None:
    [path] = (store.path / "consumequeue" / "Alpha" / "0").iterdir()
    saved = path.read_bytes()
    path.unlink()
    path.write_bytes(saved)


def index_file_gone(store: Store) -> None:
    [path] = (store.path / "index").iterdir()
    saved = path.read_bytes()
    path.unlink()
    path.write_bytes(saved)


def entry_gone(store: Store) -> None:
    [path] = (store.path / "consumequeue" / "Alpha" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(bytes(20))
    store._log.own_next["Alpha", 0] = 2


def appended_in_bulk(store: Store) -> None:
    store.append(pa.RecordBatch.from_pydict({"body": [b"00000006"]}), "Beta")


def forgotten(store: Store) -> None:
    store._log.files.clear()


UNUSUAL = (
    flushing, begun_elsewhere, time_set_back, flush_claimed, queue_file_gone, index_file_gone, appended_in_bulk,
    forgotten,
)  # fmt: skip


@pytest.mark.parametrize("happens", UNUSUAL)
def test_what_is_unusual_is_left_to_python(lab: Lab, happens: Callable[[Store], None]) -> None:
    with opened(lab) as store:
        happens(store)
        page = store._log.writing_page
        words = page.map[:]
        record, _ = store._writer._one.encode(message(2), 0, lab.clock())  # type: ignore[union-attr]
        assert lone(store).append(record, lab.now_ms) is None
        assert page.map[:] == words, "nothing was changed"
        other = OfdLock(store._log.append_lock.path)
        assert other.try_exclusive(), "the lock is free"
        other.close()
        store._log.flush_lock.claim.give_up()
        send(store, 3)
        send(store, 4)
        assert {0, 1, 3, 4} <= set(lab.numbers(store))
        assert lab.is_sound()


def test_an_entry_that_is_gone_is_left_to_python(lab: Lab) -> None:
    with opened(lab) as store:
        entry_gone(store)
        record, _ = store._writer._one.encode(message(2), 0, lab.clock())  # type: ignore[union-attr]
        assert lone(store).append(record, lab.now_ms) is None


def test_the_lock_is_never_waited_for(lab: Lab) -> None:
    with opened(lab) as store:
        other = OfdLock(store._log.append_lock.path)
        assert other.try_exclusive()
        with counted(store) as seen, pytest.raises(StoreLockedError):
            store.send(message(2), lock_timeout_ms=0)
        assert seen == [False]
        other.close()
        with store._log.append_lock.exclusive(0):  # of this process
            record, _ = store._writer._one.encode(message(2), 0, lab.clock())  # type: ignore[union-attr]
            assert lone(store).append(record, lab.now_ms) is None
        assert sent_by(store, 3)


def test_refusals_are_those_of_python(lab: Lab) -> None:
    with opened(lab) as store:
        store._log.writing_page.poison = 1
        with counted(store) as seen, pytest.raises(StoreFailedError):
            send(store, 2)
        store._log.writing_page.poison = 0
        store._log.is_closing = True
        with pytest.raises(UsageError, match="closed meanwhile"):
            send(store, 3)
        store._log.is_closing = False
        assert seen == [False]
        assert sent_by(store, 4)


def test_a_store_that_was_replaced_gets_nothing(lab: Lab) -> None:
    store = opened(lab)
    moved = lab.root.with_name("moved")
    lab.root.rename(moved)
    with counted(store) as seen, pytest.raises(StoreReplacedError):
        send(store, 2)
    assert seen == [False]
    moved.rename(lab.root)
    assert sent_by(store, 3)
    store.close()


def test_an_append_lock_file_that_was_replaced_excludes_nobody(lab: Lab) -> None:
    with opened(lab) as store:
        store._log.append_lock.path.unlink()
        assert not sent_by(store, 2)
        assert sent_by(store, 3)


def test_delays_large_messages_and_files_that_end_go_the_python_way(lab: Lab) -> None:
    lab.config = replace(lab.config, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 5)
    with opened(lab) as store, counted(store) as seen:
        store.send(message(2, delay_level=1))
        store.send(Message("Alpha", bytes(70_000), queue_id=0))
        assert seen == [False, False]
        seen.clear()
        for number in range(3, 15):  # a queue file has five entries, and the index 49
            send(store, number)
        assert seen.count(False) >= 2
        assert seen.count(True) >= 6
    assert lab.is_sound()


@pytest.mark.parametrize("left_bytes", [0, 7, 8])
def test_a_frame_leaves_room_for_a_blank_at_the_end_of_its_file(lab: Lab, left_bytes: int) -> None:
    size_bytes = 1 << 20
    lab.config = replace(lab.config, mapped_file_size_commit_log=size_bytes)
    with opened(lab) as store:
        page = lone(store)._log.writing_page
        begin = page.appended_end
        store.send(Message("Alpha", bytes(1000), queue_id=0))
        others_bytes = page.appended_end - begin - 1000
        while size_bytes - page.appended_end > 60_000:
            store.send(Message("Alpha", bytes(40_000), queue_id=0))
        with counted(store) as seen:
            body_bytes = size_bytes - page.appended_end - left_bytes - others_bytes
            store.send(Message("Alpha", bytes(body_bytes), queue_id=0))
        assert seen == [left_bytes == 8]
        assert page.appended_end > size_bytes if left_bytes < 8 else page.appended_end == size_bytes - 8
        send(store, 2)
    assert lab.is_sound()


def test_a_closed_store_is_left_alone(lab: Lab) -> None:
    store = opened(lab)
    appender = lone(store)
    record, _ = store._writer._one.encode(message(2), 0, lab.clock())  # type: ignore[union-attr]
    store.close()
    before = lab.files()
    assert appender.append(record, lab.now_ms) is None
    assert lab.files() == before


def test_a_forked_child_cannot_append(lab: Lab) -> None:
    with opened(lab) as store:
        record, _ = store._writer._one.encode(message(2), 0, lab.clock())  # type: ignore[union-attr]

        def work() -> None:
            assert lone(store).append(record, lab.now_ms) is None

        assert lab.in_child(work) == 0
        assert lab.numbers(store) == [0, 1]


# -- others -----------------------------------------------------------------------------------------------------------


def test_who_waits_for_the_lock_is_woken(lab: Lab) -> None:
    with opened(lab) as store:
        futex = store._log.append_lock.futex
        assert futex is not None
        woken: list[bool] = []
        waiter = threading.Thread(target=lambda: woken.append(futex.wait(60)))
        futex.announce()
        waiter.start()
        assert sent_by(store, 2)
        waiter.join(30)
        assert woken == [True]
        assert not futex._words[0]
        assert futex.holder == 0


def test_two_processes_append_in_turn(lab: Lab) -> None:
    """Each finds that the other one has appended, and numbers on from the files."""
    with opened(lab) as store:

        def work() -> None:
            with lab.open() as other:
                for number in range(100, 200):
                    send(other, number)

        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        for number in range(2, 102):
            send(store, number)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(lab.numbers(store)) == 202
        assert store.queue_ranges("Alpha") == {0: (0, 202)}
        assert lab.is_sound()


def test_threads_append_at_the_same_time(lab: Lab) -> None:
    lab.config = replace(lab.config, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 10_000)
    with opened(lab) as store:
        results: list[int] = []

        def work() -> None:
            results.extend(store.send(message(5)).queue_offset for _ in range(200))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == list(range(2, 1602))
        assert lab.is_sound()


def test_a_reader_sees_a_lone_message_at_once(lab: Lab) -> None:
    with opened(lab) as store, Store.open(lab.root, read_only=True) as reader:
        for number in range(2, 5):
            end = store.send(message(number)).queue_offset + 1
            assert store.queue_ranges("Alpha")[0][1] == reader.queue_ranges("Alpha")[0][1] == end
        assert [each.body[:8] for each in store.query.by_key("Alpha", "K4")] == [b"%08d" % 4]


def test_a_file_that_cannot_be_looked_at_makes_no_error_of_a_stored_message(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets an error sends again."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with opened(lab) as store:
        lone(store).forget()
        monkeypatch.setattr(LoneAppend, "_look_at_queue", fail)
        assert not sent_by(store, 2)
        store.send_all([message(3), message(4)])
        assert lab.numbers(store) == [0, 1, 2, 3, 4]


def test_python_stores_slots_behind_a_fence_and_the_entries_before_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ARM a look-up would otherwise follow a slot to an entry that it does not see yet."""
    with opened(lab) as store:
        assert store._log.views.index is not None
        index = store._log.views.index.newest()
        assert index is not None
        before, position = index.slots.tolist(), entry_position(index.slot_count, index.header.index_count)
        seen: list[tuple[bool, bool]] = []

        def fence() -> None:
            entry = os.pread(index.fd, 20, position)
            seen.append((any(entry), index.slots.tolist() == before))

        monkeypatch.setattr(native, "release_fence", fence)
        monkeypatch.setattr(LoneAppend, "append", lambda *_: None)
        send(store, 9)
        assert (True, True) in seen, "the entries are written, and no slot is stored"
        assert seen[-1] == (True, False)
