"""The target of a command, and what an open target shows: the questions that a store and a cluster both answer.

`target.store.view` and `target.cluster.view` answer them. Only they, and what they import, know which side it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from rmq_store.cli.shared.targets import Start
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.lag_lines import LagGauge, LagLine
from rmq_store.cli.target.rows import Activity, ChangeRow, GroupRow, PlaceRow, SentRow, TopicRow, Total

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.target.redrive_calls import Totals
    from rmq_store.client import PushConsumer, PushConsumerConfig
    from rmq_store.protocol.messages import MessageQueue

Tell = Callable[[str], None]
"""Gets a remark about what the rows lack, without a line end."""

QueueName = int | str
"""A queue as --queue names it: its number, in a cluster `broker-a:0`, or the number if one broker has such a queue."""


Progress = Callable[[int, int], None] | None
"""Gets the rows and the bytes that are done."""


class DeadLetters(Protocol):
    """The present dead letters of a group that a filter selects."""

    def total(self) -> Total:
        """The number of dead letters, without the filter."""

    def redriven_count(self) -> int | None:
        """The number of those that were redriven; None: not known."""

    def archived_count(self) -> int | None:
        """The number of those in the archive of retention; None: there is no archive."""

    def batches(self, columns: Sequence[str] = ...) -> Iterator[pa.RecordBatch]:
        """Yield the selected ones, in the order of the queues; DEAD_LETTER_SCHEMA restricted to `columns`, or with a
        broker's name.
        """

    def newest(self, count: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The last `count` selected ones, the newest first."""


class Redrive(Protocol):
    """Sends dead letters of a group back. They are chosen first."""

    @property
    def failures(self) -> FailureReport[Any]:
        """The brokers whose dead letters are not known. Then nothing must be sent."""

    def now_ms(self) -> int:
        """The time by the clock of the store, or of this host."""

    def choose(self, wanted: Wanted) -> None:
        """Choose the dead letters. UsageError: the group has none, or is not known."""

    def plan(self, limit: int | None) -> Totals:
        """The outcomes that `move` would have now."""

    def move(self, limit: int | None, rate: float | None, progress: Progress) -> Totals:
        """Send at most `limit` of them, `rate` a second. They are on disk on return, as the brokers flush."""


