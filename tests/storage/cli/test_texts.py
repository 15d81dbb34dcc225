"""The text of commands that write, or that know the time: on copies of a real broker's store, places and ids replaced.

The texts are kept in `expected/`. To renew one, look at what the failing test shows and put it there.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from rmq_store import ClockFile, Message, Store, clock
from rmq_store.broker.write import disk_space
from rmq_store.cli.checks import OK, Finding, directory, machine, spark

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
UNIQUE_ID = "C0000202371F5FFD2B2767134429005D"
_NEW_ID = re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b")


@pytest.fixture
def copied(broker_store: Any, copy_store: Callable[[Path, Path], Path], scratch: Path) -> Path:
    return copy_store(broker_store.path, scratch / "store")


def check(result: Result, name: str, scratch: Path) -> None:
    """The command ended well and printed what is kept."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout.replace(str(scratch), "SCRATCH") == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.fixture
def at_noon(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The broker's store at a time of its own, on a disk of a known size."""
    (copied / "pyrmq").mkdir()
    ClockFile.create(copied / "pyrmq" / "clock", 1_795_262_400_000)
    monkeypatch.setattr(disk_space, "_used_percent", lambda path: 23)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=100 << 30, free=77 << 30))
    return copied


def test_backup_and_repair(run: Run, copied: Path, scratch: Path) -> None:
    check(run("backup", str(copied), str(scratch / "copy")), "backup", scratch)
    check(run("repair", str(copied), "--dry-run"), "repair", scratch)


def test_what_waits_in_a_broker(run: Run, tmp_path: Path, scratch: Path) -> None:
    with tarfile.open(Path(__file__).parents[2] / "data" / "stores" / "timers.tar.xz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # absent before 3.11.4
        tar.extractall(tmp_path)
    (tmp_path / "store" / "pyrmq").mkdir()
    ClockFile.create(tmp_path / "store" / "pyrmq" / "clock", 1_795_698_000_000)
    check(run("delayed", store=tmp_path / "store"), "delayed", scratch)


def test_a_store_that_is_made(run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "file_system", lambda root: Finding("file system", OK, "ext4"))
    check(run("init", str(scratch / "new")), "init", scratch)


def test_dead_letters_leave_and_come_back(run: Run, copied: Path, scratch: Path) -> None:
    archived = run("dlq", "archive", "cg_fifo", "--to", str(scratch / "archive"), store=copied)
    check(archived, "dlq-archive", scratch)
    check(run("dlq", "restore", str(scratch / "archive"), "--again", store=copied), "dlq-restore", scratch)


def test_retention(run: Run, copied: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: 23)
    check(run("retention", "status", store=copied), "retention-status", scratch)
    for path in (copied / "commitlog").iterdir():
        os.utime(path, (0, 0))
    check(run("retention", "run", "--manual", "--dry-run", store=copied), "retention-run", scratch)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dlq-export", ["dlq", "export", "cg_fifo", "--to", "SCRATCH/dead.jsonl"]),
        ("dlq-redrive", ["dlq", "redrive", "cg_fifo", "--dry-run"]),
        ("mqadmin-cleanExpiredCQ", ["cleanExpiredCQ"]),
        ("mqadmin-exportConfigs", ["exportConfigs", "-f", "SCRATCH/out"]),
        ("mqadmin-exportMetadata", ["exportMetadata", "-f", "SCRATCH/out"]),
        ("mqadmin-updateBrokerConfig", ["updateBrokerConfig", "-k", "fileReservedTime", "-v", "48"]),
        ("mqadmin-updateTopicPerm", ["updateTopicPerm", "-t", "OrderTopic", "-p", "4"]),
    ],
)
def test_one_change(run: Run, copied: Path, scratch: Path, name: str, arguments: list[str]) -> None:
    words = [word.replace("SCRATCH", str(scratch)) for word in arguments]
    check(run(*words, store=copied), name, scratch)


def test_messages_that_are_sent(run: Run, copied: Path, scratch: Path) -> None:
    (scratch / "lines").write_text("tea\nmilk\n")
    check(run("send", "OrderTopic", "--lines", str(scratch / "lines"), store=copied), "send", scratch)


