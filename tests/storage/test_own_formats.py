"""Formats of our own files: what the newest development version wrote stays readable, and what older ones wrote is
refused by name, with the way out.
"""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import CorruptRecordError, NotAStoreError
from rmq_store.verify import verify_store

DATA = Path(__file__).parent.parent / "data" / "own_formats"
BY_NAME = "written by a development version of pyspark-rmq"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with delayed messages, units and accepted damage, as the commit before 0.1.0's last formats wrote it."""
    with tarfile.open(DATA / "store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def bodies(store: Store) -> list[bytes]:
    found = []
    for queue_id in range(4):
        for offset in range(*store.queue_range("Orders", queue_id)):
            try:
                for batch in store.read("Orders", queue_id, offset, offset + 1, columns=["body"]):
                    found += batch.column("body").to_pylist()
            except CorruptRecordError:
                continue
    return found


def test_a_store_of_today_stays_readable(root: Path) -> None:
    assert verify_store(root).status == "kept"
    for read_only in (True, False):
        with Store.open(root, read_only=read_only) as store:
            found = bodies(store)
            assert len(found) == 40 - 1 + 3 + 72
            assert {b"unit-0", b"unit-1", b"unit-2"} <= set(found)
            assert len(store._log.accepted_damage.ranges) == 1
    with Store.open(root) as store:
        unit = store.newest_unit("sink", "query")
        assert unit is not None
        assert (unit.value, unit.row_count) == (79, 1)
    assert verify_store(root).status == "kept"


def _progress(path: Path) -> None:
    body = b"pyrmqpr1" + path.read_bytes()[8:112]
    path.write_bytes((body + struct.pack("<I", zlib.crc32(body))).ljust(512, b"\0"))


def _without(*names: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = json.loads(path.read_text())
        del data["crc"]
        data = {name: value for name, value in data.items() if name not in names}
        crc = {} if "crc" in names else {"crc": zlib.crc32(json.dumps(data, sort_keys=True).encode())}
        path.write_text(json.dumps({**crc, **data}))

    return change


def _units(path: Path) -> None:
    data = {**json.loads(path.read_text()), "format": 1}
    del data["crc"]
    path.write_text(json.dumps({"crc": zlib.crc32(json.dumps(data).encode()), **data}))


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("progress", _progress, "progress record pyrmqpr1"),
        ("kept.json", _without("crc"), "a list without `crc`"),
        ("queue_ends.json", _without("firsts", "log_end"), "a table without `firsts`, `log_end`"),
        ("queue_ends.json", _without("log_end"), "a table without `firsts`, `log_end`"),
        ("units.json", _units, "format 1"),
    ],
)
def test_a_file_of_a_development_version_is_refused_by_name_and_repaired(
    root: Path, name: str, change: Callable[[Path], None], what: str
) -> None:
    change(root / "pyrmq" / name)
    problems = [problem for problem in verify_store(root).problems if problem.path == f"pyrmq/{name}"]
    assert [f"{BY_NAME} ({what}): see `rmq repair`"] == [problem.text for problem in problems]
    for read_only in (False,) if name == "units.json" else (True, False):
        with pytest.raises(NotAStoreError) as refused, Store.open(root, read_only=read_only) as store:
            bodies(store)  # a reader looks for the end of the log at its first read
            store.newest_unit("sink", "query")  # which reads units.json
        assert str(refused.value).startswith(f"{root / 'pyrmq' / name}: {BY_NAME} ({what}): run `rmq repair`")
    repair = examine(root)
    assert [finding.path for finding in repair.findings] == [f"pyrmq/{name}"]
    assert carry_out(repair).status == "kept"
    with Store.open(root) as store:
        assert len(bodies(store)) == 40 - 1 + 3 + 72
        assert store.send(Message("Orders", b"next")).commit_log_offset >= 0


def test_a_store_description_with_names_of_a_development_version_is_refused_by_name(root: Path) -> None:
    path = root / "pyrmq" / "store.json"
    path.write_text(path.read_text().replace("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"))
    with pytest.raises(NotAStoreError, match=r"development version of .* \(setting maped.*: write mappedFileSizeComm"):
        Store.open(root)
    shutil.copy(path.with_name("store.json.bak"), path)
    Store.open(root).close()
