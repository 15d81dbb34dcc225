"""The page of docs/reliability.md, and the runner that gives it its figures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from crash import catalogue, report, state
from crash.part import Counters
from crash.protections import PROTECTIONS
from crash.state import ROOT, Record, State, StateError


def crash(*arguments: object) -> subprocess.Popen[str]:
    roots = os.pathsep.join(str(ROOT / name) for name in ("tests", "storage", "connector"))
    return subprocess.Popen(
        [sys.executable, "-m", "crash", *map(str, arguments)], env={**os.environ, "PYTHONPATH": roots},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What a job in the background starts is born deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def answer(*arguments: object) -> tuple[int, str]:
    process = crash(*arguments)
    output, errors = process.communicate(timeout=100)
    return process.returncode, output + errors


def test_all_modules_of_the_catalogue_can_be_imported() -> None:
    assert not catalogue.found()[1]


def test_every_line_of_the_test_list_has_a_part_or_a_place() -> None:
    covered = {number for part in catalogue.parts() for number in report.numbers(part)} | report.ELSEWHERE.keys()
    assert covered == report.TEST_LIST.keys() == {str(number) for number in range(1, 31)}


def test_every_part_runs_at_each_scale_and_names_protections_that_exist() -> None:
    for part in catalogue.parts():
        assert 0 <= part.harness <= part.crash <= part.soak, part.name
        assert part.soak > 0 < part.chunk, part.name
        assert set(part.protections) <= PROTECTIONS.keys(), part.name


def test_the_page_is_what_the_figures_give() -> None:
    assert report.TARGET.read_text(encoding="utf-8") == report.text(), "run `python -m crash report`"


def test_the_committed_figures_have_no_violation_but_those_of_missing_protections() -> None:
    for record in report.figures():
        assert record.good, record


def test_all_rows_of_the_page_have_as_many_cells_as_their_heads() -> None:
    for block in re.findall(r"(?:^\|.*\|\n)+", report.text(), re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1, block


def record(**changes: object) -> Record:
    part = next(part for part in catalogue.found()[0].values() if part.name == "kill_sync")
    return replace(Record.of(part, "", "crash", 1, 100), chunks=1, **changes)  # type: ignore[arg-type]


def test_figures_of_a_run_replace_shorter_ones_of_the_same_part_and_of_two_runs_the_longer_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FIGURES", tmp_path / "figures.json")
    state.save(tmp_path / "figures.json", [record(cycles=40), record(part="points", cycles=5)])
    state.save(tmp_path / "short.json", [record(cycles=10)])
    state.save(tmp_path / "long.json", [record(cycles=50)])
    report.merge([tmp_path / "short.json", tmp_path / "long.json"])
    assert [(each.part, each.cycles) for each in report.figures()] == [("kill_sync", 50), ("points", 5)]


def test_a_shorter_run_becomes_the_last_one_unless_it_found_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FIGURES", tmp_path / "figures.json")
    state.save(tmp_path / "figures.json", [record(cycles=90, versions=["old"])])
    state.save(tmp_path / "good.json", [record(cycles=10, versions=["new"])])
    report.merge([tmp_path / "good.json"])
    (kept,) = report.figures()
    assert (kept.cycles, kept.versions) == (90, ["old"])
    assert kept.last == {"version": "new", "scale": "crash", "cycles": 10}
    assert "| 90 kills of 10,000 | 0 | old | new, crash scale, 10 |" in report.text()
    state.save(tmp_path / "bad.json", [record(cycles=10, lost=1)])
    report.merge([tmp_path / "bad.json"])
    assert [(each.cycles, each.lost, each.last) for each in report.figures()] == [(10, 1, {})]


def test_chunks_add_up_and_the_first_violation_stays() -> None:
    found = record()
    found.add(Counters(cycles=2, lost=1, first="one"), 1.0)
    found.add(Counters(cycles=3, broken=2, first="two"), 1.5)
    assert (found.chunks, found.cycles, found.violations, found.first, found.seconds) == (3, 5, 3, "one", 2.5)
    assert not found.good
    assert replace(found, without="no_undo").good


def test_a_state_of_another_seed_is_not_mixed_in(tmp_path: Path) -> None:
    part = catalogue.found()[0]["kill_sync"]
    known = State(tmp_path / "state.json")
    known.record(part, "", "crash", 1, 100).add(Counters(cycles=3), 1.0)
    known.save()
    again = State(tmp_path / "state.json")
    assert again.record(part, "", "crash", None, 100).cycles == 3
    with pytest.raises(StateError, match="seed 1"):
        again.record(part, "", "crash", 2, 100)


def test_a_larger_run_goes_on_with_what_a_smaller_one_of_the_same_seed_has_done(tmp_path: Path) -> None:
    part = catalogue.parts()[0]
    smaller = State(tmp_path / "crash.json")
    smaller.record(part, "", "crash", 1, 10).add(Counters(cycles=7, acknowledged=3), 1.0)
    smaller.save()
    larger = State(tmp_path / "soak.json", begun=smaller.path).record(part, "", "soak", 1, 20)
    assert (larger.scale, larger.target, larger.cycles, larger.chunks, larger.acknowledged) == ("soak", 20, 7, 1, 3)
    other_seed = State(tmp_path / "soak.json", begun=smaller.path).record(part, "", "soak", 2, 20)
    assert (other_seed.seed, other_seed.cycles) == (2, 0)
    assert State(tmp_path / "soak.json", begun=tmp_path / "none.json").record(part, "", "soak", 1, 20).cycles == 0


def test_a_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"format": 1}')
    with pytest.raises(StateError, match="no state"):
        State(tmp_path / "state.json")


@pytest.mark.harness
def test_a_run_goes_on_where_it_was_and_says_how_it_went(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    run = ("run", "--scale", "harness", "--part", "forked_writer", "--state", path)
    code, output = answer(*run)
    assert code == 0, output
    assert "forked_writer: ok: 20 cycles" in output
    first = path.read_bytes()
    assert answer(*run)[0] == 0
    assert path.read_bytes() == first, "everything was done: nothing is run again"
    assert not re.search(rb"/(tmp|root|home|work)/", first), "whose machine it was is nobody's business"

    code, output = answer(*run, "--without", "shared_after_fork")
    assert code == 0, output
    (_, bitten) = json.loads(path.read_text())["records"]
    assert bitten["broken"] > 0
    seed = re.match(r"chunk seed (\d+), 8 cycles: ", bitten["first"])
    assert seed, bitten["first"]
    assert answer("again", "forked_writer", seed[1], 8, "--without", "shared_after_fork")[0] == 1
    assert answer("again", "forked_writer", seed[1], 3)[0] == 0


@pytest.mark.harness
def test_an_interrupted_run_leaves_no_process_and_no_directory_behind(tmp_path: Path) -> None:
    process = crash("run", "--scale", "soak", "--part", "kill_sync", "--state", tmp_path / "state.json")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline_s = time.monotonic() + 60
    while not (started := children.read_text().split()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "goes on from" in process.communicate()[1]
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    for place in (Path("/dev/shm"), ROOT / "build" / "reliability"):
        assert not list(place.glob(f"rmq-crash-{process.pid}-*"))


@pytest.mark.harness
def test_unknown_names_are_refused() -> None:
    for arguments in (
        ("run", "--scale", "harness", "--part", "nothing"), ("run", "--scale", "harness", "--without", "nothing"),
        ("run", "--scale", "day"),
    ):  # fmt: skip
        code, output = answer(*arguments)
        assert code == 2, output
