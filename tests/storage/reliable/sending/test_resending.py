"""Resends of a relay (H09, H10): the five conditions on real tables, people, lost confirmations, inboxes elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.backoff import Backoff
from rmq_store.client import RemotingTimeoutError
from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import transact
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.relay import resending
from rmq_store.reliable.relay.relay_report import RelayReport

from .cluster import START_MS, World

QUARTER_MS = 15 * 60_000
DAY_MS = 86_400_000


def sent(world: World, *messages: Message, **options: Any) -> list[str]:
    """Messages that were sent a quarter of an hour ago."""
    ids = world.add(*(messages or [Message("Orders", b"tea")]), **options)
    assert world.relay().run_once().sent == len(ids)
    world.clock.advance(QUARTER_MS)
    return ids


def high_water(world: World, message_id: str, beyond: int = 0, group: str = "stock") -> None:
    """The group has come so far."""
    row = world.stub(message_id)
    mark = {"group_name": group, "broker_name": row.broker_name, "topic": row.topic, "queue_id": row.sent_queue_id}
    world.execute(world.tables.high_water.insert(), {**mark, "queue_offset": row.queue_offset + beyond})


def log_row(world: World, message_id: str, **columns: Any) -> None:
    row = {
        "group_name": "stock", "message_id": message_id, "broker_name": "b", "topic": "Orders", "queue_id": 0,
        "queue_offset": 0, "received_ms": 0, "reconsume_times": 0, "lease_token": None, "lease_until_ms": 0,
        "blocks_until_ms": 0, "is_dead": False,
    }  # fmt: skip
    world.execute(world.tables.log.insert(), {**row, **columns})


def done(world: World, message_id: str, group: str = "stock", engine: sa.Engine | None = None) -> None:
    row = {"group_name": group, "message_id": message_id, "done_ms": 0, "token": "t"}
    with (engine or world.engine).begin() as connection:
        connection.execute(world.tables.inbox.insert(), row)


def outcome(report: RelayReport) -> dict[str, Any]:
    """What is not 0."""
    found = {"resent": report.resent, "confirmed": report.confirmed, **report.manual, **report.waiting}
    return {name: count for name, count in found.items() if count}


def test_a_message_that_its_group_has_passed_by_is_sent_again_with_its_id(world: World) -> None:
    (message_id,) = sent(world)
    high_water(world, message_id, beyond=3)
    relay = world.relay()
    assert outcome(relay.run_once()) == {"resent": 1}
    row = world.stub(message_id)
    assert (row.send_count, row.sent_ms, row.resend_ms) == (2, world.clock(), world.clock() + 2 * QUARTER_MS)
    assert (row.claim_token, row.claim_until_ms) == (None, 0)
    assert {each["msgId"] for each in world.stored()} == {message_id}
    # Its new place counts from now on, and its new time.
    assert len(world.stored()) == 2
    assert outcome(relay.run_once()) == {}


def test_each_condition_alone_holds_a_resend_back(world: World) -> None:
    ids = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(6)))
    high_water(world, ids[4])
    now_ms = world.clock()
    world.update(ids[0], status="confirmed")
    world.update(ids[1], resend_ms=now_ms + 1)
    log_row(world, ids[2], lease_token="worker", lease_until_ms=now_ms + 1)
    log_row(world, ids[3], blocks_until_ms=now_ms + 1)
    # 4 is at the mark and 5 behind it.
    assert outcome(world.relay().run_once()) == {"resent": 1, "in_work": 2, "in_queue": 1}
    assert world.stub(ids[4]).send_count == 2
    world.clock.advance(1)
    assert outcome(world.relay().run_once()) == {"resent": 3, "in_queue": 1}


def test_a_delayed_message_is_sent_again_without_its_delay(world: World) -> None:
    (message_id,) = sent(world, Message("Orders", b"tea", delay_level=3, keys="K"))
    assert outcome(world.relay().run_once()) == {}
    world.clock.advance(10_000)
    assert outcome(world.relay().run_once()) == {"resent": 1}
    (stored,) = world.stored()
    properties = dict(stored["properties"])
    assert "DELAY" not in properties
    assert (properties["KEYS"], properties["OUTBOX_ID"]) == ("K", message_id)
    assert world.stub(message_id).queue_offset == 0


def test_a_failed_resend_is_tried_again_soon(world: World) -> None:
    (message_id,) = sent(world)
    high_water(world, message_id)
    world.broker.fail(RemotingTimeoutError("no answer"))
    relay = world.relay()
    assert outcome(relay.run_once()) == {}
    assert (world.stub(message_id).send_count, world.stub(message_id).sent_ms) == (2, START_MS)
    world.clock.advance(2_000)
    assert outcome(relay.run_once()) == {"resent": 1}


def test_a_message_that_kills_its_sender_on_a_resend_is_claimed_alone(world: World) -> None:
    class Killed(BaseException):
        pass

    ids = sent(world, *(Message("Orders", b"%d" % number) for number in range(3)))
    high_water(world, ids[-1])

    def kill(messages: Sequence[Message]) -> None:
        if any(message.body == b"1" for message in messages):
            raise Killed

    world.broker.before = kill
    for _ in range(2):
        with pytest.raises(Killed):
            world.relay().run_once()
        world.clock.advance(30_000)
    assert [world.stub(each).send_count for each in ids] == [3, 3, 2]
    with pytest.raises(Killed):
        world.relay().run_once()
    # Its claim holds, so whoever comes next goes on behind it.
    assert outcome(world.relay().run_once()) == {"resent": 1}
    assert [world.stub(each).send_count for each in ids] == [3, 4, 3]


# -- people ------------------------------------------------------------------------------------------------------------


def test_at_the_maximum_people_decide_and_are_told_once(world: World) -> None:
    told: list[str] = []

    class Told:
        def notify(self, entries: Sequence[ManualEntry]) -> None:
            told.extend(f"{entry.message_id} {entry.detail}" for entry in entries)

    (message_id,) = sent(world)
    high_water(world, message_id)
    relay = world.relay(max_send_count=1, notifier=Told())
    assert outcome(relay.run_once()) == {"maximum": 1}
    assert outcome(relay.run_once()) == {}
    assert world.manual() == [(message_id, "maximum")]
    assert world.stub(message_id).is_manual
    (text,) = told
    assert text.startswith(f"{message_id} sent 1 times") and "stock" in text
    world.update(message_id, status="confirmed", is_manual=False)
    relay.run_once()
    assert world.manual() == []


def test_a_message_with_a_sharding_key_goes_to_people_unless_order_does_not_matter(world: World) -> None:
    first, second = sent(world, *(Message("Orders", b"%d" % n, sharding_key="K") for n in range(2)))
    high_water(world, second)
    assert outcome(world.relay(resend_out_of_order=True).run_once()) == {"resent": 2}
    world.clock.advance(2 * QUARTER_MS)
    world.execute(world.tables.high_water.update().values(queue_offset=9))
    assert outcome(world.relay().run_once()) == {"ordered": 2}
    assert world.manual() == sorted([(first, "ordered"), (second, "ordered")])


def test_a_message_that_waits_for_a_day_goes_to_people(world: World) -> None:
    (message_id,) = sent(world)
    assert outcome(world.relay().run_once()) == {"in_queue": 1}
    world.clock.advance(DAY_MS + 1)
    assert outcome(world.relay().run_once(dry_run=True)) == {"stuck": 1}
    assert world.manual() == []
    assert outcome(world.relay().run_once()) == {"stuck": 1}
    assert world.manual() == [(message_id, "stuck")]


def test_a_dead_letter_is_not_sent_again(world: World) -> None:
    (message_id,) = sent(world)
    high_water(world, message_id)
    log_row(world, message_id, is_dead=True)
    world.clock.advance(2 * DAY_MS)
    assert outcome(world.relay().run_once()) == {"dead_letter": 1}


# -- what consumers know -----------------------------------------------------------------------------------------------


def test_a_lost_confirmation_is_made_up_for(world: World) -> None:
    both, one = sent(world, Message("Orders", b"1"), Message("Orders", b"2"), groups=("stock", "mail"))
    done(world, both)
    done(world, both, "mail")
    done(world, one)
    report = world.relay().run_once()
    assert outcome(report) == {"confirmed": 3, "in_queue": 1}
    assert (world.stub(both).status, world.stub(one).status) == ("confirmed", "unconfirmed")
    assert world.stub(one).pending_groups == 1


def test_one_group_that_lacks_the_message_is_enough_for_a_resend(world: World) -> None:
    (message_id,) = sent(world, groups=("stock", "mail"))
    done(world, message_id)
    assert outcome(world.relay().run_once()) == {"confirmed": 1, "in_queue": 1}
    high_water(world, message_id, group="mail")
    assert outcome(world.relay().run_once()) == {"resent": 1}


def test_inboxes_may_be_in_other_databases(world: World, tmp_path: Path) -> None:
    elsewhere = open_engine(f"sqlite:///{tmp_path}/mail.db")
    world.tables.metadata.create_all(elsewhere)
    ids = sent(world, Message("Orders", b"1"), Message("Orders", b"2"), groups=("stock", "mail"))
    for message_id in ids:
        done(world, message_id)
    done(world, ids[0], "mail", elsewhere)
    assert outcome(world.relay(inboxes={"mail": elsewhere}).run_once()) == {"confirmed": 3, "in_queue": 1}
    assert outcome(world.relay(inboxes=elsewhere).run_once()) == {"in_queue": 1}
    elsewhere.dispose()


def test_an_inbox_that_cannot_be_read_holds_its_messages_up_and_no_others(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transact, "PAUSES", Backoff(1, 1))
    away = open_engine(f"sqlite:///{tmp_path}/missing/mail.db")
    mail, stock = (sent(world, groups=(group,))[0] for group in ("mail", "stock"))
    high_water(world, mail, group="mail")
    high_water(world, stock)
    relay = world.relay(inboxes={"mail": away})
    with caplog.at_level(logging.WARNING):
        assert outcome(relay.run_once()) == {"resent": 1, "unreachable": 1}
    assert "the inbox of mail cannot be read" in caplog.text
    world.clock.advance(DAY_MS + QUARTER_MS + 1)
    assert relay.run_once().manual["stuck"] >= 1
    assert (mail, "stuck") in world.manual()


def test_a_message_that_its_broker_has_lost_is_seen_by_asking_it(world: World) -> None:
    (message_id,) = sent(world)
    world.update(message_id, queue_offset=7)
    assert outcome(world.relay().run_once(dry_run=True)) == {"in_queue": 1}
    assert outcome(world.relay(backend=world.cluster).run_once()) == {"resent": 1}


# -- pages, relays, clocks ---------------------------------------------------------------------------------------------


def test_every_page_is_looked_at_once_also_if_its_rows_stay_due(world: World) -> None:
    ids = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(7)))
    high_water(world, ids[2])
    report = world.relay(page_rows=2).run_once()
    assert outcome(report) == {"resent": 3, "in_queue": 4}


def test_statements_do_not_grow_with_what_is_due(world: World) -> None:
    counts = []
    statements: list[str] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for rows in (20, 200):
        sent(world, *(Message("Orders", b"x") for _ in range(rows)))
        statements.clear()
        world.relay().run_once()
        counts.append(len(statements))
    assert counts[0] == counts[1] < 20


def test_of_two_relays_one_sends_again(world: World) -> None:
    ids = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(20)))
    high_water(world, ids[-1])
    together, reports = threading.Barrier(2), []

    def run() -> None:
        relay = world.relay(page_rows=5)
        together.wait(20)
        reports.append(relay.run_once())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.resent for report in reports) == 20
    assert {row.send_count for row in world.stubs()} == {2}


def test_what_was_confirmed_after_the_page_was_read_is_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sent(world, Message("Orders", b"1", queue_id=0), Message("Orders", b"2", queue_id=0))
    high_water(world, second)
    inner = resending.due_page

    def read_and_confirm(*given: Any) -> Any:
        page = inner(*given)
        world.update(first, status="confirmed")
        world.update(second, claim_token="another", claim_until_ms=world.clock() + 1)
        return page

    monkeypatch.setattr(resending, "due_page", read_and_confirm)
    assert outcome(world.relay().run_once()) == {}
    assert len(world.bodies()) == 2


def test_a_clock_that_was_set_back_lets_the_time_count_again(world: World) -> None:
    world.clock.advance(365 * DAY_MS)
    (message_id,) = sent(world)
    world.clock.advance(-365 * DAY_MS)
    high_water(world, message_id)
    report = world.relay().run_once()
    assert (report.counted_again, outcome(report)) == (1, {})
    world.clock.advance(QUARTER_MS)
    assert outcome(world.relay().run_once()) == {"resent": 1}


def test_a_timed_message_is_not_taken_for_one_of_a_clock_that_jumped(world: World) -> None:
    (message_id,) = world.add(Message("Orders", b"tea", deliver_timestamp_ms=START_MS + 2 * DAY_MS))
    world.relay().run_once()
    report = world.relay().run_once()
    assert (report.counted_again, outcome(report)) == (0, {})
    assert world.stub(message_id).resend_ms == START_MS + 2 * DAY_MS + QUARTER_MS


def test_a_dry_run_tells_what_a_round_would_do_and_does_nothing(world: World) -> None:
    ids = sent(world, Message("Orders", b"1"), Message("Keyed", b"2", sharding_key="K"), Message("Done", b"3"))
    high_water(world, ids[0])
    high_water(world, ids[1])
    done(world, ids[2])
    before = world.stubs()
    planned = outcome(world.relay().run_once(dry_run=True))
    assert planned == {"resent": 1, "ordered": 1, "confirmed": 1}
    assert (world.stubs(), world.manual()) == (before, [])
    assert outcome(world.relay().run_once()) == planned


def test_the_tables_may_have_other_names(world: World) -> None:
    tables = Tables(prefix="shop_")
    tables.metadata.create_all(world.engine)
    other = World(world.engine, tables, world.store, world.cluster, world.producer, world.clock)
    (message_id,) = sent(other)
    high_water(other, message_id)
    assert outcome(other.relay().run_once()) == {"resent": 1}
    assert world.stubs() == []
