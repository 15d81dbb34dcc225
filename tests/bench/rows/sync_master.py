"""A master and its slave, beside Java's own pair: sends that wait for the slave, and how long a message takes to it."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import random
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench.case import Case, Pair
from bench.messages import BODY_BYTES, TOPIC
from bench.rows.peers_server import Sides
from bench.rows.replica import SLAVE_HEAP
from bench.scratch import Scratch
from bench.served import started
from bench.stores import QUEUES
from rmq_store import SendStatus, Store, StoreConfig
from rmq_store.client import Message, Producer, ProducerConfig
from rmq_store.log.broker_role import BrokerRole

SENT: Final = {1: 2_000, 16: 10_000}
DELAYS: Final = 500
PAUSE_S: Final = 0.002, 0.01
_SEGMENT: Final = f"{0:020}"
_MAGIC_AT: Final = 4
_DEADLINE_S: Final = 60.0
_LOOK_S: Final = 0.00005
_numbers = itertools.count()


class _Pairs(NamedTuple):
    """Both masters, and the directories of their slaves."""

    sides: Sides
    java_slave: Path
    our_slave: Path


@contextlib.contextmanager
def pairs(scratch: Scratch, role: BrokerRole) -> Iterator[_Pairs]:
    """A master and a slave of each kind, each one in a process of its own; the slaves have all messages so far."""
    with contextlib.ExitStack() as ends:
        java = ends.enter_context(scratch.peer().cluster(scratch.directory / "broker", brokerRole=role.name))
        java.broker.ask("broker.fill", topic=TOPIC, queues=QUEUES, bodyBytes=BODY_BYTES[1], count=0)
        slave = ends.enter_context(scratch.peer().process(SLAVE_HEAP))
        java_slave = scratch.directory / "java-slave"
        slave.ask(
            "slave.start", directory=str(java_slave), settings={"brokerRole": "SLAVE"}, master=java.ha_address
        )
        ends.callback(slave.ask, "slave.stop")
        our_slave = scratch.directory / "slave" / "store"
        for directory in (scratch.directory / "master", our_slave):
            directory.mkdir(parents=True)
        root = scratch.directory / "master" / "store"
        with Store.open(root, create=True, config=StoreConfig()) as store:
            store.create_topic(TOPIC, queue_count=QUEUES)
        ours = ends.enter_context(started(
            scratch.directory / "master", str(root), "--listen", "127.0.0.1:0", "--role", role.name,
            "--ha-listen", "127.0.0.1:0",
        ))  # fmt: skip
        ends.enter_context(started(
            scratch.directory / "slave", str(our_slave), "--listen", "127.0.0.1:0", "--role", "SLAVE",
            "--master", ours.address,
        ))  # fmt: skip
        for address, directory in ((java.name_server, java_slave), (ours.address, our_slave)):
            with Watched(address, directory) as watched:
                watched.wait_for_slave()
        yield _Pairs(Sides(java, ours.address), java_slave, our_slave)


class Watched:
    """A producer at a master, and the log file of its slave."""

    def __init__(self, name_server: str, slave: Path) -> None:
        # A SYNC_MASTER answers after up to slaveTimeout, which is a producer's own time, too.
        config = ProducerConfig(send_msg_timeout=10_000)
        self._producer = Producer(f"delays_{next(_numbers)}", f"rmq://{name_server}", config)
        self._file = slave / "commitlog" / _SEGMENT
        self._map: mmap.mmap | None = None

    def wait_for_slave(self) -> None:
        """Until a message is at the slave, and the master knows that."""
        until = time.monotonic() + _DEADLINE_S
        while self._producer.send(self._message()).status is not SendStatus.SEND_OK:
            assert time.monotonic() < until, "the slave does not connect"
            time.sleep(0.1)
        self.delay_ms()

    def delay_ms(self) -> float:
        """From before a send until the slave's log file has its record."""
        begin = time.perf_counter()
        at = self._producer.send(self._message()).commit_log_offset + _MAGIC_AT
        until = time.monotonic() + _DEADLINE_S
        while not self._has(at):
            assert time.monotonic() < until, f"the slave does not get the record at {at - _MAGIC_AT}"
            time.sleep(_LOOK_S)
        return 1000 * (time.perf_counter() - begin)

    def delays_ms(self, count: int) -> tuple[float, ...]:
        """p50 and p99."""
        found = []
        for _ in range(count):
            time.sleep(random.uniform(*PAUSE_S))
            found.append(self.delay_ms())
        quantiles = statistics.quantiles(found, n=100)
        return quantiles[49], quantiles[98]

    def _has(self, at: int) -> bool:
        if self._map is None:
            if not self._file.exists():
                return False
            with self._file.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return self._map[at : at + 4] != bytes(4)

    def _message(self) -> Message:
        return Message(TOPIC, bytes(BODY_BYTES[1]), keys="ORD-1")

    def __enter__(self) -> Watched:
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.shutdown()
        if self._map is not None:
            self._map.close()


@contextlib.contextmanager
def sending(scratch: Scratch, threads: int) -> Iterator[Pair]:
    """Messages per second, each with SEND_OK."""
    with pairs(scratch, BrokerRole.SYNC_MASTER) as both:
        count = scratch.rows(SENT[threads])
        yield both.sides.pair(
            "client.sendSingles", count=count, threads=threads, bodyBytes=BODY_BYTES[1], status="SEND_OK"
        )


@contextlib.contextmanager
def delays(scratch: Scratch) -> Iterator[Pair]:
    """p50 and p99 in ms."""
    count = DELAYS // 10 if scratch.quick else DELAYS
    with (
        pairs(scratch, BrokerRole.ASYNC_MASTER) as both,
        Watched(both.sides.ours, both.our_slave) as ours,
        Watched(both.sides.java.name_server, both.java_slave) as java,
    ):
        ours.delays_ms(count)
        java.delays_ms(count)
        yield Pair(partial(ours.delays_ms, count), partial(java.delays_ms, count))


_SETTINGS: Final = (
    "RocketMQ 5.5.0 on loopback: name server, broker (2 GiB), slave (a DefaultMessageStore, 2 GiB) and client in JVMs "
    "of their own (G1), ASYNC_FLUSH. Ours: `rmq broker run` with defaults, master and slave.",
    "A slave of ours reports what is on its disk (fdatasync); Java's reports what it has in memory.",
)

_LIMIT: Final = (
    "A slave of ours syncs the log, and then the state page that vouches for it, before it reports (ADR 0039): two "
    "flushes of the disk for each transfer, of which Java's slave makes none."
)


def _cases() -> Iterator[Case]:
    for threads, count in SENT.items():
        yield Case(
            f"server-sync-master-{threads}",
            f"single sends to a SYNC_MASTER with a slave, {threads} thread{'s' * (threads > 1)}", "server",
            BODY_BYTES[1], "RocketMQ's broker and its slave", "msgs/s", None,
            ("One client of RocketMQ in Java asks both, in turn.", f"{count:,} messages.", *_SETTINGS),
            partial(sending, threads=threads), _LIMIT, peers=True,
        )  # fmt: skip
    yield Case(
        "server-slave-delay", "from before a send to an ASYNC_MASTER until its slave's log file has the message",
        "server", BODY_BYTES[1], "RocketMQ's broker and its slave", "ms", None,
        (f"{DELAYS} sends of our producer, 2 to 10 ms apart, one by one; the file is looked at every 0.05 ms.",
         *_SETTINGS),
        delays, peers=True, figures=("p50", "p99"),
    )  # fmt: skip


CASES = tuple(_cases())
