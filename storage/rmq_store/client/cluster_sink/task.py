"""The rows of one task to a cluster, from Arrow batches to their report."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import field
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from rmq_store.client.cluster_sink.chunks import ChunkMaker
from rmq_store.client.cluster_sink.pipeline import Pipeline, PipelineSettings, SendCounts
from rmq_store.client.cluster_sink.record_directory import RecordDirectory
from rmq_store.client.cluster_sink.record_topic import RecordTopic
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.replay import ReplayCheck
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings, RowEncoder
from rmq_store.client.delivery.deliver import submitted
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.client.delivery.timers import refuse_timers
from rmq_store.errors import UnknownTopicError
from rmq_store.format.batches.content_keys import FoundKeys, KeyMaker, seed_of
from rmq_store.format.text.ids import UniqueIdGenerator
from rmq_store.format.text.names import validate_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.topics import create_topic, refuse_to_write_topic

_log = logging.getLogger(__name__)

_DRAIN_MS = 1_000
PATIENCE_OPTION: Final = "brokerAwayTimeout"
RESEND_OPTION: Final = "onUnknownOutcome=resend"
"""The option of a Spark write that is its `patience_ms`."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of all tasks of a write; plain data.

    `replay_check`: repetitions leave out what is stored. `resend_unknown`: a send of unknown outcome is sent again at
    once. `patience_ms`: the one bound of the replay check for a broker that is away: in the queues that are read, in
    the search for records, and for the record of this task. `record_path`: a directory for records, "" for the topic of
    the cluster. `new_topic_queues`: of a topic that is made at every master where it is missing; 0: it is refused.
    """

    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    replay_check: bool = True
    resend_unknown: bool = False
    settle_ms: int = 3_000
    patience_ms: int = 60_000
    record_path: str = ""
    new_topic_queues: int = 4
    pull_group: str = ""


@dataclass(frozen=True, slots=True)
class SinkReport:
    """The work that a task has done; plain data. `skipped` and `found`: rows that were stored already, by an earlier
    attempt and by a send of unknown outcome. `late`: see `ReplayCheck.late_keys`.
    """

    rows: int
    skipped: int
    found: int
    requests: int
    retries: int
    late: int
    repeated: bool
    weak: dict[str, int]


class SinkTask:
    """Sends the rows of one task. Use as a context manager: leaving it waits for answers that are still to come."""

    def __init__(self, cluster: Cluster, settings: SinkSettings, part: WritePart) -> None:
        self._cluster = cluster
        self._settings = settings
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._prepared: set[str] = set()
        self._rows = 0
        # Whether rows may have queues of their own.
        self._names_queues = False
        keys = self._keys = KeyMaker(seed_of([part.write, str(part.batch), str(part.partition)]))
        reading = self._reading = QueueReading(
            cluster, settings.patience_ms, settings.pull_group, option=PATIENCE_OPTION,
            resend_lost=settings.resend_unknown, resend_option=RESEND_OPTION,
        )  # fmt: skip
        self._check: ReplayCheck | None = None
        if settings.replay_check:
            records = (
                RecordDirectory(settings.record_path)
                if settings.record_path
                else RecordTopic(cluster, reading, group=settings.pipeline.group, pull_group=settings.pull_group)
            )
            self._check = ReplayCheck(cluster, reading, records, part, keys.tag, settings.settle_ms)
        unique_ids = UniqueIdGenerator(b"\0" * 4, os.getpid() & 0xFFFF, random.getrandbits(32))
        self._encoder = RowEncoder(settings.encoder, self, keys, unique_ids)
        verifier = None if settings.resend_unknown else self._check
        self._pipeline = Pipeline(_Masters(cluster), self._open_queues, settings.pipeline, verifier)
        self._maker = ChunkMaker()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; see `RowEncoder.encode` for their columns. When it returns, some of them are stored.

        Raises:
            UsageError, ReplayConflictError: as `RowEncoder.encode`, and `Pipeline.send`, and `ReplayCheck.prepare`.
        """
        if not batch.num_rows:
            return
        columns = batch.schema.names
        self._names_queues = "shardingKey" in columns or (
            self._settings.encoder.use_queue_id and "queueId" in columns
        )
        for rows in self._encoder.encode(batch, self._rows, time.time_ns() // 1_000_000):
            if self._check is not None:
                self._check.expect_singles(rows)
            for chunk in self._maker.add(rows):
                self._pipeline.send(chunk)
        self._rows += batch.num_rows

    def finish(self) -> SinkReport:
        """Return when all rows are stored. Raises as `write`."""
        for chunk in self._maker.flush():
            self._pipeline.send(chunk)
        counts: SendCounts = self._pipeline.finish()
        check = self._check
        is_repetition = check is not None and check.is_repetition
        late = 0
        if check is not None and is_repetition:
            late = check.late_keys(counts.first_offsets, self._keys.has_made)
        if self._encoder.skipped:
            _log.info("%d rows were stored by an earlier attempt, %d are sent now", self._encoder.skipped, counts.rows)
        return SinkReport(
            counts.rows, self._encoder.skipped, counts.found, counts.requests, counts.retries, late,
            is_repetition, dict(counts.weak),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipeline.drain(_DRAIN_MS)

    # -- Targets ----------------------------------------------------------------------------------------------------

    def prepare(self, topics: Sequence[str], delayed: bool) -> FoundKeys | None:
        """As `Targets.prepare`."""
        for topic in topics:
            queues = self.queues(topic)
            if self._check is None:
                continue
            if topic not in self._prepared:
                self._check.prepare(topic, queues, delayed, may_go_elsewhere=not self._names_queues)
                self._prepared.add(topic)
            elif delayed:
                self._check.prepare_delays({queue.broker_name for queue in self._open_queues(topic)})
        return None if self._check is None else self._check.found

    def _open_queues(self, topic: str) -> Sequence[MessageQueue]:
        """Those of `queues` that rows without a queue of their own may go to."""
        left_out = () if self._check is None else self._check.left_out
        queues = self.queues(topic)
        return [queue for queue in queues if queue not in left_out] if left_out else queues

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """As `Targets.queues`. They stay the same for the whole task: only these are recorded.

        Raises:
            UnknownTopicError: there is none, and it must not be made. UsageError: it cannot be written.
            SendInDoubtError: no broker is there. BrokerAwayError: only slaves of its brokers are.
        """
        known = self._queues.get(topic)
        if known is not None:
            return known
        route = self._cluster.route(topic)
        if route is None:
            self._reading.await_brokers()
            route = self._cluster.refresh_route(topic)
        if route is None:
            validate_topic(topic)
            if not self._settings.new_topic_queues:
                raise UnknownTopicError(
                    f"no broker of the cluster has a topic {topic!r}, and createTopic=false"
                    f"{self._cluster.did_you_mean(topic)}"
                )
            _log.warning("made the topic %r with %d queues at all masters", topic, self._settings.new_topic_queues)
            route = create_topic(self._cluster, topic, self._settings.new_topic_queues)
        refuse_to_write_topic(self._cluster, topic)
        return self._queues.setdefault(topic, self._reading.publish_queues(route))

    def refuse_timers(self, topics: Sequence[str]) -> None:
        """As `Targets.refuse_timers`."""
        for topic in topics:
            refuse_timers(self._cluster, topic, {queue.broker_name for queue in self.queues(topic)})


class _Masters:
    """The masters of a cluster, for sends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.wire_topic = cluster.wire_topic

    def submit_broker(self, broker_name: str, request: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        """As `Brokers.submit_broker`."""
        return submitted(self._cluster, broker_name, request, timeout_ms)

    def not_reached(self, broker_name: str) -> None:
        """As `Brokers.not_reached`."""
        self._cluster.routes.not_reached(broker_name)
