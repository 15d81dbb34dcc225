"""Real servers for tests and harnesses: PostgreSQL (also behind PgBouncer), MariaDB, Redis. They are started when first
asked for, and gone with their process.

    server = servers.postgresql()
    if reason := server.missing():     # the programs or the client's package are not there
        ...
    with server.new_database() as name:
        engine = sqlalchemy.create_engine(server.url(name))

One server of each kind in each process that asks (a worker of pytest-xdist is one), its data in a directory of its own
below TMPDIR, in tests in memory (tests/conftest.py), fsync on. PostgreSQL and Redis listen on a Unix socket there,
MariaDB on a loopback address of its own: PyMySQL leaks its socket when it cannot connect to a Unix one, and tests that
kill the server do that.
A forked child may use the URLs, but not start or end a server. Every server is below a `server_watch.py`, which ends it
even when this process is killed.

Started by root, PostgreSQL and MariaDB run as the users `postgres` and `mysql` of their packages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from helpers.server_process import Server, ServerError

__all__ = [
    "MariaDB", "PgBouncer", "PostgreSQL", "Redis", "Server", "ServerError",
    "mariadb", "pgbouncer", "postgresql", "redis",
]  # fmt: skip

# How CI says that a missing server is no reason to skip.
REQUIRED = os.environ.get("RMQ_TEST_SERVERS") == "required"
USER = "rmq"
APPLICATION = "app"
# In every URL, so that tests can look for it where no password may be.
PASSWORD = "kept-out-of-logs"


class DatabaseServer(Server):
    """A server of databases that are made and dropped."""

    # SQLAlchemy's name of dialect and driver.
    driver: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of an empty database for a `with` block; the server runs then, even if the last user killed it.

        Connections that are still open afterwards are ended by the server.
        """
        self.start()
        name = self._take_database()
        try:
            yield name
        finally:
            self.start()
            self._give_database(name)

    @abstractmethod
    def application_url(self, database: str) -> str:
        """As `url`, of a user without the rights of an administrator."""

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """The server runs and refuses to write, as behind a fail-over, in a `with` block."""
        self._set_read_only(True)
        try:
            yield
        finally:
            self._set_read_only(False)

    @abstractmethod
    def _set_read_only(self, on: bool) -> None: ...

    @abstractmethod
    def _take_database(self) -> str: ...

    @abstractmethod
    def _give_database(self, name: str) -> None: ...


