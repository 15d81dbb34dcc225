"""RocketMQ's checkpoint file of a store, read (`format/tables/checkpoint.py` has its layout)."""

from __future__ import annotations

from rmq_store.files import durable
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.log.core.commit_log import CommitLog


def load_checkpoint(log: CommitLog) -> Checkpoint:
    """RocketMQ's checkpoint; all zeros if the file is missing."""
    path = log.root / "checkpoint"
    try:
        return Checkpoint.unpack(durable.read_limited(path, 1 << 20), str(path))
    except FileNotFoundError:
        return Checkpoint()
