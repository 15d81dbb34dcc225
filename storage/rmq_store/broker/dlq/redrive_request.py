"""One call of `redrive`: its rows, and the outcome of each (plain columns)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.dlq.redrive_batch import Judged, Policy
from rmq_store.broker.rules.input_rows import as_schema
from rmq_store.broker.rules.routing import Router
from rmq_store.format.text import names

Rows = npt.NDArray[np.intp]

ROWS_SCHEMA = pa.schema([("queueId", pa.int32()), ("queueOffset", pa.int64()), ("msgId", pa.string())])
"""Rows to redrive: their queue and offset in `%DLQ%group`. `msgId` may be left out; if given, it must be the message's.
"""

RESULT_SCHEMA = pa.schema(
    [
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("msgId", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("target", pa.string()),
        ("targetQueueId", pa.int32()),
        ("newQueueOffset", pa.int64()),
        ("newCommitLogOffset", pa.int64()),
    ]
)
"""The outcome of each row. `outcome`: REDRIVEN, PARKED (it was replayed too often, and went to the parking topic),
ALREADY_REDRIVEN, REFUSED (`reason` says why) or GONE (retention removed it); of a plan WOULD_REDRIVE and WOULD_PARK
instead of the first two. `target` is null for a row that does not move, the last three for a row that was not moved,
`msgId` if the message was not read.
"""


class RedriveRequest:
    """Rows of one dead-letter topic, by queues and in ascending order of their offsets, and their results."""

    def __init__(
        self, group: str, rows: pa.RecordBatch, policy: Policy, router: Router, limit: int | None = None
    ) -> None:
        self.group = group
        self.dlq = names.dlq_topic(group)
        self.policy = policy
        self.router = router
        rows = as_schema(rows, ROWS_SCHEMA, ("queueId", "queueOffset"), "a dead letter is named by its place")
        self.queue_ids = rows.column("queueId").to_numpy()
        self.queue_offsets = rows.column("queueOffset").to_numpy()
        given = rows.column("msgId")
        self.msg_ids = None if given.null_count == len(given) else given
        self.done_rows = self.moved_rows = self.moved_bytes = 0
        self.left = limit
        count = rows.num_rows
        self._texts = {name: np.full(count, None, object) for name in ("msgId", "outcome", "reason", "target")}
        self._written = np.full((3, count), -1, np.int64)

    def queues(self) -> Iterator[tuple[int, Rows]]:
        """(queue id, its rows in ascending order of queue offset)."""
        order = np.lexsort((self.queue_offsets, self.queue_ids))
        changes = np.flatnonzero(np.diff(self.queue_ids[order])) + 1
        for rows in np.split(order, changes) if len(order) else ():
            yield int(self.queue_ids[rows[0]]), rows

    def set_outcomes(self, rows: Rows, judged: Judged, targets: npt.NDArray[np.object_], moved_bytes: int) -> None:
        """Store the outcomes of `rows`, the first ones of `judged`; `targets`: topic of each moving row, else None."""
        count = len(rows)
        for name, values in (("msgId", judged.ids), ("outcome", judged.outcomes), ("reason", judged.reasons)):
            self._texts[name][rows] = values[:count]
        self._texts["target"][rows] = targets[:count]
        self.done_rows += count
        if self.left is not None:
            self.left -= int(np.count_nonzero(judged.moving() < count))
        self.moved_rows += int(np.count_nonzero(self._written[0][rows] >= 0))
        self.moved_bytes += moved_bytes

    def set_targets(
        self,
        rows: Rows,
        target_queue_ids: npt.NDArray[np.int32],
        queue_offsets: npt.NDArray[np.int64],
        log_offsets: npt.NDArray[np.int64],
    ) -> None:
        """Store the target queues and offsets of moved rows; all (n,)."""
        self._written[:, rows] = target_queue_ids, queue_offsets, log_offsets

    def result(self, renamed: Mapping[str, str]) -> pa.RecordBatch:
        """RESULT_SCHEMA in the order of the rows, without undecided rows; `renamed`: other names for outcomes."""
        outcomes = [renamed.get(outcome, outcome) for outcome in self._texts["outcome"]]
        absent = self._written[0] < 0
        target_queue_ids, *offsets = (pa.array(numbers, mask=absent) for numbers in self._written)
        texts = {name: pa.array(values, pa.string()) for name, values in self._texts.items()}
        columns = [
            pa.array(self.queue_ids), pa.array(self.queue_offsets), texts["msgId"], pa.array(outcomes, pa.string()),
            texts["reason"], texts["target"], target_queue_ids.cast(pa.int32()), *offsets,
        ]  # fmt: skip
        result = pa.RecordBatch.from_arrays(columns, schema=RESULT_SCHEMA)
        return result if self.left != 0 else result.filter(result.column("outcome").is_valid())
