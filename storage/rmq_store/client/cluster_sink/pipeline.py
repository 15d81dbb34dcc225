"""Chunks to brokers: one request in flight for each queue, and several queues at once.

    outcome          what happens to the chunk
    stored           done; with a weak status it is counted and logged, or fails the task
    not stored       another broker, or the same queue again if the rows have no choice; after a pause where the broker
                     was busy or no other broker is left
    unknown          its queue is read first (`Verifier`): what is found is done, the rest is sent as above. Without a
                     verifier it is sent again at once, which is at least once
    refused          the task fails

A chunk has a total budget for all its tries, and a longer one if a broker was away and no other one takes it. It begins
with the first try, and stands still while a queue is read: that has a limit of its own. Chunks of one queue go in their
order: of several send threads of a broker two requests for one queue would change places. `queue_choice` says where the
others go.
"""

from __future__ import annotations

import itertools
import logging
import queue as queues
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.client.cluster_sink.chunks import Chunk, TargetQueue
from rmq_store.client.cluster_sink.queue_choice import QueueChoice
from rmq_store.client.delivery.outcome import WEAK_STATUS_MS, SendOutcome, Verdict, verdict_of
from rmq_store.client.delivery.request import TopicNames, batch_request, single_request, stored_offset
from rmq_store.client.producer.fault_strategy import LatencyPreset
from rmq_store.format.batches.batch_bodies import decode_entry
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingCommandError, WeakSendError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand

_log = logging.getLogger(__name__)

BUFFERED_BYTES_MAX: Final = 16 << 20
"""`send` waits while so much of it is not stored yet."""

_PAUSES: Final = Backoff(first_ms=100, max_ms=1_000)


