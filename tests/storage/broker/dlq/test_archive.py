"""Dead letters as Parquet: readable by anybody, and archived once.

Sources: docs/operations.md, section Dead letters: archive and restore; docs/broker-design.md section 2.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from rmq_store import ARCHIVE_SCHEMA, MESSAGE_SCHEMA, CorruptionError, Message, Store, StoreConfig, UsageError, backup
from rmq_store.broker.dlq import archive as module
from rmq_store.broker.dlq.archive_files import STORE_KEY, ArchiveFiles
from rmq_store.errors import CorruptConfigError, NotAStoreError, StoreFullError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock

from ..archiving import (
    DLQ,
    GROUP,
    NOW_MS,
    OTHER,
    SMALL,
    archive_all,
    archived,
    bury,
    count_down,
    damage,
    dead_letters,
    die,
    fill,
    in_child,
    kept,
    open_store,
    set_back,
)

pytestmark = pytest.mark.usefixtures("no_hook")


def test_an_archive_holds_what_a_reader_sees_the_reasons_and_the_record_itself(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 30)
        report = archive_all(store, fast / "archive")
        seen, stored = dead_letters(store, raw=False), dead_letters(store)
        assert report.files == (f"{GROUP}/0-{0:020d}-{30:020d}.parquet",)
        assert (report.row_count, report.damaged_count) == (30, 0)
        path = fast / "archive" / report.files[0]
        assert report.written_bytes == path.stat().st_size
        rows = archived(fast / "archive")
        assert [{name: row[name] for name in MESSAGE_SCHEMA.names} for row in rows] == seen
        for number, (row, raw) in enumerate(zip(rows, stored, strict=True)):
            assert (row["originTopic"], row["originQueueId"], row["originQueueOffset"]) == (
                "Orders", number % 4, number * 10,
            )  # fmt: skip
            assert (row["originMsgId"], row["errorClass"]) == (f"{number:032X}", "ValueError")
            assert row["errorMessage"] == f"no price in {number} – schade"
            assert row["firstFailureTime"] == datetime.fromtimestamp((NOW_MS - 5000) / 1000, UTC)
            assert (row["lastFailureTime"] is None) == (number % 5 == 0)
            assert (row["redriven"], row["damage"], row["stackHash"]) == (False, None, None)
            size = store.bytes_between(DLQ, 0, number, number + 1)
            assert len(row["frame"]) == size
            assert raw["body"] in row["frame"]
        schema = pq.read_schema(path)
        assert schema.remove_metadata().equals(ARCHIVE_SCHEMA)
        assert schema.metadata[STORE_KEY] == store.identity.encode()


def test_a_group_without_dead_letters_is_no_empty_archive(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 5)
        with pytest.raises(UsageError, match="no topic %DLQ%cg_order: "):
            archive_all(store, fast / "archive", [GROUP, "cg_order"])
        assert not list((fast / "archive").glob("*/*.parquet"))


def test_groups_of_older_brokers_are_archived_and_a_topic_of_no_group_stops_nobody(fast: Path) -> None:
    """Broker 4.9 took groups of 255 characters (Validators), 120 is today's limit."""
    long = "g" * 250
    with open_store(fast / "store") as store:
        bury(store, 2)
        bury(store, 3, long)
        bury(store, 4, "")
        assert archive_all(store, fast / "archive").row_count == 5
        assert archive_all(store, fast / "archive", [long]).row_count == 0
        for bad in ("", "../x", long + "g"):
            with pytest.raises(UsageError, match="name"):
                archive_all(store, fast / "archive", [bad])
    with open_store(fast / "other") as other:
        assert other.dead_letters.restore(fast / "archive").restored_count == 5
        assert len(dead_letters(other, long)) == 3


def test_only_what_is_not_archived_yet_is_added(fast: Path) -> None:
    directory = fast / "archive"
    with open_store(fast / "store") as store:
        bury(store, 5)
        bury(store, 3, OTHER)
        assert archive_all(store, directory, [GROUP]).row_count == 5
        assert archive_all(store, directory, [GROUP]).files == ()
        bury(store, 4, first=5)
        report = archive_all(store, directory)
        assert report.files == (
            f"{OTHER}/0-{0:020d}-{3:020d}.parquet", f"{GROUP}/0-{5:020d}-{9:020d}.parquet",
        )  # fmt: skip
        (directory / GROUP / f"0-{0:020d}-{5:020d}.parquet").unlink()
        assert archive_all(store, directory).files == (f"{GROUP}/0-{0:020d}-{5:020d}.parquet",)
    assert [row["flag"] for row in archived(directory)] == list(range(9))


