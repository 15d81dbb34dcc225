"""One gather over brokers: the questions of a caller are asked at once, and each answer says who gave it.

    asked        `At.MASTERS`, `At.READABLE` (slaves for masters that do not answer), or `processes` that are named
    answered     a value, as `read_x` of `remoting.questions` reads it
    away         no answer now, perhaps later: `protocol.answers.is_away`; of a slave also `NOT_AT_SLAVE`
    refused      any other error: no rights, no such topic, bytes that do not decode

Away is not empty: a broker that is away has no value, and its name and the reason stand beside the values of others.

Ways to ask:

    gather       every broker once
    waiting      those that are away again, until a time; raises nothing
    Before       a call that raises; while it meets somebody who is away, what was told before stays

Policies of an answer. Both raise a refusal:

    required()            the first broker that is away ends the call with its error
    those_that_answer()   it is left out; `away` says who it is

A command that shows refusals as well reads `told`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from rmq_store import real_time
from rmq_store.protocol.answers import NOT_AT_SLAVE, is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.questions.answer import Given

_log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
BrokerError: TypeAlias = MQBrokerError | RemotingError

_NOBODY: Final[Mapping[str, BrokerError]] = MappingProxyType({})
_MASTERS: Final[Mapping[str, int]] = MappingProxyType({})


class At(Enum):
    """The processes of a broker that may answer."""

    MASTERS = "the master alone"
    READABLE = "the master; while it is away a slave, which may not know yet what its master knows"


class Question(NamedTuple, Generic[Value]):
    """A question to a broker, and how its answer is read: `ask_x` and `read_x` of `remoting.questions`."""

    broker_name: str
    command: RemotingCommand
    read: Callable[[Given, str], Value]


class Told(NamedTuple, Generic[Value]):
    """The outcome of one question: a value from the process `broker_id`, or an error; of several processes that are
    away the error of the first one that was asked. `unknown_at`: the slave that has answered then, but does not know
    the topic (yet).
    """

    broker_name: str
    broker_id: int
    value: Value | None
    error: BrokerError | None = None
    unknown_at: int | None = None

    @property
    def is_away(self) -> bool:
        """Whether nobody has answered who knows it."""
        return self.error is not None and (is_away(self.error) or _is_not_there_yet(self.broker_id, self.error))

    def required(self) -> Value:
        """The value. Raises the error."""
        if self.error is not None:
            raise self.error
        return cast("Value", self.value)


class Gathered(Generic[Key, Value]):
    """The outcomes of all questions, in their order."""

    def __init__(self, told: Mapping[Key, Told[Value]]) -> None:
        self.told = told

    @property
    def away(self) -> dict[str, BrokerError]:
        """The brokers that did not answer a question, by name, each with its first error."""
        found: dict[str, BrokerError] = {}
        for one in self.told.values():
            if one.error is not None and one.is_away:
                found.setdefault(one.broker_name, one.error)
        return found

    def required(self) -> dict[Key, Value]:
        """All values.

        Raises:
            MQBrokerError: a broker refuses, or is busy. RemotingError: one does not answer.
        """
        return {key: one.required() for key, one in self.told.items()}

    def those_that_answer(self) -> dict[Key, Value]:
        """The values of the brokers that are not `away`. MQBrokerError, RemotingCommandError: one refuses."""
        return {key: one.required() for key, one in self.told.items() if not one.is_away}


def gather(
    cluster: Cluster,
    questions: Mapping[Key, Question[Value]],
    at: At = At.MASTERS,
    *,
    processes: Mapping[str, int] = _MASTERS,
    without: Mapping[str, BrokerError] = _NOBODY,
    timeout_ms: int | None = None,
) -> Gathered[Key, Value]:
    """Ask brokers, all at once, any number of questions each. One that does not answer is waited for once, for all of
    its questions; if it has another address by now, it is asked there.

    `processes`: the process to ask (first) in a master's place, by broker. `without`: brokers that are known to be
    away, as an earlier `Gathered.away` names them: they are not asked, and have the error given here.

    Raises nothing for a broker.
    """
    told: dict[Key, Told[Value]] = {
        key: Told(one.broker_name, processes.get(one.broker_name, MASTER_ID), None, without[one.broker_name])
        for key, one in questions.items()
        if one.broker_name in without
    }
    asked = questions.keys() - told.keys()
    addresses = _addresses(cluster, {questions[key].broker_name for key in asked})

    def ask(some: list[Key], ids: Mapping[str, int]) -> None:
        commands = [(questions[key].broker_name, questions[key].command) for key in some]
        answers = cluster.call_all(commands, timeout_ms, broker_ids=ids)
        for key, given in zip(some, answers, strict=True):
            now = _read(questions[key], ids.get(questions[key].broker_name, MASTER_ID), given)
            before = told.get(key)
            if before is None or not now.is_away:
                told[key] = now
            elif before.unknown_at is None:
                told[key] = before._replace(unknown_at=now.unknown_at)
            elif before.unknown_at == before.broker_id:  # a slave that was named: its error is none of the broker
                told[key] = now if now.unknown_at is not None else now._replace(unknown_at=before.unknown_at)

    def ask_again(ids: Mapping[str, int]) -> None:
        ask([key for key in questions if key in asked and told[key].is_away and told[key].broker_name in ids], ids)

    ask([key for key in questions if key in asked], processes)
    away = {one.broker_name: one for key, one in told.items() if key in asked and one.is_away}
    if away:
        now = _addresses(cluster, away)
        ask_again({name: one.broker_id for name, one in away.items() if _has_moved(one, addresses[name], now[name])})
        for others in _slaves(now, processes) if at is At.READABLE else ():
            ask_again(others)
        # The master has the last word where a slave that was named says "not yet".
        ask_again({one.broker_name: MASTER_ID for one in told.values() if one.unknown_at == one.broker_id})
    return Gathered({key: told[key] for key in questions})


def gathered(questions: Mapping[Key, Question[Value]], given: Mapping[Key, Given]) -> Gathered[Key, Value]:
    """The outcomes of questions to masters that somebody else has asked."""
    return Gathered({key: _read(question, MASTER_ID, given[key]) for key, question in questions.items()})


def waiting(
    cluster: Cluster,
    questions: Mapping[Key, Question[Value]],
    until_ms: float,
    at: At = At.MASTERS,
    *,
    pause_s: float,
    sleep: Callable[[float], None] = time.sleep,
    is_passing: Callable[[Exception], bool] = is_away,
) -> Gathered[Key, Value]:
    """As `gather`; brokers that are away are asked again, until `until_ms` of the cluster's timer or until one refuses.
    Whatever is an error then has not been answered. `is_passing`: which errors are worth another try.
    """
    told: dict[Key, Told[Value]] = {}
    left: Mapping[Key, Question[Value]] = questions
    while True:
        told |= gather(cluster, left, at).told
        errors = {key: told[key].error for key in left}
        left = {key: questions[key] for key, error in errors.items() if error is not None}
        is_final = any(error is not None and not is_passing(error) for error in errors.values())
        if not left or is_final or cluster.timer() >= until_ms:
            return Gathered({key: told[key] for key in questions})
        sleep(pause_s)


class Before(Generic[Value]):
    """The last result of a call, named `what`: it stays while the call meets somebody who is away. A warning says when
    that begins, and another one when it is over. `is_passing`: of name servers `tells_nothing`.
    """

    def __init__(self, what: str, *, is_passing: Callable[[Exception], bool] = is_away) -> None:
        self._what = what
        self._is_passing = is_passing
        self._told: Value | None = None
        self._since_s: float | None = None

    def or_now(self, call: Callable[[], Value]) -> Value:
        """The result of `call`, or the one of before. Raises as `call`; also if nothing was told before."""
        try:
            self._told = call()
        except (RemotingError, MQBrokerError) as error:
            if self._told is None or not self._is_passing(error):
                raise
            if self._since_s is None:
                self._since_s = real_time.monotonic()
                _log.warning("%s are those of before: %s", self._what, error)
            return self._told
        if self._since_s is not None:
            _log.warning("%s are told again after %.1f s", self._what, real_time.monotonic() - self._since_s)
            self._since_s = None
        return self._told


def _read(question: Question[Value], broker_id: int, given: Given) -> Told[Value]:
    try:
        value = question.read(given, question.broker_name)
    except (RemotingError, MQBrokerError) as error:
        is_unknown = isinstance(error, MQBrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST
        unknown_at = broker_id if is_unknown and _is_not_there_yet(broker_id, error) else None
        return Told(question.broker_name, broker_id, None, error, unknown_at)
    return Told(question.broker_name, broker_id, value)


def _is_not_there_yet(broker_id: int, error: BrokerError) -> bool:
    """Whether a slave says only that it cannot tell now: it does not speak for its master."""
    return broker_id != MASTER_ID and isinstance(error, MQBrokerError) and error.response_code in NOT_AT_SLAVE


def _addresses(cluster: Cluster, names: Collection[str]) -> dict[str, Mapping[int, str]]:
    """The addresses of brokers by process id; none of one that nobody knows."""
    found: dict[str, Mapping[int, str]] = {}
    for name in names:
        try:
            broker = cluster.routes.broker(name)
        except (RemotingError, MQBrokerError):  # no name server tells it: the question itself has the error
            broker = None
        found[name] = {} if broker is None else broker.addresses
    return found


def _has_moved(one: Told[Value], before: Mapping[int, str], now: Mapping[int, str]) -> bool:
    """Whether a process that was not reached has registered another address since it was asked."""
    address = now.get(one.broker_id)
    return isinstance(one.error, RemotingConnectError) and address not in (None, before.get(one.broker_id))


def _slaves(addresses: Mapping[str, Mapping[int, str]], asked: Mapping[str, int]) -> list[dict[str, int]]:
    """The slaves to ask in place of those that are away, in rounds: of each broker its first one, then its second."""
    others = {
        name: [one for one in sorted(known) if one not in (MASTER_ID, asked.get(name))]
        for name, known in addresses.items()
    }
    rounds = max(map(len, others.values()), default=0)
    return [{name: ids[step] for name, ids in others.items() if step < len(ids)} for step in range(rounds)]
