"""Retention deletes messages of a store while they are mirrored to Kafka, between two looks of the mirror."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store import Message, Store
from rmq_store.bridge.mirror.kafka_side import CopyRules
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.mirror.topic_into_kafka import TopicIntoKafka
from rmq_store.bridge.positions.kafka_positions import Mark, QueuePosition
from rmq_store.protocol.results import QueueRange


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as opened:
        yield opened


def test_messages_that_go_between_two_looks_are_not_passed_in_silence(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read, or the copy ends: to begin behind them would lose them, also with --on-data-loss fail."""
    for number in range(5):
        store.send(Message("Orders", b"%d" % number, queue_id=0))
    side: Any = SimpleNamespace(mirror="m")
    report = MirrorReport("m", "rmq-to-kafka")
    copy: Any = TopicIntoKafka(store, side, "Orders", "Orders", CopyRules(), TargetRules(), report, is_new=True)
    copy._writer, copy._is_claimed, copy._queue_count = object(), True, 8
    copy._positions = {0: QueuePosition(Mark(0), 0)}
    written: list[tuple[int, int]] = []

    def write(mapped: list[Any], lost: dict[int, QueuePosition]) -> None:
        assert not lost
        written.extend((one.window.start, one.window.stop) for one in mapped)

    # The first look is for new queues.
    before_retention = iter([QueueRange(0, 5), QueueRange(0, 5)])

    def ranges(topic: str) -> dict[int, QueueRange]:
        return {0: next(before_retention, QueueRange(3, 5))}

    monkeypatch.setattr(copy, "_record_rules", lambda: None)
    monkeypatch.setattr(copy, "_mapped", lambda window, rules: SimpleNamespace(window=window))
    monkeypatch.setattr(copy, "_write", write)
    monkeypatch.setattr(store, "queue_ranges", ranges)
    assert copy.copy() == 5
    assert written == [(0, 5)]
