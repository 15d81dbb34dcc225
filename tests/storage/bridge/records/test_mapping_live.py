"""What the mapping makes is taken by the real Kafka, and comes back from it as it was."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.kafka_server import KafkaServer
from helpers.mirrored import (
    new_store,
    produced_of,
    record,
    records,
    stored_of,
    through_store,
    true_times,
    users_headers,
)
from rmq_store.bridge.kafka.client import KafkaReader, Partition, Position
from rmq_store.bridge.kafka.connect import open_administration, open_reader, open_writers
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.records.origin import sources_of_records
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import KafkaRules, to_kafka
from rmq_store.bridge.records.to_rmq import RmqRules, to_rmq

pytestmark = pytest.mark.slow

FAR_MS = 10 * 365 * 86_400_000


def fetched(reader: KafkaReader, place: Partition, count: int) -> pa.RecordBatch:
    """The first `count` records of a partition."""
    reader.assign({place: Position(0)})
    parts: list[pa.RecordBatch] = []
    stop_s = time.monotonic() + 60
    while sum(part.num_rows for part in parts) < count:
        assert time.monotonic() < stop_s
        parts += [found.rows for found in reader.poll(200).values()]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("log_append_time", [False, True])
def test_odd_records_go_through_kafka_and_stores_and_are_what_they_were(
    kafka: KafkaServer, tmp_path: Path, log_append_time: bool
) -> None:
    now_ms = int(time.time() * 1000)
    settings = {"message.timestamp.type": "LogAppendTime" if log_append_time else "CreateTime"}
    place = Partition(kafka.new_topic(settings=settings), 0)
    odd = records(
        record(None, key=b"k", time_ms=-1),
        record(b"", key=b"", headers=[(b"", b""), (b"\xff", None), (b"a", b"1"), (b"a", b"2")], time_ms=0),
        record(b"v", headers=[(b"DELAY", b"3"), (b"rmq.TAGS", b"x")], time_ms=now_ms + FAR_MS),
        record(b"plain", key=b"k", headers=[(b"a", b"1")], time_ms=now_ms + 3_500_000),
        record(None, time_ms=2**63 - 1),
    )
    connection = KafkaConnection((kafka.address,))
    administration = open_administration(connection)
    writers, reader = open_writers(connection, administration), open_reader(connection)
    with new_store(tmp_path / "store") as store:
        first = stored_of(store, odd, Route("K1", "T", 0, "R", "T", 0), RmqRules("m", now_ms))
        to_real = Route("R", "T", 0, "K2", place.topic, 0)
        rules = KafkaRules(now_ms, log_append_time=log_append_time)
        try:
            writer = writers.writer(place.topic)
            writer.begin()
            writer.add(place, produced_of(first, to_real, rules))
            writer.commit()
            found = fetched(reader, place, odd.num_rows)
        finally:
            reader.close()
            writers.close()
            administration.close()
        assert sources_of_records(found, place.topic, 0).is_mirrored.all()
        for name in ("key", "value"):
            assert found.column(name).to_pylist() == odd.column(name).to_pylist()
        assert users_headers(found) == users_headers(odd)
        assert true_times(found, to_real) == odd.column("timestampMs").to_pylist()
        assert set(found.column("timestampType").to_pylist()) == {int(log_append_time)}
        back = replace(to_real, source_cluster="K2", source_topic=place.topic, target_cluster="R", target_topic="T")
        assert to_rmq(found, back, RmqRules("m", now_ms)).dropped_loops == odd.num_rows
        elsewhere = to_rmq(found, replace(back, target_cluster="R2", target_topic="T2"), RmqRules("m", now_ms)).rows
        last = to_kafka(through_store(store, elsewhere), Route("R2", "T2", 0, "K3", "T2", 0), KafkaRules(now_ms)).rows
    assert last.column("key").to_pylist() == odd.column("key").to_pylist()
    assert users_headers(last) == users_headers(odd)
    assert true_times(last, Route("R2", "T2", 0, "K3", "T2", 0)) == odd.column("timestampMs").to_pylist()
