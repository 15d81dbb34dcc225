"""Reads messages at the brokers that hold them, by their commit-log offsets (33)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.protocol.errors import RemotingError, ResponseCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.messages import ask_message, read_message

_PAUSE_S = 0.2


class Place(NamedTuple):
    """A message as a row names it."""

    broker_name: str
    commit_log_offset: int
    msg_id: str


class OriginalReading:
    """Reads for one task; `patience_ms` is how long it waits for a broker that does not answer."""

    def __init__(self, cluster: Cluster, patience_ms: int, sleep: Callable[[float], None]) -> None:
        self._cluster = cluster
        self._patience_ms = patience_ms
        self._sleep = sleep

    def read(self, places: Sequence[Place], first_row: int) -> list[StoredMessage]:
        """The messages of rows, in their order; the first one is row `first_row` in errors.

        Raises:
            ResponseError: 1, no message begins at a row's offset, or it is a half message.
            UsageError: the message there has another id. RemotingError: a broker does not answer.
            MQBrokerError: it refuses.
        """
        until_ms = self._cluster.timer() + self._patience_ms
        found: dict[int, StoredMessage] = {}
        left = list(range(len(places)))
        while True:
            commands = [(places[at].broker_name, ask_message(places[at].commit_log_offset)) for at in left]
            again, last = [], None
            for at, answer in zip(left, self._cluster.call_all(commands), strict=True):
                if isinstance(answer, RemotingError):
                    again.append(at)
                    last = answer
                    continue
                frame = read_message(answer, places[at].broker_name)
                if not frame:
                    raise ResponseError(
                        ResponseCode.SYSTEM_ERROR,
                        f"row {first_row + at}: look message by offset failed, {places[at].commit_log_offset}: broker "
                        f"{places[at].broker_name!r} has no message there (any more): {answer.remark or ''}",
                    )
                message = decode_frame(memoryview(frame), 0, len(frame))
                found[at] = _checked(message, places[at], first_row + at)
            if last is None:
                return [found[at] for at in range(len(places))]
            if self._cluster.timer() >= until_ms:
                raise last
            left = again
            self._sleep(_PAUSE_S)


def _checked(message: StoredMessage, place: Place, row: int) -> StoredMessage:
    if message.msg_id != place.msg_id:
        raise UsageError(
            f"row {row}: the message at {place.commit_log_offset} of broker {place.broker_name!r} is "
            f"{message.msg_id!r}, not {place.msg_id!r}"
        )
    if not message.is_dispatchable:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"row {row}: {place.commit_log_offset} is a half message: no consumer gets it",
        )
    return message
