"""Delayed messages: the properties that request a delay, and the record that is stored until then (pure functions).

A delayed message is stored in another topic until it is due. Its properties name the topic and queue that it goes to:

    asked for by                             topic                 queue         tags code of the queue entry
    DELAY (delay level 1 ..)                 SCHEDULE_TOPIC_XXXX   level - 1     storeTimestamp + the level's delay
    TIMER_DELAY_SEC, else TIMER_DELAY_MS,    rmq_sys_pyrmq_timer   by distance   time of delivery
    else TIMER_DELIVER_MS

A level above the table counts as its last level, and DELAY is rewritten. A message with a level loses its timer
properties. A time in the past asks for no delay. Source: HookUtils.java (handleScheduleMessage,
transformDelayLevelMessage, transformTimerMessage). `delay_batch` does the same for batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.rules import timer
from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.lazy.dataclasses import dataclass

# Texts that Java's Integer.parseInt accepts.
_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class DelayRules:
    """Delay rules of a store: `delay_levels_ms[k]` is the delay of level k + 1, in ms; and the longest delay of a
    timer.
    """

    delay_levels_ms: Sequence[int]
    timer_delay_ms_max: int = timer.DELAY_MS_MAX

    @classmethod
    def of(cls, config: StoreConfig) -> DelayRules:
        """The rules of a store with these settings."""
        return cls(config.delay_levels_ms(), config.timer_max_delay_sec * 1000)


class Destination(NamedTuple):
    """Topic, queue and properties with which one message is stored. `delay_ms` and `tags_code` as in OneRecord;
    `tags_code` None: the hash of its tag.
    """

    topic: str
    queue_id: int
    properties: dict[str, str]
    delay_ms: int = 0
    tags_code: int | None = None


def destination_of(
    properties: dict[str, str], topic: str, queue_id: int, now_ms: int, rules: DelayRules
) -> Destination:
    """The destination of a message with these properties for queue `queue_id` of `topic`: that queue, or the queue in
    which it waits.

    Raises:
        UsageError: a level or time that is no number, or a time too far ahead.
    """
    level = delay_level_of(properties.get(names.DELAY_TIME_LEVEL))
    if level <= 0 and timer.TIMER_PROPERTY_SET.isdisjoint(properties):
        return Destination(topic, queue_id, properties)
    target = {names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id)}
    if level > 0 and rules.delay_levels_ms:
        kept = {name: value for name, value in properties.items() if name not in timer.TIMER_PROPERTIES}
        if level > len(rules.delay_levels_ms):
            level = len(rules.delay_levels_ms)
            kept[names.DELAY_TIME_LEVEL] = str(level)
        return Destination(SCHEDULE_TOPIC, level - 1, {**kept, **target}, delay_ms=rules.delay_levels_ms[level - 1])
    due = timer.due_ms(properties, now_ms, rules.timer_delay_ms_max)
    if due is None:
        return Destination(topic, queue_id, properties)
    waiting = {**properties, **target, names.TIMER_OUT_MS: str(due)}
    return Destination(PYRMQ_TIMER_TOPIC, timer.timer_queue_id(due - now_ms), waiting, tags_code=due)


def delay_level_of(text: str | None) -> int:
    """The level in a DELAY property; 0 without one. UsageError if it is no number."""
    if text is None:
        return 0
    level = int(text) if _JAVA_INT.fullmatch(text) else _INT32_MAX + 1
    if level > _INT32_MAX:
        raise UsageError(f"{names.DELAY_TIME_LEVEL}={text[:40]!r} is no delay level")
    return level
