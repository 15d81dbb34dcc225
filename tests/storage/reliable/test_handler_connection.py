"""What a handler may do with its connection (`inbox/handler_connection.py`), and what follows if it does more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from helpers.consuming import KINDS, Consumer, Databases, message, write_effect
from rmq_store.client import MessageExt
from rmq_store.reliable import ConsumeCounts, Tables
from rmq_store.reliable.inbox.handler_connection import refused_statement


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def cg(request: pytest.FixtureRequest, databases: Databases, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(databases.empty(request.param), tables)
    with consumer.once:
        yield consumer


on_mariadb = pytest.mark.parametrize("cg", ["mariadb"], indirect=True)


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    number: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str] = mapped_column(sa.String(50))


def driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


REFUSED: dict[str, Callable[[sa.Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
    "the transaction's commit": lambda connection: connection.get_transaction().commit(),  # type: ignore[union-attr]
    "COMMIT": lambda connection: connection.execute(sa.text("/* so */ commit")),
    "ROLLBACK": lambda connection: connection.execute(sa.text("ROLLBACK")),
    "BEGIN": lambda connection: connection.exec_driver_sql("BEGIN"),
}


@pytest.mark.parametrize("hidden", [False, True], ids=["raised", "caught"])
@pytest.mark.parametrize("way", REFUSED)
def test_a_handler_that_ends_its_transaction_is_refused_before_it_does(
    cg: Consumer, caplog: pytest.LogCaptureFixture, way: str, hidden: bool
) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        try:
            REFUSED[way](connection)
        except Exception:
            if not hidden:
                raise

    assert cg.consume(message(), handler=handler) == 0
    assert (cg.effects(), cg.done(), cg.manual()) == ([], set(), set()), "nothing was committed"
    assert "HandlerTransactionError" in caplog.text
    assert [row["lease_token"] for row in cg.log()] == [None], "it is retried"
    assert cg.consume(message(reconsume_times=1)) == 1, "the connection went back to the pool as it was"
    assert cg.effects() == ["1"]


def test_a_handler_cannot_begin_a_transaction(cg: Consumer) -> None:
    """SQLAlchemy itself refuses that: there is one."""
    assert cg.consume(message(), handler=lambda connection, one: connection.begin()) == 0
    assert cg.once.counts() == ConsumeCounts(failed=1)


@on_mariadb
def test_ddl_that_commits_by_itself_is_refused(cg: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        connection.execute(sa.text("CREATE TABLE made_by_handler (a INT)"))

    assert cg.consume(message(), handler=handler) == 0
    assert "the statement CREATE TABLE" in caplog.text
    assert (cg.effects(), cg.done(), cg.manual()) == ([], set(), set())
    assert not sa.inspect(cg.engine).has_table("made_by_handler")


@pytest.mark.parametrize("cg", ["sqlite", "postgresql"], indirect=True)
def test_ddl_that_belongs_to_the_transaction_is_allowed_and_rolled_back_with_it(cg: Consumer) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        connection.execute(sa.text("CREATE TABLE made_by_handler (a INT)"))
        raise RuntimeError("boom")

    assert cg.consume(message(), handler=handler) == 0
    assert not sa.inspect(cg.engine).has_table("made_by_handler")


def test_a_commit_behind_the_connection_is_found_and_in_doubt(cg: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        driver(connection).commit()

    assert cg.consume(message(), handler=handler) == 0
    assert "TransactionEndedError" in caplog.text
    assert cg.manual() == {("M1", "in_doubt")}
    assert cg.effects() == ["1"], "the part that it committed"
    assert cg.consume(message(reconsume_times=1)) == 1, "recognised: its inbox row was committed, too"
    assert cg.effects() == ["1"]


def test_a_rollback_behind_the_connection_is_found_and_in_doubt(cg: Consumer) -> None:
    """SQLite commits each statement that follows it."""

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        driver(connection).rollback()

    assert cg.consume(message(), handler=handler) == 0
    assert (cg.effects(), cg.done(), cg.manual()) == ([], set(), {("M1", "in_doubt")})
    assert cg.consume(message(reconsume_times=1)) == 1


@pytest.mark.parametrize("mode", ["create_savepoint", "conditional_savepoint"])
def test_savepoints_and_sessions_of_the_handler_are_allowed(cg: Consumer, mode: Any) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        with connection.begin_nested() as undone:
            write_effect(connection, one)
            undone.rollback()
        with connection.begin_nested():
            write_effect(connection, one)
        with Session(bind=connection, join_transaction_mode=mode) as session:
            session.add(Effect(body="session"))
            session.commit()
            session.add(Effect(body="gone"))
            session.rollback()

    assert cg.consume(message(), handler=handler) == 1
    assert sorted(cg.effects()) == ["1", "session"]


def test_a_session_that_releases_the_savepoint_of_the_kit_is_in_doubt(cg: Consumer) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        with Session(bind=connection, join_transaction_mode="control_fully") as session:
            session.add(Effect(body="session"))
            session.commit()

    assert cg.consume(message(), handler=handler) == 0
    assert (cg.effects(), cg.done(), cg.manual()) == ([], set(), {("M1", "in_doubt")})


@pytest.mark.parametrize("cg", ["postgresql"], indirect=True)
def test_an_error_of_the_database_that_the_handler_hides_is_an_ordinary_failure(
    cg: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        with pytest.raises(sa.exc.ProgrammingError):
            connection.execute(sa.text("SELECT * FROM nowhere"))

    assert cg.consume(message(), handler=handler) == 0
    assert "HandlerTransactionError" not in caplog.text
    assert (cg.effects(), cg.manual()) == ([], set())


@on_mariadb
@pytest.mark.parametrize("hidden_by", ["nothing", "a savepoint", "the handler"])
def test_a_deadlock_in_the_handler_is_tried_again_although_it_is_hidden(cg: Consumer, hidden_by: str) -> None:
    """MariaDB rolls the whole transaction back; the savepoint that is gone then is no fault of the handler."""
    with cg.engine.begin() as connection:
        for body in ("a", "b"):
            connection.execute(sa.text("INSERT INTO effects (body) VALUES (:body)"), {"body": body})
    first, second = sorted(row["number"] for row in cg.rows(sa.table("effects", sa.column("number"))))
    tries: list[int] = []

    def update(connection: sa.Connection, number: int) -> None:
        connection.execute(sa.text("UPDATE effects SET body = 'x' WHERE number = :number"), {"number": number})

    def deadlock(connection: sa.Connection) -> None:
        from helpers.consuming import Worker

        with cg.engine.connect() as other, other.begin():
            other.execute(sa.text("INSERT INTO rmq_relay (name, turns) VALUES ('x', 1)"))
            # The other one has changed more, so InnoDB chooses this transaction.
            other.execute(sa.text("INSERT INTO effects (body) SELECT 'much' FROM seq_1_to_50"))
            update(other, second)
            update(connection, first)
            waiting = Worker(lambda: update(other, first))
            try:
                update(connection, second)
            finally:
                waiting.outcome()
                other.rollback()

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        tries.append(1)
        write_effect(connection, one)
        if len(tries) > 1:
            return
        if hidden_by == "a savepoint":
            with connection.begin_nested():
                deadlock(connection)
        elif hidden_by == "the handler":
            try:
                deadlock(connection)
            except sa.exc.OperationalError:
                pass
        else:
            deadlock(connection)

    assert cg.consume(message(), handler=handler) == 1
    assert len(tries) == 2
    assert cg.effects().count("1") == 1
    assert cg.manual() == set()


STATEMENTS = {
    "COMMIT": "COMMIT",
    "  commit work": "COMMIT WORK",
    "-- so\ncommit": "COMMIT",
    "/* so */ /* and */ ROLLBACK": "ROLLBACK",
    ";;end": "END",
    "START TRANSACTION": "START TRANSACTION",
    "prepare transaction 'x'": "PREPARE TRANSACTION",
    "ROLLBACK TO SAVEPOINT a": None,
    "rollback work to a": None,
    "SAVEPOINT a": None,
    "RELEASE SAVEPOINT a": None,
    "INSERT INTO t VALUES ('; commit')": None,
    "prepare plan as select 1": None,
    "": None,
}


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_that_end_a_transaction_are_known(statement: str, dialect: str) -> None:
    assert refused_statement(statement, dialect) == STATEMENTS[statement]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a INT)", "alter table t add b int", "TRUNCATE t", "drop table t", "LOCK TABLES t WRITE",
        "/*!50000 DROP TABLE t */", "/*M! commit */", "# so\nCREATE INDEX i ON t (a)", "SET autocommit = 1",
        "SET @@session.autocommit=1", "LOAD INDEX INTO CACHE t", "FLUSH TABLES",
    ],
)  # fmt: skip
def test_statements_that_commit_by_themselves_in_mysql_are_known(statement: str) -> None:
    assert refused_statement(statement, "mysql") is not None


@pytest.mark.parametrize(
    "statement",
    ["CREATE TEMPORARY TABLE t (a INT)", "DROP TEMPORARY TABLE t", "SET @a = 1", "LOAD DATA INFILE 'x' INTO TABLE t"],
)
def test_statements_of_mysql_that_do_not_commit_are_allowed(statement: str) -> None:
    assert refused_statement(statement, "mysql") is None
