"""Consumer groups and their filters: `config/subscriptionGroup.json`, `config/consumerFilter.json`.

    subscriptionGroupTable{group: {attributes, brokerId, consumeBroadcastEnable, consumeEnable, consumeFromMinEnable,
        consumeMessageOrderly, consumeTimeoutMinute, groupName, groupRetryPolicy, groupSysFlag,
        notifyConsumerIdsChangedEnable, retryMaxTimes, retryQueueNums, whichBrokerWhenConsumeSlowly}}
    filterDataByTopic{topic: {groupFilterData{group: {expression, expressionType, clientVersion, bornTime, deadTime,
        ...}}}}

Filters are a broker's record of its connected consumers. This engine shows them and never writes them. `forbiddenTable`
and unknown members of the group table stay in the file. So do entries that no group can have (`odd_entries`): brokers
up to 5.3.3 write one with an empty name. Sources: SubscriptionGroupConfig.java, SubscriptionGroupManager.java,
ConsumerFilterData.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from rmq_store.broker.metadata.entry_table import EntryTable
from rmq_store.broker.metadata.json_table import ConfigFile, Table
from rmq_store.broker.metadata.odd_entries import AGAIN, OddEntry, shown, usable_entries
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.format.tables.config_json import Shadowed
from rmq_store.format.text import names
from rmq_store.format.text.names import java_name
from rmq_store.lazy.dataclasses import dataclass

# Retry queues are walked one by one, as a topic's queues are.
_QUEUE_COUNT_MAX = 65_536


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A consumer group with Java's defaults.

    A message that was retried `retry_max_times` times goes to the group's dead letters when it fails once more; with 0
    or less, at its first failure. `retry_queue_nums` 0: failed messages are dropped. `consume_enable`: True if a broker
    lets the group pull. `group_retry_policy` is kept as it is in the file.
    """

    group_name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


# (field, Java's name, type as written in the class), in the alphabetical order of Java's writer.
_FIELDS = sorted(((f.name, java_name(f.name), str(f.type)) for f in fields(SubscriptionGroup)), key=lambda f: f[1])
_TYPES: Mapping[str, type] = {"bool": bool, "int": int, "str": str}


class GroupTable(EntryTable[SubscriptionGroup]):
    """The consumer groups of the store at `root`. Safe for threads; other processes' changes are seen at once."""

    part = "subscriptionGroupTable"
    file_name = "subscriptionGroup.json"

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        super().__init__(root, clock=clock)

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return one group, or None; a broker creates an unknown one with its defaults when a consumer asks.
        CorruptConfigError: the group's entry cannot be used.
        """
        return self.all().get(name)

    def create(self, group: SubscriptionGroup, *, exist_ok: bool = False) -> SubscriptionGroup:
        """Add a group durably and return it; with `exist_ok`, return an existing one unchanged.

        Raises:
            UsageError: bad name or value; or the group exists.
            CorruptConfigError: as `all`; or an entry of this name holds what no group can have, and is kept.
        """
        _check(group)
        if exist_ok and (existing := self.get(group.group_name)) is not None:
            return existing
        result = group

        def mutate(table: Table) -> bool:
            nonlocal result
            entries = self._file.part(table, self.part)
            if group.group_name in entries:
                result = self._usable(group.group_name, entries[group.group_name])
                if not exist_ok:
                    raise UsageError(f"group {group.group_name!r} exists")
                return False
            entries[group.group_name] = _encode(group)
            return True

        self._file.update(mutate)
        return result

    def update(self, group: SubscriptionGroup) -> None:
        """Replace the known fields of an existing group durably; fields of newer versions stay.

        Raises:
            UsageError: bad name or value; or no such group.
            CorruptConfigError: as `create`.
        """
        _check(group)
        self.change(group.group_name, lambda _: group)

    def change(
        self,
        name: str,
        change: Callable[[SubscriptionGroup], SubscriptionGroup],
        *,
        default: SubscriptionGroup | None = None,
    ) -> SubscriptionGroup:
        """Replace a group durably by the result of `change`, and return it. No concurrent change is lost. With
        `default`, an unknown group is made from that. Raises as `update`.
        """
        changed: list[SubscriptionGroup] = []

        def mutate(table: Table) -> None:
            entries = self._file.part(table, self.part)
            if name not in entries:
                if default is None:
                    raise UsageError(f"no group {name!r} in {self._file.path}")
                entries[name] = _encode(default)
            group = change(self._usable(name, entries[name]))
            _check(group)
            entries[name].update(_encode(group))
            changed.append(group)

        self._file.update(mutate)
        return changed[-1]

    def delete(self, name: str) -> bool:
        """Remove a group durably; False if there was none. Its offsets and its retry topic stay."""
        return self._remove(name)

    def _decode_entry(self, name: str, entry: Any) -> SubscriptionGroup:
        if not isinstance(entry, dict):
            raise self._file.corrupt(f"group {shown(name)}: not an object")
        # Java keeps its default where null stands.
        known = {own: entry[java] for own, java, _ in _FIELDS if entry.get(java) is not None}
        if isinstance(attributes := known.get("attributes"), dict):
            known["attributes"] = {key: text for key, text in attributes.items() if not isinstance(key, Shadowed)}
        group = SubscriptionGroup(**{**known, "group_name": name})
        try:
            _check(group)
        except UsageError as error:
            raise self._file.corrupt(f"group {shown(name)}: {error}") from error
        return group


def _check(group: SubscriptionGroup) -> None:
    """UsageError if a group cannot have one of these values."""
    names.validate_group(group.group_name)
    for own, java, kind in _FIELDS:
        value = getattr(group, own)
        if isinstance(value, Mapping) != (kind not in _TYPES) or (kind in _TYPES and type(value) is not _TYPES[kind]):
            raise UsageError(f"{java} {value!r} is not of type {kind}")
        if kind == "int" and not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"{java} {value!r} does not fit into 64 bits")
    if not 0 <= group.retry_queue_nums <= _QUEUE_COUNT_MAX:
        raise UsageError(f"retryQueueNums {group.retry_queue_nums} is not in 0..{_QUEUE_COUNT_MAX}")
    if not all(isinstance(text, str) for pair in group.attributes.items() for text in pair):
        raise UsageError("attributes are texts by text")


def _encode(group: SubscriptionGroup) -> Table:
    values = ((java, getattr(group, own)) for own, java, _ in _FIELDS)
    return {java: dict(value) if isinstance(value, Mapping) else value for java, value in values}


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """The filter that a consumer of a group gave a broker for a topic; `dead_time_ms` 0 while it was connected."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_time_ms: int
    dead_time_ms: int


