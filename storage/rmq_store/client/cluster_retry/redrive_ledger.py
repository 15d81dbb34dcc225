"""The redrive ledger of a cluster: which dead letters were moved on, at the brokers that hold them. Control plane.

A journal (`delivery.journal_topic`), whose owners are groups. It has one queue at each master from which letters were
moved. A record lies there, behind the letters in its log: so retention deletes a record later than the dead letters
that it names. It is in JSON:

    {"version": 1, "group": "g", "attempt": "5f...", "state": "sending", "letters": {"0": [[3, 9]]},
     "ends": {"%RETRY%g": {"broker-a:0": 23}}}
    {"version": 1, "group": "g", "attempt": "5f...", "state": "moved", "letters": {"0": [[3, 9]]}}

The first one is there before the first copy is sent, with the ends of all queues that copies can go to. The second one
names what was moved. If a process dies before it writes the second, the next one looks for copies from those ends on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.client.cluster_sink.records import Offsets
from rmq_store.client.delivery.journal_topic import JournalTopic
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.topics import create_topic

LEDGER_TOPIC: Final = "PYRMQ_REDRIVEN"

SENDING: Final = "sending"
MOVED: Final = "moved"

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A record. `letters`: offset ranges by queue of the dead-letter topic. `ends`: where copies may lie from."""

    group: str
    attempt: str
    state: str
    letters: Mapping[int, OffsetRanges]
    ends: Offsets = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The text of the record."""
        topics: dict[str, dict[str, int]] = {}
        for queue, offset in sorted(self.ends.items()):
            topics.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offset
        content: dict[str, Any] = {
            "version": _VERSION, "group": self.group, "attempt": self.attempt, "state": self.state,
            "letters": {str(queue_id): ranges.pairs() for queue_id, ranges in sorted(self.letters.items())},
        }  # fmt: skip
        if topics:
            content["ends"] = topics
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> LedgerRecord | None:
        """Read a record; None: the text is none, or of a version that is not known."""
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                return None
            letters = {}
            for queue_id, pairs in found["letters"].items():
                ranges = np.array(pairs, np.int64).reshape(-1, 2)
                letters[int(queue_id)] = OffsetRanges(ranges[:, 0], ranges[:, 1])
            ends = {
                MessageQueue(topic, name.rpartition(":")[0], int(name.rpartition(":")[2])): int(offset)
                for topic, queues in found.get("ends", {}).items()
                for name, offset in queues.items()
            }
            return cls(str(found["group"]), str(found["attempt"]), str(found["state"]), letters, ends)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


@dataclass
class BrokerLedger:
    """The content of the records of one broker for one group, as far as they are read: up to `read_until` of the queue.
    `open`: attempts that have not said what they moved.
    """

    group: str
    broker_name: str
    read_until: int = 0
    open: dict[str, LedgerRecord] = field(default_factory=dict)
    _moved: dict[int, list[OffsetRanges]] = field(default_factory=dict)

    def add(self, record: LedgerRecord) -> None:
        """Take the next record. One that was taken before changes nothing, if those behind it follow."""
        if record.state == SENDING:
            self.open[record.attempt] = record
            return
        self.open.pop(record.attempt, None)
        for queue_id, ranges in record.letters.items():
            self._moved.setdefault(queue_id, []).append(ranges)

    def moved(self) -> dict[int, OffsetRanges]:
        """The offsets that were moved, by queue of the dead-letter topic."""
        return {queue_id: self.moved_of(queue_id) for queue_id in self._moved}

    def moved_of(self, queue_id: int) -> OffsetRanges:
        """The offsets of a queue that were moved."""
        if queue_id not in self._moved:
            return OffsetRanges.none()
        ranges = OffsetRanges.union(self._moved[queue_id])
        self._moved[queue_id] = [ranges]
        return ranges


class RedriveLedger:
    """The ledger of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        patience_ms: int = 15_000,
        pull_group: str = "",
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._reading = QueueReading(cluster, patience_ms, pull_group, sleep)
        self._journal = JournalTopic(
            cluster, LEDGER_TOPIC, "the record of a redrive", self._reading,
            group="pyspark_rmq", pull_group=pull_group, sleep=sleep,
        )  # fmt: skip

    def read_on(self, ledger: BrokerLedger, *, at_master: bool) -> None:
        """Take all records that are behind those that a ledger has. `at_master`: nothing may be missed, so the master
        is asked, and neither a slave nor the route: a name server that has just started does not know all topics.

        Raises:
            SendInDoubtError: the master does not answer.
            RemotingError: nobody can tell now whether the broker has records.
            Others as `read_range`: the queue cannot be read.
        """
        queue = queue_of(ledger.broker_name)
        if not at_master and not self._is_routed(ledger.broker_name):
            self._check_is_registered(ledger.broker_name)
            return
        for is_last_try in (False, True):  # retention may be faster once
            if at_master:
                first, end = self._reading.begins([queue])[queue], self._reading.ends([queue])[queue]
            else:
                limits = queue_ranges(self._cluster, [queue])[queue]
                first, end = limits.min_offset, limits.max_offset
            # A queue that has become shorter has lost records, and others may be in their places.
            start = max(first, ledger.read_until if ledger.read_until <= end else 0)
            try:
                for record in self._records(queue, start, end, ledger.group):
                    ledger.add(record)
                ledger.read_until = end
                return
            except OffsetOutOfRangeError:
                if is_last_try:
                    raise

    def add(self, broker_name: str, record: LedgerRecord) -> None:
        """Make a record durable, as far as the broker's flush and replication settings do that.

        Raises:
            MQBrokerError: the broker refuses it. MQClientError: it does not take it within the patience.
            SendInDoubtError: it does not show it in its queue. RemotingCommandError: as `JournalTopic.append`.
        """
        if not self._is_routed(broker_name):
            create_topic(self._cluster, LEDGER_TOPIC, 1, broker_names=[broker_name])
        queue = queue_of(broker_name)
        stored = self._journal.append([queue], record.group, record.group, record.to_json())
        # The next process must see it.
        self._journal.await_shown(queue, stored[queue] + 1)

    def _is_routed(self, broker_name: str) -> bool:
        """Whether the name servers show the topic at a broker: one that came later does not have it."""
        route = self._cluster.route(LEDGER_TOPIC)
        if route is None or broker_name not in route.queues:
            route = self._cluster.refresh_route(LEDGER_TOPIC)
        return route is not None and broker_name in route.queues

    def _check_is_registered(self, broker_name: str) -> None:
        """Raise RemotingError if the name servers list brokers, and not this one: they know nothing of its topics then.
        A task reads rows of a broker which they have forgotten, or not heard of yet.
        """
        registered = self._cluster.routes.registered(refresh=True)
        if registered is not None and broker_name not in registered:
            raise RemotingError(
                f"the name servers do not know broker {broker_name!r} (yet): so it is not known which dead letters "
                "were moved on there"
            )

    def _records(self, queue: MessageQueue, start: int, end: int, group: str) -> Iterator[LedgerRecord]:
        for text, _ in self._journal.texts(queue, start, end, [group]):
            record = LedgerRecord.from_json(text)
            if record is not None and record.group == group:
                yield record


def queue_of(broker_name: str) -> MessageQueue:
    """The queue of a broker's records."""
    return MessageQueue(LEDGER_TOPIC, broker_name, 0)
