"""A store whose broker keeps its queues in RocksDB, through Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_batch_and_a_stream_read_it(spark: Any, tmp_path: Path) -> None:
    with Store.open(tmp_path / "files", create=True) as opened:
        opened.create_topic("Orders", 2)
        opened.send_all([Message("Orders", b"%d" % number, queue_id=number % 2) for number in range(40)])
    store = tmp_path / "store"
    shutil.copytree(tmp_path / "files" / "commitlog", store / "commitlog")
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    expected = {(number % 2, number // 2, b"%d" % number) for number in range(40)}

    def found(rows: Any) -> set[tuple[int, int, bytes]]:
        return {(row["queueId"], row["queueOffset"], bytes(row["body"])) for row in rows}

    batch = spark.read.format("rmq").option("path", str(store)).option("subscribe", "Orders").load()
    assert found(batch.collect()) == expected
    stream = spark.readStream.format("rmq").option("path", str(store)).option("subscribe", "Orders")
    query = (
        stream.option("startingOffsets", "earliest").load().writeStream.format("memory").queryName("of_rocksdb")
        .trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    assert found(spark.table("of_rocksdb").collect()) == expected
    assert sorted(path.name for path in store.iterdir()) == ["commitlog", "consumequeue"]
