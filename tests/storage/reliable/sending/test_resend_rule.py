"""The five conditions of H09, each alone, and the times between sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store import Message
from rmq_store.errors import UsageError
from rmq_store.reliable.outbox.delays import deliver_ms, is_delayed, without_delay
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.relay.resend_rule import Action, Decision, GroupState, LogState, SentStub, decide

NOW = 1_700_000_000_000
MINUTE = 60_000
LOST = GroupState(high_water=6)
STUB = SentStub(send_count=1, sent_ms=NOW - MINUTE, resend_ms=NOW, queue_offset=5, has_sharding_key=False)


def action(stub: SentStub = STUB, *states: GroupState, **options: Any) -> Action:
    groups = {f"g{number}": state for number, state in enumerate(states)}
    return decide(stub, groups, NOW, **{"max_send_count": 3, "resend_out_of_order": False, **options}).action


def test_a_message_that_all_conditions_hold_for_is_sent_again() -> None:
    assert action(STUB, LOST) is Action.RESEND


def test_a_message_whose_time_is_past_is_due_and_not_one_whose_time_comes() -> None:
    assert action(replace(STUB, resend_ms=NOW - MINUTE), LOST) is Action.RESEND
    assert action(replace(STUB, resend_ms=NOW + 1), LOST) is Action.WAIT_NOT_DUE


def test_a_clock_that_was_set_back_makes_the_time_count_again() -> None:
    assert action(replace(STUB, sent_ms=NOW + 1), LOST) is Action.COUNT_AGAIN


@pytest.mark.parametrize("high_water", [None, 0, 4])
def test_a_message_that_its_group_has_not_come_to_waits_in_its_queue(high_water: int | None) -> None:
    assert action(STUB, GroupState(high_water=high_water)) is Action.WAIT_IN_QUEUE


def test_a_message_without_a_comparable_offset_waits_for_its_time_only() -> None:
    assert action(replace(STUB, queue_offset=None), GroupState()) is Action.RESEND


def test_a_message_that_somebody_works_on_is_not_sent_again() -> None:
    for log in (LogState(NOW + 1, 0, False), LogState(0, NOW + 1, False)):
        assert action(STUB, replace(LOST, log=log)) is Action.WAIT_IN_WORK
        assert action(replace(STUB, queue_offset=None), GroupState(log=log)) is Action.WAIT_IN_WORK


def test_a_log_row_of_a_worker_that_died_holds_nothing_up() -> None:
    over = LogState(NOW, NOW - 1, False)
    assert action(STUB, replace(LOST, log=over)) is Action.RESEND
    # A retry came, and its first delivery was never seen: the log says that the group has had it.
    assert action(STUB, GroupState(high_water=4, log=over)) is Action.RESEND


def test_the_last_message_of_a_queue_is_sent_again_although_no_later_one_moves_the_mark() -> None:
    assert action(STUB, GroupState(high_water=5)) is Action.RESEND


def test_a_message_that_its_broker_has_lost_does_not_wait_for_the_mark() -> None:
    assert action(replace(STUB, max_offset=5), GroupState()) is Action.RESEND
    assert action(replace(STUB, max_offset=6), GroupState()) is Action.WAIT_IN_QUEUE


def test_the_mark_of_an_earlier_topic_of_the_same_name_says_nothing() -> None:
    assert action(replace(STUB, max_offset=7), GroupState(high_water=1_000)) is Action.WAIT_IN_QUEUE
    assert action(replace(STUB, max_offset=7), GroupState(high_water=6)) is Action.RESEND


def test_what_cannot_be_read_is_not_taken_for_not_there() -> None:
    away = GroupState(is_unreachable=True)
    assert action(STUB, away) is Action.WAIT_UNREACHABLE
    assert action(replace(STUB, queue_offset=None), away) is Action.WAIT_UNREACHABLE
    assert action(STUB, away, LOST) is Action.RESEND


@pytest.mark.parametrize("state", [GroupState(), GroupState(is_unreachable=True)])
def test_a_message_that_waits_for_a_day_is_for_people(state: GroupState) -> None:
    day = 24 * 60 * MINUTE
    assert action(replace(STUB, resend_ms=NOW - day), state) is not Action.STUCK
    assert action(replace(STUB, resend_ms=NOW - day - 1), state) is Action.STUCK
    assert action(replace(STUB, resend_ms=NOW - MINUTE - 1), state, stuck_after_ms=MINUTE) is Action.STUCK
    in_work = GroupState(high_water=9, log=LogState(NOW + 1, 0, False))
    assert action(replace(STUB, resend_ms=NOW - day - 1), in_work) is Action.WAIT_IN_WORK


def test_a_lease_of_a_clock_that_jumped_holds_nothing_up() -> None:
    assert action(STUB, replace(LOST, log=LogState(NOW + 400 * 86_400_000, 0, False))) is Action.RESEND


def test_a_dead_letter_is_for_people() -> None:
    assert action(STUB, replace(LOST, log=LogState(0, 0, True))) is Action.WAIT_DEAD


def test_one_group_that_lacks_the_message_is_enough() -> None:
    dead, waits = replace(LOST, log=LogState(0, 0, True)), GroupState(high_water=3)
    assert action(STUB, dead, waits, LOST) is Action.RESEND
    assert action(STUB, dead, waits) is Action.WAIT_IN_QUEUE


def test_at_the_maximum_a_person_decides_about_what_would_be_sent_again() -> None:
    assert action(replace(STUB, send_count=2), LOST) is Action.RESEND
    assert action(replace(STUB, send_count=3), LOST) is Action.MAXIMUM
    # A message that only waits in its queue is no matter for people, however often it was sent.
    assert action(replace(STUB, send_count=3), GroupState(high_water=4)) is Action.WAIT_IN_QUEUE


def test_a_message_with_a_sharding_key_is_sent_again_only_if_that_is_allowed() -> None:
    ordered = replace(STUB, has_sharding_key=True)
    assert action(ordered, LOST) is Action.ORDERED
    assert action(ordered, LOST, resend_out_of_order=True) is Action.RESEND


def test_what_a_group_has_done_is_confirmed_and_not_sent_again() -> None:
    done = GroupState(is_done=True, high_water=9)
    assert action(replace(STUB, send_count=99, has_sharding_key=True), done) is Action.CONFIRM
    decision = decide(STUB, {"a": done, "b": LOST}, NOW, max_send_count=3, resend_out_of_order=False)
    assert decision == Decision(Action.RESEND, ("a",))


# -- times -------------------------------------------------------------------------------------------------------------


def test_the_waits_between_resends_double_from_a_quarter_of_an_hour_to_six_hours() -> None:
    waits = [ResendBackoff().resend_at_ms(count, NOW) - NOW for count in (1, 2, 3, 4, 5, 6, 16, 10**6)]
    assert [wait // MINUTE for wait in waits] == [15, 30, 60, 120, 240, 360, 360, 360]


def test_the_time_of_a_delayed_message_counts_from_when_it_is_given_out() -> None:
    assert ResendBackoff().resend_at_ms(1, NOW, NOW + 3 * MINUTE) == NOW + 18 * MINUTE
    assert ResendBackoff().resend_at_ms(1, NOW, NOW - 3 * MINUTE) == NOW + 15 * MINUTE


def test_failed_first_sends_are_tried_again_soon() -> None:
    assert [ResendBackoff().retry_wait_ms(count) for count in (0, 1, 2, 3, 9, 99)] == [
        1_000, 1_000, 2_000, 4_000, 256_000, 300_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"first_wait_ms": 0}, {"max_wait_ms": 1}, {"max_retry_ms": 86_400_001}, {"first_retry_ms": -1}, {"multiplier": 0}],
)
def test_waits_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ResendBackoff(**wrong)


@pytest.mark.parametrize(
    ("message", "due_ms"),
    [
        (Message("T", b"x"), None),
        (Message("T", b"x", delay_level=3), NOW + 10_000),
        (Message("T", b"x", delay_level=99), NOW + 7_200_000),
        (Message("T", b"x", properties={"DELAY": "1"}), NOW + 1_000),
        (Message("T", b"x", deliver_timestamp_ms=NOW + 7), NOW + 7),
        (Message("T", b"x", delay_level=1, deliver_timestamp_ms=NOW + 7), NOW + 1_000),
        (Message("T", b"x", properties={"TIMER_DELAY_MS": "5"}), NOW + 5),
        (Message("T", b"x", properties={"TIMER_DELAY_SEC": "5"}), NOW + 5_000),
        (Message("T", b"x", properties={"TIMER_DELIVER_MS": "soon"}), 0),
    ],
)
def test_a_message_says_when_its_broker_gives_it_out(message: Message, due_ms: int | None) -> None:
    assert deliver_ms(message, NOW) == due_ms
    assert is_delayed(message) == (due_ms is not None)
    assert deliver_ms(without_delay(message), NOW) is None
