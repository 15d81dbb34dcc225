"""Stores that `rmq broker run --listen` serves in a process of its own, as users start it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rmq_store import Store, StoreConfig

_START_S: Final = 60.0
_LOOK_S: Final = 0.0005
_COMMAND: Final = "from rmq_store.cli import main; main()"


class Served(NamedTuple):
    """`address` is `ip:port`."""

    address: str
    pid: int


@contextlib.contextmanager
def served(directory: Path, config: StoreConfig) -> Iterator[Served]:
    """A server over a new store below `directory`."""
    Store.open(directory / "store", create=True, config=config).close()
    with started(directory, str(directory / "store"), "--listen", "127.0.0.1:0") as server:
        yield server


@contextlib.contextmanager
def started(directory: Path, *arguments: str) -> Iterator[Served]:
    """`rmq broker run` with these arguments, from when its port answers on."""
    port_file = directory / "port"
    server = subprocess.Popen(
        [
            sys.executable, "-c", _COMMAND, "broker", "run", *arguments, "--port-file", str(port_file),
            "--until-stdin-closes",  # it ends when this process does, however it ends
        ],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    try:
        yield Served(_told_address(server, port_file), server.pid)
    finally:
        server.communicate()


def environment() -> dict[str, str]:
    """What a Python process needs to import what this one can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _told_address(server: subprocess.Popen[bytes], port_file: Path) -> str:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if server.poll() is not None:
            raise RuntimeError(f"the server has ended with {server.returncode}")
        with contextlib.suppress(FileNotFoundError):
            if address := port_file.read_text(encoding="ascii").strip():
                return address
        time.sleep(_LOOK_S)
    raise RuntimeError("the server does not answer")
