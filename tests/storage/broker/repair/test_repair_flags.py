"""A record with right checksums, flagged as part of a transaction or as a batch, that has a place in a queue.

Brokers put no such record into a queue, so a rebuild left its place empty and the check called the store damaged again:
`rmq repair --yes` ended with 1 however often, and each time copied all queues. The last message of a queue was lost.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.errors import CorruptRecordError
from rmq_store.verify import verify_store
from rmq_store.verify.records import Frame, read_frame

CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=50, max_index_num=200)
PREPARED, ROLLBACK, INNER_BATCH = 0x4, 0xC, 0x80


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Alpha", queue_count=1)
        for number in range(10):
            store.send(Message("Alpha", b"body %d" % number, keys=f"K{number}"))
    return tmp_path / "store"


def set_flag(root: Path, number: int, flag: int) -> None:
    path = root / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        data = file.read(1 << 16)
        position = 0
        for _ in range(number):
            position += frame_at(data, position).size
        record = bytearray(data[position : position + frame_at(data, position).size])
        struct.pack_into(">i", record, 36, struct.unpack_from(">i", record, 36)[0] | flag)
        digits = b"%010d" % (zlib.crc32(bytes(record[:-20])) & 0x7FFFFFFF)
        record[-11:-1] = digits[::-1]
        file.seek(position)
        file.write(record)


def frame_at(data: bytes, position: int) -> Frame:
    frame = read_frame(data, position, 0)
    assert isinstance(frame, Frame)
    return frame


def bodies(store: Store) -> list[bytes | None]:
    found: list[bytes | None] = []
    for number in range(*store.queue_range("Alpha", 0)):
        try:
            found += [body for part in store.read("Alpha", 0, number, number + 1, columns=["body"])
                      for body in part.column("body").to_pylist()]  # fmt: skip
        except CorruptRecordError:
            found.append(None)
    return found


@pytest.mark.parametrize("flag", [PREPARED, ROLLBACK, INNER_BATCH], ids=["prepared", "rollback", "batch"])
@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_flagged_record_with_a_place_in_its_queue_is_a_note(root: Path, number: int, flag: int) -> None:
    set_flag(root, number, flag)
    report = verify_store(root)
    assert "consumequeue" not in report.damaged and "commitlog" not in report.damaged
    assert any(f"message {number} is flagged as" in note for note in report.notes)
    if (plan := examine(root)).is_needed:  # a rolled back message has no keys in the index
        carry_out(plan)
    assert not examine(root).is_needed
    assert verify_store(root).status == "clean"
    with Store.open(root) as store:
        assert bodies(store) == [b"body %d" % n for n in range(10)]
        assert store.send(Message("Alpha", b"new")).queue_offset == 10
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("flag", [PREPARED, ROLLBACK])
@pytest.mark.parametrize("number", [0, 4, 9])
def test_queues_that_are_built_again_without_it_are_not_damaged(root: Path, number: int, flag: int) -> None:
    set_flag(root, number, flag)
    for _ in range(2):
        assert carry_out(examine(root, queues=True, index=True)).status == "clean"
        assert not examine(root).is_needed
    with Store.open(root) as store:
        others = [b"body %d" % n for n in range(10) if n != number]
        assert [body for body in bodies(store) if body is not None] == others
        store.send(Message("Alpha", b"new"))
        assert [body for body in bodies(store) if body is not None] == [*others, b"new"]
    assert verify_store(root).status == "clean"


def test_a_record_of_an_old_transaction_without_a_place_is_no_news(root: Path) -> None:
    """Brokers before 4.3 stored half messages in their own topic, with queue offset 0."""
    path = root / "commitlog" / f"{0:020d}"
    set_flag(root, 9, PREPARED)
    with path.open("r+b") as file:
        data = file.read(1 << 16)
        position = 0
        for _ in range(9):
            position += frame_at(data, position).size
        record = bytearray(data[position : position + frame_at(data, position).size])
        struct.pack_into(">q", record, 20, 0)
        record[-11:-1] = (b"%010d" % (zlib.crc32(bytes(record[:-20])) & 0x7FFFFFFF))[::-1]
        file.seek(position)
        file.write(record)
    assert carry_out(examine(root, queues=True)).status == "clean"
    assert not any("flagged" in note for note in verify_store(root).notes)
