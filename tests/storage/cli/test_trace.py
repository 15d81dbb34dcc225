"""`rmq trace`: what it prints, and that it says the same whichever way a message is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.cells import cell_len

from rmq_store import Message, Store

Run = Callable[..., Result]
RunInTerminal = Callable[..., tuple[int, str]]
EXPECTED = Path(__file__).parent / "expected"

DEAD = "C0000202371F5FFD2B2767134429005D"
HALF = "C0000202371F5FFD2B276713415C001F"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("trace", ["--uniq-key", DEAD, "--events"]),
        ("trace-half", ["--uniq-key", HALF]),
        ("trace-delayed", ["-t", "DelayTopic", "-k", "DLYP-0"]),
        ("trace-key", ["-t", "OrderTopic", "-k", "DUP-AaBB"]),
    ],
)
def test_the_text_of_a_life_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run("trace", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


def test_the_tables_fit_a_terminal(run_in_terminal: RunInTerminal) -> None:
    code, text = run_in_terminal("trace", "--uniq-key", DEAD, columns=80)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert code == 0
    assert max(map(cell_len, lines)) <= 80
    assert lines[1].split() == ["TIME", "EVENT", "WHERE", "GROUP", "TRY", "NOTE"]
    steps = [line.split() for line in lines if line.startswith("2026-")]  # others go on with what was too long
    assert [cells[1] for cells in steps] == [
        "STORED", "FAILED", "RETRY", "FAILED", "RETRY", "FAILED", "RETRY", "DEAD",
    ]  # fmt: skip


def test_every_way_to_name_a_message_leads_to_the_same_life(run: Run) -> None:
    (life,) = json.loads(run("trace", "--uniq-key", DEAD, "--json").stdout)
    assert life["complete"] is True
    for step in life["steps"]:
        assert json.loads(run("trace", "--msg-id", step["offsetMsgId"], "--json").stdout) == [life]
    assert json.loads(run("trace", "-t", "OrderTopic", "-k", "ORD-000007", "--json").stdout) == [life]
    assert life["groups"][0] == {
        "group": "cg_orders", "state": "DEAD", "topic": "%DLQ%cg_orders", "attempt": 4, "due": None
    }  # fmt: skip


def test_a_message_that_waits_has_its_due_time(run: Run, scratch: Path) -> None:
    with Store.open(scratch / "store", create=True, clock=lambda: 1_795_220_515_000) as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"x", delay_level=4, queue_id=0))
        store.flush()
    (life,) = json.loads(run("trace", "--uniq-key", sent.msg_id, "--json", store=scratch / "store").stdout)
    assert [(step["event"], step["time"], step["due"]) for step in life["steps"]] == [
        ("DELAYED", "2026-11-21T00:21:55.000Z", "2026-11-21T00:22:25.000Z")
    ]
    assert (life["groups"][0]["state"], life["groups"][0]["due"]) == ("WAITING", "2026-11-21T00:22:25.000Z")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name one message: --uniq-key ID, --msg-id ID, or -t TOPIC -k KEY"),
        (["--uniq-key", "x", "--msg-id", "y"], 2, "name one message"),
        (["-k", "x"], 2, "name one message"),
        (["-t", "Orders", "-k", "ORD 7"], 2, "-k 'ORD 7': one key is expected; keys have no spaces"),
        (["-t", "Orders", "-k", " "], 2, "-k ' ': one key is expected"),
        (["-t", "OrderTopci", "-k", "x"], 2, "did you mean 'OrderTopic'?"),
        (["--msg-id", "x"], 2, "not an offset message id"),
        (["--uniq-key", "C0" * 16], 1, "rmq: no record of this message is in the store"),
        (["--msg-id", "7F000001000051AF0000000000009E68"], 1, "rmq: no record"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: list[str], code: int, words: str) -> None:
    result = run("trace", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
