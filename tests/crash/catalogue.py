"""All parts, in the order of the test list. A module is imported when its parts are asked for."""

from __future__ import annotations

import importlib

from crash.part import Part

# Module -> what it needs is said by its parts (`cannot_run`), not here: all are importable everywhere.
MODULES = (
    "crash.kill",
    "crash.points",
    "crash.power_cut",
    "crash.simulated_disk",
    "crash.torn",
    "fuzz.flips",
    "crash.full_disk",
    "crash.failing_calls",
    "crash.write_back",
    "crash.processes",
    "crash.retention_race",
    "crash.model",
    "fuzz.decoders",
    "crash.leaks",
    "crash.spark_tasks",
    "crash.spark_kills",
)


def parts() -> tuple[Part, ...]:
    """Every part once."""
    return tuple(part for name in MODULES for part in importlib.import_module(name).PARTS)
