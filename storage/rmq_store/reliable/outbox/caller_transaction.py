"""The connection of a transaction that belongs to the caller: of a Connection, or of an ORM Session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def connection_of(given: sa.Connection | Session, table: sa.Table) -> sa.Connection:
    """The connection, in its transaction. A Session begins one if it has none, for the engine of `table`.

    Raises:
        UsageError: neither of both, or one that commits each statement by itself.
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
    if not connection.in_transaction():
        # The first statement begins the transaction; what begins with it can then be seen.
        connection.scalar(sa.select(sa.literal(1)))
    if _commits_each_statement(connection):
        raise UsageError(
            "this connection commits each statement by itself (AUTOCOMMIT), so a message would be sent for what is "
            "never written: give the connection of a transaction"
        )
    return connection


def _commits_each_statement(connection: sa.Connection) -> bool:
    """What the driver says, without asking the server. Each driver, and its async twin, says it in another way."""
    driver: Any = connection.connection.driver_connection
    name = connection.dialect.name
    if name == "sqlite":
        # Python's module begins a transaction before the first write, unless it has no isolation level.
        return driver.isolation_level is None and not driver.in_transaction
    if name == "postgresql":
        return bool(driver.autocommit) and driver.info.transaction_status.name == "IDLE"
    return bool(driver.get_autocommit()) and not driver.server_status & 1
