"""Archived dead letters back in a store: as they were, and once.

Sources: docs/operations.md, section Dead letters: archive and restore; docs/broker-design.md section 2.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store import CorruptionError, Message, RestoreReport, Store, StoreConfig, UsageError, backup
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedriveLedger
from rmq_store.broker.dlq.restore_ledger import RESTORED_TOPIC
from rmq_store.broker.rules import purposes
from rmq_store.broker.write.system_records import system_records
from rmq_store.errors import CorruptRecordError, NotAStoreError
from rmq_store.files import durable
from rmq_store.log.core.units import UnitRecord
from rmq_store.verify import verify_store

from ..archiving import (
    DLQ,
    GROUP,
    OTHER,
    SMALL,
    archive_all,
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

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_hook")]


@pytest.mark.parametrize("crc", [True, False])
def test_a_store_that_lost_its_segments_gets_its_dead_letters_back_as_they_were(fast: Path, crc: bool) -> None:
    root, directory = fast / "store", fast / "archive"
    config = StoreConfig(**{**{name: getattr(SMALL, name) for name in StoreConfig.__slots__},
                            "enabled_append_prop_crc": crc})  # fmt: skip
    with open_store(root, config=config) as store:
        bury(store, 50)
        fill(store, 100)
        before = dead_letters(store)
        archive_all(store, directory)
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    with open_store(root, config=config) as store:
        assert store.queue_range(DLQ, 0) == (50, 50)
        report = store.dead_letters.restore(directory)
        assert (report.restored_count, report.present_count) == (50, 0)
        after = dead_letters(store)
        assert [row["queueOffset"] for row in after] == list(range(50, 100))
        assert kept(after) == kept(before)
    assert verify_store(root).status == "clean"


def test_a_repetition_adds_nothing_unless_it_is_asked_to(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 12)
        bury(store, 3, OTHER)
        archive_all(store, fast / "archive")
    with open_store(fast / "other") as store:
        restore = store.dead_letters.restore
        assert restore(fast / "archive", GROUP, start=4, end=6).restored_count == 2
        report = restore(fast / "archive")
        assert (report.restored_count, report.present_count) == (13, 2)
        assert restore(fast / "archive").restored_count == 0
        assert [row["flag"] for row in dead_letters(store)] == [4, 5, 0, 1, 2, 3, *range(6, 12)]
    with open_store(fast / "other") as store:
        assert store.dead_letters.restore(fast / "archive").present_count == 15
        assert store.dead_letters.restore(fast / "archive", OTHER, again=True).restored_count == 3
        assert len(dead_letters(store, OTHER)) == 6


def test_what_still_lies_where_it_was_archived_is_left_out(fast: Path) -> None:
    """Ten dead letters were archived, restored and redriven: every order came twice."""
    root, directory = fast / "store", fast / "archive"
    with open_store(root) as store:
        bury(store, 40)
        archive_all(store, directory)
        report = store.dead_letters.restore(directory)
        assert (report.restored_count, report.in_place_count, report.present_count) == (0, 40, 0)
        bury(store, 20, first=40)
    for path in sorted((root / "commitlog").iterdir())[:1]:
        path.unlink()
    with open_store(root) as store:
        first, last = store.queue_range(DLQ, 0)
        assert 0 < first < 40 < last == 60
        report = store.dead_letters.restore(directory)
        assert (report.restored_count, report.in_place_count, report.present_count) == (first, 40 - first, 0)
        assert sorted(row["flag"] for row in dead_letters(store)) == [*range(60)]
        report = store.dead_letters.restore(directory)
        assert (report.restored_count, report.in_place_count, report.present_count) == (0, 40 - first, first)
        assert store.dead_letters.restore(directory, start=39, again=True).restored_count == 1


def test_a_dead_letter_that_was_damaged_in_its_place_is_restored(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 6)
        archive_all(store, fast / "archive")
        damage(store, 4, 92)
        report = store.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.in_place_count) == (1, 5)


def test_a_store_that_had_no_identity_yet_has_its_dead_letters_in_place(
    golden: Path, fast: Path, copy_store: Callable[[Path, Path], Path]
) -> None:
    """Not who the store is counts, but what lies in it."""
    root = copy_store(golden / "store", fast / "store")
    with Store.open(root, read_only=True) as store:
        count = archive_all(store, fast / "archive").row_count
    with Store.open(root) as ours:
        report = ours.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.in_place_count) == (0, count)


def test_what_was_deleted_with_its_group_is_seen_again_once(fast: Path) -> None:
    """A topic that is deleted leaves its queues: restored next to them, every dead letter would be there twice."""
    with open_store(fast / "store") as store:
        bury(store, 5)
        archive_all(store, fast / "archive")
        store.admin.delete_topic(DLQ)
        assert store.dead_letters.restore(fast / "archive").in_place_count == 5
        assert [row["flag"] for row in dead_letters(store)] == [*range(5)]


@pytest.mark.parametrize("again", [False, True])
def test_dead_letters_that_a_set_back_store_has_lost_come_back_from_the_file_that_was_moved(
    fast: Path, again: bool
) -> None:
    """They had the offsets that others have now, and were taken for these: none of them came back."""
    archive, elsewhere = fast / "archive", fast / "elsewhere"
    with open_store(fast / "store") as store:
        bury(store, 5)
    backup(fast / "store", fast / "copy")
    with open_store(fast / "store") as store:
        archive_all(store, archive)
        bury(store, 5, first=10)
        archive_all(store, archive)
    set_back(fast)
    with open_store(fast / "store") as store:
        bury(store, 5, first=20)
        with pytest.raises(UsageError, match="`rmq dlq restore DIR` puts its dead letters back") as refused:
            archive_all(store, archive)
        name = f"{GROUP}/0-{5:020d}-{10:020d}.parquet"
        assert f"From DIR/{name}" in str(refused.value)
        (elsewhere / GROUP).mkdir(parents=True)
        (archive / name).rename(elsewhere / name)
        archive_all(store, archive)
        restore = store.dead_letters.restore
        report = restore(archive, start=5, again=again)
        assert (report.restored_count, report.in_place_count) == ((5, 0) if again else (0, 5))
        assert restore(elsewhere).restored_count == 5
        shutil.copytree(elsewhere, fast / "a copy")
        shutil.copy(archive / "_archive.json", fast / "a copy")
        assert restore(fast / "a copy").present_count == 5
        flags = [row["flag"] for row in dead_letters(store)]
        assert flags == [*range(5), *range(20, 25), *(range(20, 25) if again else ()), *range(10, 15)]


def test_a_moved_file_of_a_store_without_identity_needs_the_description_of_its_archive(
    golden: Path, fast: Path
) -> None:
    with Store.open(golden / "store", read_only=True) as store:
        count = archive_all(store, fast / "archive").row_count
    description = fast / "archive" / "_archive.json"
    description.rename(fast / "_archive.json")
    with open_store(fast / "ours", config=StoreConfig(flush_interval_commit_log=10**9)) as ours:
        with pytest.raises(UsageError, match=r"copy the _archive\.json of the archive that it was in"):
            ours.dead_letters.restore(fast / "archive")
        (fast / "_archive.json").rename(description)
        assert ours.dead_letters.restore(fast / "archive").restored_count == count


def test_what_a_development_version_restored_is_refused_by_name(fast: Path) -> None:
    """Its records have no digests."""
    with open_store(fast / "store") as store:
        bury(store, 8)
        archive_all(store, fast / "archive")
        key = f"{store.identity}/{GROUP}"
    with open_store(fast / "other") as other:
        older = RedriveLedger(other._log, topic=RESTORED_TOPIC)
        some = OffsetRanges.of(np.array([0, 1, 2, 5]))
        record = older.record(key, {0: some}, other.dead_letters._host)
        assert other._writer is not None
        other._writer.append_unit([record], UnitRecord(purposes.RESTORE, key, 1, 1), expect=None)
        with pytest.raises(NotAStoreError, match=r"development version .* without `digests`\): restore into another"):
            other.dead_letters.restore(fast / "archive")


def test_an_archive_of_a_development_version_is_refused_by_name(fast: Path) -> None:
    """It has no identity of its own."""
    with open_store(fast / "store") as store:
        bury(store, 8)
        archive_all(store, fast / "archive")
        description = fast / "archive" / "_archive.json"
        content = json.loads(description.read_text())
        description.write_text(json.dumps({name: text for name, text in content.items() if name != "archive"}))
        with pytest.raises(NotAStoreError, match=r"_archive\.json: written by a development version .*add \"archive\""):
            store.dead_letters.restore(fast / "archive")
        description.write_text(json.dumps(content))
        assert store.dead_letters.restore(fast / "archive").in_place_count == 8


@pytest.mark.parametrize("content", ['{"0": "12"}', '{"0": "xy"}', '{"1": ""}', "7", '{"0": 7}'])
def test_a_record_of_what_was_restored_that_is_none_is_damage(fast: Path, content: str) -> None:
    with open_store(fast / "store") as store:
        bury(store, 2)
        archive_all(store, fast / "archive")
    with open_store(fast / "other") as other:
        body = f'{{"group": "g", "moved": {{"0": [[0, 1]]}}, "digests": {content}}}'
        encoded = system_records(other._log, other.dead_letters._host, RESTORED_TOPIC, 0, "g", [body.encode()])
        assert other._writer is not None
        other._writer.append_unit([encoded], UnitRecord(purposes.RESTORE, "g", 1, 1), expect=None)
        with pytest.raises(CorruptRecordError, match="no record of moved dead letters"):
            other.dead_letters.restore(fast / "archive")


def test_the_record_of_what_was_restored_fits_a_small_segment(fast: Path) -> None:
    """Every other dead letter: a range for each. In units as large as a record allows, and a name as long as any."""
    group = "g" * 250
    with open_store(fast / "store", config=replace(SMALL, mapped_file_size_commit_log=1 << 20)) as store:
        bury(store, 400, group)
        (name,) = archive_all(store, fast / "archive").files
    table = pq.read_table(fast / "archive" / name)
    every_other = pa.array(["lost", None] * 200)
    column = table.schema.get_field_index("damage")
    pq.write_table(table.set_column(column, "damage", every_other), fast / "archive" / name)
    tiny = replace(SMALL, mapped_file_size_commit_log=4096)
    with open_store(fast / "small", config=tiny) as small:
        report = small.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.damaged_count) == (200, 200)
        assert small.dead_letters.restore(fast / "archive").present_count == 200


def test_offsets_that_no_queue_has_are_limits_like_others(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 3)
        archive_all(store, fast / "archive")
    with open_store(fast / "other") as other:
        assert other.dead_letters.restore(fast / "archive", start=1 << 70, end=1 << 80) == RestoreReport()
        assert other.dead_letters.restore(fast / "archive", start=-(1 << 70), end=1 << 80).restored_count == 3


def test_two_that_restore_at_the_same_time_add_each_dead_letter_once(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 5)
        archive_all(store, fast / "archive")
    with open_store(fast / "ours") as ours, open_store(fast / "ours") as other:
        table = ours.dead_letters._restorer._table
        restored = table.restored

        def interrupted(*arguments: Any) -> pa.RecordBatch:
            table.restored = restored  # type: ignore[method-assign]
            assert other.dead_letters.restore(fast / "archive", start=1).restored_count == 4
            return restored(*arguments)

        table.restored = interrupted  # type: ignore[method-assign]
        report = ours.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.present_count) == (1, 4)
        assert sorted(row["flag"] for row in dead_letters(ours)) == [*range(5)]


def test_restored_dead_letters_can_be_redriven(fast: Path) -> None:
    with open_store(fast / "store") as store:
        bury(store, 3)
        archive_all(store, fast / "archive")
    with open_store(fast / "other") as other:
        other.create_topic("Orders", 1)
        other.dead_letters.restore(fast / "archive")
        rows = pa.RecordBatch.from_pydict(
            {"queueId": pa.array([0] * 3, pa.int32()), "queueOffset": pa.array(range(3), pa.int64())}
        )
        outcomes = other.dead_letters.redrive(GROUP, rows, to_topic="Orders").column("outcome").to_pylist()
        assert outcomes == ["REDRIVEN"] * 3


@pytest.mark.parametrize("chunk_rows", [4, 10_000])
@pytest.mark.slow
def test_killed_at_any_operation_and_run_again_every_dead_letter_is_restored_once(
    fast: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr("rmq_store.broker.dlq.archive_restore.CHUNK_ROWS", chunk_rows)
    with open_store(fast / "store") as store:
        bury(store, 10)
        wanted = kept(dead_letters(store))
        archive_all(store, fast / "archive")
    Store.open(fast / "empty", create=True, config=SMALL).close()
    halfway = 0
    for k in itertools.count(1, 3):
        root = fast / f"copy-{k}"

        def killed(root: Path = root, k: int = k) -> None:
            with open_store(root) as store:
                durable.hook = count_down(k, die)
                store.dead_letters.restore(fast / "archive")
                durable.hook = None

        done = in_child(killed)
        with open_store(root) as store:
            there = len(dead_letters(store)) if DLQ in store.topics() else 0
            assert there % min(chunk_rows, 10) in (0, 10 % chunk_rows)
            halfway += 0 < there < 10
            report = store.dead_letters.restore(fast / "archive")
            assert (report.restored_count, report.present_count) == (10 - there, there)
            assert kept(dead_letters(store)) == wanted
        assert verify_store(root).status == "clean"
        if done:
            break
    assert k > 20
    assert (halfway > 0) == (chunk_rows < 10)


def test_files_that_are_not_what_they_say_are_refused(fast: Path) -> None:
    directory = fast / "archive"
    with open_store(fast / "store") as store:
        bury(store, 6)
        archive_all(store, directory)
        path = directory / GROUP / f"0-{0:020d}-{6:020d}.parquet"
        table = pq.read_table(path)
        good = path.read_bytes()

        def with_column(name: str, values: pa.Array) -> pa.Table:
            return table.set_column(table.schema.get_field_index(name), name, values)

        frames = table.column("frame").to_pylist()
        body = frames[0].index(b"000000")
        flipped = frames[0][:body] + b"X" + frames[0][body + 1 :]
        name = frames[0].index(b"RETRY_TOPIC")
        renamed = frames[0][:name] + b"S" + frames[0][name + 1 :]
        for other in (
            table.drop_columns(["frame"]),
            pa.concat_tables([table, table.slice(5)]),
            with_column("queueOffset", pa.array(range(1, 7), pa.int64())),
            with_column("frame", pa.array([flipped, *frames[1:]], pa.binary())),
            with_column("frame", pa.array([renamed, *frames[1:]], pa.binary())),
            with_column("frame", pa.array([frames[0][:-1], *frames[1:]], pa.binary())),
            with_column("frame", pa.array([None, *frames[1:]], pa.binary())),
            with_column("frame", pa.array([f.decode("latin-1") for f in frames])),
        ):
            pq.write_table(other, path)
            with pytest.raises(CorruptionError, match=f"0-{0:020d}-{6:020d}.parquet"):
                store.dead_letters.restore(directory)
        for content in (b"", b"PAR1", good[:-100], good[:200] + b"\xff" * 50 + good[250:]):
            path.write_bytes(content)
            with pytest.raises(CorruptionError):
                store.dead_letters.restore(directory)
        path.write_bytes(good)
        (directory / OTHER).mkdir()
        for wrong in (f"{GROUP}/1-{0:020d}-{6:020d}", f"{GROUP}/0-{1:020d}-{7:020d}", f"{OTHER}/0-{0:020d}-{6:020d}"):
            moved = path.rename(directory / f"{wrong}.parquet")
            with pytest.raises(CorruptionError, match="another one"):
                store.dead_letters.restore(directory)
            moved.rename(path)
        assert len(dead_letters(store)) == 6
        with pytest.raises(UsageError, match="no dead letters of group"):
            store.dead_letters.restore(directory, "cg_none")
        for empty in (fast, directory / GROUP):
            with pytest.raises(UsageError, match="no archive"):
                store.dead_letters.restore(empty)


def test_a_bit_that_flipped_in_a_file_is_noticed_or_harmless(fast: Path) -> None:
    """The frame's checksum covers the body only; pages of the file have checksums of their own."""
    with open_store(fast / "store") as store:
        bury(store, 6)
        wanted = kept(dead_letters(store))
        (name,) = archive_all(store, fast / "archive").files
    path = fast / "archive" / name
    good = path.read_bytes()
    noticed = 0
    with open_store(fast / "other") as other:
        for position in range(4, len(good) - 8, len(good) // 250):
            path.write_bytes(good[:position] + bytes([good[position] ^ 0x04]) + good[position + 1 :])
            try:
                other.dead_letters.restore(fast / "archive", again=True)
            except CorruptionError:
                noticed += 1
                continue
            first, last = other.queue_range(DLQ, 0)
            rows = [row for batch in other.read(DLQ, 0, last - 6, last, raw_body=True) for row in batch.to_pylist()]
            assert kept(rows) == wanted, position
            assert first == 0
    assert noticed > 50


def test_a_bit_that_flipped_in_the_number_of_rows_is_noticed(fast: Path) -> None:
    """The footer of a file has no checksum: with fewer rows the others would be left out, and nobody told."""
    with open_store(fast / "store") as store:
        bury(store, 6)
        (name,) = archive_all(store, fast / "archive").files
    path = fast / "archive" / name
    good, flipped = path.read_bytes(), []
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for position in range(footer, len(good) - 8):
        data = good[:position] + bytes([good[position] ^ 0x04]) + good[position + 1 :]
        with contextlib.suppress(OSError, pa.ArrowException):
            found = pq.read_metadata(io.BytesIO(data))
            if found.num_row_groups == 1 and {found.num_rows, found.row_group(0).num_rows} != {6}:
                flipped.append(data)
    assert flipped
    with open_store(fast / "other") as other:
        for data in flipped:
            path.write_bytes(data)
            with pytest.raises(CorruptionError):
                other.dead_letters.restore(fast / "archive")


def test_a_store_that_cannot_hold_a_record_says_how_many_it_left_out(fast: Path) -> None:
    large = StoreConfig(flush_interval_commit_log=10**9, enabled_append_prop_crc=False)
    with open_store(fast / "large", config=large) as store:
        store.create_topic(DLQ, 1)
        store.send(Message(DLQ, b"." * 20_000, queue_id=0))
        store.send(Message(DLQ, b"long", properties={"p": "v" * 32_710}, queue_id=0))
        store.send(Message(DLQ, b"fits", queue_id=0))
        archive_all(store, fast / "archive")
    with open_store(fast / "small") as store:
        report = store.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.refused_count) == (1, 2)
        assert [row["body"] for row in dead_letters(store)] == [b"fits"]
    with open_store(fast / "with checksums", config=StoreConfig(flush_interval_commit_log=10**9)) as store:
        report = store.dead_letters.restore(fast / "archive")
        assert (report.restored_count, report.refused_count) == (2, 1)
        assert [len(row["body"]) for row in dead_letters(store)] == [20_000, 4]


def test_dead_letters_of_two_brokers_are_told_apart_when_they_are_restored(golden: Path, fast: Path) -> None:
    for name in ("one", "two"):
        with Store.open(golden / "store", read_only=True) as store:
            count = archive_all(store, fast / name).row_count
    with open_store(fast / "ours", config=StoreConfig(flush_interval_commit_log=10**9)) as ours:
        assert ours.dead_letters.restore(fast / "one").restored_count == count
        assert ours.dead_letters.restore(fast / "two").restored_count == count
        assert ours.dead_letters.restore(fast / "two").present_count == count
