"""What happens to a cluster: each event is over when everything is there again."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import JavaProcess
from helpers.cluster.waiting import free_ports

FIRST, SECOND = "broker-a", "broker-b"
AWAY_S: Final = 30.0
NAME_SERVERS_AWAY_S: Final = 60.0
IN_TURN_S: Final = 20.0
LOST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `hits`: the brokers whose messages have to wait; others live. `restarts`: in the middle of it the
    queries are stopped and started again. `loses`: acknowledged messages may be gone afterwards, and a stream that has
    read them ends with a `DataLossError`.
    """

    name: str
    happen: Callable[[RocketmqCluster], None]
    hits: tuple[str, ...] = (FIRST,)
    restarts: bool = False
    loses: bool = False


def _away(end: Callable[[JavaProcess], None]) -> Callable[[RocketmqCluster], None]:
    def happen(cluster: RocketmqCluster) -> None:
        end(cluster.broker(FIRST))
        time.sleep(AWAY_S)
        cluster.heal()

    return happen


def _moves(cluster: RocketmqCluster) -> None:
    broker = cluster.broker(FIRST)
    broker.stop()
    broker.port = next(free_ports(1))
    broker.configure(listenPort=broker.port, haListenPort=broker.port + 1)
    time.sleep(AWAY_S)
    cluster.heal()


def _name_servers(count: int | None) -> Callable[[RocketmqCluster], None]:
    def happen(cluster: RocketmqCluster) -> None:
        for process in cluster.name_server_processes[:count]:
            process.kill()
        time.sleep(NAME_SERVERS_AWAY_S)
        cluster.heal()

    return happen


def _in_turn(cluster: RocketmqCluster) -> None:
    for name in (FIRST, SECOND):
        cluster.broker(name).stop()
        time.sleep(IN_TURN_S)
        cluster.heal()


def _at_once(cluster: RocketmqCluster) -> None:
    for name in (FIRST, SECOND):
        cluster.broker(name).kill()
    time.sleep(AWAY_S)
    cluster.heal()


def _loses_its_last_second(cluster: RocketmqCluster) -> None:
    """Brokers flush every half second by default: a host that loses its power keeps what was on its disk."""
    broker = cluster.broker(FIRST)
    store, kept = broker.directory / "store", broker.directory / "kept"
    broker.suspend()
    subprocess.run(["cp", "-a", "--sparse=always", store, kept], check=True)
    broker.resume()
    time.sleep(LOST_S)
    broker.kill()
    shutil.rmtree(store)
    kept.rename(store)
    time.sleep(AWAY_S)
    cluster.heal()


EVENTS: Final = (
    Event("a broker ends and comes back", _away(JavaProcess.stop)),
    Event("a broker is killed and comes back", _away(JavaProcess.kill)),
    Event("a broker stands still", _away(JavaProcess.suspend)),
    Event("a broker stands still while queries stop and start", _away(JavaProcess.suspend), restarts=True),
    Event("a broker moves to another port", _moves),
    Event("one name server is away", _name_servers(1), ()),
    Event("all name servers are away", _name_servers(None), ()),
    Event("two brokers end in turn", _in_turn, (FIRST, SECOND)),
    Event("two brokers are killed at once", _at_once, (FIRST, SECOND)),
    Event("a broker loses its last second", _loses_its_last_second, loses=True),
)
