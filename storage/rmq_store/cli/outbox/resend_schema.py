"""`rmq resend schema`: compare, create or migrate the tables of the kit in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq_store.cli.outbox.resend_databases import database_options, open_databases
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.errors import SchemaMismatchError, UsageError

if TYPE_CHECKING:
    from rmq_store.reliable.operator.databases import Databases


@click.command(
    short_help="Compare the tables with this version; make or migrate them.",
    epilog="\b\nExamples:\n  rmq resend schema --database env:ORDERS_DB\n"
    "  rmq resend schema --create --database env:ORDERS_DB --inbox env:STOCK_DB --yes",
)
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--create", is_flag=True, help="Create missing tables; existing tables stay as they are.")
@click.option("--migrate", is_flag=True, help="Change older tables to this version. Stop senders and consumers first.")
@changing_options
def schema(
    database: str,
    inbox: tuple[str, ...],
    prefix: str,
    schema: str | None,
    as_json: bool,
    create: bool,
    migrate: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Compare the tables of each database with those of this version, and show every difference.

    --create and --migrate change tables, and ask first; no other command changes tables. Exit code 1 if differences are
    left.
    """
    if create and migrate:
        raise UsageError("name one of --create, --migrate")
    with open_databases(database, inbox, prefix, schema, needs_tables=False) as databases:
        found = _differences(databases)
        if (create or migrate) and any(found.values()) and not dry_run:
            verb = "Make the missing tables" if create else "Migrate the tables"
            confirm(f"{verb} in {sum(map(bool, found.values()))} databases?", yes=yes)
            _change(databases, create=create)
            found = _differences(databases)
    if as_json:
        write_json(found)
    else:
        for name, texts in found.items():
            click.echo(printable(f"{name}: {'as in this version' if not texts else f'{len(texts)} differences'}"))
            for text in texts:
                click.echo(printable(f"  {text}"))
    if any(found.values()):
        raise click.exceptions.Exit(1)


def _differences(databases: Databases) -> dict[str, list[str]]:
    """{URL without a password: differences}"""
    from rmq_store.reliable.database.schema import validate_schema

    found: dict[str, list[str]] = {}
    for engine in databases.inboxes.engines():
        texts = found.setdefault(engine.url.render_as_string(hide_password=True), [])
        try:
            validate_schema(engine, databases.tables)
        except SchemaMismatchError as error:
            texts += error.differences
    return found


def _change(databases: Databases, *, create: bool) -> None:
    from rmq_store.reliable.database import schema as of_schema

    for engine in databases.inboxes.engines():
        if create:
            of_schema.create_tables(engine, databases.tables)
        else:
            of_schema.migrate(engine, databases.tables)
