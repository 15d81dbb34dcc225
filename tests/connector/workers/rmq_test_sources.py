"""Variants of the data source that break at a chosen moment; imported by Spark's workers in tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.home import Marker
from pyspark_rmq.options import sink_options
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.writer import RmqStreamWriter, RmqWriter, batch_writer, stream_writer

Messages = Sequence[WriterCommitMessage | None]


def kill_driver() -> None:
    """SIGKILL the JVM above this process, and the Python program above that."""
    pid, doomed = os.getpid(), []
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text()
        name, parent = status[status.index("(") + 1 : status.rindex(")")], int(status.rsplit(")", 1)[1].split()[1])
        if name == "java":
            doomed = [pid, parent]
            break
        pid = parent
    for victim in doomed:
        os.kill(victim, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def stream_part(source: DefaultSource, schema: StructType, overwrite: bool) -> tuple[Any, Any]:
    writer = stream_writer(sink_options(source.options, "stream write"), schema, overwrite)
    return writer._options, writer._columns


class DiesAfterAppend(RmqStreamWriter):
    def commit(self, messages: Messages, batchId: int) -> None:
        super().commit(messages, batchId)
        kill_driver()


class DiesBeforeAppend(RmqStreamWriter):
    def commit(self, messages: Messages, batchId: int) -> None:
        kill_driver()


class WithoutMarker(RmqStreamWriter):
    def _marker(self, query_id: str | None, batch_id: int) -> Marker | None:
        return None


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


class DiesAfterAppendSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_dies_after_append"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return DiesAfterAppend(*stream_part(self, schema, overwrite))


class DiesBeforeAppendSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_dies_before_append"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return DiesBeforeAppend(*stream_part(self, schema, overwrite))


class WithoutMarkerSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_without_marker"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return WithoutMarker(*stream_part(self, schema, overwrite))


class FirstAttemptFailsSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "rmq_first_attempt_fails"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        writer = batch_writer(sink_options(self.options, "batch write"), schema, overwrite)
        return FirstAttemptFails(writer._options, writer._columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return StreamFirstAttemptFails(*stream_part(self, schema, overwrite))
