"""The delays of a store's levels, for code that has not opened the store for writing: staging tasks and read-only
commands.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.log.core.delay_table import DelayTable
from rmq_store.log.recovery.delay_inference import infer_delays


def delay_table(root: Path, config: StoreConfig) -> DelayTable:
    """The delays in `config`, or else those found from the messages of the store at `root`."""
    with closing(log_of(root, config, writable=False)) as log:
        if not config.message_delay_level:
            infer_delays(log, log.delay_levels_ms)
        return log.delays


def with_delays(root: Path, config: StoreConfig) -> StoreConfig:
    """The settings of a store. Delays that are missing there are found from its messages."""
    return config if config.message_delay_level else config.with_delays(delay_table(root, config).delays_ms)
