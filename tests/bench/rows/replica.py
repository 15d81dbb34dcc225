"""A replica of a live broker (`rmq follow`): beside a Java slave of the same broker, and beside lanes of pulls."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bench import followers, processor
from bench.case import Case, Pair, Target
from bench.crew import Crew
from bench.messages import BODY_BYTES, TOPIC
from bench.null_source import PARTITIONS
from bench.peer import Cluster, Process
from bench.rows.peers_cluster import FIVE, read_lanes
from bench.rows.queue_read import read_rows
from bench.scratch import Scratch
from rmq_store import Store
from rmq_store import cluster as engine
from rmq_store.client import Message, Producer
from rmq_store.replica.master import Master

COUNTS: Final = {100: 1_600_000, 1024: 500_000}
DELAYS: Final = 200
PAUSE_S: Final = 0.01, 0.03
SLAVE_HEAP: Final = ("-Xms1g", "-Xmx2g")
_SLAVE: Final = {"brokerRole": "SLAVE"}
_numbers = itertools.count()


@contextlib.contextmanager
def _broker(scratch: Scratch, body_bytes: int, count: int, queues: int, *, keys: bool) -> Iterator[Cluster]:
    settings = {} if keys else {"messageIndexEnable": "false"}
    with scratch.peer().cluster(scratch.directory / "broker", **settings) as peer:
        peer.broker.ask("broker.fill", topic=TOPIC, queues=queues, bodyBytes=body_bytes, count=count)
        yield peer


def log_end(peer: Cluster) -> int:
    """The end of the broker's log now."""
    with Master(engine.ClusterSettings.of_text(peer.name_server), broker=peer.broker_name) as master:
        return master.log_end()


@contextlib.contextmanager
def _new(scratch: Scratch, kind: str) -> Iterator[Path]:
    root = scratch.directory / f"{kind}-{next(_numbers)}"
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def followed_s(peer: Cluster, root: Path, end: int, then: Callable[[], None] = lambda: None) -> float:
    """Seconds from the start of a follower of an empty replica to when it has all below `end`, and `then` is done."""
    begin = time.perf_counter()
    with followers.following(root, peer) as following:
        following.has(end)
        then()
        return time.perf_counter() - begin


@contextlib.contextmanager
def _slave(peer: Cluster, slave: Process, root: Path) -> Iterator[None]:
    """A slave of Java in an empty directory."""
    slave.ask("slave.start", directory=str(root), settings=_SLAVE, master=peer.ha_address)
    try:
        yield
    finally:
        slave.ask("slave.stop")


def copied_s(scratch: Scratch, peer: Cluster, slave: Process, end: int) -> tuple[float, float]:
    """Seconds that an empty slave of Java takes for its log, and for its queues and its index, too."""
    with _new(scratch, "slave") as root, _slave(peer, slave, root):
        took = slave.ask("slave.copied", end=end)
        return float(took["logSeconds"]), float(took["seconds"])


