"""Topics and their queues: `config/topics.json`.

    topicConfigTable{topic: {attributes, order, perm, readQueueNums, topicFilterType, topicName, topicSysFlag,
                             writeQueueNums}}

Names match whole. The store decides whether a sender may create a topic. Members that a broker does not write, unknown
fields, and entries that no topic can have (`odd_entries`) stay in the file. Sources:
TopicConfigManager.java, TopicConfig.java, PermName.java.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from rmq_store import kinds
from rmq_store.broker.metadata.entry_table import EntryTable
from rmq_store.broker.metadata.json_table import Stamp, Table
from rmq_store.broker.metadata.odd_entries import shown
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptConfigError, UnknownTopicError, UsageError
from rmq_store.files import durable
from rmq_store.files.rooted import as_path
from rmq_store.format.tables.config_json import Shadowed
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

# Java's limit is 2^31 - 1. A table is walked queue by queue, so one hostile number must not make that endless.
QUEUE_COUNT_MAX = 65_536


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic: queues 0 .. `read_queue_nums` can be read, 0 .. `write_queue_nums` get new messages (half-open).

    `perm` is a sum of the PERM_ bits. The defaults are those of Java's TopicConfig for fields that a file leaves out.
    `kind` of a topic in a table: what keeps it from being read or written here (docs/stores.md); None: nothing does.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    kind: kinds.Kind | None = field(default=None, compare=False, repr=False)

    @property
    def readable(self) -> bool:
        """True if consumers may read it."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """True if producers may send to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_read_here(self) -> bool:
        """False if the store keeps it in a way that is not read here."""
        return kinds.is_read(self.kind)


