"""The measuring itself: pairs, what is kept of them, and that the page says what was kept."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import __main__ as program
from bench import catalogue, measure, older_sparks, report
from bench.case import GROUPS, Case, Pair, Target
from bench.catalogue import Catalogue
from bench.curve import Curve, Point
from bench.measure import Figures, Place, Plotted, Result
from bench.messages import BODY_BYTES
from bench.scratch import SPARK_SETTINGS, Scratch, Shared, scratch

# What has to be measured: {what: the beginnings of the names of the lines and plots that do}.
OWED = {
    "reads of 17 columns": ("read-batch-17-columns-{body}", "read-stream-17-columns-{body}"),
    "reads of 5 columns": ("read-batch-5-columns-{body}", "read-stream-5-columns-{body}"),
    "writes of 5 columns": ("write-batch-5-columns-{body}", "write-stream-5-columns-{body}"),
    "writes of 2 columns": ("write-batch-2-columns-{body}", "write-stream-2-columns-{body}"),
    "a write with SYNC_FLUSH": ("write-batch-sync-flush",),
    "the ceiling of writes": ("write-bare-{body}",),
    "bulk append beside pwrite": ("append-bulk-{body}",),
    "bulk append beside Java": ("java-append-batch-100-{body}", "java-append-single-{body}"),
    "queue read": ("queue-read-{body}", "java-queue-read-{body}"),
    "one-message put": ("put-{body}-p50", "put-{body}-p99", "java-put-p50-{body}", "java-put-p99-{body}"),
    "one-message put with SYNC_FLUSH": ("put-sync-{body}", "put-sync-16-threads", "put-sync-16-processes"),
    "delivery": ("delivery-100", "java-delivery"),
    "send-back": ("java-send-back",),
    "push consumer": ("java-push-message", "java-push-batch-{body}", "java-push-arrow-{body}"),
    "a served store beside Java": (
        "server-pulls-{body}",
        "server-batches-{body}",
        "server-batches-without-keys",
        "server-singles-1",
        "server-singles-16",
        "server-sync-singles-1",
        "server-sync-singles-16",
        "server-long-poll-p50",
        "server-long-poll-p99",
    ),
    "connections and start of a served store": (
        "server-idle-connection",
        "server-busy-all",
        "server-busy-least-served",
        "server-start-fixture",
        "server-start-command",
    ),
    "a replica of a live broker": (
        "replica-catch-up-{body}-log",
        "replica-catch-up-{body}-queues",
        "replica-arrow-{body}",
        "replica-arrow-without-keys-{body}",
        "replica-master-lanes-{body}",
        "replica-master-slave-{body}",
        "replica-delay-p50",
        "replica-delay-p99",
    ),
    "outbox and inbox": tuple(
        f"reliable-{what}-{kind}"
        for what in ("send", "relay", "consume", "consume-redis")
        for kind in ("sqlite", "postgresql", "mariadb")
    ),
    "look-up, one at a time": ("lookup-key-p50", "lookup-key-p99", "lookup-unique-key-p99", "lookup-offset-p99"),
    "look-up of many": ("lookup-key-at-once", "lookup-unique-key-at-once"),
    "look-up beside Java": ("java-lookup-key", "java-lookup-unique-key", "java-lookup-key-at-once"),
    "open": ("open-clean", "open-kill-100-mb", "open-kill-20-gb", "open-power-cut-100-mb", "open-power-cut-20-gb"),
    "triggers": ("trigger-10-rows", "trigger-nothing", "trigger-idle-processor"),
    "latency": ("latency-p50", "latency-p99"),
    "memory": ("memory-20-gb", "memory-10000-queues", "memory-4-mib", "memory-maps"),
    "memory with Spark": ("memory-spark-read-20-gb", "memory-spark-write-20-gb", "memory-spark-10000-queues"),
    "scale": ("curve-message-size", "curve-topics", "curve-writers", "curve-store-size"),
}
PLACE = Place("abc1234", "2026-01-02", 2, {"python": "3.12.1"})


class NoProgress:
    """Counts the steps."""

    def __init__(self) -> None:
        self.wanted = 0
        self.done = 0

    def total(self, steps: int) -> None:
        self.wanted = steps

    def step(self) -> None:
        self.done += 1

    def tick(self, note: str = "") -> None:
        pass


def fake(name: str = "fake", **changed: object) -> Case:
    @contextlib.contextmanager
    def prepare(_: Scratch) -> Iterator[Pair]:
        yield Pair(lambda: 3.0, lambda: 4.0)

    case = Case(name, "a fake", "read", 100, "another fake", "rows/s", Target(0.75), "none.", prepare)
    return replace(case, **changed)


def test_pairs_are_interleaved_and_change_their_order() -> None:
    order: list[str] = []
    figures = iter(range(100))

    @contextlib.contextmanager
    def prepare(_: Scratch) -> Iterator[Pair]:
        def ours() -> float:
            order.append("o")
            return next(figures)

        def yardstick() -> float:
            order.append("y")
            return next(figures)

        yield Pair(ours, yardstick)

    progress = NoProgress()
    with Shared() as shared, scratch(shared, progress, quick=False) as space:
        assert list(space.directory.iterdir()) == []
        (result,) = measure.measure(fake(prepare=prepare), space, progress, PLACE)
    assert "".join(order) == "oy" + "oyyooyyooy"
    assert result == Result("fake", [2, 5, 6, 9, 10], [3, 4, 7, 8, 11], PLACE)
    assert progress.done == progress.wanted == 12
    assert not space.directory.exists()


def test_more_pairs_can_be_asked_for() -> None:
    progress = NoProgress()
    with Shared() as shared, scratch(shared, progress, quick=False) as space:
        (result,) = measure.measure(fake(), space, progress, PLACE, 7)
    assert result.ratios == [0.75] * 7


def test_a_measurement_of_several_figures_fills_several_lines() -> None:
    @contextlib.contextmanager
    def prepare(_: Scratch) -> Iterator[Pair]:
        yield Pair(lambda: (1.0, 2.0), lambda: (4.0, 16.0))

    case = fake(prepare=prepare, figures=("p50", "p99"))
    progress = NoProgress()
    with Shared() as shared, scratch(shared, progress, quick=True) as space:
        results = measure.measure(case, space, progress, PLACE)
    assert [(result.name, result.ratios) for result in results] == [("fake-p50", [0.25]), ("fake-p99", [0.125])]


def test_a_quick_run_takes_fewer_rows(tmp_path: Path) -> None:
    quick, full = (Scratch(tmp_path, Shared(), NoProgress(), quick=each) for each in (True, False))
    assert [full.rows(count) for count in (10, 5_000, 1_000_000)] == [10, 5_000, 1_000_000]
    assert [quick.rows(count) for count in (10, 5_000, 1_000_000)] == [10, 1_000, 20_000]
    quick.touch_memory(1 << 40)
    assert list(tmp_path.iterdir()) == []


def test_a_spark_session_serves_all_cases_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Session:
        def __init__(self, settings: Mapping[str, str]) -> None:
            self.zone = settings["spark.sql.session.timeZone"]
            done.append(f"start {self.zone}")

    monkeypatch.setattr("bench.scratch.start_spark", Session)
    monkeypatch.setattr("bench.scratch.stop_spark", lambda session: done.append(f"stop {session.zone}"))
    with Shared() as shared:
        assert shared.spark() is shared.spark()
        other = SPARK_SETTINGS | {"spark.sql.session.timeZone": "CET"}
        assert shared.spark(other) is shared.spark(dict(other))
        shared.spark()
    assert done == ["start UTC", "stop UTC", "start CET", "stop CET", "start UTC", "stop UTC"]


@pytest.mark.slow
def test_the_next_spark_session_knows_nothing_of_the_last_one() -> None:
    """In a process of its own: its JVM ends with the session."""
    program = """
