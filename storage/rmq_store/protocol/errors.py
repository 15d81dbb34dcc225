"""Errors of clients: the part of the error tree (`rmq_store.errors`) that RocketMQ's clients name.

    StoreError
    └── ClientError                            what went wrong between a client and a broker
        ├── RemotingError                      the request or its answer was lost; whether it was carried out is unknown
        │   ├── RemotingConnectError           no connection: the broker has never seen the request
        │   ├── RemotingTimeoutError           no answer in time
        │   ├── RemotingCommandError           a frame, a header or a body that breaks the protocol
        │   └── RemotingTooMuchRequestError    the client's own limits: time budget used up, too many requests waiting
        ├── QueueHoleError                     a queue lacks messages in the middle   .queue .start .end
        ├── SlaveBehindError                   a slave does not have messages yet, and its master does not answer
        │                                      .queue .start .end
        ├── BrokerAwayError                    brokers that the caller requires, or waited for, are away
        │                                      .broker_names
        ├── MQBrokerError                      the broker's answer: `response_code`, `remark`, `broker_name`
        │                                      (also ResponseError)
        ├── SendInDoubtError                   whether rows are stored is unknown, and their queue cannot be read
    ├── WeakSendError                      rows are stored, but not as safely as was asked for
    ├── ReplayConflictError                a row's key was found with another body
    └── MQClientError                      the client gives up; `response_code`, see ResponseCode, ClientErrorCode
            ├── TimerNotSupportedError         the broker is older than 5.0, and would deliver a timed message at once
            └── MessageIllegalError            the caller: a message or a name that breaks a rule   (also UsageError)

Sources: RemotingException.java and its subclasses, MQClientException.java, MQBrokerException.java, ResponseCode.java,
ClientErrorCode.java.
"""

from __future__ import annotations

from typing import Final

from rmq_store.errors import ResponseError, StoreError, UsageError


class ResponseCode:
    """The response codes of brokers and name servers (ResponseCode.java, RemotingSysResponseCode.java)."""

    SUCCESS: Final = 0
    SYSTEM_ERROR: Final = 1
    SYSTEM_BUSY: Final = 2
    REQUEST_CODE_NOT_SUPPORTED: Final = 3
    TRANSACTION_FAILED: Final = 4
    FLUSH_DISK_TIMEOUT: Final = 10
    SLAVE_NOT_AVAILABLE: Final = 11
    FLUSH_SLAVE_TIMEOUT: Final = 12
    MESSAGE_ILLEGAL: Final = 13
    SERVICE_NOT_AVAILABLE: Final = 14
    VERSION_NOT_SUPPORTED: Final = 15
    NO_PERMISSION: Final = 16
    TOPIC_NOT_EXIST: Final = 17
    TOPIC_EXIST_ALREADY: Final = 18
    PULL_NOT_FOUND: Final = 19
    PULL_RETRY_IMMEDIATELY: Final = 20
    PULL_OFFSET_MOVED: Final = 21
    QUERY_NOT_FOUND: Final = 22
    SUBSCRIPTION_PARSE_FAILED: Final = 23
    SUBSCRIPTION_NOT_EXIST: Final = 24
    SUBSCRIPTION_NOT_LATEST: Final = 25
    SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
    FILTER_DATA_NOT_EXIST: Final = 27
    FILTER_DATA_NOT_LATEST: Final = 28
    INVALID_PARAMETER: Final = 29
    NO_BUYER_ID: Final = 204
    NOT_IN_CURRENT_UNIT: Final = 205
    CONSUMER_NOT_ONLINE: Final = 206
    CONSUME_MSG_TIMEOUT: Final = 207
    NO_MESSAGE: Final = 208
    POLLING_FULL: Final = 209
    POLLING_TIMEOUT: Final = 210
    BROKER_NOT_EXIST: Final = 211
    BROKER_DISPATCH_NOT_COMPLETE: Final = 212
    BROADCAST_CONSUMPTION: Final = 213
    FLOW_CONTROL: Final = 215
    NOT_LEADER_FOR_QUEUE: Final = 501
    ILLEGAL_OPERATION: Final = 604
    GO_AWAY: Final = 1500
    TOO_MANY_REQUESTS: Final = 42900  # rocketmq.v2.Code, what a 5.x proxy makes of SYSTEM_BUSY


class ClientErrorCode:
    """Codes of an MQClientError without a broker's code (ClientErrorCode.java)."""

    CONNECT_BROKER_EXCEPTION: Final = 10001
    ACCESS_BROKER_TIMEOUT: Final = 10002
    BROKER_NOT_EXIST_EXCEPTION: Final = 10003
    NO_NAME_SERVER_EXCEPTION: Final = 10004
    NOT_FOUND_TOPIC_EXCEPTION: Final = 10005


