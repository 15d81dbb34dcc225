"""Brokers of a cluster that are away when a read is planned. Control plane.

A read of a cluster reads the brokers that its name servers know. They forget a broker that is away, so a new process
cannot know that rows are missing, unless the option requiredBrokers names it. What a process or a checkpoint does know
is told.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.queue_ids import broker_of
from pyspark_rmq.read.starting_offsets import subscribed_topics

_log = logging.getLogger(__name__)


def require(store: StoreReader, options: SourceOptions) -> None:
    """Raise `BrokerAwayError` if a broker of requiredBrokers is away."""
    if options.required_brokers:
        topics = subscribed_topics(store.topics(), options.subscription)
        location_of(options).require_brokers(store, topics)


def warn(
    store: StoreReader, options: SourceOptions, queues: Collection[Queue], position: StreamPosition | None = None
) -> None:
    """Warn of brokers that had queues of the topics that are read, and that are away: as this process has seen, or as
    the `position` of a stream says. `queues`: those that are read now.
    """
    known: dict[str, set[str]] = {queue.topic: set() for queue in queues}
    for queue in () if position is None else (*position.next, *position.closed):
        broker = broker_of(queue.queue_id)
        if broker is not None and queue.topic in known:
            known[queue.topic].add(broker)
    what = "the batch lacks their rows" if position is None else "the stream reads their rows when they are back"
    for topic, brokers in location_of(options).missing_brokers(store, known).items():
        _log.warning(
            "brokers that had queues of %s are away, %s: no name server of %s knows them now. %s; the option "
            "requiredBrokers makes such a read fail", topic, ", ".join(sorted(brokers)), options.place, what,
        )  # fmt: skip
