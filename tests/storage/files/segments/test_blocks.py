"""Blocks that are reserved and given back."""

from __future__ import annotations

import os
from pathlib import Path

from rmq_store.files.segments import blocks

MIB = 1 << 20


def test_reserved_blocks_change_neither_size_nor_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with path.open("r+b") as file:
        blocks.reserve(file.fileno(), 0, 2 * MIB)
        assert path.stat().st_blocks * 512 >= 2 * MIB
        assert path.read_bytes() == b"abc"
        file.seek(0, os.SEEK_END)
        file.write(b"d" * MIB)
    assert path.read_bytes() == b"abc" + b"d" * MIB


def test_what_is_given_back_reads_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2 * MIB))
    with path.open("r+b") as file:
        blocks.give_back(file.fileno(), 0, MIB)
    assert path.stat().st_blocks * 512 == MIB
    assert path.read_bytes() == bytes(MIB) + b"x" * MIB


def test_where_it_cannot_be_done_nothing_happens() -> None:
    blocks.reserve(-1, 0, MIB)
    blocks.give_back(-1, 0, MIB)
