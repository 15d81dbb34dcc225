"""The tables of the kit, and the types that mean the same in SQLite, PostgreSQL, MariaDB and MySQL.

    stub         a message that its sender's transaction has promised      the document's "message stub"
    stub_group   the consumer groups that must confirm it
    log          a message that a group has received and not yet done      the document's "message log"
    inbox        a message that a group has done; written with the effect
    high_water   per group and queue: the largest offset that was delivered for the first time
    batch        a micro-batch of a streaming query that is written, per group and target
    manual       messages about which a person must decide
    relay        a row that makes relays claim one after the other; and how far their looks at sent messages have come
    schema       the version of these tables

The sender's database has stub, stub_group, relay and the sender's rows of manual. The consumer's database has log,
inbox, high_water, batch and the group's rows of manual. Both may be the same database. Times are ms since 1970 (UTC),
by the clock of the process that writes them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rmq_store.errors import UsageError

MESSAGE_ID_CHARACTERS_MAX: Final = 255
"""What fits in a primary key of every database, together with a group."""

UNCONFIRMED: Final = "unconfirmed"
CONFIRMED: Final = "confirmed"
VOID: Final = "void"

SCHEMA_VERSION: Final = 2

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)
# MySQL compares text without regard to case, and pads it, unless a column says otherwise.
_EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_TINY, _SHORT, _NAME, _QUEUE = 16, 64, 128, 255


def text_type(length: int) -> sa.types.TypeEngine[str]:
    """Text of at most `length` characters, which every database compares character by character."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, **_EXACT), "mysql", "mariadb")


