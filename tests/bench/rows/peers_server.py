"""A served store beside RocketMQ's broker: one client of RocketMQ, or one pair of bare sockets, asks both."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC
from bench.peer import Cluster
from bench.scratch import Scratch
from bench.served import served, started
from bench.stores import QUEUES, make
from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Store, StoreConfig
from rmq_store import cluster as engine
from rmq_store.protocol.wire.request_codes import RequestCode

SENT: Final = {100: 200_000, 1024: 100_000}
READ: Final = {100: 400_000, 1024: 200_000}
SINGLES: Final = {1: 10_000, 16: 40_000}
SYNC_SINGLES: Final = {1: 2_000, 16: 10_000}
SEND_BATCH: Final = 100
PULL_BATCH: Final = 32
# Of each pair; five pairs are 5,000.
HELD: Final = 1_000
HOLD_MS: Final = 15_000
# The pull is with the broker by then, and held.
SETTLE_S: Final = 0.002

_JAVA: Final = (
    "RocketMQ 5.5.0 on loopback, name server, broker (2 GiB) and client in JVMs of their own (G1), defaults. Ours: "
    "`rmq broker run --listen` with defaults."
)
_CLIENT: Final = "One client of RocketMQ in Java asks both, in turn."

_COLD: Final = "Beside JVMs that share its two processors it takes about twice as long."
_PULL_LIMIT: Final = (
    "A pull of 32 messages of 100 B takes 95 us of processor time: 8 to read the request, 80 to find and copy the "
    f"frames, 6 to write the answer. {_COLD}"
)
_BATCH_LIMIT: Final = (
    "A batch of 100 messages of 100 B takes 250 us of processor time: 10 to read it, 220 to store it, 20 to write the "
    f"answer. {_COLD}"
)
_SINGLE_LIMIT: Final = (
    "A usual send is one call from its bytes to its answer (ADR 0038): 50 us of processor time with one in flight, "
    "10 us with 16, most of it asyncio and the kernel. Under SYNC_FLUSH each request is decoded in Python: it waits "
    "for the disk."
)
_numbers = itertools.count()


class Sides(NamedTuple):
    """Addresses of name servers; ours is the broker, too. `java` has the client."""

    java: Cluster
    ours: str

    def ask(self, name_server: str, command: str, **fields: object) -> float:
        """Let Java's client do something with one of them; returns messages per second."""
        group = f"java_{next(_numbers)}"
        done = self.java.client.ask(command, namesrv=name_server, group=group, topic=TOPIC, **fields)
        return float(done["rate"])

    def pair(self, command: str, **fields: object) -> Pair:
        """Both once before: the client is slow until it is compiled."""
        ours, yardstick = (partial(self.ask, at, command, **fields) for at in (self.ours, self.java.name_server))
        yardstick()
        ours()
        return Pair(ours, yardstick)


@contextlib.contextmanager
def both(scratch: Scratch, body_bytes: int, filled_with: int = 0, flush: str = "ASYNC_FLUSH") -> Iterator[Sides]:
    """A broker of each kind, with as many messages."""
    with scratch.peer().cluster(scratch.directory / "broker", flushDiskType=flush) as java:
        java.broker.ask("broker.fill", topic=TOPIC, queues=QUEUES, bodyBytes=body_bytes, count=filled_with)
        directory = scratch.directory / "ours"
        directory.mkdir()
        config = StoreConfig(flush_disk_type=flush)
        if filled_with:
            root = make(directory / "filled", filled_with, body_bytes, scratch, config=config)
            server = started(directory, str(root), "--listen", "127.0.0.1:0")
        else:
            server = served(directory, config)
        with server as ours:
            if not filled_with:
                with Store.open(directory / "store") as store:
                    store.create_topic(TOPIC, queue_count=QUEUES)
            yield Sides(java, ours.address)


