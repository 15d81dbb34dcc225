"""The README: its figures are those of docs/performance.json and docs/reliability.json, and it is short."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [line for line in README.splitlines() if line]
WORDS = " ".join(README.split())
FIGURE = re.compile(r"\d+\.\d\d\b|\b\d{1,3}(?:,\d{3})+\b|\b[\d.]+ us\b")
VERSION = re.compile(r"(?:Scala|Python|older than) \d\.\d+")

_RESULTS = {
    result["name"]: result
    for result in json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))["results"]
}
_RECORDS = json.loads((ROOT / "docs" / "reliability.json").read_text(encoding="utf-8"))["records"]


def ratio(name: str) -> str:
    """Median of the pairs of a line of docs/performance.md, as that page has it."""
    result = _RESULTS[name]
    pairs = zip(result["ours"], result["yardstick"], strict=True)
    return f"{statistics.median(ours / yardstick for ours, yardstick in pairs):.2f}"


def span(*beginnings: str) -> str:
    """Smallest and largest ratio of all lines whose names begin so."""
    found = sorted((ratio(name) for name in _RESULTS if name.startswith(beginnings)), key=float)
    return f"{found[0]} to {found[-1]}"


def medians(name: str) -> tuple[float, float]:
    return statistics.median(_RESULTS[name]["ours"]), statistics.median(_RESULTS[name]["yardstick"])


def kills() -> str:
    records = [one for one in _RECORDS if one["part"] in ("kill_sync", "kill_async") and not one["without"]]
    assert [one["unit"] for one in records] == ["kills", "kills"]
    lost = sum(one["lost"] for one in records)
    return (
        f"{sum(one['cycles'] for one in records):,} `kill -9` lost {lost or 'none'} of "
        f"{sum(one['acknowledged'] for one in records):,} acknowledged messages"
    )


def claims() -> list[str]:
    """The sentences of the README that have figures, as these are now."""
    put = medians("java-put-p50-1024")
    beside_kafka = [name for name in _RESULTS if name.startswith("write-beside-kafka-")]
    return [
        f"1 KiB messages run {ratio('java-append-batch-1000-1024')} times as fast as in RocketMQ's own Java store",
        kills(),
        f"{span('write-beside-kafka-')} times its rows per second ({len(beside_kafka)} settings)",
        f"a bulk append is {span('java-append-')} times as fast",
        f"its median takes {put[0]:.0f} us instead of {put[1]:.1f} us",
        f"16 senders with `SYNC_FLUSH` reach {ratio('java-put-sync-16')} of its rate",
    ]


@pytest.mark.parametrize("number", range(len(claims())))
def test_a_sentence_has_the_figures_that_were_measured(number: int) -> None:
    assert claims()[number] in WORDS


def test_all_figures_are_in_sentences_that_are_compared() -> None:
    assert set(FIGURE.findall(VERSION.sub("", README))) == set(FIGURE.findall(" ".join(claims())))


def test_the_first_three_lines_say_what_it_is_and_two_figures() -> None:
    head = " ".join(LINES[:3])
    assert "store directory of an Apache RocketMQ broker" in head
    assert [claim for claim in claims() if claim in head] == claims()[:2]


def test_the_first_example_has_ten_lines() -> None:
    block = README.split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line]) == 10


def test_it_is_short_and_has_five_reasons_against_it() -> None:
    assert len(README.split()) < 1000
    reasons = README.split("## Not for you if\n\n")[1].split("\n\n")[0].splitlines()
    assert [reason.split(".")[0] for reason in reasons] == list("12345")


def test_a_figure_that_was_measured_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[str, Any] = {"ours": [2.0], "yardstick": [1.0]}
    monkeypatch.setitem(_RESULTS, "java-append-batch-1000-1024", changed)
    assert claims()[0] not in WORDS
