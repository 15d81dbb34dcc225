"""`rmq retention`: what it says, what it asks before it deletes, and that looking changes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.write import disk_space
from rmq_store.cli import commands
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL

from .changing import command

SEGMENT_BYTES = 8192


@pytest.fixture
def root(scratch: Path, another_hour: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fifteen segments, all but the newest one a hundred hours old, at an hour at which nothing is deleted."""
    config = StoreConfig(
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=16,
        max_index_num=50,
        delete_commit_log_files_interval=0,
        delete_when=another_hour,
    )
    path = scratch / "store"
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: 10)
    with Store.open(path, create=True, config=config) as store:
        store.create_topic("T", queue_count=1)
        while len(list((path / "commitlog").iterdir())) < 15:
            store.send(Message("T", b"." * 500, keys="K"))
    age(path, 100)
    return path


def age(root: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        os.utime(path, (then, then))


def rmq(root: Path, *arguments: str, answer: str | None = None) -> Result:
    return command(root, "retention", *arguments, answer=answer)


def segments(root: Path) -> int:
    return len(list((root / "commitlog").iterdir()))


def test_a_dry_run_changes_nothing_and_says_what_would_go(root: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(root)
    result = rmq(root, "run", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.startswith("disk in use: 10 %; nothing to do")
    result = rmq(root, "run", "--dry-run", "--manual")
    assert result.stdout.count("goes") == 10
    assert "older than 72 h" in result.stdout
    plan = json.loads(rmq(root, "run", "--dry-run", "--manual", "--file-reserved-time", "200", "--json").stdout)
    assert plan["trigger"] == "manual"
    assert plan["diskUsedPercent"] == 10
    assert [(part["start"], part["goes"], part["reason"]) for part in plan["segments"]] == [
        (0, False, "younger than 200 h (fileReservedTime)")
    ]
    assert tree_hash(root) == before


def test_without_a_reason_a_run_does_nothing(root: Path) -> None:
    result = rmq(root, "run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("nothing to do")
    assert segments(root) == 15


def test_by_hand_everything_expired_goes_ten_at_a_time(root: Path) -> None:
    result = rmq(root, "run", "--manual", "--yes", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["removedSegments"] == len(report["removed"]) == 14
    assert report["removedQueueFiles"] > 0
    assert report["removedIndexFiles"] > 0
    assert segments(root) == 1
    with Store.open(root, read_only=True) as store:
        assert store.log_range()[0] == 14 * SEGMENT_BYTES


@pytest.mark.parametrize(
    "arguments", [("--manual",), ("--file-reserved-time", "50", "--manual"), ("--manual", "--drop-waiting")], ids=str
)
def test_what_goes_beyond_the_settings_is_asked_for(root: Path, arguments: tuple[str, ...]) -> None:
    result = rmq(root, "run", *arguments, answer="n")
    assert result.exit_code == 1
    assert "Delete 10 segments at least, bytes 0 to 81920 of the log" in result.stderr
    assert segments(root) == 15
    result = rmq(root, "run", *arguments)  # nobody is there to answer
    assert result.exit_code == 2
    assert result.stderr.endswith("There is no terminal to ask: repeat it with --yes\n")
    assert segments(root) == 15
    result = rmq(root, "run", *arguments, answer="y")
    assert result.exit_code == 0
    assert "deleted: 14 segments" in result.stdout


def test_a_run_in_its_hour_asks_nothing(root: Path) -> None:
    with Store.open(root) as store:
        store.retention.configure(delete_when=";".join(f"{hour:02d}" for hour in range(24)))
    result = rmq(root, "run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("deleted: 10 segments")


def test_nothing_is_asked_where_nothing_goes(root: Path) -> None:
    age(root, 1)
    result = rmq(root, "run", "--manual")
    assert result.exit_code == 0
    assert result.stdout.startswith("deleted: 0 segments")
    assert "younger than 72 h" in result.stdout


def test_a_segment_that_is_kept_is_a_problem(root: Path) -> None:
    with Store.open(root, read_only=True) as store, store.pin(0, 1):
        result = rmq(root, "run", "--manual", "--yes")
        assert result.exit_code == 1
        assert "the next one stays: a reader keeps it" in result.stdout


def test_waiting_messages_are_named_and_go_only_if_that_is_asked_for(root: Path) -> None:
    with Store.open(root) as store:
        store.send(Message("T", b"later", properties={DELAY_TIME_LEVEL: "18"}))
        while segments(root) < 17:
            store.send(Message("T", b"." * 500))
    age(root, 100)
    result = rmq(root, "run", "--manual", "--yes")
    assert "1 delayed message in it is not delivered yet; the last one is due at" in result.stdout
    assert segments(root) == 3
    plan = json.loads(rmq(root, "run", "--manual", "--dry-run", "--json").stdout)
    assert plan["segments"][0]["waitingMessages"] == 1
    assert plan["segments"][0]["waitingUntil"]
    result = rmq(root, "run", "--manual", "--drop-waiting", answer="y")
    assert "delayed messages that were not delivered among them?" in result.stderr
    assert segments(root) == 1


def test_the_status_is_for_people_and_programs(root: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(root)
    found = json.loads(rmq(root, "status", "--json").stdout)
    assert found["diskUsedPercent"] == 10
    assert not found["refusesWrites"]
    assert (found["logStart"], found["deletableSegments"], found["deletableBytes"]) == (0, 10, 10 * SEGMENT_BYTES)
    assert found["settings"]["fileReservedTime"] == 72
    text = rmq(root, "status").stdout
    assert "diskUsedPercent" in text
    assert "fileReservedTime" in text
    assert tree_hash(root) == before


def test_help_is_short_and_quick(root: Path) -> None:
    for arguments in ((), ("run",), ("status",)):
        result = CliRunner().invoke(commands, ["retention", *arguments, "--help"], catch_exceptions=False)
        assert result.exit_code == 0
