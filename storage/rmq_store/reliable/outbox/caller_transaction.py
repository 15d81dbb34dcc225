"""The connection of a transaction that belongs to the caller: of a Connection, or of an ORM Session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable.database.drivers import commits_each_statement, require_supported

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def connection_of(given: sa.Connection | Session, table: sa.Table) -> sa.Connection:
    """The connection, in its transaction. A Session begins one if it has none, for the engine of `table`.

    Raises:
        UsageError: neither of both, one that commits each statement by itself, or with a driver that is not supported.
    """
    connection = given
    if not isinstance(given, sa.Connection):
        if not hasattr(given, "bind_mapper") and not hasattr(given, "get_bind"):
            raise UsageError(
                f"a Connection or a Session is expected, got {type(given).__name__}; from AsyncConnection and "
                "AsyncSession call it by run_sync"
            )
        connection = given.connection(bind_arguments={"clause": table})
    assert isinstance(connection, sa.Connection)
    require_supported(connection.dialect)
    if not connection.in_transaction():
        # The first statement begins the transaction; what begins with it can then be seen.
        connection.scalar(sa.select(sa.literal(1)))
    if commits_each_statement(connection):
        raise UsageError(
            "this connection commits each statement by itself (AUTOCOMMIT), so a message would be sent for what is "
            "never written: give the connection of a transaction"
        )
    return connection

