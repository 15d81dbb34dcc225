"""Messages with a deliver time, and the brokers that have no timers for them (4.x)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rmq_store.format.properties.property_string import (
    DELAY_TIME_LEVEL,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
)
from rmq_store.protocol.bodies.routes import TIMER_MESSAGES
from rmq_store.protocol.errors import RemotingError, ResponseCode, TimerNotSupportedError
from rmq_store.protocol.versions import V5_0_0
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info
from rmq_store.remoting.questions.offsets import ask_max_offset

_TIMERS: Final = (TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC)


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether brokers of 5.x keep a message with these properties until its deliver time. A delay level comes first."""
    return any(name in properties for name in _TIMERS) and properties.get(DELAY_TIME_LEVEL, "0") in ("", "0")


def refuse_timers(
    cluster: Cluster, topic: str, broker_names: Collection[str], timeout_ms: int | None = None
) -> None:
    """Refuse a message with a deliver time for brokers that have no timers (4.x): they deliver it at once.

    The version is in every answer of a broker, also in a refusal. So it is asked for an end of the topic (30), once for
    each address of a master that has timers; one that has none is asked each time.

    A served store (`rmq broker run`) announces a version of 4.9, and has timers. Its figures (28) say so. A broker that
    does not know this request is none.

    Raises:
        TimerNotSupportedError: a broker has no timers. RemotingError: a master does not answer.
        MQBrokerError: a broker that may be a served store refuses to tell its figures, because it is busy, say.
    """
    known = cluster.with_timers | cluster.served_with_timers
    asked = {name: cluster.address(name) for name in sorted(set(broker_names))}
    asked = {name: address for name, address in asked.items() if address not in known}
    end = ask_max_offset(cluster, topic, 0, None)
    old = []
    for name, answer in _answers(cluster, list(asked), end, timeout_ms):
        if answer.version >= V5_0_0:
            cluster.with_timers.add(asked[name])
        else:
            old.append(name)
    for name, answer in _answers(cluster, old, ask_runtime_info(), timeout_ms):
        is_unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if is_unknown or read_runtime_info(answer, name).get(TIMER_MESSAGES) != "true":
            raise TimerNotSupportedError(name)
        cluster.served_with_timers.add(asked[name])


def _answers(
    cluster: Cluster, broker_names: Sequence[str], command: RemotingCommand, timeout_ms: int | None
) -> Iterator[tuple[str, RemotingCommand]]:
    """The masters' answers to one request, with any code. RemotingError: a master gives none."""
    answers = cluster.call_all([(name, replace(command)) for name in broker_names], timeout_ms)
    for name, answer in zip(broker_names, answers, strict=True):
        if isinstance(answer, RemotingError):
            raise answer
        yield name, answer
