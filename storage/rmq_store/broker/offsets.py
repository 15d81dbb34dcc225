"""How far groups have consumed, and how far the delay levels were delivered.

    config/consumerOffset.json   offsetTable{"topic@group": {queue id: offset}}, groupTopicMap{group: [topics]}
    config/delayOffset.json      offsetTable{level: offset}

An offset is that of the next message to be consumed. A change merges its own keys only, and may move an offset
backwards: a reset is a commit. groupTopicMap is what Java derives from the offsets; it is kept right where it is there.
Losing a change costs redelivery, never messages. Losing messages and keeping the change would cost those that get
their offsets later; so the log is flushed up to what a group commits before that is written (`flush_below`).
Sources: ConsumerOffsetManager.java, ScheduleMessageService.java.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rmq_store.broker.config_files import CachedView, ConfigFile, Table
from rmq_store.broker.queues import Queues
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptionError, UsageError
from rmq_store.format import names
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.flush import flush

# "@" is in no valid name, so a key has one meaning only. ConsumerOffsetManager.java TOPIC_GROUP_SEPARATOR.
_SEPARATOR = "@"
_OFFSET_END = 1 << 63
_QUEUE_ID_END = 1 << 31

QueueKey = tuple[str, int]


class OffsetTable:
    """The committed offsets of the store at `root`. Safe for threads; other processes' commits are seen at once.

    `flush_below` makes durable what lies below the offsets that it is given. Who only looks, or only removes, needs
    none.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        clock: Callable[[], int] = system_clock,
        flush_below: Callable[[Mapping[QueueKey, int]], None] = lambda offsets: None,
    ) -> None:
        self._file = ConfigFile(root, "consumerOffset.json", clock=clock)
        self._flush_below = flush_below
        self._view = CachedView(self._file, self._decode)

    def all(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """Return {group: {(topic, queue id): offset}}, read-only. CorruptConfigError if the table cannot be read."""
        return self._view.get()

    def committed(self, group: str) -> dict[QueueKey, int]:
        """Return {(topic, queue id): offset} of one group; {} if it never committed. Raises as `all`."""
        return dict(self.all().get(group, {}))

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set offsets of one group, forwards or backwards; durable on return, with the messages below them. Other keys
        stay as they are.

        Costs two stat calls if all of them are set already.

        Raises:
            UsageError: bad group or topic name; a queue id or offset that is no integer or negative.
            StoreLockedError, StoreFullError, StoreFailedError: as ConfigFile.update, and as `flush_below`; nothing was
                committed.
        """
        names.validate_group(group)
        wanted: dict[str, dict[int, int]] = {}
        for (topic, queue_id), offset in offsets.items():
            names.validate_topic(topic)
            queue = _integer("queue id", queue_id, _QUEUE_ID_END)
            wanted.setdefault(topic, {})[queue] = offset_number(offset)
        current = self.all().get(group, {})
        flat = {(topic, queue): value for topic, row in wanted.items() for queue, value in row.items()}
        moved = {key: value for key, value in flat.items() if current.get(key) != value}
        if not moved:
            return
        self._flush_below(moved)

        def mutate(table: Table) -> None:
            if not table:
                table["groupTopicMap"] = {}
            entries = self._file.part(table, "offsetTable")
            for topic, row in wanted.items():
                key = f"{topic}{_SEPARATOR}{group}"
                entries[key] = dict(sorted({**self._row(key, entries.get(key, {})), **row}.items()))
            _refresh_group_topic_map(table)

        self._file.update(mutate)

    def remove(self, *, group: str | None = None, topic: str | None = None) -> int:
        """Forget the offsets of a group, of a topic, or of one topic of one group; returns how many pairs went.

        Raises:
            UsageError: neither was given.
        """
        if group is None and topic is None:
            raise UsageError("name a group, a topic, or both")
        return self._remove(lambda pair: topic in (None, pair[0]) and group in (None, pair[1]))

    def remove_pairs(self, pairs: Collection[tuple[str, str]]) -> int:
        """Forget the offsets of these (topic, group), in one change; returns how many of them had any. Durable on
        return, raises as `commit`.
        """
        wanted = set(pairs)
        return self._remove(wanted.__contains__) if wanted else 0

    def _remove(self, goes: Callable[[tuple[str, str]], bool]) -> int:
        count = 0

        def mutate(table: Table) -> bool:
            nonlocal count
            entries = self._file.part(table, "offsetTable")
            for key in list(entries):
                pair = _split(key)
                if pair is not None and goes(pair):
                    del entries[key]
                    count += 1
            _refresh_group_topic_map(table)
            return count > 0

        self._file.update(mutate)
        return count

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, of this file or its backup, holds what cannot be an offset."""
        self._decode(table)

    def _decode(self, table: Table) -> Mapping[str, Mapping[QueueKey, int]]:
        found: dict[str, dict[QueueKey, int]] = {}
        for key, row in self._file.part(table, "offsetTable").items():
            pair = _split(key)
            if pair is not None:
                topic, group = pair
                of_group = found.setdefault(group, {})
                of_group.update(((topic, queue), offset) for queue, offset in self._row(key, row).items())
        return MappingProxyType({group: MappingProxyType(offsets) for group, offsets in found.items()})

    def _row(self, key: str, row: Any) -> dict[int, int]:
        return _integer_map(self._file, f"offsetTable[{str(key)[:400]!r}]", row)


def flush_below(log: CommitLog, queues: Queues, offsets: Mapping[QueueKey, int]) -> None:
    """Make durable what lies below these offsets, of a log that is open for writing. At once if nothing waits for its
    flush; otherwise each queue is asked for the message before its offset, and an fsync is made if one of them waits.

    Raises:
        StoreLockedError: another process flushes, and for too long.
        StoreFailedError: the fsync failed, now or earlier.
    """
    page = log.writing_page
    flushed_end, appended_end = page.flushed_end, page.appended_end
    if flushed_end >= appended_end:
        return
    try:
        newest = max(queues.commit_log_offset_before(*key, offset) for key, offset in offsets.items())
    except CorruptionError:  # who reads the queue is told
        newest = appended_end - 1
    if newest >= flushed_end:
        try:
            flush(log, newest + 1)
        finally:
            log.flush_lock.release_left()  # of a block that was interrupted on its way out


class DelayOffsetTable:
    """How far each delay level (1..18) of SCHEDULE_TOPIC_XXXX was delivered."""

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        self._file = ConfigFile(root, "delayOffset.json", clock=clock)
        self._view = CachedView(self._file, self._decode)

    def all(self) -> dict[int, int]:
        """Return {level: offset of the next message to be delivered}. CorruptConfigError if it cannot be read."""
        return dict(self._view.get())

    def advance(self, offsets: Mapping[int, int]) -> None:
        """Raise offsets of levels to at least these; durable on return. Raises as OffsetTable.commit."""
        self._merge(offsets, max)

    def cut_back(self, offsets: Mapping[int, int]) -> None:
        """Lower offsets of levels to at most these; durable on return. Raises as OffsetTable.commit."""
        self._merge(offsets, min)

    def _merge(self, offsets: Mapping[int, int], choose: Callable[[int, int], int]) -> None:
        wanted = {
            _integer("level", level, _QUEUE_ID_END): offset_number(offset)
            for level, offset in offsets.items()
        }

        def merged(current: Mapping[int, int]) -> dict[int, int]:
            return {level: choose(offset, current.get(level, offset)) for level, offset in wanted.items()}

        def mutate(table: Table) -> bool:
            current = self._decode(table)
            changed = dict(sorted({**current, **merged(current)}.items()))
            table["offsetTable"] = changed
            return changed != dict(current)

        current = self.all()
        if not merged(current).items() <= current.items():
            self._file.update(mutate)

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, of this file or its backup, holds what cannot be an offset."""
        self._decode(table)

    def _decode(self, table: Table) -> Mapping[int, int]:
        return MappingProxyType(_integer_map(self._file, "offsetTable", table.get("offsetTable", {})))


def offset_number(value: Any) -> int:
    """Return a caller's offset as int; UsageError if it cannot be one."""
    return _integer("offset", value, _OFFSET_END)


def _integer(what: str, value: Any, end: int) -> int:
    """Return a caller's number, numpy's included, as int; UsageError unless 0 <= value < end."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < end:
        raise UsageError(f"{what} {value!r} is not an integer in 0..{end - 1}")
    return number


def _integer_map(file: ConfigFile, what: str, row: Any) -> dict[int, int]:
    """Return an object of the file with its keys as int, quoted or not. CorruptConfigError if they are not."""
    if not isinstance(row, dict):
        raise file.corrupt(f"{what} is not an object")
    numbers: dict[int, int] = {}
    for key, value in row.items():
        # At most 10 digits: more cannot be a queue id, and int() of a long text is slow.
        is_key = type(key) is int or (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10)
        if not is_key or type(value) is not int or not -_OFFSET_END <= value < _OFFSET_END:
            raise file.corrupt(f"{what} holds {str(key)[:40]!r}: {str(value)[:40]!r}")
        numbers[int(key)] = value
    return numbers


def _split(key: Any) -> tuple[str, str] | None:
    """Return (topic, group) of a key of the file; None for what is no such pair: it is left alone."""
    topic, _, group = str(key).partition(_SEPARATOR)
    try:
        names.validate_topic(topic)
        names.validate_group(group)
    except UsageError:
        return None
    return topic, group


def _refresh_group_topic_map(table: Table) -> None:
    """Derive groupTopicMap from the offsets, where the file has one: those of 4.x do not."""
    if "groupTopicMap" in table:
        topics: dict[str, list[str]] = {}
        for pair in map(_split, table["offsetTable"]):
            if pair is not None:
                topics.setdefault(pair[1], []).append(pair[0])
        table["groupTopicMap"] = topics
