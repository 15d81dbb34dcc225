"""The databases of the kit for a tool: opened by reference, and closed again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import sqlalchemy as sa

from rmq_store.errors import StoreError, UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.engine import open_engine
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.relay.inboxes import Inboxes


@dataclass(frozen=True, slots=True)
class Databases:
    """The databases of a tool."""

    inboxes: Inboxes
    tables: Tables


@contextlib.contextmanager
def open_databases(
    stubs: str,
    *,
    other: str | None = None,
    by_group: Mapping[str, str] | None = None,
    prefix: str = "rmq_",
    schema: str | None = None,
    needs_tables: bool = True,
) -> Iterator[Databases]:
    """The senders' database `stubs`, the databases of the groups in `by_group`, and `other` for all other groups:
    references as for `open_engine`. Errors of a database are raised as one line, without statements and their values,
    which are data of applications.

    Raises:
        UsageError: a reference cannot be resolved, a database is not supported, tables are missing.
        StoreError: a database does not answer, or refuses a statement.
    """
    tables = Tables(prefix=prefix, schema=schema)
    with contextlib.ExitStack() as closing:

        def opened(reference: str) -> sa.Engine:
            engine = open_engine(reference)
            closing.callback(engine.dispose)
            return engine

        try:
            inboxes = Inboxes(
                opened(stubs),
                {group: opened(reference) for group, reference in (by_group or {}).items()},
                None if other is None else opened(other),
            )
            for engine in inboxes.engines() if needs_tables else ():
                _require_tables(engine, tables)
            yield Databases(inboxes, tables)
        except sa.exc.SQLAlchemyError as error:
            _refuse(error)


def _require_tables(engine: sa.Engine, tables: Tables) -> None:
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and file and not file.startswith(("file:", ":")) and not Path(file).exists():
        raise UsageError(f"{file}: there is no such database")  # SQLite would make an empty one
    inspector = sa.inspect(engine)
    missing = [table.name for table in tables.all() if not inspector.has_table(table.name, table.schema)]
    if missing:
        raise UsageError(
            f"{engine.url.render_as_string(hide_password=True)} has no table {missing[0]}: is it another --prefix or "
            "--schema, or are the tables of the kit to be made, by `rmq resend schema --create`?"
        )


def _refuse(error: sa.exc.SQLAlchemyError) -> NoReturn:
    original = getattr(error, "orig", None)
    text = " ".join(str(original if original is not None else error).split())
    raise StoreError(f"the database: {text or type(error).__name__}") from error