class Following(Protocol):
    """Messages of a topic in the order in which they were stored, and then new ones. It begins at the first message,
    unless one of the two methods chooses another beginning.
    """

    @property
    def failures(self) -> FailureReport[Any]:
        """The brokers that the last `take` lacks."""

    def begin(self, start: Start) -> None:
        """Begin where --from says. OffsetOutOfRangeError: an offset that the one wanted queue does not have."""

    def start_last(self, count: int) -> None:
        """Begin so that `take` yields the last `count` wanted messages; with 0, only new ones."""

    def take(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that exist and were not yielded yet, as `rows_of` gives them."""


class View(Protocol):
    """An open target. Each method reads it once.

    Raises (each method, over a cluster): RemotingError, MQBrokerError if no broker answers. `failures` has the brokers
    that do not: their messages are missing, and their numbers unknown (`Total`).
    """

    @property
    def failures(self) -> FailureReport[Any]:
        """The brokers that the answers so far lack."""

    @property
    def names_brokers(self) -> bool:
        """Whether the name of a queue has its broker in front."""

    @property
    def line_columns(self) -> tuple[str, ...]:
        """The columns of MESSAGE_SCHEMA that `message_line` shows."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks for new messages."""

    def now_ms(self) -> int:
        """The time by the clock of the store, or of this host."""

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """The topics by name; those of the system, and those that are not read here, only with `show_all`."""

    def tell_conflicts(self) -> None:
        """Tell which groups the rows leave out, because two files of a store have different offsets for them."""

    def groups(self, names: Sequence[str], *, show_all: bool) -> list[GroupRow]:
        """The named groups, or all that have committed an offset or failed a message; with `show_all` all others, too.

        Raises:
            UsageError: no such group; suggests the nearest.
        """

    def poll(self) -> AbstractContextManager[None]:
        """One poll of several: the rows in it are those of now, and `failures` begins anew. At its end stderr names the
        brokers that answer again, and those that do no longer.

        Raises:
            RemotingError, MQBrokerError: no broker answers. BrokerAwayError: a required one does not.
        """

    def lags(self, names: Sequence[str], gauge: LagGauge, *, per_queue: bool) -> list[LagLine]:
        """The lag of the named groups, or of all, queue by queue or topic by topic. Raises as `groups`."""

    def activity(self, limit: int) -> Activity:
        """The traffic of now, for `rmq top`, with the first `limit` groups."""

    def places(self, group: str, topics: Sequence[str]) -> list[PlaceRow | MessageQueue]:
        """The position of a group in the queues of these topics, or of all on which it has committed, except its retry
        topics; of a queue that is away its name alone. Raises as `groups`.
        """

    def committed(self, group: str) -> list[tuple[str, str | None, int, int]]:
        """(topic, broker name or None, queue, offset) of each committed offset. Raises as `groups`."""

    def offset_reset(
        self, group: str, topics: Sequence[str], queue: QueueName | None, goal: str, value: Any
    ) -> OffsetReset:
        """Moves the offsets of a group on topics, as `places` chooses them, or in one queue. `goal` and `value`: as
        `one_of` finds them among `target_options`, or "to_offsets" and a file. Raises as `groups`.
        """

    def dead_groups(self) -> list[str]:
        """The groups that have a topic of dead letters."""

    def dead_letters(self, group: str, wanted: Wanted) -> DeadLetters:
        """The dead letters of a group. UsageError: it has none, or is not known; suggests the nearest."""

    def dead_letters_if_any(self, group: str, wanted: Wanted) -> DeadLetters | None:
        """The same; None: the group is known, and none of its messages has died."""

    def messages(
        self, topic: str, queue: QueueName | None, start: Start, limit: int, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """The first `limit` messages from `start` on, of one queue or queue by queue, as `rows_of` gives them.

        Raises:
            UnknownTopicError, UsageError: no such topic, no such queue; suggests the nearest.
            OffsetOutOfRangeError: an offset that the one wanted queue does not have.
        """

    def waiting(
        self, topic: str, group: str, tags: str | None, start: Start, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """The messages that a group has not consumed: of its retry topic, and those with the tags of the topic. A queue
        without an offset begins at `start`. Raises as `follow`.
        """

    def follow(
        self, topic: str, queue: QueueName | None, *, tags: str | None, sql: str | None, columns: Sequence[str]
    ) -> Following:
        """The messages of a topic, or of one queue, that match the tags and the SQL92 filter.

        Raises:
            UnknownTopicError, UsageError: no such topic, no such queue, an invalid expression.
        """


class Sender(Protocol):
    """Stores messages."""

    message_bytes_max: int

    def now_ms(self) -> int:
        """The time by the clock of the store, or of this host."""

    def send(self, message: Message, queue: QueueName | None) -> SentRow:
        """Store one message, in a queue if it is named. Errors as those of a producer."""

    def appender(
        self, template: Message, queue: QueueName | None
    ) -> tuple[Message, Callable[[pa.RecordBatch], object]]:
        """The defaults of many messages, and what stores rows of INPUT_SCHEMA: all are stored when it returns."""


class Consuming(Protocol):
    """Consumes messages as a member of a group."""

    @property
    def names_brokers(self) -> bool:
        """Whether the name of a queue has its broker in front."""

    def now_ms(self) -> int:
        """The time by the clock of the store, or of this host."""

    def consumer(self, group: str, config: PushConsumerConfig) -> AbstractContextManager[PushConsumer]:
        """A member of the group, which is not started."""

    def is_empty(self, consumer: PushConsumer, idle_s: float) -> bool:
        """Whether nothing is left, after a round without messages; the last message came `idle_s` ago."""


class OffsetReset(Protocol):
    """Moves the offsets of a group, in two steps."""

    def plan(self) -> Sequence[ChangeRow]:
        """The queues and their new offsets. Raises UsageError, and if a part of the queues is not known."""

    def require_idle(self) -> None:
        """LeaseHeldError: somebody consumes as the group, and would overwrite the offsets."""

    def members(self) -> list[str]:
        """For a person: those that consume as the group now."""

    def apply(self) -> tuple[Sequence[ChangeRow], Sequence[PlaceRow]]:
        """Set the offsets. Returns the changes, and the queues whose offset stayed, with that in `committed`."""


class Target(Protocol):
    """A store or a cluster, as a command line names it."""

    def view(self, tell: Tell) -> AbstractContextManager[View]:
        """Open it to read. A store: CorruptConfigError and others, as `Store.open`. A cluster: see
        `ClusterTarget.open`.
        """

    def sender(self) -> AbstractContextManager[Sender]:
        """Open it to store messages."""

    def consuming(self, topic: str) -> AbstractContextManager[Consuming]:
        """Open it to consume messages of this topic. UnknownTopicError: there is no such topic."""

    def redrive(
        self, group: str, *, to_topic: str | None, max_replays: int | None, parking_topic: str | None
    ) -> AbstractContextManager[Redrive]:
        """Open it to send dead letters of a group back: to its retry topic or `to_topic`; those that were sent back
        `max_replays` times are refused, or go to `parking_topic`.
        """
