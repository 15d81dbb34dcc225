"""store.pop: receive, acknowledge, hide; the rules of PopConsumerService, and of E01 to E06 in docs/conformance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import (
    InvalidReceiptHandleError,
    Message,
    ReadOnlyError,
    Store,
    StoreConfig,
    UnknownTopicError,
    UsageError,
)
from rmq_store.broker.pop import pop_messages, pop_selection
from rmq_store.broker.pop.pop import COMMIT_INTERVAL_MS, Pop, Popped
from rmq_store.broker.pop.pop_messages import ConsumeInitMode, TopicReader
from rmq_store.broker.rules import hot_queue
from rmq_store.errors import ResponseError
from rmq_store.files import durable

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
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        yield store


def send(store: Store, count: int, topic: str = "T", **fields: Any) -> None:
    for number in range(count):
        store.send(Message(topic, b"%d" % number, **fields))


def offsets(popped: list[Popped]) -> list[int]:
    return [one.row.column("queueOffset")[0].as_py() for one in popped]


def commit(store: Store, clock: Clock) -> None:
    """Let the group commit its offsets: its next change after the interval does."""
    clock.now_ms += COMMIT_INTERVAL_MS
    assert store.pop.ack_all("g", "T", []) == []


def dead_letters(store: Store, group: str = "g") -> list[dict[str, Any]]:
    topic = f"%DLQ%{group}"
    if topic not in store.topics():
        return []
    rows = [row for batch in store.read(topic, 0, *store.queue_range(topic, 0)) for row in batch.to_pylist()]
    return [{**row, "properties": dict(row["properties"])} for row in rows]


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("E01", "E02")
def test_what_is_not_acknowledged_comes_again_at_the_millisecond_of_its_time(store: Store, clock: Clock) -> None:
    # E02: 30 ms hidden, 10 ms of work that failed: the gap is 20 ms; all 30 ms used up: at once.
    send(store, 1)
    (first,) = store.pop.receive("g", "T", 1, 30)
    assert first.delivery_attempt == 1
    clock.now_ms += 10
    assert store.pop.receive("g", "T", 1, 30) == []
    clock.now_ms += 19
    assert store.pop.receive("g", "T", 1, 30) == []
    clock.now_ms += 1
    (second,) = store.pop.receive("g", "T", 1, 30)
    assert (offsets([second]), second.delivery_attempt) == ([0], 2)
    clock.now_ms += 30
    (third,) = store.pop.receive("g", "T", 1, 30)
    assert third.delivery_attempt == 3


@pytest.mark.statement("E03")
def test_a_changed_duration_counts_from_the_call_and_at_once(store: Store, clock: Clock) -> None:
    send(store, 1)
    (popped,) = store.pop.receive("g", "T", 1, 30)
    clock.now_ms += 20
    handle = store.pop.change_invisible_duration("g", "T", popped.receipt_handle, 50)
    clock.now_ms += 49
    assert store.pop.receive("g", "T", 1, 30) == [], "30 ms are over, 50 from the call are not"
    clock.now_ms += 1
    (again,) = store.pop.receive("g", "T", 1, 30)
    assert again.delivery_attempt == 2
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", handle)
    shorter = store.pop.change_invisible_duration("g", "T", again.receipt_handle, 0)
    with pytest.raises(InvalidReceiptHandleError, match="its invisible duration ended at"):
        store.pop.ack("g", "T", shorter)
    assert [one.delivery_attempt for one in store.pop.receive("g", "T", 1, 30)] == [3]


def test_a_message_is_hidden_from_when_it_is_given_out_not_from_when_the_look_for_it_began(
    store: Store, clock: Clock
) -> None:
    send(store, 1)

    def slow(properties: Mapping[str, str]) -> bool:
        clock.now_ms += 5000
        return True

    (popped,) = store.pop.receive("g", "T", 1, 1000, accepts=slow)
    clock.now_ms += 999
    assert store.pop.receive("g", "T", 1, 1000) == []
    store.pop.ack("g", "T", popped.receipt_handle)


@pytest.mark.statement("E04")
def test_a_duration_can_be_changed_in_time_and_before_the_acknowledgement_only(store: Store, clock: Clock) -> None:
    send(store, 2)
    one, two = store.pop.receive("g", "T", 2, 30)
    clock.now_ms += 29
    new = store.pop.change_invisible_duration("g", "T", one.receipt_handle, 30)
    store.pop.ack("g", "T", new)
    with pytest.raises(InvalidReceiptHandleError, match="done with"):
        store.pop.change_invisible_duration("g", "T", new, 30)
    clock.now_ms += 1
    with pytest.raises(InvalidReceiptHandleError, match="its invisible duration ended at"):
        store.pop.change_invisible_duration("g", "T", two.receipt_handle, 30)


def test_a_new_handle_voids_the_old_one_even_at_the_same_moment_for_the_same_time(store: Store) -> None:
    send(store, 1)
    (popped,) = store.pop.receive("g", "T", 1, 30)
    new = store.pop.change_invisible_duration("g", "T", popped.receipt_handle, 30)
    assert new != popped.receipt_handle
    for use in (
        lambda handle: store.pop.ack("g", "T", handle),
        lambda handle: store.pop.change_invisible_duration("g", "T", handle, 30),
    ):
        with pytest.raises(InvalidReceiptHandleError, match="newer handle"):
            use(popped.receipt_handle)
    store.pop.ack("g", "T", new)


@pytest.mark.statement("E06")
def test_an_acknowledgement_is_of_one_message_and_counts_once(store: Store, clock: Clock) -> None:
    send(store, 3)
    popped = store.pop.receive("g", "T", 3, 30)
    store.pop.ack("g", "T", popped[1].receipt_handle)
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", popped[1].receipt_handle)
    clock.now_ms += 30
    assert offsets(store.pop.receive("g", "T", 3, 30)) == [0, 2]
    with pytest.raises(InvalidReceiptHandleError, match="newer handle"):
        store.pop.ack("g", "T", popped[0].receipt_handle)


# -- attempts ---------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B04", "B05", "E05")
def test_after_the_last_attempt_a_message_is_a_dead_letter(store: Store, clock: Clock) -> None:
    # retryMaxTimes 3: one delivery and three more. The copy counts one more, as a message does that came back so often
    # and was then sent to the dead letters (PopConsumerService#reviveRetry, consumerSendMsgBack).
    store.retry.set_max_reconsume_times("g", 3)
    store.send(Message("T", b"poison", tags="A", keys="k"))
    attempts = []
    for _ in range(6):
        attempts += [one.delivery_attempt for one in store.pop.receive("g", "T", 1, 30)]
        clock.now_ms += 30
    assert attempts == [1, 2, 3, 4]
    (dead,) = dead_letters(store)
    (original,) = [row for batch in store.read("T", 0, 0, 1) for row in batch.to_pylist()]
    assert (dead["body"], dead["reconsumeTimes"], dead["msgId"]) == (b"poison", 5, original["msgId"])
    assert dead["properties"]["RETRY_TOPIC"] == "T"
    assert dead["properties"]["DELAY"] == "0"
    assert (dead["tags"], dead["keys"], dead["bornTimestamp"]) == ("A", "k", original["bornTimestamp"])
    assert store.pop.receive("g", "T", 1, 30) == []


@pytest.mark.statement("B05", "B08")
def test_seventeen_deliveries_by_default_and_none_without_a_bound(store: Store, clock: Clock) -> None:
    send(store, 1)
    count = 0
    for _ in range(20):
        count += len(store.pop.receive("g", "T", 1, 30))
        clock.now_ms += 30
    assert (count, len(dead_letters(store))) == (17, 1)
    store.retry.set_max_reconsume_times("endless", -1)
    for number in range(30):
        (popped,) = store.pop.receive("endless", "T", 1, 30)
        assert popped.delivery_attempt == number + 1
        clock.now_ms += 30


def test_the_consumers_own_maximum_counts_before_the_groups(store: Store, clock: Clock) -> None:
    send(store, 1)
    for expected in ([1], [2], []):
        found = store.pop.receive("g", "T", 1, 30, max_delivery_attempts=2)
        assert [one.delivery_attempt for one in found] == expected
        clock.now_ms += 30
    assert [dead["reconsumeTimes"] for dead in dead_letters(store)] == [3]


def test_attempts_made_elsewhere_count(store: Store, clock: Clock) -> None:
    # A message that was sent back by another kind of consumer comes with its own count.
    store.retry.set_max_reconsume_times("g", 2)
    store.send(Message("T", b"x"))
    where = store.commit_log_offset_before("T", 0, 1)
    store.retry.send_back("g", where, delay_level=1)
    clock.now_ms += 1000
    store.schedule.deliver_due()
    (popped,) = store.pop.receive("g", "%RETRY%g", 1, 30)
    assert popped.delivery_attempt == 2
    clock.now_ms += 30
    (popped,) = store.pop.receive("g", "%RETRY%g", 1, 30)
    assert popped.delivery_attempt == 3
    clock.now_ms += 30
    assert store.pop.receive("g", "%RETRY%g", 1, 30) == []
    (dead,) = dead_letters(store)
    assert (dead["reconsumeTimes"], dead["properties"]["RETRY_TOPIC"]) == (4, "T")


def test_a_message_that_failed_too_often_elsewhere_is_dead_before_it_is_given_out(store: Store, clock: Clock) -> None:
    store.send(Message("T", b"x"))
    store.retry.send_back("g", store.commit_log_offset_before("T", 0, 1), delay_level=1)
    clock.now_ms += 1000
    store.schedule.deliver_due()
    for _ in range(2):
        assert store.pop.receive("g", "%RETRY%g", 1, 30, max_delivery_attempts=1) == []
    assert [dead["reconsumeTimes"] for dead in dead_letters(store)] == [2]


def test_a_message_that_cannot_be_a_dead_letter_stays_and_the_others_go_on(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Its properties leave no room for those of a dead letter.
    store.send(Message("T", b"x", properties={"p": "v" * 32_680}))
    send(store, 1)
    assert len(store.pop.receive("g", "T", 2, 30, max_delivery_attempts=1)) == 2
    clock.now_ms += 30
    assert store.pop.receive("g", "T", 2, 30, max_delivery_attempts=1) == []
    assert [dead["body"] for dead in dead_letters(store)] == [b"0"]
    assert "message 0 of T-0 has failed 1 times and cannot become a dead letter" in caplog.text
    store.flush()
    clock.now_ms += 5000
    store.pop.receive("g", "T", 1, 30, max_delivery_attempts=1)
    assert store.committed_offsets("g") == {("T", 0): 0}, "it is not forgotten"


def test_a_dead_letter_that_is_stored_is_not_sent_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Killed between the dead letter and forgetting its message. What the letter would look like today does not matter.
    send(store, 1)
    store.pop.receive("g", "T", 1, 30, max_delivery_attempts=1)
    clock.now_ms += 30

    def stop(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("journal") and dead_letters(store):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(durable, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            store.pop.receive("g", "T", 1, 30, max_delivery_attempts=1)
    assert len(dead_letters(store)) == 1
    store.pop._services = replace(store.pop._services, send_dead=lambda *_: pytest.fail("sent again"))
    assert store.pop.receive("g", "T", 1, 30, max_delivery_attempts=1) == []
    store.pop.close()
    assert store.committed_offsets("g") == {("T", 0): 1}


# -- which messages ---------------------------------------------------------------------------------------------------


def test_groups_and_queues_are_independent(store: Store) -> None:
    store.create_topic("Wide", queue_count=3)
    for queue_id in range(3):
        send(store, 2, "Wide", queue_id=queue_id)
    for group in ("g", "h"):
        found = store.pop.receive(group, "Wide", 4, 30) + store.pop.receive(group, "Wide", 4, 30)
        places = [(one.row.column("queueId")[0].as_py(), *offsets([one])) for one in found]
        assert sorted(places) == [(queue, offset) for queue in range(3) for offset in range(2)]


def test_queues_take_turns(store: Store) -> None:
    store.create_topic("Wide", queue_count=3)
    for queue_id in range(3):
        send(store, 10, "Wide", queue_id=queue_id)
    queues = [store.pop.receive("g", "Wide", 2, 30)[0].row.column("queueId")[0].as_py() for _ in range(6)]
    assert queues == [0, 1, 2, 0, 1, 2]


def test_messages_that_a_filter_holds_back_are_passed(store: Store, clock: Clock) -> None:
    for number in range(20):
        store.send(Message("T", b"x", tags="A" if number % 5 == 0 else "B", properties={"n": str(number)}))
    assert offsets(store.pop.receive("g", "T", 2, 30, tags="A")) == [0, 5]
    found = store.pop.receive("g", "T", 32, 30, accepts=lambda properties: int(properties["n"]) > 17)
    assert offsets(found) == [18, 19]
    assert store.pop.receive("g", "T", 32, 30) == []
    clock.now_ms += 30
    assert offsets(store.pop.receive("g", "T", 32, 30, tags="C")) == [0, 5, 18, 19], "once given, always given"


def test_one_receive_looks_at_a_bounded_number_of_messages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_messages, "SCAN_MAX", 10)
    send(store, 25, tags="A")
    store.send(Message("T", b"last", tags="B"))
    answers = [offsets(store.pop.receive("g", "T", 1, 30, tags="B")) for _ in range(3)]
    assert answers == [[], [], [25]]


def test_a_group_has_a_bounded_number_of_messages_of_a_queue_in_hand(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_selection, "IN_FLIGHT_MAX", 5)
    send(store, 10)
    first = store.pop.receive("g", "T", 3, 30)
    assert len(store.pop.receive("g", "T", 3, 30)) == 2
    assert store.pop.receive("g", "T", 3, 30) == []
    store.pop.ack("g", "T", first[0].receipt_handle)
    assert len(store.pop.receive("g", "T", 3, 30)) == 1


# -- where a group begins, and what others see ------------------------------------------------------------------------


def test_a_new_group_begins_at_the_start_of_a_young_queue(store: Store) -> None:
    # PopMessageProcessor#getInitOffset: message 0 is still near the end of the log.
    send(store, 3)
    assert offsets(store.pop.receive("g", "T", 1, 30)) == [0]


def test_a_new_group_begins_at_the_last_message_of_an_old_queue(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_queue, "HOT_MEMORY_PERCENT", 0)
    send(store, 3)
    assert offsets(store.pop.receive("max", "T", 32, 30)) == [2]
    assert offsets(store.pop.receive("min", "T", 32, 30, init_mode=ConsumeInitMode.MIN)) == [0, 1, 2]
    store.commit_offsets("known", {("T", 0): 1})
    assert offsets(store.pop.receive("known", "T", 32, 30)) == [1, 2]
    for _ in range(2):
        store.retry.send_back("max", store.commit_log_offset_before("T", 0, 1), delay_level=1)
    clock.now_ms += 1000
    store.schedule.deliver_due()
    assert offsets(store.pop.receive("max", "%RETRY%max", 32, 30)) == [0, 1], "retry topics from their start"


def test_the_committed_offset_follows_the_smallest_unfinished_message(
    reopen: Callable[[], Store], clock: Clock
) -> None:
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        send(store, 6)
        popped = store.pop.receive("g", "T", 4, 60_000)
        store.pop.ack("g", "T", popped[0].receipt_handle)
        store.pop.ack("g", "T", popped[2].receipt_handle)
        assert store.committed_offsets("g") == {("T", 0): 0}
        clock.now_ms += 4999
        store.pop.receive("h", "T", 1, 30)
        store.pop.ack("g", "T", popped[3].receipt_handle)
        assert store.committed_offsets("g") == {("T", 0): 0}
        clock.now_ms += 1
        store.pop.receive("g", "T", 1, 30)
        assert store.committed_offsets("g") == {("T", 0): 1}
        store.pop.ack("g", "T", popped[1].receipt_handle)
    with Store.open(store.path, read_only=True) as store:
        assert store.committed_offsets("g") == {("T", 0): 4}, "told at close"
        assert store.committed_offsets("h") == {("T", 0): 0}


@pytest.mark.parametrize(("moved_to", "expected"), [(0, 4), (1, 3), (4, 0)])
def test_the_rest_of_a_queue_counts_from_the_offset_that_another_program_set(
    store: Store, clock: Clock, moved_to: int, expected: int
) -> None:
    send(store, 4)
    for popped in store.pop.receive("g", "T", 3, 30_000, init_mode=ConsumeInitMode.MIN):
        store.pop.ack("g", "T", popped.receipt_handle)
    commit(store, clock)
    assert store.pop.rest("g", "T") == 1
    store.commit_offsets("g", {("T", 0): moved_to})
    assert store.pop.rest("g", "T") == expected
    assert len(store.pop.receive("g", "T", 4, 30_000)) == expected
    assert store.pop.rest("g", "T") == 0


def test_the_rest_of_a_group_without_a_position_counts_from_its_committed_offset(store: Store) -> None:
    send(store, 4)
    assert store.pop.rest("g", "T") == 4
    store.commit_offsets("g", {("T", 0): 3})
    assert store.pop.rest("g", "T") == 1


@pytest.mark.parametrize("moved_to", [0, 2, 5, 9])
def test_when_somebody_else_moves_the_offset_the_group_begins_anew_there(
    store: Store, clock: Clock, moved_to: int
) -> None:
    send(store, 6)
    popped = store.pop.receive("g", "T", 4, 60_000)
    for one in popped[:3]:
        store.pop.ack("g", "T", one.receipt_handle)
    commit(store, clock)
    assert store.committed_offsets("g") == {("T", 0): 3}
    clock.now_ms += 1
    store.commit_offsets("g", {("T", 0): moved_to})
    assert offsets(store.pop.receive("g", "T", 32, 30)) == list(range(moved_to, 6))
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", popped[3].receipt_handle)


def test_a_group_whose_offsets_were_forgotten_begins_as_a_new_one(store: Store) -> None:
    send(store, 2)
    for one in store.pop.receive("g", "T", 2, 30):
        store.pop.ack("g", "T", one.receipt_handle)
    store._offsets.remove(group="g")
    assert offsets(store.pop.receive("g", "T", 2, 30, init_mode=ConsumeInitMode.MIN)) == [0, 1]


@pytest.mark.parametrize("place", ["journal", "table"])
def test_a_commit_that_was_cut_short_is_nobody_elses_doing(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # Killed before the offset table is written, or right behind it: the messages in hand stay hidden.
    send(store, 4)
    popped = store.pop.receive("g", "T", 3, 60_000)
    store.pop.ack("g", "T", popped[0].receipt_handle)
    clock.now_ms += 5000

    written = False

    def stop(operation: str, path: str) -> None:
        nonlocal written
        if operation == "rename" and path.endswith("consumerOffset.json"):
            if place == "journal":
                raise KeyboardInterrupt
            written = True
        elif written and path.endswith("journal"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(durable, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            store.pop.receive("g", "T", 1, 60_000)
    assert store.committed_offsets("g") == {("T", 0): 0 if place == "journal" else 1}
    assert store.pop.receive("g", "T", 32, 30) == []
    store.pop.ack("g", "T", popped[1].receipt_handle)


def test_an_offset_is_told_to_others_only_when_the_log_is_on_disk(store: Store, clock: Clock) -> None:
    # After a power cut a broker would go on behind messages that came later.
    send(store, 1)
    (popped,) = store.pop.receive("g", "T", 1, 30)
    store.pop.ack("g", "T", popped.receipt_handle)
    events = []

    def flush() -> None:
        events.append(store.committed_offsets("g")["T", 0])
        store.flush()

    store.pop._services = replace(store.pop._services, flush=flush)
    store.pop.close()
    assert events == [0]
    assert store.committed_offsets("g") == {("T", 0): 1}


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_what_is_in_hand_stays_in_hand_over_a_restart(reopen: Callable[[], Store], clock: Clock) -> None:
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        send(store, 3)
        one, two, _ = store.pop.receive("g", "T", 3, 30)
        store.pop.ack("g", "T", two.receipt_handle)
    with reopen() as store:
        assert store.pop.receive("g", "T", 3, 30) == []
        store.pop.ack("g", "T", one.receipt_handle)
        clock.now_ms += 30
        (again,) = store.pop.receive("g", "T", 3, 30)
        assert (offsets([again]), again.delivery_attempt) == ([2], 2)


def cut(store: Path, log_bytes: int) -> None:
    """What a power cut may do under ASYNC_FLUSH: the end of the log is lost, other files are not."""
    (segment,) = (store / "commitlog").iterdir()
    with segment.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(log_bytes)
        file.write(b"\0" * (size - log_bytes))
    for of_a_closer in ("progress", "queue_ends.json"):
        (store / "pyrmq" / of_a_closer).unlink()
    (store / "abort").touch()
    for queue in (store / "consumequeue").glob("*/*/*"):
        queue.unlink()


@pytest.mark.parametrize("sent_again", [0, 1, 3])
def test_messages_that_a_power_cut_has_taken_are_not_held_against_those_in_their_place(
    reopen: Callable[[], Store], clock: Clock, sent_again: int
) -> None:
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        send(store, 2)
        kept = store.log_range()[1]
        for one in store.pop.receive("g", "T", 32, 30):
            store.pop.ack("g", "T", one.receipt_handle)
        clock.now_ms += 5000
        store.pop.receive("g", "T", 32, 30)  # commits 2
        send(store, 2)
        for one in store.pop.receive("g", "T", 1, 60_000):
            store.pop.ack("g", "T", one.receipt_handle)
        store.pop.receive("g", "T", 32, 60_000)
        store.pop.close = lambda: None  # type: ignore[method-assign]
    cut(store.path, kept)
    clock.now_ms += 1000
    with reopen() as store:
        assert store.queue_range("T", 0) == (0, 2)
        send(store, sent_again)
        assert offsets(store.pop.receive("g", "T", 32, 30)) == list(range(2, 2 + sent_again))


def test_messages_that_retention_has_taken_are_given_up(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 4)
    store.pop.receive("g", "T", 2, 30)
    clock.now_ms += 30
    real = TopicReader.message
    monkeypatch.setattr(
        TopicReader, "message", lambda self, queue, offset: real(self, queue, offset) if offset else None
    )
    (again, *new) = store.pop.receive("g", "T", 32, 30)
    assert offsets([again, *new]) == [1, 2, 3]
    store.pop.close()
    assert store.committed_offsets("g") == {("T", 0): 1}


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle",
    ["", "x", "0 1 2 3 0 b 0 0", "0 1 2 3 1 rmq-embedded 0 0 0", "0 1 2 3 0 other 0 0 0",
     "0 1 2 3 0 rmq-embedded 0 0 0", "1 1 2 3 0 rmq-embedded 0 0 0", "-1 1 2 3 0 rmq-embedded 0 -1 0",
     "\u0660 1 2 3 0 rmq-embedded 0 0 0"],
)  # fmt: skip
def test_what_never_was_a_handle_is_void_and_leaves_nothing_behind(store: Store, handle: Any) -> None:
    send(store, 1)
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", handle)
    assert not (store.path / "pyrmq" / "pop").exists()
    store.pop.receive("g", "T", 1, 30)
    with pytest.raises(InvalidReceiptHandleError):
        store.pop.ack("g", "T", handle)


def test_a_handle_has_the_fields_of_rocketmq(store: Store, clock: Clock) -> None:
    # ExtraInfoUtil.java: ckOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset, and the
    # proxy's ninth, commitLogOffset.
    send(store, 2)
    store.pop.receive("g", "T", 1, 30)
    (popped,) = store.pop.receive("g", "T", 1, 30)
    where = store.commit_log_offset_before("T", 0, 2)
    assert popped.receipt_handle == f"1 {clock.now_ms} 30 1 0 rmq-embedded 0 1 {where}"


def test_a_handle_of_another_group_or_topic_is_void(store: Store) -> None:
    store.create_topic("U", queue_count=1)
    send(store, 1)
    send(store, 1, "U")
    (mine,) = store.pop.receive("g", "T", 1, 30)
    store.pop.receive("h", "T", 1, 31)
    store.pop.receive("g", "U", 1, 30)
    for group, topic in (("h", "T"), ("g", "U"), ("nobody", "T"), ("g", "V")):
        with pytest.raises(InvalidReceiptHandleError):
            store.pop.ack(group, topic, mine.receipt_handle)
    store.pop.ack("g", "T", mine.receipt_handle)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("g", "T", 0, 30), "max_messages"),
        (("g", "T", 33, 30), "max_messages=33 is not an integer in 1..32"),
        (("g", "T", True, 30), "max_messages"),
        (("g", "T", 1, 0), "invisible_duration_ms"),
        (("g", "T", 1, 1.5), "invisible_duration_ms"),
        (("../g", "T", 1, 30), "group"),
        (("g", "../T", 1, 30), "T"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(store: Store, arguments: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        store.pop.receive(*arguments)
    assert not (store.path / "pyrmq" / "pop").exists()


def test_unknown_topics_and_what_may_not_be_read(store: Store) -> None:
    with pytest.raises(UnknownTopicError):
        store.pop.receive("g", "Missing", 1, 30)
    send(store, 1)
    store.pop.receive("g", "T", 1, 30)
    group = store.groups()["g"]
    store._groups.update(replace(group, consume_enable=False))
    with pytest.raises(ResponseError, match="group 'g' may not be read") as caught:
        store.pop.receive("g", "T", 1, 30)
    assert caught.value.response_code == 16
    store.create_topic("WriteOnly", perm=2)
    with pytest.raises(ResponseError, match="topic 'WriteOnly' may not be read"):
        store.pop.receive("h", "WriteOnly", 1, 30)


def test_a_store_open_for_reading_gives_nothing_out(store: Store) -> None:
    with Store.open(store.path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        _ = reader.pop
    assert isinstance(store.pop, Pop)


# -- damage -----------------------------------------------------------------------------------------------------------


def spoil(store: Store, queue_id: int, queue_offset: int) -> Callable[[], None]:
    """Damage the body length of a message of T; the call that mends it."""
    offset = store._log.views.queue("T", queue_id).entry(queue_offset)[0] + 84
    path = store._log.segments.path(0)
    with path.open("r+b") as file:
        file.seek(offset)
        whole = file.read(4)

    def write(data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    write(b"\x7f\xff\xff\xff")
    return lambda: write(whole)


@pytest.mark.parametrize("was_given", [True, False])
def test_a_damaged_message_is_put_off_and_holds_up_no_other(
    reopen: Callable[[], Store], clock: Clock, caplog: pytest.LogCaptureFixture, was_given: bool
) -> None:
    """It made every receive of the group fail: no message of the topic was given out any more."""
    with reopen() as store:
        store.create_topic("T", queue_count=2)
        for number in range(6):
            store.send(Message("T", b"%d" % number, queue_id=number % 2))
        if was_given:
            assert offsets(store.pop.receive("g", "T", 1, 50, init_mode=ConsumeInitMode.MIN)) == [0]
            clock.now_ms += 100
        mend = spoil(store, 0, 0)
        with caplog.at_level("ERROR"):
            found = [
                (row.column("queueId")[0].as_py(), row.column("queueOffset")[0].as_py())
                for _ in range(3)
                for row in [one.row for one in store.pop.receive("g", "T", 32, 10**6, init_mode=ConsumeInitMode.MIN)]
            ]
            assert sorted(found) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
            clock.now_ms += 60_000
            assert store.pop.receive("g", "T", 32, 10**6) == []
        assert [record.getMessage().count("message 0 of T-0 cannot be given out") for record in caplog.records] == [1]
    assert store_committed(reopen) == {("T", 0): 0, ("T", 1): 0}
    with reopen() as store:
        assert store.pop.receive("g", "T", 32, 10**6) == []
        mend()
        clock.now_ms += 60_000
        (late,) = store.pop.receive("g", "T", 32, 10**6)
        assert (offsets([late]), late.delivery_attempt) == ([0], 2 if was_given else 1)


def store_committed(reopen: Callable[[], Store]) -> dict[tuple[str, int], int]:
    with reopen() as store:
        return dict(store.committed_offsets("g"))


def test_the_last_message_that_was_given_out_may_be_damaged_when_the_store_is_opened_again(
    reopen: Callable[[], Store], clock: Clock
) -> None:
    """Its time tells whether a power cut has taken it; a damaged message does not tell it."""
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        send(store, 3)
        assert offsets(store.pop.receive("g", "T", 2, 50, init_mode=ConsumeInitMode.MIN)) == [0, 1]
    with reopen() as store:
        spoil(store, 0, 1)
        assert offsets(store.pop.receive("g", "T", 32, 50)) == [2]
        clock.now_ms += 100
        assert sorted(offsets(store.pop.receive("g", "T", 32, 50))) == [0, 2]


def test_a_dead_letter_is_on_disk_before_its_message_is_forgotten(store: Store, clock: Clock) -> None:
    """ASYNC_FLUSH: the journal may reach the disk before the log does, and the message was in neither after a power
    cut. A process that finds the dead letter of a killed one stored finds it in the page cache only.
    """
    send(store, 1)
    assert offsets(store.pop.receive("g", "T", 1, 1)) == [0]
    clock.now_ms += 1
    assert store.pop.receive("g", "T", 1, 1, max_delivery_attempts=1) == []
    page = store._log.writing_page
    assert len(dead_letters(store)) == 1
    assert page.flushed_end == page.appended_end
