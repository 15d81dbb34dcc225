"""Sends requests that store one message each until the outcome of each is known, within a budget of time.

    outcome of a request      what happens
    stored                    done; a weak status is told
    not stored                sent again after a pause
    unknown                   the queues are read first (`Verifier`), and only what is not there is sent again. Without
                              a verifier it is sent again after a pause, which is at least once
    refused                   MQBrokerError at once, if no other broker will do. So are 16 and 17, which `outcome` calls
                              not stored, because this broker repeats them

    `send_all`                each message has its broker, and no other one will do
    `send_copies`             one message, and any of several brokers will do: one that does not take it is passed over,
                              one that is busy, or whose answer is lost, is asked a few times first

The requests of one call have a common budget. It stands still while queues are read, which has a limit of its own.
When it is over, `send_copies` still asks once each broker that it needs and has not asked. The order of requests is not
kept.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Final, Protocol

from rmq_store.backoff import Backoff
from rmq_store.client.delivery.outcome import SendOutcome, Verdict, verdict_of
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import (
    ClientError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    ResponseCode,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 32
"""Requests of one task that wait for their answers."""

REQUEST_TIMEOUT_MS: Final = 3_000
_BACKOFF: Final = Backoff(100, 1_000)
# So often a broker is asked that is busy or does not answer, before another one gets the copy.
_TRIES_THERE: Final = 4
# `outcome` calls them not stored, as another broker may have the topic, and write it; the same one repeats them.
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


@dataclass(slots=True)
class _Progress:
    """The requests of one call, by number. `left`: neither stored nor refused, the next one first. `verdicts`: of their
    last tries. `tries`: of a broker that is busy or silent, since another one was asked. `doubts`: a try after which it
    may be stored, and nobody has looked.
    """

    left: list[int]
    stored: dict[int, Stored] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    doubts: dict[int, ClientError] = field(default_factory=dict)

    def store(self, number: int, stored: Stored) -> None:
        """The message is stored."""
        self.stored[number] = stored
        self.left.remove(number)
        self.doubts.pop(number, None)

    def in_doubt(self, error: ClientError) -> ClientError:
        """The error, which says that a message may be stored nevertheless, if an earlier try is in doubt."""
        error.doubt = next(iter(self.doubts.values()), None)
        return error

    def note_not_stored(self, number: int, verdict: Verdict) -> None:
        """The message is not known to be stored by this try. If its broker is neither busy nor silent, or was asked a
        few times, the others come first.
        """
        self.verdicts[number] = verdict
        self.tries[number] = self.tries.get(number, 0) + 1
        if not (verdict.is_busy or verdict.outcome is SendOutcome.UNKNOWN) or self.tries[number] >= _TRIES_THERE:
            self.tries[number] = 0
            self.left.remove(number)
            self.left.append(number)

    def is_enough(self, wanted: int, needed: int) -> bool:
        """Whether `wanted` are stored; or `needed`, and the brokers of all others have declined."""
        if len(self.stored) >= wanted or not self.left:
            return True
        return len(self.stored) >= needed and all(self.tries.get(number) == 0 for number in self.left)


class Delivery:
    """Sends the requests of one task; not thread-safe. Times in ms: `budget_ms` is that of a call,
    `request_timeout_ms` that of one request.
    """

    def __init__(
        self,
        cluster: Cluster,
        budget_ms: int,
        verifier: Verifier | None = None,
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._request_timeout_ms = request_timeout_ms
        self._budget_ms = budget_ms
        self._verifier = verifier
        self._sleep = sleep
        self._warned: set[tuple[str, SendOutcome]] = set()

    def send_all(self, sends: Sequence[Single]) -> list[Stored]:
        """Return when all messages are stored, with what is known of each, in the order of the requests.

        Raises:
            MQBrokerError: a broker refuses one. MQClientError: the time is over, and some are not known to be stored.
            SendInDoubtError: some may be stored, and their queues cannot be read. Any of the others may be stored,
                whatever is raised.
        """
        progress = self._send(sends, len(sends), len(sends))
        if progress.left:
            first = sends[min(progress.left)]
            raise self._given_up(
                progress,
                f"{first.subject} and {len(progress.left) - 1} more could not be stored in {self._budget_ms} ms at",
                sends,
            )
        return [progress.stored[number] for number in range(len(sends))]

    def send_copies(self, sends: Sequence[Single], wanted: int, needed: int) -> dict[int, Stored]:
        """Store a message at `wanted` of the brokers of `sends`, the first ones if they take it; fewer are enough, but
        not fewer than `needed`, if all others have declined. Returns the numbers of those that have it. A copy whose
        outcome is unknown is sent again, and may be stored twice.

        Raises:
            MQBrokerError: so many refuse it that fewer than `needed` are left.
            MQClientError: the time is over, and fewer than `needed` have it.
        """
        progress = self._send(sends, wanted, needed)
        if len(progress.stored) < needed:
            raise self._given_up(
                progress,
                f"{len(progress.stored)} of {len(sends)} brokers take {sends[0].subject} in {self._budget_ms} ms, "
                f"and {needed} must:",
                sends,
            )
        return progress.stored

    def _send(self, sends: Sequence[Single], wanted: int, needed: int) -> _Progress:
        """Send until it is enough, or the time is over."""
        until_ms = self._cluster.timer() + self._budget_ms
        progress = _Progress(list(range(len(sends))))
        rounds = 0
        while not progress.is_enough(wanted, needed):
            is_over = self._cluster.timer() >= until_ms
            may_go = [number for number in progress.left if not is_over or number not in progress.verdicts]
            numbers = may_go[: wanted - len(progress.stored)]
            if not numbers:
                break
            untried = [number for number in numbers if number not in progress.verdicts]
            if not untried:
                rounds += 1
                self._sleep(_BACKOFF.wait_s(rounds))
            in_doubt: dict[str, list[int]] = {}
            for number, verdict, fields in self._round(sends, untried or numbers):
                send = sends[number]
                if verdict.outcome in (SendOutcome.STORED, SendOutcome.STORED_WEAKLY):
                    weak = verdict.reason if verdict.outcome is SendOutcome.STORED_WEAKLY else ""
                    progress.store(number, Stored(fields, weak))
                elif verdict.outcome is SendOutcome.REFUSED or verdict.code in _FINAL:
                    progress.left.remove(number)
                    if len(progress.stored) + len(progress.left) < needed:
                        reason = f"{send.subject}: {verdict.reason}"
                        refusal = MQBrokerError(verdict.code or 0, reason, send.broker_name, verdict.address)
                        raise progress.in_doubt(refusal)
                else:
                    self._warn(send.broker_name, verdict)
                    progress.note_not_stored(number, verdict)
                    if verdict.outcome is SendOutcome.UNKNOWN:
                        in_doubt.setdefault(send.broker_name, []).append(number)
                        if self._verifier is None:
                            progress.doubts.setdefault(number, MQClientError(verdict.reason, _code(verdict)))
            if self._verifier is not None:
                until_ms += self._look(self._verifier, sends, in_doubt, progress)
        return progress

    def _look(
        self, verifier: Verifier, sends: Sequence[Single], in_doubt: Mapping[str, Sequence[int]], progress: _Progress
    ) -> float:
        """Take what is found in queues for stored. Returns how many ms that has taken."""
        began_ms = self._cluster.timer()
        for broker_name, numbers in in_doubt.items():
            reason = progress.verdicts[numbers[-1]].reason
            are_there = verifier.stored(broker_name, {sends[number].key for number in numbers}, reason)
            for number in numbers:
                if sends[number].key in are_there:
                    progress.store(number, Stored({}, was_found=True))
        return self._cluster.timer() - began_ms

    def _given_up(self, progress: _Progress, text: str, sends: Sequence[Single]) -> ClientError:
        first = min(progress.left)
        verdict = progress.verdicts[first]
        text = f"{text} broker {sends[first].broker_name!r}: {verdict.reason}"
        return progress.in_doubt(MQClientError(text, _code(verdict)))

    def _round(
        self, sends: Sequence[Single], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Verdict, Mapping[str, str]]]:
        """Send each once: its number, its verdict, and the fields of the answer."""
        waiting: deque[tuple[int, Future[RemotingCommand]]] = deque()
        for number in numbers:
            if len(waiting) >= IN_FLIGHT_MAX:
                yield self._outcome(sends, *waiting.popleft())
            send = sends[number]
            waiting.append((number, submitted(self._cluster, send.broker_name, send.command, self._request_timeout_ms)))
        while waiting:
            yield self._outcome(sends, *waiting.popleft())

    def _outcome(
        self, sends: Sequence[Single], number: int, future: Future[RemotingCommand]
    ) -> tuple[int, Verdict, Mapping[str, str]]:
        try:
            answer = future.result()
        except RemotingError as error:
            self._cluster.routes.not_reached(sends[number].broker_name)
            return number, verdict_of(error), {}
        return number, verdict_of(answer), answer.ext_fields

    def _warn(self, broker_name: str, verdict: Verdict) -> None:
        if (broker_name, verdict.outcome) not in self._warned:
            self._warned.add((broker_name, verdict.outcome))
            _log.warning("broker %r: a message is %s: %s", broker_name, verdict.outcome.value, verdict.reason)


def _code(verdict: Verdict) -> int:
    return -1 if verdict.code is None else verdict.code


def submitted(cluster: Cluster, broker_name: str, command: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
    """Send a request to a master; the future has the answer, or a RemotingError. RemotingConnectError also if name
    servers fail or refuse to tell the master's address: the request has not left, which says nothing about another one
    that has.
    """
    try:
        return cluster.submit_broker(broker_name, command, timeout_ms)
    except (RemotingError, MQBrokerError) as error:
        failed: Future[RemotingCommand] = Future()
        if not isinstance(error, RemotingConnectError):
            unsent = RemotingConnectError(f"broker {broker_name}: its address is not known: {error}")
            unsent.__cause__ = error
            error = unsent
        failed.set_exception(error)
        return failed
