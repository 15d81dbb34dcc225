"""Engines: opened by reference, so that nobody writes a password down, and set up for the kit if they are of SQLite.

    env:NAME             the URL is in the environment variable NAME
    file:/path           the URL is the first line of a file
    postgresql+psycopg://..., mysql+pymysql://..., sqlite:////data/orders.db      the URL itself

An engine that an application has made works, too, if its driver is one of `drivers`. An engine of SQLite should begin
transactions as `set_up_sqlite` says.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable.database import drivers

SQLITE_BUSY_TIMEOUT_MS: Final = 30_000

ONLY_READS: Final = "rmq_only_reads"
"""Execution option of a connection whose transaction writes nothing."""

_engines: dict[tuple[int, str], sa.Engine] = {}
_engines_lock = threading.Lock()


def resolve_reference(reference: str, what: str = "the database", holds: str = "the URL") -> str:
    """The URL that a reference names, or the other value that `holds` describes.

    Raises:
        UsageError: the variable or file is missing or empty. The error text never has the URL.
    """
    if not isinstance(reference, str) or not reference:
        raise UsageError(f"{what}: {holds}, env:NAME or file:/path is expected")
    if reference.startswith("env:"):
        name = reference.removeprefix("env:")
        url = os.environ.get(name, "")
        if not url:
            raise UsageError(f"{what}: the environment variable {name!r} is not set; it must hold {holds}")
        return url
    if reference.startswith("file:"):
        path = Path(reference.removeprefix("file:"))
        try:
            url = path.read_text(encoding="utf-8").partition("\n")[0].strip()
        except OSError as error:
            raise UsageError(f"{what}: {path}: {error.strerror}; its first line must be {holds}") from error
        except UnicodeDecodeError:
            # The error itself has the bytes.
            raise UsageError(f"{what}: {path} is no text; its first line must be {holds}") from None
        if not url:
            raise UsageError(f"{what}: {path} is empty; its first line must be {holds}")
        return url
    return reference


def open_engine(reference: str, **options: Any) -> sa.Engine:
    """A new engine; `options` go to `sqlalchemy.create_engine`. It tests connections before use, and sets up SQLite by
    `set_up_sqlite`. Options of the driver are in the URL (`?connect_timeout=5&prepare_threshold=5`); `drivers` has the
    defaults. A forked child opens connections of its own.

    Raises:
        UsageError: the reference cannot be resolved, the URL is invalid, its database or driver is not supported, or an
            option has an invalid value.
    """
    url = resolve_reference(reference)
    try:
        parsed = sa.make_url(url)
        dialect = parsed.get_backend_name()
    except sa.exc.ArgumentError as error:
        # SQLAlchemy repeats the text, and there may be a password in it.
        raise UsageError("the database: this is no URL, such as postgresql+psycopg://user@host/name") from error
    parsed, connect_args = drivers.of_url(parsed)
    settings: dict[str, Any] = {**_defaults(dialect), **options}
    given: dict[str, Any] = options.get("connect_args", {})
    settings["connect_args"] = {**connect_args, **given}
    try:
        engine = sa.create_engine(parsed, **settings)
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise UsageError(f"the driver of {parsed.drivername} is missing: {error}") from error
    except ValueError as error:  # of a number in the URL
        raise UsageError(f"the database: an option in the URL has an invalid value: {error}") from error
    if dialect == "sqlite":
        set_up_sqlite(engine)
    drivers.watch_sockets(engine, has_read_timeout="read_timeout" in {**parsed.query, **given})
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine


def _defaults(dialect: str) -> dict[str, Any]:
    if dialect == "sqlite":
        return {}
    # The level at which a statement sees what was committed before it began: `transact` needs it. Connections for the
    # twenty threads of a consumer and what runs beside them.
    return {"pool_pre_ping": True, "isolation_level": "READ COMMITTED", "pool_size": 20, "max_overflow": 20}


def shared_engine(reference: str) -> sa.Engine:
    """The engine of this process for a reference, opened at the first call. Workers get only the reference.

    If the reference resolves to another URL than before (most often because of a new password), it gets a new engine.
    Raises as `open_engine`.
    """
    url = resolve_reference(reference)
    with _engines_lock:
        if (os.getpid(), url) not in _engines:
            _engines[os.getpid(), url] = open_engine(url)
        return _engines[os.getpid(), url]


def set_up_sqlite(engine: sa.Engine) -> None:
    """Make each connection durable (WAL, synchronous=FULL), and let it wait 30 s for a lock. A transaction begins with
    BEGIN IMMEDIATE: Python's module would begin it later, and could fail with "database is locked". A transaction that
    only reads (`transact.read`) does not wait for writers.
    """

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        # Before the mode of the journal, which needs a lock itself.
        cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        only_reads = connection.get_execution_options().get(ONLY_READS, False)
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")
