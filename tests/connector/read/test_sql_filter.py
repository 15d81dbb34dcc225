"""The option sqlFilter over a store: each task evaluates the condition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import READABLE
from rmq_store import Message, Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with Store.open(path, create=True) as opened:
        for price in range(20):
            properties = {"price": str(price)} | ({"region": "eu"} if price % 2 else {})
            opened.send(Message("Orders", b"%d" % price, tags=f"Tag{price % 3}", properties=properties))
    return path


@pytest.mark.parametrize("columns", [["body"], ["properties", "tags"], ["queueOffset"]])
def test_only_messages_that_fulfil_the_condition_are_read(store: Path, columns: list[str]) -> None:
    def found(condition: str) -> list[dict[str, Any]]:
        given = {"path": str(store), "subscribe": "Orders", "sqlFilter": condition}
        reader = RmqReader(source_options(given, "batch read", 0), StructType([READABLE[name] for name in columns]))
        return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    rows = found("region = 'eu' AND price > 9 AND TAGS <> 'Tag0'")
    assert len(rows) == 4 and all(list(row) == columns for row in rows)
    if columns == ["body"]:
        assert sorted(row["body"] for row in rows) == [b"11", b"13", b"17", b"19"]
    assert len(found("region IS NULL")) == 10
    assert found("nothing = 1") == []
