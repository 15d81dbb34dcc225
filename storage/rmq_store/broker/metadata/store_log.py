"""Opens the log of a store by its settings alone, for code that does not read messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.log.core.commit_log import Clock, CommitLog


def log_of(
    root: Path,
    config: StoreConfig,
    *,
    writable: bool,
    index: bool = True,
    clock: Clock = lambda: 0,
    paths: Sequence[Path] = (),
) -> CommitLog:
    """The log of a store with these settings. The caller closes it. `index`: False to leave out an index that the
    settings enable. `paths`: directories of the log if they are elsewhere.
    """
    return CommitLog(
        root,
        config.geometry(),
        writable=writable,
        index_enabled=config.message_index_enable and index,
        index_tags=config.message_index_tags,
        clock=clock,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        crc_property=config.enabled_append_prop_crc,
        delay_levels_ms=config.delay_levels_ms(),
        paths=paths,
    )
