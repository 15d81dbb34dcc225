"""`store.pop`: invisible messages, the base of SimpleConsumer.

A received message is invisible to its group for a time. If the consumer acknowledges it in time, it is finished;
otherwise it is given out again. The rules are in `pop_selection` and `receive_transaction`, the states in
`pop_state`, the file in `pop_journal`.
Sources: PopConsumerService.java (5.x), PopMessageProcessor.java, AckMessageProcessor.java,
ChangeInvisibleTimeProcessor.java; ConsumerProcessor.java and PopMessageResultFilterImpl.java (proxy) for dead letters
and void handles. The differences to RocketMQ:

    a message is given out again from its own queue, at the exact millisecond, and not as a copy in a retry topic
    a dead letter is a copy of the message itself: RETRY_TOPIC and ORIGIN_MESSAGE_ID name that message
    a message that the group was given once comes again, whatever filter the next consumer uses

The group's committed offset of a queue follows the smallest unfinished message, every 5 s and when the store is closed,
so that a consumer of another kind, or a broker, loses nothing. If another process moves that offset, the queue begins
anew at the new offset. Losing pyrmq/pop/ has the same effect: messages since the committed offset come again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

import pyarrow as pa

from rmq_store import kinds
from rmq_store.arguments import checked_methods
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.metadata.group_topics import NO_PERMISSION, GroupTopics
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.pop.pop_journal import PopJournal, read_state
from rmq_store.broker.pop.pop_messages import ConsumeInitMode, PropertyFilter, StoredRow, TopicReader
from rmq_store.broker.pop.pop_selection import PopAvailability, ReceiveRequest
from rmq_store.broker.pop.pop_state import Acknowledged, Change, InFlight, Key, PopState
from rmq_store.broker.pop.receipt_handle import ReceiptHandle, Receipts
from rmq_store.broker.pop.receive_transaction import ReceiveTransaction, Services
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.retry.retry import Retry
from rmq_store.broker.rules import purposes
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import InvalidReceiptHandleError, ResponseError, UsageError
from rmq_store.format.text.names import validate_group, validate_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog

MESSAGES_MAX: Final = 32
"""The most messages that one receive may request (PopMessageProcessor.java)."""

BYTES_MAX: Final = 1 << 30
"""The most bytes of bodies that one receive may request."""

COMMIT_INTERVAL_MS: Final = 5000
"""Interval between two commits of offsets (BrokerConfig.java flushConsumerOffsetInterval)."""

# Java's long; far beyond any sense, so that visible times fit into 63 bits.
_INVISIBLE_MAX_MS = 1 << 50


@dataclass(frozen=True, slots=True)
class Popped:
    """A message that was given out: `row` is a batch of one row of MESSAGE_SCHEMA. `delivery_attempt` counts from 1."""

    row: pa.RecordBatch
    receipt_handle: str
    delivery_attempt: int


@dataclass(slots=True)
class _Pops:
    """The state of one group on one topic in this process."""

    journal: PopJournal
    reader: TopicReader
    checked: set[int] = field(default_factory=set)
    damaged: set[Key] = field(default_factory=set)
    receives: int = 0
    committed_ms: int | None = None


@checked_methods()
class Pop:
    """The pops of one store open for writing. Safe for threads and processes."""

    def __init__(
        self,
        log: CommitLog,
        broker_name: str,
        topics: TopicTable,
        groups: GroupTopics,
        offsets: OffsetTable,
        queues: Queues,
        writer: Writer,
        retry: Retry,
    ) -> None:
        self._directory = log.own / "pop"
        self._broker_name = broker_name
        self._topics = topics
        self._groups = groups
        self._queues = queues
        self._writer = writer
        self._retry = retry
        self._clock = log.clock
        self._sync_flush = log.sync_flush
        self._services = Services(offsets, writer.flush, self._send_dead, self._last_unit)
        self._pops: dict[tuple[str, str], _Pops] = {}

    def receive(
        self,
        group: str,
        topic: str,
        max_messages: int,
        invisible_duration_ms: int,
        *,
        tags: str | None = None,
        accepts: PropertyFilter | None = None,
        init_mode: ConsumeInitMode = ConsumeInitMode.MAX,
        max_delivery_attempts: int | None = None,
        bytes_max: int = BYTES_MAX,
        queue_id: int | None = None,
        in_order: bool = False,
        attempt_id: str | None = None,
    ) -> list[Popped]:
        """Give out up to `max_messages` (1 to 32) and hide them for `invisible_duration_ms` (1 ms and more). Returns at
        once, [] if there are none. The bodies have at most `bytes_max` together, unless the first one alone has more.

        First come messages that were not acknowledged in time, then new messages that match `tags` ("TagA || TagB") and
        `accepts` (called with the properties); other new messages are skipped. `init_mode`: the start of a group that
        has no offset. A message is given out `max_delivery_attempts` times at most, None: the group's retryMaxTimes + 1
        (below 0: without limit). Then it becomes a dead letter with reconsumeTimes one above that, as in RocketMQ.

        `queue_id`: only messages of this queue. `in_order`: a queue of which the group has a message in flight is
        locked, and gives out none; after that its messages come in the order of their offsets. `attempt_id` counts in
        order only: a receive that repeats the id of an earlier one gets the messages in flight of that one again, first
        of all and with new handles, because its answer was lost. They do not count as delivered once more.

        On return the state survives this process, and under SYNC_FLUSH the machine. After a crash messages may be given
        out earlier or more often, but never less often.

        Raises:
            UsageError: a number out of bounds, a bad name or expression. UnknownTopicError: no such topic.
            ResponseError: 26, no such group and none is made; 16, the group or the topic may not be read.
            StoreLockedError: another process has been busy with the group for seconds.
            CorruptionError: a queue, or the state of the group, is damaged. A damaged message is not given out while it
                cannot be read; one error is logged for it.
            StoreFullError, StoreFailedError: it is unknown whether the messages are hidden; they are given out again.
        """
        _check_number("max_messages", max_messages, 1, MESSAGES_MAX)
        _check_number("invisible_duration_ms", invisible_duration_ms, 1, _INVISIBLE_MAX_MS)
        _check_number("bytes_max", bytes_max, 1, BYTES_MAX)
        if max_delivery_attempts is not None:
            _check_number("max_delivery_attempts", max_delivery_attempts, 1, (1 << 31) - 1)
        TagFilter.parse(tags)
        settings = self._groups.group(group)
        config = self._topics.get(topic)
        queue_ids = _queue_ids(topic, config.read_queue_nums, queue_id)
        kinds.refuse_to_read_topic(topic, config.kind)
        if not settings.consume_enable or not config.readable:
            what = f"group {group!r}" if config.readable else f"topic {topic!r}"
            raise ResponseError(NO_PERMISSION, f"{what} may not be read")
        attempts_max = max_delivery_attempts
        if attempts_max is None and settings.retry_max_times >= 0:
            attempts_max = settings.retry_max_times + 1
        pops = self._of(group, topic)
        attempt_key = _attempt_key(attempt_id) if in_order and attempt_id else 0
        request = ReceiveRequest(
            max_messages, invisible_duration_ms, attempts_max, tags, accepts, bytes_max, in_order, attempt_key
        )

        def take() -> list[tuple[StoredRow, InFlight]]:
            with pops.journal.exclusive():
                transaction = self._transaction(pops, group, topic)
                ranges = pops.reader.ranges(config.read_queue_nums)
                transaction.ensure_positions(ranges, init_mode, pops.checked)
                transaction.store_dead_letters(attempts_max)
                first = pops.receives % max(len(queue_ids), 1)
                pops.receives += 1
                taken = transaction.take(ranges, [*queue_ids[first:], *queue_ids[:first]], request)
                self._commit(pops, transaction)
                return taken

        try:
            taken = take()
        finally:
            pops.journal.release_left()  # of a block that was interrupted on its way in or out
        return [
            Popped(found.row, str(ReceiptHandle.of(message, self._broker_name)), message.attempt)
            for found, message in taken
        ]

    def ack(self, group: str, topic: str, receipt_handle: str) -> None:
        """Acknowledge one message: it is not given out again. Durable as `receive`.

        Raises:
            InvalidReceiptHandleError: the message was acknowledged, hidden anew or given out again since, or its time
                is over.
        """
        self._change(group, topic, receipt_handle, lambda message, now_ms: Acknowledged(*message.key))

    def ack_all(self, group: str, topic: str, receipt_handles: Sequence[str]) -> list[InvalidReceiptHandleError]:
        """Acknowledge several messages by one write, and return an error for each handle that is void, as of `ack`:
        void ones keep no others. Durable as `receive`.
        """
        pops, errors = self._of(group, topic), list[InvalidReceiptHandleError]()
        receipts, acknowledged = Receipts(self._broker_name, group, topic), dict[Key, Acknowledged]()

        def find(state: PopState | None) -> None:
            now_ms = self._clock()
            for text in receipt_handles:
                try:
                    message = receipts.in_flight(state, text, now_ms)
                    acknowledged[message.key] = Acknowledged(*message.key)
                except InvalidReceiptHandleError as error:
                    errors.append(error)

        def change() -> None:
            with pops.journal.exclusive() as state:
                find(state)
                pops.journal.append(list(acknowledged.values()))
                self._commit(pops, self._transaction(pops, group, topic))

        if not pops.journal.exists():
            find(None)
            return errors
        try:
            change()
        finally:
            pops.journal.release_left()  # of a block that was interrupted on its way in or out
        return errors

    def change_invisible_duration(self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int) -> str:
        """Hide a message for `invisible_duration_ms` from now on (0: it comes again at once), and return its new
        handle; the old one is void. Durable as `receive`, raises as `ack`.
        """
        _check_number("invisible_duration_ms", invisible_duration_ms, 0, _INVISIBLE_MAX_MS)

        def hide(message: InFlight, now_ms: int) -> InFlight:
            return message.hidden(now_ms, invisible_duration_ms)

        changed = self._change(group, topic, receipt_handle, hide)
        assert isinstance(changed, InFlight)
        return str(ReceiptHandle.of(changed, self._broker_name))

    def rest(
        self,
        group: str,
        topic: str,
        *,
        queue_id: int | None = None,
        in_order: bool = False,
        attempt_id: str | None = None,
    ) -> int:
        """How many messages the group could receive now, as far as this process knows: 0 or more. New messages count
        although a filter may skip them, and one counts for all that are visible again. A queue whose committed offset
        another program moved counts from there. It takes no lock, and writes nothing. `queue_id`, `in_order` and
        `attempt_id` as for `receive`. Raises UsageError, UnknownTopicError and CorruptionError as `receive`.
        """
        pops = self._of(group, topic)
        ranges = self._queues.ranges(topic, _queue_ids(topic, self._topics.get(topic).read_queue_nums, queue_id))
        available, state, now_ms = self._availability(group, topic), pops.journal.state, self._clock()
        if queue_id is None and not in_order:
            return available.rest(state, ranges, now_ms)
        attempt_key = _attempt_key(attempt_id) if in_order and attempt_id else 0
        damaged = frozenset(pops.damaged)
        return available.rest_of_queues(state, ranges, now_ms, damaged, in_order=in_order, attempt_key=attempt_key)

    def peek(
        self, group: str, topic: str, max_messages: int, *, queue_id: int | None = None, bytes_max: int = BYTES_MAX
    ) -> list[Popped]:
        """Up to `max_messages` (1 to 32) that `receive` could give out next, without giving them out: nothing is
        hidden, and the handles are empty. `bytes_max` as for `receive`. Raises as `rest`.
        """
        _check_number("max_messages", max_messages, 1, MESSAGES_MAX)
        _check_number("bytes_max", bytes_max, 1, BYTES_MAX)
        pops = self._of(group, topic)
        config = self._topics.get(topic)
        kinds.refuse_to_read_topic(topic, config.kind)
        ranges = self._queues.ranges(topic, _queue_ids(topic, config.read_queue_nums, queue_id))
        state = read_state(pops.journal.path.parent)
        request = ReceiveRequest(max_messages, 0, bytes_max=bytes_max)
        found = self._availability(group, topic).peek(state, pops.reader, ranges, request, self._clock())
        return [Popped(row.row, "", attempt) for row, attempt in found]

    def close(self) -> None:
        """Commit the offsets of the groups that this process has served. StoreLockedError and others as `receive`."""
        for key in list(self._pops):
            self._leave(key)

    def _leave(self, key: tuple[str, str]) -> None:
        known = self._pops.get(key)
        if known is None:
            return  # another thread was faster

        def commit() -> None:
            with known.journal.exclusive():
                self._transaction(known, *key).commit()

        try:
            commit()
        finally:
            known.journal.close()
        self._pops.pop(key, None)  # at last: after an interrupt, close() is called again

    def _change(self, group: str, topic: str, receipt_handle: str, change: Callable[[InFlight, int], Change]) -> Change:
        pops, receipts = self._of(group, topic), Receipts(self._broker_name, group, topic)

        def change_alone() -> Change:
            with pops.journal.exclusive() as state:
                now_ms = self._clock()
                changed = change(receipts.in_flight(state, receipt_handle, now_ms), now_ms)
                pops.journal.append([changed])
                self._commit(pops, self._transaction(pops, group, topic))
                return changed

        if not pops.journal.exists():
            receipts.in_flight(None, receipt_handle, self._clock())
        try:
            return change_alone()
        finally:
            pops.journal.release_left()  # of a block that was interrupted on its way in or out

    def _availability(self, group: str, topic: str) -> PopAvailability:
        return PopAvailability(self._services.offsets, group, topic)

    def _send_dead(self, group: str, topic: str, unit: int, dead: Sequence[tuple[StoredRow, int]]) -> None:
        found = pa.Table.from_batches([one.row for one, _ in dead]).select(["commitLogOffset", "msgId"])
        levels = pa.array([-1] * len(dead), pa.int32())
        (rows,) = found.append_column("delayLevel", levels).combine_chunks().to_batches()
        attempts = [attempt for _, attempt in dead]
        self._retry.send_back_all(group, rows, key=_unit_key(group, topic), value=unit, reconsume_times=attempts)

    def _last_unit(self, group: str, topic: str) -> int:
        return self._writer.last_unit(purposes.SEND_BACK, _unit_key(group, topic)) or 0

    def _commit(self, pops: _Pops, transaction: ReceiveTransaction) -> None:
        now_ms = self._clock()
        if pops.committed_ms is None:
            pops.committed_ms = now_ms
        elif now_ms - pops.committed_ms >= COMMIT_INTERVAL_MS:
            transaction.commit()
            pops.committed_ms = now_ms

    def _transaction(self, pops: _Pops, group: str, topic: str) -> ReceiveTransaction:
        return ReceiveTransaction(self._services, pops.journal, pops.reader, group, topic, self._clock, pops.damaged)

    def _of(self, group: str, topic: str) -> _Pops:
        validate_group(group)
        validate_topic(topic)
        known = self._pops.get((group, topic))
        if known is None:
            journal = PopJournal(self._directory / group / topic, sync=self._sync_flush)
            # Another thread, or a signal handler, may have been faster.
            known = self._pops.setdefault((group, topic), _Pops(journal, TopicReader(self._queues, topic)))
        return known


def _queue_ids(topic: str, queue_count: int, queue_id: int | None) -> Sequence[int]:
    """All queues of a topic, or one. UsageError: it has no such queue."""
    if queue_id is None:
        return range(queue_count)
    _check_number("queue_id", queue_id, 0, queue_count - 1)
    return (queue_id,)


def _attempt_key(attempt_id: str) -> int:
    """A number that stands for an attempt id in the journal; never 0."""
    digest = hashlib.blake2b(attempt_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


def _unit_key(group: str, topic: str) -> str:
    return f"pop {group} {topic}"


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name}={value!r} is not an integer in {low}..{high}")
