"""Pulls of consumers from one broker, which wait there for messages while the consumer goes on (long polling).

A pull of a queue at its end is held by the broker for 15 s, or until a message comes. The consumer's round does not
wait for it: it asks again, and gets the answer when it is there. Sources: PullAPIWrapper.java, PullRequestHoldService.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import Final

import pyarrow as pa

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.answers import NOT_AT_SLAVE
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue, PullBatchResult, PullStatus
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import PullAnswer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import (
    SQL92,
    PullFilter,
    PullRequests,
    answer_of,
    evaluates_no_sql92,
)
from rmq_store.remoting.cluster.pull_source import PullSource
from rmq_store.remoting.cluster.routes import MASTER_ID

_log = logging.getLogger(__name__)

HOLD_MS: Final = 15_000
PULL_TIMEOUT_MS: Final = 30_000
AT_ONCE_S: Final = 0.02
"""So long a round waits for an answer before it goes on to the next queue."""
_NOTHING: Final = (0, 0)


@dataclass(slots=True)
class _Held:
    """A pull that the broker has, and what was asked."""

    offset: int
    count: int
    tags: str | None
    broker_id: int
    future: Future[RemotingCommand]
    is_waited_for: bool = False

    def asks(self, offset: int, count: int, tags: str | None) -> bool:
        return (self.offset, self.count, self.tags) == (offset, count, tags)


class RemotePulls:
    """The pulls of all queues of one broker."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._cluster = cluster
        self._source = PullSource(cluster, name)
        self._held: dict[tuple[str, MessageQueue], _Held] = {}
        self._ranges: dict[MessageQueue, tuple[int, int]] = {}

    def pull(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        tags: str | None,
        condition: str | None = None,
    ) -> PullBatchResult:
        """See `Broker.pull_batch`. NO_NEW_MSG at the same offset while the broker holds the pull. A broker may evaluate
        an SQL92 `condition`, and may send more than what fulfils it: the consumer evaluates it in any case.
        """
        key = (group, queue)
        held = self._held.get(key)
        if held is None or not held.asks(offset, max_count, tags):
            held = self._held[key] = self._ask(group, queue, offset, max_count, tags, condition)
        # A pull is waited for once; later rounds only look whether the answer is there.
        wait_s = 0 if held.is_waited_for else AT_ONCE_S
        held.is_waited_for = True
        try:
            command = held.future.result(wait_s)
        except NotYetError:
            return self._nothing(queue, offset)
        except RemotingError as error:
            self._held.pop(key, None)
            if held.broker_id == self._source.broker_id:
                self._source.failed(error)
            raise
        self._held.pop(key, None)
        return self._result(held, queue, command)

    def forget(self, group: str) -> None:
        """Drop the pulls of a group that this process leaves; the broker answers nobody."""
        for key in [key for key in self._held if key[0] == group]:
            self._held.pop(key, None)

    def _ask(
        self, group: str, queue: MessageQueue, offset: int, max_count: int, tags: str | None, condition: str | None
    ) -> _Held:
        wanted = PullFilter(group=group, subscription=tags or "*")
        if condition is not None and self._name not in self._cluster.without_sql92:
            wanted = PullFilter(group=group, subscription=condition, expression_type=SQL92)
        requests = PullRequests(self._cluster, queue, wanted, hold_ms=HOLD_MS)
        broker_id = self._source.broker_id
        try:
            future = requests.submit(offset, max_count, broker_id, PULL_TIMEOUT_MS)
        except RemotingError as error:
            self._source.failed(error)
            raise
        return _Held(offset, max_count, tags, broker_id, future)

    def _result(self, held: _Held, queue: MessageQueue, command: RemotingCommand) -> PullBatchResult:
        try:
            answer = answer_of(command, self._name)
        except MQBrokerError as error:
            if evaluates_no_sql92(error) and self._name not in self._cluster.without_sql92:
                self._cluster.without_sql92.add(self._name)
                _log.warning(
                    "broker %s does not evaluate SQL92 (enablePropertyFilter=false): it sends all messages, and the "
                    "condition is evaluated here", self._name,
                )  # fmt: skip
                return self._nothing(queue, held.offset)
            if held.broker_id != MASTER_ID and error.response_code in NOT_AT_SLAVE:
                self._source.is_behind()
                return self._nothing(queue, held.offset)
            raise
        may_lag = self._source.lags(held.broker_id)
        self._source.suggested(answer.suggest_broker_id)
        bounds = self._ranges[queue] = (answer.min_offset, answer.max_offset)
        if answer.code == ResponseCode.SUCCESS:
            batches = tuple(self._decoded(answer, queue, held.tags))
            status = PullStatus.FOUND if batches else PullStatus.NO_MATCHED_MSG
            return PullBatchResult(status, answer.next_offset, *bounds, batches)
        if may_lag and not (answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_offset > held.offset):
            # The master may have more: its offsets are not those of this process.
            self._source.is_behind()
            return self._nothing(queue, held.offset)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return PullBatchResult(PullStatus.OFFSET_ILLEGAL, answer.next_offset, *bounds)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return PullBatchResult(PullStatus.NO_MATCHED_MSG, answer.next_offset, *bounds)
        return PullBatchResult(PullStatus.NO_NEW_MSG, answer.next_offset, *bounds)

    def _decoded(self, answer: PullAnswer, queue: MessageQueue, tags: str | None) -> Iterable[pa.RecordBatch]:
        tag_filter = TagFilter.parse(tags)
        wanted = AnswerRequest(
            self._name,
            self._cluster.wire_topic(queue.topic),
            queue.queue_id,
            MESSAGE_SCHEMA.names,
            shown_topic=queue.topic,
            keep_tags=None if tag_filter is None else tag_filter.matches,
        )
        return answer_batches([answer.frames], wanted)

    def _nothing(self, queue: MessageQueue, offset: int) -> PullBatchResult:
        return PullBatchResult(PullStatus.NO_NEW_MSG, offset, *self._ranges.get(queue, _NOTHING))
