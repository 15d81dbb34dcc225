"""The README: its figures are those of docs/performance.json and docs/reliability.json, and it is short."""

from __future__ import annotations

import re

import pytest

from bench import measure
from bench.measure import Result
from helpers import readme_claims

README = readme_claims.README.read_text(encoding="utf-8")
LINES = [line for line in README.splitlines() if line]
WORDS = " ".join(README.split())
FIGURE = re.compile(r"\d+\.\d\d\b|\b\d{1,3}(?:,\d{3})+\b|\b[\d.]+ us\b")
VERSION = re.compile(r"(?:Scala|Python|older than) \d\.\d+")
CLAIMS = readme_claims.claimed()


@pytest.mark.parametrize("number", range(len(CLAIMS)))
def test_a_sentence_has_the_figures_that_were_measured(number: int) -> None:
    assert CLAIMS[number] in WORDS


def test_all_figures_are_in_sentences_that_are_compared() -> None:
    assert set(FIGURE.findall(VERSION.sub("", README))) == set(FIGURE.findall(" ".join(CLAIMS)))


def test_the_first_three_lines_say_what_it_is_and_two_figures() -> None:
    head = " ".join(LINES[:3])
    assert "store directory of an Apache RocketMQ broker" in head
    assert [claim for claim in CLAIMS if claim in head] == CLAIMS[:2]


def test_the_first_example_has_ten_lines() -> None:
    block = README.split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line]) == 10


def test_it_is_short_and_has_five_reasons_against_it() -> None:
    assert len(README.split()) < 1000
    reasons = README.split("## Not for you if\n\n")[1].split("\n\n")[0].splitlines()
    assert [reason.split(".")[0] for reason in reasons] == list("12345")


def test_a_figure_that_was_measured_again_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not readme_claims.tell_stale()
    figures = measure.load(readme_claims.PERFORMANCE)
    old = figures.results["java-append-batch-1000-1024"]
    figures.results[old.name] = Result(old.name, [2.0], [1.0], old.place)
    monkeypatch.setattr(readme_claims, "load", lambda path: figures)
    assert readme_claims.tell_stale()
    assert "README.md has to say: 1 KiB messages run 2.00 times as fast" in capsys.readouterr().err
