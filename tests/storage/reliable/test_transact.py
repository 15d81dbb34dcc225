"""Transactions that are tried again, on each kind of database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable import open_engine
from rmq_store.reliable.database.engine import ONLY_READS, resolve_reference, shared_engine
from rmq_store.reliable.database.transact import begin, is_transient, read, transact
from rmq_store.reliable.database.trouble import is_duplicate


@pytest.fixture
def numbers(engine: sa.Engine) -> Iterator[sa.Table]:
    table = sa.Table("numbers", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
                     sa.Column("value", sa.Integer, nullable=False))  # fmt: skip
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"number": 1, "value": 0}, {"number": 2, "value": 0}])
    yield table
    table.drop(engine)


def test_two_that_wait_for_each_other_both_succeed(engine: sa.Engine, numbers: sa.Table) -> None:
    """A deadlock ends one of them, which is tried again. (SQLite has one writer: the second waits.)"""
    tries = {1: 0, 2: 0}
    both_hold = threading.Barrier(2)

    def add(first: int, second: int) -> None:
        def work(connection: sa.Connection) -> None:
            tries[first] += 1
            for number in (first, second):
                statement = numbers.update().where(numbers.c.number == number)
                connection.execute(statement.values(value=numbers.c.value + 1))
                if number == first and tries[first] == 1 and engine.dialect.name != "sqlite":
                    both_hold.wait(30)

        transact(engine, work)

    threads = [threading.Thread(target=add, args=numbers) for numbers in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with engine.connect() as connection:
        assert connection.scalars(sa.select(numbers.c.value)).all() == [2, 2]
    assert sum(tries.values()) == (2 if engine.dialect.name == "sqlite" else 3)


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_a_statement_sees_what_was_committed_before_it_began(engine: sa.Engine, numbers: sa.Table) -> None:
    """Whatever level the engine has: an application's own has REPEATABLE READ on MariaDB, unless it says otherwise."""
    other = sa.create_engine(engine.url, isolation_level="REPEATABLE READ")
    with begin(other) as connection:
        assert connection.scalar(sa.select(numbers.c.value).where(numbers.c.number == 1)) == 0
        with engine.begin() as writer:
            writer.execute(numbers.update().values(value=7))
        assert connection.scalar(sa.select(numbers.c.value).where(numbers.c.number == 1)) == 7
    with other.connect() as connection:
        assert connection.get_isolation_level() == "REPEATABLE READ", "the level of the engine is as it was"
    other.dispose()


def test_what_the_work_raises_rolls_back_and_is_not_tried_again(engine: sa.Engine, numbers: sa.Table) -> None:
    tries = 0

    def work(connection: sa.Connection) -> None:
        nonlocal tries
        tries += 1
        connection.execute(numbers.update().values(value=9))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        transact(engine, work)
    with engine.connect() as connection:
        assert connection.scalars(sa.select(numbers.c.value)).all() == [0, 0]
    assert tries == 1


def test_only_a_key_that_is_there_is_a_duplicate(engine: sa.Engine, numbers: sa.Table) -> None:
    with pytest.raises(sa.exc.IntegrityError) as there, engine.begin() as connection:
        connection.execute(numbers.insert(), {"number": 1, "value": 0})
    with pytest.raises((sa.exc.IntegrityError, sa.exc.OperationalError)) as null, engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO numbers (number, value) VALUES (3, NULL)"))
    assert is_duplicate(there.value)
    assert not is_duplicate(null.value)  # type: ignore[arg-type]
    assert not is_transient(there.value)


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_a_database_that_refuses_connections_is_asked_again(engine: sa.Engine) -> None:
    away = open_engine(engine.url.set(host="127.0.0.1", port=1, query={}).render_as_string(hide_password=False))
    pauses: list[float] = []
    with pytest.raises(sa.exc.OperationalError):
        transact(away, lambda connection: None, tries=3, sleep=pauses.append)
    assert len(pauses) == 2
    away.dispose()


def test_a_read_of_sqlite_waits_for_no_writer(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
    with engine.begin() as writer:
        writer.execute(sa.text("INSERT INTO t VALUES (1)"))
        assert read(engine, lambda connection: connection.scalar(sa.text("SELECT count(*) FROM t"))) == 0
    assert read(engine, lambda connection: connection.scalar(sa.text("SELECT count(*) FROM t"))) == 1
    assert ONLY_READS not in engine.get_execution_options()


def test_a_transaction_of_sqlite_begins_as_a_writer(tmp_path: Path) -> None:
    """Else two that read first and write then would both fail."""
    engine = open_engine(f"sqlite:///{tmp_path / 'x.db'}", connect_args={"timeout": 0})
    with engine.begin():
        second = open_engine(f"sqlite:///{tmp_path / 'x.db'}")

        @sa.event.listens_for(second, "connect")
        def _impatient(connection: object, _record: object) -> None:
            connection.execute("PRAGMA busy_timeout = 0")  # type: ignore[attr-defined]

        with pytest.raises(sa.exc.OperationalError) as error, second.begin():
            pass
        assert is_transient(error.value)


def test_a_reference_is_resolved_and_never_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERS_DB", "sqlite:////data/orders.db")
    secret = tmp_path / "url"
    secret.write_text("postgresql://user:hunter2@host/db\nmore\n")
    assert resolve_reference("env:ORDERS_DB") == "sqlite:////data/orders.db"
    assert resolve_reference(f"file:{secret}") == "postgresql://user:hunter2@host/db"
    for reference, why in (("env:NOT_SET", "NOT_SET"), (f"file:{tmp_path}/none", "none"), ("", "expected"),
                           ("oracle://u:hunter2@h/d", "'oracle' is not supported"), ("hunter2", "no URL")):  # fmt: skip
        with pytest.raises(UsageError, match=why) as error:
            open_engine(reference)
        assert "hunter2" not in str(error.value)


def test_workers_of_one_process_share_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERS_DB", f"sqlite:///{tmp_path / 'x.db'}")
    assert shared_engine("env:ORDERS_DB") is shared_engine("env:ORDERS_DB")


def test_a_reference_that_leads_elsewhere_now_has_another_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A password that was changed: a driver that runs for months would go on with the old one."""
    secret = tmp_path / "url"
    secret.write_text(f"sqlite:///{tmp_path / 'old.db'}\n")
    before = shared_engine(f"file:{secret}")
    secret.write_text(f"sqlite:///{tmp_path / 'new.db'}\n")
    assert shared_engine(f"file:{secret}").url.database == str(tmp_path / "new.db") != before.url.database
