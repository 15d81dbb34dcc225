"""The servers of the tests: there when asked for, empty each time, gone with the process that asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pymysql
import pytest
import redis
import sqlalchemy
from sqlalchemy import text

from helpers import server_process, servers
from helpers.server_fixtures import require

TESTS = Path(__file__).parent
# How long a watcher may take on a busy machine.
PATIENCE_S = 60.0

PROGRAM = """
import os, sys, time
from helpers import servers
server = getattr(servers, sys.argv[1])()
server.start()
if sys.argv[2] == "forks" and os.fork() == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    time.sleep(600)
print(server.directory, flush=True)
time.sleep(600)
"""


def below(directory: str) -> list[int]:
    """All processes that have a directory in their command line, or work in it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                place = str((process / "cwd").readlink())
            except OSError:
                continue
            if directory in command or place.startswith(directory):
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("kind", "number", "how"),
    [
        ("postgresql", signal.SIGKILL, "forks"),
        ("mariadb", signal.SIGKILL, "forks"),
        ("redis", signal.SIGKILL, "forks"),
        ("redis", signal.SIGINT, "alone"),
    ],
)
def test_no_server_outlives_the_process_that_started_it(kind: str, number: signal.Signals, how: str) -> None:
    """Neither after Ctrl-C nor after a kill, even if a forked child holds all its pipes open."""
    require(getattr(servers, kind)())
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind, how],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        directory = process.stdout.readline().strip()
        assert directory and len(below(directory)) >= 2
        os.kill(process.pid, number)
        process.wait()
        deadline_s = time.monotonic() + PATIENCE_S
        while (below(directory) or Path(directory).exists()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if how == "forks":
            os.killpg(process.pid, signal.SIGKILL)
        assert not below(directory)
        assert not Path(directory).exists()


def test_a_server_whose_watcher_is_killed_ends_too() -> None:
    require(servers.redis())
    server = servers.Redis()
    server.start()
    directory = server.directory
    assert server._watch is not None
    server._watch.kill()
    server._watch.wait()
    deadline_s = time.monotonic() + PATIENCE_S
    while below(str(directory)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not below(str(directory))
    server.close()
    assert not directory.exists()


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_what_was_committed_outlives_a_kill_of_the_server(
    database_server: servers.DatabaseServer, engine: sqlalchemy.Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n INT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    uncommitted = engine.connect()
    uncommitted.execute(text("INSERT INTO t VALUES (2)"))
    database_server.kill()
    assert below(str(database_server.directory)) == [database_server._watch.pid]  # type: ignore[union-attr]
    with pytest.raises(sqlalchemy.exc.OperationalError):
        uncommitted.execute(text("SELECT 1"))
    uncommitted.invalidate()
    uncommitted.close()
    with pytest.raises(sqlalchemy.exc.OperationalError), engine.connect():
        pass
    database_server.start()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM t")).all() == [(1,)]


def test_a_restarted_redis_has_forgotten_everything(redis_server: servers.Redis) -> None:
    with redis.Redis.from_url(redis_server.url()) as client:
        client.set("key", "value")
        redis_server.restart()
        assert client.get("key") is None


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_a_database_is_empty_again_whatever_its_last_user_left(database_server: servers.DatabaseServer) -> None:
    with database_server.new_database() as name:
        engine = sqlalchemy.create_engine(database_server.url(name))
        left_open = engine.connect()
        left_open.execute(text("CREATE TABLE t (n INT PRIMARY KEY)"))
        left_open.commit()
        left_open.execute(text("INSERT INTO t VALUES (1)"))
    left_open.invalidate()
    left_open.close()
    engine.dispose()
    with database_server.new_database() as first, database_server.new_database() as second:
        assert first != second
        for database in (first, second):
            engine = sqlalchemy.create_engine(database_server.url(database))
            assert sqlalchemy.inspect(engine).get_table_names() == []
            engine.dispose()


def test_writes_wait_for_the_disk(postgresql: servers.PostgreSQL, mariadb: servers.MariaDB) -> None:
    with psycopg.connect(postgresql.url("postgres").replace("+psycopg", "")) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            assert row == ("on",), setting
    with (
        pymysql.connect(host=mariadb.host, port=mariadb.port, user=servers.USER, password=servers.PASSWORD) as opened,
        opened.cursor() as cursor,
    ):
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite")
        assert cursor.fetchone() == (1, 1)


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    require(servers.redis())
    server = servers.Redis()
    command = server._command
    monkeypatch.setattr(server, "_command", lambda directory: [*command(directory), "--no-such-setting", "1"])
    with pytest.raises(servers.ServerError, match=r"redis ended at its start.*no-such-setting"):
        server.start()
    server.close()


def test_a_missing_server_is_a_reason_to_skip_but_an_error_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_program", lambda name: None)
    server = servers.Redis()
    monkeypatch.setattr(servers, "REQUIRED", False)
    with pytest.raises(pytest.skip.Exception, match=r"redis is not installed: `make servers`"):
        require(server)
    monkeypatch.setattr(servers, "REQUIRED", True)
    with pytest.raises(pytest.fail.Exception, match="RMQ_TEST_SERVERS=required, but redis is not installed"):
        require(server)


def test_a_forked_child_cannot_end_the_servers_of_its_parent(redis_server: servers.Redis) -> None:
    child = os.fork()
    if child == 0:
        try:
            redis_server.kill()
        except servers.ServerError:
            redis_server.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with redis.Redis.from_url(redis_server.url()) as client:
        assert client.ping()


def test_a_process_stands_still_when_all_its_threads_do() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not server_process.stands_still(process.pid)
        process.send_signal(signal.SIGSTOP)
        end_s = time.monotonic() + PATIENCE_S
        while not server_process.stands_still(process.pid):
            assert time.monotonic() < end_s
        process.kill()
