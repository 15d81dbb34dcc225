"""Many rows into a table of the application, in few statements on the wire. Each driver needs its own way:

PostgreSQL, SQLite    INSERT ... VALUES (..), (..) RETURNING: only with RETURNING does SQLAlchemy join rows; psycopg
                      would send one Execute per row
MariaDB, MySQL        PyMySQL joins rows itself, up to 1 MB per statement, which keeps it below max_allowed_packet
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows with the same columns into `table`, in the caller's transaction. One statement per 1,000 rows, fewer
    if the database takes fewer parameters (SQLite: 32,766). On MariaDB and MySQL one statement per 1 MB.

    Raises:
        sqlalchemy.exc.DBAPIError: the database refuses a row.
    """
    if not rows:
        return
    statement = sa.insert(table)
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(statement, rows)
    else:
        connection.execute(statement.returning(sa.literal_column("1")), rows)
