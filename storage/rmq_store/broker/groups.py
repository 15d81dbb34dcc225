"""Consumer groups and their filters: `config/subscriptionGroup.json`, `config/consumerFilter.json`.

    subscriptionGroupTable{group: {attributes, brokerId, consumeBroadcastEnable, consumeEnable, consumeFromMinEnable,
        consumeMessageOrderly, consumeTimeoutMinute, groupName, groupRetryPolicy, groupSysFlag,
        notifyConsumerIdsChangedEnable, retryMaxTimes, retryQueueNums, whichBrokerWhenConsumeSlowly}}
    filterDataByTopic{topic: {groupFilterData{group: {expression, expressionType, clientVersion, bornTime, deadTime,
        ...}}}}

Filters are a broker's record of its connected consumers: shown, never written. `forbiddenTable` and whatever else is in
the group table is kept. Sources: SubscriptionGroupConfig.java, SubscriptionGroupManager.java, ConsumerFilterData.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rmq_store.broker.config_files import CachedView, ConfigFile, Table
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.format import names

# Retry queues are walked one by one, as a topic's queues are.
_QUEUE_COUNT_MAX = 65_536


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A consumer group with Java's defaults.

    A message that was retried `retry_max_times` times goes to the group's dead letters when it fails once more; with 0
    or less, at its first failure. `retry_queue_nums` 0: failed messages are dropped. `consume_enable`: whether a broker
    lets the group pull. `group_retry_policy` is kept as it stands in the file.
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


def _java_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# (field, Java's name, type as written in the class), in the alphabetical order of Java's writer.
_FIELDS = sorted(((f.name, _java_name(f.name), str(f.type)) for f in fields(SubscriptionGroup)), key=lambda f: f[1])
_TYPES: Mapping[str, type] = {"bool": bool, "int": int, "str": str}


class GroupTable:
    """The consumer groups of the store at `root`. Safe for threads; other processes' changes are seen at once."""

    def __init__(self, root: str | Path, *, clock: Callable[[], int] = system_clock) -> None:
        self._file = ConfigFile(root, "subscriptionGroup.json", clock=clock)
        self._view = CachedView(self._file, self._decode)

    def all(self) -> Mapping[str, SubscriptionGroup]:
        """Return every group by name, read-only.

        Raises:
            CorruptConfigError: the table and its backup are unreadable, or an entry holds what no group can have.
        """
        return self._view.get()

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return one group, or None; a broker creates an unknown one with its defaults when a consumer asks."""
        return self.all().get(name)

    def create(self, group: SubscriptionGroup, *, exist_ok: bool = False) -> SubscriptionGroup:
        """Add a group durably and return it; with `exist_ok`, return the one that is there unchanged.

        Raises:
            UsageError: bad name or value; or the group exists.
        """
        _check(group)
        if exist_ok and (existing := self.get(group.group_name)) is not None:
            return existing
        result = group

        def mutate(table: Table) -> bool:
            nonlocal result
            entries = self._file.part(table, "subscriptionGroupTable")
            if group.group_name in entries:
                if not exist_ok:
                    raise UsageError(f"group {group.group_name!r} exists")
                result = self._decode_entry(group.group_name, entries[group.group_name])
                return False
            entries[group.group_name] = _encode(group)
            return True

        self._file.update(mutate)
        return result

    def update(self, group: SubscriptionGroup) -> None:
        """Replace what is known of an existing group durably; fields of newer versions stay.

        Raises:
            UsageError: bad name or value; or no such group.
        """
        _check(group)

        def mutate(table: Table) -> None:
            entry = self._file.part(table, "subscriptionGroupTable").get(group.group_name)
            if not isinstance(entry, dict):
                raise UsageError(f"no group {group.group_name!r} in {self._file.path}")
            entry.update(_encode(group))

        self._file.update(mutate)

    def change(
        self,
        name: str,
        change: Callable[[SubscriptionGroup], SubscriptionGroup],
        *,
        default: SubscriptionGroup | None = None,
    ) -> SubscriptionGroup:
        """Replace a group by what `change` makes of it, durably, and return that: nobody's change in between is lost.
        With `default`, an unknown group is made of that. Raises as `update`.
        """
        changed: list[SubscriptionGroup] = []

        def mutate(table: Table) -> None:
            entries = self._file.part(table, "subscriptionGroupTable")
            entry = entries.get(name)
            if not isinstance(entry, dict):
                if entry is not None or default is None:
                    raise UsageError(f"no group {name!r} in {self._file.path}")
                entry = entries[name] = _encode(default)
            group = change(self._decode_entry(name, entry))
            _check(group)
            entry.update(_encode(group))
            changed.append(group)

        self._file.update(mutate)
        return changed[-1]

    def delete(self, name: str) -> bool:
        """Remove a group durably; False if there was none. Its offsets and its retry topic stay."""
        found = False

        def mutate(table: Table) -> bool:
            nonlocal found
            found = self._file.part(table, "subscriptionGroupTable").pop(name, None) is not None
            return found

        self._file.update(mutate)
        return found

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, of this file or its backup, holds what cannot be a group."""
        self._decode(table)

    def _decode(self, table: Table) -> Mapping[str, SubscriptionGroup]:
        entries = self._file.part(table, "subscriptionGroupTable")
        return MappingProxyType({name: self._decode_entry(name, entry) for name, entry in entries.items()})

    def _decode_entry(self, name: str, entry: Any) -> SubscriptionGroup:
        if not isinstance(entry, dict):
            raise self._file.corrupt(f"group {str(name)[:255]!r}: not an object")
        known = {own: entry[java] for own, java, _ in _FIELDS if java in entry}
        group = SubscriptionGroup(**{**known, "group_name": name})
        try:
            _check(group)
        except UsageError as error:
            raise self._file.corrupt(f"group {str(name)[:255]!r}: {error}") from error
        return group


