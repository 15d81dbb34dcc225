"""The message in flight that a receipt handle names (AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java)."""

from __future__ import annotations

from rmq_store.broker.pop.pop_state import Given, PopState
from rmq_store.broker.pop.receipt_handle import ReceiptHandle
from rmq_store.errors import InvalidReceiptHandleError
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipts:
    """The handles of one group on one topic of the store with this broker name."""

    broker_name: str
    group: str
    topic: str

    def given(self, state: PopState | None, text: str, now_ms: int) -> Given:
        """The message that a handle names. `state` None: the group was never given one.

        Raises:
            InvalidReceiptHandleError: it is no handle, or the message was acknowledged, hidden anew or given out again
                since, or its time is over.
        """
        handle = ReceiptHandle.parse(text)
        if state is None or handle.broker_name != self.broker_name:
            raise self._void(handle, "this store never handed it out")
        given = state.get((handle.queue_id, handle.queue_offset))
        if given is None:
            raise self._void(handle, "it is done with")
        if not handle.names(given):
            raise self._void(handle, "it has a newer handle")
        if now_ms >= given.visible_at_ms or given.key in state.dying:
            raise self._void(handle, f"its invisible duration ended at {given.visible_at_ms}")
        return given

    def _void(self, handle: ReceiptHandle, reason: str) -> InvalidReceiptHandleError:
        place = f"message {handle.queue_offset} of {self.topic}-{handle.queue_id}"
        return InvalidReceiptHandleError(f"the receipt handle of {place} is void for group {self.group!r}: {reason}")
