"""Real PostgreSQL, MariaDB and Redis for tests and harnesses: started when first asked for, gone with their process.

    server = servers.postgresql()
    if reason := server.missing():     # the programs or the client's package are not there
        ...
    with server.new_database() as name:
        engine = sqlalchemy.create_engine(server.url(name))

One server of each kind in each process that asks (a worker of pytest-xdist is one), its data in a directory of its own
below TMPDIR, fsync on. PostgreSQL and Redis listen on a Unix socket there, MariaDB on a loopback address of its own:
PyMySQL leaks its socket when it cannot connect to a Unix one, and tests that kill the server do that.
A forked child may use the URLs, but not start or end a server. Every server is below a `server_watch.py`, which ends it
even when this process is killed.

Started by root, PostgreSQL and MariaDB run as the users `postgres` and `mysql` of their packages.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

# How CI says that a missing server is no reason to skip.
REQUIRED = os.environ.get("RMQ_TEST_SERVERS") == "required"
START_S = 60.0
USER = "rmq"
# In every URL, so that tests can look for it where no password may be.
PASSWORD = "kept-out-of-logs"

_WATCH = Path(__file__).with_name("server_watch.py")
_POLL_S = 0.01


class ServerError(Exception):
    """A server that does not start or has ended; the end of its log."""


class Server(ABC):
    """One server. Methods that change its state are for the process that made it."""

    name: ClassVar[str]
    # Debian's package, its system user, and the Python package of the client.
    package: ClassVar[str]
    system_user: ClassVar[str | None]
    client: ClassVar[str]
    stop_signal: ClassVar[int]

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._watch: subprocess.Popen[str] | None = None
        self._directory: Path | None = None

    # -- what a kind of server says of itself ------------------------------------------------------------------------

    @abstractmethod
    def programs(self) -> list[Path | None]:
        """What must be installed; None for each program that is not."""

    @abstractmethod
    def url(self, database: str) -> str:
        """The address of a database, password included."""

    @abstractmethod
    def _initialise(self, directory: Path) -> None:
        """Make the data directory."""

    @abstractmethod
    def _command(self, directory: Path) -> list[str]:
        """How the server is started in the foreground."""

    @abstractmethod
    def _connect_once(self) -> None:
        """Raise the client's error while the server does not answer."""

    # -- life --------------------------------------------------------------------------------------------------------

    def missing(self) -> str | None:
        """Why this machine has no such server; None if it can be started."""
        if None in self.programs():
            return f"{self.name} is not installed: tools/test_servers.sh installs it"
        if importlib.util.find_spec(self.client) is None:
            return f"the Python package {self.client} is not installed"
        if (user := self._identity()) is not None:
            try:
                pwd.getpwnam(user)
            except KeyError:
                return f"{self.name} does not run as root, and there is no user {user}"
        return None

    @property
    def directory(self) -> Path:
        """Where data, socket and `log` are. The server has been started before."""
        if self._directory is None:
            raise ServerError(f"{self.name} has not been started")
        return self._directory

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers. Raises `ServerError`."""
        with self._lock:
            if self._watch is None:
                self._begin()
            if self._ask("status") == "running":
                return
            self._ask("start")
            deadline_s = time.monotonic() + START_S
            while True:
                try:
                    self._connect_once()
                    return
                except Exception as error:
                    if self._ask("status") == "ended":
                        raise ServerError(f"{self.name} ended at its start. {self._last_words()}") from error
                    if time.monotonic() > deadline_s:
                        raise ServerError(
                            f"{self.name} does not answer after {START_S:.0f} s. {self._last_words()}"
                        ) from error
                time.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes; none is left on return. Its data stay."""
        with self._lock:
            self._ask("kill")

    def stop(self) -> None:
        """End the server in order. Its data stay."""
        with self._lock:
            self._ask("stop")

    def restart(self) -> None:
        """`kill`, then `start`: what a power failure looks like to a client. Redis has forgotten everything then."""
        with self._lock:
            self.kill()
            self.start()

    def close(self) -> None:
        """End the server for good, and remove its directory. A later `start` begins with an empty one."""
        with self._lock:
            if self._watch is None or self._owner != os.getpid():
                return
            watch, self._watch, self._directory = self._watch, None, None
            with watch:
                assert watch.stdin is not None
                watch.stdin.close()

    def _begin(self) -> None:
        if reason := self.missing():
            raise ServerError(reason)
        directory = Path(tempfile.mkdtemp(prefix=f"rmq-{self.name}-"))
        user = self._identity()
        try:
            if user is not None:
                shutil.chown(directory, user, user)
            self._initialise(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._directory = directory
        self._watch = subprocess.Popen(
            [
                sys.executable, "-I", str(_WATCH), user or "-", str(int(self.stop_signal)), str(directory),
                *self._command(directory),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, umask=0o077,
        )  # fmt: skip
        atexit.register(self.close)

    def _ask(self, command: str) -> str:
        if self._owner != os.getpid():
            raise ServerError(f"{self.name} belongs to process {self._owner}: a forked child may only use its URLs")
        if self._watch is None:
            return "ended"
        assert self._watch.stdin is not None and self._watch.stdout is not None
        self._watch.stdin.write(f"{command}\n")
        self._watch.stdin.flush()
        if answer := self._watch.stdout.readline().strip():
            return answer
        raise ServerError(f"the watcher of {self.name} has ended")

    def _identity(self) -> str | None:
        return self.system_user if os.geteuid() == 0 else None

    def _run(self, command: list[str], directory: Path) -> None:
        """A program of the server that ends by itself. Raises `ServerError`."""
        user = self._identity()
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            user=user, group=user, extra_groups=None if user is None else [],
            env={**os.environ, "HOME": str(directory), "LC_ALL": "C"}, text=True, errors="replace",
        )  # fmt: skip
        if done.returncode:
            raise ServerError(f"{Path(command[0]).name} failed. {_end_of(done.stdout)}")

    def _last_words(self) -> str:
        return _end_of((self.directory / "log").read_text(errors="replace"))


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

    def _initialise(self, directory: Path) -> None:
        install, _ = self.programs()
        self._run([str(install), "--no-defaults", f"--datadir={directory / 'data'}", "--skip-name-resolve"], directory)
        (directory / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO {USER}@'%';\n"
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


def _end_of(log: str) -> str:
    return " | ".join(log.splitlines()[-5:])
