"""`rmq repair` and a store.json that is damaged or gone: no setting becomes a default unless somebody says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.cli import commands
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable

CONFIG = StoreConfig(
    8192, 2000, 50, 200, flush_disk_type="SYNC_FLUSH", file_reserved_time=9, message_delay_level="2s 4s"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for number in range(40):
            store.send(Message("Orders", b"x", keys=f"k{number}", queue_id=0))
    return tmp_path / "store"


def repair(root: Path, *arguments: str) -> tuple[int, Any, str]:
    result = CliRunner().invoke(commands, ["repair", str(root), "--json", *arguments], prog_name="rmq")
    return result.exit_code, json.loads(result.stdout) if result.stdout else None, result.stderr


def damage(root: Path, content: bytes | None, *, backup: bool) -> Path:
    """Put `content` in the place of store.json, None: nothing at all; with `backup`, its backup stays."""
    path = root / "pyrmq" / "store.json"
    if not backup:
        path.with_name("store.json.bak").unlink(missing_ok=True)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    return path


def test_the_first_store_json_has_a_backup_and_it_holds_what_was_before(root: Path) -> None:
    backup = root / "pyrmq" / "store.json.bak"
    assert backup.read_bytes() == (root / "pyrmq" / "store.json").read_bytes()
    with Store.open(root) as store:
        store.retention.configure(file_reserved_time=8)
    assert json.loads(backup.read_text())["settings"]["fileReservedTime"] == 9


@pytest.mark.parametrize("content", [b"", b"{", None])
def test_settings_come_back_from_the_backup(root: Path, content: bytes | None) -> None:
    known = StoreFile.load(root)
    damage(root, content, backup=True)
    with pytest.raises(CorruptConfigError, match=r"repair|not a description"):
        Store.open(root)
    code, done, _ = repair(root, "--yes")
    assert (code, done["after"]["status"], done["lost_settings"]) == (0, "clean", [])
    assert StoreFile.load(root) == known
    assert not repair(root)[1]["needed"]


@pytest.mark.parametrize("content", [b"", None])
def test_lost_settings_must_be_given(root: Path, content: bytes | None) -> None:
    damage(root, content, backup=False)
    code, plan, _ = repair(root, "--dry-run")
    assert (code, "flushDiskType" in plan["lost_settings"]) == (1, True)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, _, said = repair(root, "--yes", "--set", "flushDiskType=SYNC_FLUSH")
    assert (code, "settings are lost" in said, "flushDiskType," in said) == (2, True, False)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    code, done, _ = repair(root, "--yes", "--set", "flushDiskType=SYNC_FLUSH", "--defaults")
    assert (code, done["after"]["status"]) == (0, "clean")
    with Store.open(root) as store:
        assert store.config.flush_disk_type == "SYNC_FLUSH"
        assert store.config.file_reserved_time == 72
        assert store.config.geometry() == CONFIG.geometry()


def test_an_index_that_does_not_tell_its_sizes_is_built_with_others(tmp_path: Path) -> None:
    """One message at offset 0: its entry looks like zeros, which fit everywhere."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.send(Message("Orders", b"x", keys="k", queue_id=0))
    damage(tmp_path / "store", b"", backup=False)
    code, done, _ = repair(tmp_path / "store", "--yes", "--defaults", "--set", "maxIndexNum=77")
    assert (code, done["rebuild"], done["after"]["status"]) == (0, ["index"], "clean")
    assert "again from the log, with maxHashSlotNum=5000000 and maxIndexNum=77" in done["steps"][-1]
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.config.max_index_num == 77


