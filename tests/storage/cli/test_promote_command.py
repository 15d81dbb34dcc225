"""`rmq broker promote` over a replica that this process fed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from helpers.replicas import FedReplica
from rmq_store import Store, StoreConfig
from rmq_store.log.feeder_state import FeederState, write_state

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected" / "broker-promote.txt"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def root(scratch: Path) -> Path:
    """Four messages; the master was heard of 1,000 bytes further on."""
    with FedReplica(scratch / "replica", StoreConfig(1 << 18, 2000, 100, 400)) as made:
        made.add("T", 4)
        end = made.store.log_range()[1]
    write_state(made.root, FeederState(heard_ms=1_700_000_000_000, master_end=end + 1000))
    return made.root


def text_of(result: Result, root: Path) -> str:
    """Without places, times and sizes that differ from run to run."""
    assert (result.exit_code, result.stderr) == (0, "")
    with Store.open(root, read_only=True) as store:
        end = store.log_range()[1]
    text = result.stdout.replace(str(root), "REPLICA")
    return _TIME.sub("TIME", re.sub(rf"\b{end}\b", "END", re.sub(rf"\b{end + 1000}\b", "HEARD", text)))


def test_it_says_where_the_log_ends_and_what_nobody_knows(run: Run, root: Path) -> None:
    looked = text_of(run("broker", "promote", str(root), "--dry-run"), root)
    assert looked.endswith("dry run   nothing was changed\n")
    text = text_of(run("broker", "promote", str(root)), root)
    assert text == EXPECTED.read_text(encoding="utf-8")
    assert text.splitlines()[:-1] == looked.splitlines()[:-1]
    assert text_of(run("broker", "promote", str(root)), root) == text  # and again


def test_json_has_the_figures(run: Run, root: Path) -> None:
    found = json.loads(run("broker", "promote", str(root), "--json").stdout)
    assert (found["path"], found["broker"], found["missing_bytes"], found["topics"]) == (
        str(root), "broker-a", 1000, [],
    )  # fmt: skip
    assert found["promoted_ms"] > 0


def test_a_replica_that_is_fed_is_refused_by_name(run: Run, scratch: Path) -> None:
    with FedReplica(scratch / "fed", StoreConfig(1 << 18, 2000, 100, 400)) as made:
        for words in ([], ["--dry-run"]):
            result = run("broker", "promote", str(made.root), *words)
            assert result.exit_code != 0
            assert "fed by another thread of this process since" in result.stderr
