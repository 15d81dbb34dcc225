"""What a task stages, and what it leaves behind when it does not finish."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import (
    ClockFile,
    NotAStoreError,
    StagedFile,
    StagingArea,
    StagingError,
    Store,
    StoreConfig,
    StoreFullError,
    UsageError,
    sweep,
)
from rmq_store.broker.write import staged_files
from rmq_store.broker.write.staged_files import open_all_staged, open_staged
from rmq_store.broker.write.staging import StagingFile
from rmq_store.files import durable
from rmq_store.files.segments import blocks
from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.format.tables.schema import ENCODED_SCHEMA


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("T", queue_count=3)
    return scratch / "store"


def area_of(root: Path, partition: int = 0, **options: object) -> StagingArea:
    return StagingArea.for_task(root, "write-1", partition, 0, **{"topic": "T", **options})


def files_of(root: Path) -> list[Path]:
    return sorted((root / "pyrmq" / "staging").rglob("*.arrow"))


def test_a_finished_file_is_what_was_reported(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a", b"b"]}))
        area.write(pa.record_batch({"body": [b"c"] * 5}))
        staged = area.finish()
    assert isinstance(staged, StagedFile)
    (path,) = files_of(root)
    assert staged.name == f"write-1/{path.name}"
    assert (staged.row_count, staged.size_bytes, staged.topics) == (7, path.stat().st_size, (("T", 3),))
    batches = open_staged(root, staged)
    assert [batch.num_rows for batch in batches] == [2, 5]
    assert batches[0].schema == ENCODED_SCHEMA
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_content_sum_does_not_depend_on_order_or_cuts_but_on_every_row(root: Path) -> None:
    def content_sum(*batches: list[bytes]) -> int:
        with area_of(root) as area:
            for bodies in batches:
                area.write(pa.record_batch({"body": bodies}))
            staged = area.finish()
        assert staged is not None
        return staged.content_sum

    whole = content_sum([b"a", b"b", b"c"])
    assert whole == content_sum([b"c"], [b"b", b"a"])
    assert (
        len({whole, content_sum([b"a", b"b"]), content_sum([b"a", b"b", b"d"]), content_sum([b"a", b"a", b"c"])}) == 4
    )


def test_a_task_without_rows_stages_nothing(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": pa.array([], pa.binary())}))
        assert area.finish() is None
    assert not (root / "pyrmq" / "staging").exists()


def test_a_task_that_fails_or_gives_up_leaves_no_file(root: Path) -> None:
    with pytest.raises(UsageError), area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a"]}))
        assert len(files_of(root)) == 1
        area.write(pa.record_batch({"body": [None]}, schema=pa.schema([("body", pa.binary())])))
    assert files_of(root) == []
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a"]}))
        area.abort()
        area.abort()
    assert files_of(root) == []


def test_a_full_disk_is_an_error_of_its_own_and_leaves_no_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(operation: str, path: str) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "hook", full)
    with pytest.raises(StoreFullError, match="No space left"), area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a"]}))
    monkeypatch.setattr(durable, "hook", None)
    assert files_of(root) == []


@pytest.mark.parametrize("finishes", [True, False])
def test_blocks_are_reserved_for_long_files_and_only_what_was_needed_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    reserved: list[tuple[int, int]] = []
    monkeypatch.setattr(blocks, "reserve", lambda fd, start, size: reserved.append((start, size)))
    rows = pa.record_batch({"body": [bytes(1 << 19)] * 6})
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a"] * 3}))
        area.write(rows)
        assert reserved == []
        monkeypatch.undo()
        area.write(rows)
        (path,) = files_of(root)
        assert path.stat().st_blocks * 512 > path.stat().st_size + (8 << 20)
        staged = area.finish() if finishes else None
    if staged is None:
        assert files_of(root) == []
    else:
        assert path.stat().st_blocks * 512 < staged.size_bytes + (1 << 20)
        assert sum(batch.num_rows for batch in open_staged(root, staged)) == 15


def test_attempts_of_one_task_never_share_a_file(root: Path) -> None:
    reports: list[StagedFile | None] = []

    def run() -> None:
        with area_of(root, partition=7) as area:
            area.write(pa.record_batch({"body": [b"same"]}))
            reports.append(area.finish())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({report.name for report in reports if report is not None}) == 8
    assert len(files_of(root)) == 8


def test_a_task_needs_a_store_of_ours_on_its_host(root: Path, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()  # a broker's
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAStoreError, match="not on this host"):
            area_of(path)


def test_a_task_opens_no_file_of_the_log_and_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    monkeypatch.setattr(durable, "hook", lambda operation, path: touched.append(path))
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a"]}))
        area.finish()
    opened = {str(Path(path).relative_to(root)) for path in touched}
    assert {"pyrmq/store.json", "config/topics.json"} <= opened
    assert not [path for path in opened if path.startswith(("commitlog/", "consumequeue", "index"))]
    assert not [path for path in opened if "lock" in path or path.endswith(("state", "progress", "abort"))]


def test_a_report_that_does_not_fit_the_file_is_found_out(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a", b"b"]}))
        staged = area.finish()
    assert staged is not None
    wrong = StagedFile(staged.name, staged.size_bytes, staged.crc32, 3, staged.content_sum, staged.topics)
    with pytest.raises(StagingError, match="not the 3 rows"):
        open_staged(root, wrong)
    (root / "pyrmq" / "staging" / "write-1" / "text").write_bytes(b"no arrow file")
    text = StagedFile("write-1/text", 13, zlib.crc32(b"no arrow file"), 1, 0, ())
    with pytest.raises(StagingError, match="write-1/text"):
        open_staged(root, text)


def test_a_file_with_frames_that_are_none_is_not_committed(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a", b"b"]}))
        staged = area.finish()
    assert staged is not None
    (batch,) = open_staged(root, staged)
    frames = pa.array([batch.column("frame")[0].as_py(), bytes(90)], pa.large_binary())
    with StagingFile(root, "write-2", 0, 0) as file:
        file.add(batch.set_column(0, "frame", frames), {"T": 1})
        short = file.finish()
    assert short is not None
    with pytest.raises(StagingError, match="too short to be any"):
        open_staged(root, short)


def test_batches_without_rows_are_passed_over(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"a", b"b"]}))
        staged = area.finish()
    assert staged is not None
    (batch,) = open_staged(root, staged)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ENCODED_SCHEMA) as writer:
        for part in (batch[:0], batch, pa.RecordBatch.from_pylist([], ENCODED_SCHEMA)):
            writer.write_batch(part)
    raw = sink.getvalue().to_pybytes()
    (root / "pyrmq" / "staging" / "write-1" / "gaps").write_bytes(raw)
    (found,) = open_staged(root, StagedFile("write-1/gaps", len(raw), zlib.crc32(raw), 2, 0, ()))
    assert found.equals(batch)


@pytest.mark.parametrize("in_threads_bytes", [staged_files._IN_THREADS_BYTES, 0])
def test_several_files_are_opened_in_their_order(
    root: Path, monkeypatch: pytest.MonkeyPatch, in_threads_bytes: int
) -> None:
    """Large ones in threads, of which small ones need none."""
    monkeypatch.setattr(staged_files, "_IN_THREADS_BYTES", in_threads_bytes)
    threads, open_one = set(), staged_files.open_staged

    def opened(*arguments: Any, **named: Any) -> list[pa.RecordBatch]:
        threads.add(threading.get_ident())
        return open_one(*arguments, **named)

    monkeypatch.setattr(staged_files, "open_staged", opened)
    reports = []
    for partition in range(5):
        with area_of(root, partition) as area:
            for count in range(1, partition + 1):
                area.write(pa.record_batch({"body": [b"%d" % partition] * count}))
            reports.append(area.finish())
    staged = [report for report in reports if report is not None]
    apart = [batch for file in staged for batch in open_staged(root, file)]
    assert len(apart) == 10
    together = open_all_staged(root, staged)
    assert (threading.get_ident() in threads) == (in_threads_bytes > 0)
    assert all(found.equals(wanted) for found, wanted in zip(together, apart, strict=True))
    files_of(root)[2].unlink()
    with pytest.raises(StagingError, match="is missing"):
        open_all_staged(root, staged)


def test_sweeping_takes_named_and_forgotten_directories_only(root: Path) -> None:
    for write_id in ("a", "b", "c"):
        with StagingArea.for_task(root, write_id, 0, 0, topic="T") as area:
            area.write(pa.record_batch({"body": [b"x"]}))
            area.finish()
    staging = root / "pyrmq" / "staging"
    for path in [staging / "b", *(staging / "b").iterdir()]:
        os.utime(path, (1000, 1000))
    assert sweep(root, ["a", "never"], older_than_ms=3_600_000) == 2
    assert [path.name for path in staging.iterdir()] == ["c"]
    assert sweep(str(root), older_than_ms=3_600_000) == 0


def test_a_directory_with_one_fresh_file_is_alive_however_old_the_others_are(root: Path) -> None:
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"x"]}))
        staging = root / "pyrmq" / "staging"
        (old,) = files_of(root)
        (staging / "write-1" / "old").write_bytes(b"")
        os.utime(staging / "write-1" / "old", (1000, 1000))
        os.utime(staging / "write-1", (1000, 1000))
        assert sweep(root, older_than_ms=60_000) == 0
        assert old.exists()


def test_a_file_of_another_version_is_not_committed(root: Path) -> None:
    """Its columns do not say what this version needs to know."""
    staging = root / "pyrmq" / "staging" / "old"
    staging.mkdir(parents=True)
    schema = pa.schema([field for field in ENCODED_SCHEMA if field.name != "delay_ms"])
    with pa.OSFile(str(staging / "old.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema))
    raw = (staging / "old.arrow").read_bytes()
    with pytest.raises(StagingError, match="another version"):
        open_staged(root, StagedFile("old/old.arrow", len(raw), zlib.crc32(raw), 0, 0, ()))


def test_a_task_takes_the_time_from_the_clock_of_the_store(root: Path) -> None:
    """Its messages are born, and wait, by the clock of a store made for tests."""
    ClockFile.create(root / "pyrmq" / "clock", 1_000_000)
    with area_of(root) as area:
        area.write(pa.record_batch({"body": [b"x"]}))
        staged = area.finish()
    assert staged is not None
    frame = open_staged(root, staged)[0].column("frame")[0].as_py()
    assert decode_frame(memoryview(frame), 0, len(frame)).born_timestamp_ms == 1_000_000
