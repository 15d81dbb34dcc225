"""`rmq backup`: what it prints, where its bar goes, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig
from rmq_store.verify import verify_store

Run = Callable[..., Result]
SMALL = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=100
)


@pytest.fixture
def store(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True, config=SMALL) as opened:
        for number in range(200):
            opened.send(Message("Alpha", b"%d" % number))
    return scratch / "store"


def test_it_says_what_was_copied(run: Run, store: Path, scratch: Path) -> None:
    result = run("backup", str(store), str(scratch / "copy"))
    assert result.exit_code == 0, result.output
    end = verify_store(store).log_end
    assert result.stdout == f"{scratch / 'copy'}: 200 records, bytes 0 to {end} of the log\n"
    assert result.stderr == ""
    assert verify_store(scratch / "copy").status == "clean"


def test_the_store_is_named_as_with_every_other_command(run: Run, store: Path, scratch: Path) -> None:
    """--store, or RMQ_STORE, which the second call has."""
    assert run("backup", "--store", str(store), str(scratch / "copy"), store=None).exit_code == 0
    assert run("backup", str(scratch / "another"), store=store).exit_code == 0
    assert verify_store(scratch / "another").status == "clean"


def test_names_too_many_or_too_few_are_told(run: Run, store: Path, scratch: Path) -> None:
    for arguments, message in (
        ([str(scratch / "copy")], "which store?"),
        ([str(store), "b", "c"], "one STORE and one TARGET"),
        (["--store", str(store), "b", "c"], "one STORE and one TARGET"),
        ([str(scratch / "none"), "b"], "is no directory"),
    ):
        result = run("backup", *arguments, store=None)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_json_has_every_number(run: Run, store: Path, scratch: Path) -> None:
    report = json.loads(run("backup", str(store), str(scratch / "copy"), "--json").stdout)
    assert (report["record_count"], report["start"], report["target"]) == (200, 0, str(scratch / "copy"))


def test_a_brokers_store_is_told_in_bytes(run: Run, golden: Path, scratch: Path) -> None:
    result = run("backup", str(golden / "store"), str(scratch / "copy"))
    assert " bytes, bytes 0 to " in result.stdout


def test_a_target_that_exists_is_the_callers_mistake(run: Run, store: Path, scratch: Path) -> None:
    result = run("backup", str(store), str(store))
    assert result.exit_code == 2
    assert result.stderr == f"rmq: {store} exists: a backup makes a directory of its own\n"
    assert run("backup", str(scratch), str(scratch / "copy")).exit_code == 2
    assert not (scratch / "copy").exists()


def test_a_terminal_gets_a_bar_and_nothing_of_it_stays(
    run_in_terminal: Callable[..., tuple[int, str]], store: Path, scratch: Path
) -> None:
    code, text = run_in_terminal("backup", str(store), str(scratch / "copy"))
    assert code == 0
    assert "200 messages" in text
    assert "\x1b[2K" in text  # the line of the bar is erased
    assert "200 records" in text.splitlines()[-1] + text.splitlines()[-2]
