"""The half messages of a store that nobody has ended: what the half topic and the op topic say together (data plane).

Both topics are read in batches, in the order of the log, so that memory holds pending half messages only:

    half topic   ... done ...|  7  8  9  10  |          the committed offset of CID_RMQ_SYS_TRANS: all below are done
    op topic     ... done ...|  "8"  "7,10"  |          pending: 9

A later call reads only what is new. A half message that is damaged, or does not name its queue or group, is logged once
and holds up no other. So is a damaged op record: its half message counts as pending, and `lost_op_offset` tells that it
may have ended all the same. Source: TransactionalMessageServiceImpl#check, #fillOpRemoveMap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.rules import transaction as rules
from rmq_store.errors import CorruptionError, CorruptRecordError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties.property_string import PRODUCER_GROUP
from rmq_store.format.text.names import HALF_TOPIC, OP_HALF_TOPIC

_log: Final = logging.getLogger(__name__)

_QUEUE: Final = 0
_ROWS: Final = 4096
_COLUMNS: Final = ("queueOffset", "commitLogOffset", "msgId", "bornTimestamp", "storeTimestamp", "properties")
_ENDED_MAX: Final = 4 * _ROWS

_Sender: TypeAlias = tuple[str, str, int]
"""Producer group, UNIQ_KEY and bornTimestamp (ms): all copies have them."""


class PendingHalf(NamedTuple):
    """A half message without an end, and the queue that it is for. `first_offset`: the queue offset of its first copy.
    `prepared_offset`: that of the copy whose op record ends this one, too; -1: there is none. `is_ours` False: a broker
    has left it.
    """

    queue_offset: int
    commit_log_offset: int
    first_offset: int
    topic: str
    queue_id: int
    group: str
    transaction_id: str
    born_ms: int
    stored_ms: int
    check_times: int
    immunity_ms: int
    is_ours: bool
    prepared_offset: int = -1

    @property
    def names(self) -> tuple[int | _Sender, ...]:
        """Find its copies by these: first copy, prepared copy, and values of the sender."""
        prepared = self.first_offset if self.prepared_offset < 0 else self.prepared_offset
        return self.first_offset, prepared, (self.group, self.transaction_id, self.born_ms)

    def has_sender_of(self, other: PendingHalf) -> bool:
        """True if both may be copies of one message."""
        return (self.group, self.born_ms) == (other.group, other.born_ms)

    @property
    def due_ms(self) -> int:
        """When a producer is asked next."""
        return self.stored_ms + (rules.CHECK_INTERVAL_MS if self.check_times else self.immunity_ms)

    def is_due(self, now_ms: int) -> bool:
        """True if a producer is to be asked now. A half message that seems to come from the future by more than the
        interval is due, too: the clock was set back, and it would wait until the clock is there again.
        """
        return now_ms >= self.due_ms or self.stored_ms - now_ms > rules.CHECK_INTERVAL_MS


class HalfQueue:
    """Pending half messages of one store by their queue offsets, in that order. Not safe for threads."""

    def __init__(self, queues: Queues, offsets: OffsetTable) -> None:
        self._queues = queues
        self._offsets = offsets
        self.pending: dict[int, PendingHalf] = {}
        self._newest: dict[int | _Sender, int] = {}  # `names` -> newest copy, of those pending
        self._ended: dict[int, None] = {}  # by the last _ENDED_MAX ops
        self._early: set[int] = set()  # ended, and not read yet
        self.is_progress_wrong = False  # committed offsets beyond the log, as after a cut: they hide half messages
        self.lost_op_offset = -1  # log offset of the last op record that cannot be read
        self._halves_end = self._ops_end = -1  # -1: nothing is read yet
        self._ops_done = 0  # of the last `progress`, which only grows

    @property
    def is_read(self) -> bool:
        """True after the first `read_on`."""
        return self._halves_end >= 0

    def read_on(self) -> None:
        """Read what the log holds by now. CorruptionError: a queue file is damaged."""
        done = {} if self.is_read else self._offsets.committed(rules.TRANSACTION_GROUP)
        # The ops first: each names half messages that were stored before it.
        ops, halves = (self._queues.range(topic, _QUEUE) for topic in (OP_HALF_TOPIC, HALF_TOPIC))
        if not self.is_read:
            begin = done.get((HALF_TOPIC, _QUEUE), 0), done.get((OP_HALF_TOPIC, _QUEUE), 0)
            self.is_progress_wrong = begin[0] > halves.max_offset or begin[1] > ops.max_offset
            if self.is_progress_wrong:
                _log.error("offsets %s of %s lie beyond the log: all is read", begin, rules.TRANSACTION_GROUP)
            self._halves_end, self._ops_end = (0, 0) if self.is_progress_wrong else begin
        self._halves_end, self._ops_end = max(self._halves_end, halves.min_offset), max(self._ops_end, ops.min_offset)
        while self._halves_end < halves.max_offset:
            end = min(self._halves_end + _ROWS, halves.max_offset)
            for half in self._halves(self._halves_end, end):
                self._add(half)
            self._halves_end = end
            self._early = {offset for offset in self._early if offset >= end}
            self._read_ops(ops.max_offset, self._queues.commit_log_offset_before(HALF_TOPIC, _QUEUE, end))
        self._read_ops(ops.max_offset, None)
        for gone in [offset for offset in self.pending if offset < halves.min_offset]:
            _log.error("half message %d was deleted with its segment before its transaction ended", gone)
            self._drop(self.pending[gone])

    def newest_copy(self, half: PendingHalf | int) -> PendingHalf | None:
        """The copy that counts of a first copy's queue offset, or of a copy; None: the transaction has ended."""
        first = half if isinstance(half, int) else half.first_offset
        return self.pending.get(self._newest.get(first, -1))

    def copy_of(self, named: StoredMessage) -> PendingHalf | None:
        """The pending copy of a half message that does not name its first one. A broker stores such a copy with each
        question, and the older one counts as done.
        """
        sender = named.properties.get(PRODUCER_GROUP, ""), named.msg_id, named.born_timestamp_ms
        found = self.pending.get(self._newest.get(sender, -1))
        is_copy = found is not None and (found.check_times > 0 or found.prepared_offset >= 0)
        is_older = found is not None and named.queue_offset < found.queue_offset
        return found if is_copy and is_older and named.queue_offset not in self._ended else None

    def progress(self) -> dict[tuple[str, int], int]:
        """The offsets that tell a broker, and the next opener, where to begin: all half messages below are done, and
        no op record below names another one.
        """
        if not self.pending:
            return {(HALF_TOPIC, _QUEUE): self._halves_end, (OP_HALF_TOPIC, _QUEUE): self._ops_end}
        oldest = self.pending[min(self.pending)]
        low, high = max(self._queues.range(OP_HALF_TOPIC, _QUEUE).min_offset, self._ops_done), self._ops_end
        while low < high:
            middle = (low + high) // 2
            place = self._queues.commit_log_offset_before(OP_HALF_TOPIC, _QUEUE, middle + 1)
            low, high = (middle + 1, high) if place < oldest.commit_log_offset else (low, middle)
        self._ops_done = low
        return {(HALF_TOPIC, _QUEUE): oldest.queue_offset, (OP_HALF_TOPIC, _QUEUE): low}

    def _add(self, half: PendingHalf) -> None:
        """Take a half message in the place of its older copies: a broker that was killed leaves several."""
        half = self._checked(half)
        older = self.newest_copy(half)
        if older is not None:
            self._drop(older)
        # Ops of this engine name a copy that a newer one replaces; those of brokers name an end.
        is_ended = half.prepared_offset == half.first_offset and half.prepared_offset in self._ended
        if not is_ended and half.queue_offset not in self._early:
            self.pending[half.queue_offset] = half
            self._newest |= dict.fromkeys(half.names, half.queue_offset)

    def _checked(self, half: PendingHalf) -> PendingHalf:
        """The half message with its true first copy. One that a broker stored with a question does not name it; and
        a name counts only if that message has the same sender.
        """
        *_, sender = half.names
        if half.first_offset != half.queue_offset:
            older = self.pending.get(half.first_offset) or self.newest_copy(half)
        else:
            older = self.pending.get(self._newest.get(sender, -1)) if half.check_times else None
        if older is None:
            return half
        if not half.has_sender_of(older):
            return half._replace(first_offset=half.queue_offset, prepared_offset=-1)
        prepared = self.pending.get(half.prepared_offset)
        is_same = prepared is None or half.has_sender_of(prepared)
        return half._replace(first_offset=older.first_offset, prepared_offset=half.prepared_offset if is_same else -1)

    def _remove(self, queue_offset: int) -> None:
        """Apply an op record."""
        self._ended[queue_offset] = None
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        half = self.pending.get(queue_offset)
        if half is None:
            if queue_offset >= self._halves_end:
                self._early.add(queue_offset)
            half = self.pending.get(self._newest.get(queue_offset, -1))
            if half is None or half.prepared_offset != queue_offset:
                return
        self._drop(half)

    def _drop(self, half: PendingHalf) -> None:
        del self.pending[half.queue_offset]
        for name in half.names:
            if self._newest.get(name) == half.queue_offset:
                del self._newest[name]

    def _read_ops(self, end: int, until_log_offset: int | None) -> None:
        """Read op records below `end`; no further batch behind one that reaches `until_log_offset`."""
        while self._ops_end < end:
            stop = min(self._ops_end + _ROWS, end)
            for offset in self._ops(self._ops_end, stop):
                self._remove(offset)
            self._ops_end = stop
            if until_log_offset is not None:
                if self._queues.commit_log_offset_before(OP_HALF_TOPIC, _QUEUE, stop) > until_log_offset:
                    return

    def _ops(self, start: int, end: int) -> Iterator[int]:
        """The half messages that op records [start, end) name."""
        columns = ("tags", "body")
        try:
            batches = list(self._queues.read(ReadRequest(OP_HALF_TOPIC, _QUEUE, start, end, columns)))
        except CorruptRecordError as error:
            if end - start == 1:
                self.lost_op_offset = self._queues.commit_log_offset_before(OP_HALF_TOPIC, _QUEUE, end)
                _log.error("op record %d cannot be read; its producer is asked again: %s", start, error)
                return
            middle = (start + end) // 2
            yield from self._ops(start, middle)
            yield from self._ops(middle, end)
            return
        for batch in batches:
            for tag, body in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                if tag == rules.REMOVED_TAG:
                    yield from rules.removed_offsets(body)

    def _halves(self, start: int, end: int) -> Iterator[PendingHalf]:
        try:
            batches = list(self._queues.read(ReadRequest(HALF_TOPIC, _QUEUE, start, end, _COLUMNS)))
        except CorruptionError as error:
            if end - start == 1:
                _log.error("half message %d cannot be read, its transaction never ends: %s", start, error)
                return
            middle = (start + end) // 2
            yield from self._halves(start, middle)
            yield from self._halves(middle, end)
            return
        for batch in batches:
            yield from _rows(batch)


def _rows(batch: pa.RecordBatch) -> Iterator[PendingHalf]:
    times = (batch.column(name).cast("int64").to_pylist() for name in ("bornTimestamp", "storeTimestamp"))
    others = (batch.column(name).to_pylist() for name in ("queueOffset", "commitLogOffset", "msgId", "properties"))
    for offset, log_offset, unique_key, pairs, born_us, stored_us in zip(*others, *times, strict=True):
        properties = dict(pairs)
        target, group = rules.real_queue(properties), properties.get(PRODUCER_GROUP)
        if target is None or not group:
            _log.error("half message %d names no queue or no producer group: its transaction never ends", offset)
            continue
        prepared = rules.number(properties.get(rules.PREPARED_QUEUE_OFFSET))
        firsts = rules.number(properties.get(rules.HALF_OF)), prepared, offset
        yield PendingHalf(
            offset, log_offset, next(first for first in firsts if first >= 0), *target,
            group, unique_key, born_us // 1000, stored_us // 1000, rules.check_times(properties),
            rules.immunity_ms(properties), rules.HALF_OF in properties, prepared,
        )  # fmt: skip
