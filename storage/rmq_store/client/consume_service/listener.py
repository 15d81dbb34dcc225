"""Listeners: the functions that a consumer calls with messages, and their answers.

Sources: MessageListenerConcurrently.java, MessageListenerOrderly.java, ConsumeConcurrentlyStatus.java,
ConsumeOrderlyStatus.java, ConsumeConcurrentlyContext.java, ConsumeOrderlyContext.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import StrEnum

import pyarrow as pa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageExt, MessageQueue

ACK_ALL = (1 << 31) - 1  # Integer.MAX_VALUE


class ConsumeConcurrentlyStatus(StrEnum):
    """The outcome of a batch. None and an exception count as RECONSUME_LATER."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(StrEnum):
    """The outcome of a batch of a queue. None and an exception count as SUSPEND_CURRENT_QUEUE_A_MOMENT.

    COMMIT and ROLLBACK have a meaning with `auto_commit` False only.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


def _goes_on() -> bool:
    return True


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """A listener may set these. `ack_index`: with CONSUME_SUCCESS, messages after this index of the batch still count
    as failed. `delay_level_when_next_consume`: -1: a dead letter at once; 0: the broker chooses; else a delay level.

    A listener that must wait for something of which its messages are innocent (a database that is away) calls `extend`
    every second: consumeTimeout counts from the last call on. False: the consumer ends, or its queue went to another
    member. The listener then returns, whatever its answer is: the messages come again, and no retry is counted.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int = ACK_ALL
    extend: Callable[[], bool] = field(default=_goes_on, repr=False, compare=False)


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """A listener may set these. `auto_commit` False: offsets move at COMMIT only. `suspend_current_queue_time_millis`:
    pause after a failure; -1: the consumer's setting. `extend`: as of ConsumeConcurrentlyContext.
    """

    message_queue: MessageQueue
    auto_commit: bool = True
    suspend_current_queue_time_millis: int = -1
    extend: Callable[[], bool] = field(default=_goes_on, repr=False, compare=False)


class _Listener:
    """The base of all listeners. `requires_clustering`: the listener shares the messages of its group with the other
    members, so a broadcasting consumer refuses it.
    """

    requires_clustering: bool = False


class MessageListenerConcurrently(_Listener):
    """Gets batches of any queue in any order, on several threads. Override `consume_message`, or pass a function."""

    def __init__(
        self,
        consume: Callable[[Sequence[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None]
        | None = None,
    ) -> None:
        self._consume = consume

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        """Handle a batch (one message, unless `consume_message_batch_max_size` says otherwise)."""
        if self._consume is None:
            raise NotImplementedError("override consume_message, or give a function to the constructor")
        return self._consume(messages, context)


class MessageListenerArrow(_Listener):
    """As MessageListenerConcurrently, with a pyarrow RecordBatch for messages: no object is made for each of them.

    A row is a message of `context.message_queue`, in queue order; a batch has 1 to `consume_message_batch_max_size` of
    them. Columns are those of `Store.read`:

        topic          string     of a message that comes again: the topic that it was sent to
        queueId, queueOffset      int32, int64: where it lies; of one that comes again, in the group's retry topic
        msgId          string     UNIQ_KEY, else the offset id
        body           binary     decompressed; no listener gets a body that cannot be inflated
        tags, keys     string     null without
        properties     map<string, string>, as stored: MIN_OFFSET, MAX_OFFSET and CONSUME_START_TIME, which a client
                                  adds for other listeners, are not among them
        reconsumeTimes int32      how often it came before
        flag, sysFlag  int32; bit 0x1 of sysFlag is cleared where the body was decompressed
        bornTimestamp, storeTimestamp    timestamp[us, UTC], whole milliseconds
        bornHost, storeHost       string, "1.2.3.4:10911"
        commitLogOffset           int64
        brokerName     string

    The batch is the listener's: it refers to no file, and may be kept. With CONSUME_SUCCESS rows [0, ack_index] are
    done and the others failed; RECONSUME_LATER, None, anything else and an exception: all failed. 1 row is the default
    size; 1,024 for both `consume_message_batch_max_size` and `pull_batch_size`, with a `pull_threshold_for_queue` of
    some times that, is fast.
    """

    def __init__(
        self,
        consume: Callable[[pa.RecordBatch, ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None] | None = None,
    ) -> None:
        self._consume = consume

    def consume_message(
        self, batch: pa.RecordBatch, context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        """Handle a batch."""
        if self._consume is None:
            raise NotImplementedError("override consume_message, or give a function to the constructor")
        return self._consume(batch, context)


class MessageListenerOrderly(_Listener):
    """Gets the batches of a queue one after the other. Override `consume_message`, or pass a function."""

    def __init__(
        self,
        consume: Callable[[Sequence[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None] | None = None,
    ) -> None:
        self._consume = consume

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        """Handle a batch (one message, unless `consume_message_batch_max_size` says otherwise)."""
        if self._consume is None:
            raise NotImplementedError("override consume_message, or give a function to the constructor")
        return self._consume(messages, context)


MessageListener = MessageListenerConcurrently | MessageListenerArrow | MessageListenerOrderly
