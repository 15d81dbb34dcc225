"""Dead letters of a cluster: the rows of a redrive, the outcome of each, and the copy that is sent. Pure.

The rules are those of a store (`broker.dlq.redrive_batch`). PYRMQ_DEAD_LETTER says which letter a message is a copy of,
with group and broker, because one topic may get letters of several of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.broker.dlq.redrive_batch import OF_KAFKA, PARKED, REDRIVEN, REFUSED, Policy
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.dlq.redrive_request import RESULT_SCHEMA, ROWS_SCHEMA
from rmq_store.broker.rules.failure import DEAD_LETTER, KAFKA_LETTER, MIRROR_LETTER, ORIGIN_TOPIC, REPLAYS, with_reasons
from rmq_store.client.cluster_retry.retry_copies import BROKER_PROPERTIES_BYTES_MAX, LEFT_BEHIND
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue

CLUSTER_ROWS_SCHEMA: Final = pa.schema([("brokerName", pa.string()), *ROWS_SCHEMA])
"""Letters to move: as `ROWS_SCHEMA`, with the broker that holds them."""

CLUSTER_RESULT_SCHEMA: Final = pa.schema(
    [("brokerName", pa.string()), *RESULT_SCHEMA, ("targetBrokerName", pa.string())]
)
"""The outcome of each letter: as `RESULT_SCHEMA`, with both brokers. A copy that was found after a lost answer has no
new offsets.
"""

_COUNT: Final = re.compile("[0-9]{1,9}", re.ASCII)


class Judgement(NamedTuple):
    """The outcome of a letter; `target` and `properties` (a property string) only if it moves."""

    outcome: str
    reason: str | None
    target: str | None = None
    properties: str = ""


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


# -- the outcome, and the copy ----------------------------------------------------------------------------------------


def letter_name(dlq_topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """The value of PYRMQ_DEAD_LETTER."""
    return f"{dlq_topic}:{broker_name}:{queue_id}:{queue_offset}"


def judged(message: StoredMessage, name: str, msg_id: str | None, policy: Policy) -> Judgement:
    """The outcome of a dead letter; `msg_id` is the id that the caller expects, None: any."""
    own = message.properties
    if msg_id is not None and message.msg_id != msg_id:
        return Judgement(REFUSED, "another message is there")
    if KAFKA_LETTER in own or MIRROR_LETTER in own:
        return Judgement(REFUSED, OF_KAFKA)
    replays = int(own[REPLAYS]) if _COUNT.fullmatch(own.get(REPLAYS, "")) else 0
    is_beyond = policy.max_replays is not None and replays >= policy.max_replays
    reason = f"replayed {policy.max_replays} times" if is_beyond else None
    if is_beyond and policy.parking_topic is None:
        return Judgement(REFUSED, reason)
    target = policy.parking_topic if is_beyond else policy.target
    assert target is not None  # a letter beyond the maximum without one is refused above
    properties = {key: value for key, value in own.items() if key not in LEFT_BEHIND}
    properties[keys.WAIT_STORE_MSG_OK] = "true"
    if not target.startswith(RETRY_PREFIX):
        retried = properties.pop(keys.RETRY_TOPIC, None)
        if ORIGIN_TOPIC not in properties and retried is not None:
            properties[ORIGIN_TOPIC] = retried
    count = replays + (not is_beyond)
    if count:
        properties[REPLAYS] = str(count)
    properties[DEAD_LETTER] = name
    fitted = with_reasons(properties, {}, keys.PROPERTIES_BYTES_MAX - BROKER_PROPERTIES_BYTES_MAX)
    if fitted is None:
        return Judgement(REFUSED, "its properties leave no room for those of a redrive")
    return Judgement(PARKED if is_beyond else REDRIVEN, reason, target, encode_properties(fitted).decode())
