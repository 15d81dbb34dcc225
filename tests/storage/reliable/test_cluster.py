"""The business kit over a cluster: outbox and relay send over the network, a push consumer with an inbox consumes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.queues import SentMessage
from helpers.patient import PATIENT, PATIENT_WITHOUT_RETRIES
from helpers.reliable_cluster import Business, Killed, kill_between_send_and_mark, received
from rmq_store.cli import commands
from rmq_store.client import Producer, RemoteBackend
from rmq_store.reliable import DeadLetters, Relay

DEAD_LETTERS = "%DLQ%cg_stock"


def in_an_hour() -> int:
    return time.time_ns() // 1_000_000 + 3_600_000


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        made.create_topic("Orders", queue_count=2)
        yield made


@pytest.fixture
def business(cluster: SimulatedCluster, tmp_path: Path) -> Iterator[Business]:
    made = Business(f"rmq://{cluster.name_server}", "Orders", "cg_stock", tmp_path)
    yield made
    made.engine.dispose()




@pytest.fixture
def producer(business: Business) -> Iterator[Producer]:
    with Producer("pg_orders", business.place, PATIENT_WITHOUT_RETRIES) as made:
        yield made


@pytest.fixture
def backend(business: Business) -> Iterator[RemoteBackend]:
    with RemoteBackend(business.place) as made:
        yield made


def sent(cluster: SimulatedCluster) -> list[bytes]:
    queues = [queue for broker in cluster.brokers.values() for queue in broker.queues.topics["Orders"].values()]
    return [record for queue in queues for record in queue.sent]


def test_what_an_outbox_promised_is_sent_over_the_network_and_makes_its_effect_once(
    cluster: SimulatedCluster, business: Business, producer: Producer
) -> None:
    at_once = business.promise(producer, b"now", send_now=True)
    later = business.promise(producer, *(b"%d" % number for number in range(20)))
    assert Relay(producer, business.engine, business.tables).run_once().sent == 20
    assert all(any(each.encode() in record for record in sent(cluster)) for each in at_once + later)
    effects = business.consume(lambda inbox: inbox.counts().done == 21)
    assert len(effects) == 21 and set(effects.values()) == {1}
    assert business.statuses() == {"confirmed"}


def test_a_relay_that_is_killed_between_send_and_mark_costs_one_copy_and_no_second_effect(
    cluster: SimulatedCluster, business: Business, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = business.promise(producer, b"a", b"b", b"c")
    with kill_between_send_and_mark(monkeypatch), pytest.raises(Killed):
        Relay(producer, business.engine, business.tables).run_once()
    assert len(sent(cluster)) == 3
    later = Relay(producer, business.engine, business.tables, clock=in_an_hour)
    assert later.run_once().sent == 3 and later.run_once().sent == 0
    copies = {each: sum(b"UNIQ_KEY\x01" + each.encode() in record for record in sent(cluster)) for each in ids}
    assert set(copies.values()) == {2}, "one more copy, and with the same id"
    assert business.consume(lambda inbox: received(inbox) == 6) == {"a": 1, "b": 1, "c": 1}


def test_a_message_that_a_broker_has_lost_is_seen_by_the_end_of_its_queue(
    cluster: SimulatedCluster, business: Business, producer: Producer, backend: RemoteBackend
) -> None:
    (message_id,) = business.promise(producer, b"lost")
    assert Relay(producer, business.engine, business.tables).run_once().sent == 1
    later = Relay(producer, business.engine, business.tables, backend=backend, clock=in_an_hour)
    report = later.run_once()
    assert report.resent == 0 and sum(report.waiting.values()) == 1, "it waits in its queue"
    for broker in cluster.brokers.values():
        for queue in broker.queues.topics["Orders"].values():
            queue.sent.clear()
    assert later.run_once().resent == 1
    (record,) = sent(cluster)
    assert message_id.encode() in record


def test_dead_letters_of_every_broker_come_to_the_manual_list(
    cluster: SimulatedCluster, business: Business, producer: Producer, backend: RemoteBackend
) -> None:
    ids = business.promise(producer, b"one", b"two")
    cluster.create_topic(DEAD_LETTERS, queue_count=1)
    for message_id, broker in zip(ids, cluster.brokers.values(), strict=True):
        properties = b"UNIQ_KEY\x01%s\x02OUTBOX_ID\x01%s\x02" % ((message_id.encode(),) * 2)
        broker.queues.topics[DEAD_LETTERS][0].append(SentMessage(b"x", properties))
    letters = DeadLetters(backend, business.engine, business.tables)
    assert letters.collect("cg_stock").listed == 2
    assert letters.collect("cg_stock").read == 0
    with business.engine.connect() as connection:
        assert set(connection.scalars(sa.select(business.tables.manual.c.message_id))) == set(ids)


def test_the_command_of_the_relay_takes_a_cluster(cluster: SimulatedCluster, business: Business) -> None:
    business.promise(Producer("pg_orders", business.place, PATIENT), b"a", b"b")
    arguments = ["-n", cluster.name_server, "resend", "run", "--database", business.url, "--once", "--json"]
    result = CliRunner().invoke(commands, arguments, env={"RMQ_STORE": None}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["sent"] == 2
    assert len(sent(cluster)) == 2


def test_while_a_broker_is_away_its_messages_go_to_another_one(
    cluster: SimulatedCluster, business: Business, producer: Producer
) -> None:
    first, second = cluster.brokers.values()
    first.stop()
    business.promise(producer, *(b"%d" % number for number in range(8)))
    relay = Relay(producer, business.engine, business.tables)
    relay.run_once()
    later = Relay(producer, business.engine, business.tables, clock=in_an_hour)
    deadline = time.monotonic() + 30
    while business.statuses() != {"unconfirmed"} or len(sent(cluster)) < 8:
        later.run_once()
        assert time.monotonic() < deadline, len(sent(cluster))
    assert len(sent(cluster)) == sum(len(queue.sent) for queue in second.queues.topics["Orders"].values()) == 8
