"""The sending half on each database: an engine with the tables, and a store to send to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import servers
from rmq_store.reliable import Tables, open_engine


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/business.db"
        return
    server = servers.postgresql() if request.param == "postgresql" else servers.mariadb()
    if reason := server.missing():
        assert not servers.REQUIRED, reason
        pytest.skip(reason)
    with server.new_database() as name:
        yield server.url(name)


@pytest.fixture
def engine(database_url: str, tables: Tables) -> Iterator[sa.Engine]:
    """An engine of a database that has the tables, and `orders` of the application."""
    made = open_engine(database_url)
    if "orders" not in tables.metadata.tables:
        sa.Table("orders", tables.metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("what", sa.Text))
    tables.metadata.create_all(made)
    yield made
    made.dispose()
