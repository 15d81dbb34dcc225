"""Statuses of answers, and which error becomes which one (ResponseBuilder.java of the proxy)."""

from __future__ import annotations

import logging
from typing import Any, Final

from rmq_store.errors import (
    InvalidReceiptHandleError,
    LeaseHeldError,
    ReadOnlyError,
    ResponseError,
    StoreError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group, is_system_topic, validate_group, validate_topic
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.access.method_check import NotSignedError
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import Code

_log: Final = logging.getLogger(__name__)

# An error may repeat a field of its request.
_MESSAGE_CHARACTERS_MAX: Final = 1024

# First match counts.
_CODES: Final[tuple[tuple[type[StoreError], Code], ...]] = (
    (NotSignedError, Code.UNAUTHORIZED),
    (InvalidReceiptHandleError, Code.INVALID_RECEIPT_HANDLE),
    (UnknownTopicError, Code.TOPIC_NOT_FOUND),
    (ReadOnlyError, Code.FORBIDDEN),
    (UsageError, Code.BAD_REQUEST),
    (StoreLockedError, Code.TOO_MANY_REQUESTS),
    (LeaseHeldError, Code.FORBIDDEN),
)
# Answers of a broker to remoting clients; others are INTERNAL_SERVER_ERROR.
_OF_RESPONSES: Final = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.ILLEGAL_OPERATION: Code.PRECONDITION_FAILED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
}


class Refusal(StoreError):
    """A request is answered with `code`; nothing was done."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def status(code: Code, message: str | None = None) -> Any:
    """A Status. Without a message it is the name of the code; a long one is cut."""
    text = code.name if message is None else message
    if len(text) > _MESSAGE_CHARACTERS_MAX:
        text = f"{text[:_MESSAGE_CHARACTERS_MAX]}..."
    return new("Status", code=int(code), message=text)


def status_of(error: Exception, method: str, peer: str) -> Any:
    """The Status for an error of a method; one that is not the client's fault is logged."""
    if isinstance(error, Refusal):
        return status(error.code, str(error))
    if isinstance(error, ResponseError):
        code = _OF_RESPONSES.get(error.response_code, Code.INTERNAL_SERVER_ERROR)
        return status(code, error.remark)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return status(code, str(error))
    if isinstance(error, StoreError):
        _log.warning("%s of %s: %s", method, peer, error)
        return status(Code.INTERNAL_SERVER_ERROR, str(error))
    _log.error("%s of %s", method, peer, exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, "an error inside the broker; its log has it")


def topic_of(resource: Any) -> str:
    """The topic that a Resource names. Refusal: it is no name of a topic that clients may use (GrpcValidator.java)."""
    name: str = resource.name
    try:
        validate_topic(name)
    except UsageError as error:
        raise Refusal(Code.ILLEGAL_TOPIC, str(error)) from error
    if is_system_topic(name):
        raise Refusal(Code.ILLEGAL_TOPIC, f"cannot access the system topic {name}")
    return name


def group_of(resource: Any) -> str:
    """The group that a Resource names. Refusal: it is no name of a group that clients may use (GrpcValidator.java)."""
    name: str = resource.name
    try:
        validate_group(name)
    except UsageError as error:
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    if name in SYSTEM_GROUPS or is_system_group(name):
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, f"cannot use the system group {name}")
    return name
