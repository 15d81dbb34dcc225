"""What threads send at the same time is appended by one of them; each gets its own answer."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, SendResult, SendStatus, Store
from rmq_store.broker.write import writer
from rmq_store.errors import StoreFailedError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.log.append import group_append
from rmq_store.log.append.append import OneRecord, append_one
from rmq_store.log.append.flush import flush
from rmq_store.log.append.group_append import GroupAppend
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.verify import verify_store

if TYPE_CHECKING:
    from .conftest import Lab

HANG_GUARD_S = 30


@pytest.fixture
def store(lab: Lab) -> Store:
    lab.sync_flush()
    store = lab.open()
    store.create_topic("Alpha", 1)
    store.create_topic("Beta", 1)
    return store


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody appends by itself, however slow the test is."""
    monkeypatch.setattr(group_append, "PATIENCE_S", float(HANG_GUARD_S))


def slow_disk(s: float) -> None:
    """Each fsync of the log takes so much longer."""

    def wait(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            time.sleep(s)

    durable.hook = wait


def group_append_of(store: Store) -> GroupAppend:
    assert store._writer is not None
    return store._writer._group_append


class Sender(threading.Thread):
    """Sends one message, and keeps what came of it."""

    result: SendResult | None = None
    error: BaseException | None = None

    def __init__(
        self, store: Store, number: int, *, topic: str = "Alpha", body_bytes: int = 8, lock_timeout_ms: int = 60_000
    ) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.message = Message(topic, b"%08d" % number + bytes(body_bytes), properties={"KEYS": "k"})
        self.lock_timeout_ms = lock_timeout_ms

    def run(self) -> None:
        try:
            self.result = self.store.send(self.message, lock_timeout_ms=self.lock_timeout_ms)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | SendStatus | None:
        self.join(HANG_GUARD_S)
        assert not self.is_alive()
        return self.error or (self.result.status if self.result else None)


def in_line(store: Store, senders: list[Sender]) -> None:
    """Start them one after the other, so that they stand in this order."""
    for sender in senders:
        known = len(group_append_of(store).waiting)
        sender.start()
        while len(group_append_of(store).waiting) == known:
            os.sched_yield()


def test_each_sender_gets_the_place_of_its_own_message(lab: Lab, store: Store) -> None:
    fsyncs = 0

    def count(operation: str, path: str) -> None:
        nonlocal fsyncs
        fsyncs += operation == "fsync" and "commitlog" in path

    with store:
        places: dict[int, list[int]] = {}

        def send_some(thread: int) -> None:
            for number in range(50):
                result = store.send(Message("Alpha", b"%08d" % (1000 * thread + number)))
                assert result.status is SendStatus.SEND_OK
                places.setdefault(thread, []).append(result.queue_offset)

        durable.hook = count
        threads = [threading.Thread(target=send_some, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_GUARD_S)
        durable.hook = None
        bodies = [row["body"] for batch in store.read("Alpha", 0, 0, 400) for row in batch.to_pylist()]
        assert sorted(offset for offsets in places.values() for offset in offsets) == list(range(400))
        for thread, offsets in places.items():
            assert [bodies[offset] for offset in offsets] == [b"%08d" % (1000 * thread + n) for n in range(50)]
            assert offsets == sorted(offsets)
        assert fsyncs < 400


@pytest.mark.usefixtures("patient")
def test_all_that_wait_for_the_lock_are_appended_and_flushed_in_one_turn(lab: Lab, store: Store) -> None:
    fsyncs = []

    def count(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            fsyncs.append(path)

    with store:
        store.send(Message("Alpha", b"%08d" % 9))
        senders = [Sender(store, number) for number in range(5)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            durable.hook = count
        assert [sender.ended() for sender in senders] == [SendStatus.SEND_OK] * 5
        durable.hook = None
        assert len(fsyncs) == 1
        assert lab.numbers(store) == [*range(5), 9]
        assert not group_append_of(store).waiting


@pytest.mark.usefixtures("patient")
def test_a_record_that_cannot_be_stored_is_its_own_senders_error(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0), Sender(store, 1, body_bytes=9000), Sender(store, 2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        assert [type(sender.ended()) for sender in senders] == [SendStatus, UsageError, SendStatus]
        assert lab.numbers(store) == [0, 2]


@pytest.mark.usefixtures("patient")
def test_who_gives_up_is_not_stored_later(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0), Sender(store, 1, lock_timeout_ms=20), Sender(store, 2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[1].ended(), StoreLockedError)
        assert [senders[0].ended(), senders[2].ended()] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == [0, 2]


@pytest.mark.usefixtures("patient")
def test_a_leader_that_gives_up_is_followed_by_the_next(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0, lock_timeout_ms=20), Sender(store, 1)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[0].ended(), StoreLockedError)
        assert senders[1].ended() is SendStatus.SEND_OK
        assert lab.numbers(store) == [1]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("appended", [False, True], ids=["before", "after"])
def test_a_leader_that_is_interrupted_leaves_one_in_doubt_and_the_others_to_the_next(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch, appended: bool
) -> None:
    """Ctrl-C while it appends the second of four: whether that one is stored, its sender is told, is not known."""
    calls = 0

    def interrupt(log: CommitLog, record: OneRecord) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            if appended:
                append_one(log, record)
            raise KeyboardInterrupt
        return append_one(log, record)

    monkeypatch.setattr(group_append, "append_one", interrupt)
    with store:
        senders = [Sender(store, number) for number in range(4)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        ended = [sender.ended() for sender in senders]
        assert isinstance(ended[0], KeyboardInterrupt)
        assert isinstance(ended[1], StoreFailedError) and "not known" in str(ended[1])
        assert ended[2:] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == ([0, 1, 2, 3] if appended else [0, 2, 3])
        assert not group_append_of(store).waiting and not group_append_of(store)._leader


@pytest.mark.usefixtures("patient")
def test_who_is_interrupted_in_the_line_is_not_stored_later(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = group_append._Waiting.sleep

    def interrupted(waiting: group_append._Waiting, timeout_s: float) -> None:
        asleep(waiting, 0.1)
        if b"%08d" % 1 in waiting.record.frame:
            raise KeyboardInterrupt

    monkeypatch.setattr(group_append._Waiting, "sleep", interrupted)
    with store:
        senders = [Sender(store, number) for number in range(3)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[1].ended(), KeyboardInterrupt)
        assert [senders[0].ended(), senders[2].ended()] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == [0, 2]


def test_who_is_interrupted_as_it_joins_the_line_is_not_stored_later(lab: Lab, store: Store) -> None:
    """Python looks for signals after each call: the record was in the line, and nobody was there to take it out."""

    class Interrupted(deque[group_append._Waiting]):
        def append(self, waiting: group_append._Waiting) -> None:
            super().append(waiting)
            line.waiting = deque(self)
            raise KeyboardInterrupt

    with store:
        line = group_append_of(store)
        line.waiting = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            store.send(Message("Alpha", b"%08d" % 0))
        store.send(Message("Alpha", b"%08d" % 1))
        assert lab.numbers(store) == [1]
        assert not line.waiting and not line._leader


@pytest.mark.usefixtures("patient")
def test_who_is_interrupted_while_a_leader_appends_the_record_sees_it_through(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = group_append._Waiting.sleep
    inside, interrupted = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def slow(log: CommitLog, record: OneRecord) -> tuple[int, int]:
        if b"%08d" % 1 in record.frame:
            inside.set()
            assert interrupted.wait(HANG_GUARD_S)
            time.sleep(0.1)
        return append_one(log, record)

    def interrupted_once(waiting: group_append._Waiting, timeout_s: float) -> None:
        if b"%08d" % 1 in waiting.record.frame and not interrupted.is_set():
            assert inside.wait(HANG_GUARD_S)
            interrupted.set()
            raise KeyboardInterrupt
        asleep(waiting, timeout_s)

    class Looking(Sender):
        def run(self) -> None:
            super().run()
            seen.append([store._log.writing_page.appended_end])

    monkeypatch.setattr(group_append._Waiting, "sleep", interrupted_once)
    monkeypatch.setattr(group_append, "append_one", slow)
    with store:
        senders = [Sender(store, 0), Looking(store, 1)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        assert [type(sender.ended()) for sender in senders] == [SendStatus, KeyboardInterrupt]
        assert seen == [[store._log.writing_page.appended_end]], "it was stored when its sender had gone"
        assert lab.numbers(store) == [0, 1]


@pytest.mark.usefixtures("patient")
def test_a_failed_fsync_is_everybodys_error(lab: Lab, store: Store) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            raise OSError(5, "Input/output error")

    store.send(Message("Alpha", b"%08d" % 9))
    senders = [Sender(store, number) for number in range(3)]
    durable.hook = fail
    with OfdLock(store._log.append_lock.path).exclusive(1000):
        in_line(store, senders)
    assert [type(sender.ended()) for sender in senders] == [StoreFailedError] * 3
    durable.hook = None
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.usefixtures("patient")
def test_a_child_that_is_forked_beside_a_leader_appends_nothing_of_its_parents(lab: Lab, store: Store) -> None:
    """A forked child may not use the store it inherits; it is told so at once, and the line goes on in the parent."""
    with store:
        senders = [Sender(store, number) for number in range(2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    store.send(Message("Alpha", b"%08d" % 2))
                except UsageError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [sender.ended() for sender in senders] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == [0, 1]


def test_on_a_slow_disk_all_wait_for_their_fsync(lab: Lab, store: Store) -> None:
    """A sender whose message is stored waits for `syncFlushTimeout`, and not only as long as its patience lasts."""
    with store:
        store.send(Message("Alpha", b"%08d" % 99))
        slow_disk(4 * group_append.PATIENCE_S)
        senders = [Sender(store, number) for number in range(8)]
        for sender in senders:
            sender.start()
        assert [sender.ended() for sender in senders] == [SendStatus.SEND_OK] * 8
        durable.hook = None
        assert lab.numbers(store) == [*range(8), 99]


@pytest.mark.parametrize("lock_timeout_ms", [20, 60_000])
def test_who_comes_while_the_disk_hangs_is_stored_and_told_so_in_time(lab: Lab, lock_timeout_ms: int) -> None:
    """FLUSH_DISK_TIMEOUT after `syncFlushTimeout`, as if there were no line; no lock is to blame."""
    lab.sync_flush()
    lab.config = replace(lab.config, sync_flush_timeout=100)
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        store.send(Message("Alpha", b"%08d" % 99))
        entered, go_on = threading.Event(), threading.Event()

        def hang(operation: str, path: str) -> None:
            if operation == "fsync" and "commitlog" in path and not entered.is_set():
                entered.set()
                assert go_on.wait(HANG_GUARD_S)

        durable.hook = hang
        first, second = Sender(store, 0), Sender(store, 1, lock_timeout_ms=lock_timeout_ms)
        first.start()
        assert entered.wait(HANG_GUARD_S)
        second.start()
        assert second.ended() is SendStatus.FLUSH_DISK_TIMEOUT
        go_on.set()
        assert first.ended() is SendStatus.SEND_OK
        durable.hook = None
        store.flush()
        assert lab.numbers(store) == [0, 1, 99]


def test_a_leader_waits_once_for_a_disk_that_another_process_flushes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_ms: list[int | None] = []

    def counted(log: CommitLog, target: int | None = None, timeout_ms: int | None = None) -> None:
        waited_ms.append(timeout_ms)
        flush(log, target, timeout_ms)

    lab.sync_flush()
    lab.config = replace(lab.config, sync_flush_timeout=15)
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        monkeypatch.setattr(group_append, "flush", counted)
        monkeypatch.setattr(writer, "flush", counted)
        with OfdLock(store._log.flush_lock.path).exclusive(1000):
            assert store.send(Message("Alpha", b"x")).status is SendStatus.FLUSH_DISK_TIMEOUT
            assert waited_ms == [15]


@pytest.mark.usefixtures("patient")
def test_what_could_not_be_taken_back_is_taken_back_before_the_next_is_appended(lab: Lab, store: Store) -> None:
    """Two I/O errors, one of an append and one of its undo: the next in the line is of another queue."""
    errors = ["/index/", "consumequeue/Alpha"]

    def fail(operation: str, path: str) -> None:
        if operation == "write" and errors and errors[0] in path:
            errors.pop(0)
            raise OSError(errno.EIO, "Input/output error")

    with store:
        for number, topic in enumerate(("Alpha", "Beta")):
            store.send(Message(topic, b"%08d" % number, properties={"KEYS": "k"}))
        senders = [Sender(store, 2), Sender(store, 3, topic="Beta", body_bytes=40)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            durable.hook = fail
        assert [type(sender.ended()) for sender in senders] == [StoreFailedError, SendStatus]
        durable.hook = None
        assert not errors
        assert store.send(Message("Alpha", b"%08d" % 4)).status is SendStatus.SEND_OK
        assert lab.numbers(store) == [0, 1, 3, 4]
    assert verify_store(lab.root).problem_count == 0


@pytest.mark.usefixtures("patient")
def test_an_error_of_the_operating_system_is_its_own_senders_error(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor left when a queue's directory is listed: the leader's own message is stored, and it hears so."""

    def no_descriptor(log: CommitLog, record: OneRecord) -> tuple[int, int]:
        if record.topic == "Beta":
            raise OSError(errno.EMFILE, "Too many open files")
        return append_one(log, record)

    monkeypatch.setattr(group_append, "append_one", no_descriptor)
    with store:
        senders = [Sender(store, 0), Sender(store, 1, topic="Beta"), Sender(store, 2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        ended = [sender.ended() for sender in senders]
        assert [ended[0], ended[2]] == [SendStatus.SEND_OK] * 2
        assert isinstance(ended[1], StoreFailedError) and "Too many open files" in str(ended[1])
        assert lab.numbers(store) == [0, 2]


def test_who_leaves_the_line_takes_nobody_else_out_of_it(store: Store) -> None:
    """The first one of the line goes by itself while the leader looks at it: the next one stays."""
    with store:
        line = group_append_of(store)

        class Leaving(group_append._Waiting):
            @property
            def settled(self) -> bool:
                if self in line.waiting:
                    line.waiting.remove(self)
                return True

        other = group_append._Waiting(next_record(store))
        line.waiting += (Leaving(next_record(store)), other)
        line._leave()
        assert list(line.waiting) == [other]
        line.waiting.clear()


def next_record(store: Store) -> OneRecord:
    assert store._writer is not None
    return store._writer._one.encode(Message("Alpha", b"x"), 0, 0)[0]
