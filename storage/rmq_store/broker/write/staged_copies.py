"""The rows that tasks staged for a unit: their schema and their check, by the purpose of the unit (data plane).

    purpose     schema                check                               of groups
    sendback    STAGED_COPY_SCHEMA    no two copies are of one message    yes
    others      ENCODED_SCHEMA        none                                no

A client sends a message back once. Rows that name a message twice, mostly because of a join, would multiply the message
with every failure. Their delay levels or reasons may differ, and only the caller knows which row is right: so the
commit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.broker.rules import purposes
from rmq_store.broker.write.staged_files import StagedFile
from rmq_store.errors import UsageError
from rmq_store.format.tables.schema import ENCODED_SCHEMA, STAGED_COPY_SCHEMA

Check = Callable[[Sequence[StagedFile], Sequence[pa.RecordBatch]], None]


class StagedRows(NamedTuple):
    """The schema of staged rows, and a check of (files, their batches in the order of the files) that may raise.
    `are_of_groups`: their topics are those of groups, which have queues as the group says.
    """

    schema: pa.Schema
    check: Check
    are_of_groups: bool = False


def staged_rows(purpose: str) -> StagedRows:
    """The rows that files of a unit with this purpose hold."""
    return _BY_PURPOSE.get(purpose, _ORDINARY)


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
    copies = np.flatnonzero(_column(batches, "copy_of") == offset)
    rows = _column(batches, "given_row")[copies]
    ends = np.cumsum([file.row_count for file in files])
    tasks = [files[number].partition_id for number in np.searchsorted(ends, copies, side="right").tolist()]
    named = [f"partition {task}, row {row}" for task, row in zip(tasks, rows.tolist(), strict=True)]
    raise UsageError(
        f"{named[0]} and {named[1]} both name the message at commitLogOffset {offset}: it would come back once for "
        f"each of its {len(named)} rows. Nothing was sent back. A message needs one row: where a join or explode made "
        "several of it, dropDuplicates(['commitLogOffset']) keeps one"
    )


def _column(batches: Sequence[pa.RecordBatch], name: str) -> np.ndarray:
    """int64 (n,), of all batches."""
    return np.concatenate([batch.column(name).to_numpy() for batch in batches])


_ORDINARY = StagedRows(ENCODED_SCHEMA, lambda files, batches: None)
_BY_PURPOSE = {purposes.SEND_BACK: StagedRows(STAGED_COPY_SCHEMA, refuse_twice, are_of_groups=True)}
