"""What other processes see of the feeder of a replica: `rmq metrics`, `rmq doctor`, and what stands in the file."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from helpers.replicas import FedReplica
from rmq_store import Store, StoreConfig, store_metrics
from rmq_store.cli.checks import directory
from rmq_store.cli.checks.directory import replica as findings
from rmq_store.log import feeder_state
from rmq_store.log.feeder_state import FeederState, feeder_lives, read_state, write_state

SMALL = StoreConfig(1 << 18, 2000, 100, 400)
NOW_MS = 1_700_000_100_000
STATE = FeederState(
    is_connected=True, changed_ms=NOW_MS - 60_000, heard_ms=NOW_MS - 4_000, master_end=10_000,
    newest_ms=NOW_MS - 9_000, mean_bytes=300,
)  # fmt: skip
AHEAD = "4 s ago the master's log ended at 10000, 10000 bytes more than here"


def figures(root: Path) -> dict[str, float]:
    with Store.open(root, read_only=True, clock=lambda: NOW_MS) as store:
        families = store_metrics(store)
    return {
        family.metric.name: family.samples[0][1]
        for family in families
        if family.metric.name.startswith("rmq_replica") and family.samples
    }


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(feeder_state, "system_clock", lambda: NOW_MS)
    with FedReplica(tmp_path / "replica", SMALL) as made:
        made.add("T", 3)
    return made.root


def test_how_far_it_is_behind_as_last_heard(root: Path) -> None:
    assert figures(root) == {"rmq_replica_fed": 0}, "no feeder has said anything"
    write_state(root, STATE)
    with Store.open(root, read_only=True) as store:
        end = store.log_range()[1]
    behind = {
        "rmq_replica_behind_bytes": 10_000 - end, "rmq_replica_behind_messages": -(-(10_000 - end) // 300),
        "rmq_replica_behind_seconds": 9.0, "rmq_replica_heard_seconds": 4.0,
    }  # fmt: skip
    assert figures(root) == {"rmq_replica_fed": 0, "rmq_replica_connected": 0, **behind}, "its feeder is gone"
    write_state(root, replace(STATE, master_end=end, mean_bytes=0))
    nothing = dict.fromkeys(list(behind)[:3], 0.0)
    assert figures(root) == {"rmq_replica_fed": 0, "rmq_replica_connected": 0, **behind, **nothing}
    write_state(root, replace(STATE, mean_bytes=0))
    assert "rmq_replica_behind_messages" not in figures(root), "no message has come: nobody knows their size"


def test_a_store_of_its_own_has_none_of_these(tmp_path: Path) -> None:
    Store.open(tmp_path / "own", create=True, config=SMALL).close()
    assert figures(tmp_path / "own") == {}


def test_a_feeder_that_lives_and_one_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder_state, "system_clock", lambda: NOW_MS)
    with FedReplica(tmp_path / "replica", SMALL) as made:
        assert feeder_lives(made.root)
        write_state(made.root, STATE)
        assert (figures(made.root)["rmq_replica_fed"], figures(made.root)["rmq_replica_connected"]) == (1, 1)
        *_, seen = findings(made.root)
        assert (seen.status, seen.text) == (directory.OK, AHEAD)
        write_state(made.root, replace(STATE, is_connected=False, reason="refused"))
        assert figures(made.root)["rmq_replica_connected"] == 0
        *_, seen = findings(made.root)
        assert seen.status == directory.WARN
        assert "lost 10.0.0.7:10912 60 s ago, or never had it: refused; 4 s ago" in seen.text
    assert not feeder_lives(made.root)
    *_, seen = findings(made.root)
    assert (seen.status, seen.text) == (directory.OK, f"{AHEAD}; refused")
    write_state(made.root, STATE)
    *_, seen = findings(made.root)
    assert seen.text.endswith("; the feeder was killed")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"null", json.dumps(asdict(STATE) | {"heard_ms": "soon"}).encode(), b"x" * 70_000],
)
def test_a_file_that_says_nothing_is_no_state(root: Path, content: bytes) -> None:
    (root / "pyrmq" / "feeder.json").write_bytes(content)
    assert read_state(root) is None
    assert figures(root) == {"rmq_replica_fed": 0}
    assert len(findings(root)) == 1


def test_a_state_comes_back_and_a_long_reason_is_cut(root: Path) -> None:
    given: dict[str, Any] = {"reason": "x" * 5_000}
    write_state(root, replace(STATE, **given))
    assert read_state(root) == replace(STATE, reason="x" * 1_000)
