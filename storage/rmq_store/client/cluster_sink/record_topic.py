"""Records in a topic of the cluster (`records`). Control plane.

A journal (`delivery.journal_topic`), whose owners are the tasks of a write, whatever the batch. A record goes to two
brokers, the first ones of an order that depends on the write and the partition. A search begins at the end of the queue
and stops at a record of an earlier batch of the same task. A task without one looks through all records that retention
has left: a batch may be repeated after any time, so none is too old. A pull looks at 32,768 records there, so that a
million of them take some 40 pulls. No record may be missed, so a search may leave out fewer queues than each record has
copies:

    masters    copies that a record must have    queues that a search may leave out
    1, 2       1                                 none
    3 or more  2                                 1

A broker that does not answer is waited for only if the search, or the record, needs it; both for the same time, which
is the patience of the reading.

A broker shows a message in its queue a moment after its answer. A search may be too early for the record of a task that
has just died. So a task also reads what came between its search and its own record.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.client.delivery.journal_topic import JournalTopic
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At
from rmq_store.remoting.cluster.offsets import search_offset
from rmq_store.remoting.cluster.pulling import READ_ERRORS
from rmq_store.remoting.cluster.topics import create_topic

_log = logging.getLogger(__name__)

RECORD_TOPIC: Final = "PYRMQ_SINK_RECORDS"

_COPIES: Final = 2
_WINDOW: Final = 1024
_CLOCK_SKEW_MS: Final = 10 * 60_000


class RecordTopic:
    """The records of all writes to a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        reading: QueueReading,
        *,
        group: str,
        pull_group: str = "",
        topic: str = RECORD_TOPIC,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._topic = topic
        self._journal = JournalTopic(
            cluster, topic, "the record of a batch", reading, group=group, pull_group=pull_group, sleep=sleep
        )
        # The end of the read part of each queue.
        self._read_ends: dict[MessageQueue, int] = {}

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none.

        Raises:
            SendInDoubtError: so many brokers cannot be read that a record may be missed.
        """
        queues = self._queues(part)
        ends = self._ends(queues)
        records: list[Record] = []
        not_before_ms: int | None = None
        unread = len(queues) - len(ends)
        for queue, end in ends.items():
            try:
                found, earlier_ms = self._search(queue, end, part, not_before_ms)
            except SendInDoubtError:
                unread += 1
                if unread >= _copies_needed(len(queues)):
                    raise
                continue
            records += found
            if earlier_ms is not None:
                not_before_ms = earlier_ms - _CLOCK_SKEW_MS
        return earliest(records, part)

    def add(self, record: Record) -> Offsets:
        """Make a record durable, as far as the brokers' flush and replication settings do that. Returns the earliest
        offsets of other tasks for this part that `find` was too early for; empty if there are none.

        Raises:
            MQBrokerError: too many brokers refuse it. MQClientError: too few take it within the patience of the
                reading.
            SendInDoubtError: a broker that has taken it cannot be read. RemotingCommandError: as `JournalTopic.append`.
        """
        queues = self._queues(record.part)
        # Those that have just answered first.
        queues = sorted(queues, key=lambda one: bool(self._read_ends) and one not in self._read_ends)
        stored = self._journal.append(
            queues, _owner(record.part), record.part.key.replace(" ", "_"), record.to_json(),
            wanted=_COPIES, needed=_copies_needed(len(queues)),
        )  # fmt: skip
        try:
            return self._missed(record, stored)
        except READ_ERRORS as error:
            raise _in_doubt(error) from error

    def _missed(self, own: Record, stored: Offsets) -> Offsets:
        """The records of others for this part, before the own record and after the part that was read."""
        found: list[Record] = []
        for queue, offset in stored.items():
            begin = self._read_ends.get(queue)
            if begin is None:
                continue
            if begin < offset:
                self._journal.await_shown(queue, offset)
                records = [record for record, _ in self._records(queue, begin, offset, own.part)]
                found += [record for record in records if record.attempt != own.attempt]
            self._read_ends[queue] = offset + 1
        return earliest(found, own.part)

    def _queues(self, part: WritePart) -> Sequence[MessageQueue]:
        """All queues of the topic, those that this part of a write prefers first."""
        route = self._cluster.route(self._topic)
        if route is None:
            self._reading.await_brokers()
            route = self._cluster.refresh_route(self._topic)
        if route is None:
            route = create_topic(self._cluster, self._topic, 1)
            _log.warning("made the topic %r at all masters: sinks keep there where queues ended", self._topic)

        def rank(queue: MessageQueue) -> bytes:
            return hashlib.blake2b(f"{part.write}/{part.partition}/{queue.broker_name}".encode()).digest()

        return sorted(set(route.publish_queues()) | set(route.read_queues()), key=rank)

    def _ends(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of so many queues that no record can be missed, in their order."""
        until_ms = self._cluster.timer() + self._reading.patience_ms
        known: dict[MessageQueue, int] = {}
        while True:
            ends, missing = self._reading.ends_now([queue for queue in queues if queue not in known])
            known |= ends
            if len(queues) - len(known) < _copies_needed(len(queues)):
                return {queue: known[queue] for queue in queues if queue in known}
            try:
                self._reading.await_again(missing, until_ms)
            except SendInDoubtError as error:
                raise _in_doubt(error) from error

    def _search(
        self, queue: MessageQueue, whole_end: int, part: WritePart, not_before_ms: int | None
    ) -> tuple[list[Record], int | None]:
        """The records of a part of a write in one queue, and when an earlier batch of it was recorded."""
        end = whole_end
        try:
            begin = self._begin(queue, end, not_before_ms)
            found: list[Record] = []
            window = _WINDOW
            earlier_ms = None
            while begin < end:
                start = max(begin, end - window)
                for record, stored_ms in self._records(queue, start, end, part):
                    if (record.part.write, record.part.partition) != (part.write, part.partition):
                        continue
                    if record.part.batch < part.batch:
                        earlier_ms = stored_ms
                    elif record.part == part:
                        found.append(record)
                if earlier_ms is not None:
                    break
                end, window = start, 4 * window
            self._read_ends[queue] = whole_end
            return found, earlier_ms
        except READ_ERRORS as error:
            raise _in_doubt(error) from error

    def _begin(self, queue: MessageQueue, end: int, not_before_ms: int | None) -> int:
        """The offset where a search may stop, as only the master tells it: a slave that came late begins later."""
        begin = self._reading.begins([queue])[queue]
        if not_before_ms is None or begin >= end:
            return begin
        try:
            return max(begin, search_offset(self._cluster, queue, not_before_ms, At.MASTERS))
        except (RemotingError, MQBrokerError) as error:
            if not is_away(error):
                raise
            return begin

    def _records(
        self, queue: MessageQueue, start: int, end: int, part: WritePart
    ) -> Iterator[tuple[Record, int]]:
        """The records with the tag of a part of a write, and when they were stored: its own, and some others."""
        for text, stored_ms in self._journal.texts(queue, start, end, _owner(part)):
            record = Record.from_json(text)
            if record is not None:
                yield record, stored_ms


def _owner(part: WritePart) -> str:
    """The owner of a task's records, whatever the batch: they are looked for together."""
    return f"{part.write}/{part.partition}"


def _copies_needed(master_count: int) -> int:
    """How many copies a record must have, and at least how many queues a search must not leave out."""
    return 1 if master_count <= _COPIES else _COPIES


def _in_doubt(error: Exception) -> SendInDoubtError:
    return SendInDoubtError(
        f"whether rows of the batch are stored is unknown, because its records cannot be read: {error}. With option "
        "markerPath the records are in a directory"
    )
