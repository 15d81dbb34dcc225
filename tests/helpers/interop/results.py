"""What tests have found, which counts only when the stores that they used are sound."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from helpers.cluster.java_process import VERSIONS
from helpers.interop.afterwards import check_store
from helpers.interop.matrix import DIRECTORY, Cell, record, withdraw


class Results:
    """The cells that wait for the checks of their stores."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self._waiting: dict[Path, dict[tuple[str, str], Cell]] = {}

    def begin(self, row: str, column: str) -> None:
        """A test begins: what an earlier run has found is no longer true."""
        withdraw(row, column, self._directory)

    def add(self, store: Path, row: str, column: str, cell: Cell) -> None:
        """A test has passed that used this store."""
        self._waiting.setdefault(store, {})[row, column] = cell

    def finish(self, store: Path, versions: tuple[str, ...] = VERSIONS) -> None:
        """Check a closed store, and write down what its tests have found. If the check fails, nothing is written."""
        cells = self._waiting.pop(store, {})
        check_store(store, versions)
        for (row, column), cell in cells.items():
            record(row, column, cell, self._directory)


RESULTS: Final = Results()
"""Those of this run."""
