"""Which objects the garbage collections of Spark's Python workers look past, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from pyspark_rmq.access import spark_worker, store_pool
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.options import SourceOptions, Subscription

pytestmark = pytest.mark.long

Make = Callable[..., Any]


class Collector:
    """Stands for the module `gc`: what was asked of it, and what was kept open then."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def collect(self) -> None:
        self.calls.append(("collect", len(store_pool._pool)))

    def freeze(self) -> None:
        self.calls.append(("freeze", len(store_pool._pool)))


SPARED = [("collect", 0), ("freeze", 0)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    collector = Collector()
    monkeypatch.setattr(spark_worker, "gc", collector)
    monkeypatch.setattr(spark_worker, "is_worker", lambda: True)
    monkeypatch.setattr(spark_worker, "_modules_spared", 0)
    return collector


def test_modules_are_spared_once_and_again_when_new_ones_came(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        spark_worker.spare_modules()
    assert collector.calls == SPARED
    monkeypatch.setitem(sys.modules, "a_module_that_came", ModuleType("a_module_that_came"))
    for _ in range(3):
        spark_worker.spare_modules()
    assert collector.calls == 2 * SPARED


@pytest.mark.parametrize(
    ("main", "reuse", "expected"),
    [("pyspark.daemon", "1", True), ("pyspark.daemon", None, False), ("pytest", "1", False)],
)
def test_a_worker_is_a_process_that_will_have_more_tasks(
    monkeypatch: pytest.MonkeyPatch, main: str, reuse: str | None, expected: bool
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(main, None))
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    if reuse is not None:
        monkeypatch.setenv("SPARK_REUSE_WORKER", reuse)
    assert spark_worker.is_worker() is expected


def test_outside_of_a_worker_collections_are_left_alone(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not spark_worker.is_worker()
    monkeypatch.setattr(spark_worker, "gc", collector)
    spark_worker.spare_modules()
    assert collector.calls == []


def test_what_a_task_before_has_kept_open_is_closed_first(
    collector: Collector, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that collections look past would stay mapped for as long as the worker lives."""
    options = SourceOptions(str(make_store(Orders=10)), Subscription(("Orders",)))
    with location_of(options).in_task():
        pass
    assert len(store_pool._pool) == 1
    monkeypatch.setitem(sys.modules, "a_module_that_came", ModuleType("a_module_that_came"))
    with location_of(options).in_task():
        assert collector.calls == 2 * SPARED
    with location_of(options).in_task():
        pass
    assert collector.calls == 2 * SPARED
    store_pool.close_pooled()
    assert not store_pool._pool


@pytest.mark.spark
def test_a_worker_looks_past_what_it_has_imported(spark: Any, make_store: Make) -> None:
    from rmq_test_sources import SparedSource

    path = make_store(Orders=100)
    spark.dataSource.register(SparedSource)
    for _ in range(4):
        assert spark.read.format("rmq_spared").options(path=str(path), subscribe="Orders").load().count() == 100
    tasks = (path / "spared").read_text(encoding="ascii").splitlines()
    # A worker may have come last: look at one that has had a task before.
    spared, filter_columns = max(tuple(map(int, task.split())) for task in tasks)
    assert spared > 30_000
    assert filter_columns < 10_000