def _check(group: SubscriptionGroup) -> None:
    """Refuse with UsageError what no group can have."""
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
    """What a consumer of a group asked a broker to filter a topic by; `dead_time_ms` 0 while it was connected."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_time_ms: int
    dead_time_ms: int


class FilterTable:
    """The filters that a broker noted down, for looking at."""

    def __init__(self, root: str | Path) -> None:
        self._file = ConfigFile(root, "consumerFilter.json")

    def all(self) -> list[ConsumerFilter]:
        """Return every filter, sorted by topic and group. CorruptConfigError if the table cannot be read."""
        table = self._file.load()
        found = []
        for topic, of_topic in self._file.part(table, "filterDataByTopic").items():
            groups = of_topic.get("groupFilterData", {}) if isinstance(of_topic, dict) else None
            if not isinstance(groups, dict):
                raise self._file.corrupt(f"topic {str(topic)[:255]!r}: no groupFilterData")
            found += [self._decode_entry(topic, group, entry) for group, entry in groups.items()]
        return sorted(found, key=lambda entry: (entry.topic, entry.group))

    def _decode_entry(self, topic: str, group: str, entry: Any) -> ConsumerFilter:
        if not isinstance(entry, dict):
            raise self._file.corrupt(f"filter of {str(topic)[:255]!r}, {str(group)[:255]!r}: not an object")
        texts = [entry.get("expression", ""), entry.get("expressionType", "")]
        numbers = [entry.get(name, 0) for name in ("clientVersion", "bornTime", "deadTime")]
        are_texts = all(isinstance(text, str) for text in (topic, group, *texts))
        if not are_texts or not all(type(number) is int for number in numbers):
            raise self._file.corrupt(f"filter of {str(topic)[:255]!r}, {str(group)[:255]!r}: wrong type of a field")
        return ConsumerFilter(topic, group, *texts, *numbers)
