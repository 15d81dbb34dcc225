"""How many names an open file has: by statx(2), and by fstat(2) where that is not to be had."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.files.segments import link_count
from rmq_store.files.segments.link_count import LinkCount

WAYS: dict[str, Callable[..., int] | None] = {
    "statx": link_count._statx,
    "old C library": None,
    "refused": lambda *arguments: -1,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_was_unlinked_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(link_count, "_statx", WAYS[way])
    path, other = tmp_path / "file", tmp_path / "other"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    try:
        links = LinkCount(fd)
        assert links.get() == 1
        other.hardlink_to(path)
        assert links.get() == 2
        path.unlink()
        other.unlink()
        path.touch()
        assert links.get() == 0
    finally:
        os.close(fd)


def test_statx_is_what_is_asked_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Or every send takes longer than it has to."""
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        links = LinkCount(fd)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", None)
            assert links.get() == 1
    finally:
        os.close(fd)
