"""`rmq dlq archive` and `rmq dlq restore`: what they print, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig

Run = Callable[..., Result]
SMALL = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=100
)


@pytest.fixture
def store(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True, config=SMALL) as opened:
        for group, count in (("cg_a", 3), ("cg_b", 5)):
            opened.create_topic(f"%DLQ%{group}", 1)
            for number in range(count):
                opened.send(Message(f"%DLQ%{group}", b"%d" % number))
    return scratch / "store"


def test_archive_and_restore_there_and_back(run: Run, store: Path, scratch: Path) -> None:
    directory = str(scratch / "archive")
    result = run("dlq", "archive", "cg_a", "--to", directory, store=store)
    assert (result.exit_code, result.stdout) == (0, f"{directory}: 3 dead letters in 1 new files\n")
    report = json.loads(run("dlq", "archive", "--to", directory, "--json", store=store).stdout)
    assert (report["row_count"], report["files"]) == (5, [f"cg_b/0-{0:020d}-{5:020d}.parquet"])
    assert pq.read_table(scratch / "archive" / report["files"][0]).num_rows == 5

    with Store.open(scratch / "other", create=True, config=SMALL):
        pass
    result = run("dlq", "restore", directory, "cg_b", "--from", "1", "--to", "3", store=scratch / "other")
    assert (result.exit_code, result.stdout) == (0, "2 dead letters restored\n")
    result = run("dlq", "restore", directory, store=scratch / "other")
    assert result.stdout == "6 dead letters restored\n2 had been restored before\n"
    assert run("dlq", "restore", directory, "--again", store=scratch / "other").stdout == "8 dead letters restored\n"
    shown = json.loads(run("dlq", "restore", directory, "--json", store=scratch / "other").stdout)
    assert shown == {
        "restored_count": 0, "in_place_count": 0, "present_count": 8, "damaged_count": 0, "refused_count": 0,
    }  # fmt: skip


def test_what_is_in_the_store_still_is_not_restored_next_to_itself(run: Run, store: Path, scratch: Path) -> None:
    directory = str(scratch / "archive")
    run("dlq", "archive", "--to", directory, store=store)
    result = run("dlq", "restore", directory, store=store)
    assert result.stdout == "0 dead letters restored\n8 are still in this store, where they were archived\n"
    shown = json.loads(run("dlq", "list", "--json", store=store).stdout)
    assert [entry["deadLetters"] for entry in shown] == [3, 5]
    assert run("dlq", "restore", directory, "--again", store=store).stdout == "8 dead letters restored\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *(["dlq", "archive", "--to", "A", "--older-than", hours] for hours in ("inf", "nan", "1e300")),
        *(["dlq", "restore", ".", option, str(1 << 64)] for option in ("--from", "--to")),
        *(["dlq", "redrive", "cg_a", "--yes", "--rate", rate] for rate in ("nan", "inf", "1e-300")),
        *(["top", "--every", seconds] for seconds in ("nan", "inf")),
        *(["lag", "--watch", seconds] for seconds in ("nan", "inf")),
    ],
    ids=" ".join,
)
def test_numbers_that_nobody_can_count_with_are_refused(
    run: Run, store: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(scratch)
    result = run(*arguments, store=store)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in result.stderr
    assert not (scratch / "A").exists()


def test_older_than_counts_hours_of_the_stores_clock(run: Run, store: Path, scratch: Path) -> None:
    directory = str(scratch / "archive")
    assert "0 dead letters" in run("dlq", "archive", "--to", directory, "--older-than", "1", store=store).stdout
    assert "8 dead letters" in run("dlq", "archive", "--to", directory, "--older-than", "0", store=store).stdout


def test_mistakes_are_one_line_and_code_2(run: Run, store: Path, scratch: Path) -> None:
    result = run("dlq", "archive", "no group!", "--to", str(scratch / "archive"), store=store)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    result = run("dlq", "restore", str(scratch), store=store)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no archive" in result.stderr
    result = run("dlq", "archive", "--to", str(store / "commitlog"), store=store)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "lies in the store itself" in result.stderr
    assert run("dlq", "archive", store=store).exit_code == 2


@pytest.mark.parametrize("command", ["archive", "restore"])
def test_help_has_an_example_the_store_option_and_json(run: Run, command: str) -> None:
    text = run("dlq", command, "--help").stdout
    assert f"Example:\n    rmq dlq {command} " in text
    assert "--store PATH" in text
    assert "--json" in text


def test_a_terminal_gets_a_bar_and_nothing_of_it_stays(
    run_in_terminal: Callable[..., tuple[int, str]], store: Path, scratch: Path
) -> None:
    code, text = run_in_terminal("dlq", "archive", "--to", str(scratch / "archive"), columns=200, store=store)
    assert code == 0
    assert "8 messages" in text
    assert "8 dead letters" in text.splitlines()[-1] + text.splitlines()[-2]


def test_a_group_without_dead_letters_is_well_and_a_typing_error_is_not(run: Run) -> None:
    shown = json.loads(run("dlq", "list", "cg_partial", "--json").stdout)
    assert [(entry["group"], entry["deadLetters"], entry["oldest"]) for entry in shown] == [("cg_partial", 0, None)]
    result = run("dlq", "show", "cg_partial", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    for command in ("list", "show"):
        result = run("dlq", command, "cg_order")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "'cg_orders'" in result.stderr
