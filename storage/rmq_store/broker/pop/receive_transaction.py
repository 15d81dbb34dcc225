"""One exclusive transaction on a group's pops of a topic: messages are given out or become dead letters, offsets are
committed.

Every rule of the state machine that needs the log or the committed offsets is here; `pop` decides nothing. Order of
writing: a dead letter is on disk before its message leaves the state. An offset is committed only when the log is on
disk up to it. A damaged message is put off again and again, and blocks no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.pop.pop_journal import PopJournal
from rmq_store.broker.pop.pop_messages import (
    ConsumeInitMode,
    Damaged,
    StoredRow,
    TopicReader,
)
from rmq_store.broker.pop.pop_selection import DEAD_MAX, ReceiveRequest, Selection, is_exhausted
from rmq_store.broker.pop.pop_state import Acknowledged, Change, InFlight, Key, MovingToDlq, Position
from rmq_store.errors import CorruptionError, ResponseError
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import Clock
from rmq_store.protocol.results import QueueRange

_LOG = logging.getLogger(__name__)

# A message that is damaged, or cannot become a dead letter, is tried again after this time (default invisible time
# of a pop).
_TRY_AGAIN_MS = 60_000


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the store that a receive needs.

    `send_dead(group, topic, unit, [(message, attempts)])` stores dead letters, all or none; `last_unit(group, topic)`
    is the newest unit stored. `flush` makes the log durable.
    """

    offsets: OffsetTable
    flush: Callable[[], None]
    send_dead: Callable[[str, str, int, Sequence[tuple[StoredRow, int]]], None]
    last_unit: Callable[[str, str], int]


