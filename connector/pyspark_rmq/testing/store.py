"""The values of the fixtures: a store with helpers for tests, and its clock. Control plane; messages are plain dicts.

A message is a dict with the columns that the source has with the option `group` (`topic`, `body`, `properties`,
`reconsumeTimes`, ...). One from a group's retry topic shows the topic that it was sent to, as a consumer sees it
(DefaultMQPushConsumerImpl.resetRetryTopic); `storeTopic` is the topic that holds it. A handler gets the same as a row.
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
    """The time of a test store, for every process that has it open. It never goes backwards."""

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
        """Move the clock to a time (an int counts ms since 1970) and return it. UsageError for an earlier one."""
        self._file.set(when if isinstance(when, int) else _milliseconds(when - datetime.fromtimestamp(0, UTC)))
        return self.now()


def create(path: Path, config: StoreConfig) -> RmqClock:
    """Create a store with a clock of its own, which begins now."""
    Store.open(path, create=True, config=config).close()
    return RmqClock(ClockFile.create(path / "pyrmq" / "clock", time.time_ns() // 1_000_000))


class RmqTestStore:
    """A store for one test. `path` is what Spark needs, `store` the whole interface, `clock` the time of both."""

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
        """Send messages, and return where they are. The topic is made if it is missing. Raises what `send` raises."""
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
        """Take what the group has not consumed yet from the topic and from its retry topic, and commit that.

        A group begins with the first message. Messages that are due are delivered first.
        """
        self.store.schedule.deliver_due()
        taken = self._waiting(topic, group)
        self._commit(group, taken)
        return taken

    def drain(
        self, topic: str, group: str, handler: Handler | None = None, *, max_reconsume_times: int | None = None
    ) -> list[dict[str, Any]]:
        """Consume until nothing is left and nothing waits, and return every delivery in order.

        The clock jumps to the next message that is due whenever there is nothing to do. `handler` gets and answers
        what one for `pyspark_rmq.consume` does: a `pyspark.sql.Row` (no Spark is started for it), and SUCCESS;
        RECONSUME_LATER, None or an exception for another try after the delay, or a dead letter; a delay level; DLQ.
        An AssertionError of the handler is the test's own and ends the call.

        Raises:
            UsageError: an answer that is none.
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
        """Move the clock by a duration (an int counts ms), deliver what is due then, and return how many that were."""
        self.clock.advance(duration)
        return self.store.schedule.deliver_due().delivered

    def advance_to_next_due(self) -> timedelta | None:
        """Move the clock to the next message that waits and deliver it; how far that was, or None if nothing waits."""
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
    """The delay level that the handler stands for, and why it failed if it has not answered."""
    from pyspark.sql import Row

    try:
        result = handler(Row(**message))
    except AssertionError:
        raise
    except Exception as error:
        return level_of(RECONSUME_LATER), reason_of(error)
    return level_of(result), no_result() if result is None else None


def _properties(reason: Reason, now_ms: int) -> dict[str, str]:
    """What `pyspark_rmq.consume` stores with a failed message, but for the query and its batch."""
    return {
        failure.ERROR_CLASS: reason.error_class,
        failure.ERROR_MESSAGE: reason.error_message,
        failure.STACK_HASH: reason.stack_hash,
        failure.FIRST_FAILURE_MS: str(now_ms),
        failure.LAST_FAILURE_MS: str(now_ms),
    }
