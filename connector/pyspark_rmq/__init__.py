"""PySpark data source `rmq`: read and write Apache RocketMQ message stores.

Spark imports every module named `pyspark_*` and takes its `DefaultSource`. If one of these modules cannot be imported,
all Python data sources vanish. So this module never fails: without a usable PySpark it has no `DefaultSource`. Each
public name is imported when it is asked for. pytest loads the plugin of this package in every run of an environment,
and must not pay for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_rmq.checkpoint.committing import commit_groups as commit_groups
    from pyspark_rmq.lag.lag_listener import LagListener as LagListener
    from pyspark_rmq.older_spark.group_listener import GroupListener as GroupListener
    from pyspark_rmq.query.query_failure import Failure as Failure
    from pyspark_rmq.query.query_failure import failure as failure
    from pyspark_rmq.retry.consume import consume as consume
    from pyspark_rmq.retry.flood_breaker import FloodBreaker as FloodBreaker
    from pyspark_rmq.retry.flood_breaker import FloodBreakerError as FloodBreakerError
    from pyspark_rmq.retry.handler_runner import DLQ as DLQ
    from pyspark_rmq.retry.handler_runner import RECONSUME_LATER as RECONSUME_LATER
    from pyspark_rmq.retry.handler_runner import SUCCESS as SUCCESS
    from pyspark_rmq.retry.idempotency import SparkIdempotency as SparkIdempotency
    from pyspark_rmq.retry.redrive import redrive as redrive
    from pyspark_rmq.source import DefaultSource as DefaultSource
    from pyspark_rmq.write.batch_once import write_once as write_once
    from rmq_store import __version__ as __version__

# Public name -> the module that has it. No module has the name of a function: importing it would hide the function.
_MODULES = {
    "DLQ": "retry.handler_runner",
    "DefaultSource": "source",
    "Failure": "query.query_failure",
    "FloodBreaker": "retry.flood_breaker",
    "FloodBreakerError": "retry.flood_breaker",
    "GroupListener": "older_spark.group_listener",
    "LagListener": "lag.lag_listener",
    "RECONSUME_LATER": "retry.handler_runner",
    "SUCCESS": "retry.handler_runner",
    "SparkIdempotency": "retry.idempotency",
    "commit_groups": "checkpoint.committing",
    "consume": "retry.consume",
    "failure": "query.query_failure",
    "redrive": "retry.redrive",
    "write_once": "write.batch_once",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # not at import: Spark's look-up imports this module even if rmq_store is broken
        return import_module("rmq_store").__version__
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as error:
        # Spark's look-up asks with hasattr() whether this is a data source.
        if name == "DefaultSource":
            raise AttributeError(f"no {name}: {error}") from error
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "__version__"})


def register(spark: SparkSession) -> None:
    """Register `format("rmq")` in a session in which Spark did not find it by itself, and in the calling thread.

    Spark looks for Python data sources in the active session of the thread that writes or starts a query. Only the
    thread that made the session has one. Each other thread of a driver calls this function first; without it Spark
    raises DATA_SOURCE_NOT_FOUND. With Spark Connect no thread needs it.

    Raises:
        ImportError: PySpark is missing or too old; 4.0 or newer is needed.
    """
    from pyspark_rmq.access.spark_api import TELLS_STARTS, register_source  # says what is missing
    from pyspark_rmq.source import DefaultSource

    register_source(spark, DefaultSource)
    session: Any = spark
    if hasattr(session, "_jsparkSession"):  # Classic; PySpark has no public name for it
        session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    if not TELLS_STARTS:
        from pyspark_rmq.older_spark.group_listener import listen

        listen(spark)
