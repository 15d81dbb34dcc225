"""What errors of drivers say: one table, and each driver's own way to carry its codes."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store.reliable.database.trouble import Trouble, is_duplicate, trouble_of

AWAY, CONFLICT, READ_ONLY = Trouble.AWAY, Trouble.CONFLICT, Trouble.READ_ONLY_TRANSACTION


class DriverError(Exception):
    """An error as a driver raises it."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        for name, value in attributes.items():
            setattr(self, name, value)


def wrapped(original: BaseException, *, connecting: bool = False) -> sa.exc.DBAPIError:
    return sa.exc.OperationalError(None if connecting else "INSERT", None, original)


def psycopg(state: str) -> DriverError:
    return DriverError("text", sqlstate=state)


def psycopg2(state: str) -> DriverError:
    return DriverError("text", pgcode=state)


def pymysql(code: int, text: str = "text") -> DriverError:
    # PyMySQL 1.2 gives a SQLSTATE as well, HY000 for nearly everything.
    return DriverError(code, text, sqlstate="HY000")


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
@pytest.mark.parametrize(
    ("state", "trouble"),
    [
        ("40001", CONFLICT), ("40P01", CONFLICT), ("55P03", CONFLICT),
        ("08006", AWAY), ("08P01", AWAY), ("08003", AWAY), ("57P01", AWAY), ("57P02", AWAY), ("57P03", AWAY),
        ("53100", AWAY), ("53200", AWAY), ("53300", AWAY), ("40003", AWAY),
        ("25006", READ_ONLY),
        ("23505", None), ("42P01", None), ("42501", None), ("22001", None), ("57014", None), ("25P02", None),
        ("28P01", None), ("3D000", None),
    ],
)  # fmt: skip
def test_postgresql(driver: Any, state: str, trouble: Trouble | None) -> None:
    assert trouble_of(wrapped(driver(state))) is trouble


@pytest.mark.parametrize(
    ("code", "text", "trouble"),
    [
        (1205, "", CONFLICT), (1213, "", CONFLICT), (1020, "", CONFLICT), (3572, "", CONFLICT),
        (2002, "", AWAY), (2003, "", AWAY), (2006, "", AWAY), (2013, "", AWAY), (2055, "", AWAY), (4031, "", AWAY),
        (1040, "", AWAY), (1203, "", AWAY), (1053, "", AWAY), (1927, "", AWAY), (3032, "", AWAY),
        (1021, "", AWAY), (1114, "", AWAY), (1836, "", AWAY), (9001, "", AWAY),
        (1290, "The MySQL server is running with the --read-only option so it cannot execute this statement", AWAY),
        (1290, "The MySQL server is running with the --super-read-only option", AWAY),
        (1290, "The MySQL server is running with the --secure-file-priv option", None),
        (1047, "WSREP has not yet prepared node for application use", AWAY), (1047, "Unknown command", None),
        (1030, "Got error 28 \"No space left on device\" from storage engine InnoDB", AWAY),
        (1030, "Got error 168 from storage engine", None),
        (1792, "Cannot execute statement in a READ ONLY transaction.", READ_ONLY),
        (1062, "", None), (1146, "", None), (1406, "", None), (1142, "", None), (1045, "", None), (1049, "", None),
    ],
)  # fmt: skip
def test_mariadb_and_mysql(code: int, text: str, trouble: Trouble | None) -> None:
    assert trouble_of(wrapped(pymysql(code, text))) is trouble


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (sqlite3.SQLITE_BUSY, CONFLICT), (sqlite3.SQLITE_LOCKED, CONFLICT), (sqlite3.SQLITE_BUSY_SNAPSHOT, CONFLICT),
        (sqlite3.SQLITE_FULL, AWAY), (sqlite3.SQLITE_READONLY, AWAY), (sqlite3.SQLITE_READONLY_DBMOVED, AWAY),
        (sqlite3.SQLITE_IOERR_FSYNC, AWAY), (sqlite3.SQLITE_CANTOPEN, AWAY),
        (sqlite3.SQLITE_CONSTRAINT, None), (sqlite3.SQLITE_CORRUPT, None), (sqlite3.SQLITE_ERROR, None),
    ],
)  # fmt: skip
def test_sqlite(code: int, trouble: Trouble | None) -> None:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    assert trouble_of(wrapped(error)) is trouble


@pytest.mark.parametrize("original", [psycopg("28P01"), psycopg("3D000"), pymysql(1045), pymysql(1049)])
def test_who_is_not_let_in_waits(original: DriverError) -> None:
    """A password that changes, a database that is restored: no message is to blame. In a statement it is a mistake."""
    assert trouble_of(wrapped(original, connecting=True)) is AWAY
    assert trouble_of(wrapped(original)) is None


def test_a_pool_without_a_connection_and_a_lost_one() -> None:
    assert trouble_of(sa.exc.TimeoutError("QueuePool limit")) is Trouble.POOL_FULL
    lost = sa.exc.DBAPIError("INSERT", None, DriverError("text"), connection_invalidated=True)
    assert trouble_of(lost) is AWAY
    assert trouble_of(ValueError("of the handler")) is None
    assert trouble_of(ConnectionError("of the handler")) is None


def test_a_duplicate_is_known_by_each_driver() -> None:
    unique = sqlite3.IntegrityError("text")
    unique.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
    for original in (psycopg("23505"), psycopg2("23505"), pymysql(1062), unique):
        assert is_duplicate(sa.exc.IntegrityError("INSERT", None, original))
    for original in (psycopg("23502"), psycopg2("23503"), pymysql(1048)):
        assert not is_duplicate(sa.exc.IntegrityError("INSERT", None, original))
