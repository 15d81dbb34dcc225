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
from itertools import repeat
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
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter, PullRequests, answer_of
from rmq_store.remoting.cluster.pull_source import PullSource
from rmq_store.remoting.cluster.pulls.checks import check_dense, check_dense_pieces, cut_filtered, hole
from rmq_store.remoting.cluster.pulls.lanes import GatheredFrames, Int64, Lane, LaneRun
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.transport.calls import Arrivals

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
# After so many answers one lane asks for more messages than the broker gave last; after twice as many if it did so in
# vain.
_GROW_AFTER: Final = 64
_GROW_AFTER_MAX: Final = 4096
# The frames of one batch, and what is reserved for larger answers.
_AREA_BYTES: Final = YIELD_BYTES + YIELD_BYTES // 4
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
    reader = _RangeReader(cluster, queue, start, end, wanted, max(lanes, 1), patience_ms, sleep, looks_at)
    return reader.blocks()


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
        self._lanes: deque[Lane | LaneRun] = deque()
        self._uncut = start
        self._ready = GatheredFrames(start)
        # The size of a filtered answer does not tell how much the broker has looked at.
        self._lanes_max = self._lanes_now = lanes * (1 if self._is_filtered else LANES_FACTOR)
        self._bytes_max = lanes * ANSWER_BYTES
        # The largest of the last answers.
        self._answer_bytes = ANSWER_BYTES
        self._largest_bytes = 0
        self._area = FrameArea(0)
        self._reserved_bytes = 0
        known = cluster.messages_per_pull.get(queue.broker_name, MESSAGES_PER_PULL)
        self._looks_at = min(max(looks_at, MESSAGES_PER_PULL_MAX), LOOKS_AT_MAX)
        is_sparse = self._looks_at > MESSAGES_PER_PULL_MAX
        self._per_pull = (self._looks_at if is_sparse else _FILTERED_PER_PULL) if self._is_filtered else known
        self._per_pull_max = _FILTERED_PER_PULL_MAX if self._is_filtered else MESSAGES_PER_PULL_MAX
        self._grow_after = _GROW_AFTER
        self._grow_in = 0 if self._is_filtered else _GROW_AFTER
        self._answers = 0
        # Counts the pauses: a failure from before the last one needs no pause of its own.
        self._attempt = 0
        # Since the last progress: the first failure because the broker is away (True), and that for other reasons.
        self._stuck_since_ms: dict[bool, float] = {}
        self._pauses = 0

    def blocks(self) -> Iterator[bytes]:
        """See `read_range`."""
        for gathered in self._gathered():
            frames = gathered.joined()
            if not self._is_filtered:
                check_dense(frames, self._queue, gathered.start, gathered.end)
            yield frames

    def frames(self) -> Iterator[WalkedFrames]:
        """See `walk_range`."""
        for gathered in self._gathered():
            in_one_area = gathered.in_one_area()
            if self._is_filtered:
                yield WalkedFrames.of(gathered.joined())
            elif in_one_area is None:
                yield check_dense(gathered.joined(), self._queue, gathered.start, gathered.end)
            else:
                area, places = in_one_area
                yield check_dense_pieces(area.view, places, self._queue, gathered.start, gathered.end)

    def _gathered(self) -> Iterator[GatheredFrames]:
        while self._lanes or self._uncut < self._end:
            self._open_lanes()
            self._await(self._lanes[0])
            self._look_at_lanes()
            full = self._take_heads()
            self._open_lanes()
            yield from full

    def _look_at_lanes(self) -> None:
        if any(isinstance(lane, LaneRun) and lane.is_unusual for lane in self._lanes):
            self._lanes = deque(
                lane
                for each in self._lanes
                for lane in (each.split() if isinstance(each, LaneRun) and each.is_unusual else (each,))
            )
        for lane in self._lanes:
            if isinstance(lane, Lane):
                self._look_at(lane)

    def _take_heads(self) -> list[GatheredFrames]:
        """Gather what has come in the order of the queue; returns what is enough, or all, to be handed on."""
        full: list[GatheredFrames] = []
        while self._lanes:
            head = self._lanes[0]
            if isinstance(head, LaneRun):
                if not head.has_ended:
                    break
                area = head.round.answers.area
                if not self._ready.goes_on_in(area):
                    full += self._handed_on()
                places = head.places()
                self._ready.add_places(area, places, head.end)
                self._have_learned(head, places[:, 1] - places[:, 0])
            else:
                self._ready.add(head.parts, head.next)
                head.parts, head.parts_bytes = [], 0
                if not head.is_complete:
                    break
            self._lanes.popleft()
        is_all = not self._lanes and self._uncut >= self._end
        # Frames of one area are handed on when the next area begins: they need not be joined.
        if is_all or (self._ready.size_bytes >= YIELD_BYTES and self._ready.in_one_area() is None):
            full += self._handed_on()
        return full

    def _handed_on(self) -> list[GatheredFrames]:
        done, self._ready = self._ready, GatheredFrames(self._ready.end)
        return [done] if done.size_bytes else []

    # -- lanes ------------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        """So many lanes are wanted now."""
        return max(min(self._lanes_now, self._bytes_max // self._answer_bytes), 1)

    def _open_lanes(self) -> None:
        width = self._width
        waiting_bytes = sum(lane.parts_bytes for lane in self._lanes if isinstance(lane, Lane))
        room = max(width - waiting_bytes // self._answer_bytes, 1)
        asking: list[Lane] = []
        for lane in self._lanes:
            room -= lane.width
            # The answer of a lane that has failed is looked at when its turn comes.
            has_room = room >= 0 or lane is self._lanes[0]
            if isinstance(lane, Lane) and has_room and lane.round is None and not lane.is_complete:
                asking.append(lane)
        fresh = max(min(room, -(-(self._end - self._uncut) // self._per_pull)), 0)
        # Pulls that leave together cost one system call: half of the lanes, unless the first one is waited for.
        is_first = not self._lanes or (asking and asking[0] is self._lanes[0])
        if not is_first and 2 * (len(asking) + fresh) < width:
            return
        if self._is_filtered:
            opened = [Lane(start, start + count) for start, count in self._cut(fresh)]
            self._lanes += opened
            asking += opened
        if asking:
            self._submit(asking)
        half = (width + 1) // 2
        for first in range(0, 0 if self._is_filtered else fresh, half):
            self._open_run(min(fresh - first, half))

    def _cut(self, lanes: int, per_pull: int | None = None) -> list[tuple[int, int]]:
        """Cut the next lanes off the range, at most so many: where each begins, and its messages. Only the last one may
        have fewer.
        """
        per_pull = per_pull or self._per_pull
        start, self._uncut = self._uncut, min(self._uncut + lanes * per_pull, self._end)
        pulls = list(zip(range(start, self._uncut, per_pull), repeat(per_pull)))
        if pulls:
            pulls[-1] = pulls[-1][0], self._uncut - pulls[-1][0]
        return pulls

    def _open_run(self, lanes: int) -> None:
        if self._grow_in <= 0 and self._per_pull < self._per_pull_max:
            # One lane asks for more messages than the broker gave last.
            self._grow_in = self._grow_after
            self._send_run(self._cut(1, min(self._per_pull + (self._per_pull + 3) // 4, self._per_pull_max)))
            lanes -= 1
        pulls = self._cut(lanes)
        if pulls:
            self._send_run(pulls)

    def _send_run(self, pulls: list[tuple[int, int]]) -> None:
        needed_bytes = len(pulls) * (self._answer_bytes + self._answer_bytes // 8)
        if self._reserved_bytes + needed_bytes > len(self._area.data):
            self._area = FrameArea(max(_AREA_BYTES, needed_bytes))
            self._reserved_bytes = 0
        self._reserved_bytes += needed_bytes
        broker_id = self._source.broker_id
        sent = self._requests.submit_round(pulls, self._area, broker_id, self._arrivals.notice)
        self._lanes.append(LaneRun(sent, 0, len(pulls), self._attempt, broker_id, needed_bytes))

    def _submit(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            count = lane.end - lane.next
            # A broker looks at as many messages as it is asked for, or at 800, and gives 32 of them at most.
            most = max(min(count, self._looks_at), MESSAGES_PER_PULL_MAX)
            lane.asked = most if self._is_filtered else min(count, MESSAGES_PER_PULL_MAX)
            lane.attempt = self._attempt
            lane.broker_id = self._source.broker_id
        pulls = [(lane.next, lane.asked) for lane in lanes]
        # No area: their frames wait for others.
        sent = self._requests.submit_round(pulls, FrameArea(0), self._source.broker_id, self._arrivals.notice)
        for number, lane in enumerate(lanes):
            lane.round, lane.number = sent, number

    def _look_at(self, lane: Lane) -> None:
        """Take an answer that is there, unless it is a failure: the lane's turn will come."""
        outcome = lane.outcome
        if isinstance(outcome, RemotingCommand | PullAnswer) and outcome.code == ResponseCode.SUCCESS:
            answer = answer_of(outcome, self._queue.broker_name)
            if self._moves_on(answer, lane):
                self._take(lane, answer)
                return
        if outcome is not None and lane.attempt < self._attempt:
            lane.round = None

    def _await(self, head: Lane | LaneRun) -> None:
        """Wait for the first lanes. Of a lane alone take the answer, or pause and leave it without one."""
        if isinstance(head, LaneRun):
            # To be woken for each answer costs more than to take it.
            self._arrivals.wait(head.round)
            return
        if head.round is None:  # its answers have waited for so much room
            self._submit([head])
        assert head.round is not None
        self._arrivals.wait(head.round)
        outcome = head.outcome
        assert outcome is not None
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            self._take(head, answer_of(outcome, self._queue.broker_name))
            return
        except MQBrokerError as error:
            head.round = None
            self._refused(head, error)
        except RemotingCommandError:
            raise
        except RemotingError as error:
            head.round = None
            if head.attempt == self._attempt:
                # This process has too many requests under way: the broker's fault is none.
                is_ours = isinstance(error, RemotingTooMuchRequestError)
                is_elsewhere = head.broker_id != self._source.broker_id
                self._pause(error, at_once=not is_ours and (is_elsewhere or self._source.failed(error)))
        except _NotYet as missing:
            head.round = None
            self._wait_for_slave(head, str(missing))

    def _take(self, lane: Lane, answer: PullAnswer) -> None:
        """Keep the frames of an answer, and go behind them. _NotYet: it has none."""
        lane.round = None
        if not self._moves_on(answer, lane):
            self._judge_end(lane, answer)
            return
        behind = min(answer.next_offset, lane.end)
        frames = answer.frames
        if self._is_filtered:
            frames = cut_filtered(frames, self._queue, lane.next, lane.end) if frames else b""
        elif answer.next_offset > lane.end:
            # Fewer messages were asked for than it went on by: some of them are missing.
            check_dense(frames, self._queue, lane.next, answer.next_offset)
        self._learn(lane, answer)
        lane.next = behind
        if frames:
            lane.parts.append(frames)
            lane.parts_bytes += len(frames)
        self._has_moved_on(answer.suggest_broker_id)

    def _has_moved_on(self, suggested_broker_id: int) -> None:
        if self._stuck_since_ms:
            self._has_gone_on()
        self._source.suggested(suggested_broker_id)

    def _moves_on(self, answer: PullAnswer, lane: Lane) -> bool:
        if answer.next_offset <= lane.next:
            return False
        found = answer.code == ResponseCode.SUCCESS and bool(answer.frames)
        return found or (self._is_filtered and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY)

    def _learn(self, lane: Lane, answer: PullAnswer) -> None:
        """Cut the next lanes to the size of an answer."""
        got = answer.next_offset - lane.next
        if lane.next + got < lane.end:
            # It asked for more in vain, or what the broker gives has changed.
            self._grow_after = min(2 * self._grow_after, _GROW_AFTER_MAX) if got == self._per_pull else _GROW_AFTER
            self._per_pull, self._grow_in = max(got, 1), self._grow_after
        elif got > self._per_pull:
            self._per_pull, self._grow_in, self._grow_after = min(got, self._per_pull_max), 0, _GROW_AFTER
        else:
            self._grow_in -= 1
        self._count_answers(1, len(answer.frames))

    def _have_learned(self, run: LaneRun, sizes_bytes: Int64) -> None:
        """As `_learn`, for answers that had all that was asked for."""
        got = run.round.pulls[run.first][1]
        if got > self._per_pull:
            self._per_pull, self._grow_in, self._grow_after = got, 0, _GROW_AFTER
        else:
            self._grow_in -= run.width
        if run.round.answers.area is self._area:
            self._reserved_bytes -= max(run.reserved_bytes - int(sizes_bytes.sum()), 0)
        self._count_answers(run.width, int(sizes_bytes.max()))
        self._has_moved_on(run.round.answers.suggested(run.last - 1))

    def _count_answers(self, count: int, largest_bytes: int) -> None:
        """Use all lanes again, bit by bit, after the broker was busy; and foresee the sizes of the next answers."""
        if not self._is_filtered:
            self._cluster.messages_per_pull[self._queue.broker_name] = self._per_pull
        self._largest_bytes = max(self._largest_bytes, largest_bytes)
        before, self._answers = self._answers, self._answers + count
        steps = self._answers // _LANE_AFTER - before // _LANE_AFTER
        if steps:
            self._lanes_now = min(self._lanes_now + steps, self._lanes_max)
            self._answer_bytes, self._largest_bytes = min(max(self._largest_bytes, 1), ANSWER_BYTES), 0

    # -- what is no message -----------------------------------------------------------------------------------------

    def _judge_end(self, lane: Lane, answer: PullAnswer) -> None:
        """Raise what an answer without messages means; it may also mean: ask again."""
        if self._source.lags(lane.broker_id):
            held = f"[{answer.min_offset}, {answer.max_offset})"
            raise _NotYet(f"it answers {answer.code} ({answer.remark}) and has {held}")
        if lane.next < answer.min_offset or answer.max_offset <= lane.next:
            raise OffsetOutOfRangeError(
                f"{self._shown()} no longer has the message {lane.next}: its broker has [{answer.min_offset}, "
                f"{answer.max_offset})",
                lane.next,
                answer.min_offset,
                answer.max_offset,
            )
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            error: Exception = MQBrokerError(answer.code, answer.remark, self._queue.broker_name)
        else:
            error = hole(self._queue, lane.next, min(max(answer.next_offset, lane.next + 1), self._end))
        if lane.attempt == self._attempt:
            self._pause(error)

    def _refused(self, lane: Lane, error: MQBrokerError) -> None:
        code = error.response_code
        is_slave = lane.broker_id != MASTER_ID
        is_not_there = is_slave and code in NOT_AT_SLAVE
        if not (is_not_there or error.retryable):
            raise error
        if is_not_there:
            self._wait_for_slave(lane, f"it answers: {error}")
        elif lane.attempt == self._attempt:
            self._lanes_now = max(self._width // 2, 1)
            self._answers = 0
            self._pause(error)

    def _wait_for_slave(self, lane: Lane, reason: str) -> None:
        """Ask the master, or wait for it, or for the slave to get what it does not have."""
        if lane.attempt != self._attempt:
            return
        asked = f"slave {lane.broker_id}" if lane.broker_id != MASTER_ID else "the acting master"
        error = SlaveBehindError(
            f"{self._shown()}: the messages [{lane.next}, {self._end}) are not at {asked} (yet): {reason}. The master "
            "of the broker does not answer. The messages can be read when it is back, or when the slave has them; a "
            "slave of 5.x answers pulls only with slaveReadEnable=true",
            (self._queue.topic, self._queue.broker_name, self._queue.queue_id),
            lane.next,
            self._end,
        )
        is_elsewhere = lane.broker_id != self._source.broker_id
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
