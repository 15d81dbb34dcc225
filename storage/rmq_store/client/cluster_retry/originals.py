"""Reads messages at the brokers that hold them, by their commit-log offsets (33)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.protocol.errors import RemotingError, ResponseCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import Question, waiting
from rmq_store.remoting.questions.answer import Given
from rmq_store.remoting.questions.messages import ask_message, read_message

_PAUSE_S = 0.2


class MessageLocation(NamedTuple):
    """A message as a row names it."""

    broker_name: str
    commit_log_offset: int
    msg_id: str


class OriginalReading:
    """Reads for one task; `patience_ms` is how long it waits for a broker that does not answer, or is busy."""

    def __init__(self, cluster: Cluster, patience_ms: int, sleep: Callable[[float], None]) -> None:
        self._cluster = cluster
        self._patience_ms = patience_ms
        self._sleep = sleep

    def read(self, locations: Sequence[MessageLocation], first_row: int) -> list[StoredMessage]:
        """The messages of rows, in their order; the first one is row `first_row` in errors.

        Raises:
            ResponseError: 1, no message begins at a row's offset, or it is a half message.
            UsageError: the message there has another id. RemotingError: a broker does not answer.
            MQBrokerError: it refuses.
        """
        until_ms = self._cluster.timer() + self._patience_ms
        asked = {
            at: Question(
                location.broker_name,
                ask_message(location.commit_log_offset),
                partial(_read, location, first_row + at),
            )
            for at, location in enumerate(locations)
        }
        told = waiting(self._cluster, asked, until_ms, pause_s=_PAUSE_S, sleep=self._sleep)
        return list(told.required().values())


def _read(location: MessageLocation, row: int, answer: Given, broker_name: str) -> StoredMessage:
    frame = read_message(answer, broker_name)
    if not frame:
        remark = "" if isinstance(answer, RemotingError) else answer.remark
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"row {row}: look message by offset failed, {location.commit_log_offset}: broker {broker_name!r} has no "
            f"message there (any more): {remark or ''}",
        )
    return _checked(decode_frame(memoryview(frame), 0, len(frame)), location, row)


def _checked(message: StoredMessage, location: MessageLocation, row: int) -> StoredMessage:
    if message.msg_id != location.msg_id:
        raise UsageError(
            f"row {row}: the message at {location.commit_log_offset} of broker {location.broker_name!r} is "
            f"{message.msg_id!r}, not {location.msg_id!r}"
        )
    if not message.is_dispatchable:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"row {row}: {location.commit_log_offset} is a half message: no consumer gets it",
        )
    return message
