"""The streams of a scene as a program: it starts a query again that has ended, and writes down what they did.

    python -m helpers.cluster.weather.driver '{"name_server": "...", "orders": "T", "copies": "U", "read": "cg", ...}'

In the directory in which it runs:

    read/<batch>    the rows of a batch of the query `read`: a line of JSON, {"at": time in s, "rows": [broker, queue,
                    offset, body, time of storage in ms]}
    handled         a line for each message that the handler of the query `handle` has got: tries before, the body
    ended           a line of JSON for each query that has ended by itself: at, query, error
    restart         from the test: stop the queries and start them again; it is removed when that is done
    report          from the test: write `progress`; it is removed when that is done
    progress        a line of JSON for each trigger of a query that runs: query, progress
    stop            from the test: stop the queries, and end
    stopped         a line of JSON for each query that was stopped: at, query, seconds
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.2
PAUSE_S = 0.5
FIRST_BATCH_S = 60.0
PLACES = ("brokerName", "queueId", "queueOffset", "string(body)", "unix_millis(storeTimestamp)")
FAILS_EVERY = 40


def session() -> Any:
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            # A task that waits for a broker keeps its place: there is one for each query in any case.
            SparkSession.builder.master("local[6,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.numRecentProgressUpdates", "5000")
            .config("spark.sql.streaming.noDataProgressEventInterval", "1000")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(Path.cwd() / "warehouse"))
            .getOrCreate()
        )


def note(file: str, **what: object) -> None:
    """A line of JSON behind the others."""
    with Path(file).open("a") as lines:
        lines.write(json.dumps({"at": time.time(), **what}) + "\n")


def take(rows: Any, batch: int) -> None:
    """Write down a batch. One that comes again, because its query has ended, has the same rows."""
    found = sorted(list(row) for row in rows.selectExpr(*PLACES).collect())
    file = Path("read") / str(batch)
    if file.exists():
        before = json.loads(file.read_text())["rows"]
        assert before == found, f"batch {batch} came again with other rows"
        return
    hidden = Path("read") / f".{batch}"
    hidden.write_text(json.dumps({"at": time.time(), "rows": found}))
    hidden.rename(file)


class Streams:
    """The queries by name, and how each of them is started."""

    def __init__(self, spark: Any, given: dict[str, Any]) -> None:
        self._spark = spark
        self._given = given
        self._fails_on_loss = True
        self._starts: dict[str, Callable[[], Any]] = {
            "read": self._read, "copy": self._copy, "handle": self._handle,
        }  # fmt: skip
        self._running: dict[str, Any] = {}
        for name in given.get("queries", self._starts):
            # One after the other: Spark gives each Python process ten seconds to start.
            self._start(name)
            self._await_first_batch(name)

    def watch(self) -> None:
        """Start again what has ended."""
        for name, query in list(self._running.items()):
            if not query.isActive:
                error = str(query.exception())
                note("ended", query=name, error=error)
                if "DataLossError" in error:
                    self._fails_on_loss = False
                time.sleep(PAUSE_S)
                self._start(name)

    def stop(self) -> None:
        """Stop all, and write down how long each took."""
        for name, query in self._running.items():
            began_s = time.monotonic()
            query.stop()
            note("stopped", query=name, seconds=time.monotonic() - began_s)
        self._running.clear()

    def restart(self) -> None:
        """Stop all, and start them again."""
        names = list(self._running)
        self.stop()
        for name in names:
            self._start(name)

    def _start(self, name: str) -> None:
        self._running[name] = self._starts[name]()

    def _await_first_batch(self, name: str) -> None:
        commits = Path("checkpoints") / name / "commits"
        until_s = time.monotonic() + FIRST_BATCH_S
        while not list(commits.glob("[0-9]*")) and self._running[name].isActive and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def report(self) -> None:
        """Write down what the queries that run say of their triggers."""
        Path("progress").unlink(missing_ok=True)
        for name, query in self._running.items():
            for one in query.recentProgress:
                note("progress", query=name, progress=json.loads(one.json))

    def _source(self, **options: str) -> Any:
        given = {
            "nameServer": self._given["name_server"], "subscribe": self._given["orders"],
            "startingOffsets": "earliest", "failOnDataLoss": str(self._fails_on_loss).lower(),
            **self._given.get("source", {}), **options,
        }  # fmt: skip
        return self._spark.readStream.format("rmq").options(**given).load()

    def _started(self, writer: Any, name: str) -> Any:
        place = str(Path.cwd() / "checkpoints" / name)
        return writer.option("checkpointLocation", place).trigger(processingTime="1 second").start()

    def _read(self) -> Any:
        return self._started(self._source(group=self._given["read"]).writeStream.foreachBatch(take), "read")

    def _copy(self) -> Any:
        given = {"nameServer": self._given["name_server"], "topic": self._given["copies"]}
        rows = self._source().select("body").writeStream.format("rmq")
        return self._started(rows.options(**given, **self._given.get("sink", {})), "copy")

    def _handle(self) -> Any:
        from pyspark_rmq import RECONSUME_LATER, SUCCESS, consume

        group, file = self._given["handle"], str(Path.cwd() / "handled")

        def handler(row: Any) -> Any:
            body = bytes(row.body)
            with Path(file).open("a") as lines:
                lines.write(f"{row.reconsumeTimes} {body.decode()}\n")
            fails = row.reconsumeTimes == 0 and zlib.crc32(body) % FAILS_EVERY == 0
            return RECONSUME_LATER if fails else SUCCESS

        writer = consume(
            self._source(group=group), handler, group=group, options={"nameServer": self._given["name_server"]}
        )
        return self._started(writer, "handle")


def main() -> None:
    spark = session()
    Path("read").mkdir()
    streams = Streams(spark, json.loads(sys.argv[1]))
    try:
        while not Path("stop").exists():
            streams.watch()
            for name, do in {"restart": streams.restart, "report": streams.report}.items():
                if Path(name).exists():
                    do()
                    Path(name).unlink()
            time.sleep(POLL_S)
        streams.stop()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        Path("finished").touch()
    spark.stop()


if __name__ == "__main__":
    main()
