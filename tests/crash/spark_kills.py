"""Test 25: drivers of streaming queries are killed at random moments and at named points, and restarted from their
checkpoints, until everything has come over.

Two queries of one driver read two topics of one store, each for a group, and write to one topic of another store. A
driver's JVM takes some seconds to start, so the next one is started while the last one still works; it waits for its
turn before it touches the stores. Kills are SIGKILL to the driver's process group; Python workers that Spark has put
into groups of their own live on for a while, as zombies. In one kill of three the process that stands at the named
point is one of them and goes on.

Points, in the order of a batch:

    before offsets log   the batch is planned, Spark has not written it down
    before tasks         Spark has written it down
    in task, after task  a task has staged some of its rows; all of them
    before append        all tasks have reported
    in append            before some operation of the file layer, from reading the staged files to the last flush
    staging sweep        the batch is appended, its files are removed
    before commit log    between the append of the unit and Spark's commit log
    after commit log     Spark has noted the batch, the group's offsets have not moved
    group offsets        consumerOffset.json is about to be replaced
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crash.numbered import bodies_of, check_store, compare, numbered
from crash.part import Counters, Part, Trial
from crash.protections import protection

ROOT = Path(__file__).resolve().parents[2]

RANDOM = "random"
# Kills go round; the first is the one that needs the marker.
POINTS = (
    "before commit log", RANDOM, "in append", "before offsets log", "staging sweep", "group offsets", "before tasks",
    "after task", RANDOM, "before append", "after commit log", "in task", RANDOM,
)  # fmt: skip

TOPICS = ("Left", "Right")
CHUNK = 10
_PER_CYCLE = 60

# Hang guards.
_READY_S = 120.0
_WORKS_S = 90.0

# Spark 4.3.0 writes a task while another query of the session, which begins at the same time, changes a map in it; no
# attempt can read that. The query fails before it has read anything, and whoever restarts it loses nothing: which is
# what is judged.
SPARKS_OWN = "java.io.OptionalDataException"
_SPARK_FAILS_MAX = 3


@protection("no_marker", "the sink looks for the marker of a batch before it appends it")
def _no_marker() -> Iterator[None]:
    from rmq_store.broker.write.writer import Writer

    kept = Writer._already_done
    Writer._already_done = lambda self, unit, repeatable: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writer._already_done = kept  # type: ignore[method-assign]


def spark_environment() -> dict[str, str]:
    """What a JVM of the harness is started with."""
    path = [ROOT / "storage", ROOT / "connector", ROOT / "tests"]
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        # A life lasts for seconds: the optimising compiler would only begin.
        "PYSPARK_SUBMIT_ARGS": '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell',
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Driver:
    """One driver process and its JVM, a session and a process group of their own."""

    def __init__(self, directory: Path, number: int) -> None:
        queries = [{"topic": topic, "group": f"cg_{topic}", "checkpoint": str(directory / topic)} for topic in TOPICS]
        given = {"source": str(directory / "source"), "target": str(directory / "target")}
        self._errors = (directory / f"driver-{number}.err").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crash.workers.spark_driver", json.dumps(given | {"queries": queries})],
            env=spark_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True,
        )  # fmt: skip

    def go(self, told: dict[str, Any]) -> bool:
        """Let it work, as soon as Spark is there; False if it died before."""
        if not self.says("ready", _READY_S):
            return False
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()
        return True

    def says(self, word: str, within_s: float) -> bool:
        """Whether it says this word before it ends."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (left_s := deadline_s - time.monotonic()) > 0:
                if selector.select(left_s):
                    line = self._process.stdout.readline()
                    if not line or line.strip() == word.encode():
                        return bool(line)
        return False

    def ends(self, within_s: float) -> bool:
        """Whether it has ended by then."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def failed(self) -> str:
        """What it said if it ended by itself, and not well; "" otherwise."""
        if self._process.poll() in (None, 0, -signal.SIGKILL):
            return ""
        self._errors.seek(0)
        said = self._errors.read()
        begins = max(said.find("a query failed"), said.find("terminated with exception"), 0)
        return said[begins:][:4000]

    def kill(self) -> None:
        """Kill the process group, as an operator would; zombies outside of it live on."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def bury(self) -> None:
        """Kill it, and what is left of its session."""
        self.kill()
        for pid in _session(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == leader:
                members.append(int(entry.name))
    return members


def small_config() -> Any:
    from rmq_store import StoreConfig

    return StoreConfig(
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000, max_hash_slot_num=500,
        max_index_num=2000,
    )  # fmt: skip


def _send(source: Path, sent: dict[str, int], chance: random.Random) -> None:
    import pyarrow as pa

    from rmq_store import Store

    with Store.open(source) as store:
        for topic in TOPICS:
            count = chance.randrange(_PER_CYCLE // 2, _PER_CYCLE)
            bodies = numbered(topic, range(sent[topic], sent[topic] + count), chance)
            store.append(pa.record_batch({"body": pa.array([body.encode() for body in bodies])}), topic)
            sent[topic] += count


def _in_progress(checkpoint: Path) -> bool:
    """Whether Spark has begun a batch that it has not completed."""

    def newest(log: str) -> int:
        return max((int(path.name) for path in (checkpoint / log).glob("[0-9]*")), default=-1)

    return newest("offsets") > newest("commits")


def run(trial: Trial) -> Counters:
    """`cycles` kills, and one driver more that brings the queries to their end."""
    from rmq_store import Store

    counters = Counters(cycles=trial.cycles)
    # A short run begins with the first points, the chunks of a long one anywhere.
    shift = trial.seed % len(POINTS) if trial.cycles >= CHUNK else 0
    points = POINTS[shift:] + POINTS[:shift]
    sent = dict.fromkeys(TOPICS, 0)
    source, target = trial.directory / "source", trial.directory / "target"
    with Store.open(source, create=True, config=small_config()) as store:
        for topic in TOPICS:
            store.create_topic(topic, 1)
    Store.open(target, create=True, config=small_config()).close()
    drivers = [Driver(trial.directory, 0)]
    try:
        for cycle in range(trial.cycles):
            chance = random.Random(f"{trial.seed}/{cycle}")
            _send(source, sent, chance)
            drivers.append(Driver(trial.directory, cycle + 1))
            _kill_once(drivers[cycle], points[cycle % len(points)], chance, counters)
            for topic in TOPICS:
                counters.seen["batches hit"] += _in_progress(trial.directory / topic)
            failure = drivers[cycle].failed()
            if SPARKS_OWN in failure:
                counters.seen["queries that Spark failed"] += 1
            elif failure:
                counters.broken += 1
                counters.note(f"cycle {cycle}, seed {trial.seed}: a driver failed by itself: {failure}")
            if cycle:
                drivers[cycle - 1].bury()  # its zombies have had a life to do harm in
            trial.tick(1)
        while not _finishes(drivers[-1]):
            failure = drivers[-1].failed()
            counters.seen["queries that Spark failed"] += 1
            if SPARKS_OWN not in failure or counters.seen["queries that Spark failed"] > _SPARK_FAILS_MAX:
                counters.broken += 1
                counters.note(f"seed {trial.seed}: the last driver did not finish: {failure}")
                break
            drivers.append(Driver(trial.directory, len(drivers)))
    finally:
        for driver in drivers:
            driver.bury()
    _judge(trial, sent, counters)
    return counters


def _finishes(driver: Driver) -> bool:
    driver.go({"finish": True, "query": -1, "plan": {}})
    return driver.says("done", 2 * _WORKS_S)


def _kill_once(driver: Driver, point: str, chance: random.Random, counters: Counters) -> None:
    plan = {
        "point": "" if point == RANDOM else point,
        "count": str(chance.randrange(1, 3)),
        "operation": str(chance.randrange(1, 12)),
        "survives": "true" if chance.random() < 1 / 3 else "false",
    }
    if not driver.go({"finish": False, "query": chance.randrange(len(TOPICS)), "plan": plan}):
        counters.broken += 1
        counters.note(f"a driver never began: {driver.failed()}")
        return
    driver.says("running", _WORKS_S)
    if point == RANDOM:
        driver.ends(chance.uniform(0.0, 8.0))
    elif driver.ends(_WORKS_S):
        counters.seen[f"killed: {point}"] += 1
    else:
        counters.seen[f"not reached: {point}"] += 1
    driver.kill()
    counters.seen["kills"] += 1


def _judge(trial: Trial, sent: dict[str, int], counters: Counters) -> None:
    from rmq_store import Store

    where = f"seed {trial.seed}"
    compare(bodies_of(trial.directory / "target", "Out"), sent, counters, where)
    for name in ("source", "target"):
        # The last writer that closes leaves a cleanly stopped store; the ones before it were killed.
        Store.open(trial.directory / name).close()
        check_store(trial.directory / name, counters, f"{where}: {name}")
    with Store.open(trial.directory / "source", read_only=True) as store:
        for topic, count in sent.items():
            committed = store.committed_offsets(f"cg_{topic}").get((topic, 0))
            if committed != count:
                counters.broken += 1
                counters.note(f"{where}: the group of {topic} stands at {committed}, not at {count}")


def no_java() -> str:
    import shutil

    return "" if shutil.which("java") and Path("/proc/self/stat").exists() else "needs Java and /proc"


PARTS = (
    Part(
        name="spark_kills",
        number="25",
        title="The driver of two streaming queries is killed, at random and at named points, and starts again",
        unit="kills",
        harness=3,
        crash=16,
        soak=200,
        chunk=CHUNK,
        run=run,
        protections=("no_marker",),
        bites_within=1,
        cannot_run=no_java,
        alone=True,
    ),
)  # fmt: skip
