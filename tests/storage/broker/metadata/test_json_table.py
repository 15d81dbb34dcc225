"""One table file: torn, missing and foreign content, unknown fields, lost updates, every single failure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker.metadata import json_table
from rmq_store.broker.metadata.json_table import CachedView, ConfigFile
from rmq_store.errors import CorruptConfigError, NotAStoreError, StoreError, StoreFullError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.tables.config_json import dumps, loads

FOREIGN = """{
	"dataVersion":{
		"counter":18,
		"stateVersion":3,
		"timestamp":1795220599519
	},
	"futureField":[
		1.5,
		null
	],
	"offsetTable":{
		"t@g":{
			0:1
		}
	}
}"""

INLINE = """{
	"offsetTable":{
		"t@g":{0:1,3:4
		}
	}
}"""


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    (tmp_path / "config").mkdir()
    return ConfigFile(tmp_path, "table.json", clock=lambda: 1234)


def put(key: str, value: Any) -> Any:
    return lambda table: table.update({key: value})


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_missing_table_is_empty_and_looking_creates_nothing(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "absent", "table.json")
    assert file.load() == {}
    assert file.stamp() == (None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_new_table_starts_with_its_version_in_the_newest_style(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path, "table.json", clock=lambda: 1234)
    file.update(put("offsetTable", {"t@g": {0: 1}}))
    expected = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1234},
        "offsetTable": {"t@g": {0: 1}},
    }
    assert file.path.read_text() == dumps(expected, style="5.x")
    assert not file.backup.exists()


def test_unknown_fields_survive_and_the_version_counts(file: ConfigFile) -> None:
    file.path.write_text(FOREIGN)
    file.update(put("mine", True))
    expected = FOREIGN.replace('"counter":18', '"counter":19').replace("1795220599519", "1234")
    assert file.path.read_text() == expected[:-2] + ',\n\t"mine":true\n}'
    assert file.backup.read_text() == FOREIGN


def test_a_file_of_the_old_style_stays_in_it_and_gets_no_version(file: ConfigFile) -> None:
    file.path.write_text(INLINE)
    file.update(lambda table: table["offsetTable"]["t@g"].update({3: 5}))
    assert file.path.read_text() == INLINE.replace("3:4", "3:5")


def test_an_old_version_without_a_state_is_bumped_as_it_is(file: ConfigFile) -> None:
    file.path.write_text('{"dataVersion":{"counter":7,"timestamp":1},"list":["a","b"]}')
    file.update(lambda table: None)
    assert loads(file.path.read_text())["dataVersion"] == {"counter": 8, "timestamp": 1234}
    assert '["a","b"]' in file.path.read_text()


def test_a_mutation_that_says_false_writes_nothing(file: ConfigFile) -> None:
    file.path.write_text(FOREIGN)
    file.update(lambda table: False)
    assert file.path.read_text() == FOREIGN
    assert not file.backup.exists()


def test_a_mutation_that_raises_changes_nothing_and_frees_the_lock(file: ConfigFile, tmp_path: Path) -> None:
    file.path.write_text(FOREIGN)
    with pytest.raises(KeyError):
        file.update(lambda table: table.pop("absent"))
    assert file.path.read_text() == FOREIGN
    assert OfdLock(tmp_path / "pyrmq" / "config.lock").try_exclusive()


def test_a_table_torn_at_any_byte_falls_back_to_its_backup(file: ConfigFile) -> None:
    file.path.write_text(FOREIGN)
    file.update(put("new", 1))
    new, old = file.path.read_bytes(), file.load()
    del old["new"]
    for length in range(len(new)):
        file.path.write_bytes(new[:length])
        assert file.load() == loads(FOREIGN), f"cut at byte {length}"
    file.path.write_bytes(bytes(len(new)))
    assert file.load() == loads(FOREIGN), "zeros"
    file.path.unlink()
    assert file.load() == loads(FOREIGN), "missing: between the two steps of a 5.x broker"


def test_a_change_after_a_torn_table_starts_from_the_backup_and_keeps_it(file: ConfigFile) -> None:
    file.backup.write_text(FOREIGN)
    file.path.write_text(FOREIGN[:50])
    file.update(put("mine", 1))
    assert file.load() == {**loads(FOREIGN), "mine": 1, "dataVersion": file.load()["dataVersion"]}
    assert file.backup.read_text() == FOREIGN, "the torn file must not replace the good one"


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"a":NaN}', b'{"a":' * 10_000, b" "])
def test_without_a_backup_an_unreadable_table_is_an_error_and_is_left_alone(file: ConfigFile, text: bytes) -> None:
    file.path.write_bytes(text)
    with pytest.raises(CorruptConfigError, match=r"table\.json"):
        file.load()
    with pytest.raises(CorruptConfigError):
        file.update(put("mine", 1))
    assert file.path.read_bytes() == text


def test_a_table_that_is_a_symbolic_link_is_refused(file: ConfigFile, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    file.path.symlink_to(tmp_path / "secret")
    with pytest.raises(NotAStoreError):
        file.load()


def test_whatever_operation_fails_the_table_is_the_old_or_the_new_one(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file.update(put("value", 0))
    k, done = 0, False
    while not done:
        count = 0

        def hook(operation: str, path: str, k: int = k) -> None:
            nonlocal count
            count += 1
            if count == k + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(durable, "hook", hook)
            try:
                file.update(put("value", k + 1))
                done = True
            except (StoreError, OSError):
                pass
        assert file.load()["value"] in (k, k + 1)
        assert sorted(tree(tmp_path)) in (
            ["config/table.json", "pyrmq/config.lock"],
            ["config/table.json"],
            ["config/table.json", "config/table.json.bak", "pyrmq/config.lock"],
        )
        file.update(put("value", k + 1))
        k += 1
    assert k > 10


def test_leftovers_of_a_killed_writer_go_with_the_next_change(file: ConfigFile, tmp_path: Path) -> None:
    file.update(put("a", 1))
    (tmp_path / "config" / "table.json.99999999-0.tmp").write_text("{")
    file.update(put("a", 2))
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == ["table.json", "table.json.bak"]


def test_a_busy_config_lock_times_out_with_its_holder(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path, "table.json", lock_timeout_ms=30)
    file.update(put("a", 1))
    lock = OfdLock(tmp_path / "pyrmq" / "config.lock")
    assert lock.try_exclusive()
    with pytest.raises(StoreLockedError) as caught:
        file.update(put("a", 2))
    assert caught.value.pid == os.getpid()
    assert file.load()["a"] == 1


CHANGER = """
import sys
from rmq_store.broker.metadata.json_table import ConfigFile
file = ConfigFile(sys.argv[1], "table.json", lock_timeout_ms=60_000)
for number in range(150):
    file.update(lambda table: table.update({f"{sys.argv[2]}{number}": number}))
