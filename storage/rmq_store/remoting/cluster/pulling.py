"""A range of a queue in lanes: several pulls of it are in flight over one connection.

The offsets of a queue are dense, so a range [start, end) can be cut into pieces before anything is read. A lane is a
piece of about as many messages as the broker gives in one answer: 32 messages or 256 KiB from its memory, 8 messages or
64 KiB from its disk, by default. Answers come in any order; frames leave in that of the queue. Small answers come in
more lanes, so that the broker and this process seldom wait for each other: the bytes that are on their way are bounded.

    2, 14, 215, 1500     the broker is busy, or goes away: fewer lanes, and a pause that grows
    no answer            another process of the broker, or a pause; `away_ms` bounds all pauses of an absence together,
                         of all lanes, and `patience_ms` those of other errors
    19, 20, 21, 17       from a slave: not there yet; the master is asked again if it is there. 2, 14: neither
    an end below `end`   from a master: the messages are gone, OffsetOutOfRangeError
    a gap                QueueHoleError; nothing is skipped

Source: PullMessageProcessor.java, MessageStoreConfig.java (maxTransferCountOnMessageInMemory and its siblings).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from rmq_store.backoff import Backoff
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError
from rmq_store.format.frames.frame_walk import WalkedFrames
from rmq_store.protocol.answers import NOT_AT_SLAVE, is_away
from rmq_store.protocol.errors import (
    MQBrokerError,
    QueueHoleError,
    RemotingCommandError,
    RemotingError,
    RemotingTooMuchRequestError,
    ResponseCode,
    SlaveBehindError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import PullAnswer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_checks import check_dense, cut_filtered, hole
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter, PullRequests, answer_of
from rmq_store.remoting.cluster.pull_source import PullSource
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.transport.calls import Arrivals, Call

LANES: Final = 16
"""Of answers with ANSWER_BYTES; there are up to LANES_FACTOR times as many if answers are smaller."""
LANES_FACTOR: Final = 8
ANSWER_BYTES: Final = 256 << 10
"""A broker puts no more into one answer, unless one message is larger (maxTransferBytesOnMessageInMemory)."""
YIELD_BYTES: Final = 2 << 20
"""As much as `answer_batches` makes a batch of, so that it need not join these bytes again."""
MESSAGES_PER_PULL: Final = 32
MESSAGES_PER_PULL_MAX: Final = 1024
LOOKS_AT_MAX: Final = 1 << 15
"""So many messages a filtered pull may look at: a broker compares 20 bytes of each, and reserves 24 for an answer."""
# A filtered pull looks at this many messages or more, until it has found enough.
_FILTERED_PER_PULL: Final = 256
_FILTERED_PER_PULL_MAX: Final = 1 << 16
# After so many answers one lane asks for more messages than the broker gave last.
_GROW_AFTER: Final = 64
# A broker that was busy gets one lane more after so many answers.
_LANE_AFTER: Final = 16
_PAUSES: Final = Backoff(first_ms=20, max_ms=2_000, jitter=0.25)
# The pause with which a warning is logged: after 0.6 s of pauses, or more if answers were waited for.
_TOLD_AT: Final = 6
PATIENCE_MS: Final = 30_000
READ_ERRORS: Final = (
    OffsetOutOfRangeError,
    QueueHoleError,
    SlaveBehindError,
    MQBrokerError,
    RemotingError,
    CorruptRecordError,
)
"""All errors of `read_range`, for callers to whom a queue that cannot be read is one thing."""

_log = logging.getLogger(__name__)


def read_range(
    cluster: Cluster,
    queue: MessageQueue,
    start: int,
    end: int,
    wanted: PullFilter = EVERYTHING,
    *,
    lanes: int = LANES,
    looks_at: int = MESSAGES_PER_PULL_MAX,
    patience_ms: int = PATIENCE_MS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """The frames of the messages [start, end) of a queue, in its order, 2 MiB to some 6 MiB at a time.

    With a filter, frames of those that the broker finds: it compares hashes of tags, so the caller compares the tags.
    The frames are sound, and those of this queue at the offsets that are due. At most `lanes` answers of 256 KiB are on
    their way or wait for others, as far as the sizes of answers can be foreseen: without a filter there are up to
    LANES_FACTOR times as many small ones. A message that is larger counts more. A caller that stops early leaves at
    most so many pulls, whose answers are dropped. After `patience_ms` without any progress the last error is raised.
    A caller that expects few messages among very many lets each filtered pull look at more of them, LOOKS_AT_MAX at
    most.

    Raises:
        OffsetOutOfRangeError: the queue does not have `requested` (any more), as its master says.
        QueueHoleError: the queue lacks messages within the range.
        SlaveBehindError: the master does not answer, and no slave has the messages.
        MQBrokerError: the broker refuses, or is busy for too long. RemotingError: no answer for too long.
        CorruptRecordError: a frame is no sound message.
    """
    walked = walk_range(
        cluster, queue, start, end, wanted, lanes=lanes, looks_at=looks_at, patience_ms=patience_ms, sleep=sleep
    )
    return (frames.data for frames in walked)


def walk_range(
    cluster: Cluster,
    queue: MessageQueue,
    start: int,
    end: int,
    wanted: PullFilter = EVERYTHING,
    *,
    lanes: int = LANES,
    looks_at: int = MESSAGES_PER_PULL_MAX,
    patience_ms: int = PATIENCE_MS,
    away_ms: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[WalkedFrames]:
    """As `read_range`, with the places of the frames, for callers that decode them: no frame is looked for twice.
    `away_ms`: so long without any progress a broker that is away (`is_away`), or whose slave lacks the messages, is
    waited for; by default the patience.
    """
    reader = _RangeReader(cluster, queue, start, end, wanted, max(lanes, 1), patience_ms, sleep, looks_at, away_ms)
    return reader.frames()


class _PullSlot:
    """One lane: a piece [next, end) of the range that is still to come. `parts` came, and wait for what is before
    them.
    """

    __slots__ = ("asked", "attempt", "broker_id", "call", "end", "next", "parts", "parts_bytes")

    def __init__(self, start: int, end: int) -> None:
        self.next = start
        self.end = end
        self.parts: list[bytes] = []
        self.parts_bytes = 0
        self.call: Call | None = None
        self.asked = 0
        self.attempt = -1
        # The process that was asked: later answers may send reads to another one.
        self.broker_id = MASTER_ID

    @property
    def is_complete(self) -> bool:
        return self.next >= self.end


class _NotYet(Exception):
    """The process that was asked does not have the message, or not yet."""


class _RangeReader:
    def __init__(
        self,
        cluster: Cluster,
        queue: MessageQueue,
        start: int,
        end: int,
        wanted: PullFilter,
        lanes: int,
        patience_ms: int,
        sleep: Callable[[float], None],
        looks_at: int = MESSAGES_PER_PULL_MAX,
        away_ms: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._end = end
        self._is_filtered = not wanted.takes_all
        self._requests = PullRequests(cluster, queue, wanted)
        self._source = PullSource(cluster, queue.broker_name)
        self._arrivals = Arrivals()
        self._patience_ms = patience_ms
        self._away_ms = patience_ms if away_ms is None else away_ms
        self._sleep = sleep
        self._slots: deque[_PullSlot] = deque()
        self._uncut = start
        self._emitted = start
        # The size of a filtered answer does not tell how much the broker has looked at.
        self._lanes_max = self._lanes_now = lanes * (1 if self._is_filtered else LANES_FACTOR)
        self._bytes_max = lanes * ANSWER_BYTES
        # The largest of the last answers.
        self._answer_bytes = ANSWER_BYTES
        self._largest_bytes = 0
        known = cluster.messages_per_pull.get(queue.broker_name, MESSAGES_PER_PULL)
        self._looks_at = min(max(looks_at, MESSAGES_PER_PULL_MAX), LOOKS_AT_MAX)
        is_sparse = self._looks_at > MESSAGES_PER_PULL_MAX
        self._per_pull = (self._looks_at if is_sparse else _FILTERED_PER_PULL) if self._is_filtered else known
        self._per_pull_max = _FILTERED_PER_PULL_MAX if self._is_filtered else MESSAGES_PER_PULL_MAX
        self._grow_in = 0 if self._is_filtered else _GROW_AFTER
        self._answers = 0
        # Counts the pauses: a failure from before the last one needs no pause of its own.
        self._attempt = 0
        # Since the last progress: the first failure because the broker is away (True), and that for other reasons.
        self._stuck_since_ms: dict[bool, float] = {}
        self._pauses = 0

    def frames(self) -> Iterator[WalkedFrames]:
        """See `walk_range`."""
        ready: list[bytes] = []
        ready_bytes = 0
        while self._slots or self._uncut < self._end:
            self._open_lanes()
            self._await(self._slots[0])
            for slot in self._slots:
                self._look_at(slot)
            while self._slots:
                head = self._slots[0]
                ready += head.parts
                ready_bytes += head.parts_bytes
                head.parts, head.parts_bytes = [], 0
                if not head.is_complete:
                    break
                self._slots.popleft()
            self._open_lanes()
            if ready_bytes >= YIELD_BYTES or (ready and not self._slots):
                joined = ready[0] if len(ready) == 1 else b"".join(ready)
                ready, ready_bytes = [], 0
                yield self._checked(joined)

    def _checked(self, frames: bytes) -> WalkedFrames:
        start, self._emitted = self._emitted, self._slots[0].next if self._slots else self._end
        if self._is_filtered:
            return WalkedFrames.of(frames)
        return check_dense(frames, self._queue, start, self._emitted)

    # -- lanes ------------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        """So many lanes are wanted now."""
        return min(self._lanes_now, self._bytes_max // self._answer_bytes)

    def _open_lanes(self) -> None:
        waiting_bytes = sum(slot.parts_bytes for slot in self._slots)
        width = self._width
        room = width - waiting_bytes // self._answer_bytes
        while self._uncut < self._end and (len(self._slots) < room or not self._slots):
            slot = _PullSlot(self._uncut, min(self._uncut + self._next_size(), self._end))
            self._uncut = slot.end
            self._slots.append(slot)
        # The answer of a lane that has failed is looked at when its turn comes.
        asking = [slot for slot in islice(self._slots, max(room, 1)) if slot.call is None and not slot.is_complete]
        # Pulls that leave together cost one system call: half of the lanes, unless the first one is waited for.
        if 2 * len(asking) >= width or (asking and asking[0] is self._slots[0]):
            self._submit(asking)

    def _next_size(self) -> int:
        """The messages of the next lane."""
        if self._grow_in > 0:
            return self._per_pull
        self._grow_in = _GROW_AFTER
        return min(self._per_pull + (self._per_pull + 3) // 4, self._per_pull_max)

    def _submit(self, slots: Sequence[_PullSlot]) -> None:
        for slot in slots:
            count = slot.end - slot.next
            # A broker looks at as many messages as it is asked for, or at 800, and gives 32 of them at most.
            most = max(min(count, self._looks_at), MESSAGES_PER_PULL_MAX)
            slot.asked = most if self._is_filtered else min(count, MESSAGES_PER_PULL_MAX)
            slot.attempt = self._attempt
            slot.broker_id = self._source.broker_id
        pulls = [(slot.next, slot.asked) for slot in slots]
        calls = self._requests.submit_all(pulls, self._source.broker_id, self._arrivals.notice)
        for slot, call in zip(slots, calls, strict=True):
            slot.call = call

    def _look_at(self, slot: _PullSlot) -> None:
        """Take an answer that is there, unless it is a failure: the lane's turn will come."""
        outcome = None if slot.call is None else slot.call.outcome
        if isinstance(outcome, RemotingCommand | PullAnswer) and outcome.code == ResponseCode.SUCCESS:
            answer = answer_of(outcome, self._queue.broker_name)
            if self._moves_on(answer, slot):
                self._take(slot, answer)
                return
        if outcome is not None and slot.attempt < self._attempt:
            slot.call = None

    def _await(self, slot: _PullSlot) -> None:
        """Take the answer of the first lane, or pause and leave it without one."""
        if slot.call is None:  # its answers have waited for so much room
            self._submit([slot])
        assert slot.call is not None
        # To be woken for each answer costs more than to take it. Answers mostly come in the order of the pulls, and
        # the next pulls leave when half of the lanes have theirs.
        calls = [each.call for each in self._slots if each.call is not None]
        self._arrivals.wait(calls[(len(calls) - 1) // 2])
        self._arrivals.wait(slot.call)
        try:
            self._take(slot, answer_of(slot.call.pulled(), self._queue.broker_name))
            return
        except MQBrokerError as error:
            slot.call = None
            self._refused(slot, error)
        except RemotingCommandError:
            raise
        except RemotingError as error:
            slot.call = None
            if slot.attempt == self._attempt:
                # This process has too many requests under way: the broker's fault is none.
                is_ours = isinstance(error, RemotingTooMuchRequestError)
                is_elsewhere = slot.broker_id != self._source.broker_id
                self._pause(error, at_once=not is_ours and (is_elsewhere or self._source.failed(error)))
        except _NotYet as missing:
            slot.call = None
            self._wait_for_slave(slot, str(missing))

    def _take(self, slot: _PullSlot, answer: PullAnswer) -> None:
        """Keep the frames of an answer, and go behind them. _NotYet: it has none."""
        slot.call = None
        if not self._moves_on(answer, slot):
            self._judge_end(slot, answer)
            return
        behind = min(answer.next_offset, slot.end)
        frames = answer.frames
        if self._is_filtered:
            frames = cut_filtered(frames, self._queue, slot.next, slot.end) if frames else b""
        elif answer.next_offset > slot.end:
            # Fewer messages were asked for than it went on by: some of them are missing.
            check_dense(frames, self._queue, slot.next, answer.next_offset)
        self._learn(slot, answer)
        slot.next = behind
        if frames:
            slot.parts.append(frames)
            slot.parts_bytes += len(frames)
        if self._stuck_since_ms:
            self._has_gone_on()
        self._source.suggested(answer.suggest_broker_id)

    def _moves_on(self, answer: PullAnswer, slot: _PullSlot) -> bool:
        if answer.next_offset <= slot.next:
            return False
        found = answer.code == ResponseCode.SUCCESS and bool(answer.frames)
        return found or (self._is_filtered and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY)

    def _learn(self, slot: _PullSlot, answer: PullAnswer) -> None:
        """Cut the next lanes to the size of an answer; use all lanes again, bit by bit, after the broker was busy."""
        got = answer.next_offset - slot.next
        if slot.next + got < slot.end:
            self._per_pull, self._grow_in = max(got, 1), _GROW_AFTER
        elif got > self._per_pull:
            self._per_pull, self._grow_in = min(got, self._per_pull_max), 0
        else:
            self._grow_in -= 1
        if not self._is_filtered:
            self._cluster.messages_per_pull[self._queue.broker_name] = self._per_pull
        self._largest_bytes = max(self._largest_bytes, len(answer.frames))
        self._answers += 1
        if self._answers % _LANE_AFTER == 0:
            self._lanes_now = min(self._lanes_now + 1, self._lanes_max)
            self._answer_bytes, self._largest_bytes = min(max(self._largest_bytes, 1), ANSWER_BYTES), 0

    # -- what is no message -----------------------------------------------------------------------------------------

    def _judge_end(self, slot: _PullSlot, answer: PullAnswer) -> None:
        """Raise what an answer without messages means; it may also mean: ask again."""
        if self._source.lags(slot.broker_id):
            held = f"[{answer.min_offset}, {answer.max_offset})"
            raise _NotYet(f"it answers {answer.code} ({answer.remark}) and has {held}")
        if slot.next < answer.min_offset or answer.max_offset <= slot.next:
            raise OffsetOutOfRangeError(
                f"{self._shown()} no longer has the message {slot.next}: its broker has [{answer.min_offset}, "
                f"{answer.max_offset})",
                slot.next,
                answer.min_offset,
                answer.max_offset,
            )
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            error: Exception = MQBrokerError(answer.code, answer.remark, self._queue.broker_name)
        else:
            error = hole(self._queue, slot.next, min(max(answer.next_offset, slot.next + 1), self._end))
        if slot.attempt == self._attempt:
            self._pause(error)

    def _refused(self, slot: _PullSlot, error: MQBrokerError) -> None:
        code = error.response_code
        is_slave = slot.broker_id != MASTER_ID
        is_not_there = is_slave and code in NOT_AT_SLAVE
        if not (is_not_there or error.retryable):
            raise error
        if is_not_there:
            self._wait_for_slave(slot, f"it answers: {error}")
        elif slot.attempt == self._attempt:
            self._lanes_now = max(self._width // 2, 1)
            self._answers = 0
            self._pause(error)

    def _wait_for_slave(self, slot: _PullSlot, reason: str) -> None:
        """Ask the master, or wait for it, or for the slave to get what it does not have."""
        if slot.attempt != self._attempt:
            return
        asked = f"slave {slot.broker_id}" if slot.broker_id != MASTER_ID else "the acting master"
        error = SlaveBehindError(
            f"{self._shown()}: the messages [{slot.next}, {self._end}) are not at {asked} (yet): {reason}. The master "
            "of the broker does not answer. The messages can be read when it is back, or when the slave has them; a "
            "slave of 5.x answers pulls only with slaveReadEnable=true",
            (self._queue.topic, self._queue.broker_name, self._queue.queue_id),
            slot.next,
            self._end,
        )
        is_elsewhere = slot.broker_id != self._source.broker_id
        self._pause(error, at_once=is_elsewhere or self._source.is_behind())

    def _pause(self, error: Exception, *, at_once: bool = False) -> None:
        """Wait a while before the next try, or raise the error if there was no progress for too long."""
        now_ms = self._cluster.timer()
        awaits_broker = is_away(error) or isinstance(error, SlaveBehindError)
        bound_ms = self._away_ms if awaits_broker else self._patience_ms
        if awaits_broker not in self._stuck_since_ms:
            self._stuck_since_ms[awaits_broker] = now_ms
        elif now_ms - self._stuck_since_ms[awaits_broker] >= bound_ms:
            raise error
        self._attempt += 1
        if not at_once:
            self._pauses += 1
            if self._pauses == _TOLD_AT:
                _log.warning("%s: asked again for up to %.1f s: %s", self._shown(), bound_ms / 1000, error)
            self._sleep(_PAUSES.wait_s(self._pauses))

    def _has_gone_on(self) -> None:
        if self._pauses >= _TOLD_AT:
            waited_ms = self._cluster.timer() - min(self._stuck_since_ms.values())
            _log.warning("%s is read on after %.1f s", self._shown(), waited_ms / 1000)
        self._stuck_since_ms.clear()
        self._pauses = 0

    def _shown(self) -> str:
        queue = self._queue
        return f"queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker_name}"
