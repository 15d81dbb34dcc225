"""`make cluster-demo` does what it tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cluster.fixtures import require_released

DEMO = Path(__file__).resolve().parents[2] / "examples" / "cluster_demo.py"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.statement("G20")
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_stream_outlives_a_master_that_it_reads_and_writes(version: str) -> None:
    require_released(version)
    done = subprocess.run(
        [sys.executable, str(DEMO), version], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Acknowledged orders without a bill: 0." in done.stdout
    assert "Bills that are there twice: 0." in done.stdout
