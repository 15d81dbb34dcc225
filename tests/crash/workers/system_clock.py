"""Lives of the system's clock, under libfaketime: `setting store seed cycles`; counters as a JSON object a line.

libfaketime reads the time from the file `setting` whenever somebody asks for it: it stands still in between.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
import time
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crash.clocks import Life
from crash.dying import quiet
from crash.part import Counters
from crash.protections import remove_as_told
from crash.traffic import tiny_config


class SystemLife(Life):
    """A life whose clock is the one that every program asks."""

    def __init__(self, setting: Path, root: Path, chance: random.Random) -> None:
        self._setting = setting
        super().__init__(root, chance)

    @property
    def _clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @_clock_ms.setter
    def _clock_ms(self, now_ms: int) -> None:
        moment = datetime.fromtimestamp(now_ms // 1000, UTC)
        new = self._setting.with_suffix(".new")
        # Half a millisecond more: the fraction is read as a float, and cut off.
        new.write_text(f"{moment:%Y-%m-%d %H:%M:%S}.{now_ms % 1000:03d}5\n")
        new.rename(self._setting)
        assert self._clock_ms == now_ms

    def _open(self) -> Any:
        from rmq_store import Store

        return Store.open(self._root, create=True, config=tiny_config(flush_interval_commit_log=10**9))


def main() -> None:
    setting, root, seed, cycles = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    quiet()
    remove_as_told()
    # libfaketime refuses to sleep until a moment of the monotonic clock, which is how Python sleeps.
    time.sleep = lambda seconds: threading.Event().wait(seconds)  # type: ignore[assignment,return-value]
    for cycle in range(cycles):
        found: Counters = SystemLife(setting, root, random.Random(f"{seed}/{cycle}")).live()
        found.first = found.first and f"cycle {cycle}: {found.first}"
        print(json.dumps({each.name: getattr(found, each.name) for each in fields(found)}), flush=True)
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
