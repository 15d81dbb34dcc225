"""Unlisted topics: they have queues, but no entry in `config/topics.json`.

The table or the entry was lost, a 4.9 broker never wrote the entry (system topics), or only `commitlog/` is there.

An unlisted topic can be read by its exact name, with its queues. Name patterns and the topics of a group do not find
it, because an operator may have removed the entry on purpose. `rmq repair` adds it to the table. Queues that a deleted
topic left behind are no unlisted topic (`deleted_topics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rmq_store.broker.metadata.deleted_topics import deleted_topics
from rmq_store.broker.metadata.topics import PERM_READ, QUEUE_COUNT_MAX, TopicConfig, TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.errors import UsageError
from rmq_store.format.text.names import validate_topic
from rmq_store.kinds import kinds_by_files

_NAMED = 3


class UnlistedTopics:
    """The unlisted topics of one open store."""

    def __init__(self, root: Path, topics: TopicTable, queues: Queues) -> None:
        self._root = root
        self._topics = topics
        self._queues = queues

    def get(self, name: str) -> TopicConfig | None:
        """The topic, if it is not in the table, has had messages, and was not deleted; otherwise None. It cannot be
        written to, because the queues do not hold the topic's permissions.

        Raises:
            CorruptConfigError: the table or the list of deleted topics cannot be read.
            CorruptionError, OSError: as for a queue's range.
        """
        return None if self._topics.has(name) else self._found(name, deleted_topics(self._root))

    def all(self) -> Mapping[str, TopicConfig]:
        """All unlisted topics by name, including `%LMQ%` queues of a broker. Raises as `get`."""
        listed, deleted = self._topics.all(), deleted_topics(self._root)
        names = sorted(self._queues.topic_names().difference(listed))
        names = [name for name in names if not self._topics.has(name)]
        return {name: topic for name in names if (topic := self._found(name, deleted)) is not None}

    def hint(self) -> str:
        """A sentence about the unlisted topics, for the error about an unknown topic; "" if none. Raises as `get`."""
        text = listed(tuple(self.all()))
        return f"; not in the table, though they have queues: {text} (see `rmq repair`)" if text else ""

    def _found(self, name: str, deleted: Mapping[str, int]) -> TopicConfig | None:
        try:
            validate_topic(name)
        except UsageError:
            return None
        ids = [number for number in self._queues.queue_ids(name) if number < QUEUE_COUNT_MAX]
        ends = {number: found.max_offset for number, found in self._queues.ranges(name, ids).items()}
        if not any(ends.values()) or (name in deleted and not self._is_used_since(name, ends, deleted[name])):
            return None
        kind = kinds_by_files(self._root).get(name)
        return TopicConfig(name, max(ids) + 1, max(ids) + 1, PERM_READ, kind=kind)

    def _is_used_since(self, name: str, ends: Mapping[int, int], log_end: int) -> bool:
        """True if a message was stored at or above `log_end`, the end of the log when the topic was deleted."""
        newest = (self._queues.commit_log_offset_before(name, queue_id, end) for queue_id, end in ends.items())
        return any(offset >= log_end for offset in newest)


def listed(names: Sequence[str]) -> str:
    """The first few of some names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
