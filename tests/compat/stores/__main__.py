"""`PYTHONPATH=tests python -m compat.stores DIRECTORY [KIND ...]`: make the archives anew (root, Java, Maven)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from .making import pack
from .recipes import RECIPES


def main(target: Path, kinds: list[str]) -> int:
    failed = 0
    for kind in kinds or RECIPES:
        begun = time.monotonic()
        try:
            manifest = pack(RECIPES[kind], target)
        except (AssertionError, RuntimeError) as error:
            sys.stdout.write(f"{kind}: FAILED: {error}\n")
            failed += 1
            continue
        size = (target / f"{kind}.tar.xz").stat().st_size
        count = sum(len(queue["messages"]) for queues in manifest["queues"].values() for queue in queues.values())
        sys.stdout.write(f"{kind}: {size} bytes, {count} messages, {time.monotonic() - begun:.0f} s\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]) > 0)
