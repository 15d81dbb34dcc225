"""A part of a store that this user may not read: said as that, and not taken for damage (exit code 1 of rmq verify)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_store
from rmq_store import Message, Store, StoreConfig

Outcome = tuple[int, str, str, str]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcome]]:
    """{part of the store: exit code and text of verify, what opening for reading and for writing ended with}."""
    # Not below pytest's own directory, which nobody else may enter.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        root = Path(directory) / "home" / "store"
        root.parent.mkdir()
        with Store.open(root, create=True, config=StoreConfig(1 << 18, 2000, 100, 400)) as store:
            store.create_topic("Orders", 1)
            store.send(Message("Orders", b"x", keys="k"))
            store.commit_offsets("g", {("Orders", 0): 1})
        environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
        worker = Path(__file__).parent / "workers" / "unreadable.py"
        answer = subprocess.run(
            [sys.executable, str(worker), str(root)], env=environment, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr
        yield json.loads(answer.stdout)


def test_with_all_rights_nothing_is_refused(outcomes: dict[str, Outcome]) -> None:
    assert outcomes.pop("nothing") == [0, "", "done", "done"]
    assert len(outcomes) == 12


def test_verify_does_not_call_it_damaged(outcomes: dict[str, Outcome]) -> None:
    for name, (code, shown, _, _) in outcomes.items():
        assert code in (0, 2), (name, shown)
        if code == 2:
            assert shown.startswith("rmq: /"), (name, shown)
            hint = "; check the store as the user it belongs to"
            assert shown.endswith((": Permission denied\n", f": Permission denied{hint}\n")), (name, shown)
            assert shown.count("\n") == 1
    refused = {name for name, (code, *_) in outcomes.items() if code == 2}
    assert refused >= outcomes.keys() - {"nothing", "config", "config/topics.json", "pyrmq/store.json", "pyrmq/state"}


def test_whoever_opens_the_store_is_told_which_file(outcomes: dict[str, Outcome]) -> None:
    for name, (_, _, reading, writing) in outcomes.items():
        for outcome in (reading, writing):
            if outcome != "done":
                assert outcome.startswith("UsageError /"), (name, outcome)
                assert outcome.endswith("ermission denied"), (name, outcome)
                assert f"/store/{name.partition('/')[0]}" in outcome, (name, outcome)
        assert writing != "done" or name == "nothing", name
