"""The committed offsets of groups, and the progress of the delay levels.

    config/consumerOffset.json      offsetTable{"topic@group": {queue id: offset}}
    config/lmqConsumerOffset.json   the same, of a broker with enableLmq=true, which reads no other
    config/delayOffset.json         offsetTable{level: offset}

An offset is that of the next message to consume. A change merges its own keys only, and may move an offset backwards:
a reset is a commit. If a change is lost, messages are delivered again, and none is lost. If messages were lost and the
change stayed, the group would skip the messages that get their offsets later. So the log is flushed up to the committed
offsets before they are written (`flush_below`).

lmqConsumerOffset.json stays when enableLmq is switched off, so the files do not show which of them a broker reads. For
a group in only one file, that file counts. A group with different offsets in both files is refused until `enable_lmq`
is set. If both files agree, both are written. `lmqOffsetTable` has the groups that begin with %LMQ%: it is read only
for a group that a caller names, appears in no list, and is never written. Sources: ConsumerOffsetManager.java,
LmqConsumerOffsetManager.java, ScheduleMessageService.java.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rmq_store.broker.metadata.json_table import CachedView, ConfigFile, Table
from rmq_store.broker.metadata.odd_entries import Entries, OddEntry, Refusal, with_errors
from rmq_store.broker.metadata.offset_files import (
    LMQ_OFFSETS,
    OFFSET_END,
    PLAIN_OFFSETS,
    QUEUE_ID_END,
    FileView,
    OffsetFile,
    QueueKey,
    integer_members,
    merged_members,
)
from rmq_store.broker.read.queues import Queues
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptionError, UsageError
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.flush import flush
from rmq_store.log.core.commit_log import CommitLog

_NO_VIEW = FileView({}, {}, ())


@dataclass(frozen=True, slots=True)
class LmqConflict(Refusal):
    """A group whose offsets differ in two files."""

    group: str
    paths: tuple[str, str]

    @property
    def reason(self) -> str:
        """The defect, as a text."""
        return f"group {self.group!r} has other offsets in {self.paths[0]} than in {self.paths[1]}"

    def error(self) -> UsageError:
        """The error for a caller that looks up the group."""
        return UsageError(
            f"{self.reason}: a broker with enableLmq=true reads the second file only, any other broker the first. Say "
            "which kind of broker uses the store: enableLmq=true or false (StoreConfig(enable_lmq=...), Spark's option "
            "enableLmq, or for good `rmq updateBrokerConfig -k enableLmq -v true`)"
        )


class OffsetTable:
    """The committed offsets of the store at `root`. Safe for threads; other processes' commits are seen at once.

    `flush_below` makes the messages below the given offsets durable. A caller that only reads, or only removes, needs
    none. `enable_lmq`: the setting enableLmq of the store's broker; None: unknown.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        clock: Callable[[], int] = system_clock,
        flush_below: Callable[[Mapping[QueueKey, int]], None] = lambda offsets: None,
        enable_lmq: bool | None = None,
    ) -> None:
        self._plain = OffsetFile(root, PLAIN_OFFSETS, clock=clock)
        self._lmq = OffsetFile(root, LMQ_OFFSETS, clock=clock)
        self._flush_below = flush_below
        self._enable_lmq = enable_lmq
        self._joined: tuple[FileView, FileView, Mapping[str, Mapping[QueueKey, int]]] | None = None

    def all(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """Return {group: {(topic, queue id): offset}}, read-only, without the groups whose offsets differ in two files:
        a lookup of such a group raises UsageError. CorruptConfigError if a table cannot be read.
        """
        plain, lmq = self._views()
        joined = self._joined
        if joined is None or joined[0] is not plain or joined[1] is not lmq:
            self._joined = joined = plain, lmq, self._join(plain, lmq)
        return joined[2]

    def committed(self, group: str) -> dict[QueueKey, int]:
        """Return {(topic, queue id): offset} of one group; {} if it never committed. A lookup of an unusable offset in
        the result raises CorruptConfigError. Raises as `all`; UsageError: the group's offsets differ in two files.
        """
        plain, lmq = self._views()
        if self._is_light(group, plain, lmq):
            return dict(lmq.light.get(group, {}))
        return self._counted(group, plain, lmq).of(group)

    def odd(self) -> Sequence[OddEntry | LmqConflict]:
        """Return entries that cannot be offsets, and the groups whose offsets differ in two files. Raises as `all`."""
        plain, lmq = self._views()
        return *plain.odd, *lmq.odd, *self.conflicts()

    def conflicts(self) -> list[LmqConflict]:
        """Return the groups whose offsets differ in two files. Raises as `all`."""
        plain, lmq = self._views()
        groups = sorted({*plain.groups, *plain.odd_rows})
        return [self._conflict(group) for group in groups if self._differs(group, plain, lmq)]

    def given_out(self) -> Iterator[tuple[QueueKey, int]]:
        """Every offset of every group, whichever file counts. Raises as `all`."""
        for view in self._views():
            for offsets in view.groups.values():
                yield from offsets.items()

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set offsets of one group, forwards or backwards; durable on return, with the messages below them. Other keys
        stay as they are.

        It costs a few stat calls if all offsets are set already.

        Raises:
            UsageError: bad group or topic name; a queue id or offset that is no integer or negative; the group's
                offsets differ in two files.
            CorruptConfigError: a table cannot be read, or its value of one of the topics is no object.
            StoreLockedError, StoreFullError, StoreFailedError: as ConfigFile.update, and as `flush_below`; nothing was
                committed.
        """
        names.validate_group(group)
        wanted: dict[QueueKey, int] = {}
        for (topic, queue_id), offset in offsets.items():
            names.validate_topic(topic)
            wanted[topic, _integer("queue id", queue_id, QUEUE_ID_END)] = offset_number(offset)
        plain, lmq = self._views()
        if self._is_light(group, plain, lmq):
            raise UsageError(
                f"group {group!r}: a broker with enableLmq=true has the offsets of groups that begin with "
                f"{names.LMQ_PREFIX} in lmqOffsetTable of {self._lmq.path}, which only a broker writes"
            )
        counted = self._counted(group, plain, lmq)
        usable = counted.groups.get(group, {})
        for file, view in self._files_for(group, plain, lmq):
            # A file that did not count gets all of the group, or its other queues would begin anew there.
            complete = wanted if view is counted else {**usable, **wanted}
            there = view.groups.get(group, {})
            moved = {key: value for key, value in complete.items() if there.get(key) != value}
            if moved:
                self._flush_below(moved)
                file.merge(group, moved)

    def remove(self, *, group: str | None = None, topic: str | None = None) -> int:
        """Remove the offsets of a group, of a topic, or of one topic of one group. Returns the number of removed
        (topic, group) pairs. Durable on return.

        Raises:
            UsageError: neither was given.
        """
        if group is None and topic is None:
            raise UsageError("name a group, a topic, or both")
        return self._remove(lambda pair: topic in (None, pair[0]) and group in (None, pair[1]))

    def remove_pairs(self, pairs: Collection[tuple[str, str]]) -> int:
        """Remove the offsets of these (topic, group), in one change. Returns how many of them had any. Durable on
        return, raises as `commit`.
        """
        wanted = set(pairs)
        return self._remove(wanted.__contains__) if wanted else 0

    def _remove(self, goes: Callable[[tuple[str, str]], bool]) -> int:
        gone = self._plain.remove(goes)
        if self._lmq.exists():
            gone |= self._lmq.remove(goes)
        return len(gone)

    def _views(self) -> tuple[FileView, FileView]:
        return self._plain.view(), self._lmq.view() if self._lmq.exists() else _NO_VIEW

    def _join(self, plain: FileView, lmq: FileView) -> Mapping[str, Mapping[QueueKey, int]]:
        joined: dict[str, Mapping[QueueKey, int]] = {}
        conflicts: set[str] = set()
        for group in {**plain.groups, **lmq.groups}:
            if self._differs(group, plain, lmq):
                conflicts.add(group)
            else:
                joined[group] = MappingProxyType(self._counted(group, plain, lmq).of(group))
        if not conflicts:
            return MappingProxyType(joined)
        return MappingProxyType(Entries(joined, lambda group: self._conflict(group) if group in conflicts else None))

    def _counted(self, group: str, plain: FileView, lmq: FileView) -> FileView:
        """The file that counts for a group. UsageError: that is unknown."""
        if self._differs(group, plain, lmq):
            raise self._conflict(group).error()
        if self._enable_lmq is False:
            return plain if plain.has(group) else lmq
        return lmq if lmq.has(group) else plain

    def _files_for(self, group: str, plain: FileView, lmq: FileView) -> list[tuple[OffsetFile, FileView]]:
        """The files that the group's commits are written to."""
        if self._enable_lmq is not None:
            return [(self._lmq, lmq)] if self._enable_lmq else [(self._plain, plain)]
        both = [(self._plain, plain), (self._lmq, lmq)]
        if lmq is _NO_VIEW:
            return both[:1]
        with_group = [(file, view) for file, view in both if view.has(group)]
        return with_group or [(file, view) for file, view in both if file.exists()]

    def _is_light(self, group: str, plain: FileView, lmq: FileView) -> bool:
        """True if a broker with enableLmq=true keeps the group's offsets in `lmqOffsetTable`."""
        is_possible = group.startswith(names.LMQ_PREFIX) and lmq is not _NO_VIEW and self._enable_lmq is not False
        return is_possible and (self._enable_lmq is True or not plain.has(group))

    def _differs(self, group: str, plain: FileView, lmq: FileView) -> bool:
        if self._enable_lmq is not None or not (plain.has(group) and lmq.has(group)):
            return False
        return plain.groups.get(group) != lmq.groups.get(group) or group in {**plain.odd_rows, **lmq.odd_rows}

    def _conflict(self, group: str) -> LmqConflict:
        return LmqConflict(group, (str(self._plain.path), str(self._lmq.path)))


def flush_below(log: CommitLog, queues: Queues, offsets: Mapping[QueueKey, int]) -> None:
    """Make the messages below these offsets durable; the log is open for writing. Returns at once if nothing waits for
    a flush. Otherwise it looks up the message before each offset, and calls fsync if one of them is not flushed.

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
    """The delivery progress of each delay level (1..18) of SCHEDULE_TOPIC_XXXX."""

    part = "offsetTable"

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        self._file = ConfigFile(root, "delayOffset.json", clock=clock)
        self._view = CachedView(self._file, self._decode)

    def all(self) -> dict[int, int]:
        """Return {level: offset of the next message to be delivered}. CorruptConfigError for a lookup of a level with
        an unusable offset, and for a table that cannot be read.
        """
        return self._view.get()[0].copy()

    def odd(self) -> Sequence[OddEntry]:
        """Return the entries that cannot be offsets. Raises as `all`."""
        return self._view.get()[1]

    def advance(self, offsets: Mapping[int, int]) -> None:
        """Raise offsets of levels to at least these; durable on return. Raises as OffsetTable.commit."""
        self._merge(offsets, max)

    def cut_back(self, offsets: Mapping[int, int]) -> None:
        """Lower offsets of levels to at most these; durable on return. Raises as OffsetTable.commit."""
        self._merge(offsets, min)

    def _merge(self, offsets: Mapping[int, int], choose: Callable[[int, int], int]) -> None:
        wanted = {_integer("level", level, QUEUE_ID_END): offset_number(offset) for level, offset in offsets.items()}

        def merged(current: Mapping[int, int]) -> dict[int, int]:
            return {level: choose(offset, current.get(level, offset)) for level, offset in wanted.items()}

        def mutate(table: Table) -> bool:
            current, _ = self._decode(table)
            changed = merged(current)
            table[self.part] = merged_members(self._file.part(table, self.part), changed)
            return {**current, **changed} != current

        current = self.all()
        if not merged(current).items() <= current.items():
            self._file.update(mutate)

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, from this file or its backup, is no table of levels."""
        self._decode(table)

    def odd_keys(self, table: Table) -> list[Any]:
        """The keys of the levels that have no offset. CorruptConfigError as `check`."""
        members = self._file.part(table, self.part)
        return [key for key in members if integer_members("", "", {key: members[key]})[1]]

    def _decode(self, table: Table) -> tuple[dict[int, int], Sequence[OddEntry]]:
        usable, odd = integer_members(str(self._file.path), "level", self._file.part(table, self.part))
        return with_errors(usable, odd), (*odd.values(),)


def offset_number(value: Any) -> int:
    """Return a caller's offset as int; UsageError if it cannot be one."""
    return _integer("offset", value, OFFSET_END)


def _integer(what: str, value: Any, end: int) -> int:
    """Return a caller's number, numpy's included, as int; UsageError unless 0 <= value < end."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < end:
        raise UsageError(f"{what} {value!r} is not an integer in 0..{end - 1}")
    return number
