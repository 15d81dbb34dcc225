"""Leases that are renewed while handlers run: `rmq_store.reliable.inbox.lease_keeper`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis
import sqlalchemy as sa

from helpers import servers
from helpers.consuming import KINDS, Clock, Consumer, Databases, Worker, message
from rmq_store.client import MessageExt
from rmq_store.reliable import Tables
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.inbox import delivery_log
from rmq_store.reliable.inbox.lease_keeper import LeaseKeeper


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def cg(request: pytest.FixtureRequest, databases: Databases, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(databases.empty(request.param), tables, lease_ms=300)
    with consumer.once:
        yield consumer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def lease_end_ms(cg: Consumer) -> int:
    return int(cg.log()[0]["lease_until_ms"])


def test_a_lease_lives_for_as_long_as_the_handler_runs(cg: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second worker does not take the message over, although the handler takes longer than a lease."""
    second: list[int] = []
    # Only the test moves the clock: on a busy machine a lease of 300 ms may end before it is renewed.
    begin_ms = now_ms()
    monkeypatch.setattr(Clock, "__call__", lambda clock: begin_ms + clock.ahead_ms)

    def slow(one: MessageExt) -> None:
        for _ in range(2):
            cg.clock.ahead_ms += 200
            wait_until(lambda: lease_end_ms(cg) == cg.clock() + 300)
        second.append(cg.consume(message(), handler=lambda one: second.append(-1), outside=True))

    assert cg.consume(message(), handler=slow, outside=True) == 1
    assert second == [0], "later, and not called"
    assert cg.manual() == set()


def test_nothing_is_renewed_behind_the_work(cg: Consumer) -> None:
    def boom(one: MessageExt) -> None:
        raise RuntimeError("boom")

    assert cg.consume(message(), handler=boom, outside=True) == 0
    time.sleep(0.3)
    assert lease_end_ms(cg) == 0


def keeper_of(cg: Consumer, **options: object) -> LeaseKeeper:
    return LeaseKeeper(cg.engine, cg.tables, "cg", **{"lease_ms": 60_000, "clock": cg.clock, **options})  # type: ignore[arg-type]


def test_a_row_that_another_worker_has_taken_over_is_not_renewed(cg: Consumer) -> None:
    cg.put_log(lease_token="other", lease_until_ms=5)
    cg.put_log("M2", lease_token="ours", lease_until_ms=5)
    keeper = keeper_of(cg)
    with keeper.hold(["M1", "M2"], "ours"):
        keeper.renew()
    keeper.close()
    leases = {row["message_id"]: row["lease_until_ms"] for row in cg.log()}
    assert leases["M1"] == 5
    assert leases["M2"] > cg.clock()


@pytest.mark.parametrize("cg", ["sqlite"], indirect=True)
def test_in_sqlite_a_renewal_does_not_wait_for_the_transaction_of_an_effect(
    cg: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    cg.put_log(lease_token="ours", lease_until_ms=5)
    keeper = keeper_of(cg)
    with keeper.hold(["M1"], "ours"):
        with cg.engine.begin():
            begin_s = time.monotonic()
            keeper.renew()
            assert time.monotonic() - begin_s < 10, "the time-out of all others is 30 s"
        assert lease_end_ms(cg) == 5
        keeper.renew()
        assert lease_end_ms(cg) > cg.clock()
    keeper.close()
    with cg.engine.connect() as connection:
        assert connection.scalar(sa.text("PRAGMA busy_timeout")) == 30_000, "the connection is as it was"


def test_a_renewal_that_fails_is_tried_again(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("UPDATE", {"secret": "kept-out-of-logs"}, OSError("gone"))

    cg.put_log(lease_token="ours", lease_until_ms=5)
    keeper = keeper_of(cg)
    monkeypatch.setattr(delivery_log, "renew", away)
    with keeper.hold(["M1"], "ours"):
        keeper.renew()
        assert "a lease is not renewed yet (OperationalError)" in caplog.text
        assert "kept-out-of-logs" not in caplog.text
        monkeypatch.undo()
        keeper.renew()
    keeper.close()
    assert lease_end_ms(cg) > cg.clock()


def test_the_thread_begins_with_the_first_work_and_ends_with_its_owner(cg: Consumer) -> None:
    def keepers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("LeaseKeeper_")]

    assert keepers() == []
    consume = partial(cg.consume, handler=lambda one: None, outside=True)
    workers = [Worker(partial(consume, message(name))) for name in "ABCD"]
    assert [worker.outcome() for worker in workers] == [1] * 4
    assert keepers() == ["LeaseKeeper_cg"]
    cg.once.close()
    assert keepers() == []


@pytest.mark.parametrize("cg", ["sqlite"], indirect=True)
def test_keys_in_redis_live_as_long(cg: Consumer, databases: Databases, tables: Tables) -> None:
    server = servers.redis()
    if reason := server.missing():
        assert not servers.REQUIRED, reason
        pytest.skip(reason)
    server.start()
    server.flush()
    with redis.Redis.from_url(server.url()) as client:
        consumer = Consumer(cg.engine, tables, lease_ms=300, redis=client)

        def slow(one: MessageExt) -> None:
            client.pexpire("rmq:cg:M1", 100_000)
            wait_until(lambda: client.pttl("rmq:cg:M1") <= 300)

        with consumer.once:
            assert consumer.consume(message(), handler=slow, outside=True) == 1
