"""Sparks of four versions, as far as a source sees them: without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq.access import spark_api
from rmq_store import Store

from .micro_batches import APIS, UNTOLD, Api, Query

GROUP = "cg"


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Each Spark in turn."""
    return play(request.param, monkeypatch)


@pytest.fixture(params=UNTOLD)
def untold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Each Spark that tells a source no starts."""
    return play(request.param, monkeypatch)


def play(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(spark_api, "TELLS_STARTS", api not in UNTOLD)
    return api


@pytest.fixture
def committed() -> Callable[[Path], int]:
    """The number of messages that the group has done in all queues of `Orders`."""

    def read(path: Path) -> int:
        with Store.open(path, read_only=True) as store:
            return sum(store.committed_offsets(GROUP).values())

    return read


@pytest.fixture
def query(make_store: Callable[..., Path]) -> Callable[..., Query]:
    """A query over `Orders`, from its first message on."""

    def make(api: Api, path: Path, **options: Any) -> Query:
        given = {"path": str(path), "subscribe": "Orders", "group": GROUP, "startingOffsets": "earliest"}
        return Query(given | {name: str(value) for name, value in options.items()}, api)

    return make
