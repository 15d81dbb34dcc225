"""Kills of a SYNC_MASTER of ours and of its slave of ours: what was answered with 0 is at the slave, whatever dies.

RMQ_HA_KILLS=<number> kills so often (20 otherwise, about two minutes); RMQ_HA_KILLS_AT=<directory> keeps the stores
there, and a later run goes on with them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import Message, SendStatus, Store
from rmq_store.client import Producer, ProducerConfig
from rmq_store.errors import StoreError
from storage.server.ha.conftest import CONFIG, HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("RMQ_HA_KILLS", "20"))

MASTER = """
import sys, time
from rmq_store import Message
from rmq_store.log.broker_role import BrokerRole
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings
ha = HASettings(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=500)
with BrokerServer(sys.argv[1], ha=ha, vip_channel=False) as server:
    print(server.address, flush=True)
    while True:
        server.store.send(Message("Orders", b"own", queue_id=0))
        time.sleep(0.01)
"""

SLAVE = """
import sys, time
from pathlib import Path
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master
address = sys.argv[2]
with Master(ClusterSettings.of_text(address), address=address) as master:
    Follower(Path(sys.argv[1]), master, as_slave=True, should_stop=lambda s: bool(time.sleep(s))).run()
"""


class Processes:
    """The master and its slave. They end with the block."""

    def __init__(self, base: Path) -> None:
        self.root, self.replica = base / "master", base / "replica"
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self) -> str:
        """Start what does not run; the address of the master."""
        master = subprocess.Popen(
            [sys.executable, "-c", MASTER, str(self.root)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        self._running["master"] = master
        assert master.stdout is not None
        address = master.stdout.readline().strip()
        assert address
        self._running["slave"] = subprocess.Popen(
            [sys.executable, "-c", SLAVE, str(self.replica), address], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        return address

    def kill(self, name: str) -> str:
        """Kill a process; what it wrote to stderr."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        return process.communicate(timeout=HANG_S)[1] or ""

    def suspend(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGSTOP)

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    base = Path(os.environ.get("RMQ_HA_KILLS_AT", str(tmp_path)))
    found = Processes(base)
    if not found.root.exists():
        with Store.open(found.root, create=True, config=CONFIG) as store:
            store.create_topic("Orders", 1)
    yield found
    found.close()


def bodies(root: Path) -> set[bytes]:
    with Store.open(root, read_only=True) as store:
        low, high = store.queue_range("Orders", 0)
        return {row["body"] for batch in store.read("Orders", 0, low, high) for row in batch.to_pylist()}


def test_what_was_answered_with_0_is_at_the_slave_whatever_is_killed(processes: Processes) -> None:
    chance = random.Random(int.from_bytes(os.urandom(4)))
    acknowledged: set[bytes] = set()
    others = {SendStatus.FLUSH_SLAVE_TIMEOUT: 0, SendStatus.SLAVE_NOT_AVAILABLE: 0}
    for cycle in range(KILLS):
        address, stop = processes.start(), threading.Event()
        wanted, reached, fewest = chance.randrange(1, 60), threading.Event(), len(acknowledged)

        def send(address: str = address, cycle: int = cycle, stop: threading.Event = stop,
                 wanted: int = wanted + fewest, reached: threading.Event = reached) -> None:  # fmt: skip
            config = ProducerConfig(send_msg_timeout=3000, retry_times_when_send_failed=0)
            run = os.urandom(4).hex()
            with contextlib.suppress(StoreError), Producer("p", f"rmq://{address}", config) as producer:
                for number in range(1 << 30):
                    if stop.is_set():
                        return
                    body, status = b"%s-%d-%d" % (run.encode(), cycle, number), None
                    with contextlib.suppress(StoreError):  # the broker is busy, or dead
                        status = producer.send(Message("Orders", body, queue_id=0)).status
                    if status is None:
                        stop.wait(0.01)
                    elif status is SendStatus.SEND_OK:
                        acknowledged.add(body)
                        if len(acknowledged) >= wanted:
                            reached.set()
                    else:
                        others[status] += 1

        sender = threading.Thread(target=send)
        sender.start()
        if not reached.wait(60):
            stop.set()
            raise AssertionError(f"cycle {cycle}: {others}: {processes.kill('slave')}")
        first = chance.choice(("master", "slave", "slave, suspended before"))
        if first.startswith("slave,"):
            processes.suspend("slave")
            stop.wait(0.2)
        processes.kill(first.split(",")[0])
        processes.kill("slave" if first == "master" else "master")
        stop.set()
        sender.join(HANG_S)
        lost = acknowledged - bodies(processes.replica)
        assert not lost, f"cycle {cycle}, {first}: {len(lost)} lost, {min(lost)!r}"
    assert acknowledged
