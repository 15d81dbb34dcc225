"""The lag of streaming queries as metrics: names, labels, meanings, samples. docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark_rmq.lag.lag_tracking import SourceTracker
from rmq_store import Metric, MetricFamily

_SOURCE = ("query", "query_id", "source", "consumer_group")
_QUEUE = (*_SOURCE, "topic", "queue_id")

LAG = Metric("rmq_stream_lag_messages", "gauge", "Messages between the position of the query and the end.", _QUEUE)
LAG_TIME = Metric(
    "rmq_stream_lag_seconds", "gauge", "Age of the oldest unread message.", _QUEUE,
    "seconds",
)  # fmt: skip
RATE = Metric(
    "rmq_stream_messages_per_second", "gauge", "Messages read per second since the previous batch ended.", _QUEUE
)
ETA = Metric(
    "rmq_stream_catch_up_seconds", "gauge",
    "Time until the lag is zero at the current rate; no sample while the lag grows.", _QUEUE, "seconds",
)  # fmt: skip
MESSAGES = Metric("rmq_stream_messages", "counter", "Messages read since the listener started.", _QUEUE)
RETRIES = Metric(
    "rmq_stream_retries", "counter", "Messages read from the group's retry topic since the listener started.", _SOURCE
)
DEAD_LETTERS = Metric(
    "rmq_stream_dead_letters", "counter", "Messages that became dead letters of the group while the query ran.", _SOURCE
)
AWAY = Metric(
    "rmq_stream_broker_away", "gauge",
    "1 for each broker of the cluster that is away; the lag of its queues is unknown, and has no sample.",
    (*_SOURCE, "broker_name"),
)  # fmt: skip
ERRORS = Metric("rmq_listener_errors", "counter", "Events of Spark that the listener could not process.")

STREAM_METRICS: Final = (LAG, LAG_TIME, RATE, ETA, MESSAGES, RETRIES, DEAD_LETTERS, AWAY, ERRORS)


def stream_metrics(trackers: Iterable[SourceTracker], error_count: int) -> list[MetricFamily]:
    """Each of STREAM_METRICS, in that order."""
    found: dict[Metric, list[tuple[tuple[str, ...], float]]] = {metric: [] for metric in STREAM_METRICS}
    for tracker in trackers:
        if tracker.total is None:
            continue
        total = tracker.total
        source = total.query, total.query_id, str(total.source), total.group or ""
        found[RETRIES].append((source, tracker.retries))
        if total.dead_letters is not None:
            found[DEAD_LETTERS].append((source, tracker.dead_letters))
        found[AWAY] += [((*source, name), 1) for name in total.away_brokers]
        for row in tracker.rows:
            queue_id = row.queue_id if row.broker_name is None else f"{row.broker_name}:{row.queue_id}"
            labels = *source, row.topic, str(queue_id)
            numbers = ((LAG, row.lag), (LAG_TIME, row.lag_seconds), (RATE, row.rate), (ETA, row.eta_seconds))
            for metric, number in numbers:
                if number is not None:
                    found[metric].append((labels, number))
        for (topic, queue_id), count in sorted(tracker.messages.items()):
            found[MESSAGES].append(((*source, topic, str(queue_id)), count))
    found[ERRORS].append(((), error_count))
    return [MetricFamily(metric, samples) for metric, samples in found.items()]
