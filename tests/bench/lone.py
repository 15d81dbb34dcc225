"""One message, three ways in the same minutes: a bare C loop with the same system calls and stores (lone_floor.c), one
call of the extension, and Python. p50 and p99 of each in microseconds, three rounds:

    PYTHONPATH=tests python -m bench.lone [DIRECTORY]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from bench.bare_loop import built
from bench.rows.one_message import frame_bytes, new_store, put_us
from rmq_store.log.append.lone_append import LoneAppend

ROUNDS = 3
PUTS = 20_000
BODY_BYTES = 100


def floor_us(program: Path, directory: Path, size_bytes: int, count: int) -> tuple[float, float]:
    """p50 and p99 of the bare loop, in microseconds."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        command = [str(program), scratch, str(size_bytes), str(count)]
        p50, p99 = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(p50) / 1000, int(p99) / 1000


def measured(directory: Path, count: int) -> dict[str, tuple[float, float]]:
    """p50 and p99 of each way, in microseconds."""
    with new_store(directory / "store") as store:
        program = built("lone_floor", directory)
        found = {"bare C loop": floor_us(program, directory, frame_bytes(store, BODY_BYTES), count)}
        found["extension"] = put_us(store, BODY_BYTES, count)
        with mock.patch.object(LoneAppend, "append", return_value=None):
            found["Python"] = put_us(store, BODY_BYTES, count)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as scratch:
        for _ in range(ROUNDS):
            for way, (p50, p99) in measured(Path(scratch), PUTS).items():
                print(f"{way:12} p50 {p50:7.1f} us   p99 {p99:8.1f} us")


if __name__ == "__main__":
    main()
