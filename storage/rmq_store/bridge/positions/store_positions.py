"""Positions of a mirror from Kafka, kept in the store that it writes: values of units (docs/design.md section 7).

    unit of a mirror      key <mirror>/<Kafka cluster id>        value: 1
        detail            cluster (hash of the RocketMQ cluster id that the user chose)
    unit of a topic       key <mirror>/<cluster>/<topic>         value: generation, 1 at first; 1 more with each change
        detail            topic_high, topic_low (Kafka's topic id), target (hash of the target topic), and for each
                          partition p: s<p>, the offset that it began at
    unit of a partition   key <mirror>/<cluster>/<topic>/<partition>      value: next offset, beyond markers
        detail            topic_high, topic_low, epoch (the leader's; -1: unknown), queue, lost (offsets that were gone
                          before they were read), lost_end (below which the last of these lay)

Where a topic's partitions begin is one append, so a mirror that dies before its first record begins there again. A
partition that the unit of its topic does not name was not there then: all of it is new. A unit of a partition that
names another topic id belongs to a topic that was deleted. The unit of the mirror is written when all topics have begun
that its first run found: those that a pattern finds later are new as well.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmq_store.broker.store.store import Store
from rmq_store.errors import MirrorConflictError, UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.units import UnitRecord

PURPOSE: Final = "mirror"


@dataclass(frozen=True, slots=True)
class StorePosition:
    """The position in one partition. `next_offset`: the mirror continues there. `start_offset`: it began there.
    `lost_count` records below `lost_end` were gone before they were read. `expect`: the value of its unit now; None: it
    has none yet.
    """

    next_offset: int
    leader_epoch: int
    start_offset: int
    lost_count: int = 0
    lost_end: int = 0
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """The state of one topic with the id that Kafka gave it; `target_hash` is the hash of its name in the store."""

    topic: str
    topic_id: uuid.UUID
    target_hash: int
    generation: int
    partitions: Mapping[int, StorePosition]


class StorePositions:
    """The positions of one mirror in a store that is open for writing."""

    def __init__(self, store: Store, mirror: str, kafka_cluster_id: str) -> None:
        self._store = store
        self._mirror = mirror
        self._key = f"{mirror}/{kafka_cluster_id}"

    def has_begun(self, cluster_id: str) -> bool:
        """True if all topics of the first run have begun.

        Raises:
            UsageError: the first run had another cluster id of the RocketMQ side: copies with that id would go in
                circles.
        """
        unit = self._store.newest_unit(PURPOSE, self._key)
        if unit is not None and unit.detail["cluster"] != text_hash(cluster_id):
            raise UsageError(
                f"mirror {self._mirror!r} started with another cluster id than {cluster_id!r}. Its copies carry that "
                "one, so it must not change"
            )
        return unit is not None

    def note_begun(self, cluster_id: str) -> None:
        """Record that all topics of the first run have begun. MirrorConflictError: another mirror has done so."""
        self._append([], self._key, 1, None, {"cluster": text_hash(cluster_id)})

    def read(self, topic: str) -> TopicPositions | None:
        """The state of a topic; None if the mirror has not begun with it."""
        unit = self._store.newest_unit(PURPOSE, self._topic_key(topic))
        if unit is None:
            return None
        topic_id = _topic_id(unit)
        starts = {int(name[1:]): offset for name, offset in unit.detail.items() if name[1:].isdecimal()}
        partitions = {
            partition: self._partition(topic, partition, topic_id, start) for partition, start in sorted(starts.items())
        }
        assert unit.value is not None
        return TopicPositions(topic, topic_id, unit.detail["target"], unit.value, partitions)

    def begin(
        self, topic: str, topic_id: uuid.UUID, target: str, starts: Mapping[int, int], before: TopicPositions | None
    ) -> TopicPositions:
        """Write the start offsets of partitions; those that `before` has with the same topic id stay. Durable as
        `Store.append`.

        Raises:
            MirrorConflictError: another mirror of this name was faster; nothing was written.
        """
        kept = before.partitions if before is not None and before.topic_id == topic_id else {}
        begun = {partition: at.start_offset for partition, at in kept.items()} | dict(starts)
        detail = {**_halves(topic_id), "target": text_hash(target)}
        detail |= {f"s{partition}": offset for partition, offset in sorted(begun.items())}
        expect = None if before is None else before.generation
        value = 1 if before is None else before.generation + 1
        self._append([], self._topic_key(topic), value, expect, detail)
        found = self.read(topic)
        assert found is not None
        return found

    def advance(
        self,
        topics: TopicPositions,
        partition: int,
        position: StorePosition,
        batches: Sequence[pa.RecordBatch] = (),
        *,
        next_offset: int,
        leader_epoch: int,
        lost: tuple[int, int] = (0, 0),
    ) -> StorePosition:
        """Append messages (columns of INPUT_SCHEMA, with their UNIQ_KEYs) and the position after them as one unit.
        `lost`: the number of records that were gone, and the offset below which they were. Durable as `Store.append`.

        Raises:
            MirrorConflictError: another mirror of this name was faster; nothing was written.
            UsageError, StoreFullError, StoreLockedError, StoreFailedError: as `Store.append`.
        """
        lost_count = position.lost_count + lost[0]
        lost_end = lost[1] if lost[0] else position.lost_end
        detail = {
            **_halves(topics.topic_id), "epoch": leader_epoch, "queue": partition, "lost": lost_count,
            "lost_end": lost_end,
        }  # fmt: skip
        key = f"{self._topic_key(topics.topic)}/{partition}"
        self._append(batches, key, next_offset, position.expect, detail)
        return replace(
            position, next_offset=next_offset, leader_epoch=leader_epoch, lost_count=lost_count, lost_end=lost_end,
            expect=next_offset,
        )  # fmt: skip

    def _partition(self, topic: str, partition: int, topic_id: uuid.UUID, start: int) -> StorePosition:
        unit = self._store.newest_unit(PURPOSE, f"{self._topic_key(topic)}/{partition}")
        if unit is None:
            return StorePosition(start, -1, start)
        assert unit.value is not None
        if _topic_id(unit) != topic_id:
            return StorePosition(start, -1, start, expect=unit.value)
        detail = unit.detail
        return StorePosition(
            unit.value, detail["epoch"], start, detail.get("lost", 0), detail.get("lost_end", 0), unit.value
        )

    def _append(
        self, batches: Sequence[pa.RecordBatch], key: str, value: int, expect: int | None, detail: Mapping[str, int]
    ) -> None:
        appended = self._store.append_unit(
            batches, purpose=PURPOSE, key=key, value=value, expect=expect, detail=detail, keep_unique_key=True
        )
        if appended is None:
            raise MirrorConflictError(
                f"another mirror named {self._mirror!r} has written to {self._store.path} since: {key} was at "
                f"{expect}, and is at {self._store.last_unit(PURPOSE, key)}. Nothing was written; stop one of them, or "
                "give it another name"
            )

    def _topic_key(self, topic: str) -> str:
        return f"{self._key}/{topic}"


def text_hash(text: str) -> int:
    """A number that a unit stores for a text. It reveals whether the text was changed."""
    return zlib.crc32(text.encode())


def _halves(topic_id: uuid.UUID) -> dict[str, int]:
    """A topic id as two integers of 64 bits, which is what a unit takes."""
    high, low = (int.from_bytes(half, "big", signed=True) for half in (topic_id.bytes[:8], topic_id.bytes[8:]))
    return {"topic_high": high, "topic_low": low}


def _topic_id(unit: UnitRecord) -> uuid.UUID:
    halves = (unit.detail["topic_high"], unit.detail["topic_low"])
    return uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in halves))