@contextlib.contextmanager
def pulling(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    count = scratch.rows(READ[body_bytes])
    with both(scratch, body_bytes, count) as sides:
        yield sides.pair("client.litePull", count=count, pullBatch=PULL_BATCH)


@contextlib.contextmanager
def sending_batches(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    with both(scratch, body_bytes) as sides:
        count = scratch.rows(SENT[body_bytes])
        yield sides.pair("client.sendBatches", count=count, batch=SEND_BATCH, bodyBytes=body_bytes)


@contextlib.contextmanager
def sending_singles(scratch: Scratch, threads: int, flush: str) -> Iterator[Pair]:
    """Messages per second."""
    counts = SINGLES if flush == "ASYNC_FLUSH" else SYNC_SINGLES
    with both(scratch, BODY_BYTES[0], flush=flush) as sides:
        count = scratch.rows(counts[threads])
        yield sides.pair("client.sendSingles", count=count, threads=threads, bodyBytes=BODY_BYTES[0])


class Waiting:
    """A consumer that holds a pull at a broker, and a producer beside it; both are sockets of this thread."""

    def __init__(self, address: str, body_bytes: int) -> None:
        self._consumer, self._producer = Connection(address), Connection(address)
        self._body = bytes(body_bytes)

    def delays_ms(self, count: int) -> list[float]:
        """From before each send until the answer to the held pull is there."""
        return [self._delay_ms() for _ in range(count)]

    def _delay_ms(self) -> float:
        offset = requests.max_offset(self._consumer, TOPIC)
        pull = self._consumer.send(RequestCode.PULL_MESSAGE, requests.pull_fields(
            TOPIC, offset=offset, sys_flag=requests.SUBSCRIPTION_FLAG | requests.SUSPEND_FLAG, suspend_ms=HOLD_MS
        ))  # fmt: skip
        time.sleep(SETTLE_S)
        begin = time.perf_counter()
        sent = self._producer.send(RequestCode.SEND_MESSAGE_V2, requests.send_fields(TOPIC), self._body)
        pulled = self._consumer.answer(pull)
        delay_ms = 1000 * (time.perf_counter() - begin)
        assert self._producer.answer(sent).code == 0
        assert pulled.code == 0 and len(requests.frames(pulled)) == 1, pulled
        return delay_ms

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


@contextlib.contextmanager
def waiting(scratch: Scratch) -> Iterator[Pair]:
    """p50 and p99 in ms."""
    count = HELD // 10 if scratch.quick else HELD
    with both(scratch, BODY_BYTES[0]) as sides, contextlib.ExitStack() as ends:
        settings = engine.ClusterSettings.of_text(sides.java.name_server)
        with engine.Cluster(settings) as cluster:
            java = Waiting(cluster.address(sides.java.broker_name), BODY_BYTES[0])
        ours = Waiting(sides.ours, BODY_BYTES[0])
        ends.callback(java.close)
        ends.callback(ours.close)

        def quantiles(side: Waiting) -> tuple[float, ...]:
            found = statistics.quantiles(side.delays_ms(count), n=100)
            return found[49], found[98]

        quantiles(java)
        quantiles(ours)
        yield Pair(partial(quantiles, ours), partial(quantiles, java))


def _case(
    name: str, title: str, body_bytes: int, yardstick: str, target: Target | None, settings: tuple[str, ...],
    prepare: Callable[[Scratch], Any], unit: str = "msgs/s", limit: str = "",
) -> Case:  # fmt: skip
    return Case(
        name, title, "server", body_bytes, yardstick, unit, target, (*settings, _JAVA), prepare, limit, peers=True
    )


def _cases() -> Iterator[Case]:
    for size in BODY_BYTES:
        yield _case(
            f"server-pulls-{size}", "pulls of a served store", size, "RocketMQ's broker", Target(0.5),
            (_CLIENT, f"LitePull consumer, batches of {PULL_BATCH}, {READ[size]:,} messages in {QUEUES} queues."),
            partial(pulling, body_bytes=size), limit=_PULL_LIMIT,
        )  # fmt: skip
        yield _case(
            f"server-batches-{size}", "batch sends to a served store", size, "RocketMQ's broker", Target(0.5),
            (_CLIENT, f"One thread, batches of {SEND_BATCH}, {SENT[size]:,} messages."),
            partial(sending_batches, body_bytes=size), limit=_BATCH_LIMIT,
        )  # fmt: skip
    for flush, counts in (("ASYNC_FLUSH", SINGLES), ("SYNC_FLUSH", SYNC_SINGLES)):
        for threads, limit in ((1, 0.5), (16, 0.25)):
            is_sync = flush == "SYNC_FLUSH"
            yield _case(
                f"server-{'sync-' if is_sync else ''}singles-{threads}",
                f"single sends to a served store, {threads} thread{'s' * (threads > 1)}{f', {flush}' * is_sync}",
                BODY_BYTES[0], "RocketMQ's broker", None if is_sync else Target(limit),
                (_CLIENT, f"{counts[threads]:,} messages."),
                partial(sending_singles, threads=threads, flush=flush), limit=_SINGLE_LIMIT,
            )  # fmt: skip
    for figure, limit in (("p50", 1.5), ("p99", 2.0)):
        yield _case(
            f"server-long-poll-{figure}", f"a held pull, from the send of its message to its answer, {figure}",
            BODY_BYTES[0], "RocketMQ's broker", Target(limit, at_least=False),
            (f"{HELD:,} messages in each run, one by one; two bare sockets in one thread, the same for both.",),
            partial(_one_of, at=("p50", "p99").index(figure)), "ms",
        )  # fmt: skip


@contextlib.contextmanager
def _one_of(scratch: Scratch, at: int) -> Iterator[Pair]:
    """One of the two figures: each has a target of its own."""
    with waiting(scratch) as pair:

        def only(measurement: Callable[[], Any]) -> float:
            return float(measurement()[at])

        yield Pair(partial(only, pair.ours), partial(only, pair.yardstick))


CASES = tuple(_cases())
