"""Looks up topics and groups of a command; the error about an unknown one suggests the nearest name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.errors import UnknownTopicError, UsageError, did_you_mean

if TYPE_CHECKING:
    from rmq_store import Store


def require_topic(store: Store, name: str) -> str:
    """`name`, if the store has such a topic.

    Raises:
        UnknownTopicError: it has none; suggests the nearest.
    """
    if store.find_topic(name) is None:
        known = {*store.topics(), *store.unlisted_topics()}
        raise UnknownTopicError(f"no topic {name[:255]!r} in {store.path}{did_you_mean(name, sorted(known))}")
    return name


def require_queue(store: Store, topic: str, queue_id: int) -> int:
    """`queue_id`, if the topic has such a queue.

    Raises:
        UnknownTopicError: there is no such topic; suggests the nearest.
        UsageError: the topic has no such queue; says how many it has.
    """
    queues = store.queue_ranges(require_topic(store, topic))
    if queue_id not in queues:
        raise UsageError(f"topic {topic} has no queue {queue_id}; it has {len(queues)} queues")
    return queue_id


def known_groups(store: Store) -> set[str]:
    """The groups that have settings, offsets or a retry topic."""
    from rmq_store.format.text.names import RETRY_PREFIX, retry_group

    retrying = (retry_group(topic) for topic in store.topics() if topic.startswith(RETRY_PREFIX))
    return {*store.groups(), *store.all_committed_offsets(), *retrying}


def require_group(store: Store, name: str) -> str:
    """`name`, if such a group has settings, offsets or a retry topic.

    Raises:
        UsageError: it has none of these; suggests the nearest. Or two files have different offsets for it.
        CorruptConfigError: its settings cannot be used.
    """
    groups = known_groups(store)
    if name not in groups and name not in store.groups() and name not in store.all_committed_offsets():
        raise UsageError(f"no group {name[:255]!r} in {store.path}{did_you_mean(name, sorted(groups))}")
    return name

