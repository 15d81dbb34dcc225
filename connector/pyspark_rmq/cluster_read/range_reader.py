"""Messages of a range of a queue, as record batches. Data plane."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from pyspark_rmq.options.options import RETRY_PREFIX
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    SQL92,
    AnswerRequest,
    BatchMemory,
    BrokerAwayError,
    Cluster,
    MessageQueue,
    MQBrokerError,
    PullFilter,
    RemotingError,
    SlaveBehindError,
    TagFilter,
    WalkedFrames,
    answer_batches,
    evaluates_no_sql92,
    is_away,
    walk_range,
)

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

# Messages of a look-up that are this far apart are read by one range.
_GAP_ROWS: Final = 32

_memory = BatchMemory()


def queue_of(topic: str, queue_id: BrokerQueueId) -> MessageQueue:
    """Name a queue as the brokers do."""
    return MessageQueue(topic, queue_id.broker_name, queue_id.queue_id)


class RangeReader:
    """Reads ranges of queues. `pull_group` is the group of the pulls. Of a condition `sql92` brokers may send messages
    that do not fulfil it. `away_ms`: so long a broker that is away is waited for, by the option brokerAwayTimeout;
    None: as `walk_range` does, with the errors of that.
    """

    def __init__(
        self, cluster: Cluster, pull_group: str, sql92: str | None, away_ms: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._pull_group = pull_group
        self._sql92 = sql92
        self._away_ms = away_ms
        self._sleep = sleep

    def read(
        self,
        topic: str,
        queue_id: BrokerQueueId,
        start: int,
        end: int,
        *,
        columns: Sequence[str],
        tags: str | None,
        raw_body: bool,
        only: np.ndarray | None,
    ) -> Iterator[pa.RecordBatch]:
        """The messages `[start, end)` as `ClusterReader.read`, which raises the same errors."""
        tag_filter = TagFilter.parse(tags)
        queue = queue_of(topic, queue_id)
        request = AnswerRequest(
            queue_id.broker_name,
            self._cluster.wire_topic(topic),
            queue_id.queue_id,
            columns,
            raw_body,
            topic,
            None if tag_filter is None else tag_filter.matches,
        )
        wanted = PullFilter(group=self._pull_group, subscription=tags or "*")
        # A group's retries have passed the filter before.
        if self._sql92 is not None and not topic.startswith(RETRY_PREFIX):
            wanted = PullFilter(group=self._pull_group, subscription=self._sql92, expression_type=SQL92)
        for first, last in [(start, end)] if only is None else _runs(only, start, end):
            frames = self._walked(queue, first, last, wanted)
            yield from answer_batches(frames, request, only=only, memory=_memory)

    def _walked(self, queue: MessageQueue, start: int, end: int, wanted: PullFilter) -> Iterator[WalkedFrames]:
        """As `walk_range`; a broker that does not evaluate SQL92 sends all messages."""
        without, name = self._cluster.without_sql92, queue.broker_name
        is_sql92 = wanted.expression_type == SQL92
        if is_sql92 and name not in without:
            frames = self._awaited(queue, start, end, wanted)
            try:
                some = next(frames, None)
            except MQBrokerError as error:
                if not evaluates_no_sql92(error):
                    raise
                without.add(name)
                _log.warning(
                    "broker %s does not evaluate SQL92 (enablePropertyFilter=false): it sends all messages, and the "
                    "condition is evaluated here", name,
                )  # fmt: skip
            else:
                if some is not None:
                    yield some
                    yield from frames
                return
        yield from self._awaited(queue, start, end, PullFilter(group=wanted.group) if is_sql92 else wanted)

    def _awaited(self, queue: MessageQueue, start: int, end: int, wanted: PullFilter) -> Iterator[WalkedFrames]:
        """As `walk_range`. BrokerAwayError: the broker was waited for in vain, so long as the option says."""
        try:
            yield from walk_range(
                self._cluster, queue, start, end, wanted, away_ms=self._away_ms, sleep=self._sleep
            )
        except (RemotingError, MQBrokerError, SlaveBehindError) as error:
            if self._away_ms is None or not (is_away(error) or isinstance(error, SlaveBehindError)):
                raise
            raise BrokerAwayError(
                f"broker {queue.broker_name} is away: messages [{start}, {end}) of queue {queue.queue_id} of topic "
                f"{queue.topic} were waited for {self._away_ms / 1000:g} s without an answer (option "
                f"brokerAwayTimeout). The last one was: {error}",
                (queue.broker_name,),
            ) from error


def _runs(only: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges that have all offsets of `only` within [start, end), and not much between them."""
    only = only[slice(*np.searchsorted(only, (start, end)))]
    parts = np.split(only, np.flatnonzero(np.diff(only) > _GAP_ROWS) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]
