"""The target of a command, and what an open target shows: the questions that a store and a cluster both answer.

`cli.store.view` and `cli.cluster.view` answer them. Only they, and the modules that they import, know which side it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.rows import TopicRow

Tell = Callable[[str], None]
"""Gets a remark about what the rows lack, without a line end."""


class View(Protocol):
    """An open target. Each method reads it once.

    Raises (each method, over a cluster): RemotingError, MQBrokerError if no broker answers. `failures` has the brokers
    that do not: their rows are missing.
    """

    @property
    def failures(self) -> FailureReport[Any]:
        """What the answers so far lack."""

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """The topics by name; those of the system, and those that are not read here, only with `show_all`."""


class Target(Protocol):
    """What a command line names: a store or a cluster."""

    def view(self, tell: Tell) -> AbstractContextManager[View]:
        """Open it to read. A store: CorruptConfigError and others, as `Store.open`. A cluster: see
        `ClusterTarget.open`.
        """
