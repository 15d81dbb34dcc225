"""Keeps one server for another process, and ends it when that process is gone, however it ended.

    python -I server_watch.py USER STOP_SIGNAL DIRECTORY COMMAND...

Lines on standard input are commands, one answer each: `start` (answer: the process id), `status` (`running` or
`ended`), `stop` (by the signal, so in order) and `kill` (SIGKILL to the server and all its processes). Both answer
`ended` when no process is left. At the end of the input, or when the parent process is gone (a forked child may hold
the input open), the server is killed and DIRECTORY removed. USER is `-` for the caller's own.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# A server that has not stopped in order by then is killed.
STOP_S = 30.0
PARENT_S = 0.5
POLL_S = 0.005


class Watch:
    """One server: stopped, or running below this process."""

    def __init__(self, user: str | None, stop_signal: int, directory: Path, command: list[str]) -> None:
        self._user = user
        self._stop_signal = stop_signal
        self._directory = directory
        self._command = command
        self._libc = ctypes.CDLL(None)
        # What a killed server leaves behind becomes ours, so we can end it and wait for it.
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._pid = 0

    def start(self) -> str:
        """Start the server. Anything left of an earlier one has ended before."""
        self.end(signal.SIGKILL)
        identity = {} if self._user is None else {"user": self._user, "group": self._user, "extra_groups": []}
        with (self._directory / "log").open("ab") as log:
            server = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
                preexec_fn=lambda: self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
                **identity,
            )
        self._pid = server.pid
        # Reaped by us together with what it leaves behind.
        server.returncode = 0
        return str(self._pid)

    def status(self) -> str:
        """Whether the server itself still runs."""
        self._reap()
        return "running" if self._pid else "ended"

    def end(self, signal_number: int) -> str:
        """End the server, then whatever it has left behind; return when no process of it is there."""
        deadline_s = time.monotonic() + STOP_S
        self._reap()
        if self._pid:
            os.kill(self._pid, signal_number)
        while self._pid:
            time.sleep(POLL_S)
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
            self._reap()
        while children := _children():
            for child in children:
                os.kill(child, signal.SIGKILL)
            time.sleep(POLL_S)
            self._reap()
        return "ended"

    def answer(self, command: str) -> str:
        """Do what a line of the input says."""
        match command:
            case "start":
                return self.start()
            case "status":
                return self.status()
            case "stop":
                return self.end(self._stop_signal)
            case "kill":
                return self.end(signal.SIGKILL)
        raise ValueError(command)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._pid = 0


def _children() -> list[int]:
    """Our children by /proc, where the kernel is built with such a list; by all parents otherwise."""
    me = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == me]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def main(user: str, stop_signal: str, directory: str, *command: str) -> None:
    """Answer until the parent is gone."""
    # Signals for the tests' process group are not for us. Handlers, unlike ignored signals, are not inherited.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    parent = os.getppid()
    watch = Watch(None if user == "-" else user, int(stop_signal), Path(directory), list(command))
    received = b""
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([0], [], [], PARENT_S)
            if not ready:
                watch.status()
                continue
            data = os.read(0, 4096)
            if not data:
                break
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                os.write(1, watch.answer(line.decode()).encode() + b"\n")
    finally:
        watch.end(signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
