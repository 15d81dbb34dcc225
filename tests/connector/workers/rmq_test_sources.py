"""Variants of the data source that break at a chosen moment, or tell of a task; imported by Spark's workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.options.options import sink_options, source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.writer import RmqStreamWriter, RmqWriter, batch_writer, stream_writer


def fail_first_attempt() -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails after it has staged its rows")


class FirstAttemptFails(RmqWriter):
    """The first attempt of each task stages everything, reports nothing and fails."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(iterator)
        fail_first_attempt()
        return message


class StreamFirstAttemptFails(RmqStreamWriter):
    """The same in a stream."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(iterator)
        fail_first_attempt()
        return message


class FirstAttemptFailsSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_first_attempt_fails"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return FirstAttemptFails(batch_writer(sink_options(self.options, "batch write"), schema, overwrite).sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        options = sink_options(self.options, "stream write")
        return StreamFirstAttemptFails(stream_writer(options, schema, overwrite).sink)


class SparedReader(RmqReader):
    """Each task tells at its end how many objects collections look past, and how many they look at."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from super().read(partition)
        with Path(self._options.path, "spared").open("a", encoding="ascii") as file:
            file.write(f"{gc.get_freeze_count()} {len(gc.get_objects())}\n")


class SparedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_spared"

    def reader(self, schema: StructType) -> Any:
        return SparedReader(source_options(self.options, "batch read", time.time_ns() // 1_000_000), schema)


class RegisteredSource(DefaultSource):
    """The source under a name that nothing but `register` makes known."""

    @classmethod
    def name(cls) -> str:
        return "rmq_registered"
