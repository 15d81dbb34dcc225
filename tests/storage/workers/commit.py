"""Processes of test_store_units: `race <store> <files.json>` and `die <file as JSON>`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from rmq_store import StagedFile, Store
from rmq_store.files import durable

ROUND_S = 0.03


def staged_file(fields: list) -> StagedFile:
    *plain, topics = fields
    return StagedFile(*plain, tuple((name, count) for name, count in topics))


def race(root: Path, files: Path) -> None:
    """Commit every file at the same moment as another process; print which ones were added here."""
    reports = [staged_file(fields) for fields in json.loads(files.read_text())]
    results = []
    go = root.parent / "go"
    with Store.open(root) as store:
        (root.parent / f"ready-{os.getpid()}").touch()
        while not go.exists() or not go.read_text():
            time.sleep(0.001)
        start_s = float(go.read_text())
        for number, file in enumerate(reports):
            while time.monotonic() < start_s + number * ROUND_S:
                pass
            results.append(store.commit_staged([file], key=f"q{number}", value=1))
    print(json.dumps([int(result.committed) for result in results]))  # noqa: T201 - the answer to the test


def die(report: str) -> None:
    """For every line `<store> <tab> <k>`: commit the file in a child that is killed before its k-th operation, and
    print how the child ended.
    """
    for line in sys.stdin:
        root, kill_at = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            commit_and_die(root, report, int(kill_at))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer to the test


def commit_and_die(root: str, report: str, kill_at: int) -> None:
    operations = 0

    def count(operation: str, path: str) -> None:
        nonlocal operations
        operations += 1
        if operations == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store.open(root)
    durable.hook = count
    store.commit_staged([staged_file(json.loads(report))], key="q", value=1)
    store.close()


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        die(sys.argv[2])
