"""A SYNC_MASTER of ours and its slave of ours, which are killed again and again (`plan` has the kills).

After each kill a copy of the slave's directory, as the kill has left it, becomes a store of its own: it must have all
that was acknowledged until then, whatever became of the master. At the end of a generation the slave itself takes
over, and the old master becomes its slave.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.followed.equality import bytes_of
from helpers.cluster.followed.ha_proxy import READ_BYTES, HAProxy
from helpers.cluster.followed.plan import METADATA_POINTS, OPEN_POINTS
from helpers.cluster.followed.processes import take_aim
from helpers.cluster.waiting import free_ports, until
from helpers.take_over_points import rejoin_aim
from rmq_store import Store, StoreConfig
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.replica.take_over.promote import promote

from . import plan, processes
from .ledger import Ledger, found_in
from .plan import Event
from .processes import Process
from .writers import LATER, TOPIC, body_of

CONFIG: Final = StoreConfig(1 << 17, 20 * 500, 100, 400)
POINT_S: Final = 300.0
"""A guard against hanging only: on a machine that is busy, a process may get a hundredth of a processor."""

_WARNED_BEFORE_TAKE_OVER: Final = 10


class Pair:
    """Two directories and their processes. A context manager. `without`: a protection that all processes lack."""

    def __init__(self, directory: Path, without: str = "") -> None:
        self._directory = directory
        self._without = without
        self._log = directory / "words.log"
        self._chance = random.Random(str(directory))
        self._port = next(free_ports(1))
        self._proxy = HAProxy(f"127.0.0.1:{self._port + 1}")
        self._running: dict[str, Process] = {}
        self._names = 0
        self.master, self.slave = directory / "first", directory / "second"
        (directory / "notes").mkdir(parents=True)
        self.ledger = Ledger(directory / "notes")
        self.compared_bytes = self.tail_messages = 0

    def __enter__(self) -> Pair:
        with Store.open(self.master, create=True, config=CONFIG) as store:
            store.create_topic(TOPIC, 2)
        self._serve()
        self.goes_on()
        return self

    def __exit__(self, *_: Any) -> None:
        for name in list(self._running):
            self._kill(name)
        self._proxy.close()

    def words(self) -> str:
        """The end of what the processes said."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    # -- kills while the master serves --------------------------------------------------------------------------------

    def run(self, event: Event) -> None:
        """Let it happen, look at a copy of the slave, and go on. AssertionError: it has not what it must have."""
        self._some_sends()
        happen: dict[str, Callable[[], None]] = {
            plan.MOMENT: lambda: self._kill("slave"),
            plan.MASTER: lambda: self._kill("master"),
            plan.MASTER_FIRST: lambda: self._kill("master", "local", "slave"),
            plan.SLAVE_FIRST: lambda: self._kill("slave", "master", "local"),
            plan.STOPPED: self._stop_slave,
            plan.MASTER_STOPPED: self._stop_master,
            plan.CUT: self._cut,
            plan.CUT_BYTEWISE: self._cut_bytewise,
        }
        happen.get(event.point, lambda: self._at_point(event.point))()
        self._look()
        self._serve()
        self.goes_on()

    def _at_point(self, point: str) -> None:
        victim = "master" if point in plan.MASTER_POINTS else "slave"
        if point in METADATA_POINTS or point in OPEN_POINTS:
            if point in METADATA_POINTS:
                self._new_tables()
            self._kill("slave")
            take_aim(self._aims, point, 0)
            self._serve()
        else:
            take_aim(self._aims, point, self._chance.randrange(6))
            self._signal(victim, signal.SIGUSR1)
        self._await_death(victim, point)

    def _stop_slave(self) -> None:
        before = self._answers("12")
        self._signal("slave", signal.SIGSTOP)
        try:
            self._until(lambda: self._answers("12") >= before + 3, "no send gets 12")
        finally:
            self._signal("slave", signal.SIGCONT)

    def _stop_master(self) -> None:
        self._signal("master", signal.SIGSTOP)
        time.sleep(0.5 + self._chance.random())
        self._signal("master", signal.SIGCONT)

    def _cut(self) -> None:
        cuts = self._proxy.cuts
        self._proxy.cut(self._chance.randrange(1, 5000), resets=self._chance.random() < 0.5)
        self._until(lambda: self._proxy.cuts > cuts, "the connection does not end")

    def _cut_bytewise(self) -> None:
        self._proxy.pieces = lambda: self._chance.choice((1, 1, 1, 1, 1, 1, 1, 7, 97))
        self._cut()
        self._proxy.pieces = lambda: READ_BYTES

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What was acknowledged until now is in a copy of the slave, which has no byte that the master lacks."""
        copy = self._directory / "copy"
        if self._is_alive("slave"):
            acknowledged = self._acknowledged()
            self._stand_still("slave")
            shutil.copytree(self.slave, copy)
            self._signal("slave", signal.SIGCONT)
        else:
            self._answers_come()
            acknowledged = self._acknowledged()
            shutil.copytree(self.slave, copy)
        self._serve()
        promote(copy)
        self.ledger.renew()
        self.ledger.check(copy, acknowledged)
        self._same_bytes(copy)
        shutil.rmtree(copy)

    def _same_bytes(self, root: Path) -> None:
        with Store.open(root, read_only=True) as store:
            start, end = store.log_range()
        own, other = (bytes_of(each, start, end, CONFIG.mapped_file_size_commit_log) for each in (root, self.master))
        assert own == other, f"{root} and its master differ below {end}"
        self.compared_bytes += end - start

    def goes_on(self) -> None:
        """Wait until a slave has new messages of each writer."""
        self.ledger.renew()
        before = {name: self._acknowledged_by(name) for name in ("wire", "local")}
        for name, count in before.items():
            self._until(lambda name=name, count=count: self._acknowledged_by(name) > count, f"no 0 for {name}")  # type: ignore[misc]

    def _some_sends(self) -> None:
        wanted = self._acknowledged_by("wire") + self._chance.randrange(1, 25)
        self._until(lambda: self._acknowledged_by("wire") >= wanted, "sends get no 0")

    def _answers_come(self) -> None:
        """Each writer has noted what it was told until now: it has noted something else."""
        writers = [self._writer(name) for name in ("wire", "local") if self._is_alive(name)]
        before = {name: self.ledger.lines[name] for name in writers}
        self._until(lambda: all(self.ledger.lines[name] >= count + 2 for name, count in before.items()), "no answers")

    # -- a take-over --------------------------------------------------------------------------------------------------

    def take_over(self, promotion: Event | None, rejoining: Event | None, done: Callable[[Event], None]) -> None:
        """The slave becomes the master, and the old master its slave; the events are kills in between."""
        self._some_sends()
        self._new_topic()
        self._kill("slave")
        wanted = self.ledger.lines[self._writer("wire")] + _WARNED_BEFORE_TAKE_OVER
        self._until(lambda: self.ledger.lines[self._writer("wire")] >= wanted, "no answers")
        self._kill("master", "local", "wire")
        self.ledger.renew()
        acknowledged = self._acknowledged()
        if promotion is not None:
            self._kill_take_over(promotion.point, processes.kill_promotion, self.slave, self._aims)
        promote(self.slave)
        self.ledger.check(self.slave, acknowledged)
        self._same_bytes(self.slave)
        self.ledger.promoted(self.slave)
        if promotion is not None:
            done(promotion)
        lacks = found_in(self.master).keys() - found_in(self.slave).keys()
        assert lacks, "the old master has no tail"
        self.master, self.slave = self.slave, self.master
        self._serve_master()
        self._rejoin(rejoining, lacks)
        self._serve()
        self.goes_on()
        if rejoining is not None:
            done(rejoining)

    def _rejoin(self, event: Event | None, lacks: set[str]) -> None:
        files = [self._directory / name for name in ("tail.jsonl", "tail-again.jsonl")]
        self._until(lambda: self.ledger.lines[self._writer("wire")] > 3, "the new master does not answer")
        if event is not None:
            self._kill_take_over(event.point, processes.kill_rejoining, self.slave, self._port, self._aims, files[0])
        processes.rejoined(self.slave, self._port, files[1])
        kept = set()
        for file in filter(Path.exists, files):
            for line in file.read_text(encoding="utf-8").splitlines():
                kept.add(str(json.loads(line).get("body", "")).partition(" ")[0])
            file.unlink()
        assert not lacks - kept, f"in no file: {sorted(lacks - kept)[:5]}"
        self.tail_messages += len(lacks)

    def _kill_take_over(self, point: str, work: Callable[..., None], *given: Any) -> None:
        if point in (plan.PROMOTION, plan.REJOINING):
            take_aim(self._aims, "", 0)
        else:
            take_aim(self._aims, *rejoin_aim(point) if point.startswith("rejoin") else (point, 0))
        process = processes.started(work, self._log, self._without, *given)
        if point in (plan.PROMOTION, plan.REJOINING):
            process.join(self._chance.random() * (0.3 if point == plan.PROMOTION else 2.5))
            process.kill()
            process.join()
            return
        process.join(POINT_S)
        assert process.exitcode == -signal.SIGKILL, f"{point}: ended with {process.exitcode}: {self.words()}"

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def _aims(self) -> Path:
        return self._directory / "aim"

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _serve(self) -> None:
        """Start whatever does not run."""
        self._serve_master()
        if not self._is_alive("slave"):
            self._start("slave", processes.serve_slave, self.slave, self._port, self._proxy.address, self._aims)

    def _serve_master(self) -> None:
        if not self._is_alive("master"):
            self._start("master", processes.serve_master, self.master, self._port, self._aims)
            self._until(self._listens, "the master does not listen")  # a slave that comes too early waits long
        for name, given in ("wire", (self._address,)), ("local", (self.master,)):
            if not self._is_alive(name):
                self._names += 1
                work = "send_over_wire" if name == "wire" else "send_locally"
                last = (self.ledger.last_unit,) if name == "local" else ()
                writer = f"{name}-{self._names}"
                self._start(name, processes.write, work, *given, self.ledger.file(writer), writer, *last)
                self._running[name].name = writer

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._port)) == 0

    def _start(self, name: str, work: Callable[..., None], *given: Any) -> None:
        self._running[name] = processes.started(work, self._log, self._without, *given)

    def _writer(self, name: str) -> str:
        return self._running[name].name

    def _is_alive(self, name: str) -> bool:
        return name in self._running and self._running[name].is_alive()

    def _kill(self, *names: str) -> None:
        for name in names:
            process = self._running[name]
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL, f"{name} had ended with {process.exitcode}: {self.words()}"

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._running[name]
        assert process.is_alive(), f"{name} has ended with {process.exitcode}: {self.words()}"
        assert process.pid is not None
        os.kill(process.pid, number)

    def _stand_still(self, name: str) -> None:
        """Stop it, and wait until each of its threads stands."""
        self._signal(name, signal.SIGSTOP)
        tasks = Path(f"/proc/{self._running[name].pid}/task")

        def stands() -> bool:
            return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks.glob("*/stat"))

        self._until(stands, f"{name} does not stop")

    def _await_death(self, name: str, point: str) -> None:
        process = self._running[name]
        process.join(POINT_S)
        assert process.exitcode == -signal.SIGKILL, f"{point}: {name} ended with {process.exitcode}: {self.words()}"

    def _until(self, fulfilled: Callable[[], bool], complaint: str) -> None:
        def looked() -> bool:
            self.ledger.renew()
            return fulfilled()

        until(looked, complaint, POINT_S)

    # -- the master ---------------------------------------------------------------------------------------------------

    def _acknowledged(self) -> set[str]:
        self.ledger.renew()
        return set(self.ledger.acknowledged)

    def _acknowledged_by(self, name: str) -> int:
        return self.ledger.lines[f"{self._writer(name)} acknowledged"]

    def _answers(self, status: str) -> int:
        return sum(count for name, count in self.ledger.answers.items() if name.endswith(f" {status}"))

    def _new_tables(self) -> None:
        """A topic, a group, an offset, and a delayed message that was delivered: the slave knows none of them."""
        with Connection(self._address) as client:
            new = f"{self._chance.randrange(1 << 40)}"
            delays = client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body
            requests.send(client, TOPIC, body=body_of(f"delayed-{new}"), properties={"DELAY": "1"})
            requests.create_topic(client, f"Empty-{new}", 1)
            requests.heartbeat(client, f"c{new}", f"g{new}", TOPIC)
            requests.commit(client, f"g{new}", TOPIC, 1)
            until(
                lambda: client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body != delays, "nothing is delivered", POINT_S
            )

    def _new_topic(self) -> None:
        """A topic that the slave's tables do not have, with a message that it has."""
        self._names += 1
        with Connection(self._address) as client:
            topic, what = f"{LATER}-{self._names}", f"later-{self._names}"
            requests.create_topic(client, topic, 1)

            def is_sent() -> bool:
                self.ledger.note(code := requests.send(client, topic, body=body_of(what)).code, what)
                return code == 0

            until(is_sent, "no slave has the new topic", POINT_S)

