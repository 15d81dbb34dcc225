"""Requests that store one message each: many at once, and each of them until its outcome is known.

    outcome of a request      what happens
    stored                    done; a weak status is counted
    not stored                sent again after a pause, to the same broker: no other one has the message
    unknown                   the queues are read first (`Verifier`), and only what is not there is sent again. Without
                              a verifier it is sent again at once, which is at least once
    refused                   the task fails

The requests of one call have a common budget of time. Their order is not kept.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from rmq_store.client.delivery.outcome import Outcome, Verdict, verdict_of
from rmq_store.late.dataclasses import dataclass
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 32
"""Requests of one task that wait for their answers."""

REQUEST_TIMEOUT_MS: Final = 3_000
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 1.0
# Other brokers are no way out here, so what only they could mend is a refusal.
_FINAL: Final = (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)


class Verifier(Protocol):
    """Looks into the queues of a broker for messages whose requests have an unknown outcome."""

    def stored(self, broker_name: str, keys: Collection[Hashable], reason: str) -> set[Hashable]:
        """Those of `keys` whose messages are stored there.

        Raises: SendInDoubtError if that cannot be found out in time.
        """


@dataclass(frozen=True, slots=True)
class Single:
    """A request to the master of a broker. `key` is how its message is known in a queue, `subject` names it in errors.
    """

    broker_name: str
    command: RemotingCommand
    key: Hashable
    subject: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that is stored: the fields of the broker's answer, empty if it was found in a queue; and the status of
    a weak store, else "".
    """

    fields: Mapping[str, str]
    weak_status: str = ""
    was_found: bool = False


class SingleSends:
    """Sends the requests of one task; not thread-safe. Times in ms."""

    def __init__(
        self,
        cluster: Cluster,
        send_timeout_ms: int,
        verifier: Verifier | None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._send_timeout_ms = send_timeout_ms
        self._verifier = verifier
        self._sleep = sleep
        self._warned: set[tuple[str, Outcome]] = set()

    def send_all(self, sends: Sequence[Single]) -> list[Stored]:
        """Return when all messages are stored, with what is known of each, in the order of the requests.

        Raises:
            MQBrokerError: a broker refuses one. MQClientError: the time is over, and some are not stored.
            SendInDoubtError: some may be stored. Messages before them stay stored in any case.
        """
        until_ms = self._cluster.timer() + self._send_timeout_ms
        stored: dict[int, Stored] = {}
        left = list(range(len(sends)))
        pause_s = _PAUSE_S
        while left:
            again: list[int] = []
            in_doubt: dict[str, list[int]] = {}
            reason = ""
            for number, verdict, fields in self._round(sends, left):
                send = sends[number]
                if verdict.outcome in (Outcome.STORED, Outcome.STORED_WEAKLY):
                    weak = verdict.reason if verdict.outcome is Outcome.STORED_WEAKLY else ""
                    stored[number] = Stored(fields, weak)
                    continue
                if verdict.outcome is Outcome.REFUSED or verdict.code in _FINAL:
                    reason = f"{send.subject}: {verdict.reason}"
                    raise MQBrokerError(verdict.code or 0, reason, send.broker_name, verdict.address)
                self._warn(send.broker_name, verdict)
                reason = verdict.reason
                if verdict.outcome is Outcome.UNKNOWN and self._verifier is not None:
                    in_doubt.setdefault(send.broker_name, []).append(number)
                else:
                    again.append(number)
            for broker_name, numbers in in_doubt.items():
                assert self._verifier is not None  # in_doubt is empty without one
                found = self._verifier.stored(broker_name, {sends[number].key for number in numbers}, reason)
                for number in numbers:
                    if sends[number].key in found:
                        stored[number] = Stored({}, was_found=True)
                    else:
                        again.append(number)
            left = sorted(again)
            if left and self._cluster.timer() >= until_ms:
                raise MQClientError(
                    f"{sends[left[0]].subject} and {len(left) - 1} more could not be stored in "
                    f"{self._send_timeout_ms} ms at broker {sends[left[0]].broker_name!r}: {reason}"
                )
            if left:
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return [stored[number] for number in range(len(sends))]

    def _round(
        self, sends: Sequence[Single], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Verdict, Mapping[str, str]]]:
        """Send each once: its number, its verdict, and the fields of the answer."""
        waiting: deque[tuple[int, Future[RemotingCommand] | RemotingError]] = deque()
        for number in numbers:
            if len(waiting) >= IN_FLIGHT_MAX:
                yield self._outcome(sends, *waiting.popleft())
            waiting.append((number, self._submitted(sends[number])))
        while waiting:
            yield self._outcome(sends, *waiting.popleft())

    def _submitted(self, send: Single) -> Future[RemotingCommand] | RemotingError:
        try:
            return self._cluster.submit_broker(send.broker_name, send.command, REQUEST_TIMEOUT_MS)
        except RemotingError as error:
            return error

    def _outcome(
        self, sends: Sequence[Single], number: int, future: Future[RemotingCommand] | RemotingError
    ) -> tuple[int, Verdict, Mapping[str, str]]:
        # Each request has its own error: one that never left says nothing about another one that did.
        try:
            if isinstance(future, RemotingError):
                raise future
            answer = future.result()
        except RemotingError as error:
            self._cluster.routes.not_reached(sends[number].broker_name)
            return number, verdict_of(error), {}
        return number, verdict_of(answer), answer.ext_fields

    def _warn(self, broker_name: str, verdict: Verdict) -> None:
        if (broker_name, verdict.outcome) not in self._warned:
            self._warned.add((broker_name, verdict.outcome))
            _log.warning("broker %r: a message is %s: %s", broker_name, verdict.outcome.value, verdict.reason)
