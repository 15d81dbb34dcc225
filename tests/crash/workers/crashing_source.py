"""The data source with places at which it kills its driver. Imported by Spark's workers, where the protections that
the environment names are taken out.

A plan comes with the options `crash.*`, which the data source itself does not know. Spark calls the parts in different
processes: those of the planning process count how often they come to their place, the others know the batch.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import crash.spark_kills
import crash.spark_tasks  # noqa: F401  # its protections can be named, too
from crash.protections import remove_as_told
from pyspark_rmq.options.options import sink_options, source_options
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.writer import RmqStreamWriter, stream_writer
from rmq_store.files import durable

remove_as_told()

PREFIX = "crash."


class Plan:
    """Where to die: at the `count`-th time in the planning process, from `batch` on elsewhere.

    `driver` is the process group that dies. With `survives`, the process at the place goes on without it, as one that
    was not in the group does.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.point = options.get(PREFIX + "point", "")
        self.count = int(options.get(PREFIX + "count", "1"))
        self.batch = int(options.get(PREFIX + "batch", "0"))
        self.operation = int(options.get(PREFIX + "operation", "1"))
        self.driver = int(options.get(PREFIX + "driver", "0"))
        self.survives = options.get(PREFIX + "survives") == "true"
        self._reached = 0

    def reach(self, point: str) -> None:
        """In the planning process."""
        if point == self.point:
            self._reached += 1
            if self._reached == self.count:
                self._kill()

    def reach_in_batch(self, point: str, batch_id: int) -> None:
        """In a task or a commit."""
        if point == self.point and batch_id >= self.batch:
            self._kill()

    @contextlib.contextmanager
    def at_operation(self, point: str, operations: tuple[str, ...], where: str, nth: int = 1) -> Iterator[None]:
        """Die before the `nth` of these operations of the file layer, on a path with `where` in it."""
        if point != self.point:
            yield
            return
        seen = 0

        def look(operation: str, path: str) -> None:
            nonlocal seen
            if (not operations or operation in operations) and where in path:
                seen += 1
                if seen == nth:
                    self._kill()

        durable.hook = look
        try:
            yield
        finally:
            durable.hook = None

    def _kill(self) -> None:
        os.killpg(self.driver, signal.SIGKILL)
        if not self.survives:
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingReader(RmqStreamReader):
    plan: Plan
    _planned_from: dict[str, Any] | None = None

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        if self._planned_from is not None and start != self._planned_from:
            self.plan.reach("after commit log")
        self._planned_from = start
        end = super().latestOffset(start, limit)
        if end != start:
            self.plan.reach("before offsets log")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        parts = super().partitions(start, end)
        self.plan.reach("before tasks")
        return parts

    def _complete(self, *given: Any) -> None:
        with self.plan.at_operation("group offsets", ("rename",), "consumerOffset.json", 2):
            super()._complete(*given)


class CrashingWriter(RmqStreamWriter):
    plan: Plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark_rmq.write.writer import stream_ids

        batch_id = int(stream_ids()[1])
        message = super().write(self._watched(iterator, batch_id))
        self.plan.reach_in_batch("after task", batch_id)
        return message

    def _watched(self, iterator: Iterator[Any], batch_id: int) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            self.plan.reach_in_batch("in task", batch_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        plan = self.plan
        plan.reach_in_batch("before append", batchId)
        with contextlib.ExitStack() as places:
            if batchId >= plan.batch:
                places.enter_context(plan.at_operation("in append", (), "", plan.operation))
                places.enter_context(plan.at_operation("staging sweep", ("unlink", "rmdir"), "/staging/"))
            super().commit(messages, batchId)
        plan.reach_in_batch("before commit log", batchId)


class CrashingSource(DefaultSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if not name.startswith(PREFIX)})
        self.plan = Plan({name: value for name, value in options.items() if name.startswith(PREFIX)})

    @classmethod
    def name(cls) -> str:
        return "rmq_crashing"

    def streamReader(self, schema: StructType) -> Any:
        reader = CrashingReader(source_options(self.options, "stream read", 0), schema)
        reader.plan = self.plan
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        options = sink_options(self.options, "stream write")
        writer = CrashingWriter(stream_writer(options, schema, overwrite).sink)
        writer.plan = self.plan
        return writer
