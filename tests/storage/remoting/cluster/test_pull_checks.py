"""Answers hold what was asked for: one pass of the extension and Python find the same frames and the same errors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_walk import WalkedFrames, dense_frames
from rmq_store.protocol.errors import QueueHoleError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.pulls.checks import check_dense

from .fake_cluster import frame

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
QUEUE = MessageQueue("Orders", "broker-a", 3)


def outcome(frames: bytes, start: int, end: int) -> object:
    try:
        walked = check_dense(frames, QUEUE, start, end)
    except Exception as error:
        return type(error), str(error)
    assert walked.data is frames and walked.queue_offsets is not None
    return [array.tolist() for array in (walked.positions, walked.sizes, walked.queue_offsets)]


def changed(parts: list[bytes], chance: random.Random) -> bytes:
    """The frames as they are, or with something that must not be."""
    place, kind = chance.randrange(len(parts)), chance.randrange(8)
    if kind == 0:
        del parts[place]
    elif kind == 1:
        parts.insert(place, parts[place])
    elif kind == 2:
        chance.shuffle(parts)
    elif kind == 3:
        parts[place] = frame("Orders", 2, 5)
    elif kind == 4:
        damaged = bytearray(parts[place])
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        parts[place] = bytes(damaged)
    elif kind == 5:
        parts[-1] = parts[-1][: chance.randrange(len(parts[-1]))]
    return b"".join(parts)


@needs_native
@pytest.mark.parametrize("seed", range(100))
def test_one_pass_finds_what_python_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    start = chance.choice([0, 7, 1 << 40])
    parts = [frame("Orders", 3, start + n, bytes(chance.randrange(200))) for n in range(chance.randrange(1, 9))]
    end = start + len(parts) + chance.choice([0, 0, 0, -1, 1])
    frames = changed(parts, chance)
    found = outcome(frames, start, end)
    monkeypatch.setattr(native, "LOADED", False)
    assert outcome(frames, start, end) == found


@needs_native
def test_dense_frames_are_told_by_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = b"".join(frame("Orders", 3, offset) for offset in range(5, 9))
    monkeypatch.setattr(WalkedFrames, "of", None)
    walked = check_dense(frames, QUEUE, 5, 9)
    assert walked.queue_offsets is not None and walked.queue_offsets.tolist() == [5, 6, 7, 8]
    for start, end in ((4, 8), (5, 8), (5, 10), (6, 9), (-1, 3), (9, 5), (5, 5)):
        assert dense_frames(frames, 3, start, end) is None
    assert dense_frames(frames, 2, 5, 9) is None
    assert dense_frames(frames[:-1], 3, 5, 9) is None and dense_frames(frames + b"\0", 3, 5, 9) is None
    empty = dense_frames(b"", 3, 5, 5)
    assert empty is not None and len(empty.positions) == 0


@needs_native
def test_places_that_do_not_fit_are_refused() -> None:
    places = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="a queue offset below 0"):
        native.functions.walk_queue_frames(b"", places, 0, -1, places, places)
    with pytest.raises(ValueError, match="sizes: expected 4 items, got 3"):
        native.functions.walk_queue_frames(b"", places, 0, 0, places, places[:3].copy())
    with pytest.raises(TypeError):
        native.functions.walk_queue_frames(b"", places, 0, 0, places, np.zeros(4, np.int32))


def test_a_hole_between_two_answers_is_named() -> None:
    frames = b"".join(frame("Orders", 3, offset) for offset in (5, 6, 9))
    with pytest.raises(QueueHoleError) as raised:
        check_dense(frames, QUEUE, 5, 10)
    assert (raised.value.start, raised.value.end) == (7, 9)
