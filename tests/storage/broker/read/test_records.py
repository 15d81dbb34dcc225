"""Records found by offsets that a caller gives: only what begins there, is whole, and lies below the end."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import CorruptRecordError, Message, ResponseError, Store, StoreFailedError, UsageError
from rmq_store.broker.read import records
from rmq_store.broker.read.records import StoredFrames, message_at, stored_text


@pytest.fixture
def store(parking: Any) -> Any:
    with parking.open() as opened:
        yield opened


def send(store: Store, body: bytes, **fields: Any) -> int:
    return store.send(Message("T", body, **fields)).commit_log_offset


def test_sizes_of_records_below_the_end_and_0_for_everything_else(store: Store) -> None:
    offsets = [send(store, b"x" * size) for size in (0, 10, 30_000, 40_000)]
    end = store.log_range()[1]
    assert offsets[-1] >= 65_536  # in a second segment, behind a blank
    blank = store.message_at(offsets[2]).total_size + offsets[2]
    asked = np.array([*offsets, blank, offsets[0] + 1, -1, end, 1 << 62, -(1 << 62), 65_536 - 8], np.int64)
    found = StoredFrames(store._log).sizes(asked, end)
    assert found[:4].tolist() == [store.message_at(offset).total_size for offset in offsets]
    assert not found[4:].any()
    assert StoredFrames(store._log).sizes(asked[:4], end - 1).tolist()[:3] == found[:3].tolist()
    assert StoredFrames(store._log).sizes(asked[:4], end - 1)[3] == 0


@pytest.mark.parametrize("probable_bytes", [None, 0, 1, 40, 300, 2_000, 1 << 40])
def test_a_record_is_the_same_however_large_it_is_thought_to_be(
    store: Store, probable_bytes: int | None
) -> None:
    offsets = [send(store, b"x" * size) for size in (0, 1, 1_700, 1_900, 2_000, 2_048, 30_000, 64_000)]
    end = store.log_range()[1]
    for offset, size in zip(offsets, (0, 1, 1_700, 1_900, 2_000, 2_048, 30_000, 64_000), strict=True):
        found = message_at(store._log, end, offset, probable_bytes)
        assert (found.commit_log_offset, found.body) == (offset, b"x" * size)


@pytest.mark.parametrize("body_bytes", [3, 30_000])
def test_of_a_record_nothing_counts_that_lies_behind_the_end(store: Store, body_bytes: int) -> None:
    offset = send(store, b"x" * body_bytes)
    end = store.log_range()[1]
    assert message_at(store._log, end, offset).total_size == end - offset
    with pytest.raises(CorruptRecordError, match=f"more than the {end - 1 - offset} bytes left"):
        message_at(store._log, end - 1, offset)


def test_one_look_at_a_record_does_not_map_its_segment(store: Store) -> None:
    """The kernel would take longer to put its pages there than all the rest takes."""
    sent = store.send(Message("T", b"tea", keys="k"))
    store.query.by_key("T", "k")  # the first one looks whether the index is whole
    file = store._log.segments.open(0)
    file._map = None
    assert store.message_at(sent.commit_log_offset).body == b"tea"
    assert [found.body for found in store.query.by_key("T", "k")] == [b"tea"]
    assert store.query.by_queue_offset("T", sent.queue_id, sent.queue_offset).body == b"tea"
    assert store._log.segments.open(0) is file
    assert file._map is None


def test_a_record_that_the_disk_does_not_give_back_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the map it would be the end of the process."""
    offset = send(store, b"tea")

    def fail(fd: int, size: int, position: int) -> bytes:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("os.pread", fail)
    with pytest.raises(StoreFailedError, match="broken"):
        store.message_at(offset)


def test_a_frame_inside_a_body_is_no_record(store: Store) -> None:
    """A producer sends a stored frame as a body: an offset into it must not make a message of what it says."""
    first = send(store, b"tea")
    frame = store.message_at(first).encode()
    outer = send(store, frame)
    data = store._log.segments.path(0).read_bytes()
    inner = data.index(frame[:28], outer)
    assert StoredFrames(store._log).sizes(np.array([inner], np.int64), store.log_range()[1]).tolist() == [0]
    with pytest.raises(UsageError, match="no message begins"):
        store.message_at(inner)
    rows = pa.record_batch({"commitLogOffset": [inner], "msgId": [store.message_at(first).msg_id]})
    with pytest.raises(ResponseError, match="look message by offset failed"):
        store.retry.send_back_all("g", rows)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("rows_per_run", [records._RUN_ROWS, 40])
