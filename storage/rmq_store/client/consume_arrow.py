"""Rows to a concurrent listener, and what its answer does: ConsumeMessageConcurrentlyService.java for whole batches.

What an answer means is in `consume_rules`. Failed rows are sent back to the broker together (CLUSTERING) or dropped
(BROADCASTING). Rows that nobody takes back count one more retry in memory and go to the listener again after five
seconds, as a batch of their own; until then they hold the progress back.

A listener gets all rows of a batch at one time, so all of them have taken too long at one time too: what is sent back
for that, without a wait for the listener, is the batch, where Java sends back messages one at a time, at most sixteen
of a queue at each look. Rows that the listener has done already, but not answered for, come again then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.client.backend import Backend, MessageQueue
from rmq_store.client.batch_process_queue import BatchProcessQueue
from rmq_store.client.consume_rules import EXPIRED_DELAY_LEVEL, EXPIRED_MAX, RESUBMIT_MS, done_count, run_at_rate
from rmq_store.client.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.executor import Executor
from rmq_store.client.listener import ConsumeConcurrentlyContext, MessageListenerArrow
from rmq_store.client.offset_store import OffsetStore
from rmq_store.client.rebalance import Assignment
from rmq_store.client.send_back import MessageSender, reset_retry_topics

_log = logging.getLogger(__name__)


class ConsumeArrowService:
    """Runs a listener on batches of any queue, as many at a time as the executor has threads."""

    def __init__(
        self,
        listener: MessageListenerArrow,
        group: str,
        config: PushConsumerConfig,
        executor: Executor,
        backend: Backend,
        offsets: OffsetStore,
    ) -> None:
        self._listener = listener
        self._group = group
        self._config = config
        self._executor = executor
        times = config.max_reconsume_times
        self._sender = MessageSender(backend, group, None if times == -1 else times)
        self._offsets = offsets
        self._clock = backend.clock
        self._is_clustering = config.message_model is MessageModel.CLUSTERING

    def submit(self, assignment: Assignment[BatchProcessQueue], messages: Sequence[pa.RecordBatch]) -> None:
        """Consume batches that were just pulled, in slices of consume_message_batch_max_size rows."""
        queue, process_queue = assignment.queue, assignment.process_queue
        size = self._config.consume_message_batch_max_size
        for pulled in messages:
            rows = reset_retry_topics(pulled, queue.topic, self._group)
            for start in range(0, rows.num_rows, size):
                number = process_queue.put(rows.slice(start, size))
                if self._config.consume_timeout_includes_queueing:
                    process_queue.mark_started(number, self._clock())
                self._executor.submit(partial(self._wait_turn, queue, process_queue, number))

    def clean_expired(self, assignments: Iterable[Assignment[BatchProcessQueue]]) -> None:
        """Send back the first batches of each queue that a listener has had for too long; it is not interrupted."""
        if not self._is_clustering:
            return
        for assignment in assignments:
            process_queue = assignment.process_queue
            for _ in range(EXPIRED_MAX):
                with process_queue.settle_lock:
                    number = process_queue.first_expired(self._config.consume_timeout_ms, self._clock())
                    if number is None or process_queue.dropped:
                        break
                    rows = process_queue.left(number)
                    assert rows is not None
                    kept = self._sender.send_rows_back(rows, assignment.queue.broker_name, EXPIRED_DELAY_LEVEL)
                    self._settle(assignment.queue, process_queue, number, kept)
                    if kept.num_rows:
                        break

    def _wait_turn(self, queue: MessageQueue, process_queue: BatchProcessQueue, number: int) -> None:
        """Let the rate limiter decide when the batch is consumed; until then it stays in its queue."""
        rows = process_queue.left(number)
        if rows is not None and not process_queue.dropped:
            work = partial(self._consume, queue, process_queue, number)
            run_at_rate(self._executor, self._config.rate_limiter, rows.num_rows, work)

    def _consume(self, queue: MessageQueue, process_queue: BatchProcessQueue, number: int) -> None:
        rows = process_queue.left(number)
        # It may have waited for so long that it was sent back already.
        if process_queue.dropped or rows is None:
            return
        if not self._config.consume_timeout_includes_queueing:
            process_queue.mark_started(number, self._clock())
        context = ConsumeConcurrentlyContext(queue)
        call = partial(self._listener.consume_message, rows, context)
        done = done_count(call, context, rows.num_rows, self._group, partial(_name, queue, rows))
        with process_queue.settle_lock:
            if process_queue.dropped:
                _log.warning("group %s: %s went to another member; its result is void", self._group, queue)
                return
            left = process_queue.left(number)
            if left is None:  # it took too long, and was sent back while the listener still had it: once is enough
                return
            failed = rows.slice(done)
            if left.num_rows < rows.num_rows:  # of a batch that took too long, a part was sent back
                failed = failed.filter(pc.is_in(failed.column("queueOffset"), left.column("queueOffset")))
            kept = self._give_back(queue, failed, context.delay_level_when_next_consume)
            if kept.num_rows:
                kept = _one_retry_older(kept)
                self._executor.submit_later(partial(self._wait_turn, queue, process_queue, number), RESUBMIT_MS)
            self._settle(queue, process_queue, number, kept)

    def _give_back(self, queue: MessageQueue, failed: pa.RecordBatch, delay_level: int) -> pa.RecordBatch:
        """Send failed rows back; returns those that must be kept here."""
        if not failed.num_rows:
            return failed
        if self._is_clustering:
            return self._sender.send_rows_back(failed, queue.broker_name, delay_level)
        _log.warning("group %s: broadcasting, so these are dropped: %s", self._group, _name(queue, failed))
        return failed.slice(failed.num_rows)

    def _settle(
        self, queue: MessageQueue, process_queue: BatchProcessQueue, number: int, left: pa.RecordBatch
    ) -> None:
        self._offsets.update(queue, process_queue.settle(number, left), increase_only=True)


def _one_retry_older(rows: pa.RecordBatch) -> pa.RecordBatch:
    column = rows.schema.get_field_index("reconsumeTimes")
    older = pc.add(rows.column(column), pa.scalar(1, pa.int32()))
    return rows.set_column(column, rows.schema.field(column), older)


def _name(queue: MessageQueue, rows: pa.RecordBatch) -> str:
    offsets = rows.column("queueOffset")
    return f"messages {offsets[0]} to {offsets[rows.num_rows - 1]} of {queue}, {rows.num_rows} in all"