@contextlib.contextmanager
def catching_up(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """MB of the log per second, an empty replica and an empty slave."""
    count = scratch.rows(COUNTS[body_bytes])
    with (
        _broker(scratch, body_bytes, count, PARTITIONS, keys=True) as peer,
        scratch.peer().process(SLAVE_HEAP) as slave,
    ):
        end = log_end(peer)
        scratch.touch_memory(2 * end)

        def ours() -> tuple[float, ...]:
            with _new(scratch, "replica") as root:
                return (end / 1e6 / followed_s(peer, root, end),) * 2

        def yardstick() -> tuple[float, ...]:
            return tuple(end / 1e6 / seconds for seconds in copied_s(scratch, peer, slave, end))

        yield Pair(ours, yardstick)


@contextlib.contextmanager
def into_arrow(scratch: Scratch, body_bytes: int, *, keys: bool, of_master: str = "") -> Iterator[Pair]:
    """Messages per second, follower and reader together; beside lanes. With `of_master`, what a message costs the
    broker, in us of processor time; beside "lanes", or the "slave" of Java.
    """
    count = scratch.rows(COUNTS[body_bytes])
    with contextlib.ExitStack() as ends:
        peer = ends.enter_context(_broker(scratch, body_bytes, count, PARTITIONS, keys=keys))
        cluster = ends.enter_context(engine.Cluster(engine.ClusterSettings.of_text(peer.name_server)))
        slave = ends.enter_context(scratch.peer().process(SLAVE_HEAP)) if of_master == "slave" else None
        end = log_end(peer)
        scratch.touch_memory(2 * end)

        def read(root: Path) -> None:
            with Store.open(root, read_only=True) as store:
                assert read_rows(store, FIVE) == count

        def by_replica() -> float:
            with _new(scratch, "replica") as root:
                return count / followed_s(peer, root, end, partial(read, root))

        def by_lanes() -> float:
            begin = time.perf_counter()
            assert read_lanes(cluster, FIVE) == count
            return count / (time.perf_counter() - begin)

        def by_slave() -> float:
            assert slave is not None
            return count / copied_s(scratch, peer, slave, end)[1]

        def cost(way: Callable[[], float]) -> float:
            before_s = processor.used_s([peer.broker.pid])
            way()
            return (processor.used_s([peer.broker.pid]) - before_s) / count * 1e6

        yardstick = by_slave if slave is not None else by_lanes
        yield Pair(partial(cost, by_replica), partial(cost, yardstick)) if of_master else Pair(by_replica, yardstick)


@contextlib.contextmanager
def delayed(scratch: Scratch) -> Iterator[Pair]:
    """ms from the answer of a send until a stream reader sees the message: p50 and p99."""
    count = 20 if scratch.quick else DELAYS
    with (
        _broker(scratch, BODY_BYTES[1], 0, 1, keys=True) as peer,
        Producer("delays", f"rmq://{peer.name_server}") as producer,
    ):
        sent = 0

        def send() -> list[int]:
            """Send with pauses at random; `monotonic_ns` at each answer."""
            nonlocal sent
            answered_ns = []
            for _ in range(count):
                time.sleep(random.uniform(*PAUSE_S))
                producer.send(Message(TOPIC, bytes(BODY_BYTES[1]), keys="ORD-1"))
                answered_ns.append(time.monotonic_ns())
            sent += count
            return answered_ns

        def delays(where: dict[str, str]) -> tuple[float, ...]:
            with Crew(1, followers.watcher, where, TOPIC) as watcher:
                return _delays_ms(send, partial(_seen_by, watcher, sent + count))

        def ours() -> tuple[float, ...]:
            with _new(scratch, "replica") as root:
                broker = str(root), peer.name_server, peer.broker_name, peer.ha_address
                with Crew(1, followers.feeder, *broker) as feeder:
                    feeder.run(log_end(peer))
                    return delays({"path": str(root)})

        send()
        yield Pair(ours, lambda: delays({"nameServer": peer.name_server}))


def _seen_by(watcher: Crew, end: int) -> list[int]:
    (turn,) = watcher.run(end)
    seen: list[int] = turn.answer
    return seen


def _delays_ms(send: Callable[[], list[int]], watch: Callable[[], list[int]]) -> tuple[float, ...]:
    seen_ns: list[int] = []
    thread = threading.Thread(target=lambda: seen_ns.extend(watch()))
    thread.start()
    answered_ns = send()
    thread.join()
    return tuple(np.quantile((np.array(seen_ns) - np.array(answered_ns)) / 1e6, (0.5, 0.99)).tolist())


_BROKER = (
    "RocketMQ 5.5.0 on loopback, name server and broker (2 GiB) in JVMs of their own (G1), ASYNC_FLUSH, ASYNC_MASTER."
)
_SIZES = " and ".join(f"{rows:,} messages of {size:,} B" for size, rows in COUNTS.items())
_LOG = f"{_SIZES} in {PARTITIONS} queues, in the broker's page cache; each with one key and a UNIQ_KEY."
_OURS = "Ours a follower in one process, from its start with an empty directory: it asks for settings and tables first."
_JAVA_SLAVE = (
    "Java's is a DefaultMessageStore with brokerRole=SLAVE (2 GiB) in a JVM that has run others, from its first byte "
    "on. It sends its first report after 5 s, which are left out."
)
_ENDS = "log: until the slave's log has the last byte; queues: until its queues and index have it, as ours have then."
_LIMIT = (
    "A message of 100 B takes 1.1 us of our processor time, a third for topics, tags and keys, a fifth for the index; "
    "1 KiB takes 2.5 us. All of it is one thread; a Java slave has two. Broker, feed and reader together need more of "
    "two processors than rounds of pulls (ADR 0027)."
)
_ARROW = "Then five columns of all messages as record batches, queue after queue, as the lanes read them."


def _cases() -> Iterator[Case]:
    for size in BODY_BYTES:
        yield Case(
            f"replica-catch-up-{size}", "an empty replica catches up", "replica", size, "a Java slave", "MB/s",
            Target(1), (_OURS, _LOG, _JAVA_SLAVE, _ENDS, _BROKER), partial(catching_up, body_bytes=size), _LIMIT,
            peers=True, figures=("log", "queues"),
        )  # fmt: skip
    for size, keys in itertools.product(BODY_BYTES, (True, False)):
        yield Case(
            f"replica-arrow-{size}" if keys else f"replica-arrow-without-keys-{size}",
            "from a broker to Arrow through a new replica" + ("" if keys else ", messageIndexEnable=false"), "replica",
            size, "lanes of pulls", "msgs/s", Target(2), (_OURS, _ARROW, _LOG, _BROKER),
            partial(into_arrow, body_bytes=size, keys=keys), _LIMIT, peers=True,
        )  # fmt: skip
    for size, (other, text) in itertools.product(BODY_BYTES, (("lanes", "lanes of pulls"), ("slave", "a Java slave"))):
        yield Case(
            f"replica-master-{other}-{size}", "processor time of the broker for each message, by a replica", "replica",
            size, text, "us", None, (_LOG, _JAVA_SLAVE, _BROKER),
            partial(into_arrow, body_bytes=size, keys=True, of_master=other), peers=True,
        )  # fmt: skip
    yield Case(
        "replica-delay", "from the answer of a send until Spark's reader sees the message in a replica", "replica",
        BODY_BYTES[1], "the same reader over the network", "ms", None,
        (f"{DELAYS} sends, 10 to 30 ms apart. A stream reader in a process of its own is asked for `latestOffset` "
         "every ms; the replica has its feeder in another one.", _BROKER),
        delayed, "An ASYNC_MASTER looks every 100 ms whether it has something for a slave that has all.", peers=True,
        figures=("p50", "p99"),
    )  # fmt: skip


CASES = tuple(_cases())
