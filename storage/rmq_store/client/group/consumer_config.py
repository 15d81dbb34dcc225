"""The settings of consumers, with RocketMQ's names and defaults.

Sources: DefaultMQPushConsumer.java, DefaultLitePullConsumer.java, MessageModel.java, ConsumeFromWhere.java,
Validators.java.
"""

from __future__ import annotations

import time
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from rmq_store.arguments import check_fields
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy

_MINUTE_MS = 60_000
_TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
_DEFAULT_TIMESTAMP_AGE_MS = 30 * _MINUTE_MS
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000

_Choice = TypeVar("_Choice", bound=StrEnum)


class MessageModel(StrEnum):
    """CLUSTERING: the members of a group share the messages. BROADCASTING: each of them gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """The start of a group without a stored offset. Brokers overrule LAST_OFFSET for young queues: they start at 0."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings that push and lite pull consumers share. Members of enumerations may be given as texts.

    `consume_timestamp`: "yyyyMMddHHmmss", local time; None: half an hour ago. `instance_name` distinguishes consumers
    of one machine; None: generated for each (CLUSTERING), or "DEFAULT" (BROADCASTING: its stored offsets are found by
    this name). `offset_store_directory`: directory of the offsets of broadcasting consumers.

    Raises (when constructed):
        UsageError: a value outside its range.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: str | None = None
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(default_factory=AllocateMessageQueueAveragely)
    pull_batch_size: int = 32
    instance_name: str | None = None
    offset_store_directory: str | Path = "~/.rocketmq_offsets"

    def __post_init__(self) -> None:
        check_fields(self, "message_model", "consume_from_where")
        # A text equals the member of its name, but is not it: everything else may compare by `is`.
        object.__setattr__(self, "message_model", _member(MessageModel, "message_model", self.message_model))
        where = _member(ConsumeFromWhere, "consume_from_where", self.consume_from_where)
        object.__setattr__(self, "consume_from_where", where)
        _check("pull_batch_size", self.pull_batch_size, 1, 1024)
        if self.consume_timestamp is not None:
            try:
                time.strptime(self.consume_timestamp, _TIMESTAMP_FORMAT)
            except ValueError as error:
                raise UsageError(f"consume_timestamp {self.consume_timestamp!r} is no yyyyMMddHHmmss") from error

    def consume_timestamp_ms(self, now_ms: int) -> int:
        """The time from which CONSUME_FROM_TIMESTAMP consumes."""
        if self.consume_timestamp is None:
            return now_ms - _DEFAULT_TIMESTAMP_AGE_MS
        return int(time.mktime(time.strptime(self.consume_timestamp, _TIMESTAMP_FORMAT))) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    """The settings of a PushConsumer.

    `max_reconsume_times` -1: the group's own (16) for concurrent listeners, without limit for ordered ones. A listener
    gets at most `consume_message_batch_max_size` messages at a time, all of one pull of `pull_batch_size`. Both may be
    1,024, which is fast for a MessageListenerArrow if `pull_threshold_for_queue` allows several pulls in memory.
    `suspend_current_queue_time_millis`: 1000 as 4.x clients; FIFO consumers of 5.x wait 3000. `consume_timeout`:
    minutes, counted from the call of the listener on; with `consume_timeout_includes_queueing` from the pull on, as in
    5.x clients. `rate_limiter` delays calls of the listener. `poll_interval_millis`: pause of the pull thread when
    there are no new messages. `await_termination_millis_when_shutdown`: how long `shutdown` waits for running
    listeners.
    """

    consume_thread_nums: int = 20
    consume_message_batch_max_size: int = 1
    max_reconsume_times: int = -1
    suspend_current_queue_time_millis: int = 1000
    consume_timeout: int = 15
    consume_timeout_includes_queueing: bool = False
    pull_interval: int = 0
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic: int = -1
    consume_concurrently_max_span: int = 2000
    rate_limiter: RateLimiter | None = None
    poll_interval_millis: int = 50
    await_termination_millis_when_shutdown: int = 30_000

    def __post_init__(self) -> None:
        # The zero-argument form of super() does not work in a dataclass with slots.
        ConsumerConfig.__post_init__(self)
        _check("consume_thread_nums", self.consume_thread_nums, 1, 1000)
        _check("consume_message_batch_max_size", self.consume_message_batch_max_size, 1, 1024)
        _check("max_reconsume_times", self.max_reconsume_times, -1, (1 << 31) - 1)
        _check("consume_timeout", self.consume_timeout, 1, (1 << 31) - 1)
        _check("pull_interval", self.pull_interval, 0, 65535)
        _check("pull_threshold_for_queue", self.pull_threshold_for_queue, 1, 65535)
        _check("pull_threshold_size_for_queue", self.pull_threshold_size_for_queue, 1, 1024)
        if self.pull_threshold_for_topic != -1:
            _check("pull_threshold_for_topic", self.pull_threshold_for_topic, 1, 6_553_500)
        if self.pull_threshold_size_for_topic != -1:
            _check("pull_threshold_size_for_topic", self.pull_threshold_size_for_topic, 1, 102_400)
        _check("consume_concurrently_max_span", self.consume_concurrently_max_span, 1, 65535)
        _check("poll_interval_millis", self.poll_interval_millis, 1, 60_000)
        _check("await_termination_millis_when_shutdown", self.await_termination_millis_when_shutdown, 0, 86_400_000)

    @property
    def consume_timeout_ms(self) -> int:
        """`consume_timeout` in ms."""
        return self.consume_timeout * _MINUTE_MS

    def suspend_ms(self, of_context: int) -> int:
        """The pause of a queue after a failure: the context's if it set one, within 10..30000 ms."""
        wanted = self.suspend_current_queue_time_millis if of_context == -1 else of_context
        return min(max(wanted, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig(ConsumerConfig):
    """The settings of a LitePullConsumer."""

    pull_batch_size: int = 10
    auto_commit: bool = True
    auto_commit_interval_millis: int = 5000
    poll_timeout_millis: int = 5000

    def __post_init__(self) -> None:
        ConsumerConfig.__post_init__(self)
        # DefaultLitePullConsumer.java MIN_AUTOCOMMIT_INTERVAL_MILLIS
        _check("auto_commit_interval_millis", self.auto_commit_interval_millis, 1000, (1 << 31) - 1)
        _check("poll_timeout_millis", self.poll_timeout_millis, 0, (1 << 31) - 1)


def _member(kind: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} {value!r} is none of {', '.join(kind)}") from None


def _check(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} {value!r} is not an integer in {least}..{most}")
