"""An append is all or nothing, whatever fails or dies in the middle of it.

The method: let the first operation of the file layer fail, then the second one, and so on, until the append passes. At
each of them the store must be as if nothing had been tried.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store
from rmq_store.errors import StoreError, StoreFailedError, StoreFullError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.state_page import WORDS
from rmq_store.log.append import grouping
from rmq_store.log.append.append import append, append_lock
from rmq_store.log.views import hash_index
from rmq_store.log.views.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from .conftest import CountDown, Lab

OPERATIONS_MAX = 400


def fail_with(code: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(code, os.strerror(code))

    return act


def run_out_of_memory() -> None:
    raise MemoryError


def interrupt() -> None:
    raise KeyboardInterrupt


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES = {
    "full disk": (fail_with(errno.ENOSPC), StoreFullError),
    "broken disk": (fail_with(errno.EIO), StoreFailedError),
    "no memory": (run_out_of_memory, MemoryError),
    "interrupt": (interrupt, KeyboardInterrupt),
}

BATCHES = {
    "one message": (1, 60),
    "rolls of every file": (30, 300),
}


@pytest.fixture(params=["many keys", "few keys"])
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots of many keys are written in another way. Here all are many, or none are."""
    monkeypatch.setattr(hash_index, "_MANY_SHARE", 16 if request.param == "many keys" else 1e-3)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("failure", "sticky"),
    [("full disk", False), ("broken disk", True), ("no memory", False), ("interrupt", False)],
)
def test_an_append_whose_kth_operation_fails_leaves_the_store_as_it_was(
    lab: Lab, fail_at: Callable[..., CountDown], failure: str, sticky: bool, every: int
) -> None:
    act, expected = FAILURES[failure]
    with lab.open() as store:
        store.append(lab.batch(7))
        batch = lab.batch(30, body_bytes=300)
        for k in range(1, OPERATIONS_MAX, every):
            before, seen, log_range = lab.files(), lab.numbers(store), store.log_range()
            hook = fail_at(k, act, sticky=sticky)
            try:
                store.append(batch)
            except (StoreError, MemoryError, KeyboardInterrupt) as error:
                assert isinstance(error, expected)
            durable.hook = None
            if not hook.reached:
                break
            assert (lab.numbers(store), store.log_range()) == (seen, log_range)
            if not sticky:
                assert lab.files() == before
                assert store._log.writing_page.intent is None  # the undo is done with
            # The next append works, and takes back what the failing one could not.
            store.append(lab.batch(1))
            assert lab.numbers(store) == sorted([*seen, lab.written - 1])
            assert lab.is_sound()
        assert 20 < k < OPERATIONS_MAX - 1
    assert lab.verify().status == "clean"


@pytest.mark.usefixtures("keys")
def test_what_a_failing_undo_leaves_is_taken_back_by_the_next_append_to_the_byte(
    lab: Lab, fail_at: Callable[..., CountDown]
) -> None:
    with lab.open() as store:
        store.append(lab.batch(7))
        before = lab.files()
        batch = lab.batch(30, body_bytes=300)
        for k in range(1, OPERATIONS_MAX):
            hook = fail_at(k, fail_with(errno.EIO), sticky=True)
            try:
                store.append(batch)
            except StoreFailedError:
                pass
            durable.hook = None
            with append_lock(store._log):
                pass
            if not hook.reached:
                break
            assert lab.files() == before
        assert 20 < k < OPERATIONS_MAX - 1


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.statement("G12")
@pytest.mark.slow
def test_a_writer_killed_at_its_kth_operation_is_undone_by_the_next_one(
    lab: Lab, fail_at: Callable[..., CountDown], memory_too: None, kind: str
) -> None:
    count, body_bytes = BATCHES[kind]
    with lab.open() as store:
        store.append(lab.batch(7))
        batch = lab.batch(count, body_bytes=body_bytes)

        def append_and_die(k: int) -> None:
            with_others = lab.open()
            fail_at(k, die)
            with_others.append(batch)

        for k in range(1, OPERATIONS_MAX):
            before, seen, log_range = lab.files(), lab.numbers(store), store.log_range()
            if lab.in_child(lambda k=k: append_and_die(k)) == 0:  # type: ignore[misc]
                break
            if store.log_range() != log_range:  # It died behind its commit point.
                assert lab.numbers(store) == sorted([*seen, *range(7, 7 + count)])
                assert k > 5
                break
            assert lab.numbers(store) == seen
            with append_lock(store._log):
                pass
            assert lab.files() == before
            assert lab.is_sound()
        assert 10 < k < OPERATIONS_MAX - 1
        store.append(lab.batch(3))
        assert len(lab.numbers(store)) == 7 + count + 3
    assert lab.verify().status == "clean"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.slow
