"""What a case is given: an empty directory, sizes, and the Spark session and the Java process that all cases share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.peer import Peer

T = TypeVar("T")

QUICK_DIVISOR = 50
QUICK_ROWS_MIN = 1_000

# Unless a case asks for others.
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "6g",
    "spark.sql.session.timeZone": "UTC",
}


class Progress(Protocol):
    """Where the person at the terminal sees that something goes on."""

    def total(self, steps: int) -> None: ...

    def step(self) -> None: ...

    def tick(self, note: str = "") -> None: ...


class Shared:
    """What is started at most once in a run, when the first case asks for it, and ends with the run."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._ends.callback(self._end_spark)
        self._spark: SparkSession | None = None
        self._spark_settings: Mapping[str, str] = {}
        self._peer: Peer | None = None
        self._made: dict[Callable[..., Any], tuple[Path, Any]] = {}

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def spark(self, settings: Mapping[str, str] = SPARK_SETTINGS) -> SparkSession:
        """The session with these settings. One that has others ends, and its JVM with it."""
        if self._spark is None or self._spark_settings != settings:
            self._end_spark()
            self._spark, self._spark_settings = start_spark(settings), settings
        return self._spark

    def _end_spark(self) -> None:
        if self._spark is not None:
            stop_spark(self._spark)
            self._spark = None

    def peer(self) -> Peer:
        if self._peer is None:
            from bench.peer import Peer

            self._peer = self._ends.enter_context(Peer())
        return self._peer

    def once(self, make: Callable[[Path, Scratch], T], scratch: Scratch) -> T:
        if make not in self._made:
            directory = Path(tempfile.mkdtemp(prefix="rmq-bench-"))
            self._ends.callback(shutil.rmtree, directory, ignore_errors=True)  # unless `forget` was faster
            self._made[make] = directory, make(directory, scratch)
        return self._made[make][1]  # type: ignore[no-any-return]

    def forget(self, make: Callable[[Path, Scratch], Any]) -> None:
        if make in self._made:
            shutil.rmtree(self._made.pop(make)[0])


class Scratch:
    """For one case. `directory` is empty, on disk, and removed afterwards; `quick`: only see whether it works."""

    def __init__(self, directory: Path, shared: Shared, progress: Progress, *, quick: bool) -> None:
        self.directory = directory
        self.quick = quick
        self.spark: Callable[..., SparkSession] = shared.spark
        self.peer: Callable[[], Peer] = shared.peer
        self.tick: Callable[..., None] = progress.tick
        self._shared = shared

    def once(self, make: Callable[[Path, Scratch], T]) -> T:
        """What `make(directory, scratch)` returns, called by the first case that asks for it, with a directory of its
        own: large stores that several cases need. The directory stays until the end of the run, or `forget`.
        """
        return self._shared.once(make, self)

    def forget(self, make: Callable[[Path, Scratch], Any]) -> None:
        """Remove what `once` made, as far as it did: nobody needs it any more."""
        self._shared.forget(make)

    def rows(self, count: int) -> int:
        """`count`, or less if this is only a look whether it works."""
        return min(count, max(count // QUICK_DIVISOR, QUICK_ROWS_MIN)) if self.quick else count

    def touch_memory(self, size_bytes: int) -> None:
        """Write a file and remove it again, so that the page cache comes from memory that was used before.

        The first touch of a page on a virtual machine can take ten times as long as any later one; without this,
        whatever writes is measured by that alone, and a yardstick that writes nothing is not. At most half of what is
        free is touched.
        """
        path = self.directory / "touch"
        block = bytes(8 << 20)
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with path.open("wb", buffering=0) as file:
            for _ in range(0 if self.quick else min(size_bytes, free_bytes // 2) // len(block)):
                file.write(block)
        path.unlink()


@contextlib.contextmanager
def scratch(shared: Shared, progress: Progress, *, quick: bool) -> Iterator[Scratch]:
    """A `Scratch` whose directory is below TMPDIR."""
    directory = Path(tempfile.mkdtemp(prefix="rmq-bench-"))
    try:
        yield Scratch(directory, shared, progress, quick=quick)
    finally:
        shutil.rmtree(directory)


def start_spark(settings: Mapping[str, str] = SPARK_SETTINGS) -> SparkSession:
    """A session with the data sources of the benchmark."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    from pyspark.sql import SparkSession

    from bench.bare_sink import BareSink
    from bench.looks import CountedSource
    from bench.null_source import NullSource

    spark = SparkSession.builder.master("local[2]").config(map=dict(settings)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (NullSource, CountedSource, BareSink):
        spark.dataSource.register(source)
    return spark


def stop_spark(spark: SparkSession) -> None:
    """End a session and its JVM, which would remember settings, and can load Kafka's connector only once."""
    from pyspark import SparkContext

    spark.stop()
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