"""


def test_two_processes_that_change_one_table_lose_nothing_and_readers_never_see_it_torn(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    file = ConfigFile(tmp_path, "table.json")
    changers = [
        subprocess.Popen([sys.executable, "-c", CHANGER, str(tmp_path), name], env=environment) for name in "ab"
    ]
    entries_seen = 0
    while any(changer.poll() is None for changer in changers):
        table = file.load()
        assert len(table) >= entries_seen
        entries_seen = len(table)
    assert [changer.returncode for changer in changers] == [0, 0]
    table = file.load()
    assert table.pop("dataVersion")["counter"] == 300
    assert table == {f"{name}{number}": number for name in "ab" for number in range(150)}


def test_a_view_decodes_once_until_the_file_changes(file: ConfigFile) -> None:
    decoded: list[Any] = []
    view = CachedView(file, lambda table: decoded.append(table) or len(table))
    file.update(put("a", 1))
    assert [view.get(), view.get(), len(decoded)] == [2, 2, 1]
    ConfigFile(file.path.parents[1], "table.json").update(put("b", 1))
    assert [view.get(), len(decoded)] == [3, 2]
    file.path.unlink()
    assert [view.get(), len(decoded)] == [2, 3], "the backup counts, and is the table before the last change"


def test_a_view_looks_at_the_backup_as_long_as_that_stands_in_for_the_table(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    stamp = json_table._stamp
    view = CachedView(file, lambda table: table.get("a"))
    for value in (1, 2):
        file.update(put("a", value))
    assert view.get() == 2
    with monkeypatch.context() as patched:
        patched.setattr(json_table, "_stamp", lambda path: looked.append(path) or stamp(path))
        assert view.get() == 2
    assert looked == [str(file.path)], "whatever the backup holds, it does not count"
    whole = file.path.read_bytes()
    file.path.write_bytes(b"torn")
    assert view.get() == 1
    file.backup.write_bytes(whole.replace(b"2", b"3"))
    assert view.get() == 3
    file.backup.unlink()
    with pytest.raises(CorruptConfigError):
        view.get()
    file.path.write_bytes(whole)
    assert view.get() == 2


def test_a_table_that_could_not_be_read_again_is_not_written(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was replaced, said to be durable, and read from its backup from then on: as it was before the change."""
    monkeypatch.setattr(json_table, "SIZE_MAX", 1000)
    file.update(put("a", "x"))
    file.update(put("b", "x"))
    room = 1000 - file.path.stat().st_size
    before = tree(tmp_path)
    with pytest.raises(StoreFullError, match="rmq deleteTopic"):
        file.update(put("b", "x" * (room + 2)))
    assert tree(tmp_path) == before
    file.update(put("b", "x" * (room + 1)))
    assert file.path.stat().st_size == 1000
    assert file.load()["b"] == "x" * (room + 1)
