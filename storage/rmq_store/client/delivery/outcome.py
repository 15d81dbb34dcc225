"""The outcome of a send, as far as its answer, or the error in place of one, tells it: whether the broker may have
stored the messages. For sinks, redrives, records and the outbox. Pure.

    answer or error                         outcome
    0                                       stored
    10, 11, 12                              stored, but perhaps not on disk or not at a slave: never sent again
    2, 14, 16, 17, 204, 205, 215, 1500,     not stored: the broker says so
    42900 of a proxy
    no connection, nothing was written      not stored: the broker never saw it
    the client gives up without a try       not stored: no route, no name server, not running
    the client gives up after tries         as the last one; a budget that is used up, as the try before; unknown, if
                                            that was the outcome of any try (`ClientError.doubt`)
    1, 3, time-out, connection lost         unknown: it may be stored, now or in a moment
    answer that cannot be read              unknown
    13, 29 and others                       refused: sent again it would be refused again
    1 with AclException (4.9)               refused: the rights are looked at before anything is stored
    message against a rule, timer for 4.x   refused: the client sends nothing

Sources: SendMessageProcessor.java (handlePutMessageResult), BrokerFastFailure.java, DefaultMQProducer.java
(retryResponseCodes).
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.answers import BUSY, is_away, is_lack_of_rights
from rmq_store.protocol.errors import (
    ClientError,
    ClientErrorCode,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTooMuchRequestError,
    ResponseCode,
)
from rmq_store.protocol.proxy_answers import explained
from rmq_store.protocol.results import SendStatus
from rmq_store.protocol.wire.command import RemotingCommand


class SendOutcome(Enum):
    """The fate of the messages of a request."""

    STORED = "stored"
    STORED_WEAKLY = "stored weakly"
    NOT_STORED = "not stored"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and why: the answer's code, or None for an error of the network; and a text for people.

    `is_busy`: the broker asked for less. `lacks_rights`: the credentials are to blame. `address`: of the broker that
    answered.
    """

    outcome: SendOutcome
    code: int | None
    reason: str
    is_busy: bool = False
    lacks_rights: bool = False
    address: str = ""

    @property
    def is_away(self) -> bool:
        """Whether the broker has told nothing now, or is busy, and may take the messages later."""
        return self.code is None or is_away(MQBrokerError(self.code, self.reason))


STORED: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""The codes of answers to messages that are stored."""

WEAK_STATUS_MS: Final = 7_000
"""An answer with 10 or 12 has come by then: a broker waits 5 s for its disk and its slaves (syncFlushTimeout)."""

_NOT_STORED: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        ResponseCode.TOO_MANY_REQUESTS,
    )
)
# Of a client that found nobody to send to: in its last try, or without one. Earlier tries: `ClientError.doubt`.
_NOT_TRIED: Final = frozenset(
    (
        ClientErrorCode.CONNECT_BROKER_EXCEPTION,
        ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION,
        ClientErrorCode.NO_NAME_SERVER_EXCEPTION,
        ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION,
    )
)
_UNKNOWN: Final = frozenset((ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))


def verdict_of(answer: RemotingCommand | BaseException) -> Verdict:
    """The verdict of an answer to a send, or of the error that came instead. Any error that is neither a broker's, nor
    a client's, nor one of the network tells nothing about a send: it is raised.
    """
    verdict = _of_last_try(answer)
    if isinstance(answer, ClientError) and answer.doubt is not None:
        return replace(verdict, outcome=SendOutcome.UNKNOWN, lacks_rights=False)
    return verdict


def with_doubt(error: ClientError, doubt: ClientError) -> ClientError:
    """A copy of the last error of a send that says that an earlier try is in doubt. Sends that have waited for the same
    connection share its error.
    """
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    copied.doubt = doubt
    return copied.with_traceback(error.__traceback__)


def _of_last_try(answer: RemotingCommand | BaseException) -> Verdict:
    if isinstance(answer, RemotingCommand):
        remark = explained(answer.code, answer.remark or "")
        return replace(_of_code(answer.code, remark), address=answer.came_from)
    if isinstance(answer, MQBrokerError):
        return replace(_of_code(answer.response_code, answer.remark), address=answer.address)
    if isinstance(answer, MQClientError):
        return _of_client(answer)
    if isinstance(answer, RemotingTooMuchRequestError) and isinstance(answer.__cause__, ClientError):
        return verdict_of(answer.__cause__)
    if isinstance(answer, (RemotingConnectError, RemotingTooMuchRequestError)):
        return Verdict(SendOutcome.NOT_STORED, None, str(answer))
    if isinstance(answer, RemotingError):
        return Verdict(SendOutcome.UNKNOWN, None, str(answer))
    raise answer


def _of_client(error: MQClientError) -> Verdict:
    if type(error) is not MQClientError or error.response_code == ResponseCode.MESSAGE_ILLEGAL:
        return Verdict(SendOutcome.REFUSED, error.response_code, str(error))
    if error.response_code in _NOT_TRIED or not isinstance(error.__cause__, ClientError):
        return Verdict(SendOutcome.NOT_STORED, None, str(error))
    return replace(verdict_of(error.__cause__), reason=str(error))


def _of_code(code: int, remark: str) -> Verdict:
    if code == ResponseCode.SUCCESS:
        return Verdict(SendOutcome.STORED, code, remark)
    if code in STORED:
        return Verdict(SendOutcome.STORED_WEAKLY, code, STORED[code].name)
    reason = f"CODE: {code} DESC: {remark}"
    if code in _NOT_STORED:
        is_of_rights = is_lack_of_rights(code, remark)
        return Verdict(SendOutcome.NOT_STORED, code, reason, is_busy=code in BUSY, lacks_rights=is_of_rights)
    if is_lack_of_rights(code, remark):
        return Verdict(SendOutcome.REFUSED, code, reason, lacks_rights=True)
    return Verdict(SendOutcome.UNKNOWN if code in _UNKNOWN else SendOutcome.REFUSED, code, reason)
