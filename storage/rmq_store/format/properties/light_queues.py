"""Light message queues (LMQ): queues `%LMQ%...` whose entries point at messages of other topics.

A message that is dispatched to such queues names them, and its offset in each, in two properties:

    INNER_MULTI_DISPATCH        "%LMQ%a,%LMQ%b"
    INNER_MULTI_QUEUE_OFFSET    "1,0"

The record is that of the topic it was sent to: topic, queue id and queue offset in it are those of its first entry. A
light queue's id is always 0. Sources: MultiDispatchUtils.java, LmqDispatch.java, MixAll#isLmq.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_columns import PropertyPieces
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.lazy.arrow_compute import pc

_SEPARATOR = ","


def is_light(topic: str) -> bool:
    """True if it is the name of a light queue."""
    return topic.startswith(LMQ_PREFIX)


def is_dispatched(properties: Mapping[str, str], topic: str, queue_offset: int) -> bool:
    """True if a message with these properties is the one at this offset of a light queue."""
    queues = properties.get(names.INNER_MULTI_DISPATCH, "").split(_SEPARATOR)
    offsets = properties.get(names.INNER_MULTI_QUEUE_OFFSET, "").split(_SEPARATOR)
    return (topic, str(queue_offset)) in zip(queues, offsets, strict=False)


def are_dispatched(pieces: PropertyPieces, topic: str, queue_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """As `is_dispatched`, for many messages: (n,) bool."""
    queues = pc.split_pattern(pieces.column(names.INNER_MULTI_DISPATCH).fill_null(""), _SEPARATOR)
    offsets = pc.split_pattern(pieces.column(names.INNER_MULTI_QUEUE_OFFSET).fill_null(""), _SEPARATOR)
    rows = np.flatnonzero(pc.equal(pc.list_value_length(queues), pc.list_value_length(offsets)).to_numpy(False))
    queues, offsets = queues.take(pa.array(rows)), offsets.take(pa.array(rows))
    row_of = rows[pc.list_parent_indices(queues).to_numpy()]
    expected = pa.array(queue_offsets[row_of]).cast(pa.string())
    hits = pc.and_(pc.equal(queues.flatten(), topic), pc.equal(offsets.flatten(), expected)).to_numpy(False)
    found = np.zeros(len(queue_offsets), np.bool_)
    found[row_of[hits]] = True
    return found
