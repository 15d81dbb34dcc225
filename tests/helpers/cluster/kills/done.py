"""The kills of a long run that were made in this state of the sources, a line of JSON for each: a run that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from helpers.cluster.kills.results import ROOT, sources_now


class DoneKills:
    """A file below build/`directory`. `what`: of which brokers, the start of each kill's name; `tested`: directories of
    the sources.
    """

    def __init__(self, directory: str, what: str, tested: tuple[str, ...]) -> None:
        self._what = what
        self._file = ROOT / "build" / directory / f"{what.replace(' ', '-')}-{sources_now(directories=tested)}.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.names: set[str] = {known["kill"] for known in self.lines() if "kill" in known}

    def lines(self) -> list[dict[str, Any]]:
        """All that was written down."""
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def add(self, name: str, seconds: float, **figures: object) -> None:
        """Write a kill down that was survived. `name`: "<what> <point> <number>"."""
        self.names.add(name)
        self.note("kill", kill=name, seconds=round(seconds, 2), **figures)

    def note(self, what: str, **figures: object) -> None:
        """Write figures down."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, **figures}) + "\n")

    def by_point(self) -> Counter[str]:
        """How many kills at each point."""
        return Counter(name.removeprefix(f"{self._what} ").rpartition(" ")[0] for name in self.names)
