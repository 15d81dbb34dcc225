"""`rmq broker run` as a process of its own, which can be suspended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from helpers.interop.clients import Place
from helpers.server_process import stands_still

_LOOK_S: Final = 0.01
_END_S: Final = 20


class ServedStore:
    """A store that the command serves. `place`: where."""

    def __init__(self, process: subprocess.Popen[str], place: Place) -> None:
        self._process = process
        self.place = place

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """SIGSTOP: the server keeps its connections, and answers nobody."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            while not stands_still(self._process.pid):
                time.sleep(_LOOK_S)
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def serving(path: Path, *options: str) -> Iterator[ServedStore]:
    """Serve an existing store, with more `options` of the command. Of two ports for gRPC `place` has that with TLS."""
    roots = os.pathsep.join(one for one in sys.path if one)
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "broker", "run", str(path)]
    command += ["--listen", "127.0.0.1:0", *options]
    variables = {**os.environ, "PYTHONPATH": roots}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            [remoting, *grpc] = re.findall(r" at ([0-9.]+:[0-9]+)", line)
            yield ServedStore(process, Place(remoting, grpc[-1] if grpc else ""))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
