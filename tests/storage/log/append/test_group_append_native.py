"""The messages of senders that wait, appended by one call of the extension: under their claims, as by the leader in
Python, and what is unusual is left to that.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.errors import StoreFullError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.bytes import native
from rmq_store.log.append import group_append, lone_append
from rmq_store.log.append.group_append import _Waiting
from rmq_store.log.append.lone_append import FRAME_BYTES_MAX, LoneAppend
from rmq_store.protocol.results import SendStatus

if TYPE_CHECKING:
    from ..conftest import Lab

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

# Of one message with two keys: seven words, three writes in two halves, two slots, the header.
STEPS_OF_ONE = 7 + 6 + 2 + 1
PUBLISHES = STEPS_OF_ONE - 3


@pytest.fixture(autouse=True)
def synced(lab: Lab) -> Iterator[None]:
    lab.config = replace(
        lab.config, mapped_file_size_consume_queue=20 * 500, mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=500, max_index_num=4000,
    )  # fmt: skip
    lab.sync_flush()
    yield
    lone_append.watch = None


@pytest.fixture
def store(lab: Lab) -> Iterator[Store]:
    with opened(lab) as store:
        yield store


def opened(lab: Lab) -> Store:
    """A store with one message in its queue, whose files are known."""
    store = lab.open()
    store.create_topic("Alpha", 1)
    store.send(message(0))
    return store


def message(number: int, body_bytes: int = 40, **options: object) -> Message:
    body = b"%08d" % number + b"." * body_bytes
    return Message("Alpha", body, keys=f"K{number}", queue_id=0, **options)  # type: ignore[arg-type]


def waiting(store: Store, one: Message) -> _Waiting:
    record, _ = store._writer._one.encode(one, 0, store.clock())  # type: ignore[union-attr]
    return _Waiting(record)


def append(store: Store, *line: _Waiting) -> bool:
    assert store._writer is not None
    return store._writer._lone_append.append_group(line, store.clock())


def test_all_are_appended_in_their_order_under_their_claims(lab: Lab, store: Store) -> None:
    start, senders = store.log_range()[1], [waiting(store, message(number)) for number in range(1, 4)]
    assert append(store, *senders)
    offsets = [sender.offsets for sender in senders]
    assert [sender.claim for sender in senders] == [[], [], []]
    assert [place and place[1] for place in offsets] == [1, 2, 3] and offsets[0] == (start, 1)
    store.flush()
    assert lab.numbers(store) == [0, 1, 2, 3] and lab.is_sound()


def test_who_is_claimed_is_left_out(lab: Lab, store: Store) -> None:
    senders = [waiting(store, message(number)) for number in range(1, 4)]
    assert senders[1].claimed()
    assert append(store, *senders)
    assert [sender.settled for sender in senders] == [True, False, True]
    store.flush()
    assert lab.numbers(store) == [0, 1, 3]


def delayed(store: Store) -> _Waiting:
    return waiting(store, message(9, delay_level=1))


def large(store: Store) -> _Waiting:
    return waiting(store, message(9, body_bytes=FRAME_BYTES_MAX))


def of_another_queue(store: Store) -> _Waiting:
    record = waiting(store, message(9)).record
    return _Waiting(record._replace(queue_id=5))


@pytest.mark.parametrize("unusual", [delayed, large, of_another_queue])
def test_from_an_unusual_one_on_all_keep_their_claims(store: Store, unusual: Callable[[Store], _Waiting]) -> None:
    senders = [waiting(store, message(1)), unusual(store), waiting(store, message(2))]
    assert append(store, *senders)
    assert [(sender.settled, len(sender.claim)) for sender in senders] == [(True, 0), (False, 1), (False, 1)]


@pytest.mark.parametrize("word", ["flushing", "poison"])
def test_while_another_one_flushes_nobody_is_claimed(store: Store, word: str) -> None:
    setattr(store._log.writing_page, word, 1)
    sender = waiting(store, message(1))
    assert not append(store, sender) and sender.claim == [True] and not sender.settled
    setattr(store._log.writing_page, word, 0)


class AtStep:
    def __init__(self, k: int, act: Callable[[], object]) -> None:
        self._left = k
        self._act = act

    def __call__(self, operation: str, target: str, fd: int, position: int, data: bytes) -> None:
        if not self._left:
            self._act()
        self._left -= 1


def published_before(k: int) -> int:
    return (k > PUBLISHES) + (k > STEPS_OF_ONE + PUBLISHES)


@pytest.mark.parametrize("k", range(2 * STEPS_OF_ONE))
def test_after_an_error_those_that_are_stored_know_it_and_the_others_have_their_claims(
    lab: Lab, store: Store, k: int
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    senders = [waiting(store, message(number)) for number in (1, 2)]
    lone_append.watch = AtStep(k, fail)
    with pytest.raises(StoreFullError):
        append(store, *senders)
    lone_append.watch = None
    # What fails behind `appended_end` is visible, and its sender is told that it is not known.
    done = (k >= STEPS_OF_ONE) + 0
    assert [sender.settled for sender in senders] == [done > 0, False]
    assert [len(sender.claim) for sender in senders] == [1 - (done > 0), 1]
    assert store._log.writing_page.intent is None
    store.flush()
    assert lab.numbers(store) == [0, 1, 2][: 1 + published_before(k)]
    other = OfdLock(store._log.append_lock.path)
    assert other.try_exclusive(), "the lock is free"
    other.close()
    store.send(message(7))
    assert lab.is_sound()


@pytest.mark.long
@pytest.mark.parametrize("k", range(2 * STEPS_OF_ONE))
def test_killed_before_a_step_what_was_published_is_there(lab: Lab, k: int) -> None:
    with opened(lab):
        pass

    def work() -> None:
        with lab.open() as store:
            store.send(message(1))
            lone_append.watch = AtStep(k, lambda: os.kill(os.getpid(), signal.SIGKILL))
            append(store, waiting(store, message(2)), waiting(store, message(3)))

    assert lab.in_child(work) == -signal.SIGKILL
    with lab.open() as store:
        assert lab.numbers(store) == [0, 1, 2, 3][: 2 + published_before(k)]
        assert lab.is_sound()


def test_threads_that_send_are_appended_in_groups_by_the_extension(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_python: list[int] = []
    append_one, groups = group_append.append_one, list[int]()
    append_group = LoneAppend.append_group

    def one(*given: object) -> object:
        by_python.append(1)
        return append_one(*given)  # type: ignore[arg-type]

    def group(lone: LoneAppend, line: list[_Waiting], now_ms: int) -> bool:
        done = append_group(lone, line, now_ms)
        groups.append(sum(sender.offsets is not None for sender in line))
        return done

    monkeypatch.setattr(group_append, "append_one", one)
    monkeypatch.setattr(LoneAppend, "append_group", group)
    statuses: list[SendStatus] = []

    def work(thread: int) -> None:
        statuses.extend(store.send(message(1 + 50 * thread + number)).status for number in range(50))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {SendStatus.SEND_OK} and len(statuses) == 400
    assert not by_python and sum(groups) == 400 and max(groups) > 1
    assert lab.numbers(store) == list(range(401)) and lab.is_sound()
    assert store._log.writing_page.flushed_end == store.log_range()[1]