class ReceiveTransaction:
    """One receive, or one commit of offsets; valid only in the `exclusive` block of its journal. `named`: damaged
    messages for which an error was logged already. The time at which the receive began decides which messages are
    visible. The invisible time of a message begins just before it is written to the journal, because dead letters and a
    filter may have taken long.
    """

    def __init__(
        self,
        services: Services,
        journal: PopJournal,
        reader: TopicReader,
        group: str,
        topic: str,
        clock: Clock,
        named: set[Key],
    ) -> None:
        self._services = services
        self._journal = journal
        self._state = journal.state
        self._reader = reader
        self._group = group
        self._topic = topic
        self._clock = clock
        self._now_ms = clock()
        self._named = named
        self._committed = services.offsets.committed(group)

    # -- positions --------------------------------------------------------------------------------------------------

    def ensure_positions(self, ranges: Mapping[int, QueueRange], mode: ConsumeInitMode, checked: set[int]) -> None:
        """Give every queue a valid position. A new queue begins. A queue whose committed offset another program moved
        begins anew. A queue that lost messages in a power cut goes back to the committed offset. `checked`: queues
        whose messages this process does not check again, because the log is never cut while a process has the store
        open.
        """
        changes: list[Change] = []
        for queue_id, found in ranges.items():
            position, committed = self._state.positions.get(queue_id), self._committed_of(queue_id)
            is_known = position is not None and committed in (position.committed_before, position.committed)
            if position is None or not is_known or (queue_id not in checked and not self._is_there(position, found)):
                is_retry = self._topic.startswith(RETRY_PREFIX)
                start = committed
                if start < 0:
                    start = self._reader.first_offset(queue_id, found, mode, is_retry=is_retry)
                start = min(max(start, found.min_offset), found.max_offset)
                before = self._reader.fingerprint(queue_id, start)
                changes.append(Position(queue_id, start, *before, committed, committed, is_reset=position is not None))
            checked.add(queue_id)
        if changes:
            self._journal.append(changes)
            self.commit()

    def _is_there(self, position: Position, found: QueueRange) -> bool:
        if position.next_offset > found.max_offset:
            return False
        offset, timestamp_ms = self._reader.fingerprint(position.queue_id, position.next_offset)
        # The time is not known while the message is damaged, now or when it was passed.
        is_same_time = -1 in (timestamp_ms, position.store_timestamp_ms) or timestamp_ms == position.store_timestamp_ms
        return offset == -1 or (offset == position.commit_log_offset and is_same_time)

    def commit(self) -> None:
        """Commit the smallest unfinished offsets, for other kinds of consumers. Queues whose committed offset another
        program moved are left out.
        """
        begun: list[Change] = []
        done: list[Change] = []
        offsets = {}
        for queue_id, position in self._state.positions.items():
            before = self._committed_of(queue_id)
            if before in (position.committed_before, position.committed):
                target = self._state.smallest_unfinished(queue_id)
                if target != before:
                    offsets[self._topic, queue_id] = target
                    begun.append(replace(position, committed_before=before, committed=target, is_reset=False))
                if (position.committed_before, position.committed) != (target, target):
                    done.append(replace(position, committed_before=target, committed=target, is_reset=False))
        if begun:
            self._services.flush()
            # Until the table is written both values are ours: a crash in between looks like nobody else's doing.
            self._journal.append(begun)
            self._services.offsets.commit(self._group, offsets)
            self._committed.update(offsets)
        self._journal.append(done)

    def _committed_of(self, queue_id: int) -> int:
        return max(self._committed.get((self._topic, queue_id), -1), -1)

    # -- messages ---------------------------------------------------------------------------------------------------

    def take(
        self, ranges: Mapping[int, QueueRange], order: Sequence[int], request: ReceiveRequest
    ) -> list[tuple[StoredRow, InFlight]]:
        """Give out messages of the queues in `order`, see `Selection`. The journal gets one append."""
        selection = Selection(self._state, self._reader, request, self._now_ms, self._named, self._later)
        selection.choose(ranges, order)
        self._now_ms = self._clock()
        taken = [(row, self._given_out(row, attempt, version, request)) for row, attempt, version in selection.found]
        self._journal.append([*(message for _, message in taken), *selection.changes])
        return taken

    def _later(self, message: InFlight, damaged: Damaged) -> InFlight:
        """Hide a damaged message; it was not given out."""
        if message.key not in self._named:
            self._named.add(message.key)
            _LOG.error(
                "group %s: message %d of %s-%d cannot be given out, others are: %s",
                self._group, message.queue_offset, self._topic, message.queue_id, damaged.error,
            )  # fmt: skip
        return self._hidden(message)

    def _hidden(self, message: InFlight) -> InFlight:
        return message.hidden(self._now_ms, _TRY_AGAIN_MS)

    def _given_out(self, row: StoredRow, attempt: int, version: int, request: ReceiveRequest) -> InFlight:
        return InFlight(
            row.queue_id, row.queue_offset, attempt, version, row.commit_log_offset,
            self._now_ms, request.invisible_ms, request.attempt_key,
        )  # fmt: skip

    # -- dead letters -----------------------------------------------------------------------------------------------

    def store_dead_letters(self, attempts_max: int | None) -> None:
        """Send messages whose attempts are used up to the dead letters, and finish what a killed process began."""
        units: dict[int, list[Key]] = {}
        for key, unit in self._state.moving_to_dlq.items():
            units.setdefault(unit, []).append(key)
        for unit in sorted(units):
            self._finish_unit(units[unit], unit)
        visible = self._state.visible(self._now_ms, DEAD_MAX)
        exhausted = [message.key for message in visible if is_exhausted(message, attempts_max)]
        if exhausted:
            newest = self._services.last_unit(self._group, self._topic)
            self._begin_dead_letters(exhausted, [1 + max([newest, *units])] * len(exhausted))

    def _begin_dead_letters(self, keys: Sequence[Key], units: Sequence[int]) -> None:
        """Write to the journal which unit makes each message a dead letter, and finish these units."""
        self._journal.append([MovingToDlq(*key, unit) for key, unit in zip(keys, units, strict=True)])
        for unit in dict.fromkeys(units):
            self._finish_unit([key for key, own in zip(keys, units, strict=True) if own == unit], unit)

    def _finish_unit(self, keys: Sequence[Key], unit: int) -> None:
        if self._services.last_unit(self._group, self._topic) < unit:
            messages = [message for key in keys if (message := self._state.get(key)) is not None]
            try:
                rows = []
                for message in messages:
                    row = self._reader.message(*message.key)
                    if isinstance(row, Damaged):
                        raise row.error
                    if row is not None:
                        rows.append((row, message.attempt))
                if rows:
                    self._services.send_dead(self._group, self._topic, unit, rows)
            except (ResponseError, CorruptionError) as error:
                if len(messages) > 1:
                    # One of them is to blame. All get units of their own before the first one is stored.
                    self._begin_dead_letters(
                        [message.key for message in messages], range(unit + 1, unit + 1 + len(messages))
                    )
                else:
                    self._put_off(messages[0], error)
                return
        # A power cut must not take the dead letter, and leave the journal that says that the message is done with.
        self._services.flush()
        self._journal.append([Acknowledged(*key) for key in keys])

    def _put_off(self, message: InFlight, error: Exception) -> None:
        _LOG.warning(
            "group %s: message %d of %s-%d has failed %d times and cannot become a dead letter: %s",
            self._group, message.queue_offset, self._topic, message.queue_id, message.attempt, error,
        )  # fmt: skip
        self._journal.append([self._hidden(message)])
