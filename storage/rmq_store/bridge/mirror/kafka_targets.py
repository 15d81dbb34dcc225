"""Topics of Kafka that a mirror writes to: their creation, their partitions, and the effect of their settings."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaTopic
from rmq_store.bridge.positions.topics import DEAD_LETTERS_SUFFIX
from rmq_store.bridge.records.to_kafka import MAX_AHEAD_MS, KafkaRules
from rmq_store.bridge.records.unmappable_record import KAFKA_RECORD_BYTES_BESIDE
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
# Nobody looks after them every week.
_LETTER_SETTINGS: Final = {"retention.ms": "-1"}
_MESSAGE_BYTES: Final = 1_048_588
_NO_LIMIT_MS: Final = (1 << 63) - 1
_NOW_MARGIN_MS: Final = 60_000
"""Our clock and Kafka's are not the same."""


@dataclass(frozen=True, slots=True)
class TargetRules:
    """`create`: create missing topics, with `settings` and a partition for each queue of the source, and add partitions
    when the source gets more queues. `old_timestamps`: what to do with messages that the topic's retention would delete
    at once: stop the topic (`refuse`), copy them unchanged (`keep`), or copy them with the present time (`now`).
    `compacted`: keys of the messages are identities, so a compacted topic may keep only the last message of each key.
    """

    create: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    old_timestamps: Literal["refuse", "keep", "now"] = "refuse"
    compacted: bool = False


def letter_topic(mirror: str) -> str:
    """Kafka's dead-letter topic of a mirror."""
    return f"{mirror}{DEAD_LETTERS_SUFFIX}"


def prepare_target(
    administration: KafkaAdministration, topic: str, target: str, queue_count: int, rules: TargetRules
) -> KafkaTopic:
    """The target topic, with a partition for each queue.

    Raises:
        UsageError: it does not exist, or has too few partitions, and the mirror must not change that; or Kafka allows
            no
            such name.
    """
    if not _NAME.fullmatch(target) or target in (".", ".."):
        raise UsageError(f"Topic {topic!r} cannot be called {target!r} in Kafka; --rename gives it another name.")
    found = administration.topics([target]).get(target)
    if found is None:
        if not rules.create:
            raise UsageError(
                f"Kafka has no topic {target!r} for {topic!r}: make it, with {queue_count} partitions or more, or let "
                "the mirror make it: --create-topics."
            )
        return administration.create_topic(target, queue_count, rules.settings, rules.replication_factor)
    if found.partition_count < queue_count:
        if not rules.create:
            raise UsageError(
                f"Topic {topic!r} has {queue_count} queues, and {target!r} in Kafka {found.partition_count} "
                f"partitions: each queue needs one. Give it {queue_count}, or let the mirror do so: --create-topics."
            )
        administration.grow_topic(target, queue_count)
        found = administration.topics([target])[target]
    return found


def prepare_letters(administration: KafkaAdministration, mirror: str) -> None:
    """Create the dead-letter topic of the mirror, unless it exists."""
    administration.create_topic(letter_topic(mirror), 1, _LETTER_SETTINGS)


def record_rules(
    target: str, settings: Mapping[str, str], letter_settings: Mapping[str, str], rules: TargetRules
) -> KafkaRules:
    """The target's present limits of records. UsageError: it keeps only the last record of each key."""
    policy = settings.get("cleanup.policy", "delete").split(",")
    if "compact" in policy and not rules.compacted:
        raise UsageError(
            f"Topic {target!r} of Kafka is compacted: of messages with the same sharding key or KEYS only the last one "
            "would stay. If the keys are identities, say so: --compacted-target."
        )
    retention_ms = int(settings.get("retention.ms", -1)) if "delete" in policy else -1
    oldest_ms = max(retention_ms - _NOW_MARGIN_MS, 0) if retention_ms >= 0 else None
    before_ms = _timestamp_limit_ms(settings, "before")
    behind = [
        limit for limit in (before_ms, oldest_ms if rules.old_timestamps == "now" else None) if limit and limit > 0
    ]
    ahead_ms = _timestamp_limit_ms(settings, "after")
    now_ms = int(time.time() * 1000)
    return KafkaRules(
        now_ms=now_ms,
        max_ahead_ms=max(min(MAX_AHEAD_MS if ahead_ms is None else ahead_ms, MAX_AHEAD_MS) - _NOW_MARGIN_MS, 0),
        # A limit of some hundred million years would be before all time.
        max_behind_ms=min((limit for limit in behind if limit < now_ms), default=None),
        retention_ms=oldest_ms,
        log_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
        compacted="compact" in policy,
        max_letter_bytes=int(letter_settings.get("max.message.bytes", _MESSAGE_BYTES)) - KAFKA_RECORD_BYTES_BESIDE,
    )


def _timestamp_limit_ms(settings: Mapping[str, str], side: str) -> int | None:
    """How far from its clock the broker takes timestamps, "before" or "after" it; None: it takes all. Before 3.6 one
    setting holds for both sides, and until 3.9 for a side that has none of its own (LogConfig.java).
    """
    limits_ms = [
        int(settings[name])
        for name in (f"message.timestamp.{side}.max.ms", "message.timestamp.difference.max.ms")
        if name in settings
    ]
    return next((limit_ms for limit_ms in limits_ms if limit_ms != _NO_LIMIT_MS), None)
