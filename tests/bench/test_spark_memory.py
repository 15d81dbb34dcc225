"""Whose memory is looked at."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.rows.spark_memory import python_kinds


def test_only_python_processes_are_looked_at() -> None:
    """What else the JVM starts is for an instant a copy of the JVM."""
    python = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with (
        subprocess.Popen(python, stdout=subprocess.PIPE) as worker,
        subprocess.Popen([*python, "pyspark.sql.worker.plan_data_source_read"], stdout=subprocess.PIPE) as driver,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        try:
            for process in (worker, driver):
                assert process.stdout
                process.stdout.readline()
            kinds = python_kinds(os.getpid())
            assert (kinds[worker.pid], kinds[driver.pid]) == ("workers", "driver")
            assert other.pid not in kinds
        finally:
            for process in (worker, driver, other):
                process.kill()
