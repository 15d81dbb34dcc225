"""Copies that the tasks of one write staged: no two of them may be of one message (data plane).

A client sends a message back once; each copy of a retry is a message of its own, and so are the copies of it. A caller
whose rows name a message twice, mostly because of a join, would multiply it with every failure. Which of two rows he
means, where their delay levels or reasons differ, only he knows: so none is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rmq_store.broker.write.staged_files import StagedFile
from rmq_store.errors import UsageError


def refuse_twice(files: Sequence[StagedFile], batches: Sequence[pa.RecordBatch]) -> None:
    """Raise `UsageError` if two rows name one message, in one task or in two. `batches` (STAGED_COPY_SCHEMA) are those
    of all files, in their order. Holds 8 bytes a row.
    """
    if not batches:
        return
    offsets = _column(batches, "copy_of")
    offsets.sort()
    twice = np.flatnonzero(offsets[1:] == offsets[:-1])
    if not len(twice):
        return
    offset = int(offsets[twice[0]])
    places = np.flatnonzero(_column(batches, "copy_of") == offset)
    rows = _column(batches, "given_row")[places]
    ends = np.cumsum([file.row_count for file in files])
    tasks = [files[place].partition_id for place in np.searchsorted(ends, places, side="right").tolist()]
    named = [f"partition {task}, row {row}" for task, row in zip(tasks, rows.tolist(), strict=True)]
    raise UsageError(
        f"{named[0]} and {named[1]} both name the message at commitLogOffset {offset}: it would come back once for "
        f"each of its {len(named)} rows. Nothing was sent back. A message needs one row: where a join or explode made "
        "several of it, dropDuplicates(['commitLogOffset']) keeps one"
    )


def _column(batches: Sequence[pa.RecordBatch], name: str) -> np.ndarray:
    """int64 (n,), of all batches."""
    return np.concatenate([batch.column(name).to_numpy() for batch in batches])
