"""Which tests of a long run have passed, for the run that goes on after an interruption."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path


class Finished:
    """A file with the state of the sources in its first line and a test in each other one.

    Tests that passed in another state count for nothing: `tests` is empty then.
    """

    def __init__(self, file: Path, repository: Path) -> None:
        self._file = file
        self._state = state_of(repository)
        first, *tests = file.read_text().splitlines() if file.exists() else [""]
        self.tests = set(tests) if first == self._state else set()

    def add(self, test: str) -> None:
        """Write a test down; it is in the file on return."""
        if not self.tests:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(f"{self._state}\n")
        self.tests.add(test)
        with self._file.open("a") as file:
            file.write(f"{test}\n")

    def forget(self) -> None:
        """All have passed: the next run begins anew."""
        self._file.unlink(missing_ok=True)


def state_of(repository: Path) -> str:
    """A digest of the commit and of all that has been changed since, untracked files included."""
    digest = hashlib.sha256()
    for command in (["rev-parse", "HEAD"], ["diff", "HEAD", "--binary"]):
        digest.update(_git(repository, *command))
    for name in sorted(_git(repository, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")):
        path = repository / name.decode()
        digest.update(name + b"\0" + (path.read_bytes() if name and path.is_file() else b""))
    return digest.hexdigest()


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=True).stdout