def long_text_type() -> sa.types.TypeEngine[str]:
    """Text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), "mysql", "mariadb")


def bytes_type() -> sa.types.TypeEngine[bytes]:
    """Bytes of any length; the plain BLOB of MySQL ends at 64 KiB."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def sequence_type() -> sa.types.TypeEngine[int]:
    """A number that the database increments for each row; SQLite does so for INTEGER only."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Tables:
    """The tables, by name. They are registered in `metadata` (an application's own, or a new one). `prefix` begins each
    name: lower-case letters, digits and `_`, at most 40 characters. `schema`: a schema of the database.

    Raises:
        UsageError: an invalid prefix.
    """

    def __init__(
        self, metadata: sa.MetaData | None = None, *, prefix: str = "rmq_", schema: str | None = None
    ) -> None:
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise UsageError(f"prefix={prefix!r} of the tables: lower-case letters, digits, _ are expected, 40 at most")
        self.metadata = sa.MetaData() if metadata is None else metadata
        self.prefix = prefix
        self.schema = schema
        self.stub: Final = self._table(
            "stub",
            sa.Column("seq", sequence_type(), primary_key=True, autoincrement=True),
            sa.Column("message_id", text_type(MESSAGE_ID_CHARACTERS_MAX), nullable=False, unique=True),
            # To send: the message's topic, body, flag, queue, and all its properties as JSON [[name, value], ...].
            sa.Column("topic", text_type(_NAME), nullable=False),
            sa.Column("body", bytes_type(), nullable=False),
            sa.Column("flag", sa.Integer, nullable=False),
            sa.Column("queue_id", sa.Integer),
            sa.Column("properties", long_text_type(), nullable=False),
            sa.Column("born_timestamp_ms", sa.BigInteger),
            sa.Column("sharding_key", text_type(_QUEUE)),
            # When the broker gives it out: null at once, else by its delay or its time.
            sa.Column("deliver_ms", sa.BigInteger),
            sa.Column("status", text_type(_TINY), nullable=False),
            # How many groups have not yet confirmed it.
            sa.Column("pending_groups", sa.Integer, nullable=False),
            sa.Column("created_ms", sa.BigInteger, nullable=False),
            sa.Column("send_count", sa.Integer, nullable=False),
            # Null until a broker has answered. Place of the last send; null for what waits at a broker first.
            sa.Column("sent_ms", sa.BigInteger),
            sa.Column("broker_name", text_type(_NAME)),
            sa.Column("sent_queue_id", sa.Integer),
            sa.Column("queue_offset", sa.BigInteger),
            # The next time at which somebody may send it: the first time if sent_ms is null, else again.
            sa.Column("resend_ms", sa.BigInteger, nullable=False),
            # Whose turn it is to send; void when the lease has run out.
            sa.Column("claim_token", text_type(_SHORT)),
            sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
            # Set while it is on the manual list: nobody sends it.
            sa.Column("is_manual", sa.Boolean, nullable=False),
            sqlite_autoincrement=True,
        )
        self._index("stub", "look", "status", "is_manual", "resend_ms", "seq")
        # Partial indexes for unsent stubs, which are few, where the database supports them.
        unsent = self.stub.c.sent_ms.is_(None)
        self._index("stub", "unsent", "sent_ms", "seq", where=unsent)
        # The unsent stubs of a topic or key one after the other. PostgreSQL cannot seek behind a column that the
        # condition of the index fixes; for the others it has to be the first one.
        self._index("stub", "key", "topic", "sharding_key", "sent_ms", "seq", where=unsent, on=("postgresql",))
        behind_null = ("sent_ms", "topic", "sharding_key", "seq")
        self._index("stub", "unsent_key", *behind_null, where=unsent, on=("sqlite", "mysql", "mariadb"))
        self.stub_group: Final = self._table(
            "stub_group",
            sa.Column("message_id", text_type(MESSAGE_ID_CHARACTERS_MAX), primary_key=True),
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("confirmed_ms", sa.BigInteger),
        )
        self.log: Final = self._table(
            "log",
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("message_id", text_type(MESSAGE_ID_CHARACTERS_MAX), primary_key=True),
            sa.Column("broker_name", text_type(_NAME), nullable=False),
            sa.Column("topic", text_type(_QUEUE), nullable=False),
            sa.Column("queue_id", sa.Integer, nullable=False),
            sa.Column("queue_offset", sa.BigInteger, nullable=False),
            sa.Column("received_ms", sa.BigInteger, nullable=False),
            sa.Column("reconsume_times", sa.Integer, nullable=False),
            # The worker that has it now: null token, or a lease that has run out, is nobody.
            sa.Column("lease_token", text_type(_SHORT)),
            sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
            # Until then a failed message waits for its retry, and is not sent again.
            sa.Column("blocks_until_ms", sa.BigInteger, nullable=False),
            # It has failed for the last time: people decide.
            sa.Column("is_dead", sa.Boolean, nullable=False),
        )
        self.inbox: Final = self._table(
            "inbox",
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("message_id", text_type(MESSAGE_ID_CHARACTERS_MAX), primary_key=True),
            sa.Column("done_ms", sa.BigInteger, nullable=False),
            # The writer of the row: it separates the rows of one transaction from older ones.
            sa.Column("token", text_type(_SHORT), nullable=False),
            # Tells the message from another one with its id; null if a worker of version 1 wrote the row.
            sa.Column("fingerprint", text_type(_SHORT)),
        )
        self._index("inbox", "done", "done_ms")
        self.high_water: Final = self._table(
            "high_water",
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("broker_name", text_type(_NAME), primary_key=True),
            sa.Column("topic", text_type(_QUEUE), primary_key=True),
            sa.Column("queue_id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("queue_offset", sa.BigInteger, nullable=False),
        )
        self.batch: Final = self._table(
            "batch",
            sa.Column("query_id", text_type(_SHORT), primary_key=True),
            # One micro-batch may be written for several groups, and to several targets.
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("target", text_type(_SHORT), primary_key=True),
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("done_ms", sa.BigInteger, nullable=False),
            # Tells its messages from those of another batch of this number, which a set-back checkpoint brings.
            sa.Column("row_count", sa.BigInteger, nullable=False),
            sa.Column("digest", sa.BigInteger, nullable=False),
        )
        self.manual: Final = self._table(
            "manual",
            sa.Column("message_id", text_type(MESSAGE_ID_CHARACTERS_MAX), primary_key=True),
            # The group that failed; "" if sending did.
            sa.Column("group_name", text_type(_NAME), primary_key=True),
            sa.Column("reason", text_type(_TINY), primary_key=True),
            sa.Column("detail", long_text_type(), nullable=False),
            sa.Column("created_ms", sa.BigInteger, nullable=False),
            sa.Column("notified_ms", sa.BigInteger),
        )
        self.relay: Final = self._table(
            "relay",
            sa.Column("name", text_type(_TINY), primary_key=True),
            sa.Column("turns", sa.BigInteger, nullable=False),
        )
        self.schema_version: Final = self._table(
            "schema",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("applied_ms", sa.BigInteger, nullable=False),
        )

    def all(self) -> list[sa.Table]:
        """Every table of the kit, in the order in which they are created."""
        return [
            self.stub, self.stub_group, self.log, self.inbox, self.high_water, self.batch, self.manual, self.relay,
            self.schema_version,
        ]  # fmt: skip

    def _table(self, name: str, *columns: sa.Column[Any], **options: Any) -> sa.Table:
        # Transactions are what the kit stands on, and not every engine of MySQL has them.
        options |= {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        # One tree instead of two for each row, where rows are found by a key of several columns.
        if sum(column.primary_key for column in columns) > 1:
            options["sqlite_with_rowid"] = False
        return sa.Table(f"{self.prefix}{name}", self.metadata, *columns, schema=self.schema, **options)

    def _index(
        self,
        table: str,
        name: str,
        *columns: str,
        where: sa.ColumnElement[bool] | None = None,
        on: tuple[str, ...] = (),
    ) -> None:
        of: sa.Table = getattr(self, table)
        only: dict[str, Any] = {f"{dialect}_where": where for dialect in ("sqlite", "postgresql") if where is not None}
        index = sa.Index(f"ix_{self.prefix}{table}_{name}", *(of.c[column] for column in columns), **only)
        if on:
            index.ddl_if(callable_=lambda *_, dialect, **__: dialect.name in on)
            index.info["dialects"] = on


def indexes_of(table: sa.Table, dialect: str) -> list[sa.Index]:
    """The indexes that a table of the kit has in such a database, by name."""
    there = (index for index in table.indexes if dialect in index.info.get("dialects", (dialect,)))
    return sorted(there, key=lambda index: str(index.name))
