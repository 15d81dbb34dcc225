"""`write_once`: writes the rows of a stream to a database, exactly once, with `rmq_store.reliable`. Control plane.

The steps of a batch, in the driver:

    W1  its rows come to the driver, into a temporary file (`batch_rows`)
    W2  inbox records and rows are written in one transaction (`rmq_store.reliable.inbox.batches`), which is repeated
        when the database asks for it
    W3  Spark logs the batch; the next poll for messages commits the group's offsets

After a failure before the commit of W2 the database has nothing of the batch. After the commit the batch may come
again: its inbox records are there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import DataFrame

from pyspark_rmq.older_spark.group_listener import listen
from pyspark_rmq.options.option_values import group_name
from pyspark_rmq.position.position import refuse
from pyspark_rmq.query import connect_query, foreach_batch
from pyspark_rmq.query.foreach_batch import BatchFunction
from pyspark_rmq.retry.idempotency import STUB_TABLES
from pyspark_rmq.write.batch_rows import BatchRows
from rmq_store.arguments import instance
from rmq_store.errors import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from rmq_store.reliable import BatchWriter, Tables

_log = logging.getLogger(__name__)

RowsMode = Literal["rows", "arrow"]
MODES: Final = ("rows", "arrow")
CHUNK_ROWS: Final = 1_000

_TARGET_CHARACTERS = 64

Write = Callable[[Any, Any], object]


def write_once(
    stream: DataFrame,
    database: str,
    *,
    group: str,
    write: Write | None = None,
    table: str | sa.Table | None = None,
    mode: RowsMode = "rows",
    chunk_rows: int = CHUNK_ROWS,
    prefix: str = "rmq_",
    schema: str | None = None,
    stub_database: str | None = None,
) -> DataStreamWriter:
    """Write the rows of a stream to a database, each message once: rows and inbox records are in one transaction per
    batch.

    `stream` was read with `format("rmq")`. It may have been filtered and given more columns, but a message has one row,
    and the column `properties` has its id: OUTBOX_ID, else UNIQ_KEY. `database` is `env:NAME`, `file:/path` or a URL.
    The driver opens it; it has the tables of `rmq_store.reliable.Tables(prefix=prefix, schema=schema)`. A row is
    written if `group` has not done its message: not in this query, in another one, nor by any other consumer of
    `rmq_store.reliable`. The message's stub is confirmed in the same transaction; a message whose stub is void is left
    out. `stub_database` is the database of the stubs, if that is another one: then void messages are not left out.

    Either `table` gets the rows: a SQLAlchemy Table or a name. The columns of the source that the table lacks are left
    out; it must have any other column. Or `write(connection, rows)` is called in the driver, with rows that are not
    done yet, for each chunk of at most `chunk_rows` rows (fewer if they have more than 8 MiB). `mode` is the type of
    `rows`:

        "rows"     a list of dicts      "arrow"     a `pyarrow.RecordBatch`

    `write` uses only `connection`, and neither commits nor rolls back. It is called again with the same rows if the
    database asks for the transaction to be repeated.

    Returns the writer of the query; add `checkpointLocation` and a trigger, then call `start()`. On Spark Connect a
    query without `queryName` gets a name, because its batches find their query by it.

    Raises:
        UsageError: not a stream, no column `properties`, both or none of `write` and `table`; `database` cannot be
            resolved; pandas 2.2, which PySpark needs, is missing.

    The query fails, and nothing of the batch is written, with:
        NoMessageIdError: a message has no id.
        SchemaMismatchError: the database does not have the tables of `rmq_store.reliable`.
        UsageError: the table does not exist, or lacks a column of the stream; a message has several rows.
        sqlalchemy.exc.SQLAlchemyError: the database refuses, or cannot be reached.
        Errors of `write`.
    """
    group = group_name(instance("group", group, str), "group")
    if not isinstance(stream, DataFrame):
        refuse(f"stream of write_once is a {type(stream).__name__}, not a DataFrame")
    if not isinstance(database, str) or not (stub_database is None or isinstance(stub_database, str)):
        refuse(
            "database and stub_database of write_once are text: env:NAME, file:/path, or a URL. An engine is not taken"
        )
    if (write is None) == (table is None):
        refuse("write_once needs either write=, a function, or table=, a Table or its name")
    if write is not None and not callable(write):
        refuse(f"write={write!r} of write_once cannot be called")
    if mode not in MODES:
        refuse(f"mode={mode!r} of write_once is none of {', '.join(MODES)}")
    if type(chunk_rows) is not int or chunk_rows < 1:
        refuse(f"chunk_rows={chunk_rows!r} of write_once is no integer of at least 1")
    foreach_batch.check_pandas("write_once")
    if not stream.isStreaming:
        refuse("write_once needs a stream: read it with spark.readStream")
    types = {field.name: field.dataType.simpleString() for field in stream.schema}
    if types.get("properties") != "map<string,string>":
        refuse(f"write_once needs the column properties map<string,string> as it was read; given: {', '.join(types)}")
    from rmq_store.reliable import Tables

    tables = Tables(prefix=prefix, schema=schema)
    writer = _OnceWriter(database, group, write, table, mode, chunk_rows, tables, stub_database)
    listen(stream.sparkSession)
    if not connect_query.is_connect(stream):
        writer.check_references()
    return connect_query.batch_writer(stream, f"write_once {group}", writer)


@dataclass
class _OnceWriter(BatchFunction):
    """Writes the batches of one query. It is pickled, so it holds no engine."""

    _database: str
    _group: str
    _write: Write | None
    _table: str | sa.Table | None
    _mode: RowsMode
    _chunk_rows: int
    _tables: Tables
    _stub_database: str | None
    # Made by the first batch, in the process that has it.
    _writer: BatchWriter | None = field(default=None, init=False)

    def check_references(self) -> None:
        """Raise `UsageError`, before a query starts, for a reference that cannot be resolved."""
        from rmq_store.reliable import shared_engine

        for reference in (self._database, self._stub_database):
            if reference is not None:
                shared_engine(reference)

    def _run_batch(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        """Steps W1 and W2 of the module's table."""
        from rmq_store.reliable import Batch

        with BatchRows(batch, Batch(query_id, batch_id), self._chunk_rows) as rows:
            if not rows.batch.row_count:
                return
            if self._writer is None:
                self._writer = self._made_writer(batch.columns)
            result = self._writer.write(rows.batch, rows.chunks, rows.marks)
        if result.written_before:
            _log.info("batch %d was written before", batch_id)
        elif result.dropped or result.void:
            _log.info(
                "batch %d: %d rows written; of %d the messages were done before, of %d they are void",
                batch_id, result.written, result.dropped, result.void,
            )  # fmt: skip

    def _made_writer(self, columns: list[str]) -> BatchWriter:
        from rmq_store.reliable import BatchWriter, shared_engine, validate_schema

        engine = shared_engine(self._database)
        stubs = STUB_TABLES if self._stub_database is None else ()
        validate_schema(engine, self._tables, only=("batch", "inbox", "log", "high_water", *stubs))
        write, target = self._target(engine, columns)
        stub_engine = None if self._stub_database is None else shared_engine(self._stub_database)
        target = target[:_TARGET_CHARACTERS]
        return BatchWriter(engine, self._tables, self._group, write, target=target, stub_engine=stub_engine)

    def _target(self, engine: sa.Engine, columns: list[str]) -> tuple[Callable[[Any, pa.RecordBatch], object], str]:
        """The function that writes a chunk, and its name."""
        if self._write is not None:
            write = self._write if self._mode == "arrow" else partial(_write_dicts, self._write)
            return write, getattr(self._write, "__qualname__", "")
        table = self._reflected(engine)
        return partial(_insert, table, _columns_of(table, columns)), table.name

    def _reflected(self, engine: sa.Engine) -> sa.Table:
        import sqlalchemy as sa

        if isinstance(self._table, str):
            try:
                self._table = sa.Table(self._table, sa.MetaData(), autoload_with=engine)
            except sa.exc.NoSuchTableError:
                refuse(f"write_once: the database has no table {self._table!r}")
        assert self._table is not None  # there is no `write`
        return self._table


