"""Kills of a SYNC_MASTER and of its slave, one of which is a released broker: every send that was answered with 0 is on
the slave.

    python -m pytest -m cluster tests/cluster/test_replicated_kills.py

The long form makes 100 kills of each pair and version (`helpers.cluster.replicated.plan`). Each leaves a line below
build/replicated-kills, and none of these is repeated in the same state of the sources: a run goes on where it stopped.
RMQ_REPLICATED_KILLS says how many of each pair and version.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.replicated.pairs import pair_of
from helpers.cluster.replicated.plan import COUNTS, OUR_MASTER, PAIRS, SHORT, Event
from helpers.cluster.replicated.run import run
from helpers.cluster.replicated.scene import Scene

KILLS = int(os.environ.get("RMQ_REPLICATED_KILLS", "100"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_slave_has_what_was_acknowledged_whatever_dies(version: str, tmp_path: Path) -> None:
    require_released(version)
    with Scene(pair_of(OUR_MASTER, version, tmp_path / "pair", "Killed")) as scene:
        for point in SHORT:
            scene.run(Event(OUR_MASTER, version, point, 0))
        figures = scene.finish()
    assert figures["acknowledged"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_hundred_kills_lose_nothing_that_was_acknowledged(version: str, pair: str, tmp_path: Path) -> None:
    require_released(version)
    done = run(pair, version, KILLS, tmp_path)
    assert len(done.names) >= KILLS
    if KILLS == sum(COUNTS[pair].values()):
        assert done.by_point() == COUNTS[pair]
