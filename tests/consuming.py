"""What tests of the consuming half of `rmq_store.reliable` share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import servers
from rmq_store.reliable import Tables, open_engine

KINDS = ("sqlite", "postgresql", "mariadb")


@contextlib.contextmanager
def new_engine(kind: str, directory: Path, tables: Tables, **options: Any) -> Iterator[sa.Engine]:
    """An engine of an empty database that has the tables."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{directory}/{len(list(directory.iterdir()))}.db"
        else:
            server = servers.postgresql() if kind == "postgresql" else servers.mariadb()
            if reason := server.missing():
                if servers.REQUIRED:
                    raise AssertionError(reason)
                pytest.skip(reason)
            url = server.url(stack.enter_context(server.new_database()))
        engine = open_engine(url, **options)
        stack.callback(engine.dispose)
        tables.metadata.create_all(engine)
        yield engine


@contextlib.contextmanager
def statements_of(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that run in a `with` block; one with many sets of parameters counts once."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


class Worker(threading.Thread):
    """A thread whose outcome is looked at."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        """What it returned, once it has; raises what it raised."""
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def is_waiting(engine: sa.Engine, worker: Worker) -> bool:
    """Whether a worker waits in the database, which is only asked where it can tell."""
    worker.join(0.3)
    return worker.is_alive()
