"""`rmq resend`: lists, one message, and what a person decides, on databases that hold every case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from rmq_store.backoff import Backoff
from rmq_store.cli import commands
from rmq_store.cli.outbox import resend_list
from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import leases, manual_list, transact
from rmq_store.reliable.operator import stub_status

from .changing import NOW_MS

Resend = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
MINUTE_MS = 60_000


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/orders.db"


@pytest.fixture
def engine(database: str, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(database)
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def resend(database: str, monkeypatch: pytest.MonkeyPatch) -> Resend:
    """`resend("list", "--json")`, at NOW_MS; `answer`: somebody sits at the terminal and types it."""
    monkeypatch.setattr(leases, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr("rmq_store.reliable.operator.message_report.now_ms", lambda: NOW_MS)

    def invoke(*words: str, answer: str | None = None) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            if answer is not None:
                terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
                patch.setattr("rmq_store.cli.shared.confirm.sys", terminal)
            return CliRunner().invoke(
                commands,
                ["resend", *words],
                input=f"{answer}\n",
                env={"ORDERS_DB": database, "RMQ_DATABASE": "env:ORDERS_DB"},
                prog_name="rmq",
                catch_exceptions=False,
            )

    return invoke


def insert_stub(engine: sa.Engine, tables: Tables, message_id: str, *groups: str, **columns: Any) -> None:
    """An unsent stub of the groups, made a minute ago, but for `columns`."""
    row = {
        "message_id": message_id, "topic": "Orders", "body": b"two teas", "flag": 0,
        "properties": '[["TAGS","TagA"]]', "status": "unconfirmed", "pending_groups": len(groups),
        "created_ms": NOW_MS - MINUTE_MS, "send_count": 0, "resend_ms": NOW_MS - MINUTE_MS, "claim_until_ms": 0,
        "is_manual": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.stub), [row | columns])
        rows = [{"message_id": message_id, "group_name": group} for group in groups]
        connection.execute(sa.insert(tables.stub_group), rows)


def sent(offset: int | None, **columns: Any) -> dict[str, Any]:
    """The columns of a stub that was sent once to queue 0, its resend time past."""
    return {
        "sent_ms": NOW_MS - 30_000, "send_count": 1, "resend_ms": NOW_MS - 1, "broker_name": "broker-a",
        "sent_queue_id": 0, "queue_offset": offset,
    } | columns  # fmt: skip


def insert_log(engine: sa.Engine, tables: Tables, group: str, message_id: str, **columns: Any) -> None:
    row = {
        "group_name": group, "message_id": message_id, "broker_name": "broker-a", "topic": "Orders", "queue_id": 0,
        "queue_offset": 3, "received_ms": NOW_MS - 20_000, "reconsume_times": 2, "lease_token": None,
        "lease_until_ms": 0, "blocks_until_ms": 0, "is_dead": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.log), [row | columns])


@pytest.fixture
def full(engine: sa.Engine, tables: Tables) -> sa.Engine:
    """Every state and every reason; the group cg has received up to offset 7 of queue 0."""
    with engine.begin() as connection:
        mark = {"group_name": "cg", "broker_name": "broker-a", "topic": "Orders", "queue_id": 0, "queue_offset": 7}
        connection.execute(sa.insert(tables.high_water), [mark])
    insert_stub(engine, tables, "U1", "cg")
    insert_stub(engine, tables, "U2", "cg", claim_token="t", claim_until_ms=NOW_MS + 5_000)
    insert_stub(engine, tables, "U3", "cg", resend_ms=NOW_MS + 5_000)
    insert_stub(engine, tables, "K1", "cg", sharding_key="ORD-7", is_manual=True, send_count=16)
    insert_stub(engine, tables, "K2", "cg", sharding_key="ORD-7")
    insert_stub(engine, tables, "W1", "cg", **sent(3, resend_ms=NOW_MS + 5_000))
    insert_stub(engine, tables, "W2", "cg", "other", **sent(8))
    insert_stub(engine, tables, "W3", "cg", **sent(3))
    insert_log(engine, tables, "cg", "W3", lease_token="w", lease_until_ms=NOW_MS + 9_000)
    insert_stub(engine, tables, "W4", "cg", **sent(3))
    insert_log(engine, tables, "cg", "W4", is_dead=True)
    insert_stub(engine, tables, "W5", "cg", **sent(3))
    insert_stub(engine, tables, "W6", "cg", **sent(3))
    insert_log(engine, tables, "cg", "W6", blocks_until_ms=NOW_MS + 9_000)
    insert_stub(engine, tables, "D1", "cg", "other", **sent(3))
    insert_stub(engine, tables, "D2", "cg", **sent(None, sharding_key="ORD-1"))
    insert_stub(engine, tables, "M1", "cg", **sent(3, send_count=16, is_manual=True))
    insert_stub(engine, tables, "V1", "cg", status="void")
    insert_stub(engine, tables, "C1", "cg", status="confirmed", pending_groups=0)
    with engine.begin() as connection:
        done = {"group_name": "cg", "message_id": "W5", "done_ms": NOW_MS - 10_000, "token": "t"}
        connection.execute(sa.insert(tables.inbox), [done])
        manual_list.add(connection, tables, "M1", "", "maximum", "sent 16 times", NOW_MS - 3_000)
        manual_list.add(connection, tables, "W4", "cg", "dead_letter", "LookupError: \x1b[31mno", NOW_MS - 2_000)
        manual_list.add(connection, tables, "X1", "cg", "in_doubt", "its worker died", NOW_MS - 1_000)
        manual_list.mark_notified(connection, tables, manual_list.not_notified(connection, tables, limit=1), NOW_MS)
    return engine


def check(result: Result, name: str) -> None:
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- list and show


def test_the_manual_list_as_text(resend: Resend, full: sa.Engine) -> None:
    check(resend("list"), "resend-list")


def test_stubs_of_every_state_and_why_they_wait_as_text(resend: Resend, full: sa.Engine) -> None:
    states = [word for state in resend_list.STATES for word in ("--state", state)]
    check(resend("list", *states), "resend-list-states")


def test_one_message_as_text(resend: Resend, full: sa.Engine) -> None:
    check(resend("show", "W4"), "resend-show")


def test_lists_can_be_of_one_state_group_or_reason(resend: Resend, full: sa.Engine) -> None:
    assert [stub["messageId"] for stub in lines(resend("list", "--state", "due", "--json"))] == ["D1", "D2"]
    other = resend("list", "--state", "waiting", "--state", "due", "--group", "other", "--json")
    assert [stub["messageId"] for stub in lines(other)] == ["W2", "D1"]
    doubts = lines(resend("list", "--reason", "in_doubt", "--json"))
    assert [(entry["messageId"], entry["group"], entry["notified"]) for entry in doubts] == [("X1", "cg", None)]
    assert [entry["messageId"] for entry in lines(resend("list", "--group", "cg", "--json"))] == ["W4", "X1"]
    assert resend("list", "--reason", "in_doubt", "--state", "due").exit_code == 2


def test_a_list_says_that_there_is_more(resend: Resend, full: sa.Engine) -> None:
    for words in (("list", "--max", "2"), ("list", "--state", "unsent", "--max", "2")):
        result = resend(*words, "--json")
        assert len(lines(result)) == 2
        assert result.stderr == "rmq: there are more: see --max\n"
    assert resend("list", "--max", "3").stderr == ""


def test_pages_hide_no_message(resend: Resend, full: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [resend("list", "--json").stdout, resend("list", "--state", "waiting", "--json").stdout]
    monkeypatch.setattr(stub_status, "PAGE_ROWS", 2)
    monkeypatch.setattr(resend_list, "_PAGE", 2)
    assert [resend("list", "--json").stdout, resend("list", "--state", "waiting", "--json").stdout] == before


def test_a_list_takes_as_many_statements_for_a_hundred_stubs_as_for_one(engine: sa.Engine, tables: Tables) -> None:
    from rmq_store.reliable.relay.inboxes import Inboxes

    counts = []
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda _c, _k, text, *_: statements.append(text))
    for number in range(100):
        insert_stub(engine, tables, f"M{number}", "cg", **sent(3))
        if number in (0, 99):
            statements.clear()
            found = list(stub_status.stubs_in(Inboxes(engine), tables, ["waiting"], NOW_MS))
            counts.append(len(statements))
            assert len(found) == number + 1
    assert counts[0] == counts[1]


def test_a_message_without_a_stub_is_found_by_who_has_received_it(resend: Resend, full: sa.Engine) -> None:
    insert_log(full, Tables(), "cg", "X1")
    found = json.loads(resend("show", "X1", "--json").stdout)
    assert found["stub"] is None
    assert [(group["group"], group["log"]["reconsumeTimes"]) for group in found["received"]] == [("cg", 2)]
    assert [entry["reason"] for entry in found["manual"]] == ["in_doubt"]
    assert "stub      none in this database" in resend("show", "X1").stdout


def test_an_id_that_nothing_knows_is_a_finding(resend: Resend, full: sa.Engine) -> None:
    result = resend("show", "Z\x1b9")
    assert result.exit_code == 1
    assert result.stdout == "Z\\x1b9: no stub, no group has received it, and it is on no manual list\n"


def test_a_body_is_shown_safely(resend: Resend, engine: sa.Engine, tables: Tables) -> None:
    insert_stub(engine, tables, "A1", "cg", body=b"a\x1b[2J\xff", properties='[["KEYS","k\\u202e"]]')
    shown = resend("show", "A1").stdout
    assert r"body      a\x1b[2J\xff" in shown
    assert r"property  KEYS=k\u202e" in shown
    assert "body" not in resend("show", "A1", "--body", "none").stdout
    assert "611b5b324aff" in resend("show", "A1", "--body", "hex").stdout


def test_the_states_and_reasons_of_the_options_are_those_of_the_kit() -> None:
    """The command may not import SQLAlchemy before it runs."""
    assert resend_list.STATES == stub_status.STATES
    assert resend_list.REASONS == manual_list.REASONS


# ---- void, retry, clear


def status_of(engine: sa.Engine, tables: Tables, message_id: str) -> str | None:
    with engine.connect() as connection:
        return connection.scalar(sa.select(tables.stub.c.status).where(tables.stub.c.message_id == message_id))


def listed(engine: sa.Engine, tables: Tables) -> set[tuple[str, str]]:
    with engine.connect() as connection:
        entries = manual_list.list_entries(connection, tables, limit=100)
    return {(entry.message_id, entry.reason) for entry in entries}


def test_a_retry_of_what_inboxes_have_forgotten_needs_a_flag_that_says_so(
    resend: Resend, engine: sa.Engine, tables: Tables
) -> None:
    """A group whose confirmation was lost, and whose inbox row is purged, would do it a second time."""
    day_ms = 24 * 3_600_000
    for message_id, days in (("old", 31), ("young", 29)):
        insert_stub(engine, tables, message_id, "cg", **sent(3, created_ms=NOW_MS - days * day_ms, is_manual=True))
    dry = resend("retry", "old", "young", "--dry-run", "--json")
    assert json.loads(dry.stdout)["messages"] == {"old": "TOO_OLD", "young": "CHANGED"}
    result = resend("retry", "old", "young", "--yes")
    assert (result.exit_code, "See --effects-may-repeat" in result.stdout) == (1, True)
    assert [stub["messageId"] for stub in lines(resend("list", "--state", "unsent", "--json"))] == ["young"]
    assert resend("retry", "old", "--yes", "--inbox-days", "32").exit_code == 0
    assert resend("retry", "old", "--yes", "--effects-may-repeat").exit_code == 0


def test_void_says_which_groups_have_done_a_message_before_it_asks(
    resend: Resend, engine: sa.Engine, tables: Tables
) -> None:
    insert_stub(engine, tables, "A1", "audit", "cg", **sent(3))
    with engine.begin() as connection:
        ours = tables.stub_group.c.group_name == "audit"
        connection.execute(sa.update(tables.stub_group).where(ours).values(confirmed_ms=NOW_MS))
    asked = resend("void", "A1", answer="n")
    assert "rmq: A1 was done already by audit\n" in asked.stderr
    assert json.loads(resend("void", "A1", "--yes", "--json").stdout)["doneBy"] == {"A1": ["audit"]}


def test_void_ends_what_is_open_and_says_what_it_cannot_end(resend: Resend, full: sa.Engine, tables: Tables) -> None:
    result = resend("void", "M1", "C1", "V1", "nobody", "M1", "--yes")
    assert result.exit_code == 1
    assert result.stdout == (EXPECTED / "resend-void.txt").read_text(encoding="utf-8")
    assert status_of(full, tables, "M1") == "void"
    assert listed(full, tables) == {("W4", "dead_letter"), ("X1", "in_doubt")}
    assert resend("void", "W4", "--yes").exit_code == 0
    assert listed(full, tables) == {("X1", "in_doubt")}


def test_retry_makes_a_message_unsent_and_alive_again(resend: Resend, full: sa.Engine, tables: Tables) -> None:
    check(resend("retry", "M1", "W4", "--yes"), "resend-retry")
    assert listed(full, tables) == {("X1", "in_doubt")}
    states = {stub["messageId"]: stub for stub in lines(resend("list", "--state", "unsent", "--json"))}
    assert {"M1", "W4"} <= states.keys()
    assert (states["M1"]["sendCount"], states["M1"]["sent"], states["M1"]["queueOffset"]) == (0, None, None)
    assert states["W4"]["groups"][0]["log"]["isDead"] is False


def test_retry_of_what_is_done_or_unknown_changes_nothing(resend: Resend, full: sa.Engine, tables: Tables) -> None:
    result = resend("retry", "C1", "V1", "X1", "--yes", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["messages"] == {"C1": "CONFIRMED", "V1": "VOID", "X1": "NO_STUB"}
    assert status_of(full, tables, "V1") == "void"


def test_clear_takes_off_what_a_person_has_dealt_with_and_nothing_that_would_be_lost(
    resend: Resend, full: sa.Engine, tables: Tables
) -> None:
    assert resend("clear", "X1", "W4", "--yes").stdout == (EXPECTED / "resend-clear.txt").read_text(encoding="utf-8")
    result = resend("clear", "M1", "W1", "--yes", "--json")
    assert json.loads(result.stdout)["messages"] == {"M1": "STILL_OPEN", "W1": "NOT_LISTED"}
    assert listed(full, tables) == {("M1", "maximum")}


@pytest.mark.parametrize(("action", "message_id"), [("void", "M1"), ("retry", "M1"), ("clear", "X1")])
def test_nothing_changes_in_a_dry_run_or_against_a_no_or_if_nobody_can_be_asked(
    resend: Resend, full: sa.Engine, tables: Tables, action: str, message_id: str
) -> None:
    before = listed(full, tables)
    dry = resend(action, message_id, "--dry-run", "--json")
    assert (dry.exit_code, json.loads(dry.stdout)["messages"]) == (0, {message_id: "CHANGED"})
    assert resend(action, message_id, answer="n").exit_code == 1
    silent = resend(action, message_id)
    assert (silent.exit_code, "repeat it with --yes" in silent.stderr) == (2, True)
    assert listed(full, tables) == before
    assert status_of(full, tables, "M1") == "unconfirmed"
    assert resend(action, message_id, answer="y").exit_code == 0
    assert listed(full, tables) != before


# ---- two databases


def test_the_consumers_database_may_be_another_one(
    resend: Resend, engine: sa.Engine, tables: Tables, tmp_path: Path
) -> None:
    inbox = open_engine(f"sqlite:///{tmp_path}/stock.db")
    tables.metadata.create_all(inbox)
    insert_stub(engine, tables, "A1", "cg", "audit", **sent(3))
    insert_log(inbox, tables, "cg", "A1", is_dead=True)
    insert_log(engine, tables, "audit", "A1", lease_token="t", lease_until_ms=NOW_MS + 9_000)
    with inbox.begin() as connection:
        manual_list.add(connection, tables, "A1", "cg", "dead_letter", "no", NOW_MS)
    given = ("--inbox", f"cg={inbox.url}")
    (stub,) = lines(resend("list", "--state", "waiting", "--json", *given))
    assert stub["why"] == "audit: a worker has it, for 9 s at most; cg: a dead letter, people decide"
    assert [entry["messageId"] for entry in lines(resend("list", "--json", *given))] == ["A1"]
    everything = resend("list", "--state", "waiting", "--json", "--inbox", str(inbox.url))
    assert lines(everything)[0]["groups"][0]["log"] is None, "audit is looked for in the other database, too"
    assert resend("retry", "A1", "--yes", *given).exit_code == 0
    assert (listed(inbox, tables), listed(engine, tables)) == (set(), set())
    twice = resend("list", "--inbox", str(inbox.url), "--inbox", str(inbox.url))
    assert (twice.exit_code, "can be given once" in twice.stderr) == (2, True)
    inbox.dispose()


def test_a_list_goes_on_without_an_inbox_that_does_not_answer(
    resend: Resend, engine: sa.Engine, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transact, "PAUSES", Backoff(1, 1))
    from rmq_store.reliable.relay.inboxes import Inboxes

    insert_stub(engine, tables, "A1", "cg", "audit", **sent(3))
    away = open_engine(f"sqlite:///{tmp_path}/no/such/directory/stock.db")
    (stub,) = stub_status.stubs_in(Inboxes(engine, {"cg": away}), tables, ["waiting"], NOW_MS)
    assert stub.why.endswith("cg: the database of its inbox does not answer")
    away.dispose()


# ---- tables


def test_tables_are_compared_and_made_only_when_that_is_asked_for(resend: Resend, database: str) -> None:
    assert resend("schema").exit_code == 1
    assert resend("schema", "--create", "--dry-run").exit_code == 1
    assert resend("schema", "--create", answer="n").exit_code == 1
    assert "has no table rmq_stub" in resend("list").stderr, "nothing was made"
    made = resend("schema", "--create", "--yes")
    assert made.stdout.replace(database, "DATABASE") == (EXPECTED / "resend-schema.txt").read_text(encoding="utf-8")
    assert resend("list").exit_code == 0
    assert list(json.loads(resend("schema", "--json").stdout).values()) == [[]]
    assert resend("schema", "--create", "--migrate").exit_code == 2


def test_a_difference_is_named_and_nothing_repairs_it_silently(resend: Resend, database: str) -> None:
    resend("schema", "--create", "--yes")
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE rmq_manual RENAME COLUMN detail TO other"))
    engine.dispose()
    (differences,) = json.loads(resend("schema", "--json").stdout).values()
    assert any("detail" in text for text in differences)
    assert resend("schema").exit_code == 1


# ---- what goes wrong


def test_a_file_that_is_missing_is_named_and_not_made(resend: Resend, tmp_path: Path) -> None:
    result = resend("list")
    assert (result.exit_code, result.stderr) == (2, f"rmq: {tmp_path}/orders.db: there is no such database\n")
    assert not (tmp_path / "orders.db").exists()


def test_a_database_without_the_tables_is_named_as_such(resend: Resend, tmp_path: Path) -> None:
    (tmp_path / "orders.db").touch()
    result = resend("list")
    assert result.exit_code == 2
    assert "rmq_stub" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_password_is_in_no_message(database: str) -> None:
    url = "postgresql+psycopg://rmq:kept-out-of-logs@127.0.0.1:1/orders"
    for words in (["--database", url], ["--database", "env:ORDERS_DB"], ["--database", f"nonsense:{url}"]):
        result = CliRunner().invoke(
            commands, ["resend", "list", *words], env={"ORDERS_DB": url}, prog_name="rmq", catch_exceptions=False
        )
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith("rmq: ")
        assert result.stderr.count("\n") == 1
        assert "kept-out-of-logs" not in result.output


def test_statements_and_values_are_in_no_message(resend: Resend, engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE rmq_manual RENAME COLUMN detail TO other"))
    result = resend("list", "--group", "secret-group")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "rmq: the database: no such column: rmq_manual.detail\n"


def test_a_reference_that_leads_nowhere_says_what_is_missing() -> None:
    result = CliRunner().invoke(commands, ["resend", "list", "--database", "env:NOT_SET"], prog_name="rmq")
    assert (result.exit_code, "'NOT_SET' is not set" in result.stderr) == (2, True)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_without_the_extra_one_line_says_what_to_install() -> None:
    done = run_python(
        "import sys\nsys.modules['sqlalchemy'] = None\nfrom rmq_store.cli import main\n"
        "sys.argv = ['rmq', 'resend', 'list', '--database', 'env:X']\nmain()"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rmq: rmq resend needs SQLAlchemy: pip install '.[reliable]' in a clone\n"


def test_help_loads_no_database_package() -> None:
    done = run_python(
        "import sys\nfrom rmq_store.cli import commands\n"
        "for words in (['--help'], ['resend', '--help'], ['resend', 'list', '--help']):\n"
        "    try:\n        commands(words, prog_name='rmq')\n    except SystemExit:\n        pass\n"
        "assert not {'sqlalchemy', 'redis', 'numpy', 'pyarrow', 'smtplib'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("properties", ["{", "null", '[["DELAY",3]]'])
def test_a_row_that_cannot_be_read_is_shown_and_retried_as_any_other(
    engine: sa.Engine, tables: Tables, resend: Resend, properties: str
) -> None:
    entry = {"group_name": "", "reason": "illegal", "detail": "its properties ...", "created_ms": NOW_MS}
    insert_stub(engine, tables, "BAD", "cg", properties=properties, is_manual=True)
    insert_stub(engine, tables, "ODD", "cg", status="odd")
    insert_stub(engine, tables, "GOOD", "cg", **sent(3))
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.manual), [{**entry, "message_id": "BAD"}])
    shown = resend("show", "BAD")
    assert shown.exit_code == 0
    assert "unreadable its properties" in shown.stdout and "two teas" in shown.stdout and "illegal" in shown.stdout
    stub = json.loads(resend("show", "BAD", "--json").stdout)["stub"]
    assert (stub["properties"], len(stub["unreadable"]), stub["body"]) == (None, 1, "two teas")
    states = [word for state in resend_list.STATES for word in ("--state", state)]
    listed = [json.loads(line) for line in resend("list", "--json", *states).stdout.splitlines()]
    found = {each["messageId"]: each["state"] for each in listed}
    assert found == {"BAD": "manual", "ODD": "unsent", "GOOD": "waiting"}
    assert "its status is unknown: 'odd'" in next(each["why"] for each in listed if each["messageId"] == "ODD")
    assert "BAD" in resend("list", "--reason", "illegal").stdout
    assert resend("clear", "BAD", "--yes").exit_code == 1
    assert resend("retry", "BAD", "ODD", "--yes").exit_code == 0
    assert resend("list", "--json").stdout == ""
    assert resend("void", "BAD", "--yes").exit_code == 0


def test_an_entry_whose_stub_somebody_has_deleted_can_be_cleared(
    engine: sa.Engine, tables: Tables, resend: Resend
) -> None:
    entry = {"group_name": "", "reason": "maximum", "detail": "d", "created_ms": NOW_MS}
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.manual), [{**entry, "message_id": "GONE"}])
    assert resend("clear", "GONE", "--yes").exit_code == 0
    assert resend("list", "--json").stdout == ""


@pytest.mark.parametrize("database_kind", ["postgresql", "mariadb"], indirect=True)
def test_tables_may_be_in_another_schema(database_url: str, database_kind: str, second_database_url: str) -> None:
    """A schema of PostgreSQL; of MariaDB another database."""
    engine = open_engine(database_url)
    schema = "shop"
    if database_kind == "postgresql":
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE SCHEMA shop"))
    else:
        schema = sa.make_url(second_database_url).database or ""
    there = ["--database", database_url, "--schema", schema]

    def resend(*words: str) -> Result:
        return CliRunner().invoke(commands, ["resend", *words, *there], prog_name="rmq", catch_exceptions=False)

    assert "has no table rmq_stub" in resend("list").output
    assert "--schema" in resend("list").output
    assert resend("schema", "--create", "--yes").exit_code == 0
    assert resend("schema").exit_code == 0
    tables = Tables(schema=schema)
    insert_stub(engine, tables, "A1", "cg", **sent(16), is_manual=True)
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A1", "", "maximum", "sent 16 times", NOW_MS)
    assert [entry["messageId"] for entry in lines(resend("list", "--json"))] == ["A1"]
    assert resend("show", "A1").exit_code == 0
    assert resend("void", "A1", "--yes").exit_code == 0
    assert resend("list", "--json").output.strip() == ""
    assert not sa.inspect(engine).get_table_names(), "nothing in the default schema"
    engine.dispose()
