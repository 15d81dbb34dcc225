"""The fixtures `cluster` and `broken_cluster_logs`: one cluster of each version per run, all of its processes running.

A test that takes `cluster` runs once for each version of RocketMQ. The cluster is shared: a name server, a master and a
slave. Each test makes topics and groups of its own. Where Maven or Java is missing the tests are skipped, and say so;
in CI (RMQ_TEST_SERVERS=required) they fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from helpers import servers
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import VERSIONS, without_jars

_NUMBERS = itertools.count(1)
_CLUSTERS: list[RocketmqCluster] = []


def require_released(version: str) -> None:
    """Skip the test, or fail it in CI, if this machine cannot run brokers of a version."""
    if reason := without_jars(version):
        if servers.REQUIRED:
            pytest.fail(f"RMQ_TEST_SERVERS=required, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session", params=VERSIONS)
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    """One at a time: pytest sorts the tests by version."""
    require_released(request.param)
    with RocketmqCluster(request.param, slaves=1) as cluster:
        _CLUSTERS.append(cluster)
        yield cluster
        _CLUSTERS.remove(cluster)


@pytest.fixture
def cluster(shared_cluster: RocketmqCluster) -> RocketmqCluster:
    """The shared cluster; what an earlier test has killed or suspended runs again."""
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A name of a topic or group that no test had before."""
    return lambda prefix: f"{prefix}-{next(_NUMBERS)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What the brokers said is a part of a failure's report."""
    report: pytest.TestReport = yield
    if report.failed and "shared_cluster" in getattr(item, "fixturenames", ()):
        report.sections.extend(("brokers", cluster.logs()) for cluster in _CLUSTERS)
    return report
