"""Processes that work at the same moment: what they are told, what they answer, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.crew import Crew, Turn, span_s


@contextlib.contextmanager
def noting(number: int, directory: str) -> Iterator[Callable[..., object]]:
    """Multiplies, and notes that it was let go."""

    def once(factor: int) -> int:
        os.write(1, b"not an answer\n")
        if not factor:
            os.kill(os.getpid(), signal.SIGKILL)
        return number * factor

    yield once
    Path(directory, f"ended-{number}").touch()


def test_everybody_works_once_for_each_run_and_ends_when_let_go(tmp_path: Path) -> None:
    with Crew(2, noting, str(tmp_path)) as crew:
        turns = crew.run(3)
        assert [turn.answer for turn in turns] == [0, 3]
        assert [turn.answer for turn in crew.run(5)] == [0, 5]
        assert 0 <= max(turn.end_s - turn.begin_s for turn in turns) <= span_s(turns)
        assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended-0", "ended-1"]


def test_a_killed_crew_closes_nothing(tmp_path: Path) -> None:
    crew = Crew(1, noting, str(tmp_path))
    crew.kill()
    assert not list(tmp_path.iterdir())


def test_who_dies_while_working_is_missed(tmp_path: Path) -> None:
    with Crew(1, noting, str(tmp_path)) as crew, pytest.raises(RuntimeError, match="exit status -9"):
        crew.run(0)


def test_a_run_lasts_from_the_first_begin_to_the_last_end() -> None:
    assert span_s([Turn(2.0, 3.0, None), Turn(1.0, 2.5, None)]) == 2.0
