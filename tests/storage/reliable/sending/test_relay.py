"""First sends of a relay: claims, order, batches, failures, and what becomes of messages that kill their sender."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message, UsageError
from rmq_store.client import MQBrokerError, RemotingConnectError, RemotingTimeoutError, ResponseCode
from rmq_store.reliable import Outbox, Relay, ResendBackoff
from rmq_store.reliable.outbox import claims
from rmq_store.reliable.outbox.sending_rules import SendingRules

from .cluster import START_MS, World

YEAR_MS = 365 * 86_400_000


def keyed(key: str, *bodies: bytes) -> list[Message]:
    return [Message("Orders", body, sharding_key=key) for body in bodies]


def test_what_nobody_has_sent_is_sent_in_batches_and_marked(world: World) -> None:
    world.add(*(Message("Orders", b"%d" % number) for number in range(10)))
    report = world.relay().run_once()
    assert (report.sent, report.failed, report.has_more) == (10, 0, False)
    assert len(world.broker.requests) == 1
    assert [row.queue_offset for row in world.stubs()] == list(range(10))
    assert {(row.send_count, row.sent_ms, row.claim_token, row.claim_until_ms) for row in world.stubs()} == {
        (1, START_MS, None, 0)
    }
    assert world.relay().run_once().sent == 0


def test_messages_of_many_keys_go_in_one_request_per_queue_and_each_key_in_order(world: World) -> None:
    steps = [(key, step) for step in range(5) for key in range(20)]
    world.add(*(Message("Orders", b"%d-%d" % (key, step), sharding_key=f"K{key}") for key, step in steps))
    world.relay().run_once()
    assert len(world.broker.requests) <= 4
    found = world.bodies()
    for key in range(20):
        assert [body for body in found if body.startswith(b"%d-" % key)] == [b"%d-%d" % (key, s) for s in range(5)]


def test_a_key_stays_on_its_queue_whoever_sends(world: World) -> None:
    world.add(*keyed("K", b"1", b"2"))
    world.relay().run_once()
    world.producer.send(Message("Orders", b"3", sharding_key="K"))
    with world.outbox().begin() as connection:
        world.outboxes[-1].add(connection, Message("Orders", b"4", sharding_key="K"))
    assert {row["queueId"] for row in world.stored()} == {world.stored()[0]["queueId"]}
    assert world.bodies() == [b"1", b"2", b"3", b"4"]


def test_delayed_messages_go_alone_at_their_place_and_have_no_comparable_offset(world: World) -> None:
    world.add(
        *keyed("K", b"1"),
        Message("Orders", b"2", sharding_key="K", delay_level=2),
        *keyed("K", b"3"),
        Message("Orders", b"4", queue_id=2),
    )
    assert world.relay().run_once().sent == 4
    assert sorted(world.broker.requests) == [[b"1"], [b"2"], [b"3"], [b"4"]]
    first, delayed, _, chosen = world.stubs()
    assert (delayed.queue_offset, delayed.broker_name, delayed.resend_ms) == (None, None, START_MS + 5_000 + 900_000)
    assert (first.resend_ms, chosen.sent_queue_id) == (START_MS + 900_000, 2)


def test_batches_are_cut_where_a_batch_must_not_go_on(world: World) -> None:
    world.add(
        Message("Orders", b"1"), Message("Orders", b"2", properties={"WAIT": "false"}), Message("Orders", b"3"),
        Message("Orders", bytes(1 << 20)), Message("Orders", bytes(1 << 20)), Message("Others", b"4"),
    )  # fmt: skip
    assert world.relay().run_once().sent == 6
    assert [len(request) for request in world.broker.requests] == [1, 1, 1, 1, 1, 1]


def test_pages_follow_each_other_until_all_is_sent(world: World) -> None:
    world.add(*keyed("K", *(b"%d" % number for number in range(12))))
    assert world.relay(page_rows=5).run_once().sent == 12
    assert [len(request) for request in world.broker.requests] == [5, 5, 2]
    assert world.bodies() == [b"%d" % number for number in range(12)]


def test_statements_do_not_grow_with_the_rows_of_a_page(world: World) -> None:
    relay, counts = world.relay(), []
    statements: list[str] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for rows in (250, 1_000):
        world.add(*(Message("Orders", b"x", sharding_key=f"K{number % 50}") for number in range(rows)))
        statements.clear()
        assert relay.run_once().sent == rows
        counts.append(len(statements))
    # Two statements more for each 250 rows: marks.
    assert counts[1] - counts[0] <= 6
    assert counts[1] < 40


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_lost_answer_costs_a_duplicate_with_the_same_id(world: World) -> None:
    (message_id,) = world.add(Message("Orders", b"tea"))
    world.broker.fail(RemotingTimeoutError("no answer"), is_stored=True)
    relay = world.relay()
    assert (relay.run_once().failed, world.stub(message_id).send_count) == (1, 1)
    assert relay.run_once().failed == 0
    world.clock.advance(1_000)
    assert relay.run_once().sent == 1
    assert {row["msgId"] for row in world.stored()} == {message_id}
    assert (len(world.stored()), world.stub(message_id).send_count) == (2, 2)


def test_a_key_stops_at_its_first_failure_and_goes_on_in_order(world: World) -> None:
    world.add(*keyed("K", b"1"), Message("Orders", b"2", sharding_key="K", delay_level=1), *keyed("K", b"3"))
    world.broker.fail(None, RemotingTimeoutError("no answer"))
    relay = world.relay()
    report = relay.run_once()
    assert (report.sent, report.failed) == (1, 2)
    assert world.broker.requests == [[b"1"]]
    world.clock.advance(2_000)
    assert relay.run_once().sent == 2
    assert world.broker.requests == [[b"1"], [b"2"], [b"3"]]


def test_a_key_that_waits_after_a_failure_holds_its_later_messages_back(world: World) -> None:
    first, _ = world.add(*keyed("K", b"1", b"2"))
    world.update(first, resend_ms=START_MS + 60_000)
    world.add(Message("Orders", b"other", sharding_key="L"))
    assert world.relay().run_once().sent == 1
    world.clock.advance(60_000)
    assert world.relay().run_once().sent == 2
    assert [body for body in world.bodies() if body != b"other"] == [b"1", b"2"]


def test_a_message_that_is_given_back_while_a_relay_claims_holds_its_key_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL and MariaDB its sender, who is late, may do so between the relay's two statements."""
    first, second, other = (
        world.add(Message("Orders", body, sharding_key=key))[0] for body, key in ((b"1", "K"), (b"2", "K"), (b"3", "L"))
    )
    looked = claims._one_page
    stub = world.tables.stub

    with world.engine.begin() as connection:

        def give_back(found: Any, rules: Any) -> Any:
            later = {"resend_ms": START_MS + 500}
            connection.execute(stub.update().where(stub.c.message_id == first).values(later))
            return looked(found, rules)

        with monkeypatch.context() as patch:
            patch.setattr(claims, "_one_page", give_back)
            claim = claims.claim_first_sends(connection, world.tables, SendingRules(), START_MS, 10)
    assert [each.message_id for each in claim.claimed] == [other]
    left = world.stub(second)
    assert (left.claim_token, left.send_count, left.resend_ms) == (None, 0, START_MS)
    world.clock.advance(60_000)
    assert world.relay().run_once().sent == 3
    assert [body for body in world.bodies() if body != b"3"] == [b"1", b"2"]


