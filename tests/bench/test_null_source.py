"""The yardstick of everything about Spark gives the rows that it says, without a JVM; so do those of latency."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import IntegerType, StringType, StructType

from bench import births, processor
from bench.looks import CountedSource
from bench.null_source import PARTITIONS, NullSource, NullStreamWriter, NullWriter
from bench.spark_input import TOPIC, Input, filled
from rmq_store import Store

ROWS = 5_003


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return filled(tmp_path_factory.mktemp("bench"), ROWS, 100)


def test_a_batch_is_as_long_as_ours_and_has_the_same_columns(made: Input) -> None:
    source = NullSource(made.null())
    reader = source.reader(source.schema())
    parts = [list(reader.read(part)) for part in reader.partitions()]
    assert len(parts) == PARTITIONS
    assert sum(batch.num_rows for part in parts for batch in part) == ROWS
    with Store.open(made.store, read_only=True) as store:
        assert store.queue_ranges(TOPIC).keys() == set(range(PARTITIONS))
        ours = next(store.read(TOPIC, 0, 0, ROWS // PARTITIONS))
    assert parts[0][0].select(["body", "msgId", "properties"]) == ours.select(["body", "msgId", "properties"])
    assert [len(each) for each in ours.column("properties").to_pylist()] == [3] * ours.num_rows


def test_only_the_columns_of_the_schema_are_handed_over(made: Input) -> None:
    schema = StructType().add("queueId", IntegerType()).add("topic", StringType())
    reader = NullSource(made.null()).reader(schema)
    (batch, *_) = reader.read(reader.partitions()[0])
    assert batch.schema.names == ["queueId", "topic"]


def test_a_spark_that_does_not_tell_the_start_has_everything_in_one_trigger(made: Input) -> None:
    source = NullSource(made.null())
    assert source.streamReader(source.schema()).latestOffset() == {"row": ROWS}
    limited = NullSource(made.null() | {"rowsPerTrigger": "2000"})
    with pytest.raises(ValueError, match="rowsPerTrigger needs a Spark that tells the start of a batch"):
        limited.streamReader(limited.schema()).latestOffset()


def test_a_stream_gives_everything_in_as_many_triggers_as_asked_for(made: Input) -> None:
    source = NullSource(made.null() | {"rowsPerTrigger": "2000"})
    reader = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(2000)
    counts, start = [], reader.initialOffset()
    while (end := reader.latestOffset(start, limit)) != start:
        parts = reader.partitions(start, end)
        counts.append(sum(batch.num_rows for part in parts for batch in reader.read(part)))
        reader.commit(end)
        start = end
    assert counts == [2000, 2000, ROWS - 4000]
    source = NullSource(made.null())
    assert source.streamReader(source.schema()).getDefaultReadLimit() == ReadAllAvailable()


def test_rows_of_the_clock_come_when_they_are_born(made: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_700_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    source = NullSource(made.null() | {"rowsPerSecond": "1000"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    now_ns += 49_500_000
    end = reader.latestOffset(start, ReadAllAvailable())
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    ages_ms = births.ages_ms(pa.Table.from_batches(batches).column("body").to_pylist(), now_ns)
    assert ages_ms == [49.5 - number for number in range(50)]
    assert [batch.num_rows for batch in batches] == [12, 13, 12, 13]
    assert reader.partitions(end, reader.latestOffset(end, ReadAllAvailable())) == []
    assert reader.commit(end) is None


def test_a_body_says_when_it_was_born() -> None:
    born_ns = np.array([1_700_000_000_123_456_789, 1], np.int64)
    assert births.bodies(born_ns).to_pylist() == [births.body(int(each)) for each in born_ns]
    assert births.ages_ms([births.body(1_000_000)], 3_500_000) == [2.5]


def test_the_producer_sends_until_its_input_is_closed(made: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    sent: list[bytes] = []

    def send(_: Store, message: object) -> None:
        sent.append(message.body)  # type: ignore[attr-defined]
        if len(sent) == 3:
            os.close(writing)

    monkeypatch.setattr(Store, "send", send)
    with io.FileIO(reading) as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        births.produce(made.store, TOPIC, 100_000)
    assert len(sent) == 3
    assert {len(body) for body in sent} == {births.BODY_BYTES}


def test_looks_are_counted_on_both_sides(made: Input, tmp_path: Path) -> None:
    for number, source in enumerate(
        (
            NullSource(made.null() | {"looks": str(tmp_path / "0")}),
            CountedSource(made.ours() | {"looks": str(tmp_path / "1")}),
        )
    ):
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        for _ in range(3):
            start = reader.latestOffset(start, ReadAllAvailable())
        assert (tmp_path / str(number)).stat().st_size == 3


def test_the_sinks_take_everything() -> None:
    for writer in (NullWriter(), NullStreamWriter()):
        rows = iter([pa.RecordBatch.from_pydict({"body": [b"1"]})] * 3)
        assert writer.write(rows) is not None
        assert list(rows) == []


def test_processor_time_of_the_family_grows_with_work() -> None:
    pids = processor.family()
    assert pids[0] == os.getpid()
    before, end_s = processor.used_s(pids), time.process_time() + 0.02
    while time.process_time() < end_s:
        pass
    # A process id that nobody has counts nothing.
    assert processor.used_s([*pids, (1 << 22) + 1]) >= before + 0.019
