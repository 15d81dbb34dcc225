"""A store for one run of a test suite: small files, and if wanted a clock that only the suite moves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.store.store import Store
from rmq_store.clock import ClockFile, system_clock

SCRATCH_CONFIG: Final = StoreConfig(
    mapped_file_size_commit_log=16 << 20,
    mapped_file_size_consume_queue=200_000,
    max_hash_slot_num=5_000,
    max_index_num=20_000,
    disk_space_warning_level_ratio=100,  # a suite does not fail because the machine's disk is nearly full
)
"""The settings of RocketMQ, with files that cost little to make."""


def make_scratch_store(
    path: str | Path, config: StoreConfig = SCRATCH_CONFIG, *, virtual_clock: bool = True
) -> ClockFile | None:
    """Make an empty store. Returns its virtual clock, which stands at the present time, for every process that opens
    the store; None without one. Raises what `Store.open` raises, and UsageError if the store has a clock already.
    """
    root = Path(path)
    Store.open(root, create=True, config=config).close()
    return ClockFile.create(root / "pyrmq" / "clock", system_clock()) if virtual_clock else None