class FilterTable:
    """The filters that a broker recorded, read-only."""

    def __init__(self, root: str | Path) -> None:
        self._file = ConfigFile(root, "consumerFilter.json")

    def all(self) -> list[ConsumerFilter]:
        """Return every usable filter, sorted by topic and group. CorruptConfigError if the table cannot be read."""
        usable = (entry for entry in self._entries() if isinstance(entry, ConsumerFilter))
        return sorted(usable, key=lambda entry: (entry.topic, entry.group))

    def odd(self) -> Sequence[OddEntry]:
        """Return the entries that cannot be filters. Raises as `all`."""
        return [entry for entry in self._entries() if isinstance(entry, OddEntry)]

    def _entries(self) -> Iterator[ConsumerFilter | OddEntry]:
        path = str(self._file.path)
        for topic, of_topic in self._file.part(self._file.load(), "filterDataByTopic").items():
            if isinstance(topic, Shadowed):
                yield OddEntry(path, f"filters of topic {shown(topic.key)}: {AGAIN}")
                continue
            groups = of_topic.get("groupFilterData") if isinstance(of_topic, dict) else of_topic
            if not isinstance(groups, dict):
                if groups is not None:
                    yield OddEntry(path, f"filters of topic {shown(topic)}: no groupFilterData")
                continue

            def decode(group: Any, entry: Any, topic: Any = topic) -> ConsumerFilter:
                return self._decode_entry(topic, group, entry)

            usable, odd = usable_entries(path, groups, decode)
            yield from usable.values()
            yield from odd.values()

    def _decode_entry(self, topic: Any, group: Any, entry: Any) -> ConsumerFilter:
        what = f"filter of topic {shown(topic)}, group {shown(group)}"
        if not isinstance(entry, dict):
            raise self._file.corrupt(f"{what}: not an object")
        known = {name: value for name, value in entry.items() if value is not None}
        texts = [known.get("expression", ""), known.get("expressionType", "")]
        numbers = [known.get(name, 0) for name in ("clientVersion", "bornTime", "deadTime")]
        are_texts = all(isinstance(text, str) for text in (topic, group, *texts))
        if not are_texts or not all(type(number) is int for number in numbers):
            raise self._file.corrupt(f"{what}: wrong type of a field")
        return ConsumerFilter(topic, group, *texts, *numbers)
