"""Requests that only a master carries out (SendMessageProcessor.java, EndTransactionProcessor.java)."""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.dispatcher import Processor
from rmq_store.server.requests.request import Request, refusal


class Refusals:
    """Stands for a processor: each of its methods raises MQBrokerError with `code`."""

    def __init__(self, code: int, remark: str) -> None:
        self._code = code
        self._remark = remark

    def __getattr__(self, name: str) -> Processor:
        return self.refuse

    def refuse(self, request: Request) -> RemotingCommand:
        """Answer any request."""
        raise refusal(self._code, self._remark)


CHANGES: Final = Refusals(ResponseCode.NO_PERMISSION, "a slave has what its master has: ask the master")


def refusals(*, reads: bool) -> dict[str, Refusals]:
    """By the name of the processor. Without `reads` pulls are refused, too, as by a slave of 5.x with
    slaveReadEnable=false.
    """
    stores = Refusals(
        ResponseCode.SERVICE_NOT_AVAILABLE, "message store is slave mode, so putMessage is forbidden: ask the master"
    )
    ends = Refusals(ResponseCode.SLAVE_NOT_AVAILABLE, "Message store is slave mode, so end transaction is forbidden")
    found = {
        **dict.fromkeys(("sends", "replies", "pops", "receipts", "notifications", "peeks"), stores),
        **dict.fromkeys(("changes", "resets", "cleaning"), CHANGES),
        "transactions": ends,
    }
    if not reads:
        found["pulls"] = Refusals(ResponseCode.SYSTEM_BUSY, "a slave with slaveReadEnable=false: ask the master")
    return found
