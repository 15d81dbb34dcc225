"""Questions to several brokers, asked once or in polls. Stderr names those that did not answer, and the exit code is 1
then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import click

from rmq_store.cli.shared.output import printable
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import StoreError
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, gather
from rmq_store.remoting.questions.answer import Given

Value = TypeVar("Value")


class Answers:
    """The answers of brokers to the questions of one command. `heard`: those that have answered; `missing`: broker ->
    the first error.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.heard: set[str] = set()
        self.missing: dict[str, StoreError] = {}

    def ask(
        self, commands: Sequence[tuple[str, RemotingCommand]], read: Callable[[Given, str], Value]
    ) -> list[Value | None]:
        """Ask (broker, request), all at once; slaves for masters that do not answer. The answers as `read` (of
        `remoting.questions`) reads them; None: no answer, or a refusal.
        """
        questions = {place: Question(broker, command, read) for place, (broker, command) in enumerate(commands)}
        told = gather(self._cluster, questions, At.READABLE).told.values()
        for one in told:
            if one.error is None:
                self.hear(one.broker_name)
            else:
                self.miss(one.broker_name, one.error)
        return [one.value for one in told]

    def hear(self, broker: str) -> None:
        """A broker has answered a question that was asked elsewhere."""
        self.heard.add(broker)

    def miss(self, broker: str, error: StoreError) -> None:
        """A broker has not answered, or has refused; its first error counts."""
        self.missing.setdefault(broker, error)

    def miss_those_that_left(self, known: Collection[str]) -> None:
        """Of these brokers, which have answered before or had queues, those that no name server knows any more."""
        silent = set(known) - self.heard - self.missing.keys()
        if not silent:
            return
        try:
            registered = self._cluster.broker_names()
        except MQBrokerError:  # a proxy does not tell (106)
            registered = []
        for broker in sorted(silent.difference(registered)):
            self.miss(broker, RemotingConnectError("no name server knows it any more"))

    def require_any(self) -> None:
        """Raise the first error (RemotingError, MQBrokerError) if brokers were asked, and none has answered."""
        if self.missing and not self.heard:
            raise next(iter(self.missing.values()))

    def require_all(self) -> None:
        """Raise the first error (RemotingError, MQBrokerError) if a broker has not answered."""
        for error in self.missing.values():
            raise error

    def tell(self) -> None:
        """Write to stderr which brokers are missing in the output, and end with exit code 1 if there are some."""
        if not self.missing:
            return
        for broker, error in sorted(self.missing.items()):
            click.echo(f"rmq: without broker {printable(broker)}: {printable(without_codes(str(error)))}", err=True)
        raise click.exceptions.Exit(1)


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
        self._known |= self._answers.heard
        missing = self._answers.missing
        self._target.require_answers(missing)
        self._answers.require_any()
        for broker in sorted(missing.keys() - self._silent):
            text = printable(without_codes(str(missing[broker])))
            click.echo(f"rmq: without broker {printable(broker)}: {text}", err=True)
        for broker in sorted(self._silent - missing.keys()):
            click.echo(f"rmq: broker {printable(broker)} answers again", err=True)
        self._silent = set(missing)

    def end(self) -> None:
        """End with exit code 1 if brokers are missing in the last poll."""
        if self._silent:
            raise click.exceptions.Exit(1)
