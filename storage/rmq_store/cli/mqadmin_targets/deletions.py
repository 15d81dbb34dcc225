"""Deletions that a command announces, asks about, and then carries out: in a store, and at the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.broker.store.administration import Deletion
    from rmq_store.cli.mqadmin_targets.cluster_scope import Scope
    from rmq_store.protocol.wire.command import RemotingCommand
    from rmq_store.remoting.admin.scope import BrokerProcess


def nothing() -> None:
    """No step."""


@dataclass(slots=True)
class StoreDeletion:
    """A deletion in a store. `check` raises if it must not be carried out now; `delete` returns what is deleted, and
    the line to print.
    """

    deletion: Deletion
    question: str
    delete: Callable[[], tuple[Deletion, str]]
    check: Callable[[], None] = nothing
    lines: list[str] = field(default_factory=list)
    is_done: bool = False

    @property
    def announcement(self) -> list[str]:
        """Lines about all that goes, and all that stays."""
        found = [f"delete the settings of topic {topic}" for topic in self.deletion.topics]
        found += [f"delete the settings of group {group}" for group in self.deletion.groups]
        for group, topics in self.deletion.offsets:
            found.append(f"delete the offsets of group {group} on {', '.join(topics)}")
        for group, topic in self.deletion.pops:
            found.append(f"delete what SimpleConsumers of group {group} have in their hands of {topic}")
        if self.deletion.message_count:
            found.append(f"{self.deletion.message_count} messages stay in the log, unseen, until retention takes them")
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing goes, so that nobody has to be asked."""
        return not self.deletion

    def carry_out(self) -> None:
        """Delete; on return the deletion is on disk."""
        self.deletion, line = self.delete()
        self.lines = [line]
        self.is_done = True

    def as_json(self) -> dict[str, Any]:
        """The names that are deleted, or would be."""
        return {
            "deleted": self.is_done,
            "topics": list(self.deletion.topics),
            "groups": list(self.deletion.groups),
            "offsets": {group: list(topics) for group, topics in self.deletion.offsets},
            "popStates": [list(pop) for pop in self.deletion.pops],
            "messagesLeft": self.deletion.message_count,
        }


@dataclass(slots=True)
class ClusterDeletion:
    """A deletion at some brokers: each of them gets the `orders`, one after the other, and then, if no broker has
    failed, comes `finish`. `line_of` is printed for each broker that has done it all, `last_lines` if no broker has
    failed. `names` and `users` are parts of the JSON: what is deleted, and for whom.
    """

    scope: Scope
    processes: Sequence[BrokerProcess]
    question: str
    announcement: list[str]
    orders: Sequence[RemotingCommand]
    timeout_ms: int | None = None
    finish: Callable[[], None] = nothing
    line_of: Callable[[BrokerProcess], str] | None = None
    last_lines: Sequence[str] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    users: Mapping[str, Any] = field(default_factory=dict)
    is_empty: bool = False
    _is_told: bool = False

    def check(self) -> None:
        """Brokers delete at once, whoever is sending or consuming."""

    def carry_out(self) -> None:
        """Tell the brokers."""
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.questions.answer import checked

        self._is_told = True
        for process in self.processes:
            for order in self.orders:
                call = partial(ask, self.scope.cluster, process, order, checked, self.timeout_ms)
                self.scope.report.ask(process, call)
        if not self.scope.report.failures:
            self.finish()

    @property
    def lines(self) -> list[str]:
        """The lines to print then."""
        lines = [self.line_of(process) for process in self._done] if self.line_of is not None else []
        return lines if self.scope.report.failures else [*lines, *self.last_lines]

    def as_json(self) -> dict[str, Any]:
        """The brokers that have deleted, and what."""
        brokers = [process.broker_name for process in self._done]
        is_deleted = self._is_told and not self.scope.report.failures
        return {"deleted": is_deleted, **self.names, "brokers": brokers, **self.users}

    @property
    def _done(self) -> list[BrokerProcess]:
        failed = self.scope.report.missing
        return [process for process in self.processes if self._is_told and process not in failed]


def run_deletion(
    deletion: StoreDeletion | ClusterDeletion, *, as_json: bool, dry_run: bool, yes: bool
) -> None:
    """Announce a deletion on stderr, ask, carry it out, and print what is done; a dry run only announces.

    Raises:
        UsageError: nobody can be asked.
        click.Abort: the answer is no.
        LeaseHeldError: consumers of a store are running.
    """
    for line in deletion.announcement:
        click.echo(printable(line), err=True)
    if not dry_run:
        deletion.check()
        if not deletion.is_empty:
            confirm(deletion.question, yes=yes)
        deletion.carry_out()
    if as_json:
        write_json(deletion.as_json())
    elif not dry_run:
        for line in deletion.lines:
            write_line("%s", line)
