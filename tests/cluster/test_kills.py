"""Kills of drivers and brokers under a Spark query: no row is lost, none is stored twice.

    python -m pytest -m cluster tests/cluster/test_kills.py

Each kill leaves a file below build/kills, and none of these is repeated: a run goes on where it stopped. With
RMQ_KILLS_PER_POINT=1 there is one kill at each point, of each victim and version.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.kills.chain import Chain
from helpers.cluster.kills.plan import DROPPED, POINTS, QUERIES, VICTIMS, Kill, kills
from helpers.cluster.kills.results import Result, Results

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(7200)]

PER_POINT = int(os.environ.get("RMQ_KILLS_PER_POINT", "10"))
"""Of one version and victim: 2 * 2 * 5 * 10 are 200 kills."""

LEAST = 15
TRIES = 3
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=VERSIONS)
def lonely(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    """A name server and a master, which only these tests kill."""
    require_released(request.param)
    with RocketmqCluster(request.param) as cluster:
        yield cluster


def chain(cluster: RocketmqCluster, query: str, directory: Path, **sink: str) -> Chain:
    number = next(_NUMBERS)
    return Chain(cluster, query, directory / str(number), f"Kills-{number}", sink)


def run_all(cluster: RocketmqCluster, victim: str, results: Results, directory: Path, per_point: int) -> list[Result]:
    """Make the kills that have no result yet, one query after another."""
    for query in QUERIES:
        for _ in range(TRIES):
            left = [
                kill for kill in kills(cluster.version, victim, per_point)
                if kill.query == query and results.of(kill) is None
            ]  # fmt: skip
            if not left:
                break
            with chain(cluster, query, directory) as running:
                for kill in left:
                    results.add(kill, running.run(kill))
                assert running.look()[:2] == (0, 0), "rows of a batch that was counted"
    return [result for kill in kills(cluster.version, victim, per_point) if (result := results.of(kill)) is not None]


@pytest.mark.parametrize("victim", VICTIMS)
def test_no_row_is_lost_or_stored_twice_wherever_a_process_dies(
    lonely: RocketmqCluster, victim: str, tmp_path: Path
) -> None:
    found = run_all(lonely, victim, Results(), tmp_path, PER_POINT)
    assert [one for one in found if one.lost or one.duplicated or one.late > one.redelivered] == []
    assert len(found) == PER_POINT * len(POINTS), "kills whose repetition found nothing do not count"


def test_there_were_enough_kills_at_each_point() -> None:
    counted = Results().counted()
    for victim in VICTIMS:
        assert sum(counted[victim, point] for point in POINTS) >= 2 * PER_POINT * len(POINTS)
        assert min(counted[victim, point] for point in POINTS) >= min(LEAST, 2 * PER_POINT)


def test_without_the_check_rows_are_stored_twice(lonely: RocketmqCluster, tmp_path: Path) -> None:
    unchecked = chain(lonely, "shuffle", tmp_path, replayCheck="false")
    del unchecked._sink["settleTime"]  # an option of the check, which is refused without it
    with unchecked as running:
        result = running.run(Kill(lonely.version, "driver", DROPPED, 0))
    assert (result.lost, result.found) == (0, 0)
    assert result.duplicated > 0


def test_with_keys_of_row_numbers_the_shuffle_fails(lonely: RocketmqCluster, tmp_path: Path) -> None:
    with chain(lonely, "shuffle", tmp_path) as running:
        running.use_row_numbers()
        with pytest.raises(AssertionError, match="does not come again"):
            running.run(Kill(lonely.version, "driver", DROPPED, 0))
        (log,) = tmp_path.glob("*/log")
        assert "ReplayConflictError" in log.read_text(errors="replace")
