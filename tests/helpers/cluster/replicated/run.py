"""All kills of one pair and version, as far as they are not done:

    PYTHONPATH=tests python -m helpers.cluster.replicated.run ours-java 5.5.0 [how many]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from helpers.cluster.kills.done import DoneKills

from .pairs import pair_of
from .plan import events
from .scene import Scene

TESTED: Final = (
    "storage/rmq_store/replica", "storage/rmq_store/log", "storage/rmq_store/server/ha",
    "storage/rmq_store/server/slave", "tests/helpers/cluster/replicated",
)  # fmt: skip


def run(pair: str, version: str, kills: int, directory: Path) -> DoneKills:
    """Make so many kills in all, with stores below `directory`. AssertionError: something was lost."""
    done = DoneKills("replicated-kills", f"{pair} {version}", TESTED)
    for generation, planned in enumerate(events(pair, version)):
        left = [event for event in planned if event.name not in done.names][: max(kills - len(done.names), 0)]
        if not left:
            continue
        brokers = pair_of(pair, version, directory / str(generation), "Killed")
        with Scene(brokers, generation) as scene:
            for event in left:
                begun = time.monotonic()
                scene.run(event)
                done.add(event.name, time.monotonic() - begun)
            done.note("generation", generation=generation, **scene.finish())
    return done


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100, Path(made))
