"""Walks over the commit logs that Java wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store.format.frames.frame_check import check_frame

Walk = Callable[[Path], Iterator[tuple[int, memoryview]]]


def _walk(store: Path) -> Iterator[tuple[int, memoryview]]:
    """(commit-log offset, frame) of every message of a store, up to the first bad frame of each segment."""
    for segment in sorted((store / "commitlog").iterdir()):
        view = memoryview(segment.read_bytes())
        base, position = int(segment.name), 0
        while position < len(view):
            check = check_frame(view, position, len(view), expect_offset=base + position, check_crc=True)
            if check.kind == "message":
                yield base + position, view[position : position + check.size]
            elif check.kind == "bad":
                break
            position += check.size


@pytest.fixture(scope="session")
def walk_frames() -> Walk:
    return _walk
