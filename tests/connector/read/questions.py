"""Notes each question that a plan of a stream asks, in every test of this suite: the module that asks, the request, and
whom. One that `AT_BROKERS` does not have fails its test: give it a row there. In the test of rows (test_questions.py) a
broker goes at each of them. Name servers are away at every question of theirs in test_away_brokers.py.

A fixture of all tests notes (`recording`). Spark's own processes are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, Final, NamedTuple

import pytest

from pyspark_rmq.read.stream_reader import RmqStreamReader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.transport.client import RemotingClient

from ...storage.remoting.cluster.fake_cluster import FakeNet

BROKER, NAME_SERVER = "broker", "name server"
ASKED_OF_NAME_SERVERS: Final = frozenset((
    RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
))  # fmt: skip
_PACKAGES: Final = ("pyspark_rmq.", "rmq_store.client.")
# All questions of a plan go through it.
_WAY: Final = "pyspark_rmq.cluster_read.look"
_now = local()


# The askers of brokers, and their requests. `outages` probes beside the plans, and nobody waits for it.
AT_BROKERS: Final[dict[str, frozenset[int]]] = {
    "access.cluster_lookup": frozenset({201}),
    "access.cluster_reader": frozenset({11, 29, 30, 31}),
    "client.backend": frozenset({34, 35, 203}),
    "client.group": frozenset({14, 15, 41, 42, 203, 208}),
    "cluster_read.awaited_brokers": frozenset({28}),
    "cluster_read.ends": frozenset({30, 31, 202}),
    "cluster_read.known_ends": frozenset({351}),
    "cluster_read.log_figures": frozenset({28}),
    "cluster_read.message_locations": frozenset({11, 29}),
    "cluster_read.outages": frozenset({28}),
}


def without_row(asked: Iterable[Question]) -> list[Question]:
    """The questions that no absence meets."""
    return sorted(
        one for one in asked if one.target == BROKER and one.request not in AT_BROKERS.get(one.asker, frozenset())
    )


class Question(NamedTuple):
    """`plan`: the call of Spark; `asker`: the module of the source that asks, or the package of clients; `request`: the
    code.
    """

    plan: str
    asker: str
    request: int
    target: str


def question_of(command: RemotingCommand) -> Question | None:
    """The question that is asked at this moment; None outside of plans."""
    plan = getattr(_now, "plan", None)
    if plan is None:
        return None
    target = NAME_SERVER if command.code in ASKED_OF_NAME_SERVERS else BROKER
    return Question(plan, _asker(), command.code, target)


def _asker() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_PACKAGES) and module != _WAY:
            return _part(module)
        frame = frame.f_back  # type: ignore[assignment]
    return "nobody"


def _part(module: str) -> str:
    """The module of the source; of the storage its package."""
    _, *names = module.split(".")
    return ".".join(names) if module.startswith("pyspark_rmq.") else ".".join(names[:2])


class _Calls(list[tuple[str, RemotingCommand]]):
    """The calls of a cluster in memory; each question is noted."""

    def __init__(self, asked: set[Question]) -> None:
        super().__init__()
        self._asked = asked

    def append(self, call: tuple[str, RemotingCommand]) -> None:
        _note(self._asked, call[1])
        super().append(call)


def _note(asked: set[Question], command: RemotingCommand) -> None:
    question = question_of(command)
    if question is not None:
        asked.add(question)


@contextmanager
def recording() -> Iterator[set[Question]]:
    """The questions of all plans in the block."""
    asked: set[Question] = set()
    in_plan, make = RmqStreamReader._in_plan, FakeNet.__init__

    def noted(self: RmqStreamReader, plan: Any) -> Any:
        before = getattr(_now, "plan", None)
        _now.plan = before or sys._getframe(1).f_code.co_name
        try:
            return in_plan(self, plan)
        finally:
            _now.plan = before

    def made(self: FakeNet) -> None:
        make(self)
        self.calls = _Calls(asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RmqStreamReader, "_in_plan", noted)
        patch.setattr(FakeNet, "__init__", made)
        for name in ("call", "submit", "submit_all", "call_oneway"):
            patch.setattr(RemotingClient, name, _noting(asked, getattr(RemotingClient, name)))
        yield asked


def _noting(asked: set[Question], call: Any) -> Any:
    def noted(self: RemotingClient, address: str, commands: Any, *given: Any, **named: Any) -> Any:
        for command in [commands] if isinstance(commands, RemotingCommand) else commands:
            if isinstance(command, RemotingCommand):
                _note(asked, command)
        return call(self, address, commands, *given, **named)

    return noted
