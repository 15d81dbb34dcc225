"""Statements that the kit executes for each message of an application: compiled once for a driver.

SQLAlchemy finds the compiled form of a statement by a key that it makes of all its parts, at each execution: half of
what a small statement costs. Here the text goes to the driver as it is. Events of cursors, `echo`, transactions and
errors are those of any other statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The statement for one dialect. `order`: the parameters by place; None if the driver takes them by name."""

    dialect: sa.Dialect
    text: str
    order: Sequence[str] | None
    converts: Mapping[str, Convert]

    def parameters(self, given: Mapping[str, Any]) -> Any:
        values = {**given}
        for name, convert in self.converts.items():
            values[name] = convert(values[name])
        return values if self.order is None else tuple([values[name] for name in self.order])


class DirectStatement:
    """A statement whose parameters have the same names each time. Safe for threads.

    `names`: the columns of an INSERT; a statement of another kind names its parameters itself. Engines that rename
    schemas (`schema_translate_map`) execute the statement in SQLAlchemy's usual way.
    """

    def __init__(self, statement: Any, names: Sequence[str] | None = None) -> None:
        self._statement = statement
        self._names = None if names is None else list(names)
        self._compiled: _Compiled | None = None

    def execute(self, connection: sa.Connection, given: Mapping[str, Any]) -> sa.CursorResult[Any]:
        """Execute it in the connection's transaction; `given` has a value for each parameter.

        Raises:
            sqlalchemy.exc.DBAPIError: as `Connection.execute`.
        """
        if connection.get_execution_options().get("schema_translate_map"):
            usual: sa.CursorResult[Any] = connection.execute(self._statement, given)
            return usual
        compiled = self._compiled_for(connection.dialect)
        return connection.exec_driver_sql(compiled.text, compiled.parameters(given))

    def fetch_quietly(self, connection: sa.Connection, given: Mapping[str, Any]) -> list[Any]:
        """All rows of a query of ours, as the driver gives them, without events and `echo`: `execute` needs most of its
        time for those and for a result that this query does not need.

        Raises:
            sqlalchemy.exc.DBAPIError: as `execute`, which is called if the driver refuses.
        """
        if not connection.get_execution_options().get("schema_translate_map"):
            compiled = self._compiled_for(connection.dialect)
            cursor = connection.connection.cursor()
            try:
                cursor.execute(compiled.text, compiled.parameters(given))
                return [*cursor.fetchall()]
            except connection.dialect.loaded_dbapi.Error:
                pass  # SQLAlchemy asks once more, and knows what such an error means for its connection
            finally:
                cursor.close()
        return [*self.execute(connection, given)]

    def _compiled_for(self, dialect: sa.Dialect) -> _Compiled:
        # The last dialect is kept: an application has one engine, and perhaps a session of its own beside it.
        compiled = self._compiled
        if compiled is None or compiled.dialect is not dialect:
            compiled = self._compiled = self._compile(dialect)
        return compiled

    def _compile(self, dialect: sa.Dialect) -> _Compiled:
        found = self._statement.compile(dialect=dialect, column_keys=self._names)
        converts = {
            name: convert
            for name, parameter in found.binds.items()
            if (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        return _Compiled(dialect, str(found), found.positiontup, converts)
