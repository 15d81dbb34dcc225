"""Redis before the database: `inbox/redis_filter.py`, alone and in front of a group, with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from helpers import servers
from helpers.consuming import Consumer, Databases, message, write_effect
from rmq_store.client import MessageExt
from rmq_store.reliable import ConsumeCounts, Tables
from rmq_store.reliable.inbox import exactly_once
from rmq_store.reliable.inbox.redis_filter import PAUSES, Known, RedisFilter, open_client

DAY_MS = 24 * 3_600_000


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture
def server() -> Iterator[servers.Redis]:
    server = servers.redis()
    if reason := server.missing():
        assert not servers.REQUIRED, reason
        pytest.skip(reason)
    server.start()
    server.flush()
    yield server
    server.start()


@pytest.fixture
def client(server: servers.Redis) -> Iterator[redis.Redis]:
    made = open_client(server.url())
    yield made
    made.close()


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def filter_of(client: redis.Redis, **options: Any) -> RedisFilter:
    return RedisFilter(client, "cg", **{"prefix": "rmq:", "lease_ms": 60_000, "done_ttl_ms": 31 * DAY_MS, **options})


@pytest.fixture
def cg(databases: Databases, tables: Tables, server: servers.Redis) -> Iterator[Consumer]:
    """A group with a filter, on SQLite."""
    consumer = Consumer(databases.empty("sqlite"), tables, redis=server.url())
    with consumer.once:
        yield consumer


def boom(*_: object) -> None:
    raise RuntimeError("boom")


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("H04")
def test_the_first_worker_takes_the_key_for_a_lease(client: redis.Redis) -> None:
    filter_ = filter_of(client)
    assert filter_.claim(["M1", "M2"], "one") == {"M1": Known.OURS, "M2": Known.OURS}
    assert client.get("rmq:cg:M1") == b"p:one"
    assert 50_000 < client.pttl("rmq:cg:M1") <= 60_000
    assert filter_.claim(["M1", "M3"], "two") == {"M1": Known.PROCESSING, "M3": Known.OURS}


def test_what_is_done_is_known_for_longer_than_the_inbox_keeps_it(client: redis.Redis) -> None:
    filter_ = filter_of(client)
    filter_.claim(["M1"], "one")
    filter_.done(["M1"])
    assert filter_.claim(["M1"], "two") == {"M1": Known.DONE}
    assert client.pttl("rmq:cg:M1") > 30 * DAY_MS


@pytest.mark.statement("H08")
def test_a_key_is_given_back_only_by_the_worker_that_has_it(client: redis.Redis) -> None:
    filter_ = filter_of(client)
    filter_.claim(["M1", "M2"], "one")
    filter_.done(["M2"])
    filter_.release(["M1", "M2"], "two")
    assert (client.get("rmq:cg:M1"), client.get("rmq:cg:M2")) == (b"p:one", b"d")
    filter_.release(["M1", "M2"], "one")
    assert (client.get("rmq:cg:M1"), client.get("rmq:cg:M2")) == (None, b"d")


def test_a_lease_is_renewed_only_by_the_worker_that_has_it(client: redis.Redis) -> None:
    filter_ = filter_of(client)
    filter_.claim(["M1"], "one")
    client.pexpire("rmq:cg:M1", 1_000)
    filter_.renew(["M1"], "two")
    assert client.pttl("rmq:cg:M1") <= 1_000
    filter_.renew(["M1"], "one")
    assert client.pttl("rmq:cg:M1") > 50_000


@pytest.mark.parametrize(
    "lie",
    [
        lambda client: client.set("rmq:cg:M1", "p:dead"),
        lambda client: client.set("rmq:cg:M1", "p:dead", px=90 * DAY_MS),
        lambda client: client.set("rmq:cg:M1", "nonsense"),
        lambda client: client.lpush("rmq:cg:M1", "d"),
    ],
    ids=["a lease without an end", "a lease of months", "another value", "another type"],
)
def test_what_no_worker_can_have_written_is_not_known(client: redis.Redis, lie: Any) -> None:
    lie(client)
    filter_ = filter_of(client)
    assert filter_.claim(["M1", "M2"], "one") == {"M1": Known.UNKNOWN, "M2": Known.OURS}
    filter_.renew(["M1"], "one")
    filter_.release(["M1"], "one")


def test_a_client_that_decodes_works_too(server: servers.Redis) -> None:
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        filter_ = filter_of(client)
        filter_.claim(["M1", "M2"], "one")
        filter_.done(["M2"])
        assert filter_.claim(["M1", "M2"], "two") == {"M1": Known.PROCESSING, "M2": Known.DONE}


def test_groups_have_keys_of_their_own(client: redis.Redis) -> None:
    filter_of(client).claim(["M1"], "one")
    other = RedisFilter(client, "other", prefix="rmq:", lease_ms=1_000, done_ttl_ms=1_000)
    assert other.claim(["M1"], "two") == {"M1": Known.OURS}


def test_a_thousand_messages_take_three_round_trips_at_most(client: redis.Redis) -> None:
    ids = [f"M{number}" for number in range(1_000)]
    filter_ = filter_of(client)
    filter_.claim(ids[:500], "one")
    trips: list[int] = []
    real = client.pipeline
    client.pipeline = lambda *given, **named: (trips.append(1), real(*given, **named))[1]  # type: ignore[method-assign]
    assert sum(known is Known.OURS for known in filter_.claim(ids, "two").values()) == 500
    assert len(trips) == 3


# -- outages ----------------------------------------------------------------------------------------------------------


def test_after_an_error_redis_is_left_alone_for_a_while(
    server: servers.Redis, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    outages: list[int] = []
    clock = Monotonic()
    filter_ = filter_of(client, monotonic=clock, on_outage=lambda: outages.append(1))
    server.kill()
    for clock.now_s in (0.0, 0.5, 1.5, 2.0, 10.0):
        assert filter_.claim(["M1"], "one") == {"M1": Known.UNKNOWN}
    server.start()
    assert filter_.claim(["M1"], "one") == {"M1": Known.UNKNOWN}, "the pause is not over"
    clock.now_s += PAUSES.max_ms / 1000
    assert filter_.claim(["M1"], "one") == {"M1": Known.OURS}
    assert len(outages) == 1
    assert len([line for line in caplog.messages if "Redis fails" in line]) == 1
    assert servers.PASSWORD not in caplog.text


def test_pauses_grow_to_half_a_minute(client: redis.Redis, server: servers.Redis) -> None:
    clock = Monotonic()
    filter_ = filter_of(client, monotonic=clock)
    server.kill()
    asked: list[float] = []
    real = client.pipeline
    client.pipeline = lambda *given, **named: (asked.append(clock.now_s), real(*given, **named))[1]  # type: ignore[method-assign]
    for clock.now_s in range(100):
        filter_.claim(["M1"], "one")
    assert asked == [0, 1, 3, 7, 15, 31, 61, 91]


def test_a_read_only_replica_is_an_outage(client: redis.Redis, server: servers.Redis) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert filter_of(client).claim(["M1"], "one") == {"M1": Known.UNKNOWN}
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_client_of_a_reference_does_not_wait_long(server: servers.Redis) -> None:
    with open_client(server.url()) as client:
        options = client.connection_pool.connection_kwargs
        assert options["socket_timeout"] <= 0.2
        assert options["retry"].get_retries() == 0


# -- in front of a group ----------------------------------------------------------------------------------------------


@pytest.mark.statement("H04")
def test_redis_is_first_and_done_is_set_behind_the_commit(cg: Consumer, client: redis.Redis) -> None:
    seen: list[object] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        seen.append(client.get("rmq:cg:M1")[:2])

    assert cg.consume(message(), handler=handler) == 1
    assert seen == [b"p:"]
    assert client.get("rmq:cg:M1") == b"d"


@pytest.mark.statement("H05")
def test_a_duplicate_by_redis_asks_the_database_and_deletes_the_log(cg: Consumer) -> None:
    """Deviation: "done" is the group's inbox row, where the document asks for the stub."""
    cg.consume(message())
    cg.put_log()
    assert cg.consume(message(), handler=boom) == 1
    assert cg.log() == []
    assert cg.once.counts() == ConsumeCounts(done=1, duplicates_by_redis=1)