def _write_dicts(write: Write, connection: sa.Connection, rows: pa.RecordBatch) -> None:
    write(connection, rows.to_pylist(maps_as_pydicts="lossy"))


def _insert(table: sa.Table, columns: list[str], connection: sa.Connection, rows: pa.RecordBatch) -> None:
    from rmq_store.reliable import insert_rows

    insert_rows(connection, table, rows.select(columns).to_pylist(maps_as_pydicts="lossy"))


def _columns_of(table: sa.Table, columns: list[str]) -> list[str]:
    """The rows' columns that the table has, too. It may only lack columns of the source."""
    from pyspark_rmq.schema.schema import ORIGIN_FIELDS, SOURCE_SCHEMA

    known = {field.name for field in (*SOURCE_SCHEMA, *ORIGIN_FIELDS)}
    strange = [name for name in columns if name not in table.c and name not in known]
    if strange:
        refuse(
            f"write_once: the table {table.name!r} has no column {', '.join(map(repr, strange))}; it has "
            f"{', '.join(map(repr, table.c.keys()))}. Rename the columns of the stream, or drop them"
            f"{did_you_mean(strange[0], table.c.keys())}"
        )
    found = [name for name in columns if name in table.c]
    if not found:
        refuse(f"write_once: no column of the stream is one of the table {table.name!r}")
    return found
