"""`rmq doctor` names the kind of a store, and `rmq verify` says what of it was not looked at."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, Store, StoreConfig, StoreFailedError, StoreKindError
from rmq_store.cli import commands
from rmq_store.cli.checks import directory
from rmq_store.kinds import entries
from rmq_store.verify import verify_store

DOUBLE_WRITE = "consumequeue/CURRENT"
CONTROLLER = "epochFileCheckpoint"
POP_STATE = "kvStore/CURRENT"
DLEDGER = "dledger-n0/data/00000000000000000000"


@pytest.fixture
def root(tmp_path: Path, small: StoreConfig) -> Path:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=small) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"one"))
    return root


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def rmq(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="rmq", catch_exceptions=False)


def kinds_of(root: Path) -> list[tuple[str, str]]:
    """(status, text) of what doctor says of the kind."""
    found: list[dict[str, Any]] = json.loads(rmq("doctor", "--no-spark", "--json", str(root)).stdout)
    return [(finding["status"], finding["text"]) for finding in found if finding["check"] == "kind"]


def test_doctor_names_a_common_store(root: Path) -> None:
    ((status, text),) = kinds_of(root)
    assert (status, text.partition(":")[0]) == ("OK", "files")


def test_doctor_names_each_kind_with_what_follows_from_it(root: Path) -> None:
    put(root, POP_STATE, DOUBLE_WRITE, CONTROLLER)
    assert [(status, text.partition(":")[0]) for status, text in kinds_of(root)] == [
        ("WARN", "double write"), ("WARN", "controller mode"), ("OK", "POP state in RocksDB"),
    ]  # fmt: skip
    shown = rmq("doctor", "--no-spark", str(root)).output
    assert "double write: consumequeue/CURRENT: " in shown
    assert "open it with read_only=True" in shown


def test_doctor_says_that_a_kind_is_not_known_if_a_directory_cannot_be_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(root / "index"))

    monkeypatch.setattr(entries.os, "scandir", fail)
    (found,) = directory.kind(root)
    assert (found.status, found.text) == ("WARN", f"not known: {root / 'index'}: Permission denied")


@pytest.mark.parametrize("how", [{}, {"read_only": True}, {"create": True}])
def test_a_directory_that_the_disk_does_not_give_back_is_a_typed_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    real = entries.os.scandir

    def fail(path: Path) -> Any:
        if Path(path).name in ("consumequeue", "batchconsumequeue", "index"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(entries.os, "scandir", fail)
    with pytest.raises(StoreFailedError, match="consumequeue"):
        Store.open(root, **how)


@pytest.mark.parametrize("has_log", [True, False])
def test_doctor_names_a_log_that_is_not_read_here(root: Path, has_log: bool) -> None:
    put(root, DLEDGER)
    if not has_log:
        shutil.rmtree(root / "commitlog")
    assert ("FAIL", "DLedger log") in [(status, text.partition(":")[0]) for status, text in kinds_of(root)]
    assert rmq("doctor", "--no-spark", str(root)).exit_code == 1


def test_verify_of_a_common_store_has_looked_at_all(root: Path) -> None:
    assert verify_store(root).not_looked_at == []
    assert "not seen" not in rmq("verify", "--store", str(root)).output


def test_verify_takes_files_of_rocksdb_for_no_damage_and_says_that_it_did_not_look(root: Path) -> None:
    put(root, DOUBLE_WRITE, "consumequeue/000012.sst", POP_STATE)
    answer = rmq("verify", "--store", str(root))
    assert answer.exit_code == 0, answer.output
    assert "not seen  consumequeue/CURRENT: the queues in RocksDB; those in files are checked" in answer.output
    assert "not seen  kvStore: " in answer.output
    report = json.loads(rmq("verify", "--json", "--store", str(root)).stdout)
    assert (report["status"], len(report["not_looked_at"]), report["queue_entries"]) == ("clean", 2, 1)


@pytest.mark.parametrize("is_missing", [True, False])
def test_verify_does_not_miss_topics_whose_table_is_in_rocksdb(root: Path, is_missing: bool) -> None:
    put(root, "config/rdb/CURRENT")
    if is_missing:
        (root / "config" / "topics.json").unlink()
        (root / "config" / "topics.json.bak").unlink(missing_ok=True)
    else:
        (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    report = verify_store(root)
    assert report.problems == []
    assert report.not_looked_at == ["config/rdb: topics, groups and offsets in RocksDB"]


def test_verify_checks_the_log_of_a_store_whose_queues_are_in_rocksdb(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "pyrmq")
    put(root, DOUBLE_WRITE)
    report = verify_store(root)
    assert (report.status, report.messages, report.queues) == ("clean", 1, 0)
    assert report.not_looked_at == ["consumequeue/CURRENT: the queues, which are in RocksDB"]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 4)
    assert verify_store(root).status == "damaged"


def test_verify_still_names_foreign_files_as_damage(root: Path) -> None:
    put(root, "consumequeue/notes")
    report = verify_store(root)
    assert [problem.path for problem in report.problems] == ["consumequeue/notes"]


@pytest.mark.parametrize("has_log", [True, False])
def test_verify_refuses_a_log_that_it_cannot_read_by_name(root: Path, has_log: bool) -> None:
    put(root, DLEDGER)
    if not has_log:
        shutil.rmtree(root / "commitlog")
    with pytest.raises(StoreKindError, match="DLedger"):
        verify_store(root)
    shutil.rmtree(root / "dledger-n0")
    shutil.rmtree(root / "commitlog", ignore_errors=True)
    with pytest.raises(StoreKindError, match="storePathCommitLog"):
        verify_store(root)
    assert rmq("verify", "--store", str(root)).exit_code == 2
