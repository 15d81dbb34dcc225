"""A live master, a feeder that is killed again and again, and a reader that never stops looking (`plan` has the kills).

After each kill the feeder goes on, and the reader comes to see all that the master had then. What the reader saw is
compared with the bytes of the master's own files.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from rmq_store import StagingArea, Store, StoreConfig
from rmq_store.protocol.errors import ClientError
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.ha_connection import SILENCE_S
from rmq_store.replica.master import Master
from rmq_store.verify import verify_store

from . import plan
from .equality import bytes_of, same_files, same_queues
from .ha_proxy import READ_BYTES, HAProxy
from .plan import Event
from .processes import feeder_process, take_aim, watcher_process
from .writers import Writers

SMALL: Final = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 1000, max_hash_slot_num=50_000,
    max_index_num=200_000,
)  # fmt: skip
UNIT_ROWS, UNIT_ROW_BYTES = 180, 8000
KEYS_LOOKED_UP: Final = 60
POINT_S: Final = 40.0
"""A feeder that has not come to its point after so long never will."""


class Scene:
    """Kills in a cluster with one master. A context manager. `directory`: for the replicas; `sizes`: of the master's
    files.
    """

    def __init__(
        self, cluster: RocketmqCluster, directory: Path, topic: str, *, sizes: StoreConfig, java: bool
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._topic = topic
        self._group = f"of-{topic}"
        self._sizes = sizes
        self._segment_bytes = sizes.mapped_file_size_commit_log
        self._chance = random.Random(topic)
        self._proxy = HAProxy(f"127.0.0.1:{cluster.broker().port + 1}")
        self._writers = Writers(cluster, topic, self._group, java=java)
        self._log = (directory / "feeder.log").open("ab")
        self._feeder: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._connections = 0
        self._generation = 0
        self._units = 0
        self._checked = 0
        self._seen_end = 0
        self.kills: Counter[str] = Counter()
        self.compared_bytes = 0
        self.passes = 0

    def __enter__(self) -> Scene:
        self._writers.__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        for process in (self._feeder, self._watcher):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self._writers.__exit__(*given)
        self._proxy.close()
        self._log.close()

    @property
    def root(self) -> Path:
        """The replica."""
        return self._directory / f"replica-{self._generation}"

    @property
    def writers(self) -> Writers:
        """Who writes to the master."""
        return self._writers

    # -- kills --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a new replica, with a reader of its own. Nobody feeds it yet."""
        self._generation += 1
        self._checked = self._seen_end = 0
        self._notes.touch()
        self._watcher = watcher_process(self.root, self._notes, self._topic, self._group, self._log)

    def run(self, event: Event) -> None:
        """Let it happen, and look at what readers have seen. AssertionError: it was something wrong."""
        happen = self._events().get(event.point, self._at_point)
        happen(event.point)
        if event.point != plan.HALF_UNIT:  # the next one meets the same unit, before anybody has all of it
            self.goes_on()
        self.kills[event.point] += 1

    def _events(self) -> dict[str, Callable[[str], None]]:
        return {
            plan.MOMENT: self._at_a_moment,
            plan.HALF_UNIT: self._at_half_unit,
            plan.BYTEWISE: self._bytewise,
            plan.STOPPED: lambda point: self._stop_feeder(1.0),
            plan.STOPPED_LONG: lambda point: self._stop_feeder(SILENCE_S + 5),
            plan.CUT: self._cut,
            plan.CUT_BYTEWISE: self._cut,
            plan.MASTER: self._kill_master,
            plan.MASTER_UNIT: self._kill_master,
            plan.MASTER_STOPPED: lambda point: self._stop_master(2.0),
            plan.MASTER_STOPPED_LONG: lambda point: self._stop_master(SILENCE_S + 5),
        }

    def _at_point(self, point: str) -> None:
        if point in plan.FEED_POINTS or point in plan.ROLL_POINTS:
            feeder = self._fed()
            if point == plan.HALF_FRAME:
                self._proxy.pieces = self._odd_pieces(3000)
            take_aim(self._aims, point, self._chance.randrange(6) if point in plan.FEED_POINTS else 0)
            feeder.send_signal(signal.SIGUSR1)
        else:
            if point in plan.METADATA_POINTS:
                self._cluster.create_topic(f"{self._topic}-{self._chance.randrange(1 << 40)}", 1)
                self._new_group()
            self._kill_feeder()
            take_aim(self._aims, point, 0)
            self._launch()
        self._await_death(point)

    def _at_half_unit(self, point: str) -> None:
        self._kill_feeder()
        self._proxy.pieces = lambda: 20_000
        take_aim(self._aims, point, 0)  # what has come is published together: few publications meet half of a unit
        self._launch()
        self._await_death(point)
        self._proxy.pieces = lambda: READ_BYTES

    def _at_a_moment(self, point: str) -> None:
        self._fed()
        time.sleep(self._chance.random() * 0.3)
        self._kill_feeder()

    def _bytewise(self, point: str) -> None:
        self._fed()
        self._proxy.pieces = self._odd_pieces(4000)
        before = self._proxy.passed
        until(lambda: self._proxy.passed >= before + 1500, "no byte comes")
        self._kill_feeder()

    def _cut(self, point: str) -> None:
        self._fed()
        cuts = self._proxy.cuts
        if point == plan.CUT_BYTEWISE:
            self._proxy.pieces = self._odd_pieces(2000)
        self._proxy.cut(self._chance.randrange(1, 5000), resets=self._chance.random() < 0.5)
        until(lambda: self._proxy.cuts > cuts, "the connection does not end")

    def _stop_feeder(self, seconds: float) -> None:
        """Readers go on meanwhile, also new ones."""
        feeder = self._fed()
        time.sleep(self._chance.random() * 0.3)
        feeder.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            with Store.open(self.root, read_only=True) as replica:
                for queue_id in range(4):
                    low, high = replica.queue_range(self._topic, queue_id)
                    rows = sum(batch.num_rows for batch in replica.read(self._topic, queue_id, low, high))
                    assert rows == high - low
            time.sleep(0.2)
        feeder.send_signal(signal.SIGCONT)

    def _stop_master(self, seconds: float) -> None:
        self._fed()
        self._cluster.broker().suspend()
        time.sleep(seconds)
        self._cluster.broker().resume()

    def _kill_master(self, point: str) -> None:
        feeder = self._fed()
        self._cluster.broker().kill()
        if point == plan.MASTER_UNIT:
            self.add_units()
            self._proxy.pieces = lambda: 20_000
            take_aim(self._aims, plan.HALF_UNIT, 0)
            feeder.send_signal(signal.SIGUSR1)
        self._cluster.heal()
        if point == plan.MASTER_UNIT:
            self._await_death(plan.HALF_UNIT)
            self._proxy.pieces = lambda: READ_BYTES

    def add_units(self) -> None:
        """Append units, and records between them, to the log of the master, which does not run."""
        store = self._cluster.broker().directory / "store"
        with Store.open(store, config=self._sizes) as own:  # a broker makes no file before its first message
            for _ in range(2):
                self._units += 1
                with StagingArea.for_task(store, f"w{self._units}", 0, 0, topic=self._topic) as area:
                    rows = [b"%d" % self._units + bytes(UNIT_ROW_BYTES)] * UNIT_ROWS
                    area.write(pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())}))
                    staged = area.finish()
                assert staged is not None
                own.commit_staged([staged], key=self._topic, value=self._units)

    def units_at_start(self) -> None:
        """Let the master have units before its first replica begins."""
        self._cluster.broker().stop()
        for _ in range(3):
            self.add_units()
        self._cluster.heal()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def goes_on(self) -> None:
        """A feeder goes on, and the reader sees all that the master has now: bytes of the master."""
        self._fed()
        end = self._master_end()
        until(lambda: self._saw(end), f"the replica does not come to {end}")
        self._proxy.pieces = lambda: READ_BYTES

    def finish(self) -> tuple[int, int]:
        """Nobody writes any more: the replica has the files of its master. Returns the bytes of its log, and the
        entries of its queues.
        """
        self._writers.pause()
        feeder = self._fed()
        end = self._quiet_end()
        until(lambda: self._saw(end), f"the replica does not come to {end}")
        assert self._master_end() == end, "the master is not quiet"
        assert self._seen_end == end
        feeder.send_signal(signal.SIGTERM)
        assert feeder.wait() == 0, self.words()
        assert self._watcher is not None
        self._watcher.kill()
        self._watcher.wait()
        self._look()
        master = self._cluster.broker().directory / "store"
        same_files(self.root, master, 0, end, self._segment_bytes)
        entries = same_queues(self.root, master)
        report = verify_store(self.root)
        assert report.status == "clean", report.problems
        self._same_keys()
        self._feeder = self._watcher = None
        self._writers.go_on()
        return end, entries

    def _same_keys(self) -> None:
        """The index of the replica finds what its log has, once. A 5.x that was killed finds less: it throws its last
        index file away, and fills the new one from where its recovery begins.
        """
        places: dict[str, list[int]] = {}
        with Store.open(self.root, read_only=True) as replica, self._cluster.connect() as broker:
            for queue_id in range(4):
                low, high = replica.queue_range(self._topic, queue_id)
                for batch in replica.read(self._topic, queue_id, low, high, columns=["keys", "commitLogOffset"]):
                    for row in batch.filter(batch["keys"].is_valid()).to_pylist():
                        places.setdefault(row["keys"], []).append(row["commitLogOffset"])
            assert len(places) >= self._writers.sent
            for key in sorted(places)[:: 1 + len(places) // KEYS_LOOKED_UP]:
                found = sorted(message.commit_log_offset for message in replica.query.by_key(self._topic, key))
                assert found == sorted(places[key]), f"the index has {found} of {key}, the log {places[key]}"
                told = requests.records(bytes(requests.query(broker, self._topic, key).body))
                assert {int.from_bytes(frame[28:36], "big") for frame in told} <= set(found)

    def _saw(self, end: int) -> bool:
        self._look()
        feeder = self._feeder
        assert feeder is not None
        assert feeder.poll() is None, f"`rmq follow` ended with {feeder.returncode}: {self.words()}"
        return self._seen_end >= end

    def _look(self) -> None:
        """Compare what the reader has newly seen with the master's files."""
        watcher, store = self._watcher, self._cluster.broker().directory / "store"
        assert watcher is not None
        ended = watcher.poll()
        assert ended in (None, -signal.SIGKILL), f"the reader ended with {ended}: {self.words()}"
        for seen in self._new_notes():
            data = bytes_of(store, seen["start"], seen["end"], self._segment_bytes)
            assert seen["start"] == self._seen_end, f"a reader saw {seen} after {self._seen_end}"
            assert zlib.crc32(data) == seen["crc"], f"a reader saw other bytes than the master has: {seen}"
            self._seen_end = seen["end"]
            self.compared_bytes += len(data)
            self.passes += 1

    def _new_notes(self) -> Iterator[dict[str, int]]:
        with self._notes.open("rb") as file:
            file.seek(self._checked)
            for line in file:
                if line.endswith(b"\n"):
                    self._checked += len(line)
                    yield json.loads(line)

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def _notes(self) -> Path:
        return self._directory / f"seen-{self._generation}"

    @property
    def _aims(self) -> Path:
        return self._directory / "aim"

    def words(self) -> str:
        """The end of what feeder and reader wrote."""
        self._log.flush()
        return (self._directory / "feeder.log").read_text(errors="replace")[-3000:]

    def _launch(self) -> subprocess.Popen[bytes]:
        self._connections = self._proxy.connections
        self._feeder = feeder_process(self._cluster, self.root, self._aims, self._log, "--ha", self._proxy.address)
        return self._feeder

    def _fed(self) -> subprocess.Popen[bytes]:
        """The feeder, which runs, and is connected."""
        feeder = self._feeder
        if feeder is None or feeder.poll() is not None:
            feeder = self._launch()
        before = self._proxy.passed

        def is_fed() -> bool:
            has_come = self._proxy.connections > self._connections and self._proxy.passed > before
            return has_come or feeder.poll() is not None

        until(is_fed, "no byte comes")
        assert feeder.poll() is None, f"`rmq follow` ended with {feeder.returncode}: {self.words()}"
        return feeder

    def _kill_feeder(self) -> None:
        if self._feeder is not None:
            self._feeder.kill()
            self._feeder.wait()

    def _await_death(self, point: str) -> None:
        assert self._feeder is not None
        try:
            ended = self._feeder.wait(POINT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the feeder does not come to {point!r}: {self.words()}") from None
        assert ended == -signal.SIGKILL, f"the feeder ended with {ended} before {point!r}: {self.words()}"

    def _odd_pieces(self, single_bytes: int) -> Callable[[], int]:
        """So many bytes one by one, and then pieces of odd sizes."""
        left = [single_bytes]

        def next_bytes() -> int:
            left[0] -= 1
            return 1 if left[0] > 0 else self._chance.choice((1, 7, 97, 1001, 8191, 32_769))

        return next_bytes

    # -- the master ---------------------------------------------------------------------------------------------------

    def _new_group(self) -> None:
        with self._cluster.connect() as broker:
            group = f"g{self._chance.randrange(1 << 40)}"
            requests.heartbeat(broker, group, group, self._topic)
            requests.commit(broker, group, self._topic, 0)

    def _master_end(self) -> int:
        settings = ClusterSettings(name_servers=self._cluster.name_servers, timeout_ms=10_000)
        ends: list[int] = []

        def told() -> bool:
            try:
                with Master(settings, broker="broker-a") as master:
                    ends.append(master.log_end())
            except (OSError, ClientError):
                return False
            return True

        until(told, "the master does not tell where its log ends")
        return ends[-1]

    def _quiet_end(self) -> int:
        """Delayed messages are due, and delivered."""
        end, since = self._master_end(), time.monotonic()
        while time.monotonic() - since < 2.5:
            time.sleep(0.1)
            if (now := self._master_end()) != end:
                end, since = now, time.monotonic()
        return end
