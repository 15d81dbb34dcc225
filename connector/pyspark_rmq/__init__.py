"""PySpark data source `rmq`: read and write Apache RocketMQ message stores.

Spark finds it by itself: it imports every module named `pyspark_*` and takes `DefaultSource`. A module of that name
that cannot be imported makes all Python data sources vanish, so this one never fails: without a usable PySpark there
is no `DefaultSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_unusable: ImportError | None = None
try:
    from pyspark_rmq.source import DefaultSource as DefaultSource
except ImportError as error:
    _unusable = error


def register(spark: SparkSession) -> None:
    """Register `format("rmq")` in a session in which Spark did not find it by itself.

    Raises:
        ImportError: PySpark is missing or too old; 4.2 or newer is needed.
    """
    if _unusable is not None:
        raise ImportError(f"pyspark_rmq needs PySpark 4.2 or newer: {_unusable}") from _unusable
    spark.dataSource.register(DefaultSource)