class PostgreSQL(DatabaseServer):
    """`url` is for psycopg 3, whose URLs serve both kinds of engines."""

    name = "postgresql"
    package = "postgresql"
    system_user = "postgres"
    client = "psycopg"
    # An immediate shutdown would be SIGQUIT; this one ends the sessions of clients and writes a checkpoint.
    stop_signal = signal.SIGINT
    driver = "postgresql+psycopg"

    def __init__(self) -> None:
        super().__init__()
        # To create a database takes longer than to empty one.
        self._free: list[str] = []

    def programs(self) -> list[Path | None]:
        return [_postgresql_program("initdb"), _postgresql_program("postgres")]

    def url(self, database: str, driver: str = driver) -> str:
        return f"{driver}://{USER}:{PASSWORD}@/{database}?host={self.directory}"

    def application_url(self, database: str) -> str:
        return self.url(database)

    def _set_read_only(self, on: bool) -> None:
        with self._connect("postgres") as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
            connection.execute("SELECT pg_reload_conf()")
        # Sessions read it when they are told to, and new ones when the server has.
        while self._is_read_only() != on:
            time.sleep(0.01)

    def _is_read_only(self) -> bool:
        with self._connect("postgres") as connection:
            return bool(connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",))

    def _initialise(self, directory: Path) -> None:
        initdb, _ = self.programs()
        # Nothing of this is worth waiting for the disk; the server itself has fsync on.
        settings = ["--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run([str(initdb), f"--pgdata={directory / 'data'}", *settings], directory)

    def _command(self, directory: Path) -> list[str]:
        _, postgres = self.programs()
        settings = {"listen_addresses": "", "unix_socket_directories": str(directory), "shared_buffers": "32MB"}
        return [str(postgres), "-D", str(directory / "data"), *(f"--{name}={v}" for name, v in settings.items())]

    def _connect(self, database: str):  # type: ignore[no-untyped-def]
        import psycopg

        return psycopg.connect(host=str(self.directory), user=USER, dbname=database, autocommit=True)

    def _connect_once(self) -> None:
        self._connect("postgres").close()

    def _take_database(self) -> str:
        if self._free:
            return self._free.pop()
        name = f"test{next(self._numbers)}"
        with self._connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def _give_database(self, name: str) -> None:
        from psycopg import sql

        with self._connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            schemas = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
            ).fetchall()
            for (schema,) in schemas:
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def close(self) -> None:
        super().close()
        self._free.clear()


class PgBouncer(Server):
    """Before `PostgreSQL`, in transaction mode, with few connections to it: each transaction may get another one."""

    name = "pgbouncer"
    package = "pgbouncer"
    # It refuses to run as root; its package has no user of its own.
    system_user = "postgres"
    client = "psycopg"
    stop_signal = signal.SIGINT
    port = 6432

    def programs(self) -> list[Path | None]:
        return [_program("pgbouncer")]

    def url(self, database: str, driver: str = PostgreSQL.driver) -> str:
        return f"{driver}://{USER}:{PASSWORD}@/{database}?host={self.directory}&port={self.port}"

    def start(self) -> None:
        postgresql().start()
        super().start()

    def _initialise(self, directory: Path) -> None:
        (directory / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={postgresql().directory}\n[pgbouncer]\npool_mode = transaction\n"
            f"unix_socket_dir = {directory}\nlisten_port = {self.port}\nlisten_addr =\n"
            f"auth_type = trust\nauth_file = {directory / 'users.txt'}\ndefault_pool_size = 4\nmax_client_conn = 200\n"
        )

    def _command(self, directory: Path) -> list[str]:
        (program,) = self.programs()
        return [str(program), str(directory / "pgbouncer.ini")]

    def _connect_once(self) -> None:
        import psycopg

        psycopg.connect(
            host=str(self.directory), port=self.port, user=USER, dbname="postgres", prepare_threshold=None
        ).close()


class MariaDB(DatabaseServer):
    """As released: databases are latin1 and compare without case unless a table says otherwise."""

    name = "mariadb"
    package = "mariadb-server"
    system_user = "mysql"
    client = "pymysql"
    stop_signal = signal.SIGTERM
    driver = "mysql+pymysql"
    # Not one of those that the kernel gives away.
    port = 23306

    def __init__(self) -> None:
        super().__init__()
        # All of 127.0.0.0/8 is loopback, so nobody else takes the address while the server is down.
        self.host = ".".join(["127", *(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))])

    def programs(self) -> list[Path | None]:
        return [_program("mariadb-install-db"), _program("mariadbd")]

    def url(self, database: str, driver: str = driver) -> str:
        return f"{driver}://{USER}:{PASSWORD}@{self.host}:{self.port}/{database}"

    def application_url(self, database: str) -> str:
        return self.url(database).replace(f"{USER}:", f"{APPLICATION}:")

    def _set_read_only(self, on: bool) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL read_only = {int(on)}")

    def _initialise(self, directory: Path) -> None:
        install, _ = self.programs()
        self._run([str(install), "--no-defaults", f"--datadir={directory / 'data'}", "--skip-name-resolve"], directory)
        (directory / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO {USER}@'%';\n"
            # An administrator may write to a server that only reads.
            f"CREATE USER IF NOT EXISTS {APPLICATION}@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON `test%`.* TO {APPLICATION}@'%';\n"
        )

    def _command(self, directory: Path) -> list[str]:
        _, mariadbd = self.programs()
        return [
            str(mariadbd), "--no-defaults", f"--datadir={directory / 'data'}", f"--tmpdir={directory}",
            f"--init-file={directory / 'users.sql'}", f"--pid-file={directory / 'pid'}",
            f"--socket={directory / 'socket'}", f"--bind-address={self.host}", f"--port={self.port}",
            "--skip-name-resolve", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=48M",
        ]  # fmt: skip

    def _connect(self):  # type: ignore[no-untyped-def]
        import pymysql

        return pymysql.connect(host=self.host, port=self.port, user=USER, password=PASSWORD, autocommit=True)

    def _connect_once(self) -> None:
        self._connect().close()

    def _take_database(self) -> str:
        name = f"test{next(self._numbers)}"
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name

    def _give_database(self, name: str) -> None:
        import pymysql

        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (session,) in cursor.fetchall():
                # It may have ended in between.
                with contextlib.suppress(pymysql.err.OperationalError):
                    cursor.execute(f"KILL {session}")
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")


class Redis(Server):
    """Nothing on disk: a restart forgets everything. A "database" is a number below 16."""

    name = "redis"
    package = "redis-server"
    system_user = None
    client = "redis"
    stop_signal = signal.SIGTERM

    def programs(self) -> list[Path | None]:
        return [_program("redis-server")]

    def url(self, database: str = "0") -> str:
        return f"unix://:{PASSWORD}@{self.directory / 'socket'}?db={database}"

    def flush(self) -> None:
        """Forget all keys of all databases."""
        import redis

        with redis.Redis.from_url(self.url()) as client:
            client.flushall()

    def _initialise(self, directory: Path) -> None:
        """Nothing to make."""

    def _command(self, directory: Path) -> list[str]:
        (server,) = self.programs()
        return [
            str(server), "--port", "0", "--unixsocket", str(directory / "socket"), "--requirepass", PASSWORD,
            "--save", "", "--appendonly", "no", "--dir", str(directory),
        ]  # fmt: skip

    def _connect_once(self) -> None:
        import redis

        with redis.Redis.from_url(self.url()) as client:
            client.ping()


@functools.cache
def postgresql() -> PostgreSQL:
    """The PostgreSQL server of this process, started or not."""
    return PostgreSQL()


@functools.cache
def pgbouncer() -> PgBouncer:
    """The pooler of this process, started or not."""
    return PgBouncer()


@functools.cache
def mariadb() -> MariaDB:
    """The MariaDB server of this process, started or not."""
    return MariaDB()


@functools.cache
def redis() -> Redis:
    """The Redis server of this process, started or not."""
    return Redis()


def _program(name: str) -> Path | None:
    """By PATH, or where Debian puts servers."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)


def _postgresql_program(name: str) -> Path | None:
    """The newest of Debian's versions, none of which is on PATH; elsewhere by PATH."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / name).exists()]
    if versions:
        return max(versions, key=lambda path: float(path.parent.name)) / name
    return _program(name)
