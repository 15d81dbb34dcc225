"""The verifier at the log's end: what was on disk and is lost, files behind it, and a tmpfs that is full.

A store that nobody can open for writing must not be called clean (docs/design.md 8.2).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import CorruptionError, CorruptRecordError
from rmq_store.verify import verify_store
from rmq_store.verify.files import map_file

SEGMENT_BYTES = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=2000, max_hash_slot_num=50,
    max_index_num=200,
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of three segments, stopped cleanly."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for number in range(50):
            store.send(Message("Orders", bytes(300), keys=f"k{number}"))
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 3
    assert verify_store(tmp_path / "store").status == "clean"
    return tmp_path / "store"


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize("views", ["there", "lost"])
def test_a_lost_end_is_named_by_its_bytes_whatever_the_views_say(root: Path, views: str) -> None:
    end = verify_store(root).log_end
    (root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").unlink()
    if views == "lost":
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    with pytest.raises(CorruptRecordError, match="lost durable tail"):
        Store.open(root)
    plan = examine(root)
    assert [bad[1:3] for bad in plan.report.bad_ranges] == [(2 * SEGMENT_BYTES, end)]
    assert plan.log_is_damaged and plan.report.status == "damaged"
    after = carry_out(plan)
    assert (after.status, [bad[1:3] for bad in after.kept]) == ("kept", [(2 * SEGMENT_BYTES, end)])


def test_a_log_without_any_file_is_lost_and_not_empty(root: Path) -> None:
    end = verify_store(root).log_end
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(root / name)
    (root / "commitlog").mkdir()
    with pytest.raises(CorruptRecordError, match="lost durable tail"):
        Store.open(root)
    report = verify_store(root)
    assert (report.status, [bad[1:3] for bad in report.bad_ranges]) == ("damaged", [(0, end)])


def test_what_a_broker_cut_off_is_not_lost(root: Path) -> None:
    """Its text in `lock`: what our progress record says is of no store any more."""
    (root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").unlink()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "lock").write_bytes(b"lock")
    (root / "abort").touch()
    assert verify_store(root).bad_ranges == []


def test_a_file_of_a_wrong_size_behind_the_end_is_named_an_empty_newest_one_is_not(root: Path) -> None:
    behind = root / "commitlog" / f"{3 * SEGMENT_BYTES:020d}"
    behind.write_bytes(bytes(1000))
    with pytest.raises(CorruptionError, match="1000 bytes"):
        Store.open(root)
    report = verify_store(root)
    assert report.status == "damaged"
    assert [problem.path for problem in report.problems] == [f"commitlog/{behind.name}"]
    behind.write_bytes(b"")
    assert verify_store(root).status == "clean"
    Store.open(root).close()


def test_looking_at_a_hole_takes_no_memory_of_a_tmpfs(tmpfs: Path) -> None:
    """A map would take a page for each hole, and kill who looks (SIGBUS) if none is left."""
    path = tmpfs / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        os.pwrite(file.fileno(), b"middle", 300_000)
    before = path.stat().st_blocks
    data, unreadable = map_file(path)
    content = bytes(data)
    assert (content.index(b"middle"), len(content), content.count(0)) == (300_000, 1 << 20, (1 << 20) - 6)
    assert unreadable == []
    assert path.stat().st_blocks == before
    path.write_bytes(bytes(10_000))
    assert bytes(map_file(path)[0]) == bytes(10_000)
