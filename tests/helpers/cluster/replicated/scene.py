"""Kills one after another of a SYNC_MASTER and its slave while clients send. After each, before anything is healed, the
slave's directory must have every message that was answered with 0.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.waiting import free_ports, until
from rmq_store import Store
from rmq_store.server.broker_server import BrokerServer

from . import plan
from .pairs import CONFIG, SEGMENT_BYTES, Pair
from .plan import Event
from .senders import QUEUES, Senders
from .witness import LogWitness

SETTLED: Final = 10
"""So many messages are answered with 0 before the next kill."""

_STANDS_S: Final = 1.6
"""Longer than slaveTimeout."""


class Scene:
    """One generation: a new pair, and clients that send to its master. A context manager."""

    def __init__(self, pair: Pair, generation: int = 0) -> None:
        self._pair = pair
        self._topic = pair.topic
        self._generation = generation
        self._chance = random.Random(generation)
        self._on_slave: Counter[bytes] = Counter()
        self.senders: Senders

    def __enter__(self) -> Self:
        self._pair.__enter__()
        self._log = LogWitness(self._pair.slave_store, SEGMENT_BYTES)
        self.senders = Senders(self._pair.master.address, self._topic)
        self.senders.__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        self.senders.__exit__(*given)
        self._pair.__exit__(*given)

    # -- kills --------------------------------------------------------------------------------------------------------

    def run(self, event: Event) -> None:
        """Let it happen. AssertionError: a message that was answered with 0 is not on the slave."""
        self.senders.await_acknowledged(SETTLED, f"no send is answered with 0 before {event.name}")
        time.sleep(self._chance.random() * 0.3)
        heal = self._events()[event.point]()
        self._check(event.name)
        heal()
        self._pair.heal()

    def _events(self) -> dict[str, Callable[[], Callable[[], None]]]:
        master, slave = self._pair.master, self._pair.slave
        return {
            plan.MASTER: lambda: self._kill(master),
            plan.SLAVE: lambda: self._kill(slave),
            plan.BOTH: lambda: self._kill(*self._chance.sample([master, slave], 2)),
            plan.MASTER_STOPPED: lambda: self._suspend(master),
            plan.SLAVE_STOPPED: lambda: self._suspend(slave),
            plan.CUT: self._cut,
        }

    def _kill(self, *brokers: Any) -> Callable[[], None]:
        for broker in brokers:
            broker.kill()
        time.sleep(0.2)  # answers that are on their way
        return lambda: None

    def _suspend(self, broker: Any) -> Callable[[], None]:
        broker.suspend()
        time.sleep(_STANDS_S)
        return lambda: broker.resume()

    def _cut(self) -> Callable[[], None]:
        proxy, cuts = self._pair.proxy, self._pair.proxy.cuts
        whole = proxy.pieces
        proxy.pieces = lambda: self._chance.choice((1, 7, 97, 1001, 8191, 32_769))
        proxy.cut(self._chance.randrange(1, 20_000), resets=self._chance.random() < 0.5)
        until(lambda: proxy.cuts > cuts, "the connection does not end")
        proxy.pieces = whole
        return lambda: None

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _check(self, when: str) -> None:
        acknowledged = set(self.senders.acknowledged)
        self._read_slave()
        lost = acknowledged - self._on_slave.keys()
        assert not lost, f"{when}: {len(lost)} of {len(acknowledged)} are not on the slave: {sorted(lost)[:5]}"

    def _read_slave(self) -> None:
        """Its log, as far as readers see it. A released broker has no such end."""
        limit = None
        if self._pair.slave_is_ours:
            with Store.open(self._pair.slave_store, read_only=True) as replica:
                limit = replica.log_range()[1]
        self._on_slave.update(_identity(requests.body_of(record)) for record in self._log.new_records(limit))

    def finish(self) -> dict[str, object]:
        """The master dies, and its directory is deleted: the slave's is promoted, and served. Returns figures."""
        self.senders.await_acknowledged(SETTLED, "no send is answered with 0 at the end")
        self._pair.delete_master()
        self.senders.__exit__(None, None, None)
        self._check("after the end of the master")
        if self._generation % 2:
            self._pair.slave.kill()
            self._check("after the end of the slave")
        pulled = self._pulled()
        self._all_there(pulled)
        return {
            "acknowledged": len(self.senders.acknowledged), "codes": dict(self.senders.codes),
            "sent_again": self.senders.repeated, "stored_again": pulled.total() - len(pulled), "stored": pulled.total(),
        }  # fmt: skip

    def _all_there(self, stored: Counter[bytes]) -> None:
        lost = self.senders.acknowledged - stored.keys()
        assert not lost, f"{len(lost)} of {len(self.senders.acknowledged)} are lost: {sorted(lost)[:5]}"

    def _pulled(self) -> Counter[bytes]:
        """What a client pulls from the slave as a master of its own. In every second generation it was killed; a
        released one is then read and served by ours.
        """
        if self._pair.slave_is_ours or self._generation % 2 == 0:
            return self._pull_all(self._pair.take_over().address)
        self._all_there(self._stored(self._pair.slave_store))
        (port,) = free_ports(1)
        with BrokerServer(self._pair.slave_store, port=port, config=CONFIG, admin=True, vip_channel=False) as server:
            return self._pull_all(server.address)

    def _stored(self, root: Path) -> Counter[bytes]:
        """What our reader finds in the queues."""
        found: Counter[bytes] = Counter()
        with Store.open(root, read_only=True) as store:
            for queue_id in range(QUEUES):
                low, high = store.queue_range(self._topic, queue_id)
                for batch in store.read(self._topic, queue_id, low, high, columns=["body"]):
                    found.update(map(_identity, batch.column("body").to_pylist()))
        return found

    def _pull_all(self, address: str) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        with Connection(address) as master:
            answer = requests.create_topic(master, self._topic, QUEUES)  # a slave of 5.x asks for topics once a minute
            assert answer.code == 0, answer
            for queue_id in range(QUEUES):
                at, end = 0, requests.max_offset(master, self._topic, queue_id)
                while at < end:
                    frames = requests.frames(requests.pull(master, self._topic, queue_id, at))
                    assert frames, f"nothing at {at} of queue {queue_id}, which ends at {end}"
                    found.update(_identity(requests.body_of(frame)) for frame in frames)
                    at += len(frames)
                answer = requests.send(master, self._topic, queue_id, b"the next one;")
                assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(end))
        return found


def _identity(body: bytes) -> bytes:
    return body[: body.index(b";")]
