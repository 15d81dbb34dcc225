"""What lies in a directory, by name."""

from __future__ import annotations

import os
from pathlib import Path

Entry = tuple[str, bool]
"""(name, whether it is a directory)."""


def entries(directory: Path) -> list[Entry]:
    """What is in a directory; [] without one. OSError as scandir(3)."""
    try:
        with os.scandir(directory) as found:
            return [(entry.name, entry.is_dir()) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return []
