"""Process of test_unreadable: as a user with ordinary rights, use the store at `argv[1]` while this and that part of it
is closed to its owner; prints what happened.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from click.testing import CliRunner

from rmq_store import Store
from rmq_store.cli import commands

NOBODY = 65534
PARTS = (
    "commitlog/00000000000000000000", "commitlog", "consumequeue", "consumequeue/Orders", "index", "config",
    "config/topics.json", "pyrmq", "pyrmq/state", "pyrmq/progress", "pyrmq/store.json", "lock",
)  # fmt: skip


def _outcome(root: Path, read_only: bool) -> str:
    try:
        with Store.open(root, read_only=read_only) as store:
            store.refresh()
            list(store.topics())
            list(store.groups())
            list(store.all_committed_offsets())
            for queue_id, (start, end) in store.queue_ranges("Orders").items():
                list(store.read("Orders", queue_id, start, end))
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "done"


def main() -> None:
    root = Path(sys.argv[1])
    # So that everything is imported: Python's own files may be closed, too.
    assert _outcome(root, False) == "done"
    assert CliRunner().invoke(commands, ["verify", "--store", str(root)]).exit_code == 0
    if os.geteuid() == 0:
        for path in (root.parent, root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    outcomes = {}
    for name in PARTS:
        mode = (root / name).stat().st_mode
        (root / name).chmod(0)
        try:
            verify = CliRunner().invoke(commands, ["verify", "--store", str(root)], prog_name="rmq")
            shown = verify.stdout or verify.stderr
            outcomes[name] = [verify.exit_code, shown, _outcome(root, True), _outcome(root, False)]
        finally:
            (root / name).chmod(mode)
    outcomes["nothing"] = [0, "", _outcome(root, True), _outcome(root, False)]
    print(json.dumps(outcomes))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
