"""What a Spark session keeps open after a commit, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_store import Store

Make = Callable[..., Any]


def test_after_a_commit_the_store_is_closed_in_a_moment_and_can_be_used_at_once(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=0)
    rows = spark.range(100).selectExpr("'Orders' as topic", "cast(id as string) as body")
    for _ in range(2):
        rows.write.format("rmq").option("path", str(path)).mode("append").save()
    assert (path / "abort").exists(), "Spark's process has it open"
    with Store.open(path) as store:
        assert sum(limit.max_offset for limit in store.queue_ranges("Orders").values()) == 200
    deadline_s = time.monotonic() + 30
    while (path / "abort").exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    with Store.open(Path(path)) as store:
        assert store.recovery is not None and store.recovery.trust == "CLEAN"
