"""Reads topics of Kafka into one store: dead letters, and failed records that wait for a retry.

It is a small mirror. Each fetch of a partition becomes one unit with the messages and the partition's next offset
(`positions.store_positions`). So each record is stored once, at whatever point this process dies. A position without
messages is written only at the end: after a crash the next run reads past markers again, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.kafka.client import (
    KafkaAdministration,
    KafkaReader,
    KafkaTopic,
    Partition,
    Position,
)
from rmq_store.bridge.positions.store_positions import StorePosition, StorePositions, TopicPositions, text_hash
from rmq_store.bridge.positions.topics import check_mirror_name
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.broker.store.store import Store
from rmq_store.errors import KafkaOffsetError, KafkaUnavailableError, MirrorSourceError, UsageError

_POLL_MS: Final = 500
_RETRY_S: Final = 1.0
_REFRESH_S: Final = 30.0

UNIT_ROWS: Final = 4_096
"""Records of one unit, at most."""

RowsToMessages = Callable[[pa.RecordBatch, Partition, str], Sequence[pa.RecordBatch]]
"""Records (RECORDS_SCHEMA) of a partition, and the id of its topic, to batches for `Store.append_unit`."""


class Intake:
    """Reads topics by name into a store that is open for writing; not safe for threads.

    `mirror` names the positions, `cluster_id` the RocketMQ side for ever. `target` names the store's topic for the
    records; another target than before is refused. `count_losses`: if retention deleted records that were not read yet,
    count them, and continue at the start of the partition.
    """

    def __init__(
        self,
        store: Store,
        reader: KafkaReader,
        administration: KafkaAdministration,
        mirror: str,
        cluster_id: str,
        topics: Iterable[str],
        target: str,
        to_messages: RowsToMessages,
        *,
        count_losses: bool = False,
    ) -> None:
        self._reader = reader
        self._administration = administration
        self._names = tuple(dict.fromkeys(topics))
        self._target = target
        self._to_messages = to_messages
        self._count_losses = count_losses
        self._mirror = check_mirror_name(mirror)
        self._cluster_id = cluster_id
        self._positions = StorePositions(store, mirror, administration.cluster_id())
        self._topics: dict[str, TopicPositions] = {}
        self._at: dict[Partition, StorePosition] = {}
        self._beyond: dict[Partition, tuple[int, int]] = {}
        self.lost_count = 0

    def refresh_topics(self) -> None:
        """Begin new topics and partitions at their first record. Call it now and then.

        Raises:
            UsageError: a topic does not exist, its records went to another target before, or the cluster id was
                another.
            MirrorSourceError: a topic was deleted and created again.
            MirrorConflictError: another process does the same under this name.
        """
        if not self._positions.has_begun(self._cluster_id):
            self._positions.note_begun(self._cluster_id)
        known = self._administration.topics(self._names)
        for name in self._names:
            if name not in known:
                raise UsageError(f"Kafka has no topic {name!r}")
            self._topics[name] = found = self._begun(known[name])
            for partition, position in found.partitions.items():
                self._at.setdefault(Partition(name, partition), position)
        self._assign()

    def partitions(self) -> Sequence[Partition]:
        """All partitions that are read, sorted."""
        return sorted(self._at)

    def next_offset(self, partition: Partition) -> int:
        """The offset up to which a partition was read."""
        return self._beyond.get(partition, (self._at[partition].next_offset, -1))[0]

    def poll(self, timeout_ms: int) -> int:
        """Read new records and append them; returns their number. Durable as `Store.append`.

        Raises:
            MirrorSourceError: records were deleted before they were read, or a partition is shorter than it was.
            KafkaUnavailableError, KafkaRefusedError, MirrorConflictError; as `Store.append`.
        """
        try:
            polled = self._reader.poll(timeout_ms)
        except KafkaOffsetError as error:
            self._go_on_behind(error)
            return 0
        count = 0
        for partition, fetched in polled.items():
            self._beyond[partition] = fetched.next_offset, fetched.leader_epoch
            if fetched.rows.num_rows:
                self._append(partition, fetched)
                count += fetched.rows.num_rows
        return count

    def write_positions(self) -> None:
        """Write the positions that moved without messages. Raises as `poll`."""
        for partition in list(self._beyond):
            self._advance(partition, ())

    def run(
        self,
        *,
        wait: Callable[[float], bool],
        until_caught_up: bool = False,
        on_poll: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Read until `wait(seconds)` returns True, because somebody has asked to stop; with `until_caught_up`, up to
        the present ends of the partitions. If Kafka is unavailable, wait for it, except with `until_caught_up`.
        `on_poll(count)` is called after each poll. Raises as `refresh_topics` and `poll`.
        """
        self.refresh_topics()
        refreshed_s = real_time.monotonic()
        ends = self._reader.stable_ends(self.partitions()) if until_caught_up else None
        while not wait(0):
            if ends is not None and all(self.next_offset(partition) >= end for partition, end in ends.items()):
                break
            try:
                if ends is None and real_time.monotonic() - refreshed_s >= _REFRESH_S:
                    refreshed_s = real_time.monotonic()
                    self.refresh_topics()
                count = self.poll(_POLL_MS)
            except KafkaUnavailableError:
                if ends is not None or wait(_RETRY_S):
                    raise
                continue
            on_poll(count)
        self.write_positions()

    def _append(self, partition: Partition, fetched: Fetched) -> None:
        topic_id = str(self._topics[partition.topic].topic_id)
        for first in range(0, fetched.rows.num_rows, UNIT_ROWS):
            rows = fetched.rows.slice(first, UNIT_ROWS)
            is_last = first + rows.num_rows == fetched.rows.num_rows
            behind = fetched.next_offset if is_last else int(rows.column("offset")[-1].as_py()) + 1
            self._beyond[partition] = behind, fetched.leader_epoch
            self._advance(partition, self._to_messages(rows, partition, topic_id))

    def _begun(self, topic: KafkaTopic) -> TopicPositions:
        known = self._positions.read(topic.name)
        if known is not None:
            if known.topic_id != topic.topic_id:
                raise MirrorSourceError(
                    f"Kafka's topic {topic.name!r} was deleted and made again since {self._mirror!r} read it: the "
                    "stored offsets are those of the old topic. Read the new one under another --name"
                )
            if known.target_hash != text_hash(self._target):
                raise UsageError(
                    f"{self._mirror!r} has copied {topic.name!r} to another target so far, not to {self._target!r}: "
                    "give it another --name"
                )
        new = [n for n in range(topic.partition_count) if known is None or n not in known.partitions]
        if known is not None and not new:
            return known
        starts = self._reader.starts([Partition(topic.name, n) for n in new])
        begun = {partition.partition: offset for partition, offset in starts.items()}
        return self._positions.begin(topic.name, topic.topic_id, self._target, begun, known)

    def _assign(self) -> None:
        self._reader.assign({
            partition: Position(self.next_offset(partition), self._beyond.get(partition, (0, at.leader_epoch))[1])
            for partition, at in self._at.items()
        })  # fmt: skip

    def _advance(self, partition: Partition, batches: Sequence[pa.RecordBatch], lost: tuple[int, int] = (0, 0)) -> None:
        next_offset, epoch = self._beyond[partition]
        self._at[partition] = self._positions.advance(
            self._topics[partition.topic], partition.partition, self._at[partition],
            [batch for batch in batches if batch.num_rows],
            next_offset=next_offset, leader_epoch=epoch, lost=lost,
        )  # fmt: skip
        del self._beyond[partition]

    def _go_on_behind(self, error: KafkaOffsetError) -> None:
        """Kafka does not have these offsets. Records that retention deleted are counted, if `count_losses` is set."""
        starts: Mapping[Partition, int] = self._reader.starts([Partition(*place) for place in error.offsets])
        for partition, start in starts.items():
            before = self.next_offset(partition)
            if before > start or not self._count_losses:
                where = f"partition {partition.partition} of Kafka's topic {partition.topic!r}"
                what = f"begins at {start} now" if before <= start else "ends before it"
                raise MirrorSourceError(
                    f"{where} was read up to offset {before}, and {what}: records are gone. With --on-data-loss count "
                    "they are counted, and reading continues at the start of the partition"
                    if before <= start
                    else f"{where} was read up to offset {before}, and {what}: it was truncated, or replaced"
                ) from error
            self._beyond[partition] = start, -1
            self._advance(partition, (), (start - before, start))
            self.lost_count += start - before
        self._assign()
