"""`rmq mirror retry GROUP`: RocketMQ's retry ladder for consumers of Kafka.

    topic of failed records --1--> SCHEDULE_TOPIC_XXXX --2--> %RETRY%group --3--> their topic, or <topic>-dead-letters

    1  `intake`: one unit for each fetch, with its position        (`retry_rows`: level 3 + failures so far)
    2  the schedule of the store: one unit for each delivery       (`Schedule.deliver_due`)
    3  `retry_return`: one transaction, with its position

Each step is atomic, and writes its position together with its output. So no record is lost or duplicated, at whatever
point this process dies, and whichever process delivers the due messages of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.dead_letters.intake import Intake
from rmq_store.bridge.dead_letters.retry_return import RetryReturn
from rmq_store.bridge.dead_letters.retry_rows import RETRY_QUEUE, RetryRules, retry_rows
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaWriter, Partition
from rmq_store.bridge.mirror.store_units import rmq_rules
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.unmappable_record import letter_topic
from rmq_store.broker.store.store import Store
from rmq_store.errors import KafkaUnavailableError, UsageError
from rmq_store.format.text import names

_POLL_MS: Final = 200
_RETRY_S: Final = 1.0
_REFRESH_S: Final = 30.0


class KafkaRetry:
    """The retries of one Kafka group; not safe for threads.

    `group` is the RocketMQ group whose retryMaxTimes and delay levels apply. It must not consume topics of the store.
    `failed`: topics to which the consumer writes failed records. `topics`: topics to which they return.
    `waiting_count`, `dead_count`, `refused_count`: records that were read, by their outcome.

    Raises (when constructed):
        UsageError: an invalid name; the group consumes topics of the store; a topic that is in `failed` and in
            `topics`.
        ResponseError: the group does not exist, and is not created.
    """

    def __init__(
        self,
        store: Store,
        reader: KafkaReader,
        administration: KafkaAdministration,
        writer: KafkaWriter,
        group: str,
        *,
        mirror: str,
        cluster_id: str,
        failed: Collection[str],
        topics: Collection[str],
        max_attempts: int | None = None,
        count_losses: bool = False,
    ) -> None:
        both = sorted(set(failed) & set(topics))
        if both:
            raise UsageError(f"{both[0]!r} cannot be a topic of failed records and the one that they return to")
        if any(topic != names.retry_topic(group) for topic, _ in store.committed_offsets(group)):
            raise UsageError(f"group {group!r} consumes topics of the store: its retries are not Kafka's")
        store.retry.prepare(group, max_attempts)
        settings = store.groups()[group]
        if settings.retry_queue_nums < 1:
            raise UsageError(f"group {group!r} has no retry queues")
        self._store = store
        self._mirror = mirror
        self._cluster_id = cluster_id
        self._kafka_id = administration.cluster_id()
        self._queue = names.retry_topic(group)
        self._rules = RetryRules(tuple(topics), settings.retry_max_times, len(store.config.delay_levels_ms()))
        self.returning = RetryReturn(store, group, administration, reader, writer, tuple(topics))
        self.intake = Intake(
            store, reader, administration, mirror, cluster_id, failed, self._queue, self._to_messages,
            count_losses=count_losses,
        )  # fmt: skip
        self._reader = reader
        self.waiting_count = self.dead_count = self.refused_count = 0

    def run(
        self,
        *,
        wait: Callable[[float], bool],
        until_caught_up: bool = False,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Work until `wait(seconds)` returns True, because somebody has asked to stop; with `until_caught_up`, until
        all present records are read, and the due ones are returned. Raises as `Intake.run` and `RetryReturn.step`.
        """
        self._begin()
        refreshed_s = real_time.monotonic()
        ends = self._reader.stable_ends(self.intake.partitions()) if until_caught_up else None
        while not wait(0):
            try:
                if ends is None and real_time.monotonic() - refreshed_s >= _REFRESH_S:
                    refreshed_s = real_time.monotonic()
                    self.intake.refresh_topics()
                self.intake.poll(_POLL_MS)
                self._store.schedule.deliver_due()
                while self.returning.step() and not wait(0):
                    on_step()
            except KafkaUnavailableError:
                if ends is not None or wait(_RETRY_S):
                    raise
                self._begin_again(wait)
                continue
            on_step()
            if ends is not None and all(self.intake.next_offset(place) >= end for place, end in ends.items()):
                break
        self.intake.write_positions()

    def _begin(self) -> None:
        self.returning.begin()  # it uses the reader, too
        self.intake.refresh_topics()

    def _begin_again(self, wait: Callable[[float], bool]) -> None:
        while not wait(0):
            try:
                self._begin()
            except KafkaUnavailableError:
                wait(_RETRY_S)
            else:
                return

    def _to_messages(self, rows: pa.RecordBatch, partition: Partition, topic_id: str) -> Sequence[pa.RecordBatch]:
        route = Route(
            self._kafka_id, partition.topic, partition.partition, self._cluster_id, self._queue, RETRY_QUEUE, topic_id
        )
        mapped = retry_rows(rows, route, rmq_rules(self._store, self._mirror), self._rules)
        if mapped.refused_count:
            self._store.create_topic(letter_topic(self._mirror), 1, self._store.config.dlq_perm, exist_ok=True)
        self.waiting_count += mapped.waiting_count
        self.dead_count += mapped.dead_count
        self.refused_count += mapped.refused_count
        return mapped.batches
