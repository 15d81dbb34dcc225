"""Questions to several brokers, asked once or in polls. Stderr names those that did not answer, and the exit code is 1
then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import click

from rmq_store.cli.target.cluster_target import ClusterTarget
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
        return [self.ask(one.broker_name, one.required) for one in told]

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


class Polls:
    """The polls of one command, each with answers of its own. Stderr names a broker when it stops answering, and when
    it answers again.
    """

    def __init__(self, cluster: Cluster, target: ClusterTarget) -> None:
        self._cluster = cluster
        self._target = target
        self._answers = Answers(cluster)
        self._known: set[str] = set()
        self._silent: set[str] = set()

    def begin(self) -> Answers:
        """Answers of a new poll: none has come, and no broker is missing."""
        self._answers = Answers(self._cluster)
        return self._answers

    def finish(self) -> None:
        """Write to stderr for which brokers this poll differs from the one before.

        Raises (RemotingError, MQBrokerError): brokers were asked, and none has answered; BrokerAwayError: a required
        one has not.
        """
        self._answers.miss_those_that_left(self._known)
        self._known |= self._answers.answered
        self._target.require_answers(self._answers.missing)
        self._answers.require_any()
        self._silent = self._answers.report_changes(self._silent)

    def end(self) -> None:
        """End with exit code 1 if brokers are missing in the last poll."""
        if self._silent:
            raise click.exceptions.Exit(1)
