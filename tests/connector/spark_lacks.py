"""What the tests do on a Spark that lacks something: `pyspark_rmq.access.spark_api` says what, and no test asks for the
number of a version. `make spark-versions` runs this suite on each Spark.

A test is left out only where its Spark lacks what the test is about (the table in docs/spark.md). Another test looks at
what that Spark does instead, and `needs_spark(..., lacks=True)` leaves it out everywhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyspark_rmq
from pyspark_rmq.access.spark_api import HAS_PUSHDOWN, TELLS_STARTS, lacking

# By the names of `lacking`.
FEATURES = {"filter pushdown": HAS_PUSHDOWN, "admission control": TELLS_STARTS}


def needs_spark(feature: str, *, lacks: bool = False) -> pytest.MarkDecorator:
    """Leave a test out where Spark lacks a feature; with `lacks`, where it has it."""
    return pytest.mark.skipif(FEATURES[feature] is lacks, reason=_reason(feature))


def module_needs_spark(feature: str) -> None:
    """Leave a whole module out where Spark lacks a feature. Called before the import that fails there."""
    if not FEATURES[feature]:
        pytest.skip(_reason(feature), allow_module_level=True)


def _reason(feature: str) -> str:
    return f"this Spark has {'the' if FEATURES[feature] else 'no'} {feature}; {lacking().get(feature, 'nothing else')}"


def run_in_batches(writer: Any, timeout_s: float = 100) -> Any:
    """Run a query until it has read all that was there when it began, in batches of its limit, and its group has
    committed that; returns the query, which has ended. An unfinished batch is repeated first.

    A Spark without admission control would make one batch of an AvailableNow run: there the same query runs with
    processing time.
    """
    if TELLS_STARTS:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(timeout_s), "the query did not end in time"
        return query
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def commit_at_the_end(checkpoint: Path) -> None:
    """Commit for the group what an AvailableNow run has read. A source that is told the trigger has done it."""
    if not TELLS_STARTS:
        pyspark_rmq.commit_groups(str(checkpoint))
