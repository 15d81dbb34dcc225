"""A model of Spark's driver loop over a source in Python: the call orders of MicroBatchExecution, without a JVM.

The order of calls is from traces of a real Spark 4.0.5; those of 4.1 and of the wrapper are from its source. The sink
is a dict that keeps one result for each batch number: a repeated batch replaces its rows, as every sink of ours does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_rmq.source import DefaultSource

Api = Literal["4.0", "4.1", "4.1 with wrapper", "4.2", "4.3"]
APIS: tuple[Api, ...] = ("4.0", "4.1", "4.1 with wrapper", "4.2", "4.3")
UNTOLD: tuple[Api, ...] = APIS[:3]
Trigger = Literal["availableNow", "processingTime"]
# A kill: before the sink has the batch, between the sink and Spark's log of commits, and behind that.
Kill = Literal["before the sink", "before the commit entry", "behind the commit entry"]


class KilledError(Exception):
    """The driver dies here."""


def copied(value: Any) -> Any:
    """What reaches another process."""
    return cloudpickle.loads(cloudpickle.dumps(value))


def through_spark(position: Mapping[str, Any]) -> dict[str, Any]:
    """What comes back from the JVM, or from the checkpoint."""
    value: dict[str, Any] = json.loads(json.dumps(position))
    return value


@dataclass
class Checkpoint:
    """Spark's log of planned batches, and of completed ones, with the rows that the sink has of each."""

    planned: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, list[str]] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        return sorted(row for batch in self.sink.values() for row in batch)

    def written(self, directory: Path) -> Path:
        """This as a directory, as Spark would write it."""
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
        about = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        for number, position in enumerate(self.planned):
            (directory / "offsets" / str(number)).write_text(f"v1\n{about}\n{json.dumps(position)}")
        for number in range(self.committed):
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        return directory


@dataclass
class Query:
    """One query with its checkpoint; each `run` is a driver of its own."""

    options: Mapping[str, str]
    api: Api
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    calls: list[str] = field(default_factory=list)
    reads_rows: bool = True
    """False: a `foreachBatch` that looks at no row, so that nobody asks for partitions."""

    def run(self, trigger: Trigger = "availableNow", kill: Kill | None = None, triggers: int = 10) -> list[int]:
        """Run until nothing is new, or `triggers` times; returns the numbers of rows of the batches. A kill meets the
        first batch.
        """
        source = DefaultSource(CaseInsensitiveDict(dict(self.options)))
        self._schema = source.schema()
        self._source = source
        reader: Any = source.streamReader(self._schema)
        assert (type(reader).__name__ == "UntoldStreamReader") == (self.api in UNTOLD)
        before = len(self.checkpoint.sink)
        counts: list[int] = []
        try:
            counts.extend(len(self.checkpoint.sink[one]) for one in self._batches(reader, trigger, kill, triggers))
        except KilledError:
            pass
        finally:
            reader.stop()
        assert len(self.checkpoint.sink) >= before
        return counts

    def _batches(self, reader: Any, trigger: Trigger, kill: Kill | None, triggers: int) -> Iterator[int]:
        state = self.checkpoint
        told = self.api not in UNTOLD
        wrapped = trigger == "availableNow" and self.api == "4.1 with wrapper"
        single = trigger == "availableNow" and not told and not wrapped
        fetched: dict[str, Any] | None = None
        if told and trigger == "availableNow":
            self._call(reader, "prepareForTriggerAvailableNow")
        if wrapped:
            fetched = self._call(reader, "latestOffset")
        if not told and state.planned:
            self._call(reader, "partitions", state.planned[-1], state.planned[-1])  # setLatestSeenOffset
        is_planned = len(state.planned) > state.committed
        for _ in range(triggers):
            number = state.committed
            if not is_planned:
                end = self._latest(reader, fetched, told=told)
                if state.planned and end == state.planned[-1]:
                    break
                state.planned.append(end)
                if number:
                    self._call(reader, "commit", state.planned[number - 1])
            self._run_batch(reader, number, kill)
            is_planned, kill = False, None
            yield number
            if single:
                break

    def _latest(self, reader: Any, fetched: dict[str, Any] | None, *, told: bool) -> dict[str, Any]:
        state = self.checkpoint
        if told:
            start = state.planned[-1] if state.planned else self._call(reader, "initialOffset")
            end = self._call(reader, "latestOffset", start, reader.getDefaultReadLimit())
            self._call(reader, "reportLatestOffset")
            return end
        if fetched is None:
            return self._call(reader, "latestOffset")
        if not state.planned:
            self._call(reader, "initialOffset")  # MicroBatchExecution.getStartOffset
        self._call(reader, "latestOffset")  # for the query's progress
        return fetched

    def _run_batch(self, reader: Any, number: int, kill: Kill | None) -> None:
        state = self.checkpoint
        end = state.planned[number]
        start = state.planned[number - 1] if number else self._call(reader, "initialOffset")
        rows: list[str] = []
        if self.reads_rows:
            parts = self._call(reader, "partitions", start, end)
            task = copied(self._source).streamReader(self._schema)
            batches = [batch for part in parts for batch in task.read(copied(part))]
            rows = [body.decode() for batch in batches for body in batch.column("body").to_pylist()]
        if kill == "before the sink":
            raise KilledError
        state.sink[number] = rows
        if kill == "before the commit entry":
            raise KilledError
        state.committed += 1
        if kill == "behind the commit entry":
            raise KilledError

    def _call(self, reader: Any, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        given = [through_spark(one) if isinstance(one, dict) else one for one in arguments]
        answer = getattr(reader, name)(*given)
        return through_spark(answer) if isinstance(answer, dict) else answer