from bench.scratch import SPARK_SETTINGS, Shared
name = "spark.python.unix.domain.socket.enabled"
with Shared() as shared:
    for settings in (SPARK_SETTINGS | {name: "true"}, SPARK_SETTINGS):
        print(shared.spark(settings).sparkContext.getConf().get(name))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["true", "None"]


def test_what_several_cases_need_is_made_once_and_removed_at_the_end() -> None:
    made: list[Path] = []

    def make(directory: Path, _: Scratch) -> int:
        made.append(directory)
        return len(made)

    with Shared() as shared:
        for _ in range(2):
            with scratch(shared, NoProgress(), quick=True) as space:
                assert space.once(make) == 1
        assert made[0].is_dir()
        space.forget(make)
        space.forget(make)
        assert not made[0].exists()
        assert space.once(make) == 2
    assert not made[1].exists()


def test_figures_come_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert measure.load(path) == Figures()
    figures = Figures(
        {name: Result(name, [1.5, 2.0], [3.0, 4.0], PLACE) for name in ("b", "a")},
        {"c": Plotted("c", [Point(1, "ours", 2.5)], PLACE)},
    )
    figures.save(path)
    assert measure.load(path) == figures
    assert [one["name"] for one in json.loads(path.read_text())["results"]] == ["a", "b"]
    figures.save(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("target", "figures", "expected"),
    [
        (Target(0.75, floor=0.55), (75, 100), "yes"),
        (Target(0.75, floor=0.55), (74, 100), "floor"),
        (Target(0.75, floor=0.55), (54, 100), "no"),
        (Target(0.75), (74, 100), "no"),
        (Target(1.15, at_least=False), (115, 100), "yes"),
        (Target(1.15, at_least=False), (116, 100), "no"),
        (Target(1.2, at_least=False, ours_at_most=50), (50, 50), "yes"),
        (Target(1.2, at_least=False, ours_at_most=50), (51, 51), "no"),
        (None, (1, 100), ""),
    ],
)
def test_a_target_is_reached_or_not(target: Target | None, figures: tuple[int, int], expected: str) -> None:
    ours, yardstick = figures
    assert report.verdict(target, Result("x", [ours], [yardstick], PLACE)) == expected


