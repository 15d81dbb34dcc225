"""`rmq broker run` as a process, with the methods of `JavaProcess`: it is killed, suspended and started again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from helpers.cluster.java_process import HOST, LOG_LINES
from helpers.cluster.waiting import until
from helpers.server_process import ServerError

START_S: Final = 400.0
"""Of a machine that does other things, too."""


class Nursery:
    """Where brokers of ours are forked (`nursery`). Close it: they end with it."""

    def __init__(self) -> None:
        roots = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.cluster.replicated.nursery"], env={**os.environ, "PYTHONPATH": roots},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self, log: Path, arguments: list[str]) -> int:
        """Begin `rmq broker run` with these arguments; its process id."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(log), *arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and all that it has begun."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


class OwnBroker:
    """Serves the store at `root` on `port`, with these further arguments. It ends with `close`."""

    def __init__(self, nursery: Nursery, root: Path, port: int, log: Path, *arguments: str) -> None:
        self.root = root
        self.port = port
        self.address = f"{HOST}:{port}"
        self._nursery = nursery
        self._log = log
        self._arguments = arguments
        self._process: int | None = None
        """A file descriptor of the process."""

    def runs(self) -> bool:
        """Whether it is there; suspended or not."""
        return self._process is not None and not select.select([self._process], [], [], 0)[0]

    def start(self) -> None:
        """Start it unless it runs, and wait until it can be connected to. ServerError: it has ended."""
        if self.runs():
            return
        self._forget()
        pid = self._nursery.begin(self._log, [str(self.root), "--listen", self.address, *self._arguments])
        with contextlib.suppress(ProcessLookupError):  # it has ended
            self._process = os.pidfd_open(pid)
        until(lambda: self._answers() or not self.runs(), f"{self.root} is not served: {self.log()}", START_S)
        if not self.runs():
            raise ServerError(f"`rmq broker run` has ended: {self.log()}")

    def kill(self) -> None:
        """SIGKILL; it is gone on return."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; it is gone on return."""
        self._end(signal.SIGTERM)

    def suspend(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._forget()

    def log(self) -> str:
        """The end of what it wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _signal(self, number: int) -> None:
        assert self._process is not None
        signal.pidfd_send_signal(self._process, number)

    def _end(self, number: int) -> None:
        if self.runs():
            assert self._process is not None
            self._signal(number)
            select.select([self._process], [], [])

    def _forget(self) -> None:
        if self._process is not None:
            os.close(self._process)
            self._process = None

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True
