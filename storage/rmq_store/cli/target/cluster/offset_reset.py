"""Moves the offsets of a group at the brokers of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.progress import progress_of, require_groups
from rmq_store.cli.target.cluster.queues import named_queues, require_topic, topic_ends
from rmq_store.cli.target.offsets_file import read_offsets
from rmq_store.cli.target.rows import ChangeRow, PlaceRow
from rmq_store.cli.target.view import QueueName
from rmq_store.errors import LeaseHeldError, UsageError
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.groups import consumer_connections
from rmq_store.remoting.cluster.offsets import search_offset, update_consumer_offsets


class ClusterOffsetReset:
    """See `OffsetReset`."""

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], queue: QueueName | None, goal: str, value: Any
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = topics
        self._queue = queue
        self._goal = goal
        self._value = value
        self._changes: list[ChangeRow] = []
        self._members: list[str] | None = None

    def plan(self) -> list[ChangeRow]:
        """As `OffsetReset`. RemotingError, MQBrokerError: a broker has not answered; a part of the group must not move
        alone.
        """
        answers = Answers(self._cluster)
        places = self._places_in_file(answers) if self._goal == "to_offsets" else self._chosen_places(answers)
        answers.require_all()
        self._changes = [
            ChangeRow(one, wanted, min(max(wanted, one.min_offset), one.max_offset)) for one, wanted in places
        ]
        return self._changes

    def require_idle(self) -> None:
        """LeaseHeldError: members of the group are online."""
        if found := self._online():
            raise LeaseHeldError(
                f"group {self._group!r} has members online: {', '.join(found)}; stop them, or use `rmq "
                "resetOffsetByTime`, which tells them",
                ", ".join(found),
            )

    def members(self) -> list[str]:
        """See `OffsetReset`."""
        return [f"a member of the group is online: {one}" for one in self._online()]

    def apply(self) -> tuple[list[ChangeRow], list[PlaceRow]]:
        """Set the planned offsets. The second list: queues that keep the offset of another reset, in `committed`."""
        moving = {queue_of(one.place): one for one in self._changes if one.then != one.place.committed}
        stands = update_consumer_offsets(self._cluster, self._group, {one: to.then for one, to in moving.items()})
        kept = [
            change.place._replace(committed=stands[queue])
            for queue, change in moving.items()
            if stands[queue] != change.then
        ]
        return self._changes, kept

    def _online(self) -> list[str]:
        """The ids of the members that are online, at any broker."""
        if self._members is None:
            connections = consumer_connections(self._cluster, self._group).values()
            self._members = sorted({client.client_id for found in connections for client in found.connection_set})
        return self._members

    def _chosen_places(self, answers: Answers) -> list[tuple[PlaceRow, int]]:
        """The queues, each with the offset that is wanted."""
        found = places(self._cluster, answers, *topics_of(self._cluster, answers, self._group, self._topics))
        if self._queue is not None:
            wanted = {one for topic in {place.topic for place in found}
                      for one in named_queues(require_topic(self._cluster, topic), self._queue)}  # fmt: skip
            found = [place for place in found if queue_of(place) in wanted]
        goal = self._goal_of_place()
        return [(place, goal(place)) for place in found]

    def _places_in_file(self, answers: Answers) -> list[tuple[PlaceRow, int]]:
        path: Path = self._value
        wanted = {
            one: offset
            for (topic, text), offset in read_offsets(path).items()
            if not self._topics or topic in self._topics
            for one in named_queues(require_topic(self._cluster, topic), text)
        }
        if self._queue is not None:
            topics = {one.topic for one in wanted}
            known = {one: set(named_queues(require_topic(self._cluster, one), self._queue)) for one in topics}
            wanted = {one: offset for one, offset in wanted.items() if one in known[one.topic]}
        named = sorted({one.topic for one in wanted})
        found = places(self._cluster, answers, *topics_of(self._cluster, answers, self._group, named))
        return [(place, wanted[queue_of(place)]) for place in found if queue_of(place) in wanted]

    def _goal_of_place(self) -> Callable[[PlaceRow], int]:
        if self._goal == "to_time":
            timestamp_ms = parse_time(self._value, time.time_ns() // 1_000_000)
            return lambda place: search_offset(self._cluster, queue_of(place), timestamp_ms)
        goals: dict[str, Callable[[PlaceRow], int]] = {
            "to_earliest": lambda place: place.min_offset,
            "to_latest": lambda place: place.max_offset,
            "to_offset": lambda place: int(self._value),
            "shift": lambda place: (place.min_offset if place.committed is None else place.committed)
            + int(self._value),
        }
        return goals[self._goal]


def topics_of(
    cluster: Cluster, answers: Answers, group: str, named: Sequence[str]
) -> tuple[Sequence[str], dict[MessageQueue, int | None]]:
    """The named topics; without names, all on which the group has offsets, except retry topics. And its offsets."""
    require_groups(cluster, answers, [group])
    for topic in named:
        require_topic(cluster, topic)
    (progress,) = progress_of(cluster, answers, [group])
    committed = {one.queue: one.committed for one in progress.queues}
    topics = named or sorted({queue.topic for queue in committed if not queue.topic.startswith(RETRY_PREFIX)})
    if not topics:
        answers.require_any()
        raise UsageError(f"group {group!r} has no offsets on any topic: name one with -t")
    return topics, committed


def places(
    cluster: Cluster, answers: Answers, topics: Sequence[str], committed: Mapping[MessageQueue, int | None]
) -> list[PlaceRow]:
    """The queues of topics at the brokers that have answered all questions, each with its offset among those that are
    `committed`.
    """
    ends = topic_ends(cluster, answers, topics)
    return [
        PlaceRow(one.topic, one.broker_name, one.queue_id, *ends[one], committed.get(one))
        for one in sorted(ends)
        if one.broker_name not in answers.missing
    ]


def queue_of(place: PlaceRow) -> MessageQueue:
    """The queue of a row."""
    return MessageQueue(place.topic, str(place.broker_name), place.queue_id)
