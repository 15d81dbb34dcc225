"""An interrupted run of `make cluster` goes on where it stopped, but not over a change of the sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.cluster.finished import Finished


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "code.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_tests_that_passed_are_known_to_the_next_run_until_all_have(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "build" / "done"
    first = Finished(file, repository)
    first.add("a.py::one")
    first.add("a.py::two[5.5.0]")
    second = Finished(file, repository)
    assert second.tests == {"a.py::one", "a.py::two[5.5.0]"}
    second.forget()
    assert Finished(file, repository).tests == set()


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_change_of_the_sources_makes_all_tests_run_again(repository: Path, tmp_path: Path, name: str) -> None:
    Finished(tmp_path / "done", repository).add("a.py::one")
    (repository / name).write_text("2")
    changed = Finished(tmp_path / "done", repository)
    assert changed.tests == set()
    changed.add("a.py::two")
    assert Finished(tmp_path / "done", repository).tests == {"a.py::two"}
