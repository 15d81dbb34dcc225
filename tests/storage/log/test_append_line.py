"""What threads send at the same time is appended by one of them; each gets its own answer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, SendResult, SendStatus, Store
from rmq_store.errors import StoreFailedError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.files.lock import OfdLock
from rmq_store.log import append_line
from rmq_store.log.append import OneRecord, append_one
from rmq_store.log.append_line import AppendLine
from rmq_store.log.commit_log import CommitLog

if TYPE_CHECKING:
    from .conftest import Lab

HANG_GUARD_S = 30


@pytest.fixture
def store(lab: Lab) -> Store:
    lab.sync_flush()
    store = lab.open()
    store.create_topic("Alpha", 1)
    return store


def line_of(store: Store) -> AppendLine:
    assert store._writer is not None
    return store._writer._line


class Sender(threading.Thread):
    """Sends one message, and keeps what came of it."""

    result: SendResult | None = None
    error: BaseException | None = None

    def __init__(self, store: Store, number: int, *, body_bytes: int = 8, lock_timeout_ms: int = 60_000) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.message = Message("Alpha", b"%08d" % number + bytes(body_bytes))
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
        known = len(line_of(store).waiting)
        sender.start()
        while len(line_of(store).waiting) == known:
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


def test_all_that_wait_for_the_lock_are_appended_in_one_turn(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, number) for number in range(5)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        assert [sender.ended() for sender in senders] == [SendStatus.SEND_OK] * 5
        assert lab.numbers(store) == list(range(5))
        assert not line_of(store).waiting


def test_a_record_that_cannot_be_stored_is_its_own_senders_error(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0), Sender(store, 1, body_bytes=9000), Sender(store, 2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        assert [type(sender.ended()) for sender in senders] == [SendStatus, UsageError, SendStatus]
        assert lab.numbers(store) == [0, 2]


def test_who_gives_up_is_not_stored_later(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0), Sender(store, 1, lock_timeout_ms=20), Sender(store, 2)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[1].ended(), StoreLockedError)
        assert [senders[0].ended(), senders[2].ended()] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == [0, 2]


def test_a_leader_that_gives_up_is_followed_by_the_next(lab: Lab, store: Store) -> None:
    with store:
        senders = [Sender(store, 0, lock_timeout_ms=20), Sender(store, 1)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[0].ended(), StoreLockedError)
        assert senders[1].ended() is SendStatus.SEND_OK
        assert lab.numbers(store) == [1]


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

    monkeypatch.setattr(append_line, "append_one", interrupt)
    with store:
        senders = [Sender(store, number) for number in range(4)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
        ended = [sender.ended() for sender in senders]
        assert isinstance(ended[0], KeyboardInterrupt)
        assert isinstance(ended[1], StoreFailedError) and "not known" in str(ended[1])
        assert ended[2:] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == ([0, 1, 2, 3] if appended else [0, 2, 3])
        assert not line_of(store).waiting and not line_of(store)._leader


def test_who_is_interrupted_in_the_line_is_not_stored_later(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = append_line._Waiting.sleep

    def interrupted(waiting: append_line._Waiting, timeout_s: float) -> None:
        asleep(waiting, timeout_s)
        if b"%08d" % 1 in waiting.record.frame:
            raise KeyboardInterrupt

    monkeypatch.setattr(append_line._Waiting, "sleep", interrupted)
    with store:
        senders = [Sender(store, number) for number in range(3)]
        with OfdLock(store._log.append_lock.path).exclusive(1000):
            in_line(store, senders)
            assert isinstance(senders[1].ended(), KeyboardInterrupt)
        assert [senders[0].ended(), senders[2].ended()] == [SendStatus.SEND_OK] * 2
        assert lab.numbers(store) == [0, 2]


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
