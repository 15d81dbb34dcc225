"""A request that moves the virtual clock of a served store, so that a suite in any language can do it."""

from __future__ import annotations

from rmq_store.broker.store.store import Store
from rmq_store.clock import ClockFile
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import AdvanceClockRequestHeader, AdvanceClockResponseHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.request import Request, refusal


class VirtualClockProcessor:
    """Answers AdvanceClock for one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def advance(self, request: Request) -> RemotingCommand:
        """Move the clock, deliver what is due by it, and answer the new time.

        Raises:
            MQBrokerError: 604, the store has the clock of the machine, which nobody may move.
            UsageError: a negative duration.
        """
        clock = self._store.clock
        if not isinstance(clock, ClockFile):
            remark = "this store has no virtual clock: start the server with --ephemeral --virtual-clock"
            raise refusal(ResponseCode.ILLEGAL_OPERATION, remark)
        duration_ms = request.header(AdvanceClockRequestHeader).duration_ms
        if duration_ms < 0:
            raise UsageError(f"a clock never goes backwards: {duration_ms} ms")
        time_ms = clock.advance(duration_ms)
        self._store.schedule.deliver_due()
        return request.answer(header=AdvanceClockResponseHeader(time_ms=time_ms))