# Codes of passing states: the same call may succeed later.
_PASSING_CODES: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        ResponseCode.TOO_MANY_REQUESTS,
        ClientErrorCode.CONNECT_BROKER_EXCEPTION,
        ClientErrorCode.ACCESS_BROKER_TIMEOUT,
    )
)


class ClientError(StoreError):
    """An error between a client and a broker. `doubt`: of a send, the error of an earlier try after which a broker may
    have stored the messages, whatever this error says of the last try.
    """

    doubt: ClientError | None = None


class RemotingError(ClientError):
    """The request or its answer was lost. It is unknown whether the broker has carried the request out."""

    retryable = True


class RemotingConnectError(RemotingError):
    """No connection to the broker, which has never seen the request."""


class RemotingTimeoutError(RemotingError):
    """No answer within the time allowed."""


class RemotingCommandError(RemotingError):
    """A frame, a header or a body that breaks the remoting protocol. A repetition would fail in the same way."""

    retryable = False


class RemotingTooMuchRequestError(RemotingError):
    """The client's own limit: the time budget was used up before a try, or too many requests wait already."""


class MQBrokerError(ClientError, ResponseError):
    """A broker answered with an error: `response_code` (see ResponseCode), `remark`, and the broker's name and address
    if they are known.
    """

    def __init__(self, response_code: int, remark: str, broker_name: str = "", address: str = "") -> None:
        ResponseError.__init__(self, response_code, remark)
        self.broker_name = broker_name
        self.address = address
        self.retryable = response_code in _PASSING_CODES
        if broker_name:
            place = f"{broker_name} ({address})" if address else broker_name
            self.args = (f"{self} BROKER: {place}",)


class QueueHoleError(ClientError):
    """A queue lacks the messages [`start`, `end`), although it has messages before and behind them.

    `queue` is (topic, broker name, queue id).
    """

    def __init__(self, message: str, queue: tuple[str, str, int], start: int, end: int) -> None:
        super().__init__(message)
        self.queue = queue
        self.start = start
        self.end = end


class SlaveBehindError(ClientError):
    """The messages [`start`, `end`) are not at the slave (yet) that was asked because their master does not answer.
    They are not lost: the call succeeds when the master is back, or the slave has them.

    `queue` is (topic, broker name, queue id).
    """

    retryable = True

    def __init__(self, message: str, queue: tuple[str, str, int], start: int, end: int) -> None:
        super().__init__(message)
        self.queue = queue
        self.start = start
        self.end = end


class BrokerAwayError(ClientError):
    """Brokers that the caller requires (requiredBrokers), or that a task has waited for (brokerAwayTimeout), are known
    to no name server, or do not answer. Nothing of them was read. `broker_names` has them.
    """

    retryable = True

    def __init__(self, message: str, broker_names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.broker_names = broker_names


class MQClientError(ClientError):
    """The client gives up. `response_code`: the broker's code, a ClientErrorCode, or -1; caused by the last error."""

    def __init__(self, message: str, response_code: int = -1) -> None:
        super().__init__(message)
        self.response_code = response_code
        self.retryable = response_code in _PASSING_CODES


class MessageIllegalError(MQClientError, UsageError):
    """A message or a name breaks a rule (Validators.java); nothing was sent."""

    def __init__(self, message: str, response_code: int = ResponseCode.MESSAGE_ILLEGAL) -> None:
        super().__init__(message, response_code)


class TimerNotSupportedError(MQClientError):
    """A message with a deliver time for a broker older than 5.0, which would deliver it at once. Nothing was sent.

    `broker_name` is the broker's. A delay level works at every broker.
    """

    def __init__(self, broker_name: str) -> None:
        super().__init__(
            f"broker {broker_name} is older than 5.0 and has no timers: it would deliver the message at once, so "
            "nothing was sent. Give the message a delay level, or use brokers of 5.x",
            ResponseCode.VERSION_NOT_SUPPORTED,
        )
        self.broker_name = broker_name

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.broker_name,)


class SendInDoubtError(ClientError):
    """A send has an unknown outcome, and its queue could not be read in time. Nothing of it was sent again: whoever
    repeats the batch looks first.
    """

    retryable = True


class WeakSendError(ClientError):
    """A broker has stored messages, but answered that they are perhaps not on disk, or not at a slave."""


class ReplayConflictError(ClientError):
    """The unique key of a row was found in a queue, with another body. `row` counts within its task."""

    def __init__(self, row: int, key: str) -> None:
        super().__init__(
            f"row {row}: its unique key {key} is in a queue already, with another body. Another program has written "
            "this key, or the message was changed on its way; the batch is not written on. See docs/cluster.md"
        )
        self.row = row
        self.key = key

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.row, self.key)