def test_a_message_that_is_sent(run: Run, copied: Path) -> None:
    result = run("sendMessage", "-t", "OrderTopic", "-p", "tea for two", "-k", "ORD-1", "-i", "0", store=copied)
    assert (result.exit_code, result.stderr) == (0, "")
    assert _NEW_ID.sub("ID", result.stdout) == (EXPECTED / "sendMessage.txt").read_text(encoding="utf-8")


def test_an_id_within_a_month(run: Run, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr(clock, "system_clock", lambda: 1_795_300_000_000)
    check(run("DecodeMessageId", "-i", UNIQUE_ID), "DecodeMessageId", scratch)


def test_what_clients_traced(run: Run, scratch: Path) -> None:
    entries = [
        ["Pub", "1795220515881", "Region", "pg", "T", UNIQUE_ID, "TagA", "K1", "127.0.0.1:1", "5", "7", "0", "true"],
        ["SubAfter", "R1", UNIQUE_ID, "12", "true", "K1", "0", "1795220516000", "cg"],
    ]  # fmt: skip
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Traces", 1)
        body = "".join("\x01".join(entry) + "\x02" for entry in entries)
        store.send(Message("Traces", body.encode(), keys=UNIQUE_ID))
    result = run("queryMsgTraceById", "-i", UNIQUE_ID, "-t", "Traces", store=scratch / "store")
    host = re.compile(r"(?<=  )[0-9.]+ +(?=2026)")
    assert host.sub(f"{'HOST':21}", result.stdout) == (EXPECTED / "queryMsgTraceById.txt").read_text(encoding="utf-8")


# ---- this machine, this moment


@pytest.mark.parametrize("name", ["brokerStatus", "clusterList", "top"])
def test_what_is_now(run: Run, at_noon: Path, scratch: Path, name: str) -> None:
    words = ["top", "--every", "0.01", "--max", "5"] if name == "top" else [name]
    check(run(*words, store=at_noon), name, scratch)


def test_cleaning_shows_first_what_it_will_do(run: Run, at_noon: Path, scratch: Path) -> None:
    with Store.open(at_noon) as store:
        store.commit_offsets("cg_orders", {("GoneTopic", 0): 5})
    result = run("cleanUnusedTopic", "--dry-run", store=at_noon)
    assert (result.exit_code, result.stdout + result.stderr) == (0, (EXPECTED / "cleanUnusedTopic.txt").read_text())
    for path in (at_noon / "commitlog").iterdir():
        os.utime(path, (0, 0))
    check(run("deleteExpiredCommitLog", "--dry-run", store=at_noon), "deleteExpiredCommitLog", scratch)


def test_what_the_doctor_says(run: Run, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    """The same on every machine: what it looks at is given, and well, in doubt or bad."""
    monkeypatch.setattr("rmq_store.format.bytes.native.LOADED", False)
    monkeypatch.setenv("RMQ_PURE", "1")
    with Store.open(scratch / "store", create=True):
        pass
    maps = scratch / "max_map_count"
    maps.write_text("65530\n")
    versions = {"numpy": "2.1.3", "pyarrow": "18.0.0", "click": "8.1.7", "rich": "13.9.4"}
    for module, name, found in (
        (machine, "python", machine.python((3, 11, 7))),
        (machine, "packages", machine.packages(versions.__getitem__)),
        (machine, "engine", machine.engine()),
        (machine, "limits", machine.limits(512, maps)),
        (machine, "time_zone", machine.time_zone({"TZ": "Europe/Nowhere"})),
        (spark, "checks", [spark.java({})]),
        (directory, "checks", [directory.contents(Path("STORE")), directory.disk(scratch / "store", lambda path: 96)]),
    ):
        monkeypatch.setattr(module, name, lambda *given, found=found: found)
    result = run("doctor", str(scratch / "store"))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.replace(sys.executable, "PYTHON") == (EXPECTED / "doctor.txt").read_text(encoding="utf-8")
