"""The rows of one redrive of a cluster, and the outcome of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.dlq.redrive_request import RESULT_SCHEMA, ROWS_SCHEMA
from rmq_store.client.cluster_retry.letter_copies import Judgement
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.late.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue

CLUSTER_ROWS_SCHEMA: Final = pa.schema([("brokerName", pa.string()), *ROWS_SCHEMA])
"""Letters to move: as `ROWS_SCHEMA`, with the broker that holds them."""

CLUSTER_RESULT_SCHEMA: Final = pa.schema(
    [("brokerName", pa.string()), *RESULT_SCHEMA, ("targetBrokerName", pa.string())]
)
"""The outcome of each letter: as `RESULT_SCHEMA`, with both brokers. A copy that was found after a lost answer has no
new offsets.
"""


@dataclass(slots=True, eq=False)
class Letter:
    """A row, and what is known of it. `msg_id`: the id that the caller expects, None: any."""

    row: int
    queue_offset: int
    msg_id: str | None
    message: StoredMessage | None = None
    judgement: Judgement | None = None
    target: MessageQueue | None = None
    new_queue_offset: int | None = None
    new_log_offset: int | None = None
    found_msg_id: str | None = None

    def forget_message(self) -> None:
        """Keep the outcome, and not the message and its copy: all letters of a call wait for its result."""
        if self.message is not None:
            self.found_msg_id, self.message = self.message.msg_id, None
        if self.judgement is not None:
            self.judgement = self.judgement._replace(properties="")


def ranges_of(letters: Sequence[Letter]) -> OffsetRanges:
    """The offsets of letters of one queue."""
    return OffsetRanges.of(np.array(sorted(one.queue_offset for one in letters), np.int64))


def letters_by_broker(rows: pa.RecordBatch) -> dict[str, dict[int, list[Letter]]]:
    """The rows by broker and queue, in ascending order of queue offset."""
    columns = [rows.column(name).to_pylist() for name in ("brokerName", "queueId", "queueOffset", "msgId")]
    found: dict[str, dict[int, list[Letter]]] = {}
    order = sorted(range(rows.num_rows), key=lambda row: (columns[0][row], columns[1][row], columns[2][row], row))
    for row in order:
        broker_name, queue_id, queue_offset, msg_id = (column[row] for column in columns)
        found.setdefault(broker_name, {}).setdefault(queue_id, []).append(Letter(row, queue_offset, msg_id))
    return found


def result_of(done: Mapping[int, tuple[str, int, Letter]], renamed: Mapping[str, str]) -> pa.RecordBatch:
    """CLUSTER_RESULT_SCHEMA in the order of the rows."""
    found = []
    for row in sorted(done):
        broker_name, queue_id, one = done[row]
        assert one.judgement is not None  # only such rows are done
        outcome, reason, target, _ = one.judgement
        found.append(
            {
                "brokerName": broker_name, "queueId": queue_id, "queueOffset": one.queue_offset,
                "msgId": one.found_msg_id,
                "outcome": renamed.get(outcome, outcome), "reason": reason, "target": target,
                "targetQueueId": one.target.queue_id if one.target is not None else None,
                "newQueueOffset": one.new_queue_offset, "newCommitLogOffset": one.new_log_offset,
                "targetBrokerName": one.target.broker_name if one.target is not None else None,
            }
        )  # fmt: skip
    return pa.RecordBatch.from_pylist(found, CLUSTER_RESULT_SCHEMA)
