"""One file of committed offsets, as a broker writes it. `offsets` decides which of two files counts for a group.

    offsetTable{"topic@group": {queue id: offset}}, groupTopicMap{group: [topics]}

A change merges its own keys only. Entries that cannot be offsets stay (`odd_entries`). Java derives groupTopicMap from
the offsets; it is updated here if the file has it. Source: ConsumerOffsetManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rmq_store.broker.metadata.json_table import CachedView, ConfigFile, Table
from rmq_store.broker.metadata.odd_entries import AGAIN, Entries, OddEntry, shown
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.format.tables.config_json import Shadowed, Verbatim, remove
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass

# "@" is in no valid name, so a key has one meaning only. ConsumerOffsetManager.java TOPIC_GROUP_SEPARATOR.
SEPARATOR = "@"
PLAIN_OFFSETS, LMQ_OFFSETS = "consumerOffset.json", "lmqConsumerOffset.json"
OFFSET_END = 1 << 63
QUEUE_ID_END = 1 << 31

QueueKey = tuple[str, int]
Odd = dict[Any, OddEntry]


@dataclass(frozen=True, slots=True, eq=False)
class FileView:
    """The offsets of one file. `odd_rows`: {group: {topic or (topic, queue id): why it cannot be used}}. `light`:
    offsets of groups that begin with %LMQ%, by the same keys, all for queue 0.
    """

    groups: Mapping[str, Mapping[QueueKey, int]]
    odd_rows: Mapping[str, Odd]
    odd: Sequence[OddEntry]
    light: Mapping[str, Mapping[QueueKey, int]] = field(default_factory=dict)

    def has(self, group: str) -> bool:
        """True if the file has an entry of a group."""
        return group in self.groups or group in self.odd_rows

    def of(self, group: str) -> dict[QueueKey, int]:
        """A copy of a group's offsets. A lookup of an unusable one raises CorruptConfigError."""
        usable, odd = self.groups.get(group, {}), self.odd_rows.get(group)
        if odd is None:
            return dict(usable)
        return Entries(usable, lambda key: odd.get(key) or (odd.get(key[0]) if isinstance(key, tuple) else None))


