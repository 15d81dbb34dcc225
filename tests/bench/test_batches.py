"""The three ways of batch sends are measured, and the bare loop runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bare_loop import is_possible
from bench.batches import measured

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs a C compiler")


@pytest.mark.parametrize("body_bytes", [100, 1024])
def test_each_way_is_measured(tmp_path: Path, body_bytes: int) -> None:
    found = measured(tmp_path, body_bytes, 2_000)
    assert list(found) == ["bare C loop", "one pass", "by frames"]
    assert all(used_us > 0 for used_us in found.values())
