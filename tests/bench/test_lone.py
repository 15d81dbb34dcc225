"""The three ways of one message are measured, and the bare loop runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bare_loop import is_possible
from bench.lone import measured

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs a C compiler")


def test_each_way_is_measured(tmp_path: Path) -> None:
    found = measured(tmp_path, 100)
    assert list(found) == ["bare C loop", "extension", "Python"]
    assert all(0 < p50 <= p99 for p50, p99 in found.values())