def test_runs_cover_every_row_once_in_the_order_of_the_rows_of_a_segment(
    store: Store, monkeypatch: pytest.MonkeyPatch, share: bool, rows_per_run: int
) -> None:
    """Whether segments of which little is asked for share a run, or each has its own."""
    monkeypatch.setattr(records, "_RUN_ROWS", rows_per_run)
    if not share:
        monkeypatch.setattr(records, "_SCATTERED_BYTES", 0)
    offsets = np.array([send(store, b"%05d" % number * 200) for number in range(150)], np.int64)[::-1].copy()
    frames = StoredFrames(store._log)
    runs = list(frames.runs(offsets, frames.sizes(offsets, store.log_range()[1])))
    segments = [set((run.headers.physical_offset // 65_536).tolist()) for run in runs]
    if share:
        assert len(runs) == -(-150 // rows_per_run)
    else:
        assert all(len(numbers) == 1 for numbers in segments)
    assert sorted(row for run in runs for row in run.rows.tolist()) == list(range(150))
    for run in runs:
        expected = sorted(run.rows.tolist(), key=lambda row: (offsets[row] // 65_536, row))
        assert run.rows.tolist() == expected
        assert run.headers.physical_offset.tolist() == offsets[run.rows].tolist()
        assert run.message_ids().to_pylist() == [store.message_at(offset).msg_id for offset in offsets[run.rows]]
        assert run.topics.to_pylist() == ["T"] * len(run.rows)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("damage", ["body", "property", "length", "place", "size", "size beyond the segment"])
def test_what_is_damaged_is_named_though_segments_share_a_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, damage: str, share: bool
) -> None:
    if not share:
        monkeypatch.setattr(records, "_SCATTERED_BYTES", 0)
    offsets = np.array([send(store, b"%05d" % number * 2000, tags="TagA") for number in range(20)], np.int64)
    store.flush()
    row = 13
    if damage == "place":  # its CRC property would tell, too; not every broker writes one
        monkeypatch.setattr(records, "damaged_frames", lambda headers, crc_from: np.zeros(len(headers.topics())))
    path = store._log.segments.path(store._log.segments.base_of(int(offsets[row])))
    frames = StoredFrames(store._log)
    sizes = frames.sizes(offsets, store.log_range()[1])
    start = int(offsets[row]) - int(path.name)
    with path.open("r+b") as file:
        at, written = {
            "body": (start + 500, b"?"),
            "property": (start + path.read_bytes()[start:].index(b"TagA"), b"TagB"),
            "length": (start + 84, (1 << 20).to_bytes(4, "big")),
            "place": (start + 28, (1 << 20).to_bytes(8, "big")),
        }.get(damage, (0, b""))
        file.seek(at)
        file.write(written)
    if damage.startswith("size"):
        sizes[row] += 1 if damage == "size" else 66_000
    with pytest.raises(CorruptRecordError) as caught:
        list(frames.runs(offsets, sizes))
    assert (caught.value.offset, caught.value.path) == (offsets[row], str(path))
    others = np.delete(np.arange(20), row)
    assert sum(len(run.rows) for run in frames.runs(offsets[others], sizes[others])) == 19


def test_a_message_whose_lengths_are_damaged_is_not_taken_for_none(store: Store) -> None:
    """Something begins there: who asks must learn that it is damaged, not that it is gone."""
    offset = send(store, b"tea")
    store.flush()
    path = store._log.segments.path(0)
    with path.open("r+b") as file:
        file.seek(offset + 84)
        file.write((1 << 20).to_bytes(4, "big"))
    with pytest.raises(CorruptRecordError) as caught:
        message_at(store._log, store.log_range()[1], offset)
    assert (caught.value.offset, caught.value.path) == (offset, str(path))


@pytest.mark.parametrize(("found", "instead"), [(b"TAGS\x01TagA", b"TAGS\x01TagB"), (b"__CRC32#", b"another#")])
def test_damaged_properties_are_found_before_anything_is_copied(store: Store, found: bytes, instead: bytes) -> None:
    """Only the body was looked at; the copy's own checksum vouched for what one bit had made of a property."""
    offsets = np.array([send(store, b"tea", tags="TagA"), send(store, b"milk", tags="TagA")], np.int64)
    store.flush()
    path = store._log.segments.path(0)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(found, int(offsets[1])))
        file.write(instead)
    frames = StoredFrames(store._log)
    sizes = frames.sizes(offsets, store.log_range()[1])
    with pytest.raises(CorruptRecordError, match="CRC property") as caught:
        list(frames.runs(offsets, sizes))
    assert caught.value.offset == offsets[1]
    with pytest.raises(CorruptRecordError, match="CRC property"):
        store.message_at(int(offsets[1]))
    assert len(list(frames.runs(offsets[:1], sizes[:1]))) == 1


def test_a_missing_segment_is_corruption(store: Store) -> None:
    offset = send(store, b"tea")
    store._log.files.forget(str(store._log.segments.path(0)))
    hidden = store._log.segments.path(0).rename(store.path / "hidden")
    try:
        with pytest.raises(CorruptRecordError, match="missing"):
            message_at(store._log, 1000, offset)
    finally:
        hidden.rename(store._log.segments.path(0))


def test_separators_in_values_that_are_set_again_are_replaced() -> None:
    """Java stores further %x01 in a value; what sets properties refuses them."""
    plain = pa.array(["a", None, ""])
    assert stored_text(plain) is plain
    assert stored_text(pa.array(["a\x01b", None])).to_pylist() == ["a\ufffdb", None]
