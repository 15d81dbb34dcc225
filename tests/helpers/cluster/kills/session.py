"""A program in a session of its own, so that it can be killed with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers import spark_jvm

ROOT = Path(__file__).resolve().parents[4]


class Session:
    """The driver of a run, its JVM and its Python workers, which have process groups of their own. `program`: a module;
    `shared` is its directory.
    """

    def __init__(self, argument: str, shared: Path, program: str = "helpers.cluster.kills.driver") -> None:
        path = os.pathsep.join(str(ROOT / name) for name in ("storage", "connector", "tests"))
        self._log = (shared / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, argument],
            env=os.environ | spark_jvm.environment() | {
                "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC", "RMQ_KILLS": str(shared),
            },
            cwd=shared, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def runs(self) -> bool:
        """Whether the driver is there."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The driver."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL to every process of the session, until none is left."""
        until = time.monotonic() + 60
        while left := members(self.pid):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            assert time.monotonic() < until, f"processes {left} do not end"
            time.sleep(0.01)
        self._process.wait(60)
        self._log.close()


def members(session: int) -> list[int]:
    """The processes of a session that are no zombies."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, *numbers = (directory / "stat").read_text().rpartition(")")[2].split()
            if int(numbers[2]) == session and state != "Z":
                found.append(int(directory.name))
    return found
