"""Topics that a store keeps in another way than the others: refused one by one, so that the others can be used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rmq_store.errors import TopicKindError
from rmq_store.kinds import table
from rmq_store.kinds.entries import entries, read_small
from rmq_store.kinds.table import Effect, Kind

MAPPING = "config/topicQueueMapping.json"
BATCH_DIRECTORY = "batchconsumequeue"
COMPACTION_DIRECTORY = "compaction/compactionLog"

# A string, which is left as it is, or a key that is a number.
_KEY_OR_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|([{,]\s*+)(-?+[0-9]++)(?=\s*+:)', re.DOTALL)


def kind_by_attributes(attributes: Mapping[str, str]) -> Kind | None:
    """The kind of a topic by its attributes (TopicAttributes.java)."""
    if attributes.get("queue.type") == "BatchCQ":
        return table.BATCH_QUEUES
    if attributes.get("cleanup.policy") == "COMPACTION":
        return table.COMPACTION
    return None


def kinds_by_files(root: Path) -> Mapping[str, Kind]:
    """{topic: kind} of the topics whose kind files and directories show; the table of topics, with their attributes,
    may be lost.
    """
    found = dict.fromkeys(static_topics(root), table.STATIC_TOPICS)
    found |= dict.fromkeys((name for name, _ in entries(root / COMPACTION_DIRECTORY)), table.COMPACTION)
    return found | dict.fromkeys(topics_with_batch_queues(root), table.BATCH_QUEUES)


def topics_with_batch_queues(root: Path) -> frozenset[str]:
    """The topics that have queues in batchconsumequeue/."""
    return frozenset(name for name, _ in entries(root / BATCH_DIRECTORY))


def static_topics(root: Path) -> frozenset[str]:
    """The topics whose queues are mapped to queues of several brokers. An unreadable table yields none: `rmq verify`
    reports it.
    """
    try:
        # A broker writes keys that are numbers without quotes.
        text = _KEY_OR_TEXT.sub(lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], _mapping(root))
        topics = json.loads(text).get("topicQueueMappingInfoMap", {}) if text else {}
    except (ValueError, AttributeError, RecursionError):
        return frozenset()
    return frozenset(topics) if isinstance(topics, dict) else frozenset()


def is_read(kind: Kind | None) -> bool:
    """Whether a topic of this kind can be read here."""
    return kind is None or kind.effect is Effect.TOPIC_NOT_WRITTEN


def _mapping(root: Path) -> str:
    return read_small(root / MAPPING).decode(errors="replace")


def refuse_to_read_topic(topic: str, kind: Kind | None) -> None:
    """Raise TopicKindError if a topic of this kind cannot be read here."""
    if not is_read(kind):
        refuse_to_write_topic(topic, kind)


def refuse_to_write_topic(topic: str, kind: Kind | None) -> None:
    """Raise TopicKindError if nothing may be sent to a topic of this kind here."""
    if kind is not None:
        raise TopicKindError(f"topic {topic[:255]!r}: {kind.what}. {kind.advice}")