class OffsetFile:
    """`config/<name>` of the store at `root`."""

    part = "offsetTable"

    def __init__(self, root: str | Path, name: str, *, clock: Callable[[], int] = system_clock) -> None:
        self._file = ConfigFile(root, name, clock=clock)
        self._view = CachedView(self._file, self._decode)
        self.path = self._file.path

    def view(self) -> FileView:
        """The content of the file now. CorruptConfigError if it and its backup cannot be read."""
        return self._view.get()

    def exists(self) -> bool:
        """True if the file or its backup exists."""
        return any(part is not None for part in self._file.stamp())

    def merge(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set offsets of one group. Durable on return.

        Raises:
            CorruptConfigError: as `view`; or the value of one of the topics is no object. Nothing was changed.
            StoreLockedError, StoreFullError, StoreFailedError: as ConfigFile.update.
        """
        self._file.update(lambda table: self.put(table, group, offsets))

    def put(self, table: Table, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set offsets of one group in `table`, from this file or for it. CorruptConfigError as `merge`."""
        wanted: dict[str, dict[int, int]] = {}
        for (topic, queue_id), offset in offsets.items():
            wanted.setdefault(topic, {})[queue_id] = offset
        if not table:
            table["groupTopicMap"] = {}
        entries = self._file.part(table, self.part)
        for topic, row in wanted.items():
            key = f"{topic}{SEPARATOR}{group}"
            entries[key] = self._merged(key, entries.get(key, {}), row)
        _refresh_group_topic_map(table)

    def groups(self, table: Table) -> Mapping[str, Mapping[QueueKey, int]]:
        """{group: {(topic, queue id): offset}} of `table`, from this file or for it. CorruptConfigError as `check`."""
        return self._decode(table).groups

    def remove(self, goes: Callable[[tuple[str, str]], bool]) -> set[tuple[str, str]]:
        """Delete the offsets of those (topic, group) for which `goes` is true; return these. Durable on return."""
        gone: set[tuple[str, str]] = set()

        def mutate(table: Table) -> bool:
            gone.clear()
            entries = self._file.part(table, self.part)
            for key in list(entries):
                pair = split(key)
                if pair is not None and goes(pair):
                    remove(entries, key)
                    gone.add(pair)
            _refresh_group_topic_map(table)
            return bool(gone)

        self._file.update(mutate)
        return gone

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, from this file or its backup, is no table of offsets."""
        self._decode(table)

    def odd_keys(self, table: Table) -> list[Any]:
        """The keys of the rows with a value that cannot be an offset. CorruptConfigError as `check`."""
        return [
            key
            for key, row in self._file.part(table, self.part).items()
            if not isinstance(row, dict) or split(key) is None or integer_members("", "", row)[1]
        ]

    def _decode(self, table: Table) -> FileView:
        groups: dict[str, dict[QueueKey, int]] = {}
        odd_rows: dict[str, Odd] = {}
        others: list[OddEntry] = []
        for key, row in self._file.part(table, self.part).items():
            pair = split(key)
            if pair is None:
                others.append(OddEntry(str(self.path), f"offsetTable[{shown(key)}]: {_why_no_pair(key)}"))
                continue
            topic, group = pair
            if not isinstance(row, dict):
                reason = f"offsets of group {shown(group)}, topic {shown(topic)}: not an object"
                odd_rows.setdefault(group, {})[topic] = OddEntry(str(self.path), reason)
                continue
            usable, odd = integer_members(str(self.path), f"group {shown(group)}, topic {shown(topic)}: queue", row)
            if usable:
                groups.setdefault(group, {}).update(((topic, queue), offset) for queue, offset in usable.items())
            if odd:
                odd_rows.setdefault(group, {}).update(((topic, queue), entry) for queue, entry in odd.items())
        rows = [entry for odd in odd_rows.values() for entry in odd.values()]
        return FileView(groups, odd_rows, (*others, *rows), _light_groups(table.get("lmqOffsetTable")))

    def _merged(self, key: str, row: Any, wanted: Mapping[int, int]) -> dict[Any, Any]:
        """The row with these offsets; unusable members stay, after them."""
        if not isinstance(row, dict):
            raise OddEntry(str(self.path), f"offsetTable[{shown(key)}]: not an object").error()
        return merged_members(row, wanted)


def _light_groups(table: Any) -> dict[str, dict[QueueKey, int]]:
    """LmqConsumerOffsetManager: {"topic@group": offset}. Other values are skipped: only a broker writes this table."""
    found: dict[str, dict[QueueKey, int]] = {}
    for key, offset in table.items() if isinstance(table, dict) else ():
        pair = split(key)
        if pair is not None and type(offset) is int:
            found.setdefault(pair[1], {})[pair[0], 0] = offset
    return found


def integer_members(path: str, what: str, row: Mapping[Any, Any]) -> tuple[dict[int, int], Odd]:
    """Return ({id: offset}, unusable members) of an object of a file; its keys are quoted or not."""
    usable: dict[int, int] = {}
    odd: Odd = {}
    for key, value in row.items():
        number = _id(key)
        if isinstance(key, Shadowed):
            odd[key] = OddEntry(path, f"{what} {shown(key.key)}: {AGAIN}")
        elif number is None:
            odd[key] = OddEntry(path, f"{what} {shown(key)}: no number in 0..{QUEUE_ID_END - 1}")
        elif type(value) is not int:
            odd[number] = OddEntry(path, f"{what} {number}: {shown(value)} is no 64-bit integer")
            usable.pop(number, None)
        else:
            usable[number] = value
            odd.pop(number, None)
    return usable, odd


def merged_members(row: Mapping[Any, Any], wanted: Mapping[int, int]) -> dict[Any, Any]:
    """An object of a file with these offsets, in the order of their ids. Unusable members stay as they were: shadowed
    ones before the others, because the last one counts.
    """
    usable, _ = integer_members("", "", row)
    known = {**usable, **wanted}
    shadowed = {key: value for key, value in row.items() if isinstance(key, Shadowed) and _id(key.key) not in wanted}
    odd = {key: value for key, value in row.items() if not isinstance(key, Shadowed) and _id(key) not in known}
    return {**shadowed, **dict(sorted(known.items())), **odd}


def split(key: Any) -> tuple[str, str] | None:
    """Return (topic, group) of a key of the file; None if it is no such pair: then it stays as it is."""
    if not isinstance(key, str):
        return None
    topic, _, group = key.partition(SEPARATOR)
    try:
        names.validate_topic(topic)
        names.validate_group(group)
    except UsageError:
        return None
    return topic, group


def _id(key: Any) -> int | None:
    """A queue id or a level in a key, quoted or not."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= len(str(QUEUE_ID_END)):
        key = int(key)
    return key if type(key) is int and 0 <= key < QUEUE_ID_END else None


def _why_no_pair(key: Any) -> str:
    return AGAIN if isinstance(key, Shadowed) else "no topic@group"


def _java_pairs(entries: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """As ConsumerOffsetManager#getGroupTopicMap splits the keys, those of odd names too."""
    for key in entries:
        parts = str(key).rstrip(SEPARATOR).split(SEPARATOR) if isinstance(key, str | int | Verbatim) else []
        if len(parts) == 2:
            yield parts[0], parts[1]


def _refresh_group_topic_map(table: Table) -> None:
    """Derive groupTopicMap from the offsets, if the file has one: files of 4.x do not."""
    known = table.get("groupTopicMap")
    if not isinstance(known, dict):
        return
    topics: dict[str, list[str]] = {}
    for topic, group in _java_pairs(table["offsetTable"]):
        topics.setdefault(group, []).append(topic)
    table["groupTopicMap"] = topics
