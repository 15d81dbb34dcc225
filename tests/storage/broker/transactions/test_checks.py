"""Questions to producers: when, how often, and which half messages they leave alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from rmq_store import Message, Store, StoreFullError
from rmq_store.broker.rules import transaction as rules
from rmq_store.broker.transactions.checks import TransactionChecks
from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.broker.write.single_copy import CopiedMessage
from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.protocol.errors import RemotingCommandError

HALF, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
WEEK_H = 168


@dataclass
class Asked:
    """Producers of some groups, and what they were asked."""

    groups: set[str] = field(default_factory=lambda: {"pg"})
    halves: list[PendingHalf] = field(default_factory=list)
    answers: Any = None

    def is_there(self, group: str) -> bool:
        return group in self.groups

    def ask(self, half: PendingHalf, message: StoredMessage) -> bool:
        if self.answers is not None:
            self.answers(half, message)
        self.halves.append(half)
        return True


@pytest.fixture
def asked() -> Asked:
    return Asked()


def half(store: Store, body: bytes = b"paid", group: str = "pg", **properties: str) -> Any:
    return store.transactions.prepare(Message("T", body, properties=properties), 0, group)


def checks(store: Store, asked: Asked, hours: int = WEEK_H) -> TransactionChecks:
    return TransactionChecks(store.transactions, asked, store.clock, file_reserved_hours=hours)


def test_a_producer_is_asked_after_6_s_then_every_30_s(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store)
        running = checks(store, asked)
        times = []
        for _ in range(80):
            if running.round():
                times.append(parking.now_ms)
            parking.now_ms += 1000
    assert [times[0] - (parking.now_ms - 80_000), times[1] - times[0], times[2] - times[1]] == [6000, 30_000, 30_000]


def test_its_own_immunity_time_counts_for_the_first_question(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        running = checks(store, asked)
        parking.now_ms += 59_999
        assert running.round() == 0
        parking.now_ms += 1
        assert running.round() == 1


def test_a_question_is_counted_as_a_broker_counts_it(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        sent = half(store)
        parking.now_ms += 6000
        checks(store, asked).round()
        first, copy = parking.rows(store, HALF, 0)
        assert first["body"] == copy["body"]
        assert dict(copy["properties"])["TRANSACTION_CHECK_TIMES"] == "1"
        assert dict(copy["properties"])["UNIQ_KEY"] == sent.msg_id
    with parking.open() as store:  # and whoever comes next
        (again,) = store.transactions.pending()
        assert (again.queue_offset, again.first_offset, again.check_times) == (1, 0, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_the_first_copy_ends_the_newest_one(parking: Any, asked: Asked, commit: bool) -> None:
    """It may have crossed a question on its way. With Java's broker the message would be seen twice."""
    with parking.open() as store:
        sent = half(store)
        for _ in range(3):
            parking.now_ms += 30_000
            checks(store, asked).round()
        end = store.transactions.end
        assert end("pg", sent.queue_offset, sent.commit_log_offset, commit=commit)
        (last,) = [asked.halves[-1]]
        assert end("pg", last.queue_offset, last.commit_log_offset, commit=commit, from_check=True) is None
        assert parking.bodies(store) == ([b"paid"] if commit else [])
        assert store.transactions.pending() == []


def test_an_answer_that_comes_before_the_count_is_the_end(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store)
        asked.answers = lambda one, _: store.transactions.end(
            "pg", one.queue_offset, one.commit_log_offset, commit=True, from_check=True
        )
        parking.now_ms += 6000
        assert checks(store, asked).round() == 0  # nothing is left to count
        assert store.transactions.pending() == []
        assert parking.bodies(store) == [b"paid"]
        assert store.queue_range(HALF, 0).max_offset == 1


def test_waiting_for_a_producer_uses_up_no_question(parking: Any, asked: Asked) -> None:
    asked.groups.clear()
    with parking.open() as store:
        half(store)
        running = checks(store, asked)
        for _ in range(100):
            parking.now_ms += 30_000
            assert running.round() == 0
        assert [one.check_times for one in store.transactions.pending()] == [0]
        asked.groups.add("pg")
        assert running.round() == 1


