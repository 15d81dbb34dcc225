"""Spark's daemon for Python workers (`spark.python.daemon.module`), with what tasks import imported before they are
forked: a failing task costs a process, and a driver's life is short.
"""

from __future__ import annotations

import pyarrow.compute  # noqa: F401
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import rmq_store  # noqa: F401

if __name__ == "__main__":
    manager()
