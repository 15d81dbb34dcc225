"""The sending half on each database: an engine with the tables, and a store to send to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from helpers import servers
from helpers.patient import PATIENT_WITHOUT_RETRIES
from rmq_store import Store
from rmq_store.client import Producer
from rmq_store.reliable import Tables, open_engine

from .cluster import FailingCluster, MovedClock, World


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


@pytest.fixture
def world(engine: sa.Engine, tables: Tables, tmp_path: Path) -> Iterator[World]:
    """A database with the tables, a store, a producer of it, and a clock that stands still."""
    with Store.open(tmp_path / "store", create=True) as store:
        cluster = FailingCluster(store)
        with Producer("pg_orders", cluster, PATIENT_WITHOUT_RETRIES) as producer:
            made = World(engine, tables, store, cluster, producer, MovedClock())
            yield made
            for outbox in made.outboxes:
                outbox.close()
