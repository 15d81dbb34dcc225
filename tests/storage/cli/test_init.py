"""`rmq init`, and what says that it is there: the errors of those who do not make a store by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rmq_store import Message, NotAStoreError, Store
from rmq_store.cli.checks import directory
from rmq_store.client import Producer
from rmq_store.verify import verify_store

Run = Callable[..., Result]


def test_it_makes_a_store_and_says_what_it_made(run: Run, scratch: Path) -> None:
    path = scratch / "new" / "store"
    result = run("init", str(path), "--flush-disk-type", "SYNC_FLUSH", "--default-topic-queue-nums", "8", store=None)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"made an empty store at {path}",
        "  brokerName = rmq-embedded",
        "  flushDiskType = SYNC_FLUSH",
        "  mappedFileSizeCommitLog = 67108864",
        "  defaultTopicQueueNums = 8",
        "  fileReservedTime = 72",
    ]
    assert verify_store(path).status == "clean"
    with Store.open(path) as store:
        store.send(Message("T", b"1"))
        assert (len(store.queue_ranges("T")), store.config.flush_disk_type) == (8, "SYNC_FLUSH")


def test_an_option_wins_over_a_broker_conf(run: Run, scratch: Path) -> None:
    conf = scratch / "broker.conf"
    conf.write_text("brokerName=broker-a\nfileReservedTime=48\nmappedFileSizeCommitLog=1048576\nlistenPort=10911\n")
    path = scratch / "store"
    result = run("init", str(path), "--config", str(conf), "--broker-name", "b", "--json", store=None)
    assert json.loads(result.stdout) == {
        "path": str(path),
        "brokerName": "b",
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": 1048576,
        "defaultTopicQueueNums": 4,
        "fileReservedTime": 48,
    }


def test_a_store_that_is_there_is_refused_and_not_changed(run: Run, scratch: Path) -> None:
    path = scratch / "store"
    assert run("init", str(path), store=None).exit_code == 0
    described = (path / "pyrmq" / "store.json").read_bytes()
    for arguments in ([], ["--flush-disk-type", "SYNC_FLUSH"]):
        result = run("init", str(path), *arguments, store=None)
        assert (result.exit_code, result.stderr) == (2, f"rmq: {path} holds a store already: nothing was changed\n")
    assert (path / "pyrmq" / "store.json").read_bytes() == described


def test_nothing_is_made_among_other_files_or_from_wrong_settings(run: Run, scratch: Path) -> None:
    (scratch / "report.csv").write_text("1,2")
    result = run("init", str(scratch), store=None)
    assert (result.exit_code, "not an empty directory" in result.stderr) == (2, True)
    assert run("init", str(scratch / "s"), "--mapped-file-size-commit-log", "7", store=None).exit_code == 2
    assert [entry.name for entry in scratch.iterdir()] == ["report.csv"]


def test_who_makes_no_store_names_how_to_make_one(run: Run, scratch: Path) -> None:
    (scratch / "empty").mkdir()
    for path in (scratch / "mistyped", scratch / "empty"):
        with pytest.raises(NotAStoreError, match=r"`rmq init`.*Store.open\(path, create=True\)"):
            Producer("pg", path).start()
        for arguments in (["send", "T", "--body", "x"], ["topics"]):
            result = run(*arguments, "--store", str(path), store=None)
            assert (result.exit_code, "`rmq init`" in result.stderr) == (2, True), result.stderr
    assert [entry.name for entry in scratch.iterdir()] == ["empty"]


def test_where_other_files_are_no_store_is_offered(scratch: Path) -> None:
    (scratch / "report.csv").write_text("1,2")
    with pytest.raises(NotAStoreError) as refused:
        Store.open(scratch)
    assert "rmq init" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("tmpfs", "in memory, and gone when the machine stops"), ("overlay", "its container"), ("nfs4", "locks and maps")],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_store_on_a_file_system_that_does_not_keep_it_is_made_with_a_warning(
    run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str, options: list[str]
) -> None:
    mounts = f"23 22 0:5 / {scratch.resolve()} rw - {kind} somewhere rw\n"
    found = directory.file_system(scratch, mounts)
    monkeypatch.setattr(directory, "file_system", lambda root: found)
    result = run("init", str(scratch / "new"), *options, store=None)
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith(f"rmq: warning: {scratch / 'new'} is on {kind}: ") and words in result.stderr


def test_a_store_on_a_disk_is_made_without_a_warning(
    run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = directory.file_system(scratch, f"23 22 0:5 / {scratch.resolve()} rw - ext4 somewhere rw\n")
    monkeypatch.setattr(directory, "file_system", lambda root: found)
    assert run("init", str(scratch / "new"), store=None).stderr == ""
