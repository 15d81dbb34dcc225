"""Runs cases of `failing_syscalls`: one JSON object a line on standard input, one answer a line on standard output."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

from crash.failing_calls import Case
from crash.failing_life import SCENARIOS, Life
from crash.part import Counters
from crash.protections import remove_as_told
from rmq_store.files import durable

_shim = ctypes.CDLL(None)
_shim.shim_fired.restype = _shim.shim_log.restype = ctypes.c_char_p
_shim.shim_count.restype = _shim.shim_syncs.restype = ctypes.c_long
_shim.shim_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]


def _note(operation: str, path: str) -> None:
    _shim.shim_note(operation.encode(), path.encode())


def _fired() -> tuple[str, str] | None:
    """As the hook has it: a directory that is synced is another operation."""
    name, _, path = _shim.shim_fired().decode().partition("\t")
    if not name:
        return None
    if name in ("fsync", "fdatasync") and Path(path).is_dir():
        name = "fsync_directory"
    return name, path


def run(root: str, case: Case, seed: int) -> dict[str, Any]:
    counters = Counters()
    life = Life(Path(root), random.Random(seed), counters, _fired, name=f"{case.name} (system calls), seed {seed}")
    life.count_fsyncs = _shim.shim_syncs
    _shim.shim_arm(root.encode(), 0, 0, 0)
    durable.hook = _note
    try:
        body = SCENARIOS[case.scenario](life)
        _shim.shim_arm(root.encode(), case.k, getattr(errno, case.failure), case.sticky)
        body()
        _shim.shim_disarm()
        count, log = _shim.shim_count(), _shim.shim_log().decode()
        life.finish()
    finally:
        _shim.shim_disarm()
        durable.hook = None
        if life.store is not None:
            life.abandon()
    counters.seen["calls that failed"] += bool(_shim.shim_fired())
    figures = {name: getattr(counters, name) for name in Counters.__slots__}
    return {"counters": figures, "count": count, "log": log if case.k == 0 else ""}


def main() -> None:
    logging.disable(logging.CRITICAL)
    remove_as_told()
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(run(job["root"], Case(*job["case"]), job["seed"])), flush=True)


if __name__ == "__main__":
    main()