def test_the_page_says_what_the_file_says() -> None:
    cases = {case.name: case for case in (fake(limit="The pipe."), fake("other", title="not run"))}
    result = Result("fake", [800_000, 600_000, 900_000], [1_000_000] * 3, PLACE)
    text = report.text(Catalogue(cases), Figures({"fake": result}))
    lines = text.splitlines()
    row = "| a fake | 100 | 800,000 rows/s | 1,000,000 rows/s: another fake | 0.80 (0.60..0.90) | >= 0.75 | yes |"
    assert f"{row} [s1] [r1] |" in lines
    assert "| not run | 100 | not run | another fake |  | >= 0.75 |  | [s1] |" in lines
    assert lines[lines.index("* [s1] none.") + 1] == "* [r1] The pipe."
    assert "Taken on 2026-01-02 (abc1234) with 2 cores, python 3.12.1." in lines
    assert "<!--" not in text


def test_notes_are_numbered_through_the_page_and_shared_within_a_section() -> None:
    cases = [
        fake("a", settings=("One.", "Two."), limit="Slow."),
        fake("b", settings="Two.", limit="Slower."),
        fake("c", group="write", settings="One.", limit="Slow."),
    ]
    notes = report.Notes(cases)
    assert [notes.cell(case) for case in cases] == ["[s1] [s2] [r1]", "[s2] [r2]", "[s3] [r3]"]
    assert notes.section("read") == "* [s1] One.\n* [s2] Two.\n* [r1] Slow.\n* [r2] Slower.\n"
    assert notes.section("write") == "* [s3] One.\n* [r3] Slow.\n"


def test_rows_that_miss_their_target_stand_at_the_top() -> None:
    cases = [
        fake("reached", title="reached"),
        fake("missed", title="missed", limit="The pipe."),
        fake("floor", title="floor", target=Target(0.75, floor=0.55)),
        fake("slow", title="slow", target=Target(2, at_least=False, ours_at_most=5)),
        fake("free", title="free", target=None),
        fake("later", title="later"),
    ]
    ours = {"reached": 75.0, "missed": 60.0, "floor": 60.0, "slow": 6.0, "free": 1.0}
    results = {name: Result(name, [figure], [100.0], PLACE) for name, figure in ours.items()}
    text = report.text(Catalogue({case.name: case for case in cases}), Figures(results))
    top = text.split("## How to read it")[0].splitlines()
    assert [line for line in top if line.startswith("| read")] == [
        "| read | missed | 100 | another fake | 0.60 | >= 0.75 | no | [r1] |",
        "| read | floor | 100 | another fake | 0.60 | >= 0.75 (floor 0.55) | floor |  |",
        "| read | slow | 100 | another fake | 0.06 | <= 2, ours <= 5 rows/s | no |  |",
    ]
    text = report.text(Catalogue({"reached": cases[0]}), Figures(results))
    assert "None." in text.split("## How to read it")[0].splitlines()


def test_the_ratios_of_older_sparks_stand_beside_those_of_the_newest(tmp_path: Path) -> None:
    known = Catalogue({name: fake(name, title=name) for name in ("both", "newest", "old")})
    newest = Figures({name: Result(name, [90.0, 80.0], [100.0, 100.0], PLACE) for name in ("both", "newest")})
    Figures({"both": Result("both", [70.0], [100.0], PLACE)}).save(tmp_path / "spark-4.0.json")
    Figures({"old": Result("old", [60.0], [100.0], PLACE)}).save(tmp_path / "spark-4.1.json")
    text = report.text(known, newest, older_sparks.load(tmp_path))
    section = text.split("## Older Sparks")[1].split("\n## ")[0].splitlines()
    assert [line for line in section if line.startswith("| ") and "---" not in line] == [
        "| what | body B | Spark 4.0 | Spark 4.1 | the newest Spark |",
        "| both | 100 | 0.70 (0.70..0.70) |  | 0.85 (0.80..0.90) |",
        "| old | 100 |  | 0.60 (0.60..0.60) |  |",
    ]
    assert "Not run yet." in report.text(known, newest).split("## Older Sparks")[1].split("\n## ")[0]


