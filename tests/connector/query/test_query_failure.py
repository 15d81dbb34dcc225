"""`failure(query)`: what Python raised, out of the text in which Spark passes it on."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_rmq import Failure, failure
from rmq_store.errors import StoreError, UsageError

# As Spark 4.3 words it: Classic, and the same through Spark Connect.
TRACEBACK = """Traceback (most recent call last):
  File "/app/pyspark_rmq/source.py", line 61, in streamReader
    return RmqStreamReader(options, schema)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
rmq_store.errors.UsageError: option key is not possible: for a stream read"""
CLASSIC = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: {TRACEBACK}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current State: INITIALIZING"""
CONNECT = f"""{CLASSIC}

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:372)
Caused by: org.apache.spark.SparkException: other: text"""
JVM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
=== Streaming Query ==="""


class StreamingQueryException(Exception):
    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


class Query:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def exception(self) -> Exception | None:
        return self._error


def failed(error: Exception | None) -> Failure | None:
    query: Any = Query(error)
    return failure(query)


def test_a_query_that_has_not_failed_has_no_failure() -> None:
    assert failed(None) is None


@pytest.mark.parametrize("text", [CLASSIC, CONNECT])
def test_the_python_error_is_taken_out_of_what_spark_says(text: str) -> None:
    found = failed(StreamingQueryException(text))
    assert found == Failure(
        "UsageError", "rmq_store.errors", "option key is not possible: for a stream read", TRACEBACK
    )
    assert str(found) == "UsageError: option key is not possible: for a stream read"
    assert found is not None and found.is_a(UsageError) and found.is_a(StoreError) and not found.is_a(KeyError)


def test_an_error_in_a_cause_is_found_and_a_message_may_have_several_lines() -> None:
    inner = Exception(
        "Job aborted: Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nValueError: bad row\nid: 7\n"
    )
    found = failed(StreamingQueryException("Job aborted", inner))
    assert found is not None
    assert (found.type, found.module, found.message) == ("ValueError", "builtins", "bad row\nid: 7")
    assert found.is_a(ValueError) and not found.is_a(UsageError)


def test_of_an_error_that_followed_another_one_the_last_is_meant() -> None:
    text = (
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "x.py", line 3, in f\nAssertionError\n'
    )
    found = failed(StreamingQueryException(text))
    assert found is not None
    assert (found.type, found.message, str(found)) == ("AssertionError", "", "AssertionError")


def test_an_error_that_python_did_not_raise_is_sparks() -> None:
    found = failed(StreamingQueryException(JVM))
    assert found is not None
    assert (found.type, found.traceback, found.message) == ("StreamingQueryException", "", JVM)


def test_nothing_is_imported_for_a_name_in_an_error() -> None:
    found = Failure("Evil", "this", "", "")
    assert not found.is_a(ValueError)
    import sys

    assert "this" not in sys.modules
