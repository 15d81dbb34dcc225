"""Whatever a caller passes to a public function, an error is one of ours. No Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql import DataFrame

from pyspark_rmq import FloodBreaker, LagListener, consume, redrive
from rmq_store import Store, StoreError, UsageError

WRONG: list[Any] = [
    None, b"x", "x", "", 1.5, float("nan"), True, -1, 2**63, 2**70, [], {}, {"x": 1}, object(), "\ud800", "a\0b",
    "x" * 5000, (1, 2), np.int64(0), Path("x"),
]  # fmt: skip


class Stream(DataFrame):
    """A frame that only says that it is a stream, without columns."""

    isStreaming = True
    schema = cast("Any", ())

    def __new__(cls) -> Stream:
        return object.__new__(cls)

    def __init__(self) -> None:
        pass


@pytest.fixture
def path(scratch: Path) -> str:
    Store.open(scratch / "store", create=True).close()
    return str(scratch / "store")


@pytest.mark.parametrize("name", ["stream", "handler", "group", "path", "max_reconsume_times", "mode", "on_results",
                                  "reasons", "breaker"])  # fmt: skip
def test_consume_refuses_every_wrong_value(path: str, name: str) -> None:
    right: dict[str, Any] = {
        "stream": Stream(), "handler": print, "group": "g", "path": path, "max_reconsume_times": 3, "mode": "row",
        "on_results": print, "reasons": True, "breaker": FloodBreaker(max_percent=5),
    }  # fmt: skip
    with pytest.raises(UsageError, match="consume needs the column commitLogOffset"):
        consume(**right)
    for wrong in WRONG:
        with pytest.raises(StoreError):
            consume(**{**right, name: wrong})


@pytest.mark.parametrize("name", ["df", "path", "group", "dry_run", "rate_per_second"])
def test_redrive_refuses_every_wrong_value(path: str, name: str) -> None:
    right: dict[str, Any] = {"df": Stream(), "path": path, "group": "g", "dry_run": False, "rate_per_second": 5}
    with pytest.raises(UsageError, match="a stream has no end"):
        redrive(**right)
    for wrong in WRONG:
        with pytest.raises(StoreError):
            redrive(**{**right, name: wrong})


def test_a_dry_run_is_asked_for_by_true_and_by_nothing_else(path: str) -> None:
    wrong: Any
    for wrong in (None, 0, 1, "true", "false"):
        with pytest.raises(UsageError, match=r"dry_run=.* is neither True nor False"):
            redrive(Stream(), path=path, group="g", dry_run=wrong)


def test_a_breaker_and_a_listener_refuse_what_is_of_another_type(tmp_path: Path) -> None:
    for name in ("max_percent", "max_per_minute", "min_rows"):
        for wrong in WRONG:
            try:
                FloodBreaker(**{"max_percent": 5, "max_per_minute": 5, name: wrong})
            except StoreError:
                continue
            assert isinstance(wrong, int | float | np.integer) or wrong is None
    files: list[Any] = [b"x", 5, "", "a\0b", "x" * 300, [], object(), tmp_path / "missing" / "file"]
    for wrong in files:
        with pytest.raises(UsageError, match="openmetrics_file"):
            LagListener(wrong)
