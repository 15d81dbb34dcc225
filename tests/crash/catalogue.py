"""All parts, in the order of the test list. A module is imported when its parts are asked for."""

from __future__ import annotations

import importlib

from crash.part import Part

# What a part needs is said by the part (`cannot_run`), not here: all modules are importable everywhere.
MODULES = (
    "crash.kill",
    "crash.processes",
    "crash.locks",
    "crash.clocks",
    "crash.system_clock",
    "crash.points",
    "crash.power_cut",
    "crash.simulated_disk",
    "crash.loss_bound",
    "crash.torn",
    "fuzz.flips",
    "crash.full_disk",
    "crash.failing_calls",
    "crash.write_back",
    "crash.retention_race",
    "crash.model",
    "fuzz.decoders",
    "crash.leaks",
    "crash.spark_tasks",
    "crash.spark_kills",
    "crash.business.kills",
    "crash.served.kills",
    "crash.mixed",
)


def parts() -> tuple[Part, ...]:
    """Every part once."""
    return tuple(part for name in MODULES for part in importlib.import_module(name).PARTS)


def found() -> tuple[dict[str, Part], dict[str, str]]:
    """The parts by name, and {module: why it cannot be imported}."""
    by_name: dict[str, Part] = {}
    missing = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
            continue
        for part in module.PARTS:
            assert part.name not in by_name, f"two parts are called {part.name}"
            by_name[part.name] = part
    return by_name, missing
