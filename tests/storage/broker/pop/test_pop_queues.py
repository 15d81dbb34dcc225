"""store.pop by queue: one queue, in order, peeks, and several acknowledgements at once (ConsumerOrderInfoManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import CorruptRecordError, InvalidReceiptHandleError, Message, Store, StoreConfig, UsageError
from rmq_store.broker.pop import pop_journal
from rmq_store.broker.pop.pop import Popped
from rmq_store.broker.pop.pop_journal import PopJournal
from rmq_store.broker.pop.pop_messages import Damaged, TopicReader

START_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reopen(scratch: Path, small: StoreConfig, clock: Clock) -> Callable[[], Store]:
    return lambda: Store.open(scratch / "store", create=True, config=small, clock=clock)


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Iterator[Store]:
    """Two queues; message n of queue q has the body `qn`."""
    with reopen() as store:
        store.create_topic("T", queue_count=2)
        for number in range(8):
            store.send(Message("T", b"%d%d" % (number % 2, number // 2), queue_id=number % 2))
        yield store


def bodies(popped: list[Popped]) -> list[str]:
    return [one.row.column("body")[0].as_py().decode() for one in popped]


def receive(store: Store, count: int = 32, hidden_ms: int = 1000, **fields: Any) -> list[Popped]:
    return store.pop.receive("g", "T", count, hidden_ms, **fields)


# -- one queue --------------------------------------------------------------------------------------------------------


def test_one_queue_gives_out_its_messages_only_also_those_that_come_again(store: Store, clock: Clock) -> None:
    assert bodies(receive(store, 2, queue_id=1)) == ["10", "11"]
    assert sorted(bodies(receive(store, 2, queue_id=0))) == ["00", "01"]
    clock.now_ms += 1000
    assert bodies(receive(store, queue_id=1)) == ["10", "11", "12", "13"]
    assert store.pop.rest("g", "T", queue_id=1) == 0
    assert store.pop.rest("g", "T", queue_id=0) == 3  # two new ones, and one for those that are visible again
    assert bodies(receive(store)) == ["00", "01", "02", "03"]


@pytest.mark.parametrize("queue_id", [-1, 2])
def test_a_queue_that_the_topic_does_not_have_is_refused(store: Store, queue_id: int) -> None:
    for call in (receive, lambda store, queue_id: store.pop.peek("g", "T", 1, queue_id=queue_id)):
        with pytest.raises(UsageError, match="queue_id"):
            call(store, queue_id=queue_id)  # type: ignore[operator]


# -- in order ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_locked_while_one_of_its_messages_is_in_flight(store: Store) -> None:
    first = receive(store, 2, in_order=True)
    assert bodies(first) == ["00", "01"]
    second = receive(store, 2, in_order=True)
    assert bodies(second) == ["10", "11"]
    assert receive(store, in_order=True) == [] and store.pop.rest("g", "T", in_order=True) == 0
    store.pop.ack("g", "T", first[1].receipt_handle)
    assert receive(store, in_order=True) == []
    store.pop.ack("g", "T", first[0].receipt_handle)
    assert store.pop.rest("g", "T", in_order=True) == 2
    assert bodies(receive(store, in_order=True)) == ["02", "03"]


def test_messages_that_come_again_come_before_all_others_of_their_queue(store: Store, clock: Clock) -> None:
    taken = receive(store, 3, queue_id=0, in_order=True)
    store.pop.change_invisible_duration("g", "T", taken[2].receipt_handle, 500)
    clock.now_ms += 500  # the last one is visible first
    assert receive(store, queue_id=0, in_order=True) == []
    store.pop.ack("g", "T", taken[1].receipt_handle)
    clock.now_ms += 500
    assert bodies(receive(store, 1, queue_id=0, in_order=True)) == ["00"]
    clock.now_ms += 1000
    assert bodies(receive(store, queue_id=0, in_order=True)) == ["00", "02", "03"]


def test_new_messages_wait_while_one_that_comes_again_has_no_room(store: Store, clock: Clock) -> None:
    receive(store, 2, queue_id=0, in_order=True)
    clock.now_ms += 1000
    assert bodies(receive(store, 1, queue_id=0, in_order=True, hidden_ms=1)) == ["00"]
    clock.now_ms += 1
    assert bodies(receive(store, queue_id=0, in_order=True, bytes_max=3)) == ["00"]


def test_the_order_survives_a_restart(reopen: Callable[[], Store], store: Store, clock: Clock) -> None:
    receive(store, 2, queue_id=0, in_order=True)
    store.close()
    with reopen() as again:
        assert receive(again, queue_id=0, in_order=True) == []
        clock.now_ms += 1000
        assert bodies(receive(again, queue_id=0, in_order=True)) == ["00", "01", "02", "03"]


# -- attempts ---------------------------------------------------------------------------------------------------------


def attempts(popped: list[Popped]) -> list[int]:
    return [one.delivery_attempt for one in popped]


def test_a_repeated_receive_gets_what_its_lost_answer_had(store: Store) -> None:
    lost = receive(store, 2, in_order=True, attempt_id="a")
    receive(store, 2, in_order=True, attempt_id="b")
    again = receive(store, 2, in_order=True, attempt_id="a")
    assert bodies(again) == bodies(lost) == ["00", "01"] and attempts(again) == [1, 1]
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", lost[0].receipt_handle)
    for one in again:
        store.pop.ack("g", "T", one.receipt_handle)
    assert bodies(receive(store, in_order=True, attempt_id="a")) == ["02", "03"]


def test_a_repeated_receive_begins_with_the_queues_of_its_lost_answer(store: Store) -> None:
    """Receives begin at one queue after the other."""
    assert bodies(receive(store, 2, in_order=True, attempt_id="a")) == ["00", "01"]
    assert bodies(receive(store, 3, in_order=True, attempt_id="a")) == ["00", "01", "02"]


@pytest.mark.parametrize("fields", [{"attempt_id": "b"}, {"attempt_id": ""}, {}])
def test_another_attempt_finds_the_queue_locked(store: Store, fields: dict[str, Any]) -> None:
    receive(store, 1, queue_id=0, in_order=True, attempt_id="a")
    assert receive(store, queue_id=0, in_order=True, **fields) == []


@pytest.mark.parametrize("attempt_id", ["", None])
def test_a_receive_without_an_attempt_is_repeated_by_none(store: Store, attempt_id: str | None) -> None:
    receive(store, 1, queue_id=0, in_order=True, attempt_id=attempt_id)
    assert receive(store, queue_id=0, in_order=True, attempt_id=attempt_id) == []


def test_a_repeated_receive_leaves_what_its_consumer_has_answered_for(store: Store) -> None:
    done, _ = receive(store, 2, queue_id=0, in_order=True, attempt_id="a")
    store.pop.ack("g", "T", done.receipt_handle)
    (again,) = receive(store, 1, queue_id=0, in_order=True, attempt_id="a")
    assert bodies([again]) == ["01"]
    store.pop.change_invisible_duration("g", "T", again.receipt_handle, 500)
    assert receive(store, queue_id=0, in_order=True, attempt_id="a") == []


def test_the_last_attempt_of_a_message_can_be_repeated(store: Store) -> None:
    for _ in range(2):
        again = receive(store, 1, queue_id=0, in_order=True, max_delivery_attempts=1, attempt_id="a")
        assert bodies(again) == ["00"] and attempts(again) == [1]
    assert "%DLQ%g" not in store.topics()


def test_a_repeated_receive_after_the_time_counts_as_another_delivery(store: Store, clock: Clock) -> None:
    receive(store, 1, queue_id=0, in_order=True, attempt_id="a")
    clock.now_ms += 1000
    assert attempts(receive(store, 1, queue_id=0, in_order=True, attempt_id="a")) == [2]


def test_attempts_survive_a_restart_and_the_journals_replacement(
    reopen: Callable[[], Store], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, 2, queue_id=0, in_order=True, attempt_id="a")
    store.close()
    monkeypatch.setattr(pop_journal, "COMPACT_BYTES", 0)
    monkeypatch.setattr(pop_journal, "_COMPACT_FACTOR", 0)
    with reopen() as again:
        receive(again, 1, queue_id=1)  # replaces the file
        assert bodies(receive(again, 2, queue_id=0, in_order=True, attempt_id="a")) == ["00", "01"]


def test_out_of_order_an_attempt_means_nothing(store: Store) -> None:
    receive(store, 2, queue_id=0, attempt_id="a")
    assert bodies(receive(store, queue_id=0, attempt_id="a")) == ["02", "03"]
    assert receive(store, queue_id=0, in_order=True, attempt_id="a") == []


def test_a_damaged_message_locks_no_queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TopicReader.scan

    def scan(self: TopicReader, queue_id: int, *arguments: Any) -> tuple[list[Any], int]:
        rows, end = real(self, queue_id, *arguments)
        damage = CorruptRecordError("log", 0, "torn")
        return [
            Damaged(row.queue_id, row.queue_offset, row.commit_log_offset, damage)
            if not isinstance(row, Damaged) and (row.queue_id, row.queue_offset) == (0, 1)
            else row
            for row in rows
        ], end

    monkeypatch.setattr(TopicReader, "scan", scan)
    taken = receive(store, 3, queue_id=0, in_order=True)
    assert bodies(taken) == ["00", "02"]
    assert store.pop.ack_all("g", "T", [one.receipt_handle for one in taken]) == []
    assert bodies(receive(store, queue_id=0, in_order=True)) == ["03"]


def test_a_message_that_fails_too_often_gives_its_queue_free(store: Store, clock: Clock) -> None:
    for _ in range(2):
        assert bodies(receive(store, 1, queue_id=0, in_order=True, max_delivery_attempts=2)) == ["00"]
        clock.now_ms += 1000
    assert bodies(receive(store, 1, queue_id=0, in_order=True, max_delivery_attempts=2)) == ["01"]
    assert store.queue_range("%DLQ%g", 0).max_offset == 1


# -- peeks ------------------------------------------------------------------------------------------------------------


def test_a_peek_hides_nothing_and_begins_where_the_group_stands(store: Store, clock: Clock) -> None:
    assert bodies(store.pop.peek("g", "T", 3)) == ["00", "01", "02"]
    assert not (store.path / "pyrmq" / "pop" / "g").exists()
    assert bodies(receive(store, 2, queue_id=0)) == ["00", "01"]
    assert bodies(store.pop.peek("g", "T", 32, queue_id=0)) == ["02", "03"]
    clock.now_ms += 1000
    peeked = store.pop.peek("g", "T", 32, queue_id=0)
    assert bodies(peeked) == ["00", "01", "02", "03"]
    assert [one.delivery_attempt for one in peeked] == [2, 2, 1, 1] and peeked[0].receipt_handle == ""
    assert bodies(receive(store, queue_id=0)) == ["00", "01", "02", "03"]


def test_a_peek_begins_at_an_offset_that_another_program_has_set(store: Store) -> None:
    receive(store, 4, queue_id=0)
    store.commit_offsets("g", {("T", 0): 3})
    assert bodies(store.pop.peek("g", "T", 32, queue_id=0)) == ["03"]


# -- acknowledgements -------------------------------------------------------------------------------------------------


def test_void_handles_keep_no_others_and_all_take_one_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[int] = []
    append = PopJournal.append
    handles = [one.receipt_handle for one in receive(store, 4, queue_id=0)]
    store.pop.ack("g", "T", handles[1])
    monkeypatch.setattr(
        PopJournal, "append", lambda self, changes: appended.append(len(changes)) or append(self, changes)
    )
    errors = store.pop.ack_all("g", "T", ["no handle", *handles, handles[0]])
    assert [number for number in appended if number] == [3]
    assert [str(error) for error in errors] == [
        "'no handle' is no receipt handle",
        "the receipt handle of message 1 of T-0 is void for group 'g': it is done with",
    ]
    assert store.pop.rest("g", "T", queue_id=0) == 0


def test_handles_of_a_group_that_was_given_nothing_are_void(store: Store) -> None:
    (given,) = receive(store, 1)
    (error,) = store.pop.ack_all("other", "T", [given.receipt_handle])
    assert "never handed it out" in str(error)
    store.pop.ack("g", "T", given.receipt_handle)
