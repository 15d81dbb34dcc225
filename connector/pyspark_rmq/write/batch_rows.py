"""The rows of a micro-batch in the driver, in chunks that can be read several times. Data plane.

Tasks cut the rows into pieces and return each piece as one binary value, because Spark pickles each row that it passes
to Python. The driver writes the pieces to a temporary file, which stays in memory while it is small, and reads chunks
from it. So no transaction is open while Spark works, and a repeated transaction does not run the batch again. The
driver's JVM holds one partition at a time (option minPartitions makes partitions smaller), this process one chunk and
one piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rmq.position.position import refuse
from pyspark_rmq.query import foreach_batch
from pyspark_rmq.schema.message_ids import message_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rmq_store.reliable import Batch

_RETRY_TOPIC_PREFIX = "%RETRY%"

# A chunk with large bodies has fewer rows.
CHUNK_BYTES_MAX: Final = 8 << 20
# Most batches of a stream with a short trigger are smaller, and touch no disk.
MEMORY_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Cutter:
    """The function that a task runs. It cuts rows into pieces of at most `rows` rows and `CHUNK_BYTES_MAX` bytes; only
    a piece of a single row may be larger.
    """

    rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per piece, whose only column is the piece as an IPC stream."""
        for batch in batches:
            for start in range(0, batch.num_rows, self.rows):
                for piece in _halved(batch.slice(start, self.rows)):
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, piece.schema) as writer:
                        writer.write_batch(piece)
                    yield pa.record_batch({"piece": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.nbytes <= CHUNK_BYTES_MAX or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _halved(rows.slice(0, half))
    yield from _halved(rows.slice(half))


class _MessageLocation(NamedTuple):
    """Queue and offset of the message of a row; no broker name if the rows have none."""

    broker_name: str | None
    log_offset: int


class BatchRows:
    """The rows of a data frame, which Spark runs once. A context manager: it deletes its file at the end. `batch` names
    the query and batch; `marks` has the highest queue offset of each queue, if the rows have the columns for it.

    Raises:
        NoMessageIdError: a row has no id.
        UsageError: a message has several rows.
        OSError: the directory for temporary files is full.
    """

    def __init__(self, frame: DataFrame, batch: Batch, chunk_rows: int) -> None:
        self.batch = batch
        self.marks: dict[tuple[str, str, int], int] = {}
        self._chunk_rows = chunk_rows
        self._file: Any = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX)
        try:
            self._fill(frame)
        except BaseException:
            self._file.close()
            raise

    def _fill(self, frame: DataFrame) -> None:
        writer = None
        last: _MessageLocation | None = None
        pieces = foreach_batch.map_in_arrow(frame, Cutter(self._chunk_rows).__call__, "piece binary")
        for row in pieces.toLocalIterator():
            for piece in pa.ipc.open_stream(row[0]):
                last = _check_single(piece, last)
                ids = message_ids(piece)
                self.batch = self.batch.with_ids(ids)
                self._raise_marks(piece)
                # Behind the others, where no name can be in its way.
                with_ids = pa.record_batch([*piece.columns, pa.array(ids)], names=[*piece.schema.names, "id"])
                if writer is None:
                    writer = pa.ipc.new_stream(self._file, with_ids.schema)
                writer.write_batch(with_ids)
        if writer is not None:
            writer.close()

    def _raise_marks(self, piece: pa.RecordBatch) -> None:
        """Only by first deliveries: a retry, or a redriven message, has the queue offset of the retry topic."""
        topic = "storeTopic" if "storeTopic" in piece.schema.names else "topic"
        needed = ["brokerName", topic, "queueId", "queueOffset", "reconsumeTimes"]
        if not set(needed) <= set(piece.schema.names):
            return
        is_retry = pc.starts_with(pc.field(topic), _RETRY_TOPIC_PREFIX)
        first = pa.table(piece.select(needed)).filter((pc.field("reconsumeTimes") == 0) & ~is_retry)
        for found in first.group_by(needed[:3]).aggregate([("queueOffset", "max")]).to_pylist():
            queue = (found["brokerName"], found[topic], found["queueId"])
            self.marks[queue] = max(self.marks.get(queue, -1), found["queueOffset_max"])

    def chunks(self) -> Iterator[tuple[list[str], pa.RecordBatch]]:
        """Ids and rows, from the beginning. Each chunk has `chunk_rows` rows; the last one, and chunks that would
        exceed `CHUNK_BYTES_MAX` bytes, have fewer.
        """
        self._file.seek(0)
        held: list[pa.RecordBatch] = []
        held_rows = held_bytes = 0
        for piece in pa.ipc.open_stream(self._file) if self.batch.row_count else ():
            if held and held_bytes + piece.nbytes > CHUNK_BYTES_MAX:
                yield _joined(held)
                held, held_rows, held_bytes = [], 0, 0
            missing = self._chunk_rows - held_rows
            if piece.num_rows >= missing:
                yield _joined([*held, piece.slice(0, missing)])
                piece, held, held_rows, held_bytes = piece.slice(missing), [], 0, 0
            if piece.num_rows:
                held.append(piece)
                held_rows += piece.num_rows
                held_bytes += piece.nbytes
        if held:
            yield _joined(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


def _check_single(rows: pa.RecordBatch, before: _MessageLocation | None) -> _MessageLocation | None:
    """Refuse several rows of one message: all but the first would be left out as done. They are neighbours unless they
    were shuffled. `before` is the location of the row before these rows. Returns that of the last row.

    Without a column brokerName, rows of different brokers with the same commitLogOffset count as one message.
    """
    names = rows.schema.names
    if "commitLogOffset" not in names or not rows.num_rows:
        return None
    brokers = rows.column("brokerName") if "brokerName" in names else pa.nulls(rows.num_rows, pa.string())
    locations = pa.table([brokers, rows.column("commitLogOffset")], names=["brokerName", "commitLogOffset"])
    first, last = (
        _MessageLocation(*(column[at].as_py() for column in locations.columns)) for at in (0, rows.num_rows - 1)
    )
    counted = locations.group_by(locations.column_names).aggregate([([], "count_all")])
    several = counted.filter(pc.field("count_all") > 1)
    log_offset = several["commitLogOffset"][0].as_py() if several.num_rows else first.log_offset
    if several.num_rows or first == before:
        refuse(
            f"write_once: several rows have the commitLogOffset {log_offset}: a message is written as a whole. Take it "
            "apart (explode, a join) in the function write"
        )
    return last


def _joined(pieces: list[pa.RecordBatch]) -> tuple[list[str], pa.RecordBatch]:
    rows = pa.concat_batches(pieces)
    columns = rows.columns[:-1]
    return rows.column(rows.num_columns - 1).to_pylist(), pa.record_batch(columns, names=rows.schema.names[:-1])
