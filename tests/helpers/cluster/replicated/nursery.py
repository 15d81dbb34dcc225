"""A process that has loaded everything, and forks `rmq broker run` again and again: a start costs no import.

    python -m helpers.cluster.replicated.nursery

A line of JSON on standard input, [file for the output, arguments ...], begins one; its process id is the answer. All of
them end with the input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from rmq_store.cli import main
from rmq_store.cli.maintenance import broker
from rmq_store.server import broker_server
from rmq_store.server.slave import slave_server

__all__ = ["broker", "broker_server", "slave_server"]


def serve() -> None:
    """Fork until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever has ended is gone at once
    children = []
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            begin(log, arguments)
        children.append(child)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def begin(log: str, arguments: list[str]) -> None:
    """The rest of the life of a child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with Path(log).open("ab") as out, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = ["rmq", "broker", "run", *arguments]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