def test_brokers_that_are_away_bring_nothing_to_the_manual_list(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.add(*keyed("K", b"1", b"2"), Message("Orders", b"3"))
    world.broker.fail(*[RemotingConnectError("refused")] * 200)
    relay = world.relay(max_send_count=3)
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            relay.run_once()
            world.clock.advance(300_000)
    assert {row.send_count for row in world.stubs()} == {0}
    assert world.manual() == []
    world.broker.fail()
    world.clock.advance(300_000)
    assert relay.run_once().sent == 3


def test_tries_become_rare_while_brokers_are_away(world: World) -> None:
    world.add(Message("Orders", b"1"))
    tries: list[int] = []

    def refuse(messages: Sequence[Message]) -> None:
        tries.append(world.clock())
        raise RemotingConnectError("refused")

    world.broker.before = refuse
    relay = world.relay()
    for _ in range(600):
        relay.run_once()
        world.clock.advance(1_000)
    waits = [later - before for before, later in itertools.pairwise(tries)]
    assert waits == sorted(waits) and len(tries) < 12 and waits[-1] >= 128_000


def test_a_topic_whose_broker_fails_does_not_hold_up_the_others(world: World) -> None:
    world.add(*(Message("Orders", b"x") for _ in range(20)))
    world.add(*(Message("Others", b"y") for _ in range(3)))

    def refuse(messages: Sequence[Message]) -> None:
        if messages[0].topic == "Orders":
            raise MQBrokerError(ResponseCode.SYSTEM_BUSY, "later")

    world.broker.before = refuse
    report = world.relay(page_rows=5).run_once()
    assert (report.sent, report.failed) == (3, 5)


@pytest.mark.parametrize("by_the_broker", [False, True])
def test_a_message_that_breaks_a_rule_stops_its_key_and_nothing_else(world: World, by_the_broker: bool) -> None:
    ids = world.add(*keyed("K", b"1", b"2", b"3"), *keyed("L", b"4", b"5"), Message("Orders", b"6"))
    if by_the_broker:

        def refuse(messages: Sequence[Message]) -> None:
            if any(message.body == b"2" for message in messages):
                raise MQBrokerError(ResponseCode.MESSAGE_ILLEGAL, "no twos here")

        world.broker.before = refuse
    else:
        world.update(ids[1], body=b"")
    report = world.relay().run_once()
    assert (report.sent, report.failed) == (4, 2)
    assert sorted(world.bodies()) == [b"1", b"4", b"5", b"6"]
    assert [world.stub(each).send_count for each in ids] == [1, 1, 0, 1, 1, 1]


def test_at_the_maximum_a_message_goes_to_people_and_holds_up_its_key(world: World) -> None:
    first, _ = world.add(*keyed("K", b"1"), Message("Orders", b"2", sharding_key="K", delay_level=1))
    world.broker.fail(*[RemotingTimeoutError("no answer")] * 9)
    relay = world.relay(max_send_count=3)
    for _ in range(3):
        relay.run_once()
        world.clock.advance(300_000)
    world.broker.fail()
    report = relay.run_once()
    assert report.sent == 0
    assert dict(report.manual) == {"maximum": 1}
    assert world.manual() == [(first, "maximum")]
    assert (world.stub(first).is_manual, world.stub(first).send_count) == (True, 3)
    assert relay.run_once().sent == 0
    world.update(first, status="void")
    assert relay.run_once().sent == 1
    assert world.manual() == []
    assert world.broker.requests == [[b"2"]]


class Killed(BaseException):
    """The process is gone: nothing that would still run is run."""


def run_until_killed(world: World, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.reliable.relay.claim_sender.transact", lambda *given: None)
        with pytest.raises(Killed):
            relay.run_once()


def test_a_message_that_kills_its_senders_ends_on_the_manual_list_alone(world: World) -> None:
    ids = world.add(*(Message("Orders", b"%d" % number) for number in range(5)))

    def kill(messages: Sequence[Message]) -> None:
        if any(message.body == b"2" for message in messages):
            raise Killed

    world.broker.before = kill
    for _ in range(20):
        try:
            report = world.relay(max_send_count=6).run_once()
        except Killed:
            world.clock.advance(30_000)
        else:
            break
    assert world.manual() == [(ids[2], "maximum")]
    assert sorted(world.bodies()) == [b"0", b"1", b"3", b"4"]
    assert [world.stub(each).send_count for each in ids][2] == 6
    assert max(world.stub(each).send_count for each in ids if each != ids[2]) <= 3
    assert dict(report.manual) == {"maximum": 1}


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_relay_that_is_killed_leaves_its_claims_to_the_next(
    world: World, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(*keyed("K", b"1", b"2"))

    def kill(messages: Sequence[Message]) -> None:
        raise Killed

    if is_sent:
        world.broker.after = kill
    else:
        world.broker.before = kill
    run_until_killed(world, world.relay(), monkeypatch)
    world.broker.fail()
    world.broker.after = lambda messages: None
    other = world.relay()
    assert other.run_once().sent == 0
    world.clock.advance(30_000)
    assert other.run_once().sent == 2
    assert world.bodies() == [b"1", b"2"] * (1 + is_sent)


def test_a_relay_that_sleeps_through_its_lease_sends_and_marks_nothing_more(world: World) -> None:
    world.add(*(Message("Orders", b"x", queue_id=1) for _ in range(3)))
    other = world.relay()

    def sleep(messages: Sequence[Message]) -> None:
        world.broker.after = lambda messages: None
        world.clock.advance(31_000)
        assert other.run_once().sent == 3

    world.broker.after = sleep
    report = world.relay().run_once()
    # The first one was sent by both; its mark is that of the other.
    assert (report.sent, report.failed) == (1, 2)
    assert len(world.bodies()) == 4
    assert {row.sent_ms for row in world.stubs()} == {START_MS + 31_000}
    assert {row.send_count for row in world.stubs()} == {2}


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send_now", [False, True])
def test_a_clock_a_year_ahead_strands_no_message(world: World, send_now: bool) -> None:
    world.clock.advance(YEAR_MS)
    outbox = world.outbox()
    with world.engine.begin() as connection:
        outbox.add(connection, Message("Orders", b"1", sharding_key="K"), send_now=send_now)
    world.clock.advance(-YEAR_MS)
    world.add(*keyed("K", b"2"))
    assert world.relay().run_once().sent == 2
    assert world.bodies() == [b"1", b"2"]


# -- several relays ----------------------------------------------------------------------------------------------------


def test_two_relays_and_a_process_that_sends_keep_the_order_of_each_key(world: World) -> None:
    def clock() -> int:
        return time.time_ns() // 1_000_000

    failures: list[BaseException] = []
    stop = threading.Event()
    relays = [Relay(world.producer, world.engine, world.tables, clock=clock, page_rows=7) for _ in range(2)]
    outbox = Outbox(world.producer, world.engine, world.tables, groups=("stock",), clock=clock, mark_delay_ms=20)

    def relay(one: Relay) -> None:
        try:
            one.run(stop, 1)
        except BaseException as error:
            failures.append(error)

    def send(key: int) -> None:
        try:
            for step in range(15):
                with outbox.begin() as connection:
                    message = Message("Orders", b"%d-%d" % (key, step), sharding_key=f"K{key}")
                    outbox.add(connection, message, send_now=step % 3 != 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=relay, args=(one,)) for one in relays]
    senders = [threading.Thread(target=send, args=(key,)) for key in range(3)]
    for thread in threads + senders:
        thread.start()
    for thread in senders:
        thread.join()
    outbox.close()
    deadline = time.monotonic() + 60
    while any(row.sent_ms is None for row in world.stubs()) and not failures:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    found = world.bodies()
    for key in range(3):
        assert [body for body in found if body.startswith(b"%d-" % key)] == [b"%d-%d" % (key, s) for s in range(15)]


def test_what_one_relay_has_claimed_the_other_leaves_alone(world: World) -> None:
    world.add(*keyed("K", b"1", b"2"), Message("Orders", b"3"))
    seen: list[int] = []

    def look(messages: Sequence[Message]) -> None:
        world.broker.before = lambda messages: None
        world.add(*keyed("K", b"late"), Message("Orders", b"free"))
        seen.append(world.relay().run_once().sent)

    world.broker.before = look
    world.relay().run_once()
    # The late one of the key waits, the free message does not.
    assert seen == [1]
    assert world.relay().run_once().sent == 1
    assert [body for body in world.bodies() if body not in (b"3", b"free")] == [b"1", b"2", b"late"]


def test_a_database_that_is_away_for_a_while_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(Message("Orders", b"1"))
    relay, stop, rounds = world.relay(), threading.Event(), []
    once = relay.run_once

    def run_once(**options: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 1:
            raise sa.exc.OperationalError("SELECT", {}, OSError("gone"), connection_invalidated=True)
        stop.set()
        return once(**{**options, "stop": None})

    monkeypatch.setattr(relay, "run_once", run_once)
    relay.run(stop, 1)
    assert world.bodies() == [b"1"]
    world.execute(sa.schema.DropTable(world.tables.relay))
    world.add(Message("Orders", b"2"))
    with pytest.raises(sa.exc.DBAPIError):
        world.relay().run(threading.Event(), 1)


def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    world.add(*keyed("K", b"1", b"2"))
    before = world.stubs()
    assert world.relay().run_once(dry_run=True).sent == 2
    assert (world.stubs(), world.bodies()) == (before, [])


def test_a_round_that_is_stopped_ends_between_pages(world: World) -> None:
    world.add(*(Message("Orders", b"x") for _ in range(9)))
    stop = threading.Event()
    world.broker.before = lambda messages: stop.set()
    assert world.relay(page_rows=3).run_once(stop=stop).sent == 3


def test_a_new_database_needs_no_row_of_relay(world: World) -> None:
    world.execute(world.tables.relay.delete())
    world.add(Message("Orders", b"x"))
    assert world.relay().run_once().sent == 1


@pytest.mark.parametrize("wrong", [{"lease_ms": 0}, {"max_send_count": 0}, {"page_rows": 0}])
def test_settings_that_cannot_be_are_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        world.relay(**wrong)


def test_numbers_of_all_rounds_add_up(world: World) -> None:
    relay = world.relay(backoff=ResendBackoff())
    for _ in range(2):
        world.add(Message("Orders", b"x"))
        relay.run_once()
    assert relay.total.sent == 2


# -- purge -------------------------------------------------------------------------------------------------------------


def test_stubs_that_are_done_with_go_after_a_month_and_no_others(world: World) -> None:
    ids = world.add(*(Message("Orders", b"%d" % number) for number in range(4)))
    relay = world.relay()
    relay.run_once()
    day = 86_400_000
    for message_id, status in zip(ids, ("confirmed", "void", "unconfirmed", "void"), strict=True):
        world.update(message_id, status=status, resend_ms=START_MS, is_manual=status == "unconfirmed")
    world.update(ids[3], resend_ms=START_MS + 20 * day)  # It was voided much later.
    world.clock.advance(31 * day)
    assert relay.run_once().purged == 0
    world.clock.advance(day)
    assert relay.run_once().purged == 2
    assert [row.message_id for row in world.stubs()] == [ids[2], ids[3]]
    with world.engine.connect() as connection:
        assert len(connection.execute(sa.select(world.tables.stub_group)).all()) == 2


def test_many_messages_behind_one_that_waits_do_not_hide_the_others(world: World) -> None:
    ids = world.add(*keyed("K", *(b"k%d" % n for n in range(10))), *keyed("L", b"1", b"2"), Message("Orders", b"3"))
    world.update(ids[1], resend_ms=START_MS + 60_000)
    assert world.relay(page_rows=3).run_once().sent == 4
    assert sorted(world.bodies()) == [b"1", b"2", b"3", b"k0"]
    world.clock.advance(60_000)
    assert world.relay(page_rows=3).run_once().sent == 9
    assert [body for body in world.bodies() if body.startswith(b"k")] == [b"k%d" % number for number in range(10)]
