"""What a round of a relay looks at: what has become due, and some of what it has looked at before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.client import RemotingConnectError
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.outbox import first_sends
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.relay import looks, resending
from rmq_store.reliable.relay.looks import AGAIN_EVERY_MS

from .cluster import World
from .test_resending import DAY_MS, QUARTER_MS, high_water, sent

NEW, AGAIN = 20, 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "NEW_ROWS_MAX", NEW)
    monkeypatch.setattr(looks, "AGAIN_ROWS_MAX", AGAIN)


def waiting(world: World, count: int) -> list[str]:
    """Messages that are due, and wait in one queue."""
    ids = sent(world, *(Message("Orders", b"x", queue_id=0) for _ in range(count)))
    world.execute(world.tables.stub.update().values(resend_ms=world.clock()))
    return ids


def looked_at(world: World, relay: Any = None) -> int:
    """How many waiting messages the next round looks at."""
    report = (relay or world.relay()).run_once()
    assert set(report.waiting) <= {"in_queue"}
    return sum(report.waiting.values())


def test_a_round_looks_at_what_is_new_and_then_at_some_of_the_others(world: World) -> None:
    waiting(world, 50)
    relay = world.relay()
    assert relay.run_once().has_more
    # 20 more new ones, and 10 of those before; then the last 10 new ones.
    assert [looked_at(world, relay) for _ in range(2)] == [NEW + AGAIN, 10 + AGAIN]
    # The turn ends with the last of them; what was looked at is left alone until the next turn.
    assert [looked_at(world, relay) for _ in range(6)] == [AGAIN, AGAIN, AGAIN, 0, 0, 0]
    world.clock.advance(AGAIN_EVERY_MS)
    assert [looked_at(world, relay) for _ in range(8)] == [AGAIN] * 5 + [0, 0, 0]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_work_of_a_round_does_not_grow_with_what_waits(world: World) -> None:
    """Rows that the driver hands out, and statements: the same with 60 and with 600 waiting messages."""
    counts = []
    for rows in (60, 540):
        waiting(world, rows)
        relay = world.relay()
        while relay.run_once().has_more:
            pass
        world.clock.advance(AGAIN_EVERY_MS)
        world.add(Message("Others", b"new"))
        statements: list[str] = []
        sa.event.listen(world.engine, "before_cursor_execute", lambda *given, to=statements: to.append(given[2]))
        report = relay.run_once()
        counts.append((len(statements), report.sent, sum(report.waiting.values())))
    assert counts[0] == counts[1]
    assert counts[0][1:] == (1, AGAIN)


def test_a_relay_that_restarts_goes_on_where_the_last_one_was(world: World) -> None:
    waiting(world, 50)
    assert [looked_at(world) for _ in range(8)] == [NEW, NEW + AGAIN, 10 + AGAIN, AGAIN, AGAIN, AGAIN, 0, 0]


def test_two_relays_share_the_looks(world: World) -> None:
    waiting(world, 50)
    relays = [world.relay(), world.relay()]
    assert [looked_at(world, relays[number % 2]) for number in range(4)] == [NEW, NEW + AGAIN, 10 + AGAIN, AGAIN]


def test_what_becomes_due_behind_many_that_wait_is_resent_in_its_first_round(world: World) -> None:
    waiting(world, 45)
    relay = world.relay()
    for _ in range(8):
        relay.run_once()
    (lost,) = sent(world, Message("Lost", b"tea"))
    high_water(world, lost)
    assert relay.run_once().resent == 1


def test_a_message_that_is_lost_while_many_wait_is_found_in_the_next_turn(world: World) -> None:
    ids = waiting(world, 45)
    relay = world.relay()
    for _ in range(8):
        relay.run_once()
    world.update(ids[7], queue_offset=0)
    high_water(world, ids[7])
    world.update(ids[0], queue_offset=1)
    assert sum(relay.run_once().resent for _ in range(3)) == 0
    world.clock.advance(AGAIN_EVERY_MS)
    assert [relay.run_once().resent for _ in range(5)] == [1, 0, 0, 0, 0]


def test_a_message_that_waits_for_a_day_among_many_goes_to_people(world: World) -> None:
    ids = waiting(world, 45)
    relay = world.relay()
    for _ in range(8):
        relay.run_once()
    world.clock.advance(DAY_MS + 1)
    assert sum(relay.run_once().manual["stuck"] for _ in range(6)) == len(ids)


def test_what_becomes_due_behind_the_position_has_its_turn(world: World) -> None:
    """Its sender's clock is late, or somebody has changed its time by hand."""
    ids = waiting(world, 15)
    late, far = sent(world, Message("Late", b"1"), Message("Late", b"2"))
    relay = world.relay()
    relay.run_once()
    for each, resend_ms in ((late, world.clock() - 10 * DAY_MS), (far, -5)):
        world.update(each, resend_ms=resend_ms, sent_ms=world.clock() - 1, queue_offset=None)
    world.clock.advance(AGAIN_EVERY_MS)
    assert sum(relay.run_once().resent for _ in range(3)) == 2
    assert {world.stub(each).send_count for each in ids} == {1}


def test_positions_of_a_clock_that_had_jumped_do_not_count(world: World) -> None:
    world.clock.advance(365 * DAY_MS)
    ahead = sent(world, Message("Orders", b"y", queue_id=0))
    assert looked_at(world) == 1
    world.update(ahead[0], status="confirmed")
    world.clock.advance(-365 * DAY_MS)
    waiting(world, 5)
    assert looked_at(world) == 5


