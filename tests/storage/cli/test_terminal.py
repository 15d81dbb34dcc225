"""What a person sees: fitted tables, a progress bar, and nothing that a message could do to the terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from rmq_store.cli.output import printable, table_lines, time_text, write_table
from rmq_store.cli.watching import table

Run = Callable[..., Result]
RunInTerminal = Callable[..., tuple[int, str]]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_a_table_fits_its_terminal_and_only_bodies_and_keys_are_cut(run_in_terminal: RunInTerminal) -> None:
    code, text = run_in_terminal("read", "OrderTopic", "--max", "5", columns=90)
    lines = _CONTROL.sub("", text).splitlines()
    assert code == 0
    assert len(lines) == 6
    assert all(cell_len(line) <= 90 for line in lines)
    assert lines[1].startswith("    0       0  2026-11-21T00:21:55.854Z")
    assert "…" in lines[2]


def test_no_column_vanishes_in_a_narrow_terminal(run_in_terminal: RunInTerminal) -> None:
    _, text = run_in_terminal("dlq", "show", "cg_orders", "--max", "1", columns=60)
    head, line = _CONTROL.sub("", text).splitlines()
    assert head.split() == ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON", "BODY"]
    assert re.fullmatch(r"    0     296  2026-11-21T00:22:48.077Z  OrderTo…      4  no        \(unknow…  .+…", line)


@pytest.mark.parametrize(("command", "columns"), [("lag", 60), ("groups", 46)])
def test_names_of_groups_and_topics_are_cut_where_there_is_no_room(
    run_in_terminal: RunInTerminal, command: str, columns: int
) -> None:
    _, text = run_in_terminal(command, columns=columns)
    lines = _CONTROL.sub("", text).splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    assert any("…" in line for line in lines)


def test_columns_that_may_be_cut_are_cut_the_widest_first() -> None:
    rows = [("订" * 12, "x" * 20, "y" * 6, 7)]
    flexible, right = [True, True, True, False], [False, False, False, True]

    def line(room: int | None) -> str:
        return table_lines(("A", "B", "C", "D"), rows, flexible, right, room, header=False)[0]

    assert line(None) == line(57) == f"{'订' * 12}  {'x' * 20}  {'y' * 6}  7"
    assert line(47) == f"{'订' * 8}…  {'x' * 16}…  {'y' * 6}  7"
    assert line(10) == f"{'订' * 3} …  {'x' * 7}…  {'y' * 6}  7"


def test_a_screen_cuts_names_before_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    console = Console(width=30, file=io.StringIO())
    rows = [("a_group_with_a_long_name", "a_topic_with_a_long_name", 123456, "1.5")]
    console.print(table("", ("GROUP", "TOPIC", "LAG", "RATE"), rows, left=2))
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "GROUP     TOPIC        LAG  RA\na_group…  a_topic…  123456   1\n"
    )


def test_the_header_is_bold_in_a_terminal_and_plain_in_a_pipe(run_in_terminal: RunInTerminal, run: Run) -> None:
    _, text = run_in_terminal("topics")
    assert "\x1b[1mTOPIC" in text
    assert "\x1b" not in run("topics").stdout


def test_verify_shows_a_bar_in_a_terminal_and_is_silent_in_a_pipe(run_in_terminal: RunInTerminal, run: Run) -> None:
    code, text = run_in_terminal("verify", columns=120)
    assert code == 0
    assert "7063 messages" in text
    assert "MiB" in text
    assert ": clean" in _CONTROL.sub("", text)
    assert run("verify").stderr == ""


def test_a_mistake_in_a_terminal_is_one_line(run_in_terminal: RunInTerminal, tmp_path: Path) -> None:
    code, text = run_in_terminal("topics", store=tmp_path)
    assert code == 2
    assert text.count("\n") == 1
    assert text.startswith(f"rmq: {tmp_path}")


@given(st.text())
def test_printable_text_moves_no_cursor(text: str) -> None:
    assert printable(text).isprintable()


def test_printable_keeps_what_can_be_printed() -> None:
    assert printable("订单2 ✅ Zoë") == "订单2 ✅ Zoë"
    assert printable("a\tb\x1b[31m\r\n\u202e") == "a\\tb\\x1b[31m\\r\\n\\u202e"


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_795_220_515_854_000, "2026-11-21T00:21:55.854Z"), (None, ""),
     (-1, "1969-12-31T23:59:59.999Z"), (9_223_372_036_854_775_000, "9223372036854775")],
)  # fmt: skip
def test_times_that_no_calendar_has_are_shown_as_milliseconds(time_us: int | None, text: str) -> None:
    assert time_text(time_us) == text


def test_columns_are_aligned_by_places_not_by_characters(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("NAME", "COUNT", "END"), [("订单", 5, "x"), ("order", 12, "y"), ("none", "-", "")])
    assert capsys.readouterr().out == "NAME   COUNT  END\n订单       5  x\norder     12  y\nnone       -\n"
