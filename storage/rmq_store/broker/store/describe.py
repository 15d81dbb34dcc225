"""The description of a store: store.json (identity and settings), the default topics, and its broker's name."""

from __future__ import annotations

import functools
import uuid
from dataclasses import replace
from pathlib import Path

from rmq_store.broker.metadata.json_table import Stamp
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import DEFAULT_TOPICS, TopicTable
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog
from rmq_store.log.replica_role import ReplicaRole

# TopicConfigManager: a 5.x broker makes a topic of this prefix and its own name.
_SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def describe_first(root: Path, settings: StoreConfig, replica: ReplicaRole | None = None) -> None:
    """Write store.json if the store has none. The caller holds byte 0 of `lock` exclusively."""
    if StoreFile.load(root) is None:
        StoreFile(str(uuid.uuid4()), settings, replica).save(root)


def describe(log: CommitLog, known: StoreFile | None, settings: StoreConfig) -> StoreFile:
    """Write store.json if the store has none, or if the caller gave settings that may change. Returns the content that
    counts: another opener may have written it first. Makes the default topics of a store without a topic table, but for
    a replica: its topics are its master's.
    """
    root = log.root
    if known is None or known.config != settings:
        with log.append_lock.exclusive(LOCK_TIMEOUT_MS):
            found = StoreFile.load(root)
            if found is None:
                found = StoreFile(str(uuid.uuid4()), settings)
                found.save(root)
            elif known is not None and found == known:
                found = replace(known, config=settings)
                found.save(root)
            known = found
    if known.replica is None and not (root / "config" / "topics.json").exists():
        TopicTable(root).create_all(DEFAULT_TOPICS, exist_ok=True)
    return known


def broker_name(root: Path, settings: StoreConfig) -> str:
    """The name of the broker: that of the topic that 5.x brokers name after themselves, otherwise the store's own
    setting.
    """
    return _name_left(root, TopicTable(root).stamp()) or settings.broker_name


@functools.lru_cache(maxsize=16)
def _name_left(root: Path, stamp: Stamp) -> str | None:
    """Cached for each state of the table, because every task of Spark opens the store, and there may be many topics."""
    for name in TopicTable(root).all():
        if name.startswith(_SYNC_MEMBER_PREFIX):
            return name.removeprefix(_SYNC_MEMBER_PREFIX)
    return None
