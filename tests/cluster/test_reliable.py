"""The business kit at brokers of released versions: a relay dies between send and mark, no effect is made twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.reliable_cluster import Business, Killed, kill_between_send_and_mark, received
from rmq_store.client import Producer, RemoteBackend
from rmq_store.reliable import DeadLetters, Relay

# A relay of its own process, killed by the system as soon as the broker has the messages.
_RELAY = """
import os, signal, sys
from rmq_store.client import Producer
from rmq_store.reliable import Relay, Tables, open_engine
from rmq_store.reliable.relay import claim_sender

claim_sender.transact = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
with Producer("pg_orders", sys.argv[1]) as producer:
    Relay(producer, open_engine(sys.argv[2]), Tables()).run_once()
"""


def in_an_hour() -> int:
    return time.time_ns() // 1_000_000 + 3_600_000


def business_of(cluster: RocketmqCluster, new_name: Callable[[str], str], directory: Path) -> Business:
    topic = cluster.create_topic(new_name("Orders"), 2)
    return Business(f"rmq://{cluster.name_server}", topic, new_name("cg_stock"), directory)


def test_a_relay_that_dies_after_its_sends_makes_no_second_effect(
    cluster: RocketmqCluster, new_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    business = business_of(cluster, new_name, tmp_path)
    with Producer("pg_orders", business.place) as producer, RemoteBackend(business.place) as backend:
        business.promise(producer, b"now", send_now=True)
        business.promise(producer, b"a", b"b", b"c")
        with kill_between_send_and_mark(monkeypatch), pytest.raises(Killed):
            Relay(producer, business.engine, business.tables).run_once()
        assert Relay(producer, business.engine, business.tables, clock=in_an_hour).run_once().sent == 3
        effects = business.consume(lambda inbox: received(inbox) == 7)
        assert effects == {"now": 1, "a": 1, "b": 1, "c": 1}
        assert business.statuses() == {"confirmed"}
        assert DeadLetters(backend, business.engine, business.tables).collect(business.group).read == 0
    business.engine.dispose()


@pytest.mark.slow
def test_a_relay_process_that_is_killed_after_its_sends_makes_no_second_effect(
    cluster: RocketmqCluster, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    business = business_of(cluster, new_name, tmp_path)
    bodies = [b"%d" % number for number in range(300)]
    with Producer("pg_orders", business.place) as producer:
        business.promise(producer, *bodies)
        killed = subprocess.run([sys.executable, "-c", _RELAY, business.place, business.url], check=False, timeout=120)
        assert killed.returncode == -9
        assert Relay(producer, business.engine, business.tables, clock=in_an_hour).run_once().sent == 300
        effects = business.consume(lambda inbox: received(inbox) == 600)
        assert effects == {body.decode(): 1 for body in bodies}
    business.engine.dispose()