def test_a_broker_conf_gives_all_of_them(root: Path, tmp_path: Path) -> None:
    damage(root, b"\xff" * 900, backup=False)
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskType=SYNC_FLUSH\nmessageDelayLevel=2s 4s\nfileReservedTime=9\n")
    assert repair(root, "--yes", "--config", str(conf))[0] == 0
    known = StoreFile.load(root)
    assert known is not None
    assert known.config == CONFIG


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ('"fileReservedTime"', '"fileReservdTime"', ["fileReservedTime"]),
        ('"SYNC_FLUSH"', '"SINC_FLUSH"', ["flushDiskType"]),
        ('"flushDiskType":', '"flushDiskType"', ["flushDiskType"]),  # no JSON any more
    ],
)
def test_one_bad_word_costs_one_setting_and_not_the_identity(root: Path, old: str, new: str, lost: list[str]) -> None:
    known = StoreFile.load(root)
    assert known is not None
    text = (root / "pyrmq" / "store.json").read_text()
    assert old in text
    path = damage(root, text.replace(old, new).encode(), backup=False)
    assert repair(root, "--dry-run")[1]["lost_settings"] == lost
    values = {"fileReservedTime": "fileReservedTime=9", "flushDiskType": "flushDiskType=SYNC_FLUSH"}
    given = [word for name in lost for word in ("--set", values[name])]
    code, done, _ = repair(root, "--yes", *given)
    assert (code, done["after"]["status"]) == (0, "clean")
    assert StoreFile.load(root) == known
    assert (Path(done["removed"]) / path.relative_to(root)).read_text() == text.replace(old, new)


def test_a_store_that_knows_its_settings_takes_no_others(root: Path) -> None:
    code, _, said = repair(root, "--yes", "--set", "flushDiskType=ASYNC_FLUSH")
    assert (code, "is whole, and its settings stay" in said) == (2, True)
    code, _, said = repair(root, "--set", "flushDiskTyp=ASYNC_FLUSH")
    assert (code, "did you mean 'flushDiskType'" in said) == (2, True)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_store_that_lost_its_settings_with_their_backup_is_refused(root: Path, read_only: bool) -> None:
    damage(root, None, backup=False)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(CorruptConfigError, match=r"store\.json: .* missing, and so is its backup.* `rmq repair`"):
        Store.open(root, read_only=read_only, create=not read_only, config=None if read_only else CONFIG)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("what", ["a broker was here", "pyrmq/ is lost", "progress is lost", "no message yet"])
def test_it_is_described_anew_where_nothing_says_that_it_was(root: Path, tmp_path: Path, what: str) -> None:
    if what == "no message yet":
        root = tmp_path / "empty"
        Store.open(root, create=True, config=CONFIG).close()
    damage(root, None, backup=False)
    if what == "a broker was here":
        (root / "lock").write_bytes(b"lock")
    elif what == "pyrmq/ is lost":
        shutil.rmtree(root / "pyrmq")
    elif what == "progress is lost":
        (root / "pyrmq" / "progress").unlink()
    with Store.open(root) as store:
        assert store.config.flush_disk_type == "ASYNC_FLUSH"
    assert StoreFile.load(root) is not None


@pytest.mark.parametrize("made_by", ["us", "a broker"])
@pytest.mark.slow
def test_whoever_is_killed_while_it_makes_a_store_leaves_none_that_lost_its_settings(
    root: Path, tmp_path: Path, made_by: str
) -> None:
    """At any operation: nothing says that the store is ours before store.json is there."""
    if made_by == "a broker":
        shutil.rmtree(root / "pyrmq")
        (root / "lock").write_bytes(b"lock")
    for k in range(1, 300, 3):
        place = tmp_path / str(k)
        if made_by == "a broker":
            shutil.copytree(root, place)
        if (pid := os.fork()) == 0:
            left = k

            def hook(operation: str, path: str) -> None:
                nonlocal left
                left -= 1
                if not left:
                    os._exit(9)

            durable.hook = hook
            with Store.open(place, create=True, config=CONFIG) as store:
                store.send(Message("Orders", b"y", queue_id=0))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with Store.open(place, create=True, config=CONFIG) as store:
            assert store.config.flush_disk_type == "SYNC_FLUSH"
        if code == 0:
            return
    pytest.fail("never came to the end")
