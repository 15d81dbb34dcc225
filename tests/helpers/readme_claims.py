"""The sentences of the README that have figures, made from docs/performance.json and docs/reliability.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.measure import ROOT, Result, load

README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.json"
RELIABILITY = ROOT / "docs" / "reliability.json"


def claims(results: Mapping[str, Result], records: list[dict[str, Any]]) -> list[str]:
    """Each such sentence, as the figures are now. The first two are the README's first three lines."""
    put = results["java-put-p50-1024"]
    ours_us, java_us = statistics.median(put.ours), statistics.median(put.yardstick)
    beside_kafka = [name for name in results if name.startswith("write-beside-kafka-")]
    bulk = _ratio(results["java-append-batch-1000-1024"])
    return [
        f"1 KiB messages run {bulk} times as fast as in RocketMQ's own Java store",
        _kills(records),
        f"{_span(results, 'write-beside-kafka-')} times its rows per second ({len(beside_kafka)} settings)",
        f"a bulk append is {_span(results, 'java-append-')} times as fast",
        f"its median takes {ours_us:.0f} us instead of {java_us:.1f} us",
        f"16 senders with `SYNC_FLUSH` reach {_ratio(results['java-put-sync-16'])} of its rate",
    ]


def claimed() -> list[str]:
    """The sentences of the figures that are kept."""
    return claims(load(PERFORMANCE).results, json.loads(RELIABILITY.read_text(encoding="utf-8"))["records"])


def stale(readme: Path = README) -> list[str]:
    """Those of `claimed()` that the README has otherwise."""
    words = " ".join(readme.read_text(encoding="utf-8").split())
    return [claim for claim in claimed() if claim not in words]


def tell_stale() -> bool:
    """Name on stderr what has to change in the README, which is written by hand; whether something has to."""
    found = stale()
    for claim in found:
        click.echo(f"README.md has to say: {claim}", err=True)
    return bool(found)


def _ratio(result: Result) -> str:
    return f"{result.ratio:.2f}"


def _span(results: Mapping[str, Result], beginning: str) -> str:
    found = sorted(result.ratio for name, result in results.items() if name.startswith(beginning))
    return f"{found[0]:.2f} to {found[-1]:.2f}"


def _kills(records: list[dict[str, Any]]) -> str:
    kills = [one for one in records if one["part"] in ("kill_sync", "kill_async") and not one["without"]]
    if [one["unit"] for one in kills] != ["kills", "kills"]:
        raise ValueError(f"{RELIABILITY.name} has other units than kills: {[one['unit'] for one in kills]}")
    cycles, lost, acknowledged = (sum(one[field] for one in kills) for field in ("cycles", "lost", "acknowledged"))
    return f"{cycles:,} `kill -9` lost {lost or 'none'} of {acknowledged:,} acknowledged messages"
