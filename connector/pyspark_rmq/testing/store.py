"""The values of the fixtures: a store with helpers for tests, and its clock. Control plane; messages are plain dicts.

A message is a dict with the columns that the source has with the option `group` (`topic`, `body`, `properties`,
`reconsumeTimes`, ...). A message from a group's retry topic shows the topic to which it was first sent, as a consumer
sees it (DefaultMQPushConsumerImpl.resetRetryTopic); `storeTopic` is the topic that holds it. A handler gets the same
columns as a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark_rmq.retry.failure_reason import Reason, no_result, reason_of, returned
from pyspark_rmq.retry.handler_runner import DLQ, DONE, RECONSUME_LATER, level_of
from pyspark_rmq.schema import origin_columns
from rmq_store import ClockFile, Message, SendResult, Store, StoreConfig, UnknownTopicError, failure

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

SMALL = StoreConfig(
    mapped_file_size_commit_log=16 << 20,
    mapped_file_size_consume_queue=200_000,
    max_hash_slot_num=5_000,
    max_index_num=20_000,
    disk_space_warning_level_ratio=100,  # a test does not fail because the machine's disk is nearly full
)

# As a handler of `pyspark_rmq.consume`: it gets a `pyspark.sql.Row`.
Handler = Callable[[Any], object]

# In the order of the source's columns.
_ORIGIN_COLUMNS = ("originTopic", "originQueueId", "originQueueOffset", "originMsgId", "storeTopic")


class RmqClock:
    """The clock of a test store, for every process that has it open. It never goes backwards."""

    def __init__(self, file: ClockFile) -> None:
        self._file = file

    def __call__(self) -> int:
        """Return the time in ms since 1970."""
        return self._file()

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self._file() / 1000, UTC)

    def advance(self, duration: timedelta | int) -> datetime:
        """Move the clock by a duration (an int counts ms) and return the time. Delivers nothing by itself.

        Raises:
            UsageError: a negative duration.
        """
        self._file.advance(_milliseconds(duration))
        return self.now()

    def set(self, when: datetime | int) -> datetime:
        """Move the clock to a time (an int counts ms since 1970) and return it. Raises UsageError for an earlier time.
        """
        self._file.set(when if isinstance(when, int) else _milliseconds(when - datetime.fromtimestamp(0, UTC)))
        return self.now()


def create(path: Path, config: StoreConfig) -> RmqClock:
    """Create a store with a clock of its own, which starts at the present time."""
    Store.open(path, create=True, config=config).close()
    return RmqClock(ClockFile.create(path / "pyrmq" / "clock", time.time_ns() // 1_000_000))


class RmqTestStore:
    """A store for one test: `path` for Spark, `store` with the whole interface, and `clock`, the time of both."""

    def __init__(self, path: Path, clock: RmqClock) -> None:
        self.path = path
        self.clock = clock
        self.store = Store.open(path)

    def __enter__(self) -> RmqTestStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.store.close()

    def produce(
        self,
        topic: str,
        *bodies: str | bytes,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[SendResult]:
        """Send messages, and return their send results in order. A missing topic is created. Raises what `send` raises.
        """
        data = [body.encode() if isinstance(body, str) else body for body in bodies]
        messages = [Message(topic, body, tags=tags, keys=keys, properties=properties or {}) for body in data]
        return [self.store.send(message) for message in messages]

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """All messages of a topic in the order in which they were stored; [] if there is no such topic."""
        return self._from(topic, {})

    def dead_letters(self, group: str) -> list[dict[str, Any]]:
        """All dead letters of a group, the oldest first."""
        return self._from(DLQ_PREFIX + group, {})

    def consume(self, topic: str, group: str) -> list[dict[str, Any]]:
        """Return the messages of the topic and of the group's retry topic that the group has not consumed yet, and
        commit them.

        A new group begins with the first message. Messages that are due are delivered first.
        """
        self.store.schedule.deliver_due()
        taken = self._waiting(topic, group)
        self._commit(group, taken)
        return taken

    def drain(
        self, topic: str, group: str, handler: Handler | None = None, *, max_reconsume_times: int | None = None
    ) -> list[dict[str, Any]]:
        """Consume until no message is left, delayed ones included, and return every delivery in order.

        Whenever no message is ready, the clock jumps to the due time of the next delayed one. `handler` gets the same
        `pyspark.sql.Row` as a handler of `pyspark_rmq.consume` (no Spark is started for it), and returns the same
        results: SUCCESS; RECONSUME_LATER, None or an exception for another try after the delay, or a dead letter after
        the last one; a delay level; DLQ. An AssertionError of the handler is the test's own, and ends the call.

        Raises:
            UsageError: an invalid result of the handler.
        """
        deliveries: list[dict[str, Any]] = []
        self.store.schedule.deliver_due()
        while (batch := self._waiting(topic, group)) or self.advance_to_next_due() is not None:
            for message in batch:
                deliveries.append(message)
                level, reason = (DONE, None) if handler is None else _run_handler(handler, message)
                if level != DONE:
                    reason = reason or returned(RECONSUME_LATER if level >= 0 else DLQ)
                    self.store.retry.send_back(
                        group,
                        message["commitLogOffset"],
                        delay_level=level,
                        msg_id=message["msgId"],
                        max_reconsume_times=max_reconsume_times,
                        properties=_properties(reason, self.clock()),
                    )
            self._commit(group, batch)
        return deliveries

    def advance(self, duration: timedelta | int) -> int:
        """Move the clock by a duration (an int counts ms), deliver due messages, and return their number."""
        self.clock.advance(duration)
        return self.store.schedule.deliver_due().delivered

    def advance_to_next_due(self) -> timedelta | None:
        """Move the clock to the due time of the next delayed message and deliver it. Returns the distance, or None if
        no delayed message is left.
        """
        before = self.clock.now()
        due_ms = self.store.schedule.deliver_due().next_due_ms
        if due_ms is None:
            return None
        self.clock.set(max(due_ms, self.clock()))
        self.store.schedule.deliver_due()
        return self.clock.now() - before

    def _waiting(self, topic: str, group: str) -> list[dict[str, Any]]:
        committed = self.store.committed_offsets(group)
        return [*self._from(topic, committed), *self._from(RETRY_PREFIX + group, committed)]

    def _commit(self, group: str, messages: list[dict[str, Any]]) -> None:
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            queue = message["storeTopic"], message["queueId"]
            ends[queue] = max(ends.get(queue, 0), message["queueOffset"] + 1)
        self.store.commit_offsets(group, ends)

    def _from(self, topic: str, committed: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
        found = list(self._read(topic, committed))
        return sorted(found, key=lambda message: message["commitLogOffset"])

    def _read(self, topic: str, committed: Mapping[tuple[str, int], int]) -> Iterator[dict[str, Any]]:
        try:
            queues = self.store.queue_ranges(topic)
        except UnknownTopicError:
            return
        for queue_id, limits in queues.items():
            start = max(committed.get((topic, queue_id), 0), limits.min_offset)
            for batch in self.store.read(topic, queue_id, start, limits.max_offset):
                names = [*batch.schema.names, *_ORIGIN_COLUMNS]
                own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
                rows = origin_columns.complete(batch, names, store_topic=topic, restore_topic=own)
                yield from rows.to_pylist(maps_as_pydicts="strict")


def _milliseconds(duration: timedelta | int) -> int:
    return duration if isinstance(duration, int) else duration // timedelta(milliseconds=1)


def _run_handler(handler: Handler, message: dict[str, Any]) -> tuple[int, Reason | None]:
    """The delay level for the handler's answer, and the reason if it raised an exception or returned None."""
    from pyspark.sql import Row

    try:
        result = handler(Row(**message))
    except AssertionError:
        raise
    except Exception as error:
        return level_of(RECONSUME_LATER), reason_of(error)
    return level_of(result), no_result() if result is None else None


def _properties(reason: Reason, now_ms: int) -> dict[str, str]:
    """The properties that `pyspark_rmq.consume` stores with a failed message, without those of query and batch."""
    return {
        failure.ERROR_CLASS: reason.error_class,
        failure.ERROR_MESSAGE: reason.error_message,
        failure.STACK_HASH: reason.stack_hash,
        failure.FIRST_FAILURE_MS: str(now_ms),
        failure.LAST_FAILURE_MS: str(now_ms),
    }
