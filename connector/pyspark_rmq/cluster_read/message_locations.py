"""Locations and store times of single messages, as the brokers told them since the last look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rmq_store.cluster import (
    NOT_AT_SLAVE,
    AnswerRequest,
    At,
    Cluster,
    MessageQueue,
    MQBrokerError,
    PullAnswer,
    PullFilter,
    PullRequests,
    PullSource,
    Question,
    RemotingError,
    ResponseCode,
    answer_batches,
    answer_of,
    gather,
    is_away,
    pull,
    search_offsets,
)


class MessageLocation(NamedTuple):
    """One message of a queue."""

    commit_log_offset: int
    store_timestamp_ms: int


class MessageLocations:
    """Answers of brokers about single messages, each asked for once until `forget`. Pulls carry `pull_filter`."""

    def __init__(self, cluster: Cluster, pull_filter: PullFilter) -> None:
        self._cluster = cluster
        self._filter = pull_filter
        self._locations: dict[tuple[MessageQueue, int], MessageLocation | None] = {}
        # Time -> what was found for it.
        self._by_time: dict[int, dict[MessageQueue, int]] = {}

    def forget(self) -> None:
        """Ask the brokers again from now on."""
        self._locations.clear()
        self._by_time.clear()

    def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, all_queues: Callable[[], Iterable[MessageQueue]]
    ) -> int:
        """The first message stored at `timestamp_ms` or later; the end of the queue if there is none (29)."""
        found = self._by_time.setdefault(timestamp_ms, {})
        if queue not in found:
            # A starting option asks for one queue after the other: the second question is asked for all of them.
            asked = {queue, *(all_queues() if found else ())} - found.keys()
            found |= search_offsets(self._cluster, sorted(asked), timestamp_ms)
        return found[queue]

    def location(self, queue: MessageQueue, queue_offset: int) -> MessageLocation | None:
        """One message, by a pull; None if it is not there."""
        key = queue, queue_offset
        if key not in self._locations:
            self._locations[key] = self._asked(queue, queue_offset)
        return self._locations[key]

    def _asked(self, queue: MessageQueue, queue_offset: int) -> MessageLocation | None:
        source = PullSource(self._cluster, queue.broker_name)
        while True:
            try:
                answer = pull(self._cluster, queue, queue_offset, 1, self._filter, broker_id=source.broker_id)
                break
            except RemotingError as error:
                if not is_away(error) or not source.failed(error):
                    raise
            except MQBrokerError as error:
                if source.broker_id == 0 and is_away(error):
                    answer = self._while_busy(queue, queue_offset)
                    break
                # Nor is a message there of a topic that the master does not have (any more).
                gone = (ResponseCode.TOPIC_NOT_EXIST,) if source.broker_id == 0 else NOT_AT_SLAVE
                if error.response_code not in gone:
                    raise
                return None
        if not answer.frames:
            return None
        request = AnswerRequest(
            queue.broker_name,
            self._cluster.wire_topic(queue.topic),
            queue.queue_id,
            ["queueOffset", "commitLogOffset", "storeTimestamp"],
        )
        first = next(answer_batches([answer.frames], request)).slice(0, 1)
        offset, commit_log_offset, _ = (column[0].as_py() for column in first.columns)
        if offset != queue_offset:
            return None
        return MessageLocation(commit_log_offset, first.column(2).cast("int64")[0].as_py() // 1000)

    def _while_busy(self, queue: MessageQueue, queue_offset: int) -> PullAnswer:
        """The answer of a master that was busy, at the second try, or else that of its slave. The pulls of tasks do not
        leave the master for it. Raises what the master said if no slave answers.
        """
        command = PullRequests(self._cluster, queue, self._filter).request(queue_offset, 1)
        asked = {queue: Question(queue.broker_name, command, answer_of)}
        return gather(self._cluster, asked, At.READABLE).required()[queue]