def test_up_to_an_offset_means_records_below_it_and_older_than_means_stored_before(fast: Path) -> None:
    now = [NOW_MS]
    with Store.open(fast / "store", create=True, config=SMALL, clock=lambda: now[0]) as store:
        ends = []
        for number in range(6):
            now[0] += 1000
            bury(store, 1, first=number)
            ends.append(store.log_range()[1])
        archive = store.archive(fast / "archive")
        assert archive.archive_up_to(ends[1] - 1).row_count == 2  # begins below
        assert archive.archive_up_to(ends[1]).row_count == 0
        assert archive.archive_up_to(ends[1] + 1).row_count == 1
        assert archive.archive_older(NOW_MS + 5000).row_count == 1
        assert archive.archive_older(NOW_MS + 5000).row_count == 0
        assert archive.archive_up_to(ends[-1] + 10**9).row_count == 2


def test_what_was_redriven_says_so(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 6)
        rows = pa.RecordBatch.from_pydict(
            {"queueId": pa.array([0, 0], pa.int32()), "queueOffset": pa.array([1, 4], pa.int64())}
        )
        assert store.dead_letters.redrive(GROUP, rows).column("outcome").to_pylist() == ["REDRIVEN"] * 2
        archive_all(store, fast / "archive")
    assert [row["redriven"] for row in archived(fast / "archive")] == [n in (1, 4) for n in range(6)]


def test_a_file_is_cut_by_bytes_and_its_rows_come_in_row_groups(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 5000)
    monkeypatch.setattr(module, "_READ_ROWS", 3)
    with open_store(fast / "store") as store:
        bury(store, 40)
        report = archive_all(store, fast / "archive")
        assert len(report.files) > 2
        assert report.row_count == 40
        assert archive_all(store, fast / "archive").files == ()
    first = pq.ParquetFile(fast / "archive" / report.files[0])
    assert first.num_row_groups == -(-first.metadata.num_rows // 3)
    assert [row["flag"] for row in archived(fast / "archive")] == list(range(40))


def test_damaged_dead_letters_do_not_stop_the_others(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 20)
        damage(store, 4, 0)  # its size
        damage(store, 8, 92)  # its body
        sent = store.send(Message(DLQ, b"no zlib stream", queue_id=0), sys_flag=0x301)
        report = archive_all(store, fast / "archive")
        assert (report.row_count, report.damaged_count) == (21, 2)
        rows = archived(fast / "archive")
        assert [row["queueOffset"] for row in rows] == list(range(21))
        assert [n for n, row in enumerate(rows) if row["damage"]] == [4, 8]
        assert [n for n, row in enumerate(rows) if row["body"] is None] == [4, 8]
        assert (rows[20]["body"], rows[20]["sysFlag"]) == (b"no zlib stream", 0x301)
        assert len(rows[8]["frame"]) == store.bytes_between(DLQ, 0, 8, 9)
        assert rows[20]["msgId"] == sent.msg_id
    with open_store(fast / "other") as other:
        report = other.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.damaged_count) == (19, 2)
        assert dead_letters(other)[-1]["body"] == b"no zlib stream"


def test_an_archive_of_another_store_is_refused_and_so_are_files_that_overlap(fast: Path) -> None:
    directory = fast / "archive"
    with open_store(fast / "store") as store, open_store(fast / "other") as other:
        bury(store, 4)
        bury(other, 4)
        archive_all(store, directory)
        with pytest.raises(UsageError, match="another store"):
            archive_all(other, directory)
        good = directory / GROUP / f"0-{0:020d}-{4:020d}.parquet"
        bad = good.with_name(f"0-{3:020d}-{9:020d}.parquet")
        bad.write_bytes(good.read_bytes())
        with pytest.raises(UsageError, match="the same dead letters"):
            archive_all(store, directory)
        bad.rename(good.with_name(f"0-{9:020d}-{9:020d}.parquet"))
        with pytest.raises(UsageError, match="empty"):
            archive_all(store, directory)
        with pytest.raises(UsageError, match="no directory"):
            archive_all(store, fast / "no" / "archive")
        wrong = '{"format": 1, "store": "x", "archive": 7}'
        for content in ("", "{}", "[]", wrong, '{"format": 1, "store": 7}', '{"format": 2, "store": "x"}'):
            (directory / "_archive.json").write_text(content)
            with pytest.raises((UsageError, CorruptConfigError, NotAStoreError)):
                archive_all(store, directory)


