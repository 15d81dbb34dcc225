"""Entries of tables that nobody can use. The report names them; they are no damage. Brokers up to 5.3.3 write one of
them themselves: a group with an empty name. Writers keep such entries unchanged, and readers skip them.

The check covers only the fields that a reader of the table needs. Source of the rules: TopicValidator.java,
TopicConfig.java, SubscriptionGroupConfig.java, ConsumerOffsetManager.java, ConsumerFilterData.java.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

NAMED = 20  # of one table

_INT32, _INT64 = 1 << 31, 1 << 63
_QUEUES_MAX = 65_536
_TOPIC = re.compile(r"(?=.{1,127}\Z)[%|a-zA-Z0-9_-]+|(?=.{1,255}\Z)(?:%DLQ%[%|a-zA-Z0-9_-]+|%RETRY%[%|a-zA-Z0-9_+-]+)")
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")

# The check of a member: a type, or the range [low, high) of an integer.
_TOPIC_MEMBERS: dict[str, type | tuple[int, int]] = {
    "readQueueNums": (0, _QUEUES_MAX + 1), "writeQueueNums": (0, _QUEUES_MAX + 1), "perm": (0, 16),
    "topicSysFlag": (-_INT32, _INT32), "topicFilterType": str, "order": bool, "attributes": dict,
}  # fmt: skip
_GROUP_MEMBERS: dict[str, type | tuple[int, int]] = {
    "brokerId": (-_INT64, _INT64), "consumeBroadcastEnable": bool, "consumeEnable": bool, "consumeFromMinEnable": bool,
    "consumeMessageOrderly": bool, "consumeTimeoutMinute": (-_INT64, _INT64), "groupRetryPolicy": dict,
    "groupSysFlag": (-_INT64, _INT64), "notifyConsumerIdsChangedEnable": bool, "retryMaxTimes": (-_INT64, _INT64),
    "retryQueueNums": (0, _QUEUES_MAX + 1), "whichBrokerWhenConsumeSlowly": (-_INT64, _INT64), "attributes": dict,
}  # fmt: skip
_FILTER_MEMBERS: dict[str, type | tuple[int, int]] = {
    "expression": str, "expressionType": str, "clientVersion": (-_INT64, _INT64), "bornTime": (-_INT64, _INT64),
    "deadTime": (-_INT64, _INT64),
}  # fmt: skip
_MODE_MEMBERS: dict[str, type | tuple[int, int]] = {"mode": str, "popShareQueueNum": (-_INT32, _INT32)}


class LongNumber:
    """A number with so many digits that it is in no valid range. It is not converted: the time of int() grows with the
    square of the digits.
    """

    def __init__(self, digits: str) -> None:
        self._digits = digits

    def __str__(self) -> str:
        return self._digits


class Members(dict[str, Any]):
    """A JSON object of a table. `again`: names that occur twice; the last one counts, as for a broker."""

    again: tuple[str, ...] = ()


def members(pairs: list[tuple[str, Any]]) -> Members:
    """Makes `Members` for a reader of JSON."""
    found = Members(pairs)
    if len(found) < len(pairs):
        found.again = tuple(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return found


def odd_entries(table: str, content: dict[str, Any]) -> list[str]:
    """The first odd entries of a table of this file name; [] for tables that only brokers read."""
    check = _CHECKS.get(table)
    if check is None:
        return []
    part, of_part = check
    entries = content.get(part, {})
    if not isinstance(entries, dict):
        return []
    found = list(of_part(entries))
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return found[:NAMED] + more


def _topics(entries: dict[str, Any]) -> Iterator[str]:
    yield from _again("topic", entries)
    for name, entry in entries.items():
        if why := "no name of a topic" if not _TOPIC.fullmatch(name) else _why_odd(entry, _TOPIC_MEMBERS):
            yield f"topic {name[:255]!r}: {why}"


def _groups(entries: dict[str, Any]) -> Iterator[str]:
    yield from _again("group", entries)
    for name, entry in entries.items():
        if why := "no name of a group" if not _GROUP.fullmatch(name) else _why_odd(entry, _GROUP_MEMBERS):
            yield f"group {name[:255]!r}: {why}"


def _offsets(entries: dict[str, Any]) -> Iterator[str]:
    yield from _again("offsets of", entries)
    for key, row in entries.items():
        topic, _, group = key.partition("@")
        if not _TOPIC.fullmatch(topic) or not _GROUP.fullmatch(group):
            yield f"offsets of {key[:400]!r}: no topic@group"
        elif not isinstance(row, dict):
            yield f"offsets of {key[:400]!r}: no object"
        else:
            yield from (f"offsets of {key[:400]!r}, {text}" for text in _numbers("queue", row))


def _levels(entries: dict[str, Any]) -> Iterator[str]:
    yield from _numbers("level", entries)


def _filters(entries: dict[str, Any]) -> Iterator[str]:
    yield from _again("filters of topic", entries)
    for topic, of_topic in entries.items():
        groups = of_topic.get("groupFilterData", {}) if isinstance(of_topic, dict) else of_topic
        if groups is None:
            continue
        if not isinstance(groups, dict):
            yield f"filters of topic {topic[:255]!r}: no groupFilterData"
            continue
        yield from (f"filter of topic {topic[:255]!r}, {text}" for text in _again("group", groups))
        for group, entry in groups.items():
            if why := _why_odd(entry, _FILTER_MEMBERS):
                yield f"filter of topic {topic[:255]!r}, group {group[:255]!r}: {why}"


def _modes(entries: dict[str, Any]) -> Iterator[str]:
    yield from _again("modes of topic", entries)
    for topic, groups in entries.items():
        if not isinstance(groups, dict):
            yield f"modes of topic {topic[:255]!r}: no object"
            continue
        yield from (f"mode of topic {topic[:255]!r}, {text}" for text in _again("group", groups))
        for group, entry in groups.items():
            why = _why_odd(entry, _MODE_MEMBERS)
            if not why and entry.get("mode") not in ("PULL", "POP"):
                why = f"mode is {str(entry.get('mode'))[:40]!r}"
            if why:
                yield f"mode of topic {topic[:255]!r}, group {group[:255]!r}: {why}"


def _numbers(what: str, row: dict[str, Any]) -> Iterator[str]:
    yield from _again(what, row)
    for key, value in row.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < _INT32):
            yield f"{what} {key[:40]!r}: no number in 0..{_INT32 - 1}"
        elif not _is_integer(value, -_INT64, _INT64):
            yield f"{what} {key}: {str(value)[:40]!r} is no 64-bit integer"


def _why_odd(entry: object, rules: dict[str, type | tuple[int, int]]) -> str:
    """Why an entry cannot be used. null means the value that Java uses for it."""
    if not isinstance(entry, dict):
        return "no object"
    for name, rule in rules.items():
        value = entry.get(name)
        if value is None:
            continue
        fits = _is_integer(value, *rule) if isinstance(rule, tuple) else isinstance(value, rule)
        if not fits or (name == "attributes" and not all(isinstance(text, str) for text in value.values())):
            return f"{name} is {str(value)[:40]!r}"
    return ""


def _is_integer(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value < high


def _again(what: str, entries: dict[str, Any]) -> Iterator[str]:
    for name in getattr(entries, "again", ()):
        yield f"{what} {name[:255]!r} is there more than once, and the last one counts, as for a broker"


_CHECKS: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "topics.json": ("topicConfigTable", _topics),
    "subscriptionGroup.json": ("subscriptionGroupTable", _groups),
    "consumerOffset.json": ("offsetTable", _offsets),
    "lmqConsumerOffset.json": ("offsetTable", _offsets),
    "delayOffset.json": ("offsetTable", _levels),
    "consumerFilter.json": ("filterDataByTopic", _filters),
    "messageRequestMode.json": ("messageRequestModeMap", _modes),
}
