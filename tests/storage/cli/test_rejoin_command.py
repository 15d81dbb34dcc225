"""`rmq broker rejoin` over a master in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Store
from rmq_store.replica import compare
from rmq_store.replica import master as replica_master
from storage.replica.conftest import fill
from storage.replica.test_rejoin import Pair

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected" / "broker-rejoin.txt"


@pytest.fixture
def pair(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The old master has ten records that the new one has not; any address leads to that."""
    made = Pair(scratch)
    made.write_old(2)
    fill(made.new, 3, tag="new")
    made.asked: list[Any] = []  # type: ignore[attr-defined,misc]

    def master(settings: object, **given: Any) -> Any:
        made.asked.append(given)  # type: ignore[attr-defined]
        found: Any = made.master
        found.__class__ = type("Master", (type(found),), {"__enter__": lambda self: self, "__exit__": lambda *_: None})
        return found

    monkeypatch.setattr(replica_master, "Master", master)
    monkeypatch.setattr(compare, "_WAIT_S", 0.02)
    monkeypatch.setattr(compare, "SETTLED_MS", 0)
    yield made
    made.ha.close()
    made.new.close()


def test_it_says_where_both_part_and_where_the_tail_is(run: Run, pair: Pair) -> None:
    with Store.open(pair.root, read_only=True) as store:
        end = store.log_range()[1]
    looked = run("broker", "rejoin", str(pair.root), "--master", "10.0.0.8:10911", "--dry-run")
    assert looked.exit_code == 0
    assert "10 records that only this store has would go to" in looked.stdout
    result = run("broker", "rejoin", str(pair.root), "--master", "10.0.0.8:10911", "--export", str(pair.aside))
    assert (result.exit_code, result.stderr) == (0, "")
    text = result.stdout
    places = [(pair.aside, "FILE"), (pair.root, "OLD"), (end, "END"), (pair.common, "COMMON")]
    for place, name in [*places, (pair.new.log_range()[1], "MASTER")]:
        text = text.replace(str(place), name)
    assert text == EXPECTED.read_text(encoding="utf-8")
    given = {"address": "10.0.0.8:10911", "ha_address": ""}
    assert pair.asked == [given, given]  # type: ignore[attr-defined]


def test_json_and_a_cluster(run: Run, pair: Pair) -> None:
    result = run("broker", "rejoin", str(pair.root), "--master", "rmq://ns1:9876", "--json", "--broker", "broker-a")
    found = json.loads(result.stdout)
    assert (found["messages"], found["parting"], found["is_done"]) == (10, pair.common, True)
    assert len(Path(found["file"]).read_text(encoding="utf-8").splitlines()) == 10
    assert pair.asked == [{"broker": "broker-a", "ha_address": ""}]  # type: ignore[attr-defined]
