"""Fixtures of databases: `database_url` and `engine` for each kind of database, `redis_url`.

A test that takes `database_url`, `engine`, `database_server` or `second_database_url` runs once for each of SQLite,
PostgreSQL and MariaDB, each time with databases that are empty and its own. For one kind only:

    @pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)

Where a server is not installed its tests are skipped, and say so. In CI (RMQ_TEST_SERVERS=required) they fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers import servers
from helpers.server_process import Server

if TYPE_CHECKING:
    from sqlalchemy import Engine

KINDS = ("sqlite", "postgresql", "mariadb")


def require(server: Server) -> None:
    """Skip the test, or fail it in CI, if this machine has no such server."""
    if reason := server.missing():
        if servers.REQUIRED:
            pytest.fail(f"RMQ_TEST_SERVERS=required, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def postgresql() -> servers.PostgreSQL:
    """The running server."""
    require(servers.postgresql())
    servers.postgresql().start()
    return servers.postgresql()


@pytest.fixture
def pgbouncer(postgresql: servers.PostgreSQL) -> servers.PgBouncer:
    """The running pooler."""
    require(servers.pgbouncer())
    servers.pgbouncer().start()
    return servers.pgbouncer()


@pytest.fixture
def mariadb() -> servers.MariaDB:
    """The running server."""
    require(servers.mariadb())
    servers.mariadb().start()
    return servers.mariadb()


@pytest.fixture
def redis_server() -> servers.Redis:
    """The running server, empty."""
    require(servers.redis())
    servers.redis().start()
    servers.redis().flush()
    return servers.redis()


@pytest.fixture
def redis_url(redis_server: servers.Redis) -> str:
    """A Redis without keys."""
    return redis_server.url()


@pytest.fixture(params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """`sqlite`, `postgresql` or `mariadb`."""
    kind: str = request.param
    return kind


@pytest.fixture
def database_server(database_kind: str) -> servers.DatabaseServer | None:
    """Whom to kill and restart; SQLite has no server."""
    if database_kind == "sqlite":
        return None
    server = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}[database_kind]()
    require(server)
    return server


@pytest.fixture
def database_url(database_server: servers.DatabaseServer | None, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    yield from _fresh(database_server, tmp_path / "database.sqlite")


@pytest.fixture
def second_database_url(database_server: servers.DatabaseServer | None, tmp_path: Path) -> Iterator[str]:
    """Another empty database of the same kind, on the same server."""
    yield from _fresh(database_server, tmp_path / "second_database.sqlite")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A plain engine on `database_url`, as an application would make it."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(database_url)
    yield engine
    engine.dispose()


def _fresh(server: servers.DatabaseServer | None, file: Path) -> Iterator[str]:
    if server is None:
        yield f"sqlite:///{file}"
        return
    with ExitStack() as ends:
        yield server.url(ends.enter_context(server.new_database()))
