"""The offset at which a consumer starts in a queue that it got. Source: RebalancePushImpl.java
(computePullFromWhereWithException).

    stored offset    wins always; a broker answers 0 for a new group on a queue whose first message is still young
    none stored      LAST_OFFSET: the end, FIRST_OFFSET: 0 (the first pull corrects it), TIMESTAMP: by the store's times
    %RETRY% topics   LAST_OFFSET, FIRST_OFFSET: 0, TIMESTAMP: the end
"""

from __future__ import annotations

from rmq_store.client.backend.backend import Backend, broker_of
from rmq_store.client.group.consumer_config import ConsumeFromWhere
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.protocol.messages import MessageQueue


def pull_from_where(
    backend: Backend, offsets: OffsetStore, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int
) -> int:
    """The offset to pull first. Raises ClientError: the broker cannot be asked."""
    stored = offsets.read(queue)
    if stored is not None:
        return stored
    broker = broker_of(backend, queue)
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return 0
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return broker.max_offset(queue) if is_retry else broker.offset_by_time(queue, timestamp_ms)
    return 0 if is_retry else broker.max_offset(queue)
