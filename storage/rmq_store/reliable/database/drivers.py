"""The drivers that the kit works with, and their options: everything that depends on the name of a driver.

    database          engine (open_engine)     AsyncConnection, AsyncSession (Outbox.add by run_sync)
    SQLite            pysqlite                 aiosqlite
    PostgreSQL        psycopg, psycopg2        psycopg, asyncpg
    MariaDB, MySQL    pymysql                  aiomysql

Another driver is refused before anything is written: each one says in its own way whether a transaction is open, what
an error means, and how bytes are written.

Defaults of a URL's options, which any URL may set otherwise:

    prepare_threshold    none   psycopg prepares statements by itself, and a pooler in transaction mode (PgBouncer)
                                would run them at servers that do not know them
    connect_timeout      10 s   a server that never answers
    keepalives_..., tcp_user_timeout    30 s    a server that has gone without a word
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import UsageError

SYNC: Final = {
    "sqlite": ("pysqlite",),
    "postgresql": ("psycopg", "psycopg2"),
    "mysql": ("pymysql",),
    "mariadb": ("pymysql",),
}
ASYNC: Final = {
    "sqlite": ("aiosqlite",),
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("aiomysql",),
    "mariadb": ("aiomysql",),
}

CONNECT_TIMEOUT_S: Final = 10
SILENCE_S_MAX: Final = 30

_KEEPALIVE_IDLE_S: Final = 10
_KEEPALIVE_INTERVAL_S: Final = 5
_KEEPALIVE_COUNT: Final = 4

_LIBPQ: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": _KEEPALIVE_IDLE_S,
    "keepalives_interval": _KEEPALIVE_INTERVAL_S,
    "keepalives_count": _KEEPALIVE_COUNT,
    "tcp_user_timeout": SILENCE_S_MAX * 1000,
}
_LIBPQ_IDLE: Final = 0
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "psycopg": {**_LIBPQ, "prepare_threshold": None},
    "psycopg2": _LIBPQ,
    # PyMySQL's connect_timeout ends before the server's greeting, so it reads with one, too; see `watch_sockets`.
    "pymysql": {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": CONNECT_TIMEOUT_S},
}


def of_url(url: sa.URL) -> tuple[sa.URL, dict[str, Any]]:
    """The URL with its driver, and the arguments of each connection: our defaults, without what the URL sets itself.
    Options that the driver wants as numbers become numbers.

    Raises:
        UsageError: the database or driver is not supported, an option has an invalid value, or would commit each
            statement by itself.
    """
    name = url.get_backend_name()
    if name not in SYNC:
        raise UsageError(f"the database {name!r} is not supported: {', '.join(SYNC)} are")
    if url.drivername == name and name != "sqlite":  # SQLAlchemy's own choice is ours
        url = url.set(drivername=f"{name}+{SYNC[name][0]}")
    driver = url.get_driver_name()
    if driver not in SYNC[name]:
        is_async = driver in ASYNC[name] or driver.endswith("_async")
        why = "is asynchronous, and the kit's own engine is not" if is_async else "is not supported"
        more = "; an AsyncSession of your own may keep it, and calls outbox.add by run_sync" if is_async else ""
        raise UsageError(f"the driver {driver} of {name} {why}: {_names(SYNC, name)} in the URL{more}")
    if "autocommit" in url.query:
        raise UsageError("the database: autocommit in the URL commits each statement by itself; leave it out")
    arguments = {key: value for key, value in _DEFAULTS.get(driver, {}).items() if key not in url.query}
    if driver == "psycopg" and "prepare_threshold" in url.query:
        arguments["prepare_threshold"] = _threshold(url.query["prepare_threshold"])
        url = url.difference_update_query(["prepare_threshold"])
    return url, arguments


def require_supported(dialect: sa.Dialect) -> None:
    """Refuse the driver of an engine or connection that the kit does not know.

    Raises:
        UsageError: it names the drivers that work.
    """
    name, driver = dialect.name, dialect.driver
    if driver in (ASYNC if dialect.is_async else SYNC).get(name, ()):
        return
    raise UsageError(
        f"the driver {driver} of {name} is not supported: {_names(SYNC, name)}, or for an AsyncEngine "
        f"{_names(ASYNC, name)}"
    )


def require_engine(engine: object, what: str = "engine") -> sa.Engine:
    """The engine, which is synchronous and has a driver that the kit knows.

    Raises:
        UsageError: it is not one.
    """
    if not isinstance(engine, sa.Engine):
        raise UsageError(
            f"{what} is a {type(engine).__name__}: a sqlalchemy.Engine is expected, as open_engine makes it. Beside an "
            "AsyncEngine give a second one, for the kit's own short transactions"
        )
    if engine.dialect.is_async:
        names = _names(SYNC, engine.dialect.name)
        raise UsageError(f"{what} has the asynchronous driver {engine.dialect.driver}: {names}")
    require_supported(engine.dialect)
    return engine


def commits_each_statement(connection: sa.Connection) -> bool:
    """True if the connection is in no transaction that its owner must end (AUTOCOMMIT), as the driver says without
    asking the server. Each driver, and its async twin, says it in another way.
    """
    driver: Any = connection.connection.driver_connection
    name, kind = connection.dialect.name, connection.dialect.driver
    if name == "sqlite":
        # Python's module begins a transaction before the first write, unless it has no isolation level.
        return driver.isolation_level is None and not driver.in_transaction
    if kind == "asyncpg":
        # SQLAlchemy begins the transaction before the first statement, and knows whether it will.
        adapted: Any = connection.connection.dbapi_connection
        return bool(adapted.autocommit) and not driver.is_in_transaction()
    if name == "postgresql":
        # The number of libpq: an enumeration in psycopg, a plain number in psycopg2.
        return bool(driver.autocommit) and int(driver.info.transaction_status) == _LIBPQ_IDLE
    return bool(driver.get_autocommit()) and not driver.server_status & 1


def watch_sockets(engine: sa.Engine, *, has_read_timeout: bool) -> None:
    """Let connections of PyMySQL notice a server that has gone without a word; libpq has options for that. Statements
    may take as long as they like, unless the application has given a read_timeout.
    """
    if engine.dialect.driver != "pymysql":
        return

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        if not has_read_timeout:
            connection._read_timeout = None
        own = getattr(connection, "_sock", None)
        if not isinstance(own, socket.socket) or own.family not in (socket.AF_INET, socket.AF_INET6):
            return
        for name, value in (
            ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
            ("TCP_USER_TIMEOUT", SILENCE_S_MAX * 1000),
        ):
            # Not every system has each of them.
            with contextlib.suppress(AttributeError, OSError):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _threshold(text: str | tuple[str, ...]) -> int | None:
    if text == "none" or text == "None":
        return None
    if isinstance(text, str) and text.isascii() and text.isdecimal():
        return int(text)
    raise UsageError(f"the database: prepare_threshold={text!r} in the URL: a number or none is expected")


def _names(drivers: dict[str, tuple[str, ...]], name: str) -> str:
    known = {name: drivers[name]} if name in drivers else drivers
    return "use " + ", ".join(f"{kind}+{driver}" for kind, some in known.items() for driver in some)
