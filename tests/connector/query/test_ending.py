"""The process that plans a stream's batches, told to end: it closes its store, but never in the middle of a call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_store import Store

Make = Callable[..., Path]

# As pyspark/sql/streaming/python_streaming_source_runner.py: it waits for calls on a socket, which is a pipe here.
PROCESS = """
import sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[2])
from pyspark_rmq.query import ending
from pyspark_rmq.options.options import source_options
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from pyspark_rmq.read.stream_reader import RmqStreamReader
options = {"path": sys.argv[1], "subscribe": "Orders", "group": "g"}
reader = RmqStreamReader(source_options(options, "stream read", 1_000_000), SOURCE_SCHEMA)
reader.initialOffset()
ending._CALL_ENDS_WITHIN_S = float(sys.argv[4])
call = {"__name__": "pyspark_rmq.a_call", "wait": sys.stdin.readline}
exec("def run(): print('ready', flush=True); wait(); print('call is over', flush=True)", call)
call["run"]() if sys.argv[3] == "call" else print("ready", flush=True)
sys.stdin.readline()
sys.stdin.readline()
"""

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@contextmanager
def planning(
    path: Path, *, name: str = RUNNER, where: str = "between", call_ends_within_s: float = 60
) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened the store for a group, and has been sent SIGTERM."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROCESS, path, name, where, call_ends_within_s]
    with subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert (path / "abort").exists()
        process.send_signal(signal.SIGTERM)
        yield process
        assert process.wait(timeout=60) == -signal.SIGTERM


def trust(path: Path) -> str:
    with Store.open(path) as store:
        assert store.recovery is not None
        return str(store.recovery.trust)


def test_a_stopped_query_leaves_a_clean_store(make_store: Make) -> None:
    """`query.stop()` killed the process: `abort` stayed, unless a sink of the session was the last to close."""
    path = make_store(Orders=10)
    with planning(path):
        pass
    assert not (path / "abort").exists()
    assert trust(path) == "CLEAN"


def test_a_call_that_is_under_way_comes_to_its_end_first(make_store: Make) -> None:
    path = make_store(Orders=10)
    with planning(path, where="call") as process:
        assert process.stdin is not None and process.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "call is over\n"
    assert not (path / "abort").exists()
    assert trust(path) == "CLEAN"


def test_a_call_that_never_ends_does_not_keep_the_process(make_store: Make) -> None:
    path = make_store(Orders=10)
    with planning(path, where="call", call_ends_within_s=0.2):
        pass
    assert (path / "abort").exists()
    assert trust(path) == "SAME_BOOT"


def test_the_signal_of_another_process_is_left_alone(make_store: Make) -> None:
    path = make_store(Orders=10)
    with planning(path, name="somebody.elses"):
        pass
    assert (path / "abort").exists()
