"""Process of test_hostile_input: give up the rights of root, then use the store at `argv[1]`; prints what happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rmq_store import StagingArea, Store, sweep

NOBODY = 65534


def main() -> None:
    root = Path(sys.argv[1])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    calls = {
        "read": lambda: Store.open(root, read_only=True).close(),
        "write": lambda: Store.open(root).close(),
        "create": lambda: Store.open(root.parent / "another", create=True).close(),
        "create inside": lambda: Store.open(root / "inside", create=True).close(),
        "task": lambda: StagingArea.for_task(root, "w", 0, 0).abort(),
        "sweep": lambda: sweep(root, ["w"]),
    }
    outcomes = {}
    for name, call in calls.items():
        try:
            call()
            outcomes[name] = "done"
        except Exception as error:
            outcomes[name] = f"{type(error).__name__} {error}"
    print(json.dumps(outcomes))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
