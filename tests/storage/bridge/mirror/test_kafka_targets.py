"""The limits of a topic of Kafka, from its settings in each version."""

from __future__ import annotations

import time

import pytest

from rmq_store.bridge.mirror.kafka_targets import TargetRules, record_rules
from rmq_store.bridge.records.to_kafka import MAX_AHEAD_MS

DIFFERENCE, BEFORE, AFTER = (f"message.timestamp.{one}.max.ms" for one in ("difference", "before", "after"))
ALL = str((1 << 63) - 1)
MARGIN_MS = 60_000


@pytest.mark.parametrize(
    ("settings", "ahead_ms", "behind_ms"),
    [
        ({DIFFERENCE: ALL}, MAX_AHEAD_MS - MARGIN_MS, None),
        ({DIFFERENCE: "600000"}, 540_000, 600_000),
        ({DIFFERENCE: "600000", BEFORE: ALL, AFTER: ALL}, 540_000, 600_000),
        ({DIFFERENCE: "600000", BEFORE: "900000", AFTER: ALL}, 540_000, 900_000),
        ({DIFFERENCE: "600000", BEFORE: ALL, AFTER: "120000"}, 60_000, 600_000),
        ({DIFFERENCE: ALL, BEFORE: ALL, AFTER: ALL}, MAX_AHEAD_MS - MARGIN_MS, None),
        ({BEFORE: ALL, AFTER: "3600000"}, MAX_AHEAD_MS - MARGIN_MS, None),
        ({BEFORE: "900000", AFTER: "30000"}, 0, 900_000),
        ({}, MAX_AHEAD_MS - MARGIN_MS, None),
    ],
)
def test_how_far_timestamps_may_be_from_the_clock(
    settings: dict[str, str], ahead_ms: int, behind_ms: int | None
) -> None:
    """3.6 to 3.9 have three settings: the one for both sides holds where a side has none. 4.0 has two."""
    began_ms = int(time.time() * 1000)
    rules = record_rules("orders", settings, {}, TargetRules())
    assert (rules.max_ahead_ms, rules.max_behind_ms) == (ahead_ms, behind_ms)
    assert rules.now_ms >= began_ms
