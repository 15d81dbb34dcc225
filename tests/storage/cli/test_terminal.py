"""What a person sees: fitted tables, a progress bar, and nothing that a message could do to the terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from rmq_store.cli.shared.live_screen import table
from rmq_store.cli.shared.output import printable, time_text, write_table
from rmq_store.cli.shared.tables import columns_of, table_lines

pytestmark = pytest.mark.long

Run = Callable[..., Result]
RunInTerminal = Callable[..., tuple[int, str]]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def lines_of(text: str) -> list[str]:
    return _CONTROL.sub("", text).splitlines()


def test_a_table_fits_its_terminal_keys_are_wrapped_and_only_bodies_are_cut(run_in_terminal: RunInTerminal) -> None:
    code, text = run_in_terminal("read", "OrderTopic", "--max", "5", columns=90)
    head, *lines = lines_of(text)
    assert code == 0
    assert all(cell_len(line) <= 90 for line in lines)
    assert lines[0].startswith("    0       0  2026-11-21T00:21:55.854Z")
    assert any("…" in line for line in lines)
    keys = " ".join(line[head.index("KEYS") : head.index("BODY")].strip() for line in lines)
    assert "ORD-000014 CUST-0037 SESS-57b00cb6" in keys


def test_what_is_cut_is_whole_in_a_pipe_and_with_wide(run_in_terminal: RunInTerminal, run: Run) -> None:
    commands = (
        ["read", "OrderTopic"], ["dlq", "show", "cg_orders"], ["dlq", "list"], ["lag"], ["groups", "cg_orders"],
        ["topics"], ["tail", "OrderTopic"], ["consume", "OrderTopic", "-g", "cg_orders", "--peek", "--max", "3"],
        ["offsets", "show", "cg_orders"], ["dumpCompactionLog", "--at", "0"],
        ["trace", "-t", "OrderTopic", "-k", "ORD-000007"],
    )  # fmt: skip
    for words in commands:
        piped = run(*words).stdout.splitlines()
        shown = lines_of(run_in_terminal(*words, "--wide", columns=40)[1])[-len(piped) :]  # behind a bar
        if words[0] == "lag":  # LAG TIME goes on
            piped, shown = ([line[:60] for line in lines] for lines in (piped, shown))
        assert [line.rstrip() for line in shown] == [line.rstrip() for line in piped], words
        assert not any("…" in line for line in piped)


@pytest.mark.parametrize("columns", [40, 80, 110])
def test_no_name_is_cut_in_a_terminal(run_in_terminal: RunInTerminal, run: Run, columns: int) -> None:
    """Broken into lines at most: put together, every topic, group and key is there."""
    for words, names in (
        (["lag"], [("GROUP", "group"), ("TOPIC", "topic")]), (["topics"], [("TOPIC", "topic")]),
        (["groups"], [("GROUP", "group")]), (["dlq", "list"], [("GROUP", "group")]),
    ):  # fmt: skip
        known = json.loads(run(*words, "--json").stdout)
        shown = lines_of(run_in_terminal(*words, columns=columns)[1])
        head, *lines = shown[next(number for number, line in enumerate(shown) if names[0][0] in line) :]
        titles = [(found.start(), found[0]) for found in re.finditer(r"\S+(?: \S+)*", head)]
        for title, key in names:
            at = next(start for start, name in titles if name == title)
            end = min((start for start, _ in titles if start > at), default=None)
            cells = "".join(line[at:end].strip() for line in lines)
            assert all(row[key] in cells for row in known), (words, title)


def test_where_columns_cannot_fit_names_are_whole_and_the_terminal_breaks_the_lines(
    run_in_terminal: RunInTerminal,
) -> None:
    _, text = run_in_terminal("dlq", "show", "cg_orders", "--max", "1", columns=60)
    head, line = lines_of(text)
    assert head.split() == ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON", "BODY"]
    place = "    0     296  2026-11-21T00:22:48.077Z  OrderTopic      4  no        (unknown)  "
    assert line.startswith(place)
    assert line.endswith("…") and cell_len(line) == cell_len(place) + 32


@pytest.mark.parametrize(("command", "columns"), [("lag", 69), ("groups", 55)])
def test_names_of_groups_and_topics_are_wrapped_where_there_is_no_room(
    run_in_terminal: RunInTerminal, run: Run, command: str, columns: int
) -> None:
    _, text = run_in_terminal(command, columns=columns)
    lines = lines_of(text)
    assert all(cell_len(line) <= columns for line in lines)
    assert len(lines) > len(run(command).stdout.splitlines())
    assert not any("…" in line for line in lines)


def test_columns_that_give_way_do_so_the_widest_first() -> None:
    rows = [("订" * 12, "x" * 20, "y" * 6, "7")]
    columns = columns_of("ABCD", cut="ABC", right=[False, False, False, True])

    def line(room: int | None) -> str:
        (found,) = table_lines(columns, rows, room, header=False)
        return found

    assert line(None) == line(57) == f"{'订' * 12}  {'x' * 20}  {'y' * 6}  7"
    assert line(47) == f"{'订' * 8}…  {'x' * 16}…  {'y' * 6}  7"
    assert line(30) == f"{'订' * 3} …  {'x' * 8}…  {'y' * 6}  7"
    assert line(10) == line(None)  # it cannot fit


def test_a_wrapped_cell_breaks_at_blanks_where_it_can_and_ends_somewhere() -> None:
    def wrapped(text: str, room: int = 14) -> list[str]:
        columns = columns_of("AB", wrap="A", right=[False, True])
        return list(table_lines(columns, [(text, "1234")], room, header=False))

    assert wrapped("short") == ["short  1234"]
    assert wrapped("订单订单订单") == ["订单订单  1234", "订单"]
    assert wrapped("abcdefghijk") == ["abcdefgh  1234", "ijk"]
    assert wrapped("abcdef ghijk") == ["abcdef    1234", "ghijk"]
    assert wrapped("a bcdefghijk") == ["a bcdefg  1234", "hijk"]
    assert wrapped("abcdefgh ijk") == ["abcdefgh  1234", "ijk"]
    long = wrapped("x" * 1000)
    assert (len(long), long[-1]) == (8, "xxxxxxx…")


def test_a_screen_wraps_names_before_it_loses_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    console = Console(width=30, file=io.StringIO())
    rows = [("a_group_with_a_long_name", "a_topic_with_a_long_name", 123456, "1.5")]
    console.print(table("", ("GROUP", "TOPIC", "LAG", "RATE"), rows, left=2))
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "GROUP     TOPIC        LAG  RA\na_group_  a_topic_  123456   1\nwith_a_l  with_a_l\nong_name  ong_name\n"
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
