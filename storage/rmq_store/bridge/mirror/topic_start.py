"""The positions at which a mirror of one topic into Kafka continues; detects a replaced source or target."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
from rmq_store.bridge.positions.kafka_positions import QueuePosition
from rmq_store.bridge.positions.store_windows import changed, common_place, mark_below
from rmq_store.bridge.records.origin import sources_of_records
from rmq_store.bridge.source.message_source import MessageSource
from rmq_store.errors import MirrorSourceError, MirrorTargetError, UsageError
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicStart:
    """The start of the copy from `topic`, with `queue_count` queues, into `target`, whose id in Kafka is `target_id`.
    `is_new`: the topic did not exist when the mirror began. The positions of `side` must have been refreshed.
    """

    store: MessageSource
    side: KafkaSide
    rules: CopyRules
    topic: str
    target: str
    target_id: str
    queue_count: int
    is_new: bool

    def check_target(self) -> None:
        """UsageError: the topic was copied to another target. MirrorTargetError: the target was created again."""
        known = self.side.positions.topic(self.topic)
        if known is None:
            return
        if known.target != self.target:
            raise UsageError(
                f"Mirror {self.side.mirror!r} copies topic {self.topic!r} to {known.target!r}, not to "
                f"{self.target!r}: a queue would be spread over two topics. Keep its --rename, or name the mirror "
                "otherwise."
            )
        if known.target_id != self.target_id:
            raise MirrorTargetError(
                f"Topic {self.target!r} of Kafka was deleted and made again since mirror {self.side.mirror!r} wrote "
                f"to it: what was copied of {self.topic!r} is gone. A mirror of another name copies all of it again."
            )

    def new_positions(self) -> dict[int, QueuePosition]:
        """Positions of queues that have none. Raises MirrorTargetError if their positions were lost."""
        known = self.side.positions.topic(self.topic)
        if known is None and not self.rules.begin_again:
            self._refuse_known_records()
        positions = self.side.positions.queues(self.topic)
        ranges = self.store.queue_ranges(self.topic)
        found = {}
        for queue_id in range(self.queue_count):
            if queue_id in positions:
                continue
            if known is not None and queue_id < known.queue_count:
                raise MirrorTargetError(
                    f"The position of queue {queue_id} of {self.topic!r} is gone from topic "
                    f"{self.side.positions.partition.topic!r} of Kafka. A mirror of another name begins again."
                )
            first, end = ranges.get(queue_id, (0, 0))
            start = first
            if known is None and not self.is_new and self.rules.start != "earliest" and first < end:
                if self.rules.start == "latest":
                    start = end
                else:
                    start = self.store.offset_by_time(self.topic, queue_id, self.rules.start)
            found[queue_id] = QueuePosition(mark_below(self.store, self.topic, queue_id, start, -1), start)
        return found

    def _refuse_known_records(self) -> None:
        """Positions of a topic that was mirrored are lost if the topic of positions was deleted, or was another one."""
        for queue_id in range(self.queue_count):
            place = Partition(self.target, queue_id)
            sources = sources_of_records(self.side.positions.last_records(place), *place)
            places = zip(sources.clusters.to_pylist(), sources.topics.to_pylist(), strict=True)
            if (self.side.rmq_cluster_id, self.topic) in places:
                raise MirrorTargetError(
                    f"Partition {queue_id} of topic {self.target!r} in Kafka has records that were mirrored from "
                    f"{self.topic!r}, but mirror {self.side.mirror!r} has no position of it: was it deleted, or has "
                    "the mirror another name now? --begin-again copies all of it again."
                )

    def check_ends(self, positions: Mapping[int, QueuePosition]) -> None:
        """Raise MirrorTargetError if partitions end earlier than before."""
        for queue_id, position in positions.items():
            end = self.side.writers.high_watermark(Partition(self.target, queue_id))
            if end < position.mark.target_end:
                held = [mark for mark in position.earlier if mark.target_end <= end]
                since = f" (at offset {held[0].next_offset} it still was what it is now)" if held else ""
                raise MirrorTargetError(
                    f"Partition {queue_id} of topic {self.target!r} in Kafka ends at {end}, and ended at "
                    f"{position.mark.target_end} when queue offset {position.next_offset} of {self.topic!r} was "
                    f"committed{since}: Kafka has lost records (an unclean leader election?)."
                )

    def moved_positions(self, positions: Mapping[int, QueuePosition]) -> dict[int, QueuePosition]:
        """New positions of queues that were replaced, by the rule for that. Raises MirrorSourceError."""
        moved = {}
        for queue_id, position in positions.items():
            reason = changed(self.store, self.topic, queue_id, position.mark)
            if reason is None:
                continue
            common = common_place(self.store, self.topic, queue_id, position)
            if self.rules.on_source_change == "common" and common is not None:
                moved[queue_id] = position.back_at(common)
            elif self.rules.on_source_change == "restart":
                first = self.store.queue_range(self.topic, queue_id).min_offset
                moved[queue_id] = QueuePosition(
                    mark_below(self.store, self.topic, queue_id, first, position.mark.target_end), first
                )
            else:
                place = "none is known" if common is None else f"from offset {common.next_offset} on"
                raise MirrorSourceError(
                    f"Queue {queue_id} of {self.topic!r} is not the one that was mirrored: {reason}. Was a copy "
                    "restored, or the topic deleted and made again? --on-source-change common continues after the "
                    f"last common message ({place}), restart at the beginning."
                )
        return moved
