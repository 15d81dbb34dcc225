"""Everything here is marked `cluster`: it runs against brokers of released versions (`make cluster`).

With RMQ_CLUSTER_DONE=<file> a test that has passed in this state of the sources is left out the next time, until all
have passed: an interrupted `make cluster` goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.finished import Finished
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from pyspark_rmq.access import cluster_pool

HERE = Path(__file__).parent
_DONE = os.environ.get("RMQ_CLUSTER_DONE")
_FINISHED = Finished(Path(_DONE), HERE.parents[1]) if _DONE else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    for item in mine:
        item.add_marker(pytest.mark.cluster)
    if _FINISHED is not None:
        left_out = [item for item in mine if item.nodeid in _FINISHED.tests]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _FINISHED is not None and report.when == "call" and report.passed:
        _FINISHED.add(report.nodeid)


def pytest_sessionfinish(exitstatus: int) -> None:
    if _FINISHED is not None and exitstatus == pytest.ExitCode.OK:
        _FINISHED.forget()


@pytest.fixture(params=VERSIONS)
def two_masters(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    """Two masters without slaves, of this test alone."""
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2) as cluster:
        yield cluster
    cluster_pool.close_unused()
