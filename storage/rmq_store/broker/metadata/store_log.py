"""Opens the log of a store by its settings, and finds delays that these do not give from its messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.log.core.commit_log import Clock, CommitLog
from rmq_store.log.core.delay_table import DelayTable
from rmq_store.log.recovery.delay_inference import infer_delays


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


def delay_table(root: Path, config: StoreConfig) -> DelayTable:
    """The delays in `config`, or else those found from the messages of the store at `root`."""
    with closing(log_of(root, config, writable=False)) as log:
        if not config.message_delay_level:
            infer_delays(log, log.delay_levels_ms)
        return log.delays


def with_delays(root: Path, config: StoreConfig) -> StoreConfig:
    """The settings of a store. Delays that are missing there are found from its messages."""
    return config if config.message_delay_level else config.with_delays(delay_table(root, config).delays_ms)
