"""Redrives at the limits: segments smaller than what a unit is made of, a rate without end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store import Message

GROUP = "CG1"


def test_every_second_of_many_dead_letters_moves(parking: Any) -> None:
    """Each moved message is a range of its own: what a unit says of them must fit a segment, too."""
    count = 10_000
    assert parking.config.mapped_file_size_commit_log == 65_536
    with parking.open() as store:
        store.create_topic("TopicJ", 1)
        store.append(pa.record_batch({"topic": ["TopicJ"] * count, "body": pa.array([b"x"] * count)}))
        columns = ["commitLogOffset", "msgId"]
        for batch in store.read("TopicJ", 0, 0, count, columns=columns):
            dead = pa.array(np.full(batch.num_rows, -1, np.int32))
            store.retry.send_back_all(GROUP, batch.select(columns).append_column("delayLevel", dead))
        offsets = np.arange(0, count, 2)
        rows = pa.record_batch({"queueId": np.zeros(len(offsets), np.int32), "queueOffset": offsets})
        result = store.dead_letters.redrive(GROUP, rows)
        assert set(result.column("outcome").to_pylist()) == {"REDRIVEN"}
        assert store.queue_range(f"%RETRY%{GROUP}", 0).max_offset == count // 2
        assert list(store.dead_letters.redriven(GROUP)[0]) == [(offset, offset + 1) for offset in offsets.tolist()]


def test_a_rate_without_end_is_no_rate(parking: Any) -> None:
    with parking.open() as store:
        sent = store.send(Message("T", b"x"))
        store.retry.send_back(GROUP, sent.commit_log_offset, delay_level=-1)
        rows = pa.record_batch({"queueId": np.zeros(1, np.int32), "queueOffset": np.zeros(1, np.int64)})
        result = store.dead_letters.redrive(GROUP, rows, rate_per_second=math.inf)
        assert result.column("outcome").to_pylist() == ["REDRIVEN"]