class Brokers(TopicNames, Protocol):
    """A cluster, as far as sends need it."""

    def submit_broker(self, broker_name: str, request: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        """Send a request to a master; the answer comes in the future, or an error of `rmq_store.protocol.errors`."""

    def not_reached(self, broker_name: str) -> None:
        """A request has failed: the broker may have another address by now."""


class Verifier(Protocol):
    """Looks into a queue for rows whose send has an unknown outcome."""

    def stored(self, chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        """(n,): which rows of the chunk are in the queue, from the offset `start` on if it is given.

        Raises: SendInDoubtError if that cannot be found out in time.
        """


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Times in ms. `send_timeout_ms` is the budget of a chunk for all its tries, `request_timeout_ms` that of one;
    `away_timeout_ms`: of all tries, if it is longer, where a broker was away.
    """

    group: str = "pyspark_rmq"
    send_timeout_ms: int = 60_000
    request_timeout_ms: int = 3_000
    away_timeout_ms: int = 0
    fail_on_weak_status: bool = False
    latency: LatencyPreset = "5.x"

    @property
    def answer_timeout_ms(self) -> int:
        """How long an answer is waited for. A broker tells only after its own time limit that the disk or the slave was
        too slow: who wants to know it waits for that.
        """
        return max(self.request_timeout_ms, WEAK_STATUS_MS) if self.fail_on_weak_status else self.request_timeout_ms


@dataclass(slots=True)
class SendCounts:
    """The rows that a task has sent so far. `weak`: rows by status. `first_offsets`: of the first own row in each
    queue; `last_offsets`: behind the last one. `displaced`: rows that came behind newer ones of their task.
    """

    rows: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    doubts: int = 0
    found: int = 0
    displaced: int = 0
    weak: dict[str, int] = field(default_factory=dict)
    first_offsets: dict[MessageQueue, int] = field(default_factory=dict)
    last_offsets: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Flight:
    chunk: Chunk
    queue: MessageQueue
    sent_ms: float


class Pipeline:
    """Sends the chunks of one task; not thread-safe."""

    def __init__(
        self,
        brokers: Brokers,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        settings: PipelineSettings,
        verifier: Verifier | None,
        *,
        timer: Callable[[], float] = lambda: real_time.monotonic() * 1000,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = lambda ms: time.sleep(ms / 1000),
        random_start: Callable[[], int] | None = None,
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._verifier = verifier
        self._timer = timer
        self._now_ms = now_ms
        self._sleep = sleep
        self._choice = QueueChoice(queues_of, settings.latency, timer, random_start)
        self._waiting: dict[TargetQueue, deque[Chunk]] = {}
        self._flights: dict[MessageQueue, _Flight] = {}
        self._done: queues.SimpleQueue[tuple[MessageQueue, Future[RemotingCommand], float]] = queues.SimpleQueue()
        self._buffered_bytes = 0
        self._chunk_count = 0
        self._warned: set[tuple[str, str]] = set()
        self.counts = SendCounts()

    def send(self, chunk: Chunk) -> None:
        """Take a chunk; returns when there is room for the next one.

        Raises:
            MQBrokerError: a broker refused the rows. MQClientError: the budget is used up, nothing of the chunk is
                stored. SendInDoubtError: it may be stored. WeakSendError: as the settings say.
        """
        chunk.number = self._chunk_count
        self._chunk_count += 1
        self._waiting.setdefault(chunk.target, deque()).append(chunk)
        self._buffered_bytes += len(chunk.body)
        self._take_arrived()
        self._start()
        while self._buffered_bytes > BUFFERED_BYTES_MAX:
            self._step()

    def finish(self) -> SendCounts:
        """Return when all chunks are stored. Raises as `send`."""
        while self._buffered_bytes:
            self._step()
        self.counts.displaced = self._choice.displaced_rows
        return self.counts

    def drain(self, wait_ms: int) -> None:
        """Wait for the answers that are still to come, without starting anything; for a task that has failed."""
        until_ms = self._timer() + wait_ms
        while self._flights and (left_ms := until_ms - self._timer()) > 0:
            try:
                queue, _, _ = self._done.get(timeout=left_ms / 1000)
            except queues.Empty:
                return
            self._flights.pop(queue, None)

    def _step(self) -> None:
        """Wait for an answer, or for the time at which something may be sent, and go on."""
        wait_ms = self._start()
        if not self._flights:
            self._sleep(_PAUSES.first_ms if wait_ms is None else wait_ms)
            return
        try:
            queue, future, at_ms = self._done.get(timeout=None if wait_ms is None else wait_ms / 1000)
        except queues.Empty:
            return
        self._take(self._flights.pop(queue), future, at_ms)

    def _take_arrived(self) -> None:
        """Take the answers that are there. Their queues would be idle until the buffer is full."""
        while True:
            try:
                queue, future, at_ms = self._done.get_nowait()
            except queues.Empty:
                return
            self._take(self._flights.pop(queue), future, at_ms)

    def _start(self) -> float | None:
        """Send what may be sent. Returns after how many ms more may be; None: when an answer comes."""
        soonest: float | None = None
        for target, chunks in list(self._waiting.items()):
            while chunks:
                now = self._timer()
                queue, at_ms = self._choice.choose(chunks[0], self._flights, now)
                if queue is not None and at_ms is not None and at_ms <= now:
                    self._submit(chunks.popleft(), queue, now)
                    continue
                if at_ms is not None:
                    soonest = at_ms - now if soonest is None else min(soonest, at_ms - now)
                break
            if not chunks:
                del self._waiting[target]
        return soonest

    def _submit(self, chunk: Chunk, queue: MessageQueue, now: float) -> None:
        if not chunk.tries:
            chunk.deadline_ms = now + self._settings.send_timeout_ms
        left_ms = chunk.deadline_ms - now
        if left_ms <= 0:
            self._give_up(chunk, queue.broker_name, chunk.last_reason)
        request = request_of(self._brokers, chunk, queue, self._settings.group, self._now_ms())
        chunk.tries += 1
        self.counts.requests += 1
        self._choice.window(queue.broker_name).take(len(chunk.body))
        self._flights[queue] = _Flight(chunk, queue, now)
        timeout_ms = max(1, min(self._settings.answer_timeout_ms, int(left_ms)))
        future = self._brokers.submit_broker(queue.broker_name, request, timeout_ms)
        future.add_done_callback(lambda done: self._done.put((queue, done, self._timer())))

    def _take(self, flight: _Flight, future: Future[RemotingCommand], at_ms: float) -> None:
        """An answer is there, since `at_ms`."""
        chunk, broker_name = flight.chunk, flight.queue.broker_name
        window = self._choice.window(broker_name)
        window.release(len(chunk.body))
        error = future.exception()
        answer = future.result() if error is None else None
        verdict = verdict_of(answer if answer is not None else error)  # type: ignore[arg-type]
        is_stored = verdict.outcome in (SendOutcome.STORED, SendOutcome.STORED_WEAKLY)
        self._choice.note_answer(broker_name, at_ms - flight.sent_ms, is_stored=is_stored)
        if is_stored:
            window.grow(len(chunk.body))
            self._count(chunk, flight.queue, None if answer is None else self._offset(answer, broker_name))
            if verdict.outcome is SendOutcome.STORED_WEAKLY:
                self._weak(chunk, flight.queue, verdict)
            return
        if verdict.outcome is SendOutcome.REFUSED:
            reason = f"{verdict.reason} TOPIC: {flight.queue.topic}"
            refusal = MQBrokerError(verdict.code or 0, reason, broker_name, verdict.address)
            refusal.doubt = chunk.doubt
            raise refusal
        self._warn(broker_name, verdict)
        if verdict.code is None:
            self._brokers.not_reached(broker_name)
        self._again(chunk, flight.queue, verdict)

    def _offset(self, answer: RemotingCommand, broker_name: str) -> int | None:
        """Where the rows are, which are stored; None: the answer does not say it."""
        try:
            return stored_offset(answer.ext_fields)
        except RemotingCommandError as error:
            if (broker_name, "offset") not in self._warned:
                self._warned.add((broker_name, "offset"))
                _log.warning("broker %r has stored rows, and does not say where: %s", broker_name, error)
            return None

    def _again(self, chunk: Chunk, queue: MessageQueue, verdict: Verdict) -> None:
        """The chunk is not stored, or nobody knows."""
        size = len(chunk.body)
        left: Chunk | None = chunk
        if verdict.outcome is SendOutcome.UNKNOWN and self._verifier is not None:
            found = self._verified(self._verifier, chunk, queue, verdict.reason)
            left = chunk.without(found) if found.any() else chunk
        elif verdict.outcome is SendOutcome.UNKNOWN and chunk.doubt is None:
            chunk.doubt = MQClientError(verdict.reason, -1 if verdict.code is None else verdict.code)
        if left is None:
            self._buffered_bytes -= size
            return
        self._buffered_bytes -= size - len(left.body)
        if verdict.is_busy:
            self._choice.window(queue.broker_name).shrink(self._timer())
        if verdict.is_away and not left.was_away:
            left.was_away = True
            left.deadline_ms += max(0, self._settings.away_timeout_ms - self._settings.send_timeout_ms)
        if self._timer() >= left.deadline_ms:
            self._give_up(left, queue.broker_name, verdict.reason, verdict.code)
        left.last_broker, left.last_reason, left.was_busy = queue.broker_name, verdict.reason, verdict.is_busy
        if left.tries > 1 or not self._choice.has_other_broker(left, queue.broker_name):
            left.not_before_ms = self._timer() + _PAUSES.wait_ms(left.tries)
        self.counts.retries += 1
        chunks = self._waiting.setdefault(left.target, deque())
        # In front of all that is newer: another one of its target may have come back before.
        chunks.insert(next((at for at, one in enumerate(chunks) if one.number > left.number), len(chunks)), left)

    def _verified(
        self, verifier: Verifier, chunk: Chunk, queue: MessageQueue, reason: str
    ) -> npt.NDArray[np.bool_]:
        """(n,): which rows of a chunk in doubt are stored. All chunks get the time back that this takes."""
        began_ms = self._timer()
        self.counts.doubts += 1
        found = verifier.stored(chunk, queue, self.counts.last_offsets.get(queue), reason)
        self.counts.found += int(np.count_nonzero(found))
        if found.any():
            self._choice.note_stored(chunk, queue)
        spent_ms = self._timer() - began_ms
        in_flight = (one.chunk for one in self._flights.values())
        for one in itertools.chain([chunk], in_flight, *self._waiting.values()):
            one.deadline_ms += spent_ms
        return found

    def _give_up(self, chunk: Chunk, broker_name: str, reason: str, code: int | None = None) -> None:
        settings = self._settings
        budget_ms = max(settings.send_timeout_ms, settings.away_timeout_ms if chunk.was_away else 0)
        error = MQClientError(
            f"row {chunk.first_row} and {chunk.row_count - 1} more for topic {chunk.target.topic!r} could not be "
            f"stored in {budget_ms} ms and {chunk.tries} tries, last at broker {broker_name!r}: {reason}",
            -1 if code is None else code,
        )
        error.doubt = chunk.doubt
        raise error

    def _count(self, chunk: Chunk, queue: MessageQueue, offset: int | None) -> None:
        self._buffered_bytes -= len(chunk.body)
        self.counts.rows += chunk.row_count
        self.counts.bytes += len(chunk.body)
        self._choice.note_stored(chunk, queue)
        # A delayed row, or one for a retry topic, lies in another queue: the broker answers the offset there.
        if offset is not None and not chunk.shared.single:
            self.counts.first_offsets.setdefault(queue, offset)
            self.counts.last_offsets[queue] = offset + chunk.row_count

    def _weak(self, chunk: Chunk, queue: MessageQueue, verdict: Verdict) -> None:
        status = verdict.reason
        self.counts.weak[status] = self.counts.weak.get(status, 0) + chunk.row_count
        text = f"broker {queue.broker_name!r} has stored rows for {queue.topic!r} with status {status}"
        if self._settings.fail_on_weak_status:
            raise WeakSendError(f"{text}: onStoreStatus=fail asks for the end of the batch")
        if (queue.broker_name, status) not in self._warned:
            self._warned.add((queue.broker_name, status))
            _log.warning("%s: they are not sent again; further ones of this task are only counted", text)

    def _warn(self, broker_name: str, verdict: Verdict) -> None:
        if (broker_name, verdict.outcome.value) not in self._warned:
            self._warned.add((broker_name, verdict.outcome.value))
            _log.warning("broker %r: a send is %s: %s", broker_name, verdict.outcome.value, verdict.reason)


def request_of(topics: TopicNames, chunk: Chunk, queue: MessageQueue, group: str, now_ms: int) -> RemotingCommand:
    """The request that stores a chunk in a queue. Rows without a born time get `now_ms`."""
    sys_flag, born_ms, is_single = chunk.shared
    born_ms = born_ms or now_ms
    if not is_single:
        return batch_request(topics, queue, chunk.body, group=group, sys_flag=sys_flag, born_ms=born_ms)
    flag, body, properties = decode_entry(chunk.body)
    return single_request(
        topics, queue, body, properties.decode(), group=group, flag=flag, sys_flag=sys_flag, born_ms=born_ms
    )
