"""Frames for answers to pulls: those of the queue, in its order, and never the bytes of anything else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.read import queue_frames
from rmq_store.errors import CorruptQueueError
from rmq_store.format.bytes import native
from rmq_store.format.frames.stored_message import decode_checked

ENTRY = struct.Struct(">qiq")
COUNT = 60
HEAD = struct.Struct(">ii4xi4xq")

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")


@pytest.fixture(params=["python", pytest.param("extension", marks=needs_native)], autouse=True)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", request.param == "extension")


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    """Two queues in turn, each message in one of several segments."""
    config = StoreConfig(mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=20 * COUNT)
    with Store.open(scratch / "store", create=True, config=config) as store:
        store.create_topic("T", queue_count=2)
        for number in range(2 * COUNT):
            queue_id = number // 3 % 2  # runs of three follow each other in the log
            store.send(Message("T", b"%d" % number + b"." * 200, queue_id=queue_id))
        yield store


def offsets(store: Store, queue_id: int, start: int, **limits: int) -> tuple[list[int], int]:
    """The queue offsets of the frames that are found, and where to look next."""
    given = {"entries_max": COUNT, "count_max": COUNT, "bytes_max": 1 << 20} | limits
    found = store.read_frames("T", queue_id, start, **given)
    offsets, at = [], 0
    while at < len(found.frames):
        message = decode_checked(found.frames, at)
        assert (message.topic, message.queue_id) == ("T", queue_id)
        offsets.append(message.queue_offset)
        at += int.from_bytes(found.frames[at : at + 4], "big")
    assert len(offsets) == found.frame_count
    return offsets, found.next_offset


def test_the_frames_of_a_queue_come_in_order_across_segments_and_beside_other_queues(store: Store) -> None:
    assert len(list((store.path / "commitlog").iterdir())) > 4
    for queue_id in (0, 1):
        assert offsets(store, queue_id, 0) == (list(range(COUNT)), COUNT)
        assert offsets(store, queue_id, 7, count_max=5) == ([7, 8, 9, 10, 11], 12)
        assert offsets(store, queue_id, 7, entries_max=2) == ([7, 8], 9)
        assert offsets(store, queue_id, 7, bytes_max=1) == ([7], 8)
        size = len(store.read_frames("T", queue_id, 7, entries_max=4, count_max=4, bytes_max=1 << 20).frames)
        assert offsets(store, queue_id, 7, bytes_max=size) == ([7, 8, 9, 10], 11)
        assert offsets(store, queue_id, 7, bytes_max=size - 1) == ([7, 8, 9], 10)


@pytest.mark.parametrize("at", [0, 20, COUNT - 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda here, other, size: (other, size),
        lambda here, other, size: (here, size + 1),
        lambda here, other, size: (here, 8),
        lambda here, other, size: (here, 8192),
        lambda here, other, size: (here + 1, size),
        lambda here, other, size: (1 << 40, size),
        lambda here, other, size: (-5, size),
    ],
    ids=["another queue", "size", "too small", "too large", "within a frame", "behind the log", "negative"],
)
def test_an_entry_that_points_elsewhere_gives_an_error_and_no_bytes(
    store: Store, at: int, change: Callable[[int, int, int], tuple[int, int]]
) -> None:
    (queue,) = (store.path / "consumequeue" / "T" / "0").iterdir()
    (other,) = store.queue_entries("T", 1, at, at + 1)["commit_log_offset"].tolist()
    here, size, tags_code = ENTRY.unpack_from(queue.read_bytes(), at * ENTRY.size)
    with queue.open("r+b") as file:
        file.seek(at * ENTRY.size)
        file.write(ENTRY.pack(*change(here, other, size), tags_code))
    with pytest.raises(CorruptQueueError):
        store.read_frames("T", 0, 0, entries_max=COUNT, count_max=COUNT, bytes_max=1 << 20)


@needs_native
def test_the_extension_finds_the_frames_of_a_usual_pull(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", True)
    monkeypatch.setattr(queue_frames, "_HEAD", None)  # the loop would fail without it
    assert offsets(store, 1, 6, entries_max=3) == ([6, 7, 8], 9)


@needs_native
def test_the_extension_takes_frames_of_a_queue_and_nothing_else() -> None:
    """Beside a model of what an entry must point to, with random changes of entries and frames."""
    chance, base, taken = random.Random(3), 1 << 40, 0
    for _ in range(4000):
        sizes = [chance.randrange(28, 90) for _ in range(chance.randrange(1, 6))]
        data, entries, first = bytearray(chance.randbytes(chance.randrange(40))), bytearray(), chance.randrange(1 << 40)
        for number, size in enumerate(sizes):
            entries += ENTRY.pack(base + len(data), size, 7)
            magic = chance.choice([-626843481, -626843477])
            data += (HEAD.pack(size, magic, 5, first + number) + chance.randbytes(size))[:size]
            data += bytes(chance.choice([0, 0, 9]))
        for target in chance.choices([data, entries], k=chance.randrange(3)):
            target[chance.randrange(len(target))] ^= 1 << chance.randrange(8)
        bytes_max = sum(sizes) - chance.choice([0, 0, 0, 1])
        found = native.functions.whole_frames(bytes(data), base, bytes(entries), 5, first, bytes_max)
        assert found == modelled(bytes(data), base, bytes(entries), first, bytes_max)
        taken += found is not None
    assert 1000 < taken < 3000


def modelled(data: bytes, base: int, entries: bytes, queue_offset: int, bytes_max: int) -> bytes | None:
    pieces = []
    for number, (offset, size, _) in enumerate(ENTRY.iter_unpack(entries)):
        piece = data[max(offset - base, 0) :][: max(size, 0)]
        if offset < base or size < HEAD.size or len(piece) != size:
            return None
        says, magic, queue_id, says_offset = HEAD.unpack_from(piece)
        if (says, queue_id, says_offset) != (size, 5, queue_offset + number):
            return None
        if magic not in (-626843481, -626843477):
            return None
        pieces.append(piece)
    found = b"".join(pieces)
    return found if len(found) <= bytes_max else None


@needs_native
def test_the_extension_refuses_what_it_cannot_use() -> None:
    for base, entries in ((0, bytes(19)), (-1, bytes(20))):
        with pytest.raises(ValueError, match="part of an entry"):
            native.functions.whole_frames(b"", base, entries, 0, 0, 1)
    assert native.functions.whole_frames(b"", 0, b"", 0, 0, 1) == b""
    assert native.functions.whole_frames(b"", 0, ENTRY.pack((1 << 63) - 1, (1 << 31) - 1, 0), 0, 0, 1) is None