def test_a_lone_writer_killed_at_its_kth_operation_is_undone_by_the_next_first_opener(
    lab: Lab, fail_at: Callable[..., CountDown], memory_too: None, kind: str
) -> None:
    count, body_bytes = BATCHES[kind]
    with lab.open() as store:
        store.append(lab.batch(7))
    before, batch = lab.files(), lab.batch(count, body_bytes=body_bytes)

    def append_and_die(k: int) -> None:
        alone = lab.open()
        fail_at(k, die)
        alone.append(batch)
        die()

    for k in range(1, OPERATIONS_MAX):
        assert lab.in_child(lambda k=k: append_and_die(k)) == -signal.SIGKILL  # type: ignore[misc]
        with lab.open(read_only=True) as reader:
            seen = lab.numbers(reader)
        with lab.open() as store:
            assert store.recovery is not None
            assert store.recovery.trust == "SAME_BOOT"
            assert lab.numbers(store) == seen  # what a reader saw stays
            if seen != list(range(7)):
                assert seen == list(range(7 + count))
                break
            assert lab.files() == before
        assert lab.verify().status == "clean"
    assert 10 < k < OPERATIONS_MAX - 1


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.slow
def test_an_undo_killed_at_its_kth_operation_is_finished_by_the_next_one(
    lab: Lab, fail_at: Callable[..., CountDown], memory_too: None, kind: str
) -> None:
    count, body_bytes = BATCHES[kind]
    with lab.open() as store:
        store.append(lab.batch(7))
        batch = lab.batch(count, body_bytes=body_bytes)
        before = lab.files()

        def append_and_fail() -> None:
            other = lab.open()

            def die_at_the_commit_point(operation: str, path: str) -> None:
                if operation == "word" and WORDS[int(path)] == "appended_end":
                    die()

            durable.hook = die_at_the_commit_point
            other.append(batch)

        def undo_and_die(k: int) -> None:
            other = lab.open()
            fail_at(k, die)
            with append_lock(other._log):
                pass
            durable.hook = None

        for k in range(1, OPERATIONS_MAX):
            assert lab.in_child(append_and_fail) == -signal.SIGKILL
            assert lab.files() != before
            finished = lab.in_child(lambda k=k: undo_and_die(k)) == 0  # type: ignore[misc]
            with append_lock(store._log):
                pass
            assert lab.files() == before
            if finished:
                break
        assert 5 < k < OPERATIONS_MAX - 1


def test_undoing_an_append_of_a_process_without_an_index_leaves_the_index_alone(lab: Lab, memory_too: None) -> None:
    with lab.open() as store:
        store.append(lab.batch(30))
        before = lab.files()
        batch = lab.batch(5)
        lab.config = replace(lab.config, message_index_enable=False)

        def append_and_die() -> None:
            other = lab.open()
            durable.hook = lambda operation, path: die() if (operation, path) == ("word", "5") else None
            other.append(batch)

        assert lab.in_child(append_and_die) == -signal.SIGKILL
        with append_lock(store._log):
            pass
        assert lab.files() == before


