"""One server of the tests as a process below a watcher: started, killed, restarted, and gone with this process."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

START_S = 60.0
# The environment variable with the directory below which servers have theirs; without it, TMPDIR.
DIRECTORY = "RMQ_TEST_SERVER_DIRECTORY"

_WATCH = Path(__file__).with_name("server_watch.py")
_POLL_S = 0.01


class ServerError(Exception):
    """A server that does not start or has ended; the end of its log."""


class Server(ABC):
    """One server. Methods that change its state are for the process that made it."""

    name: ClassVar[str]
    # Debian's package, its system user, and the Python package of the client.
    package: ClassVar[str]
    system_user: ClassVar[str | None]
    client: ClassVar[str]
    stop_signal: ClassVar[int]
    start_s: ClassVar[float] = START_S
    """So long it may take to answer after its start."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._watch: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._pid = 0

    # -- what a kind of server says of itself ------------------------------------------------------------------------

    @abstractmethod
    def programs(self) -> list[Path | None]:
        """What must be installed; None for each program that is not."""

    @abstractmethod
    def url(self, database: str) -> str:
        """The address of a database, password included."""

    @abstractmethod
    def _initialise(self, directory: Path) -> None:
        """Make the data directory."""

    @abstractmethod
    def _command(self, directory: Path) -> list[str]:
        """How the server is started in the foreground."""

    @abstractmethod
    def _connect_once(self) -> None:
        """Raise the client's error while the server does not answer."""

    # -- life --------------------------------------------------------------------------------------------------------

    def missing(self) -> str | None:
        """Why this machine has no such server; None if it can be started."""
        if None in self.programs():
            return f"{self.name} is not installed: `make servers` installs it"
        if importlib.util.find_spec(self.client) is None:
            return f"the Python package {self.client} is not installed"
        if (user := self._identity()) is not None:
            try:
                pwd.getpwnam(user)
            except KeyError:
                return f"{self.name} does not run as root, and there is no user {user}"
        return None

    @property
    def directory(self) -> Path:
        """Where data, socket and `log` are. The server has been started before."""
        if self._directory is None:
            raise ServerError(f"{self.name} has not been started")
        return self._directory

    @property
    def pid(self) -> int:
        """The server's process, which was started last."""
        return self._pid

    def runs(self) -> bool:
        """Whether the server is there; suspended or not."""
        with self._lock:
            return self._ask("status") == "running"

    def suspend(self) -> None:
        """SIGSTOP: the server keeps its connections and answers nobody. `kill` ends it in this state, too.

        The signal stops one thread after another; on return all of them stand still.
        """
        with self._lock:
            pid = self._running_pid()
            os.kill(pid, signal.SIGSTOP)
            while not stands_still(pid):
                time.sleep(_POLL_S)

    def resume(self) -> None:
        """SIGCONT."""
        with self._lock:
            os.kill(self._running_pid(), signal.SIGCONT)

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers. Raises `ServerError`."""
        with self._lock:
            if self._watch is None:
                self._begin()
            if self._ask("status") == "running":
                return
            self._pid = int(self._ask("start"))
            deadline_s = time.monotonic() + self.start_s
            while True:
                try:
                    self._connect_once()
                    return
                except Exception as error:
                    if self._ask("status") == "ended":
                        raise ServerError(f"{self.name} ended at its start. {self._last_words()}") from error
                    if time.monotonic() > deadline_s:
                        raise ServerError(
                            f"{self.name} does not answer after {self.start_s:.0f} s. {self._last_words()}"
                        ) from error
                time.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes; none is left on return. Its data stay."""
        with self._lock:
            self._ask("kill")

    def stop(self) -> None:
        """End the server in order. Its data stay."""
        with self._lock:
            self._ask("stop")

    def restart(self) -> None:
        """`kill`, then `start`: what a power failure looks like to a client. Redis has forgotten everything then."""
        with self._lock:
            self.kill()
            self.start()

    def close(self) -> None:
        """End the server for good, and remove its directory. A later `start` begins with an empty one."""
        with self._lock:
            if self._watch is None or self._owner != os.getpid():
                return
            watch, directory, self._watch, self._directory = self._watch, self.directory, None, None
            with watch:
                assert watch.stdin is not None
                watch.stdin.close()
            # Nothing is left of it, unless somebody killed the watcher.
            shutil.rmtree(directory, ignore_errors=True)

    def _begin(self) -> None:
        if reason := self.missing():
            raise ServerError(reason)
        directory = Path(tempfile.mkdtemp(prefix=f"rmq-{self.name}-", dir=os.environ.get(DIRECTORY)))
        user = self._identity()
        try:
            if user is not None:
                shutil.chown(directory, user, user)
            self._initialise(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._directory = directory
        self._watch = subprocess.Popen(
            [
                sys.executable, "-I", str(_WATCH), user or "-", str(int(self.stop_signal)), str(directory),
                *self._command(directory),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, umask=0o077,
        )  # fmt: skip
        atexit.register(self.close)

    def _running_pid(self) -> int:
        if self._ask("status") != "running":
            raise ServerError(f"{self.name} does not run")
        return self._pid

    def _ask(self, command: str) -> str:
        if self._owner != os.getpid():
            raise ServerError(f"{self.name} belongs to process {self._owner}: a forked child may only use its URLs")
        if self._watch is None:
            return "ended"
        assert self._watch.stdin is not None and self._watch.stdout is not None
        self._watch.stdin.write(f"{command}\n")
        self._watch.stdin.flush()
        if answer := self._watch.stdout.readline().strip():
            return answer
        raise ServerError(f"the watcher of {self.name} has ended")

    def _identity(self) -> str | None:
        return self.system_user if os.geteuid() == 0 else None

    def _run(self, command: list[str], directory: Path) -> None:
        """A program of the server that ends by itself. Raises `ServerError`."""
        user = self._identity()
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            user=user, group=user, extra_groups=None if user is None else [],
            env={**os.environ, "HOME": str(directory), "LC_ALL": "C"}, text=True, errors="replace",
        )  # fmt: skip
        if done.returncode:
            raise ServerError(f"{Path(command[0]).name} failed. {_end_of(done.stdout)}")

    def _last_words(self) -> str:
        return _end_of((self.directory / "log").read_text(errors="replace"))


def _end_of(log: str) -> str:
    return " | ".join(log.splitlines()[-5:])


def stands_still(pid: int) -> bool:
    """Whether each thread is stopped or has ended, by the third field of its stat; the second one may have blanks."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"T", "t", "Z", "X"}
