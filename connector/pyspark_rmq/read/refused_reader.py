"""The stream reader of a query that is refused. Spark 4.3 replaces an error of a constructor by one of its own
(`UnboundLocalError: reader`). An error of a method becomes the error of the query. Control plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_rmq.access.spark_api import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `refusal` from the first method that Spark calls."""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the refusal."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the refusal."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raise the refusal."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Raise the refusal. A Spark before 4.2 gives neither argument."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the refusal."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the refusal."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._refusal
