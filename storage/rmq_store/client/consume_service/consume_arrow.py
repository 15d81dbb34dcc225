"""Passes rows to a concurrent listener: `consume_concurrently` for batches that are sent back together.

A listener gets all rows of a batch at one time, so all of them exceed the time limit together. The service then sends
the whole batch back without a wait for the listener. Java sends such messages back one at a time, at most sixteen of a
queue per check. Rows that the listener has done, but not answered for, come again then.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rmq_store.client.consume_service.consume_concurrently import EXPIRED_DELAY_LEVEL, ConsumeConcurrentlyService
from rmq_store.client.consume_service.process_queue import Batch, ProcessQueue
from rmq_store.client.consume_service.row_batch import RowBatch
from rmq_store.client.consume_service.send_back import reset_retry_topics
from rmq_store.client.consume_service.undecoded import parts
from rmq_store.client.group.rebalance import Assignment
from rmq_store.lazy.arrow_compute import pc
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.stored_messages import undecoded_rows


class ConsumeArrowService(ConsumeConcurrentlyService[pa.RecordBatch]):
    """The service for a listener that takes rows."""

    def submit(self, assignment: Assignment[ProcessQueue[pa.RecordBatch]], messages: Sequence[pa.RecordBatch]) -> None:
        """Consume batches that were just pulled, in slices of consume_message_batch_max_size rows."""
        size = self._config.consume_message_batch_max_size
        for pulled in messages:
            rows = reset_retry_topics(pulled, assignment.queue.topic, self._group)
            for part in parts(0, rows.num_rows, size, undecoded_rows(rows)):
                cut = rows.slice(part.first, part.behind - part.first)
                self._add(assignment, RowBatch(cut, is_undecoded=part.is_undecoded))

    def _failed(self, shown: pa.RecordBatch, done: int, batch: Batch[pa.RecordBatch]) -> pa.RecordBatch:
        failed, left = shown.slice(done), batch.left()
        if left.num_rows == shown.num_rows:
            return failed
        return failed.filter(pc.is_in(failed.column("queueOffset"), left.column("queueOffset")))

    def _send_back(self, failed: pa.RecordBatch, queue: MessageQueue, delay_level: int) -> pa.RecordBatch:
        kept = self._sender.send_rows_back(failed, queue.broker_name, delay_level)
        column = kept.schema.get_field_index("reconsumeTimes")
        older = pc.add(kept.column(column), pa.scalar(1, pa.int32()))
        return kept.set_column(column, kept.schema.field(column), older)

    def _send_expired_back(self, late: pa.RecordBatch, queue: MessageQueue) -> tuple[pa.RecordBatch, bool]:
        kept = self._sender.send_rows_back(late, queue.broker_name, EXPIRED_DELAY_LEVEL)
        return kept, not kept.num_rows

    def _name(self, messages: pa.RecordBatch, queue: MessageQueue) -> str:
        offsets = messages.column("queueOffset")
        return f"messages {offsets[0]} to {offsets[messages.num_rows - 1]} of {queue}, {messages.num_rows} in all"
