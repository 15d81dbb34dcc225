"""Opens the log of a store by its settings alone, for code that does not read messages."""

from __future__ import annotations

from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.log.core.commit_log import CommitLog


def log_of(root: Path, config: StoreConfig, *, writable: bool) -> CommitLog:
    """The log of a store with these settings. The caller closes it."""
    return CommitLog(
        root,
        config.geometry(),
        writable=writable,
        index_enabled=config.message_index_enable,
        index_tags=config.message_index_tags,
        clock=lambda: 0,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        crc_property=config.enabled_append_prop_crc,
        delay_levels_ms=config.delay_levels_ms(),
    )
