"""What the rows about Spark share: a store to read with a template of it for the null source, and how to time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.messages import batch
from bench.null_source import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

TOPIC = "Bench"
NARROW = "topic string, queueId int, queueOffset bigint, body binary, storeTimestamp timestamp"
_CHUNK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Input:
    """A store with `rows` messages in as many queues as the null source has tasks, and that source's template."""

    store: Path
    template: Path
    rows: int

    def ours(self) -> dict[str, str]:
        """The options of our source."""
        return {"path": str(self.store), "subscribe": TOPIC, "startingOffsets": "earliest"}

    def null(self) -> dict[str, str]:
        """The options of the null source."""
        return {"template": str(self.template), "rows": str(self.rows)}


def filled(directory: Path, rows: int, body_bytes: int) -> Input:
    """Make the store. A message has a tag, one key and its UNIQ_KEY: a property map of three entries.

    The template is the first batch that a task of ours would read: the same columns, types and number of rows.
    """
    from pyspark_rmq.access.spark_api import arrow_schema
    from pyspark_rmq.schema.schema import SOURCE_SCHEMA
    from rmq_store import Store

    made = Input(directory / "store", directory / "template.arrow", rows)
    messages = batch(min(rows, _CHUNK_ROWS), body_bytes).drop_columns(["properties"])
    with Store.open(made.store, create=True) as store:
        store.create_topic(TOPIC, queue_count=PARTITIONS)
        for done in range(0, rows, _CHUNK_ROWS):
            store.append(messages.slice(0, min(_CHUNK_ROWS, rows - done)), TOPIC)
        first = next(store.read(TOPIC, 0, 0, store.queue_ranges(TOPIC)[0].max_offset))
    template = first.cast(arrow_schema(SOURCE_SCHEMA))
    with pa.OSFile(str(made.template), "wb") as file, pa.ipc.new_file(file, template.schema) as writer:
        writer.write_batch(template)
    return made


def rows_per_second(rows: int, run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return rows / (time.perf_counter() - begun)


def read_all(frame: DataFrame) -> None:
    """Read everything into Spark's sink that drops rows inside the JVM."""
    frame.write.format("noop").mode("overwrite").save()


def run_stream(frame: DataFrame, directory: Path, sink: str = "noop", **options: str) -> StreamingQuery:
    """Run a new query with AvailableNow to its end, into our sink, the null sink, or Spark's own that drops rows."""
    checkpoint = directory / f"checkpoint-{uuid.uuid4().hex}"
    writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
