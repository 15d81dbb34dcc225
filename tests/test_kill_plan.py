"""The plan of kills meets every query at every point, and a run goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cluster.kills.plan import BEFORE, DROPPED, POINTS, QUERIES, Kill, kills
from helpers.cluster.kills.results import SINK, Result, Results, sources_now

KILL = Kill("5.5.0", "driver", DROPPED, 3)


def result(kill: Kill, *, found: int) -> Result:
    return Result(kill.version, kill.victim, kill.point, kill.query, 400, found, 0, 0, 0, 0, 1.0)


@pytest.mark.parametrize("victim", ["driver", "broker"])
def test_ten_kills_at_a_point_meet_every_query(victim: str) -> None:
    planned = kills("5.5.0", victim, 10)
    assert len(planned) == len({kill.name for kill in planned}) == 50
    assert {(kill.point, kill.query) for kill in planned} == {(point, query) for point in POINTS for query in QUERIES}


def test_a_kill_with_a_result_is_done_and_one_whose_repetition_found_nothing_does_not_count(tmp_path: Path) -> None:
    results = Results(tmp_path / "kills")
    assert results.of(KILL) is None
    results.add(KILL, result(KILL, found=0))
    assert results.of(KILL) is None
    assert results.counted() == {}
    results.add(KILL, result(KILL, found=7))
    early = Kill("5.5.0", "driver", BEFORE, 3)
    results.add(early, result(early, found=0))
    again = Results(tmp_path / "kills")
    stored = again.of(KILL)
    assert stored is not None
    assert replace(stored, sources="") == result(KILL, found=7)
    assert again.counted() == {("driver", DROPPED): 1, ("driver", BEFORE): 1}
    assert len(again.all()) == 3
    again._sources = "another state of the sink"
    assert again.of(KILL) is None
    assert again.all() == []


def test_kills_stay_valid_when_only_prose_of_the_sink_changes(tmp_path: Path) -> None:
    module = tmp_path / SINK[0] / "sending.py"
    module.parent.mkdir(parents=True)
    module.write_text('"""Sends."""\n\n\ndef send():\n    """A row."""\n    return 1\n')
    before = sources_now(tmp_path)
    module.write_text('"""Sends rows."""\n# Once.\ndef send():\n    """One row."""\n    return 1\n')
    assert sources_now(tmp_path) == before
    module.write_text('"""Sends rows."""\n# Once.\ndef send():\n    """One row."""\n    return 2\n')
    assert sources_now(tmp_path) != before
