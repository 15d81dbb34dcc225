"""Staged files that a commit uses up."""

from __future__ import annotations

import mmap
import os
import resource
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import StagedFile, StagingArea, StagingError, Store, StoreConfig, StoreFullError
from rmq_store.broker.write.page_release import PageRelease
from rmq_store.files import durable
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.log.append import frame_writer
from rmq_store.log.append.write_back import WriteBack

PAGE = os.sysconf("SC_PAGE_SIZE")
ROWS = 20_000


def test_whole_pages_are_given_back_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (64 * PAGE))
    with path.open("rb") as file:
        used = PageRelease()
        mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        used.add(mapped, path)
        data = np.frombuffer(mapped, np.uint8)
        used.give_back(np.zeros(10 * PAGE, np.uint8))  # of no file
        used.give_back(data[5 : PAGE + 4])  # no page is whole
        assert path.stat().st_blocks * 512 == path.stat().st_size
        used.give_back(data[5 : 40 * PAGE + 7])
        assert path.stat().st_blocks * 512 == 25 * PAGE
        assert path.stat().st_size == 64 * PAGE
        left = np.flatnonzero(data)
        assert (left == np.r_[0:PAGE, 40 * PAGE : 64 * PAGE]).all()


@pytest.fixture
def staged(tmp_path: Path) -> tuple[Path, list[StagedFile]]:
    root = tmp_path / "store"
    with Store.open(root, create=True) as store:
        store.create_topic("T", 2)
    files = []
    for task in range(2):
        with StagingArea.for_task(root, "write-1", task, task, topic="T") as area:
            bodies = pa.array([b"%d-%d" % (task, row) + b"." * 200 for row in range(ROWS)])
            area.write(pa.record_batch({"body": bodies}))
            report = area.finish()
            assert report is not None
            files.append(report)
    return root, files


def bodies_of(root: Path) -> set[bytes]:
    with Store.open(root, read_only=True) as store:
        return {
            body
            for queue_id, limit in store.queue_ranges("T").items()
            for batch in store.read("T", queue_id, limit.min_offset, limit.max_offset, columns=["body"])
            for body in batch.column(0).to_pylist()
        }


def test_a_commit_that_uses_files_up_stores_what_they_held(
    staged: tuple[Path, list[StagedFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, files = staged
    left = []
    monkeypatch.setattr(
        "rmq_store.broker.write.writer.discard_staged",
        lambda root, files: left.extend((root / "pyrmq" / "staging" / file.name).stat().st_blocks for file in files),
    )
    with Store.open(root) as store:
        assert store.commit_staged(files, consume_files=True).row_count == 2 * ROWS
    assert sum(left) * 512 < sum(file.size_bytes for file in files) / 5
    assert len(bodies_of(root)) == 2 * ROWS


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_the_disk_begins_with_what_will_be_waited_for(
    tmp_path: Path, flush_disk_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ASYNC_FLUSH that would take the processor from who waits for the commit."""
    asked: list[bool] = []

    def note(segments: SegmentRun, start: int, *, wanted: bool) -> WriteBack:
        asked.append(wanted)
        return WriteBack(segments, start, wanted=wanted)

    with Store.open(tmp_path / "store", create=True, config=StoreConfig(flush_disk_type=flush_disk_type)) as store:
        store.create_topic("T", 2)
        monkeypatch.setattr("rmq_store.log.append.append.WriteBack", note)
        rows = pa.record_batch({"body": pa.array([b"."] * 10)})
        store.append(rows, "T")
        with StagingArea.for_task(tmp_path / "store", "write-1", 0, 0, topic="T") as area:
            area.write(rows)
            report = area.finish()
        assert report is not None
        store.commit_staged([report])
    assert asked == [flush_disk_type == "SYNC_FLUSH"] * 2


@pytest.mark.parametrize("consume_files", [False, True])
def test_only_files_that_were_not_used_up_can_be_committed_after_a_failure(
    staged: tuple[Path, list[StagedFile]], consume_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, files = staged
    monkeypatch.setattr(frame_writer, "USED_BYTES", 1 << 20)
    # With one thread alone are the first pieces always finished before the write that fails.
    monkeypatch.setattr(frame_writer, "FOR_TWO_PIECES", 1 << 20)
    with Store.open(root) as store:
        writes = count(1)

        def full(operation: str, path: str) -> None:
            if operation == "write" and "commitlog" in str(path) and next(writes) == 5:
                raise OSError(28, os.strerror(28), str(path))

        monkeypatch.setattr(durable, "hook", full)
        with pytest.raises(StoreFullError):
            store.commit_staged(files, consume_files=consume_files)
        monkeypatch.setattr(durable, "hook", None)
        if consume_files:
            with pytest.raises(StagingError, match="nothing was written"):
                store.commit_staged(files)
        else:
            assert store.commit_staged(files).row_count == 2 * ROWS
    assert len(bodies_of(root)) == (0 if consume_files else 2 * ROWS)


def test_a_commit_needs_one_descriptor_for_each_file(tmp_path: Path) -> None:
    """As many as without `consume_files`: a write of many tasks meets the usual limit of 1,024 soon enough."""
    root, files = tmp_path / "store", []
    with Store.open(root, create=True) as store:
        store.create_topic("T", 2)
    for task in range(60):
        with StagingArea.for_task(root, "write-1", task, task, topic="T") as area:
            area.write(pa.record_batch({"body": pa.array([b"%d" % task])}))
            report = area.finish()
            assert report is not None
            files.append(report)
    with Store.open(root) as store:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 90, limits[1]))
        try:
            assert store.commit_staged(files, consume_files=True).row_count == 60
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(bodies_of(root)) == 60
