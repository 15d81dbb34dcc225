"""Processes that do the same work at the same moment, again and again.

What they do is a function(number of the process, *arguments) of a module: a context manager that yields a function of
what `Crew.run` is given. Arguments and answers are what JSON can hold.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Work = Callable[..., AbstractContextManager[Callable[..., Any]]]


class Turn(NamedTuple):
    """One process's part of a run. Times are those of the machine's monotonic clock."""

    begin_s: float
    end_s: float
    answer: Any


class Crew:
    """`count` processes, ready to work."""

    def __init__(self, count: int, work: Work, *arguments: object) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        name = f"{work.__module__}:{work.__name__}"
        self._members = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.crew", name, json.dumps([number, *arguments])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for number in range(count)
        ]  # fmt: skip
        for member in self._members:
            _told(member)

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    def run(self, *arguments: object) -> list[Turn]:
        """Everybody works once."""
        for member in self._members:
            assert member.stdin is not None
            member.stdin.write(json.dumps(arguments) + "\n")
            member.stdin.flush()
        return [Turn(*_told(member)) for member in self._members]

    def kill(self) -> None:
        """Kill everybody, wherever they are: nothing is closed."""
        for member in self._members:
            member.kill()
        self._wait()

    def close(self) -> None:
        """Let everybody end as it should."""
        self._wait()

    def _wait(self) -> None:
        for member in self._members:
            assert member.stdin is not None
            assert member.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                member.stdin.close()
            member.wait()
            member.stdout.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def span_s(turns: list[Turn]) -> float:
    """From when the first one began to when the last one was ready."""
    return max(turn.end_s for turn in turns) - min(turn.begin_s for turn in turns)


def _told(member: subprocess.Popen[str]) -> Any:
    assert member.stdout is not None
    line = member.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the crew died, exit status {member.wait()}")
    return json.loads(line)


def _live(work: Work, arguments: list[Any], answers: Any) -> None:
    def tell(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    with work(*arguments) as once:
        tell("ready")
        for line in sys.stdin:
            begin_s = time.monotonic()
            answer = once(*json.loads(line))
            tell([begin_s, time.monotonic(), answer])


@contextlib.contextmanager
def _own_stdout() -> Iterator[Any]:
    """What the work prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    with _own_stdout() as answers:
        _live(getattr(importlib.import_module(module), name), json.loads(sys.argv[2]), answers)


if __name__ == "__main__":
    main()
