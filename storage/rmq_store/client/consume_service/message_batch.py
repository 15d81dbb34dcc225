"""A batch for a listener that takes objects."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.client.consume_service.process_queue import Batch
from rmq_store.files.locks.guard import Guard
from rmq_store.format.properties.property_string import CONSUME_START_TIME
from rmq_store.protocol.messages import MessageExt, add_properties
from rmq_store.protocol.stored_messages import MessageRows


class MessageBatch(Batch[Sequence[MessageExt]]):
    """The rows [first, behind) of a pull, at least one. `left` makes objects of them on the first call, so that a batch
    at a listener keeps no pull in memory. Each object has in CONSUME_START_TIME the time at which a listener gets it.
    """

    __slots__ = ("_behind", "_first", "_lock", "_messages", "_rows")

    def __init__(self, rows: MessageRows, first: int, behind: int, *, is_undecoded: bool = False) -> None:
        begin, end = rows.queue_offset(first), rows.queue_offset(behind - 1) + 1
        size_bytes = rows.body_bytes(first, behind)
        super().__init__(begin, end, behind - first, size_bytes, is_undecoded=is_undecoded)
        self._rows: MessageRows | None = rows
        self._first, self._behind = first, behind
        self._messages: Sequence[MessageExt] = ()
        # A message that took too long is sent back by another thread than the one that makes its object.
        self._lock = Guard()

    def left(self, shown_ms: int | None = None) -> Sequence[MessageExt]:
        """The unfinished messages, the same objects each time."""
        added = {} if shown_ms is None else {CONSUME_START_TIME: str(shown_ms)}
        with self._lock.entered():
            if self._rows is not None:
                self._messages, self._rows = self._rows.take(self._first, self._behind, added), None
            else:
                for message in self._messages:
                    add_properties(message, added)
            return self._messages

    def keep(self, left: Sequence[MessageExt]) -> None:
        """Keep only these messages as unfinished. They may be other objects than before, for the same positions."""
        with self._lock.entered():
            self._rows, self._messages = None, left
        self.count, self.size_bytes = len(left), sum(len(message.body) for message in left)
        if left:
            self.begin, self.end = left[0].queue_offset, left[-1].queue_offset + 1
