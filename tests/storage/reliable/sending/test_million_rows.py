"""The work of a relay's round in tables of a million rows: the rows that each of its statements reads, as the database
counts them, and not times.

    SQLite        steps of its virtual machine
    PostgreSQL    rows of all nodes of EXPLAIN ANALYZE, with those that a filter removed
    MariaDB       Handler_read_... of the session
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.client import RemotingConnectError
from rmq_store.reliable.inbox import inbox

from .cluster import START_MS, World
from .test_resending import DAY_MS, QUARTER_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

ROWS = 1_000_000
KEYS = 1_000
"""Keys on the manual list, of those that hold up few messages each."""
ROWS_READ_MAX = 25_000
"""By one statement: 1,500 looks, or a few entries for each key; far fewer than any group of waiting rows."""
STEPS_PER_ROW = 40
"""Of SQLite's machine, at most: some tens for a row with all its columns."""

GROUPS_OF_ROWS = {
    # name: (from, to), in parts of a thousand, and what the rows have.
    "sent": (0, 300, "'Orders', NULL, 'unconfirmed', {sent}, {due}, FALSE"),
    "confirmed": (300, 400, "'Orders', NULL, 'confirmed', {sent}, {recent}, FALSE"),
    "old": (400, 402, "'Orders', NULL, 'confirmed', {sent}, 1000, FALSE"),
    "behind one key": (402, 702, "'Orders', 'K', 'unconfirmed', NULL, {due}, i = {first}"),
    "behind many keys": (
        702, 802, "'Orders', {concat}, 'unconfirmed', NULL, {due}, i < {first} + {keys}",
    ),
    "without brokers": (802, 902, "'Away', NULL, 'unconfirmed', NULL, {due}, FALSE"),
    "keys without brokers": (902, 1_000, "'AwayToo', {concat}, 'unconfirmed', NULL, {due}, FALSE"),
}  # fmt: skip


def fill(world: World, due_times: int) -> None:
    dialect = world.engine.dialect.name
    for first, end, columns in GROUPS_OF_ROWS.values():
        begin, until = first * ROWS // 1_000, end * ROWS // 1_000
        number = {
            "sqlite": f"(WITH RECURSIVE n(i) AS (SELECT {begin} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {until})"
            " SELECT i FROM n)",
            "postgresql": f"(SELECT generate_series({begin}, {until - 1}) AS i)",
        }.get(dialect, f"(SELECT seq AS i FROM seq_{begin}_to_{until - 1})")
        key = f"CONCAT('K', i % {KEYS})" if dialect == "mysql" else f"'K' || CAST(i % {KEYS} AS TEXT)"
        values = columns.format(
            sent=START_MS - 2 * QUARTER_MS, due=f"{START_MS - QUARTER_MS} + i % {due_times}", recent=START_MS - DAY_MS,
            first=begin, keys=KEYS, concat=key,
        )  # fmt: skip
        text = "CONCAT('m', i)" if dialect == "mysql" else "'m' || CAST(i AS TEXT)"
        body = {"sqlite": "X'78'", "postgresql": "'\\x78'::bytea"}.get(dialect, "'x'")
        offset = "i, 'b', 0" if "{sent}" in columns else "NULL, NULL, NULL"
        world.execute(
            sa.text(
                "INSERT INTO rmq_stub (message_id, body, flag, properties, pending_groups, created_ms, send_count,"
                " claim_until_ms, queue_offset, broker_name, sent_queue_id, topic, sharding_key, status, sent_ms,"
                f" resend_ms, is_manual) SELECT {text}, {body}, 0, '[]', 1, {START_MS - DAY_MS * 40}, 0, 0, {offset},"
                f" {values} FROM {number} AS numbers".replace("::", "\\:\\:")
            )
        )
    insert = "INSERT INTO rmq_{} SELECT {} FROM rmq_stub WHERE {}"
    world.execute(sa.text(insert.format("stub_group (message_id, group_name)", "message_id, 'stock'", "TRUE")))
    entry = "manual (message_id, group_name, reason, detail, created_ms, notified_ms)"
    listed = "message_id, '', 'maximum', '', 1, 1"
    world.execute(sa.text(insert.format(entry, listed, "is_manual = TRUE AND sent_ms IS NULL")))
    done = "inbox (group_name, message_id, done_ms, token)"
    world.execute(sa.text(insert.format(done, "'others', message_id, 1, 't'", "status = 'confirmed'")))
    with world.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("rmq_stub", "rmq_stub_group", "rmq_manual", "rmq_inbox"):
            if dialect != "sqlite":  # a server does so by itself, some time after the rows came
                connection.exec_driver_sql(f"ANALYZE {'TABLE ' if dialect == 'mysql' else ''}{table}")


@contextmanager
def rows_read(engine: sa.Engine) -> Iterator[list[tuple[int, str]]]:
    """(rows, statement) of each statement in the block."""
    found: list[tuple[int, str]] = []
    dialect = engine.dialect.name

    def read_so_far(cursor: Any) -> int:
        if dialect == "sqlite":
            return steps[0] // STEPS_PER_ROW
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in cursor.fetchall())

    steps = [0]

    def count() -> int:
        steps[0] += 100
        return 0

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if dialect == "postgresql":
            if statement.split()[0] in ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT") and not many:
                raw = connection.connection.dbapi_connection.cursor()
                raw.execute("SAVEPOINT explained")
                raw.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
                plan = raw.fetchone()[0]
                raw.execute("ROLLBACK TO SAVEPOINT explained")
                found.append((_rows_of((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]), statement))
            return
        if dialect == "sqlite":
            connection.connection.dbapi_connection.set_progress_handler(count, 100)
        context.read_before = read_so_far(connection.connection.dbapi_connection.cursor())

    def after(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if dialect != "postgresql":
            # SQLite works on while rows are fetched: the rest is added at the end.
            raw = connection.connection.dbapi_connection.cursor()
            found.append((read_so_far(raw) - context.read_before, statement))

    sa.event.listen(engine, "before_cursor_execute", before)
    sa.event.listen(engine, "after_cursor_execute", after)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)
        sa.event.remove(engine, "after_cursor_execute", after)
    if dialect == "sqlite":
        found.append((steps[0] // STEPS_PER_ROW - sum(rows for rows, _ in found), "rows that were fetched later"))


def _rows_of(plan: dict[str, Any]) -> int:
    removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    own = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return int(own) + sum(map(_rows_of, plan.get("Plans", ())))


def check(found: list[tuple[int, str]], what: str) -> None:
    too_many = [f"{rows} rows: {statement}" for rows, statement in found if rows > ROWS_READ_MAX]
    assert not too_many, f"{what}: {too_many}"


@pytest.mark.parametrize("due_times", [1, 1_000])
def test_no_statement_of_a_round_reads_what_waits(world: World, due_times: int) -> None:
    with rows_read(world.engine) as empty:
        world.relay().run_once()
    check(empty, "an empty table")
    fill(world, due_times)
    away = {"Away", "AwayToo"}

    def refuse(messages: Any) -> None:
        if messages[0].topic in away:
            raise RemotingConnectError(messages[0].topic)

    world.broker.before = refuse
    relay = world.relay()
    for number in range(6):
        world.add(Message("Orders", b"new"), Message("Orders", b"new", sharding_key="new"))
        with rows_read(world.engine) as found:
            report = relay.run_once()
        check(found, f"round {number}")
        assert report.sent == 2
        world.clock.advance(1_000)
    with rows_read(world.engine) as found:
        inbox.purge(world.engine, world.tables, "stock", START_MS)
    check(found, "inbox")
