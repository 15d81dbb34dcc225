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

from rmq_store.broker.pop.pop_state import Given
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

    def names(self, given: Given) -> bool:
        """Whether this is the handle of that delivery."""
        own = ReceiptHandle.of(given, self.broker_name)
        return self == (own if self.commit_log_offset is not None else own.for_remoting)

    @classmethod
    def of(cls, given: Given, broker_name: str) -> ReceiptHandle:
        """The handle of a message that was given out."""
        return cls(
            broker_name, given.queue_id, given.queue_offset, given.commit_log_offset,
            given.pop_time_ms, given.invisible_ms, given.version,
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
