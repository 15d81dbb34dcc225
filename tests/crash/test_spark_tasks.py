"""The short forms of tests 23, 24 and 26."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crash import spark_tasks
from crash.part import Counters, Part

pytestmark = [
    pytest.mark.harness,
    pytest.mark.filterwarnings("default"),  # Spark's own: unclosed sockets, pandas versions
]

Run = Callable[..., Counters]
FAILURES, ATTEMPTS, EXECUTORS, RETENTION = spark_tasks.PARTS


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for the tests that need one: `spark_tasks` takes the one that is there."""
    if FAILURES.cannot_run():
        yield None
        return
    with spark_tasks.spark_session("local[2,4]") as session:
        yield session


@pytest.mark.spark
def test_failing_tasks_change_nothing(run_part: Run, spark: Any) -> None:
    counters = run_part(FAILURES)
    assert counters.violations == 0, counters.first
    assert counters.acknowledged > 0
    assert counters.seen["attempts that failed writing"] > 2
    assert counters.seen["streams"] and counters.seen["batches"]


@pytest.mark.spark
@pytest.mark.parametrize("protection", FAILURES.protections)
@pytest.mark.teeth
def test_failing_tasks_are_noticed_without(protection: str, run_part: Run, spark: Any) -> None:
    assert run_part(FAILURES, without_protection=protection).violations > 0


def test_attempts_at_a_batch_come_to_one_batch(run_part: Run) -> None:
    counters = run_part(ATTEMPTS)
    assert counters.violations == 0, counters.first
    assert counters.acknowledged > 100
    assert counters.seen["zombies"] > 10 and counters.seen["batches repeated"] > 10


def test_what_retention_takes_from_a_stream_is_told(run_part: Run) -> None:
    counters = run_part(RETENTION)
    assert counters.violations == 0, counters.first
    assert counters.seen["messages read"] > 1000 and counters.seen["messages reported as lost"] > 1000
    assert counters.seen["failed, naming what is gone"] > 0


@pytest.mark.parametrize(
    ("part", "protection"), [(part, name) for part in (ATTEMPTS, RETENTION) for name in part.protections]
)
@pytest.mark.teeth
def test_parts_without_spark_notice(part: Part, protection: str, run_part: Run) -> None:
    assert run_part(part, without_protection=protection).violations > 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_killed_executors_change_nothing(run_part: Run) -> None:
    counters = run_part(EXECUTORS)
    assert counters.violations == 0, counters.first
    assert counters.acknowledged > 0
