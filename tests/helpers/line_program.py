"""A program as a process that reads lines and answers with lines: clients of RocketMQ in other languages, mqadmin."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOG_LINES = 40
END_S = 20


class ProgramError(Exception):
    """The program ended; the end of what it wrote."""


class LineProgram:
    """A process, for a `with` block. It ends with its input. `home` is its directory, and HOME; `environment` are
    variables beside those of this process.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], home: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile("w+", dir=home)
        self._process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, encoding="utf-8", cwd=home, env={**os.environ, "HOME": str(home), **(environment or {})},
        )  # fmt: skip

    def write_line(self, line: str) -> None:
        """Tell the program something. Raises `ProgramError`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended(line) from error

    def read_line(self, told: str) -> str:
        """The next line of its answer to `told`. Raises `ProgramError`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended(told)
        return line

    def _ended(self, told: str) -> ProgramError:
        return ProgramError(f"{self._name} ended at {told}:\n{self.log()}")

    def log(self, lines: int = LOG_LINES) -> str:
        """The end of what it wrote beside its answers."""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-lines:])

    def kill(self) -> None:
        """End the process with kill -9."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process in good order, or else with kill -9."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.log())
        self.close()
