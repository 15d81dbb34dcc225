"""A store for one run of a test suite: small files, and if wanted a clock that only the suite moves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.store.directory import make_root
from rmq_store.broker.store.store import Store
from rmq_store.clock import ClockFile, system_clock
from rmq_store.files import durable

SCRATCH_CONFIG: Final = StoreConfig(
    mapped_file_size_commit_log=16 << 20,
    mapped_file_size_consume_queue=200_000,
    max_hash_slot_num=5_000,
    max_index_num=20_000,
    disk_space_warning_level_ratio=100,  # a suite does not fail because the machine's disk is nearly full
)
"""The settings of RocketMQ, with files that cost little to make."""


def make_scratch_store(path: str | Path, *, virtual_clock: bool = False) -> None:
    """Make an empty store with SCRATCH_CONFIG. Raises what `Store.open` and `make_virtual_clock` raise."""
    root = Path(path)
    if virtual_clock:
        make_virtual_clock(root)
    Store.open(root, create=True, config=SCRATCH_CONFIG).close()


def make_virtual_clock(path: str | Path) -> ClockFile:
    """Make the clock of a store that is made next, by the first `Store.open` with `create`: it is opened once then. It
    stands at the present time, for every process that opens the store.

    Raises:
        NotAStoreError: other files are there.
        UsageError: the store has a clock already.
    """
    root = Path(path).absolute()
    make_root(root)
    with durable.typed(root):
        durable.make_directory(root / "pyrmq")
    return ClockFile.create(root / "pyrmq" / "clock", system_clock())
