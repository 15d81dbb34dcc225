"""The processes around a replica: its feeder, which may be aimed at a point, and its reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from helpers.cluster.brokers import RocketmqCluster

_TESTS: Final = Path(__file__).parents[3]


def feeder_process(
    cluster: RocketmqCluster,
    root: Path,
    aims: Path,
    log: IO[bytes],
    *arguments: str,
    aim: tuple[str, int] | None = None,
) -> subprocess.Popen[bytes]:
    """`rmq follow` of the master into `root`. `aims`: the file through which it is aimed; `aim` counts from the start
    (`feeder`).
    """
    if aim is not None:
        take_aim(aims, *aim)
    target = f"rmq://{cluster.name_server}"
    return _process("feeder", log, aims, target, "--broker", "broker-a", *arguments, root)


def take_aim(aims: Path, point: str, occurrence: int) -> None:
    """Write down where the next feeder, or the one that gets SIGUSR1, is to die."""
    new = aims.with_suffix(".new")
    new.write_text(json.dumps([point, occurrence]), encoding="utf-8")
    new.rename(aims)


def watcher_process(root: Path, notes: Path, topic: str, group: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A reader that reads all the time (`watcher`)."""
    return _process("watcher", log, root, notes, topic, group)


def _process(module: str, log: IO[bytes], *arguments: object) -> subprocess.Popen[bytes]:
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", f"helpers.cluster.followed.{module}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