@pytest.mark.parametrize("later", [3, 9, 20])
def test_dead_letters_of_a_store_that_was_set_back_are_not_taken_for_archived(fast: Path, later: int) -> None:
    directory = fast / "archive"
    with open_store(fast / "store") as store:
        bury(store, 5)
        archive_all(store, directory)
    backup(fast / "store", fast / "copy")
    with open_store(fast / "store") as store:
        bury(store, 6, first=5)
        bury(store, 2, OTHER)
        archive_all(store, directory)
    set_back(fast)
    with open_store(fast / "store") as store:
        assert archive_all(store, directory).files == ()  # nothing was added, and what there is is archived
        bury(store, later, first=100)
        with pytest.raises(UsageError, match="was set back, or is a copy") as refused:
            archive_all(store, directory)
        moved = directory / GROUP / f"0-{5:020d}-{11:020d}.parquet"
        assert str(moved) in str(refused.value)
        moved.rename(fast / moved.name)
        assert archive_all(store, directory).row_count == later
    flags = [row["flag"] for row in archived(directory)]
    assert flags == [*range(5), *range(100, 100 + later)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dead_letter_that_is_damaged_is_no_other_one(fast: Path, when: str) -> None:
    with open_store(fast / "store") as store:
        bury(store, 6)
        if when == "before":
            damage(store, 4, 0)
        store.archive(fast / "archive").archive_up_to(store.commit_log_offset_before(DLQ, 0, 6))
        if when == "after":
            damage(store, 4, 0)
        assert archive_all(store, fast / "archive").row_count == 1


def test_an_archive_file_that_cannot_be_read_is_not_believed(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 5)
        (name,) = archive_all(store, fast / "archive").files
        (fast / "archive" / name).write_bytes(b"PAR1")
        bury(store, 1, first=5)
        with pytest.raises(CorruptionError, match="not readable"):
            archive_all(store, fast / "archive")


def test_two_that_archive_at_the_same_time_take_turns(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fast / "archive"
    with open_store(fast / "store") as store:
        bury(store, 4)
        archive_all(store, directory)
        lock = OfdLock(directory / ".lock")
        assert lock.try_exclusive()
        monkeypatch.setattr("rmq_store.broker.dlq.archive_files._LOCK_TIMEOUT_MS", 20)
        with pytest.raises(StoreLockedError):
            archive_all(store, directory)
        lock.close()
        assert archive_all(store, directory).row_count == 0


def _no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_killed_at_any_operation_and_run_again_every_dead_letter_is_archived_once(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 4000)
    with open_store(fast / "store") as store:
        bury(store, 20)
        bury(store, 2, OTHER)
        wanted = [row["msgId"] for row in dead_letters(store) + dead_letters(store, OTHER)]
    for k in itertools.count(1):
        directory = fast / f"archive-{k}"

        def killed(directory: Path = directory, k: int = k) -> None:
            with Store.open(fast / "store", read_only=True) as store:
                durable.hook = count_down(k, die)
                archive_all(store, directory)
                durable.hook = None

        done = in_child(killed)
        for path in directory.glob("*/*.parquet"):
            assert pq.ParquetFile(path).metadata.num_rows == int(path.stem[-20:]) - int(path.stem[-41:-21])
        with Store.open(fast / "store", read_only=True) as store:
            archive_all(store, directory)
        rows = archived(directory) + archived(directory, OTHER)
        assert [row["msgId"] for row in rows] == wanted
        assert not list(directory.glob("*/.*.tmp"))
        if done:
            break
    assert k > 40


def test_what_a_killed_run_left_is_removed(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 3)
        archive_all(store, fast / "archive")
        leftover = fast / "archive" / GROUP / f".0-{3:020d}-{9:020d}.parquet.tmp"
        leftover.touch()
        archive_all(store, fast / "archive")
        assert not leftover.exists()


def test_other_peoples_files_stay(fast: Path) -> None:
    """The archive may lie in a directory of somebody's: any `.x.tmp` one level down was taken for a leftover."""
    with open_store(fast / "store") as store:
        bury(store, 3)
        for name in ("photos/.edit.tmp", f"{GROUP}/.download.tmp", f"not a group/.0-{0:020d}-{3:020d}.parquet.tmp"):
            path = fast / "archive" / name
            path.parent.mkdir(parents=True)
            path.write_text("x")
        assert archive_all(store, fast / "archive").row_count == 3
        assert len(list((fast / "archive").glob("*/.*.tmp"))) == 3


@pytest.mark.parametrize("where", ["store", "store/commitlog", "store/config/new", "link/commitlog", "store/../store"])
def test_an_archive_in_the_store_itself_is_refused(
    fast: Path, where: str, tree_hash: Callable[[Path], str]
) -> None:
    """A description in commitlog/, and no broker loads the store any more."""
    (fast / "link").symlink_to("store")
    with open_store(fast / "store") as store:
        bury(store, 3)
        before = tree_hash(fast / "store")
        with pytest.raises(UsageError, match="lies in the store itself"):
            archive_all(store, fast / where)
        with pytest.raises(UsageError, match="lies in the store itself"):
            store.retention.configure(dlq_archive_path=str(fast / where))
        assert store.retention.settings().dlq_archive_path == ""
        assert tree_hash(fast / "store") == before
    config = replace(SMALL, dlq_archive_path=str(fast / where))
    with pytest.raises(UsageError, match="lies in the store itself"):
        open_store(fast / "store", config=config)


def test_a_store_in_the_archive_is_no_group_of_it(fast: Path) -> None:
    """An archive may hold the store; but a group that is called as the store is would be written into it."""
    with open_store(fast / "store") as store:
        bury(store, 2)
        bury(store, 2, "store")
        assert archive_all(store, fast, [GROUP]).row_count == 2
        with pytest.raises(UsageError, match="lies in the store itself"):
            archive_all(store, fast, ["store"])
        assert not list((fast / "store").glob("*.parquet"))


def test_a_file_is_on_disk_before_it_has_its_name(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 3)
        done: list[tuple[str, str]] = []
        durable.hook = lambda operation, path: done.append((operation, Path(path).name))
        (name,) = archive_all(store, fast / "archive").files
    durable.hook = None
    name = Path(name).name
    assert [operation for operation in done if operation[1] in (name, f".{name}.tmp", GROUP)][-5:] == [
        ("open", f".{name}.tmp"), ("write", f".{name}.tmp"), ("fsync", f".{name}.tmp"), ("rename", name),
        ("fsync_directory", GROUP),
    ]  # fmt: skip


def test_a_full_disk_leaves_whole_files_only(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 4000)
    with open_store(fast / "store") as store:
        bury(store, 20)
        for k in itertools.count(1, 3):
            directory = fast / f"archive-{k}"
            fail = count_down(k, _no_space, below=fast / f"archive-{k}")
            durable.hook = lambda operation, path, fail=fail: (
                None if operation in ("open", "read") and Path(path).exists() else fail(operation, path)
            )
            try:
                archive_all(store, directory)
                break
            except StoreFullError:
                pass
            finally:
                durable.hook = None
            assert not list(directory.glob("*/.*"))
            archive_all(store, directory)
            assert len(archived(directory)) == 20
        assert k > 20


def test_a_segment_that_is_archived_is_kept_from_retention_meanwhile(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 60)
        oldest = min((fast / "store" / "commitlog").iterdir())
        seen = []
        store.archive(fast / "archive").archive_up_to(
            store.log_range()[1], progress=lambda rows, size: seen.append(OfdLock(oldest).who().kind)
        )
        assert seen == ["shared"] * len(seen) != []
        assert OfdLock(oldest).who().kind == "free"


def test_a_brokers_dead_letters_are_archived_from_a_store_that_is_only_read(
    golden: Path, fast: Path, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(golden / "store")
    with Store.open(golden / "store", read_only=True) as store:
        report = archive_all(store, fast / "archive")
        groups = {name[5:] for name in store.topics() if name.startswith("%DLQ%")}
        wanted = {group: dead_letters(store, group, raw=False) for group in groups}
    assert tree_hash(golden / "store") == before
    assert report.row_count == sum(map(len, wanted.values())) > 0
    for group, rows in wanted.items():
        found = [{name: row[name] for name in MESSAGE_SCHEMA.names} for row in archived(fast / "archive", group)]
        assert found == rows
    with open_store(fast / "ours", config=StoreConfig(flush_interval_commit_log=10**9)) as ours:
        assert ours.dead_letters.restore(fast / "archive").restored_count == report.row_count
        for group, rows in wanted.items():
            assert kept(dead_letters(ours, group, raw=False)) == kept(rows)


def test_pandas_and_pyarrow_read_the_directory(fast: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with open_store(fast / "store") as store:
        bury(store, 4)
        archive_all(store, fast / "archive")
        bury(store, 3, first=4)
        bury(store, 2, OTHER)
        archive_all(store, fast / "archive")
    table = pa.dataset.dataset(fast / "archive").to_table()
    assert sorted(table.column("flag").to_pylist()) == [0, 0, 1, 1, 2, 3, 4, 5, 6]
    frame = pandas.read_parquet(fast / "archive" / GROUP)
    assert list(frame["errorClass"]) == ["ValueError"] * 7
    assert list(frame.columns) == ARCHIVE_SCHEMA.names


def test_retention_archives_dead_letters_before_it_deletes_their_segments(fast: Path) -> None:
    """The setting dlqArchivePath; where the archive refuses, the segments stay."""
    future_ms = 4_000_000_000_000  # segments expire by the time of their files
    config = StoreConfig(
        **{name: getattr(SMALL, name) for name in StoreConfig.__slots__ if name != "dlq_archive_path"},
        dlq_archive_path=str(fast / "archive"),
    )
    with Store.open(fast / "store", create=True, config=config, clock=lambda: future_ms) as store:
        bury(store, 50)
        fill(store, 200)
        wanted = dead_letters(store, raw=False)
        with open_store(fast / "other") as other:
            bury(other, 1)
            archive_all(other, fast / "archive")
        report = store.retention.run(manual=True, file_reserved_time=0)
        assert (report.removed, "another store" in report.stopped) == ((), True)
        (fast / "archive").rename(fast / "archive of other")
        while (report := store.retention.run(manual=True, file_reserved_time=0)).removed:
            assert not report.stopped
        assert store.queue_range(DLQ, 0) == (50, 50)
        rows = archived(fast / "archive")
        assert [{name: row[name] for name in MESSAGE_SCHEMA.names} for row in rows] == wanted
        assert store.dead_letters.restore(fast / "archive").restored_count == 50


def test_names_of_files_are_whole_ranges_and_nothing_else_is_believed(fast: Path) -> None:
    directory = fast / "archive"
    (directory / GROUP).mkdir(parents=True)
    for name in ("part-0.parquet", f"0-{0:020d}-{4:020d}.parquet.tmp", f"-1-{0:020d}-{4:020d}.parquet", f"0-{0:019d}-"):
        (directory / GROUP / name).touch()
    assert ArchiveFiles(directory).of(GROUP) == []
    (directory / "not a group").mkdir()
    assert ArchiveFiles(directory).groups() == [GROUP]
    with pytest.raises(UsageError):
        ArchiveFiles(directory).of("../other")


def test_gaps_are_what_no_file_holds() -> None:
    def files(*ranges: tuple[int, int]) -> list[module.ArchiveFile]:
        return [module.ArchiveFile("g", 0, start, end, Path()) for start, end in ranges]

    rng = np.random.default_rng(7)
    for _ in range(300):
        cuts = np.unique(rng.integers(0, 40, rng.integers(0, 9))).tolist()
        taken = [(low, high) for low, high in itertools.pairwise(cuts) if rng.random() < 0.6]
        start, end = sorted(rng.integers(0, 45, 2).tolist())
        held = {offset for low, high in taken for offset in range(low, high)}
        gaps = module._gaps(files(*taken), start, end)
        assert [offset for low, high in gaps for offset in range(low, high)] == sorted(set(range(start, end)) - held)
        assert all(low < high for low, high in gaps)

