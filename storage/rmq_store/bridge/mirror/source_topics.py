"""The Kafka topics of a mirror, the positions of their partitions, and changes such as new or deleted topics.

    found for the first time      its partitions begin as the options say; these positions are written first
    more partitions than before   new ones begin at the earliest record: all of them is new
    another topic id              deleted and created again: its partitions stop, or begin anew by option
    gone                          its partitions stop

A topic that has stopped stays so for this run; all others go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import field

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaTopic, Partition, Position
from rmq_store.bridge.mirror import store_topics
from rmq_store.bridge.mirror.options import EARLIEST, LATEST, IntoStoreOptions, Start
from rmq_store.bridge.positions import queue_tail
from rmq_store.bridge.positions.store_positions import StorePosition, StorePositions, TopicPositions, text_hash
from rmq_store.bridge.records.route import Route
from rmq_store.broker.store.store import Store
from rmq_store.errors import MirrorSourceError, UsageError
from rmq_store.lazy.dataclasses import dataclass


@dataclass(slots=True)
class SourcePartition:
    """One partition that is copied. `read_offset` and `read_epoch`: the end of the fetched records, which may be beyond
    `position` by offsets without records. `written_s`: time of its last unit (monotonic).
    """

    place: Partition
    route: Route
    position: StorePosition
    read_offset: int
    read_epoch: int
    written_s: float = 0.0

    @property
    def next(self) -> Position:
        """The position at which the reader continues."""
        return Position(self.read_offset, self.read_epoch)


@dataclass(slots=True)
class SourceTopic:
    """One topic that is copied."""

    positions: TopicPositions
    target: str
    partitions: dict[int, SourcePartition] = field(default_factory=dict)


class SourceTopics:
    """Follows the topics. `active`: partitions that are read; `stopped`: others, with the reasons."""

    def __init__(
        self,
        store: Store,
        reader: KafkaReader,
        administration: KafkaAdministration,
        options: IntoStoreOptions,
        kafka_cluster_id: str,
    ) -> None:
        self._store = store
        self._reader = reader
        self._administration = administration
        self._options = options
        self._cluster_id = kafka_cluster_id
        self.positions = StorePositions(store, options.mirror, kafka_cluster_id)
        self.topics: dict[str, SourceTopic] = {}
        self.active: dict[Partition, SourcePartition] = {}
        self.stopped: dict[Partition, str] = {}
        self._refused: dict[str, str] = {}
        self._is_first_refresh = True

    def refresh(self) -> bool:
        """Read the list of topics, and begin new ones. Returns True if `active` has changed.

        Raises:
            UsageError: a named topic does not exist, two topics would become one, or a target cannot be used; with a
                pattern,
                only at the first call.
            MirrorSourceError: at the first call, a topic was created again.
            MirrorConflictError, KafkaUnavailableError, KafkaRefusedError, StoreError.
        """
        available = self._administration.topics()
        chosen = self._chosen(available)
        is_begun = self.positions.has_begun(self._options.cluster_id)
        before = set(self.active)
        for name in list(self.topics):
            if name not in available:
                self._stop_topic(name, f"Kafka has no topic {name!r} any more")
        for name, target in chosen.items():
            if name in self._refused:
                continue
            start = self._options.start if not is_begun or name in self._options.choice.topics else EARLIEST
            try:
                self._follow(available[name], target, start)
            except (UsageError, MirrorSourceError) as error:
                if self._is_first_refresh:
                    raise
                self._refused[name] = str(error)
                self._stop_topic(name, str(error))
        if not is_begun:
            self.positions.note_begun(self._options.cluster_id)
        self._is_first_refresh = False
        return set(self.active) != before

    def stop(self, place: Partition, reason: str) -> None:
        """Stop a partition."""
        if self.active.pop(place, None) is not None:
            self.stopped[place] = reason

    def check_id(self, available: Mapping[str, KafkaTopic], name: str) -> bool:
        """True if a topic still has the id of its positions; if not, stop its partitions."""
        topic, found = self.topics.get(name), available.get(name)
        if topic is None or found is None:
            self._stop_topic(name, f"Kafka has no topic {name!r} any more")
        elif found.topic_id != topic.positions.topic_id:
            self._stop_topic(name, _replaced(name))
        else:
            return True
        return False

    def refused(self) -> Mapping[str, str]:
        """Topics that were found later and are not copied, with the reasons."""
        return self._refused

    def _chosen(self, available: Mapping[str, KafkaTopic]) -> dict[str, str]:
        try:
            chosen = self._options.choice.chosen(available.keys())
        except UsageError as error:
            if self._is_first_refresh:
                raise
            self._refused[""] = str(error)
            return {name: topic.target for name, topic in self.topics.items() if name in available}
        if len(chosen) > self._options.topics_max:
            raise UsageError(
                f"{len(chosen)} topics are more than --max-topics {self._options.topics_max} allows: is the pattern "
                "what was meant?"
            )
        return chosen

    def _follow(self, found: KafkaTopic, target: str, start: Start) -> None:
        name = found.name
        if found.partition_count > self._options.partitions_max:
            raise UsageError(
                f"Kafka's topic {name!r} has {found.partition_count} partitions, more than --max-partitions "
                f"{self._options.partitions_max} allows"
            )
        topic = self.topics.get(name)
        known = topic.positions if topic is not None else self.positions.read(name)
        if known is not None:
            if known.target_hash != text_hash(target):
                raise UsageError(
                    f"Kafka's topic {name!r} was mirrored to another topic than {target!r} before: its rename rule "
                    "must stay, or another mirror must be begun"
                )
            if known.topic_id != found.topic_id:
                if not self._options.restart_replaced:
                    raise MirrorSourceError(_replaced(name))
                self._stop_topic(name, "")
                topic = None
                self.stopped = {place: why for place, why in self.stopped.items() if place.topic != name}
        missing = set(range(found.partition_count))
        if known is not None and known.topic_id == found.topic_id:
            missing -= known.partitions.keys()
        if missing or topic is None:
            store_topics.prepare(
                self._store, name, target, found.partition_count, may_create=self._options.create_topics
            )
        if missing:
            known = self._begin(found, target, sorted(missing), start if known is None else EARLIEST, known)
        assert known is not None
        if topic is None:
            topic = self.topics[name] = SourceTopic(known, target)
        topic.positions = known
        for partition, position in known.partitions.items():
            place = Partition(name, partition)
            if partition not in topic.partitions and place not in self.stopped:
                self._take(topic, place, position, found.topic_id)

    def _begin(
        self, found: KafkaTopic, target: str, missing: list[int], start: Start, before: TopicPositions | None
    ) -> TopicPositions:
        """Write where partitions begin. A store that has forgotten the mirror, but holds what it wrote, tells it."""
        places = [Partition(found.name, partition) for partition in missing]
        if start == EARLIEST:
            offsets = dict(self._reader.starts(places))
        elif start == LATEST:
            offsets = dict(self._reader.stable_ends(places))
        else:
            offsets = dict(self._reader.offsets_at(places, int(start)))
        for place in places:
            first = queue_tail.first_source_offset(self._store, self._route(place, target, found.topic_id))
            if first is not None:
                offsets[place] = first
        starts = {place.partition: offset for place, offset in offsets.items()}
        return self.positions.begin(found.name, found.topic_id, target, starts, before)

    def _take(self, topic: SourceTopic, place: Partition, position: StorePosition, topic_id: uuid.UUID) -> None:
        route = self._route(place, topic.target, topic_id)
        last = queue_tail.last_source_offset(self._store, route)
        if last is not None and last >= position.next_offset:
            position = self.positions.advance(
                topic.positions, place.partition, position, next_offset=last + 1, leader_epoch=-1
            )
        partition = SourcePartition(place, route, position, position.next_offset, position.leader_epoch)
        topic.partitions[place.partition] = partition
        self.active[place] = partition

    def _route(self, place: Partition, target: str, topic_id: uuid.UUID) -> Route:
        return Route(
            self._cluster_id, place.topic, place.partition, self._options.cluster_id, target, place.partition,
            str(topic_id) if topic_id.int else "",
        )  # fmt: skip

    def _stop_topic(self, name: str, reason: str) -> None:
        topic = self.topics.pop(name, None)
        for partition in topic.partitions.values() if topic is not None else ():
            self.stop(partition.place, reason)


def _replaced(name: str) -> str:
    return (
        f"Kafka's topic {name!r} was deleted and made again since the mirror has begun with it: its positions mean "
        "nothing any more. --restart-replaced begins the new one at its start"
    )
