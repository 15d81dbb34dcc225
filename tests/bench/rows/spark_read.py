"""Our source beside the null source: batch and stream, all columns and five."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES
from bench.null_source import PARTITIONS
from bench.scratch import Scratch
from bench.spark_input import NARROW, filled, read_all, rows_per_second, run_stream

ROWS = {100: 2_000_000, 1024: 800_000}
TRIGGER_ROWS = 100_000
TRIGGERS = 10
COLUMNS = {"17": None, "5": NARROW}
WHAT = {"17": "17 columns with the property map", "5": "5 columns by user schema"}

_SETTINGS = (
    f"local[2], {PARTITIONS} queues, as many tasks on either side, page cache warm, Spark's noop sink; three "
    "properties per message. The null source hands over one batch, which ours has read, again and again."
)
_LIMIT = (
    "One pass over the frames: 0.26 us of a core for a row of 100 B and 17 columns, 0.17 of it in the native "
    "extension. With five columns, copying bodies is two fifths of the pass at 1 KiB. A stream also waits 0.25 s "
    "for imports in the process that Spark starts for it."
)
_COUNTS = "Rows: " + " and ".join(f"{rows:,} of {size:,} B" for size, rows in ROWS.items()) + "."


def _batch(columns: str, body_bytes: int) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        spark = scratch.spark()
        made = filled(scratch.directory, scratch.rows(ROWS[body_bytes]), body_bytes)

        def reading(source: str, options: dict[str, str]) -> Callable[[], float]:
            reader = spark.read.format(source).options(**options)
            frame = (reader.schema(COLUMNS[columns]) if COLUMNS[columns] else reader).load()
            return lambda: rows_per_second(made.rows, lambda: read_all(frame))

        assert spark.read.format("rmq").options(**made.ours()).load().count() == made.rows
        yield Pair(reading("rmq", made.ours()), reading("null", made.null()))

    return prepare


def _stream(columns: str, body_bytes: int, trigger_rows: int | None = None) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        spark = scratch.spark()
        total = ROWS[body_bytes] if trigger_rows is None else TRIGGERS * trigger_rows
        made = filled(scratch.directory, scratch.rows(total), body_bytes)
        limit = str(scratch.rows(trigger_rows)) if trigger_rows else ""

        def reading(source: str, options: dict[str, str]) -> Callable[[], float]:
            reader = spark.readStream.format(source).options(**options)
            frame = (reader.schema(COLUMNS[columns]) if COLUMNS[columns] else reader).load()

            def run() -> None:
                query = run_stream(frame, scratch.directory)
                assert sum(progress.numInputRows for progress in query.recentProgress) == made.rows

            return lambda: rows_per_second(made.rows, run)

        yield Pair(
            reading("rmq", made.ours() | ({"maxOffsetsPerTrigger": limit} if limit else {})),
            reading("null", made.null() | ({"rowsPerTrigger": limit} if limit else {})),
        )

    return prepare


def _cases() -> Iterator[Case]:
    for columns, what in WHAT.items():
        for body_bytes in BODY_BYTES:
            yield Case(
                f"read-batch-{columns}-columns-{body_bytes}",
                f"batch read, {what}",
                "read",
                body_bytes,
                "null source, same columns and batch size",
                "rows/s",
                Target(0.85),
                (_SETTINGS, _COUNTS),
                contextmanager(_batch(columns, body_bytes)),
                limit=_LIMIT,
            )
            yield Case(
                f"read-stream-{columns}-columns-{body_bytes}",
                f"stream read (AvailableNow), {what}",
                "read",
                body_bytes,
                "null source, same columns and batch size",
                "rows/s",
                Target(0.85),
                (_SETTINGS, "One trigger; from the start of the query to its end. " + _COUNTS),
                contextmanager(_stream(columns, body_bytes)),
                limit=_LIMIT,
            )
    for body_bytes in BODY_BYTES:
        yield Case(
            f"read-stream-10-triggers-{body_bytes}",
            f"stream read (AvailableNow) in {TRIGGERS} triggers, {WHAT['17']}",
            "read",
            body_bytes,
            "null source, same columns, batch size and triggers",
            "rows/s",
            Target(0.85),
            (_SETTINGS, f"{TRIGGERS} triggers of {TRIGGER_ROWS:,} rows each; from the start of the query to its end."),
            contextmanager(_stream("17", body_bytes, TRIGGER_ROWS)),
            limit=(
                "Spark needs about half of a trigger's 0.4 to 0.5 s for any trigger, even with ten rows. The rest is "
                "the pass over the frames."
            ),
        )


CASES = tuple(_cases())
