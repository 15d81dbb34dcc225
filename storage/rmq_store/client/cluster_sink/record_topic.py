"""Records in a topic of the cluster (`records`). Control plane.

A journal (`delivery.journal_topic`), whose owners are the tasks of a write, whatever the batch. A record goes to two
brokers, the first ones of an order that depends on the write and the partition. A search begins at the end of the queue
and stops at a record of an earlier batch of the same task. A task without one looks through all records that retention
has left: a batch may be repeated after any time, so none is too old. A pull looks at 32,768 records there, so that a
million of them take some 40 pulls.

No record may be missed. So a search asks all brokers that may hold one: those of the list (`holders`), which it finds
on its way, and those of the route. It may leave out fewer of them than each record has copies:

    brokers    copies that a record must have    brokers that a search may leave out
    1, 2       1                                 none
    3 or more  2                                 1; none while a record may be older than the third broker

A broker that does not answer is waited for only if the search, or the record, needs it; both for the same time, which
is the patience of the reading. A broker that is busy behind its first answer is asked again like one that is away.

A broker shows a message in its queue a moment after its answer. A search may be too early for the record of a task that
has just died. So a task also reads what came between its search and its own record.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rmq_store.client.cluster_sink.holders import COPIES, Holders, copies_needed
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest, lower
from rmq_store.client.delivery.journal_topic import JournalTopic
from rmq_store.client.delivery.queue_reading import QueueReading, is_waited_for
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At
from rmq_store.remoting.cluster.offsets import search_offset
from rmq_store.remoting.cluster.pulling import READ_ERRORS
from rmq_store.remoting.cluster.topics import create_topic

_log = logging.getLogger(__name__)

RECORD_TOPIC: Final = "PYRMQ_SINK_RECORDS"

_WINDOW: Final = 1024
_CLOCK_SKEW_MS: Final = 10 * 60_000
# So long a search stays with a broker that stops answering, before it looks at others and comes back; and so long a
# longer list is tried to be stored.
_TURN_MS: Final = 5_000
_PAUSE_S: Final = 0.2
_LISTS: Final = "the brokers that may hold records"
"""The owner of the lists: no write has this name, since those have a "/"."""


class _Earlier(NamedTuple):
    """A record of an earlier batch of the same task: when it was stored, and the list that its task knew."""

    stored_ms: int
    holders: Holders | None


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
        self._sleep = sleep
        self._turn_ms = min(_TURN_MS, reading.patience_ms)

        def journal(what: str) -> JournalTopic:
            return JournalTopic(
                cluster, topic, what, reading,
                group=group, pull_group=pull_group, sleep=sleep,
                read_patience_ms=self._turn_ms,
            )  # fmt: skip

        self._journal = journal("the record of a batch")
        self._lists = journal("the list of brokers that may hold records")
        # The end of the read part of each queue.
        self._read_ends: dict[MessageQueue, int] = {}
        # The newest list that was seen, and whether it was looked for.
        self._holders: Holders | None = None
        self._has_searched = False

    @classmethod
    def of_command(cls, cluster: Cluster, pull_group: str = "") -> RecordTopic:
        """For a command of an administrator, which waits for brokers a few seconds only."""
        return cls(cluster, QueueReading(cluster, _TURN_MS, pull_group), group="pyspark_rmq", pull_group=pull_group)

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none.

        Raises:
            SendInDoubtError: so many brokers cannot be read within the patience that a record may be missed.
        """
        until_ms = self._cluster.timer() + self._reading.patience_ms
        records: list[Record] = []
        earlier: list[_Earlier] = []
        seen: set[str] = set()
        while True:
            queues = self._queues(part)
            errors = self._look(queues, part, seen, records, earlier)
            known = self._queues(part)
            if len(known.keys() - seen) <= self._leaves_out(known, earlier):
                self._has_searched = True
                return earliest(records, part)
            if known.keys() <= queues.keys():  # else the list was longer than the route
                self._await_again(errors, until_ms)

    def _look(
        self,
        queues: Mapping[str, Sequence[MessageQueue]],
        part: WritePart | None,
        seen: set[str],
        records: list[Record],
        earlier: list[_Earlier],
    ) -> dict[str, Exception]:
        """Search the queues of the brokers that were not seen yet. Returns why some cannot be searched now."""
        unseen = {name: of_broker for name, of_broker in queues.items() if name not in seen}
        ends, missing = self._reading.ends_now([queue for of_broker in unseen.values() for queue in of_broker])
        errors: dict[str, Exception] = {}
        for queue, error in missing.items():
            errors.setdefault(queue.broker_name, error)
        for name in [name for name in unseen if name not in errors]:
            not_before_ms = max((one.stored_ms - _CLOCK_SKEW_MS for one in earlier), default=None)
            try:
                found = [self._search(queue, ends[queue], part, not_before_ms) for queue in unseen[name]]
            except (SendInDoubtError, *READ_ERRORS) as error:
                errors[name] = error
                continue
            seen.add(name)
            for of_queue, before in found:
                records += of_queue
                earlier += [] if before is None else [before]
        return errors

    def _leaves_out(self, known: Mapping[str, object], earlier: Sequence[_Earlier]) -> int:
        """How many brokers a search may leave out. A record of an earlier batch that was made under the present list
        tells that later ones have as many copies as the list's length demands; without one, older lists count as well.
        """
        holders = self._holders
        if holders is None:
            return copies_needed(len(known)) - 1
        is_younger = any(one.holders is not None and one.holders.number == holders.number for one in earlier)
        return (copies_needed(len(holders.brokers)) if is_younger else holders.copies) - 1

    def _await_again(self, errors: Mapping[str, Exception], until_ms: float) -> None:
        """Wait a moment before brokers are asked again. SendInDoubtError: it is `until_ms`, or one cannot be read."""
        final = {name: error for name, error in errors.items() if not _may_pass(error)}
        if not final and self._cluster.timer() < until_ms:
            self._sleep(_PAUSE_S)
            return
        name, error = next(iter((final or errors).items()))
        cause = error.__cause__ if isinstance(error, SendInDoubtError) and error.__cause__ is not None else error
        names = ", ".join(sorted(final or errors))
        bound = "" if final else f" Nobody answered for {self._reading.bound}."
        raise _in_doubt(
            f"{names} may hold one: {error}.{bound} Start again when the broker is back; if it never comes back, `rmq "
            f"checkpoint forget-broker CHECKPOINT {name}` takes it off the list"
        ) from cause

    def add(self, record: Record) -> Offsets:
        """Make a record durable, as far as the brokers' flush and replication settings do that. Returns the earliest
        offsets of other tasks for this part that `find` was too early for; empty if there are none.

        Raises:
            MQBrokerError: too many brokers refuse it. MQClientError: too few take it within the patience of the
                reading.
            SendInDoubtError: a broker that has taken it cannot be read. RemotingCommandError: as `JournalTopic.append`.
        """
        if self._has_searched:
            self._keep_list(record.part)
        missed: Offsets = {}
        while True:
            own = replace(record, holders=self._holders)
            stored = self._append(own)
            try:
                missed = lower(missed, self._missed(own, stored))
            except READ_ERRORS as error:
                raise _in_doubt(str(error)) from error
            if own.holders is None or self._holders is None or self._holders.number == own.holders.number:
                return missed
            # Another task has made the list longer meanwhile: a record must fit the newest one.

    def _append(self, record: Record) -> dict[MessageQueue, int]:
        queues = self._queues(record.part)
        names = queues.keys() if record.holders is None else record.holders.brokers
        firsts = [of_broker[0] for name, of_broker in queues.items() if name in names]
        # Those that have just answered first.
        firsts.sort(key=lambda one: bool(self._read_ends) and one not in self._read_ends)
        return self._journal.append(
            firsts, _owner(record.part), record.part.key.replace(" ", "_"), record.to_json(),
            wanted=COPIES, needed=copies_needed(len(firsts)),
        )  # fmt: skip

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

    # -- the list of brokers ----------------------------------------------------------------------------------------

    def holders(self, without: str = "") -> Holders | None:
        """The newest list that the brokers of the route have, `without` one that is gone, whose slave a route may still
        show; None: they have none, or nobody has the topic.

        Raises:
            SendInDoubtError: a broker of the route cannot be read within the patience.
        """
        if self._cluster.refresh_route(self._topic) is None:
            return None
        until_ms = self._cluster.timer() + self._reading.patience_ms
        seen: set[str] = set()
        while True:
            queues = {name: of_broker for name, of_broker in self._in_route().items() if name != without}
            errors = self._look(queues, None, seen, [], [])
            if queues.keys() <= seen:
                return self._holders
            self._await_again(errors, until_ms)

    def forget(self, broker: str) -> Holders:
        """Take a broker that never comes back off the list, for all sinks of the cluster. On return all other brokers
        of the list and of the route have stored the new one. Call `holders` before. Its records count as lost; a broker
        of this name that has the topic later is added again.

        Raises:
            UsageError: the list does not have it, or nobody else is there.
            MQBrokerError, MQClientError: a broker does not take the new list; the old one counts.
        """
        known = self._holders
        if known is None or broker not in known.brokers:
            raise UsageError(f"broker {broker!r} is not on the list of brokers that may hold records of sinks")
        left = {*known.brokers, *self._in_route()} - {broker}
        if not left:
            raise UsageError(
                f"broker {broker!r} is alone on the list of brokers that may hold records, and no other one has the "
                f"topic {self._topic!r}: make it at another broker, with 1 queue"
            )
        shorter = known.replaced(left, _now_ms())
        self._store_list(shorter, len(shorter.brokers))
        return shorter

    def _keep_list(self, part: WritePart) -> None:
        """Add the brokers of the route to the list, and write it again while retention may still have it.

        Raises:
            MQBrokerError, MQClientError: there is no list yet, and too few brokers take one.
        """
        now_ms, known, names = _now_ms(), self._holders, self._queues(part).keys()
        wanted = Holders.first(names, now_ms) if known is None else known.with_brokers(names, now_ms)
        if wanted == known:
            if not wanted.is_due(now_ms):
                return
            wanted = wanted.renewed(now_ms)
        try:
            self._store_list(
                wanted, wanted.brokers_that_must_have(known), None if known is None else self._turn_ms
            )
        except (MQBrokerError, MQClientError) as error:
            if known is None:
                raise
            _log.warning("records go to %s only, as before: %s", ", ".join(known.brokers), error)

    def _store_list(self, holders: Holders, needed: int, patience_ms: int | None = None) -> None:
        queues = [MessageQueue(self._topic, name, 0) for name in holders.brokers]
        self._lists.append(
            queues, _LISTS, "holders", holders.to_json(),
            wanted=len(queues), needed=needed, patience_ms=patience_ms,
        )  # fmt: skip
        self._holders = holders

    # -- queues -----------------------------------------------------------------------------------------------------

    def _in_route(self) -> dict[str, list[MessageQueue]]:
        """The queues of the topic at each broker of its route. The topic is made where nobody has it."""
        route = self._cluster.route(self._topic)
        if route is None:
            self._reading.await_brokers()
            route = self._cluster.refresh_route(self._topic)
        if route is None:
            route = create_topic(self._cluster, self._topic, 1)
            _log.warning("made the topic %r at all masters: sinks keep there where queues ended", self._topic)
        found: dict[str, list[MessageQueue]] = {}
        for queue in sorted(set(route.publish_queues()) | set(route.read_queues())):
            found.setdefault(queue.broker_name, []).append(queue)
        return found

    def _queues(self, part: WritePart) -> dict[str, list[MessageQueue]]:
        """The queues of all brokers that may hold a record, those that this part of a write prefers first."""
        found = self._in_route()
        for name in () if self._holders is None else self._holders.brokers:
            found.setdefault(name, [MessageQueue(self._topic, name, 0)])

        def rank(name: str) -> bytes:
            return hashlib.blake2b(f"{part.write}/{part.partition}/{name}".encode()).digest()

        return {name: found[name] for name in sorted(found, key=rank)}

    def _search(
        self, queue: MessageQueue, whole_end: int, part: WritePart | None, not_before_ms: int | None
    ) -> tuple[list[Record], _Earlier | None]:
        """The records of a part of a write in one queue, and the record of an earlier batch of it. Without a part only
        lists are looked for.

        Raises:
            SendInDoubtError, and the errors of `read_range`: the queue cannot be read now.
        """
        end = whole_end
        begin = self._begin(queue, end, not_before_ms)
        found: list[Record] = []
        window = _WINDOW
        earlier = None
        while begin < end and earlier is None:
            start = max(begin, end - window)
            for record, stored_ms in self._records(queue, start, end, part):
                if part is None or (record.part.write, record.part.partition) != (part.write, part.partition):
                    continue
                if record.part.batch < part.batch:
                    earlier = _Earlier(stored_ms, record.holders)
                elif record.part == part:
                    found.append(record)
            end, window = start, 4 * window
        self._read_ends[queue] = whole_end
        return found, earlier

    def _begin(self, queue: MessageQueue, end: int, not_before_ms: int | None) -> int:
        """The offset where a search may stop, as only the master tells it: a slave that came late begins later."""
        until_ms = self._cluster.timer() + self._turn_ms
        begin = self._reading.begins([queue], until_ms)[queue]
        if not_before_ms is None or begin >= end:
            return begin
        try:
            return max(begin, search_offset(self._cluster, queue, not_before_ms, At.MASTERS))
        except (RemotingError, MQBrokerError) as error:
            if not is_away(error):
                raise
            return begin

    def _records(
        self, queue: MessageQueue, start: int, end: int, part: WritePart | None
    ) -> Iterator[tuple[Record, int]]:
        """The records with the tag of a part of a write, and when they were stored: its own, and some others. Takes the
        lists that are met.
        """
        owners = [_LISTS] if part is None else [_owner(part), _LISTS]
        for text, stored_ms in self._journal.texts(queue, start, end, owners):
            holders = Holders.from_json(text)
            if holders is not None:
                self._holders = holders.merged(self._holders)
            record = Record.from_json(text)
            if record is not None:
                yield record, stored_ms


def _owner(part: WritePart) -> str:
    """The owner of a task's records, whatever the batch: they are looked for together."""
    return f"{part.write}/{part.partition}"


def _may_pass(error: Exception) -> bool:
    """Whether the queue may be read later: its broker is away or busy, or retention was faster."""
    if isinstance(error, SendInDoubtError) and isinstance(error.__cause__, Exception):
        return _may_pass(error.__cause__)
    return isinstance(error, OffsetOutOfRangeError) or is_waited_for(error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _in_doubt(reason: str) -> SendInDoubtError:
    return SendInDoubtError(
        f"whether rows of the batch are stored is unknown, because its records cannot be read: {reason}. With option "
        "markerPath the records are in a directory"
    )
