"""The interface of a side of translation: Kafka (`kafka_side`) or a store (`store_side`), each as source or target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from rmq_store.bridge.offsets.translate import Origins
from rmq_store.lazy.dataclasses import dataclass


class Queue(NamedTuple):
    """A partition of Kafka, or a queue of RocketMQ."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of a queue: [`start`, `end`) of committed records. `is_compacted`: any record may be gone."""

    start: int
    end: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """The other side's queue, as mirror marks name it. `topic_id`: Kafka's; empty for RocketMQ."""

    cluster_id: str
    queue: Queue
    topic_id: str = ""


class Side(Protocol):
    """A cluster. Errors are those of `kafka.client` and of `Store`."""

    @property
    def name(self) -> str:
        """The name in texts: `Kafka`, or the store's path."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster in mirror marks."""

    def topics(self) -> Collection[str]:
        """All topics that may be mirrored."""

    def queue_count(self, topic: str) -> int:
        """The number of partitions or queues; 0: there is no such topic."""

    def topic_id(self, topic: str) -> str:
        """Kafka's topic id; empty for RocketMQ, and if Kafka does not tell it."""

    def extents(self, queues: Collection[Queue]) -> Mapping[Queue, Extent]:
        """The present ranges of these queues."""

    def wait_for_end(self, queue: Queue, end: int) -> None:
        """Wait until committed records can be read up to `end`. Raises KafkaUnavailableError if that takes too long."""

    def origins(self, queue: Queue, first: int, end: int, other: Origin) -> Iterator[Origins]:
        """Origins of the records at [`first`, `end`) for the queue `other`, some thousand at a time, none empty. A
        record that cannot be read counts as one of others: nothing shows that the other side has it.
        """

    def groups(self) -> Collection[str]:
        """Groups that may have positions."""

    def group_positions(self, group: str) -> Mapping[Queue, int]:
        """Offsets that a group has committed."""

    def members(self, group: str) -> str:
        """Active members of a group, as texts for people; empty: none."""

    def waiting_count(self, group: str) -> int:
        """The number of messages that wait for redelivery to the group, in addition to its positions."""

    def commit(self, group: str, positions: Mapping[Queue, int], *, force: bool) -> None:
        """Commit positions, durably; the records below them are durable, too.

        Raises:
            GroupInUseError: the group has members. With `force`, a store moves the group nevertheless.
        """


class MirroredQueue(NamedTuple):
    """The position of a mirror in a queue: it began at `start`, and continues at `next`. `target_end`: the end of the
    target after the mirror's last record; -1: unknown.
    """

    next: int
    start: int
    target_end: int = -1


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic of a mirror: its name on the other side, and its queues by number. `is_replaced`: it, or its target, was
    deleted and created again since the mirror last looked, so the positions are those of another topic.
    """

    target: str
    queues: Mapping[int, MirroredQueue]
    is_replaced: bool = False


MirrorPositions = Callable[[], Mapping[str, MirroredTopic]]
"""The positions of one mirror now, by source topic. A mirror that never ran has none."""


def no_positions() -> Mapping[str, MirroredTopic]:
    """The positions of a mirror that does not exist: none."""
    return {}
