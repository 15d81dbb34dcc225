"""Converts a store's errors to the answers of a broker. Source: the processors' use of ResponseCode.java."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from rmq_store.errors import (
    InvalidReceiptHandleError,
    ReadOnlyError,
    ResponseError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.protocol.errors import MQBrokerError, ResponseCode

# First match counts.
_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (UnknownTopicError, ResponseCode.TOPIC_NOT_EXIST),
    (ReadOnlyError, ResponseCode.NO_PERMISSION),
    (UsageError, ResponseCode.MESSAGE_ILLEGAL),
    (StoreFullError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StoreLockedError, ResponseCode.SYSTEM_BUSY),
    (StoreFailedError, ResponseCode.SYSTEM_ERROR),
)
# As BrokerFastFailure and SendMessageProcessor begin their remarks.
_PREFIXES: Final[Mapping[type[StoreError], str]] = {StoreLockedError: "[PC_SYNCHRONIZED]broker busy, "}


class Answers:
    """Answers in the name of one broker."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Convert the store's errors to a broker's answers."""
        try:
            yield
        except InvalidReceiptHandleError:
            raise
        except ResponseError as error:
            raise self.error(error.response_code, error.remark) from error
        except OSError as error:
            raise self.error(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except StoreError as error:
            for kind, code in _CODES:
                if isinstance(error, kind):
                    raise self.error(code, f"{_PREFIXES.get(kind, '')}{error}") from error
            raise

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Convert temporary errors (no file descriptors left, say) to a broker's answer, so that a consumer retries.
        The error of a closed or damaged store ends the consumer.
        """
        refused: UsageError | None = None
        with self.answering():
            try:
                yield
            except UsageError as error:
                refused = error
        if refused is not None:
            raise refused

    def error(self, code: int, remark: str) -> MQBrokerError:
        """The answer of this broker."""
        return MQBrokerError(code, remark, self._broker_name)
