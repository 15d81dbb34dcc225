"""The facts of a store that stand for the cluster, the address and the version of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.errors import CorruptRecordError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store

# TopicConfigManager#init: a broker of 5.x makes a topic of this prefix and its cluster's name.
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_DEFAULT_CLUSTER = "DefaultCluster"

EMBEDDED = "EMBEDDED"
"""Where mqadmin shows the version of a broker or of a client's RocketMQ."""


def cluster_name(store: Store) -> str:
    """The cluster of the store's broker, if it left its name."""
    found = (topic.removeprefix(_REVIVE_PREFIX) for topic in sorted(store.topics()) if topic.startswith(_REVIVE_PREFIX))
    return next(found, _DEFAULT_CLUSTER)


def broker_address(store: Store) -> str:
    """The address of the store's broker in its oldest record; this engine's if no record can be read."""
    start, end = store.log_range()
    try:
        return str(store.message_at(start).store_host) if start < end else store.config.broker_host
    except (CorruptRecordError, UsageError):
        return store.config.broker_host


def consumer_groups(store: Store, topic: str) -> list[str]:
    """The groups that have committed offsets on a topic (ConsumerOffsetManager#whichGroupByTopic), sorted."""
    known = store.all_committed_offsets()
    return sorted(group for group, offsets in known.items() if any(name == topic for name, _ in offsets))