def _topic(name: str, queue_count: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    return TopicConfig(name, queue_count, queue_count, perm)


DEFAULT_TOPICS = (
    _topic("SELF_TEST_TOPIC", 1),
    _topic(names.AUTO_CREATE_TOPIC, 8, PERM_READ | PERM_WRITE | PERM_INHERIT),
    _topic("BenchmarkTest", 1024),
    _topic("OFFSET_MOVED_EVENT", 1),
    _topic(names.SCHEDULE_TOPIC, 18),
    _topic(names.HALF_TOPIC, 1),
    _topic(names.OP_HALF_TOPIC, 1),
)
"""The topics of a broker's new table, without those named after the broker or its cluster."""


class TopicTable(EntryTable[TopicConfig]):
    """The topics of the store at `root`. Safe for threads; other processes' changes are seen at the next call."""

    part = "topicConfigTable"
    file_name = "topics.json"

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        self._root = as_path(root)
        super().__init__(root, clock=clock)

    def get(self, name: str) -> TopicConfig:
        """Return one topic; UnknownTopicError if there is none, CorruptConfigError if it cannot be used."""
        topic = self.all().get(name)
        if topic is None:
            raise UnknownTopicError(f"no topic {str(name)[:255]!r} in {self._file.path}")
        return topic

    def create(self, topic: TopicConfig, *, exist_ok: bool = False) -> TopicConfig:
        """Add a topic durably and return it; with `exist_ok`, return an existing one unchanged.

        Raises:
            UsageError: bad name, queue count, perm or attributes; or the topic exists.
            CorruptConfigError: as `all`; or an entry of this name holds what no topic can have, and is kept.
        """
        existing = self.create_all([topic], exist_ok=exist_ok)
        return existing.get(topic.topic_name, topic)

    def create_all(self, topics: Sequence[TopicConfig], *, exist_ok: bool = False) -> Mapping[str, TopicConfig]:
        """Add topics in one durable change; return those that existed. Raises as `create`; then none is added."""
        for topic in topics:
            _check(topic)
        found: dict[str, TopicConfig] = {}

        def mutate(table: Table) -> bool:
            entries = self._file.part(table, self.part)
            for topic in topics:
                if topic.topic_name not in entries:
                    entries[topic.topic_name] = topic_entry(topic)
                    continue
                there = self._usable(topic.topic_name, entries[topic.topic_name])
                if not exist_ok:
                    raise UsageError(f"topic {topic.topic_name!r} exists")
                found[topic.topic_name] = there
            return len(found) < len(topics)

        current = self.all() if exist_ok else {}
        if topics and all(topic.topic_name in current for topic in topics):
            return {topic.topic_name: current[topic.topic_name] for topic in topics}
        self._file.update(mutate)
        return found

    def start_anew(self, topics: Sequence[TopicConfig]) -> None:
        """Write a table of these topics in place of an unreadable one. Raises as `ConfigFile.start_anew`."""
        self._file.start_anew({self.part: {topic.topic_name: topic_entry(topic) for topic in topics}})

    def update(self, topic: TopicConfig) -> None:
        """Replace the known fields of an existing topic durably; fields of newer versions stay.

        Raises:
            UnknownTopicError: no such topic.
            UsageError, CorruptConfigError: as `create`.
        """
        _check(topic)

        def mutate(table: Table) -> None:
            entries = self._file.part(table, self.part)
            if topic.topic_name not in entries:
                raise UnknownTopicError(f"no topic {topic.topic_name!r} in {self._file.path}")
            self._usable(topic.topic_name, entries[topic.topic_name])
            entries[topic.topic_name].update(topic_entry(topic))

        self._file.update(mutate)

    def change(
        self, name: str, change: Callable[[TopicConfig], TopicConfig], *, default: TopicConfig
    ) -> tuple[TopicConfig | None, TopicConfig]:
        """Replace a topic durably by the result of `change`, which gets `default` if there is none. No concurrent
        change is lost. Returns the topic before (None: new) and after. Raises as `create`.
        """
        results: list[tuple[TopicConfig | None, TopicConfig]] = []

        def mutate(table: Table) -> bool:
            entries = self._file.part(table, self.part)
            before = self._usable(name, entries[name]) if name in entries else None
            after = change(before or default)
            _check(after)
            entries[name] = {**entries.get(name, {}), **topic_entry(after)}
            results.append((before, after))
            return before != after

        self._file.update(mutate)
        return results[-1]

    def delete(self, name: str) -> bool:
        """Remove a topic durably; False if there was none. Its queue files are not touched.

        Raises:
            UsageError: a topic of the broker itself.
        """
        if names.is_system_topic(name):
            raise UsageError(f"topic {name!r} belongs to the broker and cannot be deleted")
        return self._remove(name)

    def _completed(self, usable: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
        with durable.typed_reading(self._root):
            by_files = kinds.kinds_by_files(self._root)
        for name, kind in by_files.items():
            if name in usable:
                usable[name] = replace(usable[name], kind=kind)
        return usable

    def _decode_entry(self, name: str, entry: Any) -> TopicConfig:
        if not isinstance(entry, dict):
            raise self._corrupt(name, "not an object")
        entry = {member: value for member, value in entry.items() if value is not None}  # Java keeps its default
        attributes = entry.get("attributes", {})
        if not isinstance(attributes, dict):
            raise self._corrupt(name, "attributes is not an object")
        attributes = {key: text for key, text in attributes.items() if not isinstance(key, Shadowed)}
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=entry.get("readQueueNums", 16),
            write_queue_nums=entry.get("writeQueueNums", 16),
            perm=entry.get("perm", PERM_READ | PERM_WRITE),
            topic_filter_type=entry.get("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=entry.get("topicSysFlag", 0),
            order=entry.get("order", False),
            attributes=attributes,
        )
        try:
            _check(topic)
        except UsageError as error:
            raise self._corrupt(name, str(error)) from error
        kind = kinds.kind_by_attributes(attributes)
        return topic if kind is None else replace(topic, kind=kind)

    def _corrupt(self, name: str, reason: str) -> CorruptConfigError:
        return self._file.corrupt(f"topic {shown(name)}: {reason}")


def topics_with_batch_queues(root: Path) -> frozenset[str]:
    """Topics of the store at `root` that have batch queues, by their attributes. CorruptConfigError."""
    return _with_batch_queues(root, TopicTable(root).stamp())


@functools.lru_cache(maxsize=16)
def _with_batch_queues(root: Path, stamp: Stamp) -> frozenset[str]:
    """Cached for each state of the table, because every task of Spark opens the store, and there may be many topics."""
    topics = TopicTable(root).all().values()
    return frozenset(topic.topic_name for topic in topics if topic.kind is kinds.BATCH_QUEUES)


def _check(topic: TopicConfig) -> None:
    """UsageError if a topic cannot have one of these values. The name comes first, because it becomes a directory."""
    names.validate_topic(topic.topic_name)
    for what, count in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
        if type(count) is not int or not 0 <= count <= QUEUE_COUNT_MAX:
            raise UsageError(f"{what} queue count {count!r} is not an integer in 0..{QUEUE_COUNT_MAX}")
    if type(topic.perm) is not int or not 0 <= topic.perm < 16:
        raise UsageError(f"perm {topic.perm!r} is not an integer in 0..15")
    if type(topic.topic_sys_flag) is not int or not -(1 << 31) <= topic.topic_sys_flag < 1 << 31:
        raise UsageError(f"topicSysFlag {topic.topic_sys_flag!r} is not a 32-bit integer")
    if not isinstance(topic.topic_filter_type, str):
        raise UsageError(f"topicFilterType {topic.topic_filter_type!r} is not a text")
    if not isinstance(topic.order, bool):
        raise UsageError(f"order {topic.order!r} is not true or false")
    if not all(isinstance(text, str) for pair in topic.attributes.items() for text in pair):
        raise UsageError("attributes are texts by text")


def topic_entry(topic: TopicConfig) -> Table:
    """The entry of a topic as a broker writes it."""
    return {
        "attributes": dict(topic.attributes),
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicFilterType": topic.topic_filter_type,
        "topicName": topic.topic_name,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }
