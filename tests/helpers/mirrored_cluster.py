"""Mirrors from a broker of a cluster into the Kafka of the tests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from helpers.kafka_mirrors import kafka_side
from helpers.kafka_server import KafkaServer
from rmq_store.bridge.mirror.into_kafka import IntoKafka
from rmq_store.bridge.mirror.kafka_side import CopyRules
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.positions.topics import Rename, TopicChoice
from rmq_store.bridge.source.broker_source import BrokerSource
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings


@contextmanager
def broker_mirror(
    kafka: KafkaServer, name_server: str, mirror: str, topic: str, *, broker_name: str | None = None,
    target: str | None = None, choice: TopicChoice | None = None, rules: CopyRules | None = None,
    wait: Callable[[float], bool] = lambda seconds: bool(time.sleep(seconds)), **options: Any,
) -> Iterator[IntoKafka]:  # fmt: skip
    """A mirror that nobody stops, if `wait` does not say so."""
    renames = () if target is None else (Rename(re.compile(re.escape(topic)), target),)
    settings = ClusterSettings.of_text(name_server)
    with Cluster(settings) as cluster, kafka_side(kafka, mirror) as side:
        yield IntoKafka(
            BrokerSource(cluster, broker_name), side, choice or TopicChoice((topic,), renames=renames),
            rules or CopyRules(), TargetRules(create=True), wait=wait,
            **{"patience_s": 60, "is_writable": False, **options},
        )  # fmt: skip


def copy_from_broker(kafka: KafkaServer, name_server: str, mirror: str, topic: str, **options: Any) -> MirrorReport:
    """Run a mirror until it is caught up; a topic that has stopped fails the test."""
    with broker_mirror(kafka, name_server, mirror, topic, **options) as made:
        report = made.run(until_caught_up=True)
    assert not report.failures, report.failures
    return report
