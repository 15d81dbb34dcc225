"""The data source with attempts that fail: options `fail.read` and `fail.write` say how many of each task, 3 in all at
most.

They fail at once, or with `fail.late` when their work is done; each adds a letter to the file `fail.tell`. A protection
that is to be missing is named by `fail.without`: workers outlive a job.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

import crash.spark_kills
import crash.spark_tasks  # noqa: F401  # the protections that can be named
from crash.protections import without
from pyspark_rmq.options.options import sink_options, source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.writer import RmqStreamWriter, RmqWriter, batch_writer, stream_writer

PREFIX = "fail."


class Failing:
    """What fails, and when."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.attempts = {"r": int(options.get(PREFIX + "read", "0")), "w": int(options.get(PREFIX + "write", "0"))}
        self.late = options.get(PREFIX + "late") == "true"
        self.tell = options.get(PREFIX + "tell", "")
        self.without = options.get(PREFIX + "without", "")

    def unprotected(self) -> AbstractContextManager[None]:
        """For a block that lacks the protection."""
        return without(self.without) if self.without else nullcontext()

    def point(self, what: str, late: bool) -> None:
        """A task is here before (`late` false) or after it reads ("r") or writes ("w")."""
        context = TaskContext.get()
        assert context is not None
        # One task reads and writes: first the reads of its attempts fail, then the writes.
        first = 0 if what == "r" else self.attempts["r"]
        if late == self.late and first <= context.attemptNumber() < first + self.attempts[what]:
            with Path(self.tell).open("ab") as file:
                file.write(what.encode())
            raise RuntimeError(f"attempt {context.attemptNumber()} fails {'after' if late else 'before'} its work")


class FailingReader(RmqReader):
    failing: Failing

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self.failing.point("r", late=False)
        yield from super().read(partition)
        self.failing.point("r", late=True)


class FailingStreamReader(RmqStreamReader):
    failing: Failing

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self.failing.point("r", late=False)
        yield from super().read(partition)
        self.failing.point("r", late=True)


class FailingWriter(RmqWriter):
    failing: Failing

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self.failing.point("w", late=False)
        with self.failing.unprotected():
            message = super().write(iterator)
        self.failing.point("w", late=True)
        return message


class FailingStreamWriter(RmqStreamWriter):
    failing: Failing

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self.failing.point("w", late=False)
        with self.failing.unprotected():
            message = super().write(iterator)
        self.failing.point("w", late=True)
        return message


class FailingSource(DefaultSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if not name.startswith(PREFIX)})
        self.failing = Failing({name: value for name, value in options.items() if name.startswith(PREFIX)})

    @classmethod
    def name(cls) -> str:
        return "rmq_failing"

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._given(FailingReader(source_options(self.options, "batch read", 0), schema))

    def streamReader(self, schema: StructType) -> Any:
        return self._given(FailingStreamReader(source_options(self.options, "stream read", 0), schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        options = sink_options(self.options, "batch write")
        return self._given(FailingWriter(batch_writer(options, schema, overwrite).sink))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        options = sink_options(self.options, "stream write")
        return self._given(FailingStreamWriter(stream_writer(options, schema, overwrite).sink))

    def _given(self, part: Any) -> Any:
        part.failing = self.failing
        return part
