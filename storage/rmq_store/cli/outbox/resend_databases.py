"""The databases of `rmq resend`, as options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.reliable.operator.databases import Databases

Command = TypeVar("Command", bound=Callable[..., Any])

EXTRA = "rmq resend needs SQLAlchemy: pip install '.[reliable]' in a clone"

_OF_GROUP = re.compile(r"([%|a-zA-Z0-9_-]+)=(.+)")


def database_options(command: Command) -> Command:
    """Add --database, --inbox, --prefix and --schema; the command gets `database`, `inbox`, `prefix` and `schema` for
    `open_databases`.
    """
    command = click.option(
        "--schema", metavar="NAME", help="Schema of the database that has the tables, if it is not the default one."
    )(command)
    command = click.option(
        "--prefix", default="rmq_", show_default=True, help="Prefix of the names of the outbox and inbox tables."
    )(command)
    command = click.option(
        "--inbox", multiple=True, metavar="[GROUP=]REF",
        help="Database of the consumers, if it is another one: of one group, or of all groups that have no "
             "own --inbox. May be repeated.",
    )(command)  # fmt: skip
    return click.option(
        "--database",
        required=True,
        metavar="REF",
        envvar="RMQ_DATABASE",
        show_envvar=True,
        help="Database of the senders: env:NAME or file:/path, which hold its URL, or the URL itself, which other "
        "users of this machine can see.",
    )(command)


@contextlib.contextmanager
def open_databases(
    database: str, inbox: Sequence[str], prefix: str, schema: str | None, *, needs_tables: bool = True
) -> Iterator[Databases]:
    """The databases that the options name. Their tables are checked, unless they may be missing.

    Raises:
        UsageError: a reference cannot be resolved, a package is missing, tables are missing.
        StoreError: a database does not answer, or refuses a statement.
    """
    try:
        from rmq_store.reliable.operator import databases
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        raise UsageError(EXTRA) from error
    by_group: dict[str, str] = {}
    others: list[str] = []
    for given in inbox:
        if (found := _OF_GROUP.fullmatch(given)) is not None:
            by_group[found[1]] = found[2]
        else:
            others.append(given)
    if len(others) > 1:
        raise UsageError("--inbox without GROUP= can be given once: all other groups have one database")
    other = others[0] if others else None
    with databases.open_databases(
        database, other=other, by_group=by_group, prefix=prefix, schema=schema, needs_tables=needs_tables
    ) as opened:
        yield opened