def test_a_dry_run_leaves_the_positions(world: World) -> None:
    waiting(world, 45)
    relay = world.relay()
    assert [sum(relay.run_once(dry_run=True).waiting.values()) for _ in range(2)] == [NEW, NEW]
    assert looked_at(world, relay) == NEW


def test_messages_that_became_due_at_one_time_are_each_looked_at_once(world: World) -> None:
    waiting(world, 45)
    seen: list[int] = []
    rules = SendingRules()
    for _ in range(4):
        found = read(world.engine, lambda connection: looks.find_looks(connection, world.tables, rules, world.clock()))
        seen += [row.seq for row in found.new]
        with world.engine.begin() as connection:
            looks.save_progress(connection, world.tables, found.after(len(found.new) + len(found.again)))
    assert seen == sorted(set(seen)) and len(seen) == 45


def test_first_sends_do_not_wait_for_looks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    waiting(world, 45)
    world.add(Message("Orders", b"new"))
    order: list[str] = []
    world.broker.before = lambda messages: order.append("send")
    inner = resending.due_page
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(resending, "due_page", lambda *given: (order.append("look"), inner(*given))[1])
        report = world.relay().run_once()
    assert (report.sent, order[0], order.count("look")) == (1, "send", 1)


def test_waits_begin_anew_once_a_minute_after_a_clock_was_set_back(world: World) -> None:
    relay = world.relay()
    world.clock.advance(365 * DAY_MS)
    (message_id,) = sent(world)
    relay.run_once()
    world.clock.advance(-365 * DAY_MS)
    high_water(world, message_id)
    assert relay.run_once().counted_again == 1
    world.clock.advance(QUARTER_MS)
    assert relay.run_once().resent == 1


# -- first sends -------------------------------------------------------------------------------------------------------


def unsent(world: World, count: int, keys: int) -> None:
    """Messages behind `keys` keys on the manual list."""
    ids = world.add(*(Message("Orders", b"%d" % number, sharding_key=f"K{number % keys}") for number in range(count)))
    for each in ids[:keys]:
        world.update(each, is_manual=True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_round_passes_over_messages_that_wait_for_people_key_by_key(world: World) -> None:
    """The steps of SQLite's machine: they follow the keys, and not the messages behind them."""
    steps = []
    for count in (60, 1_200):
        world.execute(world.tables.stub.delete())
        unsent(world, count, 3)
        world.add(Message("Orders", b"new"), Message("Orders", b"new", sharding_key="new"))
        found = [0]

        def count_one(found: list[int] = found) -> int:
            found[0] += 1
            return 0

        relay = world.relay(page_rows=10)
        with world.engine.connect() as connection:
            driver = connection.connection.dbapi_connection
            assert driver is not None
            driver.set_progress_handler(count_one, 100)  # type: ignore[attr-defined]
            rows, is_all = first_sends.find_first_sends(
                connection, world.tables, SendingRules(), world.clock(), 10
            )
            driver.set_progress_handler(None, 0)  # type: ignore[attr-defined]
        assert ([row.sharding_key for row in rows], is_all) == ([None, "new"], True)
        steps.append(found[0])
        assert relay.run_once().sent == 2
    assert steps[1] < 3 * steps[0]


def test_keys_go_on_in_order_when_people_have_decided(world: World) -> None:
    unsent(world, 40, 2)
    relay = world.relay(page_rows=5)
    assert relay.run_once().sent == 0
    first = world.stubs()[0]
    world.update(first.message_id, status="void")
    assert relay.run_once().sent == 19
    assert world.stubs()[2].sent_ms is not None
    second = world.stubs()[1]
    world.update(second.message_id, is_manual=False)
    assert relay.run_once().sent == 20
    numbers = [int(body) for body in world.bodies()]
    for key in range(2):
        of_key = [number for number in numbers if number % 2 == key]
        assert of_key == sorted(of_key)


def test_many_keys_that_wait_do_not_hide_many_that_go_on(world: World) -> None:
    unsent(world, 150, 50)
    world.add(*(Message("Orders", b"new", sharding_key=f"new{number % 120}") for number in range(360)))
    assert world.relay(page_rows=20).run_once().sent == 360


@pytest.mark.parametrize("topic", ["Others", "Zebras", "Apples"])
def test_a_topic_without_brokers_is_probed_with_one_message(world: World, topic: str) -> None:
    world.add(*(Message("Orders", b"x") for _ in range(60)))
    world.add(*(Message("Orders", b"x", sharding_key=f"K{number % 7}") for number in range(60)))
    world.add(*(Message(topic, b"y") for _ in range(30)))
    away = [True]

    def refuse(messages: Sequence[Message]) -> None:
        if messages[0].topic == "Orders" and away[0]:
            raise RemotingConnectError("refused")

    world.broker.before = refuse
    relay = world.relay(page_rows=10)
    first = relay.run_once()
    assert (first.sent, first.failed) == (30, 10)
    for _ in range(5):
        world.clock.advance(1_000)
        world.add(Message(topic, b"y"))
        report = relay.run_once()
        assert (report.sent, report.failed) == (1, 1)
    away[0] = False
    world.clock.advance(600_000)
    assert relay.run_once().sent == 120