def test_a_message_alone_and_in_a_batch_gives_the_same_bytes(lab: Lab) -> None:
    """`send` takes a path of its own; log, queues and index must not show it."""
    messages = [Message("Alpha", b"%08d" % n + b"x" * 150, tags="T", keys=f"K{n}") for n in range(90)]
    with lab.open() as store:
        for message in messages:
            store.send(message)
    one_by_one = lab.files()
    with Store.open(lab.root, read_only=True) as store:
        rows = pa.concat_batches(
            [
                batch
                for queue_id, (first, last) in store.queue_ranges("Alpha").items()
                for batch in store.read("Alpha", queue_id, first, last)
            ]
        ).to_pylist()
    order = sorted(rows, key=lambda row: row["commitLogOffset"])
    assert [row["body"] for row in order] == [message.body for message in messages]
    assert len(one_by_one) > 8  # several segments, queue files and index files
    # Built anew from the log alone, in batches.
    for name in ("consumequeue", "index"):
        shutil.rmtree(lab.root / name)
    with lab.open():
        pass
    assert lab.files() == one_by_one


def test_queue_offsets_are_dense_and_positions_are_reported(lab: Lab) -> None:
    with lab.open() as store:
        for _ in range(5):
            store.append(lab.batch(33, body_bytes=100))
        for topic in ("Alpha", "Beta"):
            for queue_id, (first, last) in store.queue_ranges(topic).items():
                batches = list(store.read(topic, queue_id, first, last, columns=["queueOffset", "queueId"]))
                offsets = np.concatenate([batch.column("queueOffset").to_numpy() for batch in batches])
                assert (first, offsets.tolist()) == (0, list(range(last)))
        assert len(lab.numbers(store)) == 165
        result = store.append(lab.batch(2))
        assert store.log_range() == (0, result.end_offset)


