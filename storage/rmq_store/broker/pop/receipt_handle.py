"""Receipt handles: a consumer passes one to acknowledge a message. RocketMQ's POP_CK with the commit-log offset.

    ckOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset commitLogOffset

Nine fields with single spaces; remoting clients know eight, without the last one. ckOffset is the queue offset again.
reviveQid counts the handles of this delivery record, so that an old handle differs from a new one of the same
millisecond. retryFlag is 0, because messages are given out again from their own queue. Sources: ExtraInfoUtil.java,
ReceiptHandle.java.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rmq_store.broker.pop.pop_state import InFlight, PopState
from rmq_store.errors import InvalidReceiptHandleError
from rmq_store.lazy.dataclasses import dataclass

_HANDLE = re.compile(
    r"(\d{1,19}) (\d{1,19}) (\d{1,19}) (\d{1,10}) 0 ([^ ]{1,255}) (\d{1,10}) (\d{1,19})(?: (\d{1,19}))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """The fields of a receipt handle; `commit_log_offset` None: those of a remoting client."""

    broker_name: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int | None
    pop_time_ms: int
    invisible_ms: int
    version: int

    def __str__(self) -> str:
        text = (
            f"{self.queue_offset} {self.pop_time_ms} {self.invisible_ms} {self.version} 0 {self.broker_name} "
            f"{self.queue_id} {self.queue_offset}"
        )
        return text if self.commit_log_offset is None else f"{text} {self.commit_log_offset}"

    @property
    def for_remoting(self) -> ReceiptHandle:
        """The handle with eight fields."""
        return replace(self, commit_log_offset=None)

    def names(self, message: InFlight) -> bool:
        """Whether this is the handle of that delivery."""
        own = ReceiptHandle.of(message, self.broker_name)
        return self == (own if self.commit_log_offset is not None else own.for_remoting)

    @classmethod
    def of(cls, message: InFlight, broker_name: str) -> ReceiptHandle:
        """The handle of a message that was given out."""
        return cls(
            broker_name, message.queue_id, message.queue_offset, message.commit_log_offset,
            message.pop_time_ms, message.invisible_ms, message.version,
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Parse a handle. InvalidReceiptHandleError: the text is no handle."""
        match = _HANDLE.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[1] != match[7]:
            raise InvalidReceiptHandleError(f"{str(text)[:100]!r} is no receipt handle")
        _, pop_time_ms, invisible_ms, version, name, queue_id, queue_offset, commit_log_offset = match.groups()
        return cls(
            name, int(queue_id), int(queue_offset), None if commit_log_offset is None else int(commit_log_offset),
            int(pop_time_ms), int(invisible_ms), int(version),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Receipts:
    """The handles of one group on one topic of the store with this broker name (AckMessageProcessor.java,
    ChangeInvisibleTimeProcessor.java).
    """

    broker_name: str
    group: str
    topic: str

    def in_flight(self, state: PopState | None, text: str, now_ms: int) -> InFlight:
        """The message that a handle names. `state` None: the group was never given one.

        Raises:
            InvalidReceiptHandleError: it is no handle, or the message was acknowledged, hidden anew or given out again
                since, or its time is over.
        """
        handle = ReceiptHandle.parse(text)
        if state is None or handle.broker_name != self.broker_name:
            raise self._void(handle, "this store never handed it out")
        message = state.get((handle.queue_id, handle.queue_offset))
        if message is None:
            raise self._void(handle, "it is done with")
        if not handle.names(message):
            raise self._void(handle, "it has a newer handle")
        if now_ms >= message.visible_at_ms or message.key in state.moving_to_dlq:
            raise self._void(handle, f"its invisible duration ended at {message.visible_at_ms}")
        return message

    def _void(self, handle: ReceiptHandle, reason: str) -> InvalidReceiptHandleError:
        place = f"message {handle.queue_offset} of {self.topic}-{handle.queue_id}"
        return InvalidReceiptHandleError(f"the receipt handle of {place} is void for group {self.group!r}: {reason}")
