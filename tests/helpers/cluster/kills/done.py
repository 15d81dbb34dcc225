"""The kills that were made in one state of the sources, a line of JSON for each: a run goes on where it stopped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


class Done:
    """The lines of `file`, which names the state of the sources."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.names = {known["kill"] for known in self.lines() if "kill" in known}

    def lines(self) -> list[dict[str, Any]]:
        """All that was written down."""
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def add(self, name: str, seconds: float) -> None:
        """Write down a kill that everything was right after."""
        self.names.add(name)
        self.note("kill", kill=name, seconds=round(seconds, 2))

    def note(self, what: str, **figures: object) -> None:
        """Write figures down."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, **figures}) + "\n")

    def by_point(self) -> Counter[str]:
        """How many kills at each point: a name ends with a number."""
        return Counter(name.rpartition(" ")[0] for name in self.names)
