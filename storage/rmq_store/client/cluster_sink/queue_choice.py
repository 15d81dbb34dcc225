"""The queue of each chunk that may go to several, and when it may go. Rows keep their order where brokers allow it.

    chunk                                its queue
    has a queue of its own               this one, also after a refusal
    is sent for the first time           any queue that is idle: all that these have of its topic is older
    was refused                          a queue of another broker that has only older rows
    was refused by a busy broker, and
    every other broker has newer rows    a queue of the same broker that has only older rows, a few times
    all others                           a queue of another broker, behind newer rows; this is counted and logged
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from rmq_store.client.backend.queue_selection import ThreadLocalIndex
from rmq_store.client.cluster_sink.chunks import Chunk
from rmq_store.client.cluster_sink.windows import ByteWindow
from rmq_store.client.producer.fault_strategy import LatencyPreset, MQFaultStrategy
from rmq_store.protocol.messages import MessageQueue

_log = logging.getLogger(__name__)

TRIES_IN_ORDER: Final = 6
"""So often a chunk goes to a busy broker before it goes behind newer rows at another one: some seconds."""


class QueueChoice:
    """The choice of one task. `queues_of`: the writable queues of a topic. `displaced_rows`: how many went behind newer
    rows of their task.
    """

    def __init__(
        self,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        latency: LatencyPreset,
        timer: Callable[[], float],
        random_start: Callable[[], int] | None = None,
    ) -> None:
        self._queues_of = queues_of
        self._index = ThreadLocalIndex(random_start) if random_start is not None else ThreadLocalIndex()
        self._faults = MQFaultStrategy(latency, send_latency_fault_enable=True, timer=timer)
        self._windows: dict[str, ByteWindow] = {}
        # Of the newest chunk that a queue may have got.
        self._newest: dict[MessageQueue, int] = {}
        self.displaced_rows = 0

    def window(self, broker_name: str) -> ByteWindow:
        """The bytes that may be on their way to a broker."""
        return self._windows.setdefault(broker_name, ByteWindow())

    def note_answer(self, broker_name: str, latency_ms: float, *, is_stored: bool) -> None:
        """A broker has answered, or a request to it has failed."""
        self._faults.update_fault_item(broker_name, latency_ms, isolation=not is_stored)

    def note_stored(self, chunk: Chunk, queue: MessageQueue) -> None:
        """A queue has got rows of a chunk."""
        newest = self._newest.get(queue, -1)
        if chunk.number < newest:
            if not self.displaced_rows:
                _log.warning(
                    "row %d and %d more without a queue of their own are in queue %d of topic %r at broker %r behind "
                    "newer rows of their task, because brokers refused them before; further ones are only counted",
                    chunk.first_row, chunk.row_count - 1, queue.queue_id, queue.topic, queue.broker_name,
                )  # fmt: skip
            self.displaced_rows += chunk.row_count
        self._newest[queue] = max(newest, chunk.number)

    def has_other_broker(self, chunk: Chunk, broker_name: str) -> bool:
        """Whether a chunk may go to another broker than this one."""
        return chunk.target.queue is None and any(
            one.broker_name != broker_name for one in self._queues_of(chunk.target.topic)
        )

    def choose(
        self, chunk: Chunk, in_flight: Collection[MessageQueue], now_ms: float
    ) -> tuple[MessageQueue | None, float | None]:
        """A queue that is not in flight, and when the chunk may go to it; (None, when to ask again); None for the time:
        after an answer.
        """
        if chunk.not_before_ms > now_ms:
            return None, chunk.not_before_ms
        size = len(chunk.body)
        own = chunk.target.queue
        if own is not None:
            return (None, None) if own in in_flight else (own, self._opens_at_ms(own, size, now_ms))
        all_queues = self._queues_of(chunk.target.topic)
        idle = [one for one in all_queues if one not in in_flight]
        wanted, is_bound = self._in_order(chunk, all_queues, idle)
        opens = {one: at for one in wanted if (at := self._opens_at_ms(one, size, now_ms)) is not None}
        open_now = [one for one, at in opens.items() if at <= now_ms]
        if not open_now and not is_bound:
            opens = {one: at for one in idle if (at := self._opens_at_ms(one, size, now_ms)) is not None}
            open_now = [one for one, at in opens.items() if at <= now_ms]
        if open_now:
            return self._faults.select_one_message_queue(open_now, self._index, chunk.last_broker), now_ms
        return None, min(opens.values(), default=None)

    def _in_order(
        self, chunk: Chunk, all_queues: Sequence[MessageQueue], idle: Sequence[MessageQueue]
    ) -> tuple[Sequence[MessageQueue], bool]:
        """The queues of `idle` that a chunk may go to, best those where it comes behind older rows only; and whether it
        waits for one of them.
        """
        if not chunk.tries:
            return idle, False
        older = [one for one in idle if self._newest.get(one, -1) <= chunk.number]
        elsewhere = _not_of(older, chunk.last_broker)
        if elsewhere:
            return elsewhere, False
        if chunk.was_busy and older and chunk.tries < TRIES_IN_ORDER:
            return older, True
        if _not_of(all_queues, chunk.last_broker):
            return _not_of(idle, chunk.last_broker), True
        return idle, False

    def _opens_at_ms(self, queue: MessageQueue, size_bytes: int, now_ms: float) -> float | None:
        return self.window(queue.broker_name).opens_at_ms(size_bytes, now_ms)


def _not_of(queues: Iterable[MessageQueue], broker_name: str | None) -> list[MessageQueue]:
    return [one for one in queues if one.broker_name != broker_name]
