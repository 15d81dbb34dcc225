"""Counts, lag and metrics of a mirror."""

from __future__ import annotations

import pytest

from rmq_store import openmetrics_text
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.mirror.report import MirrorReport, PartitionReport


@pytest.mark.parametrize(
    ("position", "end", "lag", "is_caught_up"),
    [(0, -1, 0, False), (0, 0, 0, True), (3, 10, 7, False), (10, 10, 0, True), (12, 10, 0, True)],
)
def test_lag_is_the_stable_end_less_the_position_and_never_negative(
    position: int, end: int, lag: int, is_caught_up: bool
) -> None:
    one = PartitionReport(position, end)
    assert (one.lag, one.is_caught_up) == (lag, is_caught_up)


def test_a_partition_that_has_stopped_is_not_caught_up_and_has_no_lag() -> None:
    report = MirrorReport("m", "kafka-to-rmq", state="copying")
    report.partitions[Partition("t", 0)] = PartitionReport(5, 5)
    assert report.is_caught_up
    report.partitions[Partition("t", 1)] = PartitionReport(5, 9, "gone")
    assert not report.is_caught_up
    assert report.lag == 0 and report.failures == {Partition("t", 1): "gone"}


def test_a_mirror_that_has_not_looked_yet_is_not_caught_up() -> None:
    report = MirrorReport("m", "kafka-to-rmq")
    assert not report.is_caught_up
    report.state = "copying"
    assert report.is_caught_up


def test_the_rate_is_of_the_last_ten_seconds() -> None:
    now_s = 100.0
    report = MirrorReport("m", "kafka-to-rmq", clock_s=lambda: now_s)
    report.add(500, 0, 0)
    now_s = 105.0
    report.add(500, 1, 2)
    assert report.rate == 100.0
    now_s = 112.0
    assert report.rate == 50.0
    now_s = 200.0
    assert report.rate == 0.0
    assert (report.copied, report.dropped_loops, report.letters, report.units) == (1000, 1, 2, 2)


def test_metrics_name_mirror_direction_topic_and_partition() -> None:
    report = MirrorReport("m", "kafka-to-rmq", copied=3, letters=1, last_poll_ms=1_500)
    report.partitions[Partition("t", 1)] = PartitionReport(5, 9)
    text = openmetrics_text(report.families())
    assert 'rmq_mirror_copied_records_total{mirror="m",direction="kafka-to-rmq"} 3.0' in text
    assert 'rmq_mirror_lag_records{mirror="m",direction="kafka-to-rmq",topic="t",partition="1"} 4.0' in text
    assert 'rmq_mirror_caught_up{mirror="m",direction="kafka-to-rmq"} 0.0' in text
    assert 'rmq_mirror_last_poll_seconds{mirror="m",direction="kafka-to-rmq"} 1.5' in text
    assert text.endswith("# EOF\n")
