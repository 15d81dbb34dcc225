"""`make demo` on a machine that lacks something says so in one line, and says what to install.

The alternative is what users of Spark know: forty lines of JVM and Python stack, the reason in their middle if at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_host.sh"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with nothing on it but the tools that the script itself needs."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "sed", "head"):
        found = shutil.which(tool)
        assert found
        (tools / tool).symlink_to(found)
    return tools


def run(machine: Path, what: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine / "sh"), str(SCRIPT), what],
        env={"PATH": str(machine), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_one_line_that_says(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


def test_no_java_at_all(machine: Path) -> None:
    assert_one_line_that_says(run(machine, "java"), "Java 17", "no working java on PATH", "openjdk-17")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_a_java_that_is_too_old(machine: Path, version: str) -> None:
    program(machine / "java", f"echo 'openjdk version \"{version}\" 2024-01-01' >&2")
    assert_one_line_that_says(run(machine, "java"), "Java 17", f"is {version}", "openjdk-17")


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_a_java_that_will_do(machine: Path, version: str) -> None:
    program(machine / "java", f"echo 'openjdk version \"{version}\" 2024-01-01' >&2")
    assert run(machine, "java").returncode == 0


def test_java_home_counts_more_than_the_path_as_it_does_for_spark(machine: Path, tmp_path: Path) -> None:
    program(machine / "java", "echo 'openjdk version \"17.0.1\"' >&2")
    program(tmp_path / "jdk8" / "bin" / "java", "echo 'java version \"1.8.0_1\"' >&2")
    assert_one_line_that_says(run(machine, "java", JAVA_HOME=str(tmp_path / "jdk8")), "jdk8", "1.8.0_1")


def test_no_python_at_all(machine: Path) -> None:
    assert_one_line_that_says(run(machine, "python"), "Python 3.11", "install python3.11")


def test_a_python_that_is_too_old(machine: Path) -> None:
    program(machine / "python3", 'case "$2" in *print*) echo 3.9.2 ;; *) exit 1 ;; esac')
    assert_one_line_that_says(run(machine, "python"), "Python 3.11", "python3 is 3.9.2")


def test_a_python_without_its_venv_module(machine: Path) -> None:
    """Debian and Ubuntu ship it in a package of its own."""
    program(machine / "python3", 'case "$2" in *print*) echo 3.12.3 ;; *ensurepip*) exit 1 ;; esac')
    assert_one_line_that_says(run(machine, "python"), "venv", "python3.12-venv")


def test_a_name_on_the_path_that_does_not_run_is_passed_over(machine: Path) -> None:
    """Version managers put a shim on PATH for every Python they ever heard of; most of them fail when called."""
    program(machine / "python3.13", "exit 127")
    program(machine / "python3.11", f'exec "{sys.executable}" "$@"')
    result = run(machine, "python")
    assert (result.returncode, result.stdout) == (0, "python3.11\n")


def test_a_python_chosen_by_hand_is_the_only_one_asked(machine: Path) -> None:
    program(machine / "python3", f'exec "{sys.executable}" "$@"')
    assert run(machine, "python", PYTHON=sys.executable).stdout == f"{sys.executable}\n"
    assert_one_line_that_says(run(machine, "python", PYTHON="/nonexistent/python"), "/nonexistent/python", "PYTHON=")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_stops_at_that_line(machine: Path, tmp_path: Path, target: str) -> None:
    """With the targets that users call first: no Java, so no environment is made and nothing of Spark is started."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    shutil.copy(SCRIPT.parents[1] / "Makefile", tmp_path / "Makefile")
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "JAVA_HOME"))}
    result = subprocess.run(
        [make, "-C", str(tmp_path), target, f"SHELL={machine / 'sh'}"],
        env={**environment, "PATH": str(machine)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert "Java 17" in lines[0]
    assert not (tmp_path / ".venv").exists()


def test_make_shows_how_far_the_packages_are(machine: Path, tmp_path: Path) -> None:
    """It takes minutes, and a silent command looks dead: pip writes its own lines, each as soon as it is there."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    shutil.copy(SCRIPT.parents[1] / "Makefile", tmp_path / "Makefile")
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).write_text("")
    program(tmp_path / ".venv" / "bin" / "python", 'echo "progress of: $*"')
    result = subprocess.run(
        [make, "-C", str(tmp_path), "venv"], capture_output=True, text=True, check=False,
        env={**{key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
             "PYTHON": sys.executable},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if not line.startswith("make")]
    assert "Spark is about 450 MB" in lines[-2]
    assert lines[-1].startswith("progress of: -u -m pip install ")
    assert "--quiet" not in lines[-1] and "-q " not in lines[-1] and "progress-bar" not in lines[-1]
