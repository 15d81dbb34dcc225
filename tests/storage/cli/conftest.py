"""Running `rmq` in the test's process, and once more in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq_store.cli import commands

from .changing import make_store

Run = Callable[..., Result]
RunInTerminal = Callable[..., tuple[int, str]]


@pytest.fixture
def run(golden: Path) -> Run:
    """`run("topics", "--json")`: the command on the golden store, as in a pipe."""

    def invoke(*arguments: str, store: Path | None = golden / "store") -> Result:
        environment = {"RMQ_STORE": str(store) if store else None}
        return CliRunner().invoke(commands, list(arguments), env=environment, prog_name="rmq", catch_exceptions=False)

    return invoke


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of `changing.make_store`, to be copied."""
    return make_store(tmp_path_factory.mktemp("made") / "store")


@pytest.fixture
def run_in_terminal(golden: Path) -> RunInTerminal:
    """`run_in_terminal("topics", columns=60)`: exit code and everything that a terminal was sent."""

    def spawn(*arguments: str, columns: int = 80, store: Path = golden / "store") -> tuple[int, str]:
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        roots = os.pathsep.join(path for path in sys.path if path)
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": roots,
            "RMQ_STORE": str(store),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }
        command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *arguments]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        received = b""
        try:
            while chunk := os.read(controller, 65536):
                received += chunk
        except OSError:  # EIO: how Linux tells that the last descriptor of the terminal was closed
            pass
        finally:
            os.close(controller)
        return process.wait(timeout=60), received.decode()

    return spawn


def mind_ctrl_c() -> None:
    """For a child before it begins: tests in the background of a shell have Ctrl-C ignored, and so would it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
