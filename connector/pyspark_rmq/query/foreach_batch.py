"""Runs the batches of a query for `consume` and `write_once`, in the driver. Control plane."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Self

from pyspark_rmq.access.executor_check import driver_has
from pyspark_rmq.position.position import refuse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# PySpark refuses mapInArrow with an older one, whatever the mode (pyspark/sql/pandas/utils.py).
_PANDAS_LEAST = (2, 2)

# Enough for what failed and why, and far from what Spark's regular expression can take.
_HEAD_CHARACTERS = 200


class _InterruptedError(Exception):
    """`query.stop()` while a batch is at work.

    Spark looks for the words of such an error with a regular expression (StreamExecution.PROXY_ERROR) whose stack is as
    deep as the text is long: at the whole stack trace it dies of a StackOverflowError, and prints a thousand lines.
    """


def check_pandas(function: str) -> None:
    """Refuse to go on without the pandas that PySpark needs. Raises `UsageError`, which names `function`."""
    try:
        version = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        version = ""
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _PANDAS_LEAST:
        found = f"this is {version}" if version else "it is not installed"
        refuse(
            f"{function} needs pandas 2.2 or newer, and {found}: PySpark's mapInArrow asks for it, whatever the mode. "
            "pip install 'pandas>=2.2'"
        )


def query_id(batch: DataFrame) -> str:
    """The id of the query to which a batch belongs, in a session of Spark Classic."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        refuse("this Spark does not say to which streaming query a batch belongs; 4.0 or newer is needed")
    return str(found)


class BatchFunction(ABC):
    """The function that runs in the driver for each batch of one query. On Spark Connect it is pickled."""

    _find_query: Callable[[DataFrame], str] = staticmethod(query_id)

    @abstractmethod
    def _run_batch(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        """Process one batch; a repeated batch has the same ids."""

    def run_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Run the function for a batch. If `query.stop()` interrupts it, the query ends without an error of Spark."""
        from py4j.protocol import Py4JJavaError

        try:
            self._run_batch(batch, self._find_query(batch), batch_id)
        except Py4JJavaError as error:
            head = str(error)[:_HEAD_CHARACTERS]
            if ": java.lang.InterruptedException" not in head:
                raise
            raise _InterruptedError(f"py4j.protocol.Py4JJavaError: {head}") from None

    def finding(self, query: Callable[[DataFrame], str]) -> Self:
        """The same function, for batches whose query id `query` returns."""
        other = copy.copy(self)
        other._find_query = query
        return other


def map_in_arrow(
    batch: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """`batch.mapInArrow` without a warning about pandas."""
    driver = driver_has()

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark_rmq.access.executor_check import check

        check(*driver)
        return function(rows)

    with warnings.catch_warnings():
        # PySpark looks at pandas wherever it makes a function for Arrow; none of its data frames is on this way.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return batch.mapInArrow(run, schema)
