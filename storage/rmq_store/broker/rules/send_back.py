"""The rules of a send-back: the next topic and queue of a failed message, and the properties of its copy (pure
functions).

The table of CONSUMER_SEND_MSG_BACK is only here. `retry` applies it to one message, `send_back_batch` to many.
Source: AbstractSendMessageProcessor#consumerSendMsgBack, HookUtils#handleScheduleMessage (5.x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.rules.failure import (
    DEAD_LETTER,
    ORIGIN_QUEUE_ID,
    ORIGIN_QUEUE_OFFSET,
    ORIGIN_TOPIC,
    REPLAYS,
    storable,
)
from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text import names
from rmq_store.format.text.delay_levels import retry_level
from rmq_store.lazy.dataclasses import dataclass

_RECONSUME_TIMES_MAX = (1 << 31) - 1

TIMER_WISHES: Final = (keys.TIMER_DELIVER_MS, keys.TIMER_DELAY_SEC, keys.TIMER_DELAY_MS)
"""Timer properties that a message may have; a delay level replaces them (HookUtils#checkIfTimerMessage)."""

BROKER_OWNED: Final = frozenset(
    (
        keys.RETRY_TOPIC, keys.WAIT_STORE_MSG_OK, keys.DELAY_TIME_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID,
        keys.ORIGIN_MESSAGE_ID, keys.UNIQUE_KEY, keys.TRANSACTION_PREPARED, keys.PRODUCER_GROUP, keys.TAGS, keys.KEYS,
        keys.SHARDING_KEY, keys.CRC32, keys.TIMER_OUT_MS, *TIMER_WISHES,
        REPLAYS, DEAD_LETTER,
    )
)  # fmt: skip
"""Properties that a consumer may not set on a message that it sends back: they would change its identity or its target.
"""


class Hop(NamedTuple):
    """The topic and queue of a copy. `queue_id` None: a random queue of the retry topic.

    `delay_level` is the DELAY property: 0 for a dead letter. `delay_ms` above 0: delayed by that time.
    """

    topic: str
    queue_id: int | None
    delay_level: int
    delay_ms: int
    reconsume_times: int
    is_dead: bool


@dataclass(frozen=True, slots=True)
class SendBackRules:
    """The rules for send-backs of one group. `max_reconsume_times`: the request's own, else the group's."""

    group: str
    retry_queue_nums: int
    max_reconsume_times: int
    delay_levels_ms: tuple[int, ...]

    def hop(self, reconsume_times: int, delay_level: int) -> Hop:
        """The next topic and queue of a message that was retried `reconsume_times` times. `delay_level` is the
        consumer's request: below 0 straight to the dead letters, 0 the broker's choice.
        """
        times = min(reconsume_times + 1, _RECONSUME_TIMES_MAX)
        if reconsume_times >= self.max_reconsume_times or delay_level < 0:
            return Hop(names.dlq_topic(self.group), 0, 0, 0, times, is_dead=True)
        level, delay_ms = delay_of(delay_level or retry_level(reconsume_times), self.delay_levels_ms)
        if level <= 0:  # a record with a negative count
            return Hop(names.retry_topic(self.group), None, level, 0, times, is_dead=False)
        return Hop(names.SCHEDULE_TOPIC, level - 1, level, delay_ms, times, is_dead=False)

    @classmethod
    def of(cls, group: SubscriptionGroup, asked_maximum: int | None, delay_levels_ms: tuple[int, ...]) -> SendBackRules:
        """The rules of a group; `asked_maximum` is the maximum in the consumer's request, None: none."""
        maximum = group.retry_max_times if asked_maximum is None else asked_maximum
        return cls(group.group_name, group.retry_queue_nums, maximum, delay_levels_ms)


def delay_of(level: int, delay_levels_ms: Sequence[int]) -> tuple[int, int]:
    """The effective level (a level above the table becomes the last one), and its delay in ms; 0 without a level."""
    level = min(level, len(delay_levels_ms))
    return level, delay_levels_ms[level - 1] if level > 0 else 0


class Source(NamedTuple):
    """Properties of the copy about its original."""

    topic: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str


def copied_properties(own: Mapping[str, str], source: Source, hop: Hop, group: str, retry_queue: int) -> dict[str, str]:
    """Properties of the copy, without reasons. `retry_queue`: the queue of the retry topic that it goes to when due."""
    properties = dict(own)
    properties.setdefault(keys.RETRY_TOPIC, source.topic)
    properties[keys.WAIT_STORE_MSG_OK] = "false"
    properties[keys.DELAY_TIME_LEVEL] = str(hop.delay_level)
    if not properties.get(keys.ORIGIN_MESSAGE_ID, "").strip():
        properties[keys.ORIGIN_MESSAGE_ID] = source.offset_msg_id
    if hop.delay_level > 0:
        for name in TIMER_WISHES:
            properties.pop(name, None)
        properties[keys.REAL_TOPIC] = names.retry_topic(group)
        properties[keys.REAL_QUEUE_ID] = str(retry_queue)
    return properties


def origin(own: Mapping[str, str], source: Source) -> dict[str, str]:
    """Topic, queue and offset of a message before its first failure, for copies that carry reasons; {} if it has failed
    before.
    """
    if keys.RETRY_TOPIC in own:
        return {}
    return {
        ORIGIN_TOPIC: source.topic,
        ORIGIN_QUEUE_ID: str(source.queue_id),
        ORIGIN_QUEUE_OFFSET: str(source.queue_offset),
    }


def given_properties(given: Mapping[str, str], where: str = "") -> dict[str, str]:
    """Properties that a consumer gives with a send-back, in storable form; empty ones are left out.

    Raises:
        UsageError: a name that belongs to the broker or to the message, or that cannot be a name.
    """
    checked = {}
    for name, value in given.items():
        check_name(name, where)
        if not isinstance(value, str):
            raise UsageError(f"{where}property {name!r} is {type(value).__name__}, not text")
        if text := storable(value):
            checked[name] = text
    return checked


def check_name(name: str, where: str = "") -> None:
    """UsageError unless a consumer may set the property `name` on a message that it sends back."""
    if name in BROKER_OWNED:
        raise UsageError(f"{where}property {name!r} cannot be set on a message that is sent back")
    if not isinstance(name, str) or not name or storable(name) != name:
        raise UsageError(f"{where}{name!r} cannot be the name of a property")


def check_storable(properties: Mapping[str, str]) -> None:
    """UsageError if a reader would get another value of a property. Values that were read may hold further name
    separators; an empty value counts as none.
    """
    for name, value in properties.items():
        if not isinstance(name, str) or not name or storable(name) != name:
            raise UsageError(f"{name!r} cannot be the name of a property")
        if not isinstance(value, str):
            raise UsageError(f"property {name!r} is {type(value).__name__}, not text")
        text = value.replace(keys.NAME_VALUE_SEPARATOR, "")
        if storable(text) != text:
            raise UsageError(f"property {name!r}: {value!r} cannot be stored")


def properties_bytes_max(crc_property: bool) -> int:
    """The most bytes of a copy's property string."""
    return keys.PROPERTIES_BYTES_MAX - (CRC_PROPERTY_BYTES if crc_property else 0)