def test_a_record_that_no_segment_can_hold_is_refused_and_nothing_happens(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
        before = lab.files()
        batch = lab.batch(3, body_bytes=8192)
        with pytest.raises(UsageError, match="does not fit a segment"):
            store.append(batch)
        with pytest.raises(UsageError, match="does not fit a segment"):
            store.send(Message("Alpha", b"x" * 8192))
        assert lab.files() == before
        assert store._log.writing_page.intent is None


def test_an_empty_batch_changes_nothing(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(1))
        before = lab.files()
        assert store.append(lab.batch(1).slice(0, 0), "Alpha").row_count == 0
        assert lab.files() == before


def test_the_words_of_an_intent_are_written_before_it_counts(lab: Lab, memory_too: None) -> None:
    """A death between two words of A3 must not make the next writer undo a range with another append's index state."""
    order: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "word":
            order.append(WORDS[int(path)])

    with lab.open() as store:
        store.append(lab.batch(1))
        durable.hook = note
        store.append(lab.batch(1))
        durable.hook = None
    assert order[:4] == ["index_file", "intent_start", "intent_end", "appended_end"]


def test_another_process_sees_an_append_at_once_and_continues_behind_it(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
        batch = lab.batch(10)

        def append() -> Any:
            with lab.open() as other:
                assert len(lab.numbers(other)) == 10
                other.append(batch)

        assert lab.in_child(append) == 0
        assert lab.numbers(store) == list(range(20))
        store.append(lab.batch(10))
        assert lab.numbers(store) == list(range(30))
        assert lab.is_sound()


def test_where_a_queue_goes_on_is_looked_up_only_after_somebody_else_has_appended(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    max_offset = ConsumeQueue.max_offset
    monkeypatch.setattr(
        ConsumeQueue, "max_offset", lambda queue, *how: (looked.append(queue.topic), max_offset(queue, *how))[1]
    )
    lab.config = replace(lab.config, mapped_file_size_consume_queue=20 * 100)  # all entries in one file
    message = Message("Alpha", b"one", queue_id=0)
    with lab.open() as store:

        def sent() -> tuple[int, int]:
            looked.clear()
            return store.send(message).queue_offset, len(looked)

        assert [sent(), sent(), sent()] == [(0, 1), (1, 0), (2, 0)]
        store.append(pa.record_batch({"topic": ["Alpha"], "body": pa.array([b"many"]), "queueId": [0]}))
        assert [sent(), sent()] == [(4, 1), (5, 0)]

        def append() -> None:
            with lab.open() as other:
                other.send(message)

        assert lab.in_child(append) == 0
        assert [sent(), sent()] == [(7, 1), (8, 0)]
        store.send(Message("Beta", b"other", queue_id=0))
        assert sent() == (9, 0)

        assert lab.in_child(append) == 0
        store.send(Message("Beta", b"other", queue_id=0))
        assert sent() == (11, 1)


def test_a_queue_whose_files_were_removed_is_looked_up_again(lab: Lab) -> None:
    """Of a topic that was deleted, and made again."""
    message = Message("Alpha", b"one", queue_id=0)
    with lab.open() as store:
        assert [store.send(message).queue_offset for _ in range(3)] == [0, 1, 2]
        (file,) = (lab.root / "consumequeue" / "Alpha" / "0").iterdir()
        file.unlink()
        assert [store.send(message).queue_offset for _ in range(2)] == [0, 1]
        file.unlink()
        with file.open("wb") as made_for_an_append_that_failed:
            made_for_an_append_that_failed.truncate(lab.config.mapped_file_size_consume_queue)
        assert [store.send(message).queue_offset for _ in range(2)] == [0, 1]


def test_a_send_that_failed_leaves_where_its_queue_goes_on(lab: Lab) -> None:
    message = Message("Alpha", b"one", queue_id=0)
    with lab.open() as store:
        for expected in range(3):
            assert store.send(message).queue_offset == 2 * expected
            durable.hook = lambda operation, path: fail_with(errno.EIO)() if "consumequeue" in path else None
            with pytest.raises(StoreFailedError):
                store.send(message)
            durable.hook = None
            assert store.send(message).queue_offset == 2 * expected + 1
    assert lab.is_sound()


@pytest.mark.parametrize("part_rows", [1 << 16, 50])
def test_the_files_of_an_append_are_made_before_its_first_byte_is_written(
    lab: Lab, part_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them waits for the disk, and would wait for what it is writing, too."""
    monkeypatch.setattr(grouping, "PART_ROWS", part_rows)
    done: list[tuple[str, str]] = []

    def note(operation: str, path: str) -> None:
        kind = next((each for each in ("commitlog", "consumequeue", "index") if each in path), None)
        if operation in ("allocate", "write") and kind is not None:
            done.append((operation, kind))

    with lab.open() as store:
        durable.hook = note
        store.append(lab.batch(120, body_bytes=300))
        durable.hook = None
    made = [kind for operation, kind in done if operation == "allocate"]
    first_write = done.index(("write", "commitlog"))
    assert {kind for operation, kind in done[:first_write]} == {"commitlog", "consumequeue", "index"}
    # The index rolls later, when it is full; all others were made in front.
    assert made.count("commitlog") > 2
    assert made.count("consumequeue") > 2
    assert ("allocate", "commitlog") not in done[first_write:]
    assert ("allocate", "consumequeue") not in done[first_write:]


@pytest.mark.parametrize("kind", ["commitlog", "index"])
def test_an_append_whose_files_cannot_be_made_beside_it_fails_and_nothing_is_seen_of_it(
    lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a second try would make them."""
    monkeypatch.setattr(grouping, "PART_ROWS", 50)
    failed = []

    def fail_once(operation: str, path: str) -> None:
        if operation == "allocate" and kind in path and not failed:
            failed.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with lab.open() as store:
        durable.hook = fail_once
        with pytest.raises(StoreFullError):
            store.append(lab.batch(120, body_bytes=300))
        durable.hook = None
        assert len(failed) == 1
        assert lab.numbers(store) == []
        store.append(lab.batch(120, body_bytes=300))
        assert len(lab.numbers(store)) == 120
    assert lab.is_sound()


def test_an_append_without_keys_makes_no_index_file(lab: Lab) -> None:
    with lab.open() as store:
        assert store._writer is not None
        encoded = store._writer._encoder(None).encode_all(lab.batch(3)).frames
        none = pa.array([[]] * encoded.num_rows, encoded.schema.field("key_hashes").type)
        batch = encoded.set_column(encoded.schema.get_field_index("key_hashes"), "key_hashes", none)
        with append_lock(store._log):
            appended = append(store._log, [batch])
        assert len(appended.offsets) == 3
        assert store._log.views.index is not None
        assert store._log.views.index.names() == ()
