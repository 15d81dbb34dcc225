"""Batch reads of something else than messages, and what may stand beside the option that asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_rmq.access.spark_api import arrow_schema
from pyspark_rmq.read.reports import WAITS_SCHEMA
from pyspark_rmq.source import DefaultSource
from rmq_store import Message, Store, StoreConfig, UsageError
from rmq_store.broker.delay import broker_backlog
from rmq_store.format.text.names import HALF_TOPIC, TIMER_TOPIC

NOW = 1_700_000_000_000
CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 16, default_topic_queue_nums=1, enabled_append_prop_crc=False)


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A timer and a half message, as a broker has them: names that no sender may use are put into the log."""
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG, clock=lambda: NOW) as store:
        for stand_in, key in (("w" * len(TIMER_TOPIC), "TIMER"), ("h" * len(HALF_TOPIC), "HALF")):
            properties = {"UNIQ_KEY": key, "TIMER_OUX_MS": str(NOW + 1), "REAL_TOPXC": "Late", "REAL_QXD": "2"}
            store.send(Message(stand_in, b"x", properties={**properties, "PGROXP": "pg"}), as_given=True)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes().replace(b"w" * len(TIMER_TOPIC), TIMER_TOPIC.encode())
    data = data.replace(b"h" * len(HALF_TOPIC), HALF_TOPIC.encode())
    for real, stand_in in (("TIMER_OUT_MS", "TIMER_OUX_MS"), ("REAL_TOPIC", "REAL_TOPXC"), ("REAL_QID", "REAL_QXD"),
                           ("PGROUP", "PGROXP")):  # fmt: skip
        data = data.replace(stand_in.encode(), real.encode())
    path.write_bytes(data)
    Store.open(root, rebuild_views=True, clock=lambda: NOW).close()
    return root


def rows(options: dict[str, str], *columns: str) -> list[dict[str, object]]:
    source = DefaultSource(options)
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(StructType([schema[name] for name in columns]) if columns else schema)
    batches = reader.read(None)  # type: ignore[arg-type]
    return [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]


def test_what_only_a_broker_delivers_is_read_as_rows(waiting: Path) -> None:
    found = rows({"path": str(waiting), "brokerWaits": "true"}, "kind", "topic", "queueId", "msgId", "producerGroup")
    assert found == [
        {"kind": "timer", "topic": "Late", "queueId": 2, "msgId": "TIMER", "producerGroup": None},
        {"kind": "half message", "topic": "Late", "queueId": 2, "msgId": "HALF", "producerGroup": "pg"},
    ]


@pytest.mark.long
@pytest.mark.spark
def test_spark_reads_them(spark: SparkSession, waiting: Path) -> None:
    frame = spark.read.format("rmq").option("brokerWaits", "true").load(str(waiting))
    assert frame.schema == WAITS_SCHEMA
    found = frame.where("kind = 'timer'").selectExpr("msgId", "unix_millis(dueTimestamp) AS due").collect()
    assert [(row.msgId, row.due) for row in found] == [("TIMER", NOW + 1)]


def test_the_columns_are_those_of_the_store() -> None:
    arrow = arrow_schema(WAITS_SCHEMA)
    assert arrow == pa.schema([pa.field(field.name, field.type) for field in broker_backlog.BROKER_BACKLOG_SCHEMA])


def test_a_log_that_lies_elsewhere_is_named_beside_it(waiting: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "log"
    (waiting / "commitlog").rename(elsewhere)
    options = {"path": str(waiting), "brokerWaits": "true", "storePathCommitLog": str(elsewhere)}
    assert [row["msgId"] for row in rows(options)] == ["TIMER", "HALF"]


@pytest.mark.parametrize("other", [{"subscribe": "T"}, {"dataLoss": "true"}, {"group": "g"}], ids=json.dumps)
def test_nothing_but_the_store_stands_beside_a_report(waiting: Path, other: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="reads a report, not messages"):
        DefaultSource({"path": str(waiting), "brokerWaits": "true", **other}).schema()


def test_an_unknown_column_of_a_report_is_refused(waiting: Path) -> None:
    source = DefaultSource({"path": str(waiting), "brokerWaits": "true"})
    with pytest.raises(UsageError, match=r"the report brokerWaits has no column .*'colour'"):
        source.reader(StructType().add("colour", "string"))
    with pytest.raises(UsageError, match=r"did you mean 'topic'\?"):
        source.reader(StructType().add("topics", "string"))
