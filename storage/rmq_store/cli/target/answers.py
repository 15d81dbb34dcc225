"""Questions to several brokers. Stderr names those that did not answer, and the exit code is 1 then."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

from rmq_store.cli.shared.output import printable
from rmq_store.errors import StoreError
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import SUCCESS, Cluster, checked


class Answers:
    """The answers of brokers to the questions of one command. `missing`: broker -> the first error."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.missing: dict[str, StoreError] = {}
        self._has_answer = False

    def ask(
        self, commands: Sequence[tuple[str, RemotingCommand]], ok: Collection[int] = SUCCESS
    ) -> list[RemotingCommand | None]:
        """Ask (broker, request), all at once; slaves for masters that do not answer. None: no answer, or a refusal."""
        found: list[RemotingCommand | None] = []
        for (broker, _), given in zip(commands, self._cluster.read_all(commands), strict=True):
            try:
                found.append(checked(given, broker, ok))
                self.hear()
            except (RemotingError, MQBrokerError) as error:
                self.miss(broker, error)
                found.append(None)
        return found

    def hear(self) -> None:
        """A broker has answered a question that was asked elsewhere."""
        self._has_answer = True

    def miss(self, broker: str, error: StoreError) -> None:
        """A broker has not answered, or has refused; its first error counts."""
        self.missing.setdefault(broker, error)

    def require_any(self) -> None:
        """Raise the first error (RemotingError, MQBrokerError) if brokers were asked, and none has answered."""
        if self.missing and not self._has_answer:
            raise next(iter(self.missing.values()))

    def tell(self) -> None:
        """Write to stderr which brokers are missing in the output, and end with exit code 1 if there are some."""
        if not self.missing:
            return
        for broker, error in sorted(self.missing.items()):
            click.echo(f"rmq: without broker {printable(broker)}: {printable(str(error))}", err=True)
        raise click.exceptions.Exit(1)
