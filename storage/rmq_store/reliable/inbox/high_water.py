"""High-water marks: the largest offset of first deliveries per queue, in a table, and which ones a process must write.

A mark that is written already costs nothing. Of the threads that work on one queue, only one writes at a time:
otherwise the row would make them wait for each other's commits. The next worker writes the offsets that others have
seen meanwhile; the last one that leaves writes them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.inbox.deliveries import Delivery, Queue


class HighWater:
    """The marks of one group. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._seen: dict[Queue, int] = {}
        self._writing: set[Queue] = set()
        # Queues whose mark somebody left to others.
        self._left: set[Queue] = set()

    def enter(self, deliveries: Iterable[Delivery]) -> dict[Queue, int]:
        """The marks that this thread's transaction must write. Call `leave` after it, in any case."""
        marks: dict[Queue, int] = {}
        with self._lock:
            self._active += 1
            for delivery in deliveries:
                if delivery.is_first_delivery and delivery.queue_offset > self._seen.get(delivery.queue, -1):
                    self._seen[delivery.queue] = delivery.queue_offset
                    self._left.add(delivery.queue)
            for queue in self._left - self._writing:
                marks[queue] = self._seen[queue]
            self._writing |= marks.keys()
            self._left -= marks.keys()
        return marks

    def leave(self, marks: Mapping[Queue, int], *, is_committed: bool) -> dict[Queue, int]:
        """The marks that this thread must write now, because no other thread is about to; then it calls `wrote`."""
        with self._lock:
            self._active -= 1
            self._writing -= marks.keys()
            if not is_committed:
                self._left |= marks.keys()
                return {}
            return {} if self._active else {queue: self._seen[queue] for queue in self._left}

    def wrote(self, marks: Mapping[Queue, int]) -> None:
        """Record that these marks are committed."""
        with self._lock:
            self._left -= {queue for queue, offset in marks.items() if self._seen[queue] == offset}


def write_marks(connection: sa.Connection, tables: Tables, group: str, marks: Mapping[Queue, int]) -> None:
    """Raise the high-water marks of queues; a smaller value changes nothing. Two processes may do so at the same time.
    """
    if not marks:
        return
    high_water = tables.high_water
    rows = [
        {"group_name": group, "broker_name": broker, "topic": topic, "queue_id": queue_id, "queue_offset": offset}
        for (broker, topic, queue_id), offset in sorted(marks.items())
    ]
    dialect = connection.dialect.name
    if dialect in ("mysql", "mariadb"):
        new = mysql.insert(high_water)
        larger = sa.func.greatest(high_water.c.queue_offset, new.inserted.queue_offset)
        connection.execute(new.on_duplicate_key_update(queue_offset=larger), rows)
        return
    insert = (sqlite if dialect == "sqlite" else postgresql).insert(high_water)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=list(high_water.primary_key),
            set_={"queue_offset": insert.excluded.queue_offset},
            where=high_water.c.queue_offset < insert.excluded.queue_offset,
        ),
        rows,
    )
