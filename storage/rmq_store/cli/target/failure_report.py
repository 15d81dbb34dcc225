"""The brokers that have answered the questions of one command, and the lines about those that have not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from rmq_store.cli.shared.output import tell
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import StoreError
from rmq_store.protocol.errors import MQBrokerError, RemotingError

if TYPE_CHECKING:
    from rmq_store.remoting.admin.scope import BrokerProcess

Asked = TypeVar("Asked", str, "BrokerProcess")
Answer = TypeVar("Answer")


class FailureReport(Generic[Asked]):
    """Those that have answered, and the failures of the others, in the order of the questions. `Asked`: the name of a
    broker, or a process.

    mqadmin passes over brokers that fail, or ends with the first. Here the others are asked nevertheless, stderr names
    those that failed, and the exit code is 1.
    """

    def __init__(self) -> None:
        self.answered: set[Asked] = set()
        self.failures: list[tuple[Asked, StoreError]] = []
        self._is_incomplete = False

    # -- while the brokers are asked ----------------------------------------------------------------------------------

    def succeeded(self, asked: Asked) -> None:
        """A broker has answered."""
        self.answered.add(asked)

    def failed(self, asked: Asked, error: StoreError) -> None:
        """A broker has not answered, or has refused."""
        self.failures.append((asked, error))

    def mark_incomplete(self) -> None:
        """Something else is not known, which stderr says already."""
        self._is_incomplete = True

    def ask(self, asked: Asked, call: Callable[[], Answer]) -> Answer | None:
        """The result of `call`; None if the broker refuses or does not answer. Other errors are raised."""
        try:
            found = call()
        except (MQBrokerError, RemotingError) as error:
            self.failed(asked, error)
            return None
        self.succeeded(asked)
        return found

    def ask_each(
        self, several: Iterable[Asked], call: Callable[[Asked], Answer | None]
    ) -> Sequence[tuple[Asked, Answer]]:
        """(broker, result of `call`) of those that answer, without results that are None."""
        answers = ((one, self.ask(one, partial(call, one))) for one in several)
        return [(one, found) for one, found in answers if found is not None]

    # -- what is known then -------------------------------------------------------------------------------------------

    @property
    def missing(self) -> dict[Asked, StoreError]:
        """Those that have failed, each with its first error."""
        return dict(reversed(self.failures))

    def require_any(self) -> None:
        """Raise the first error (RemotingError, MQBrokerError) if brokers were asked, and none has answered."""
        if not self.answered:
            self.require_all()

    def require_all(self) -> None:
        """Raise the first error (RemotingError, MQBrokerError) if a broker has failed."""
        for _, error in self.failures:
            raise error

    # -- what the user reads ------------------------------------------------------------------------------------------

    def report(self) -> None:
        """Write to stderr which brokers are missing in the output. End with exit code 1 if there are some, or something
        else is not known.
        """
        if self.report_changes(frozenset()) or self._is_incomplete:
            raise click.exceptions.Exit(1)

    def report_changes(self, before: Set[Asked]) -> set[Asked]:
        """Write the lines of `changes` to stderr. Returns those that have failed."""
        for line in self.changes(before):
            tell(line)
        return set(self.missing)

    def changes(self, before: Set[Asked]) -> Iterator[str]:
        """A line for each broker that has failed and is not in `before`, and each of `before` that has not failed."""
        for asked, text in self._lines():
            if asked not in before:
                yield text
        for asked in sorted(before - self.missing.keys()):
            yield f"{self._name(asked)} answers again"

    def _name(self, asked: Asked) -> str:
        return f"broker {asked}"

    def _lines(self) -> Iterator[tuple[Asked, str]]:
        """A line for each broker that has failed, with its first error, by name."""
        missing = self.missing
        for asked in sorted(missing):
            yield asked, f"without {self._name(asked)}: {without_codes(str(missing[asked]))}"


class ProcessFailureReport(FailureReport["BrokerProcess"]):
    """Of the processes that a command of mqadmin asks: it prints each failure, with the codes, as mqadmin does."""

    def unknown_lines(self, what: str) -> list[str]:
        """Of which brokers `what` (in the plural) is not known: for stderr, before a question."""
        return [f"{what} at {self._name(process)} are not known: {error}" for process, error in self.failures]

    def _name(self, asked: BrokerProcess) -> str:
        return f"broker {asked.broker_name}" + (f" ({asked.address})" if asked.address else "")

    def _lines(self) -> Iterator[tuple[BrokerProcess, str]]:
        for process, error in self.failures:
            yield process, f"{self._name(process)}: {error}"
