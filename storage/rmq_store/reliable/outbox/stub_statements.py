"""The statements of a transaction that promises a message: they are most of what a promise costs.

                    stub          its groups        is it still there, before the commit
    PostgreSQL      one INSERT with both            SELECT by its id
    the others      INSERT        INSERT            SELECT by its id
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable.database.direct import DirectStatement
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.trouble import duplicate_key, is_duplicate

# The primary key of stubs, as `duplicate_key` names it.
_SEQUENCE_KEYS: Final = ("seq", "PRIMARY")


class StubStatements:
    """The statements for the tables of one outbox. Safe for threads."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        stub = tables.stub
        names = [column.name for column in stub.columns if column.name not in _WRITTEN_LATER]
        self._names = names
        self._insert_stub = DirectStatement(stub.insert(), names)
        # aiomysql 0.3 cannot write bytes since PyMySQL 1.2: it calls what is a text there.
        in_hex = stub.insert().values(body=sa.func.unhex(sa.bindparam("body_hex", type_=sa.Text)))
        self._insert_stub_in_hex = DirectStatement(in_hex, [name for name in names if name != "body"])
        # By the number of groups; on PostgreSQL with the stub.
        self._insert_groups: dict[int, DirectStatement] = {}
        self._select_ids = sa.select(stub.c.message_id).where(
            stub.c.message_id.in_(sa.bindparam("ids", expanding=True))
        )
        self._select_id = DirectStatement(sa.select(stub.c.message_id).where(stub.c.message_id == sa.bindparam("id")))

    def insert(
        self, connection: sa.Connection, row: Mapping[str, Any], groups: Sequence[str], *, is_chosen: bool
    ) -> int:
        """Insert a stub and its groups in the caller's transaction, and return its seq. An id that the caller has
        chosen may exist: a savepoint keeps the transaction usable on PostgreSQL, where an error would end it.

        Raises:
            UsageError: a message id that has a stub already, or a sequence that is behind its table.
        """
        try:
            with connection.begin_nested() if is_chosen else contextlib.nullcontext():
                if connection.dialect.name == "postgresql":
                    return _seq_of(self._with_groups(connection, row, groups))
                seq = self._stub(connection, row)
        except sa.exc.IntegrityError as error:
            if not is_duplicate(error):
                raise
            key = duplicate_key(error)
            # An id that is made here is new, so it is no duplicate, also where the driver does not say which key is.
            if key in _SEQUENCE_KEYS or not (key or is_chosen):
                raise UsageError(self._sequence_is_behind(connection)) from error
            raise UsageError(f"message id {row['message_id']!r} has a stub already: give another one") from error
        self._with_groups(connection, row, groups)
        return seq

    def still_there(self, connection: sa.Connection, message_ids: Sequence[str]) -> set[str]:
        """The ids that no savepoint has rolled back."""
        # A list of parameters is compiled each time, and most transactions have one message.
        if len(message_ids) == 1:
            return {found for (found,) in self._select_id.fetch_quietly(connection, {"id": message_ids[0]})}
        return set(connection.scalars(self._select_ids, {"ids": message_ids}))

    def _stub(self, connection: sa.Connection, row: Mapping[str, Any]) -> int:
        if connection.dialect.driver == "aiomysql":
            rest = {name: value for name, value in row.items() if name != "body"}
            return _seq_of(self._insert_stub_in_hex.execute(connection, {**rest, "body_hex": row["body"].hex()}))
        return _seq_of(self._insert_stub.execute(connection, row))

    def _with_groups(
        self, connection: sa.Connection, row: Mapping[str, Any], groups: Sequence[str]
    ) -> sa.CursorResult[Any]:
        """Insert the groups; on PostgreSQL the stub, too, whose seq is the result."""
        with_stub = connection.dialect.name == "postgresql"
        statement = self._insert_groups.get(len(groups))
        if statement is None:
            statement = self._insert_groups[len(groups)] = self._statement_of(len(groups), with_stub=with_stub)
        named = {f"group_{number}": group for number, group in enumerate(groups)}
        stub = row if with_stub else {}
        return statement.execute(connection, {**stub, **named, "id_of_groups": row["message_id"]})

    def _statement_of(self, group_count: int, *, with_stub: bool) -> DirectStatement:
        message_id: sa.BindParameter[str] = sa.bindparam("id_of_groups")
        rows = [{"message_id": message_id, "group_name": sa.bindparam(f"group_{n}")} for n in range(group_count)]
        groups = self._tables.stub_group.insert().values(rows)
        if not with_stub:
            return DirectStatement(groups)
        stub = self._tables.stub
        return DirectStatement(stub.insert().add_cte(groups.cte("groups")).returning(stub.c.seq), self._names)

    def _sequence_is_behind(self, connection: sa.Connection) -> str:
        """The text of the error if the database gives a new row the seq of one that is there, as after a restore."""
        stub = self._tables.stub
        name = connection.dialect.identifier_preparer.format_table(stub)
        step = f"SELECT setval(pg_get_serial_sequence('{name}', 'seq'), (SELECT max(seq) FROM {name}))"
        if connection.dialect.name != "postgresql":
            step = f"ALTER TABLE {name} AUTO_INCREMENT = N, with N above SELECT max(seq) FROM {name}"
        return (
            f"the message was not promised: the database gives it a seq that a row of {name} has. The sequence is "
            f"behind its table, as after a restore or an import. Run {step}; then repeat the transaction"
        )


# Of a stub: by the database, or by who sends the message.
_WRITTEN_LATER: Final = frozenset(("seq", "sent_ms", "broker_name", "sent_queue_id", "queue_offset"))


def _seq_of(inserted: sa.CursorResult[Any]) -> int:
    return int(inserted.scalar_one() if inserted.returns_rows else inserted.lastrowid)