def test_a_plot_is_drawn_of_what_was_measured(tmp_path: Path) -> None:
    curve = Curve("c", "a curve", "x", "y", True, lambda *_: [])
    points = [Point(4096, "ours", 1), Point(1, "ours", 2), Point(1, "yardstick", 3)]
    figures = Figures(curves={"c": Plotted("c", points, PLACE)})
    figures.save(tmp_path / "figures.json")
    known = Catalogue(curves={"c": curve, "d": replace(curve, name="d", title="no curve")})
    drawn = []
    for _ in range(2):
        report.write(known, tmp_path / "figures.json", tmp_path / "page.md", tmp_path / "plots")
        drawn.append((tmp_path / "plots" / "c.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert b"yardstick" in drawn[0]
    assert b"<!-- 4 Ki -->" in drawn[0]
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "![a curve](performance/c.svg)" in page
    assert "### no curve\n\nNot run yet." in page


def test_what_ran_replaces_its_old_figures_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def broken(_: Scratch) -> Iterator[Pair]:
        raise OSError("no such thing")
        yield

    known = Catalogue({case.name: case for case in (fake(), fake("broken", prepare=broken), fake("jar", peers=True))})
    monkeypatch.setattr(catalogue, "found", lambda: known)
    path = tmp_path / "figures.json"
    old = Result("fake", [1.0], [1.0], PLACE)
    Figures({"fake": old, "gone": replace(old, name="gone")}).save(path)
    done = CliRunner().invoke(program.main, ["run", "--quick", "--json", str(path)])
    assert done.exit_code == 1
    assert "fake: 3 rows/s beside 4: 0.75 (0.75..0.75), target >= 0.75: yes" in done.output
    assert "OSError: no such thing" in done.output
    assert "not measured: broken\n" in done.output
    kept = measure.load(path).results
    assert {name: result.ours for name, result in kept.items()} == {"fake": [3.0], "gone": [1.0]}
    done = CliRunner().invoke(program.main, ["run", "--quick", "--row", "fak"])
    assert (done.exit_code, "broken" in done.output) == (0, False)
    assert CliRunner().invoke(program.main, ["run", "--quick", "--row", "x"]).exit_code == 2


def test_packages_are_compiled_as_an_installation_does_it(tmp_path: Path) -> None:
    module = tmp_path / "package" / "module.py"
    module.parent.mkdir()
    module.write_text("answer = 42\n")
    program.compile_packages([str(tmp_path)])
    assert Path(importlib.util.cache_from_source(str(module))).exists()


def test_the_page_in_docs_has_the_figures_in_docs() -> None:
    known = catalogue.found()
    assert known.missing == {}
    page = report.text(known, measure.load(report.FIGURES), older_sparks.load())
    assert report.TARGET.read_text(encoding="utf-8") == page, "python -m bench report"


def test_notes_have_sixty_words_at_most() -> None:
    known = catalogue.found()
    notes = [(case.name, note) for case in known.cases.values() for note in (*case.setup(), case.limit)]
    notes += [(curve.name, note) for curve in known.curves.values() for note in (curve.settings, curve.limit)]
    assert {name: note for name, note in notes if len(note.split()) > 60} == {}


def test_attempts_are_recorded_for_sections_that_exist() -> None:
    for group, name in report.ATTEMPTS.items():
        assert group in GROUPS
        assert (report.TARGET.parent / "adr" / name).is_file()


@pytest.mark.parametrize("what", OWED)
def test_what_has_to_be_measured_is(what: str) -> None:
    known = catalogue.found()
    names = [name for case in known.cases.values() for name, _ in case.lines()] + list(known.curves)
    for beginning in {each.format(body=body_bytes) for each in OWED[what] for body_bytes in BODY_BYTES}:
        assert any(name.startswith(beginning) for name in names), beginning


def test_every_case_has_a_group_and_a_name_that_can_be_typed() -> None:
    for case in catalogue.found().cases.values():
        assert case.group in GROUPS
        for name, _ in case.lines():
            assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"), name
