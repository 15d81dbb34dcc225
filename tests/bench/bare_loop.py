"""Loops in C that do no more than a figure needs at least: its floor. They are compiled when they are measured."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

COMPILER = "cc"


def is_possible() -> bool:
    """Whether this machine has a compiler."""
    return shutil.which(COMPILER) is not None


def built(name: str, directory: Path) -> Path:
    """The program of `<name>.c` beside this module, in `directory`; compiled if it is not there yet.

    Raises:
        FileNotFoundError: there is no compiler.
    """
    program = directory / name
    if not program.exists():
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run([COMPILER, "-O2", "-std=gnu11", "-o", str(program), str(source)], check=True)
    return program
