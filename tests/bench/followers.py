"""Replicas of a live broker: a follower for a `with` block, and the work of a crew that sees when messages turn up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.peer import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master

LOOK_S: Final = 0.001
_DEADLINE_S: Final = 120.0


class Following:
    """A follower of the broker in a thread of this process. `__exit__` ends it."""

    def __init__(self, root: Path, name_server: str, broker_name: str, ha_address: str) -> None:
        settings = ClusterSettings.of_text(name_server)
        self._master = Master(settings, broker=broker_name, ha_address=ha_address)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._end = 0
        self._error: BaseException | None = None
        self._follower = Follower(root, self._master, tell=self._tell, should_stop=self._stop.wait)
        self._thread = threading.Thread(target=self._run)

    def has(self, end: int) -> None:
        """Wait until the replica's log has all below `end`."""
        with self._changed:
            ready = self._changed.wait_for(lambda: self._error is not None or self._end >= end, _DEADLINE_S)
        if self._error is not None:
            raise self._error
        assert ready, f"the replica ends at {self._end}, not at {end}"

    def _tell(self, progress: Any) -> None:
        with self._changed:
            self._end = progress.end
            self._changed.notify()

    def _run(self) -> None:
        try:
            self._follower.run()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify()

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._master.close()
        if self._error is not None:
            raise self._error


def following(root: Path, cluster: Cluster) -> Following:
    """A follower of the bench's broker into the new directory `root`."""
    return Following(root, cluster.name_server, cluster.broker_name, cluster.ha_address)


@contextlib.contextmanager
def feeder(number: int, root: str, *broker: str) -> Iterator[Callable[[int], None]]:
    """One process of a crew that feeds the replica at `root`; a call waits until it has all below an end."""
    with Following(Path(root), *broker) as followed:
        yield followed.has


@contextlib.contextmanager
def watcher(number: int, where: dict[str, str], topic: str) -> Iterator[Callable[[int], list[int]]]:
    """One process of a crew with the stream reader that Spark's planning process has, by the options `where`. A call
    asks it for the end of the topic's only queue every LOOK_S, until `end`, and returns for each new message
    `monotonic_ns` when it was seen.
    """
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from pyspark_rmq.options.options import source_options
    from pyspark_rmq.read.stream_reader import RmqStreamReader
    from pyspark_rmq.schema.schema import SOURCE_SCHEMA

    options = where | {"subscribe": topic, "startingOffsets": "latest"}
    reader = RmqStreamReader(source_options(options, "stream read", 1_000_000), SOURCE_SCHEMA)
    position = reader.initialOffset()

    def watch(end: int) -> list[int]:
        nonlocal position
        seen_ns: list[int] = []
        deadline_s = time.monotonic() + _DEADLINE_S
        while (at := _next(position)) < end:
            latest = reader.latestOffset(position, ReadAllAvailable())
            seen_ns += [time.monotonic_ns()] * (_next(latest) - at)
            position = latest
            assert time.monotonic() < deadline_s, f"the reader sees messages up to {at}, not to {end}"
            time.sleep(LOOK_S)
        return seen_ns

    try:
        yield watch
    finally:
        reader.stop()


def _next(position: dict[str, Any]) -> int:
    from pyspark_rmq.position.position import StreamPosition

    (offset,) = StreamPosition.from_json(position).next.values()
    return offset
