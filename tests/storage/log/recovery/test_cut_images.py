"""Disks that a power cut left and that recovery once got wrong, as the simulated disk found them (tests/crash)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.files import durable

if TYPE_CHECKING:
    from .conftest import Lab


@pytest.mark.parametrize("torn", ["header without entries", "entries without header", "short"])
def test_a_newest_index_file_that_is_torn_does_not_keep_the_store_shut(lab: Lab, torn: str) -> None:
    """Its geometry cannot be told from what is in it; it is the one that the store was made with."""
    with lab.open():
        pass
    lab.crash(lambda store: store.append(lab.batch(10)))
    lab.written += 10
    index = next((lab.root / "index").iterdir())
    data = index.read_bytes()
    header, entries = data[:104], data[104:]
    index.write_bytes(
        {
            "header without entries": header + bytes(len(entries)),
            "entries without header": bytes(len(header)) + entries,
            "short": header,
        }[torn]
    )
    lab.reboot()
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(10))
    with lab.open() as store:
        assert lab.numbers(store) == list(range(10))
    assert index.read_bytes() == data
    assert lab.verify().status == "clean"


def test_the_name_of_the_first_segment_is_on_disk_before_the_next_one_is_made(lab: Lab) -> None:
    """Without its first segment a log looks like one that retention has shortened, and half a unit like a whole one."""
    operations: list[str] = []

    def note(operation: str, path: str) -> None:
        if "commitlog" in path and operation in ("rename", "fsync_directory"):
            operations.append(operation)

    with lab.open() as store:
        durable.hook = note
        store.append(lab.batch(60, body_bytes=300))
        segments = len(store._log.segments.bases())
        store.flush()
        durable.hook = None
    assert segments > 2
    assert operations == ["rename", "fsync_directory", *["rename"] * (segments - 1), "fsync_directory"]


def test_a_name_that_was_lost_behind_the_first_segment_ends_the_log_there(lab: Lab) -> None:
    """Later names are on disk with the flush that covers them: before, nobody was told that their messages are."""
    with lab.open() as store:
        store.append(lab.batch(4))

    def work(store: Store) -> None:
        store.append(lab.batch(60, body_bytes=300))
        assert len(store._log.segments.bases()) > 3

    lab.crash(work)
    segments = sorted((lab.root / "commitlog").iterdir())
    segments[1].unlink()
    lab.reboot()
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.case == "hole"
        assert store.log_range()[1] <= int(segments[1].name)
        assert lab.numbers(store)[:4] == list(range(4))
        store.append(lab.batch(60, body_bytes=300))
    assert lab.verify().status == "clean"


@pytest.mark.parametrize("missing", ["consumequeue", "index"])
def test_a_record_with_torn_properties_is_cut_though_views_are_missing_as_well(lab: Lab, missing: str) -> None:
    """RocketMQ #7437: the body's checksum does not cover the properties; ours does, where the store writes it."""
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        if missing == "index":
            store.append(lab.batch(4))
    end = _log_end(lab)

    def work(store: Store) -> None:
        store.send(Message("Alpha", b"%08d" % 99, keys="k" * 100))

    lab.crash(work)
    torn_end = _log_end(lab)
    lab.overwrite(torn_end - 60, bytes(60))
    shutil.rmtree(lab.root / missing)
    lab.reboot()
    assert _log_end(lab) == end
    with lab.open() as store:
        assert store.recovery is not None
        assert (store.recovery.trust, store.recovery.end, store.recovery.case) == ("COPY", end, "torn tail")
    assert lab.verify().status == "clean"


def _log_end(lab: Lab) -> int:
    with lab.open(read_only=True) as reader:
        return reader.log_range()[1]