@pytest.mark.statement("H05")
def test_a_key_of_another_worker_is_no_success(cg: Consumer, client: redis.Redis) -> None:
    """Deviation: the document answers success at once. Here the log decides: the other worker may have died between its
    key and its log row, and Redis may lie.
    """
    client.set("rmq:cg:M1", "p:other", px=50_000)
    cg.put_log()
    assert cg.consume(message(), handler=boom) == 0
    assert client.get("rmq:cg:M1") == b"p:other"
    with cg.engine.begin() as connection:
        connection.execute(sa.delete(cg.tables.log))
    assert cg.consume(message()) == 1
    assert cg.effects() == ["1"]


@pytest.mark.statement("H04")
def test_a_key_that_was_lost_is_caught_by_the_database(cg: Consumer, server: servers.Redis) -> None:
    """Deviation: by the inbox, where the document has the stub's status."""
    cg.consume(message())
    server.flush()
    assert cg.consume(message(), handler=boom) == 1
    server.restart()
    cg.consume(message(), handler=boom)
    assert cg.effects() == ["1"]
    assert cg.once.counts().duplicates_by_inbox == 2


def test_done_in_redis_without_an_inbox_row_is_not_believed(cg: Consumer, client: redis.Redis) -> None:
    """As after a database was restored from a backup."""
    client.set("rmq:cg:M1", "d")
    assert cg.consume(message()) == 1
    assert cg.effects() == ["1"]


@pytest.mark.statement("H08")
def test_a_failure_gives_the_key_back(cg: Consumer, client: redis.Redis) -> None:
    assert cg.consume(message(), handler=boom) == 0
    assert client.get("rmq:cg:M1") is None
    assert cg.consume(message(reconsume_times=1)) == 1


def test_a_void_message_gives_the_key_back(cg: Consumer, client: redis.Redis) -> None:
    cg.put_stub(status="void")
    assert cg.consume(message()) == 1
    assert client.get("rmq:cg:M1") is None


def test_redis_that_goes_in_the_middle_of_the_work_does_not_fail_it(
    cg: Consumer, server: servers.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        server.kill()

    assert cg.consume(message(), handler=handler) == 1
    assert cg.consume(message(), message("M2", body=b"2")) == 2
    assert cg.effects() == ["1", "2"]
    assert len([line for line in caplog.messages if "Redis fails" in line]) == 1
    assert cg.once.counts() == ConsumeCounts(done=2, duplicates_by_inbox=1, redis_outages=1)


def test_a_worker_that_dies_behind_its_key_loses_nothing(
    cg: Consumer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise KilledError

    monkeypatch.setattr(exactly_once.ExactlyOnce, "_receive", die)
    monkeypatch.setattr(
        exactly_once.ExactlyOnce, "_tell_redis", lambda *_, **__: None
    )  # a process that is gone says nothing
    with pytest.raises(KilledError):
        cg.consume(message())
    monkeypatch.undo()
    assert client.get("rmq:cg:M1") is not None
    assert cg.consume(message()) == 1
    assert cg.effects() == ["1"]
