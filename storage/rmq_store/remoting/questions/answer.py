"""An answer as a value or as the error that it stands for; and names as the wire has them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol, TypeAlias

from rmq_store.protocol.answers import is_lack_of_rights, is_nothing_there
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.proxy_answers import explained
from rmq_store.protocol.wire.command import RemotingCommand

SUCCESS: Final = (int(ResponseCode.SUCCESS),)
Given: TypeAlias = RemotingCommand | RemotingError
"""An answer with any code, or the error in its place (`Cluster.call_all`)."""


class Names(Protocol):
    """Names on the wire of topics and groups, which a cluster gives: with its namespace."""

    def wire_topic(self, topic: str) -> str:
        """See `Cluster.wire_topic`."""
        ...

    def wire_group(self, group: str) -> str:
        """See `Cluster.wire_group`."""
        ...


def checked(answer: Given, broker_name: str, ok: Collection[int] = SUCCESS) -> RemotingCommand:
    """The answer. MQBrokerError: its code is not in `ok`. RemotingError: it is this error."""
    if isinstance(answer, RemotingError):
        raise answer
    if answer.code not in ok:
        raise broker_error(answer, broker_name)
    return answer


def broker_error(answer: RemotingCommand, broker_name: str) -> MQBrokerError:
    """The error that an answer stands for: with its code, its remark, and the broker that gave it."""
    remark = explained(answer.code, answer.remark or "")
    return MQBrokerError(answer.code, remark, broker_name, answer.came_from)


def lacks_rights(answer: RemotingCommand | MQBrokerError) -> bool:
    """Whether a broker refuses a request for want of rights."""
    code = answer.response_code if isinstance(answer, MQBrokerError) else answer.code
    return is_lack_of_rights(code, answer.remark or "")


def is_nothing(answer: Given) -> bool:
    """Whether a broker says that it does not have the one thing that it is asked for (`is_nothing_there`)."""
    return isinstance(answer, RemotingCommand) and is_nothing_there(answer.code, answer.remark or "")


def is_not_told(answer: RemotingCommand | MQBrokerError) -> bool:
    """Whether a broker does not tell what others do: for want of rights, or because it does not know the question, as
    an older one, or a proxy.
    """
    code = answer.response_code if isinstance(answer, MQBrokerError) else answer.code
    return code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or lacks_rights(answer)
