"""Questions to several brokers at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, gather
from rmq_store.remoting.questions.answer import Given

Value = TypeVar("Value")


class Answers(FailureReport[str]):
    """The answers of brokers, by their names, to the questions of one command."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def ask_together(
        self, commands: Sequence[tuple[str, RemotingCommand]], read: Callable[[Given, str], Value]
    ) -> list[Value | None]:
        """Ask (broker, request), all at once; slaves for masters that do not answer. The answers as `read` (of
        `remoting.questions`) reads them; None: no answer, or a refusal.
        """
        questions = {place: Question(broker, command, read) for place, (broker, command) in enumerate(commands)}
        told = gather(self._cluster, questions, At.READABLE).told.values()
        for one in told:
            if one.error is None:
                self.succeeded(one.broker_name)
            else:
                self.failed(one.broker_name, one.error)
        return [one.value for one in told]

    def miss_those_that_left(self, known: Collection[str]) -> None:
        """Of these brokers, which have answered before or had queues, those that no name server knows any more."""
        silent = set(known) - self.answered - self.missing.keys()
        if not silent:
            return
        try:
            registered = self._cluster.broker_names()
        except MQBrokerError:  # a proxy does not tell (106)
            registered = []
        for broker in sorted(silent.difference(registered)):
            self.failed(broker, RemotingConnectError("no name server knows it any more"))
