"""The data source through Spark Connect: workers/connect_surface.py does everything once; these tests look at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from .conftest import CONNECT_TIMEOUT, ROOT, connect_port, worker_environment
from .spark_lacks import needs_spark

pytestmark = [pytest.mark.spark, pytest.mark.spark_versions, pytest.mark.slow, CONNECT_TIMEOUT]

ORDERS = ["Orders-0", "Orders-1", "Orders-2"]


@pytest.fixture(scope="session")
def surface(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """{step: what came out}; of a step that failed its traceback."""
    program = ROOT / "tests" / "connector" / "workers" / "connect_surface.py"
    with connect_port():
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path_factory.mktemp("connect"))],
            env=os.environ | worker_environment(), capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return results


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("batch_read", ORDERS),
        ("look_up", [["Orders-2"], ["Orders-1"]]),
        pytest.param("pushed_filter", ["Orders-1"], marks=needs_spark("filter pushdown")),
        ("batch_write", ["x", "y"]),
        ("write_in_a_thread", ["t", "t"]),
        ("stream_with_a_group", ["None", ORDERS, 3, ["Orders"]]),
        ("foreach_batch_with_a_transaction", ORDERS),
        ("failure_of_a_query", "UsageError: option key is not possible for a stream read, only for a batch read"),
        ("temporary_view", 3),
        ("send_back", [*[["Orders", "E"]] * 3, *[["Batch", None]] * 2]),
        ("redrive", [5, 5, [*ORDERS, "x", "y"]]),
        ("report_of_losses", 0),
    ],
)
def test_it_works_as_in_classic_spark(surface: dict[str, Any], step: str, expected: object) -> None:
    assert surface[step] == expected


@pytest.mark.parametrize(
    ("step", "messages"),
    [
        (
            "options_refused_at_load",
            [
                "option txnAppId is not possible for a read",
                "the group name 'cg bills' holds characters",
                "minPartitions: 'many' is not an integer",
            ],
        ),
        ("table", ["cannot be a table of Spark's catalog"]),
        pytest.param(
            "pushed_filter",
            ["option filterPushdown: this Spark pushes no filters"],
            marks=needs_spark("filter pushdown", lacks=True),
        ),
    ],
)
def test_it_refuses_as_in_classic_spark(surface: dict[str, Any], step: str, messages: list[str]) -> None:
    said = surface[step] if isinstance(surface[step], list) else [surface[step]]
    assert [message in text for message, text in zip(messages, said, strict=True)] == [True] * len(messages), said