def test_a_producer_that_is_gone_when_it_is_asked_uses_up_no_question(parking: Any, asked: Asked) -> None:
    asked.ask = lambda half, message: False  # type: ignore[method-assign]
    with parking.open() as store:
        half(store)
        parking.now_ms += 6000
        assert checks(store, asked).round() == 0
        assert [one.check_times for one in store.transactions.pending()] == [0]


@pytest.mark.parametrize(("back_ms", "questions"), [(3_600_000, 1), (20_000, 0)])
def test_a_half_message_from_before_the_clock_was_set_back_is_asked_for(
    parking: Any, asked: Asked, back_ms: int, questions: int
) -> None:
    """It waited until the clock was there again. A few seconds are no reason to ask early."""
    with parking.open() as store:
        half(store)
        parking.now_ms -= back_ms
        running = checks(store, asked)
        assert running.round() == questions
        parking.now_ms += 29_000
        assert running.round() == 1 - questions
        (one,) = store.transactions.pending()
        assert (one.check_times, one.stored_ms <= parking.now_ms) == (1, True)


def test_after_15_questions_without_an_outcome_a_half_message_is_given_up(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        sent = half(store)
        running = checks(store, asked)
        for _ in range(20):
            parking.now_ms += 30_000
            running.round()
        assert len(asked.halves) == 15
        assert store.transactions.pending() == []
        (given_up,) = store.transactions.given_up()
        assert (given_up.topic, given_up.body, given_up.msg_id) == (GIVEN_UP, b"paid", sent.msg_id)
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
        assert rules.HALF_OF not in given_up.properties
        assert parking.bodies(store) == []
        assert GIVEN_UP in store.topics()


def test_a_half_message_that_was_given_up_is_put_back_once(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store)
        running = checks(store, asked)
        for _ in range(20):
            parking.now_ms += 30_000
            running.round()
        (given_up,) = store.transactions.given_up()
        late = store.query.by_unique_key(HALF, given_up.msg_id, begin_ms=0)[-1]
        with pytest.raises(ResponseError, match=f"given up .* `rmq transactions resume {given_up.msg_id}`"):
            store.transactions.end("pg", late.queue_offset, late.commit_log_offset, commit=True)
        assert store.transactions.resume(given_up)
        assert not store.transactions.resume(given_up)
    with parking.open() as store:
        assert not store.transactions.resume(given_up)
        (again,) = store.transactions.pending()
        assert (again.check_times, again.is_ours) == (0, True)
        assert store.transactions.end("pg", again.queue_offset, again.commit_log_offset, commit=True)
        assert parking.bodies(store) == [b"paid"]
        assert store.transactions.end("pg", late.queue_offset, late.commit_log_offset, commit=True) is None


def test_a_commit_of_what_was_resumed_and_rolled_back_does_not_advise_to_resume(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store)
        (one,) = store.transactions.pending()
        assert store.transactions.give_up(one)
        (given_up,) = store.transactions.given_up()
        assert store.transactions.resume(given_up)
        (again,) = store.transactions.pending()
        assert store.transactions.end("pg", again.queue_offset, again.commit_log_offset, commit=False)
        with pytest.raises(ResponseError, match="rolled back"):
            store.transactions.end("pg", again.queue_offset, again.commit_log_offset, commit=True)


@pytest.mark.parametrize(
    "error",
    [UsageError("cannot be asked"), RemotingCommandError("fits no frame"), RuntimeError("can't start new thread")],
)
def test_one_half_message_that_fails_holds_up_no_other(parking: Any, asked: Asked, error: Exception) -> None:
    with parking.open() as store:
        for body in (b"a", b"b", b"c"):
            half(store, body)

        def fail_once(one: PendingHalf, message: StoredMessage) -> None:
            if message.body == b"b":
                raise error

        asked.answers = fail_once
        running = checks(store, asked)
        parking.now_ms += 6000
        assert running.round() == 2
        assert [one.check_times for one in store.transactions.pending()] == [0, 1, 1]


def test_a_half_message_that_failed_is_tried_again_behind_a_clock_that_was_set_back(parking: Any, asked: Asked) -> None:
    failures = [UsageError("cannot be asked")] * 2

    def fail(one: PendingHalf, message: StoredMessage) -> None:
        if failures:
            raise failures.pop()

    with parking.open() as store:
        half(store)
        asked.answers = fail
        running = checks(store, asked)
        parking.now_ms += 3_600_000
        assert (running.round(), running.round(), len(failures)) == (0, 0, 1)  # put off
        parking.now_ms -= 3_500_000
        assert (running.round(), len(failures)) == (0, 0)
        parking.now_ms += 30_000
        assert running.round() == 1


def test_half_messages_that_cannot_be_counted_keep_no_other_from_its_turn(
    parking: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.broker.transactions.checks.ROUND_MAX", 2)
    with parking.open() as store:
        for number in range(5):
            half(store, b"%d" % number)
        monkeypatch.setattr(store.transactions, "asked", lambda half: half)  # still due
        running = checks(store, asked)
        parking.now_ms += 6000
        assert [running.round() for _ in range(3)] == [2, 2, 2]
        assert [one.queue_offset for one in asked.halves] == [0, 1, 2, 3, 4, 0]


def test_a_question_that_was_not_counted_takes_no_place_in_a_round(
    parking: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.broker.transactions.checks.ROUND_MAX", 2)
    with parking.open() as store:
        for number in range(5):
            half(store, b"%d" % number)
        monkeypatch.setattr(store.transactions, "asked", lambda half: None)
        parking.now_ms += 6000
        assert checks(store, asked).round() == 0
        assert len(asked.halves) == 5


def test_a_full_disk_ends_the_round_and_a_later_one_goes_on(
    parking: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parking.open() as store:
        half(store)
        running = checks(store, asked)
        parking.now_ms += 6000

        def full() -> None:
            raise StoreFullError("full")

        monkeypatch.setattr(store._writer._space, "check", full)
        with pytest.raises(StoreFullError):
            running.round()
        monkeypatch.undo()
        assert running.round() == 1


def test_a_half_message_of_a_broker_is_asked_for_only_after_it_was_taken_over(parking: Any, asked: Asked) -> None:
    with parking.open() as store:
        half(store)
        (ours,) = store.transactions.pending()
        message = store.transactions.half_message(ours)
        left = {name: value for name, value in message.properties.items() if name != rules.HALF_OF}
        records = store.transactions._records
        left |= {"TRANSACTION_CHECK_TIMES": "9", "UNIQ_KEY": "U-left"}
        store._writer.put(records.half(CopiedMessage(b"left", 0, 0, parking.now_ms, message.born_host, left)))
        parking.now_ms += 60_000
        running = checks(store, asked)
        assert running.round() == 1
        (foreign,) = (one for one in store.transactions.pending() if not one.is_ours)
        assert foreign.check_times == 9
        assert store.transactions.take_over(foreign)
        assert not store.transactions.take_over(foreign)
        parking.now_ms += 6000
        assert running.round() == 1
        assert asked.halves[-1].first_offset == foreign.queue_offset


def test_a_half_message_that_waits_is_stored_again_before_retention_deletes_it(parking: Any, asked: Asked) -> None:
    asked.groups.clear()
    with parking.open() as store:
        sent = half(store)
        parking.now_ms += 37 * 3_600_000
        checks(store, asked, hours=72).round()
        (again,) = store.transactions.pending()
        assert (again.stored_ms, again.check_times, again.first_offset) == (parking.now_ms, 0, 0)
        assert store.transactions.end("pg", sent.queue_offset, sent.commit_log_offset, commit=True)
        assert parking.bodies(store) == [b"paid"]
