"""Many connections of a served store: what an idle one costs, and whether busy ones go on beside them."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.case import Case, Pair, Target
from bench.connections import bare_server, busy, idle, only_connected
from bench.crew import Crew
from bench.messages import TOPIC
from bench.scratch import Scratch
from bench.served import served
from rmq_store import Store, StoreConfig

IDLE: Final = 10_000
BUSY: Final = 500
PROCESSES: Final = 2
BUSY_S: Final = 10.0
QUICK_S: Final = 1.0
KIB_MAX: Final = 20.0

_ANONYMOUS: Final = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


def anonymous_kib(pid: int) -> int:
    """The anonymous memory of a process."""
    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


def settled_kib(pid: int) -> int:
    """The same, once it does not change for a second: a server loads pandas while it begins."""
    known, since_s = anonymous_kib(pid), time.monotonic()
    while time.monotonic() - since_s < 1:
        time.sleep(0.05)
        if (found := anonymous_kib(pid)) != known:
            known, since_s = found, time.monotonic()
    return known


@contextlib.contextmanager
def idle_memory(scratch: Scratch) -> Iterator[Pair]:
    """KiB for each idle connection. Each side is measured in a fresh process: memory that was freed is used again."""
    count = scratch.rows(IDLE)

    numbers = itertools.count()

    def ours() -> float:
        directory = scratch.directory / str(next(numbers))
        directory.mkdir()
        with served(directory, StoreConfig()) as server:
            with Crew(PROCESSES, idle, server.address, 1):  # what the first connections import
                before = settled_kib(server.pid)
            with Crew(PROCESSES, idle, server.address, count // PROCESSES) as crew:
                grown = settled_kib(server.pid) - before
                assert sum(turn.answer for turn in crew.run()) == count
        return grown / count

    def yardstick() -> float:
        with Crew(1, bare_server) as bare:
            port = bare.run()[0].answer
            before = anonymous_kib(bare.pids[0])
            with Crew(PROCESSES, only_connected, f"127.0.0.1:{port}", count // PROCESSES):
                return (settled_kib(bare.pids[0]) - before) / count

    yield Pair(ours, yardstick)


@contextlib.contextmanager
def busy_beside_idle(scratch: Scratch) -> Iterator[Pair]:
    """Rounds per second with and without idle ones: of all busy connections, and of the one that has fewest."""
    idle_count = scratch.rows(IDLE)
    duration_s = QUICK_S if scratch.quick else BUSY_S
    with served(scratch.directory, StoreConfig()) as server:
        with Store.open(scratch.directory / "store") as store:
            store.create_topic(TOPIC, queue_count=4)
        with Crew(PROCESSES, busy, server.address, TOPIC, BUSY // PROCESSES) as crew:

            def rounds() -> tuple[float, float]:
                found = [count for turn in crew.run(duration_s) for count in turn.answer]
                assert len(found) == BUSY
                return sum(found) / duration_s, min(found) / duration_s

            def beside_idle() -> tuple[float, float]:
                with Crew(PROCESSES, idle, server.address, idle_count // PROCESSES) as idlers:
                    found = rounds()
                    assert sum(turn.answer for turn in idlers.run()) == idle_count
                return found

            yield Pair(beside_idle, rounds)


CASES = (
    Case(
        name="server-idle-connection",
        title=f"memory of an idle connection, one of {IDLE:,}",
        group="server",
        body_bytes=None,
        yardstick="an asyncio server that does nothing with its connections",
        unit="KiB",
        target=Target(10, at_least=False, ours_at_most=KIB_MAX),
        settings="Growth of the server's RssAnon; each client has asked one request, and asks one more afterwards.",
        prepare=idle_memory,
    ),
    Case(
        name="server-busy",
        title=f"{BUSY} busy connections beside {IDLE:,} idle ones",
        group="server",
        body_bytes=100,
        yardstick="the same without idle ones",
        unit="rounds/s",
        target=Target(0.8),
        settings=f"A round: a send of 100 B and a pull of it. {BUSY_S:.0f} s, clients in {PROCESSES} processes.",
        prepare=busy_beside_idle,
        figures=("all", "least-served"),
    ),
)
