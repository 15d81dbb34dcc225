"""Frames go complete into a file, whoever writes them: the extension, or Python."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_store.files import durable
from rmq_store.format import native
from rmq_store.format.frame_patch import patch_frames
from rmq_store.log import frame_writing
from rmq_store.log.frame_writing import Frames

STORE_MS = 1_700_000_000_000
BEFORE = 5


@pytest.fixture(params=[True, False], ids=["extension", "python"])
def loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    monkeypatch.setattr(native, "LOADED", request.param)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def some_frames(sizes: list[int], *, has_crc: bool = True, seed: int = 1) -> Frames:
    """IPv4 frames of chance, which lie somewhere in their data."""
    chance = np.random.default_rng(seed)
    bounds = 11 + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = chance.integers(0, 256, int(bounds[-1]) + 7, dtype=np.uint8)
    data[bounds[:-1] + 39] = 0
    offsets = chance.integers(0, 1 << 62, (2, len(sizes)), dtype=np.int64)
    crc0 = chance.integers(0, 1 << 32, len(sizes), dtype=np.uint32) if has_crc else None
    return Frames(data, bounds, offsets[0], offsets[1], crc0, STORE_MS)


def complete(frames: Frames) -> bytes:
    found = frames.data[frames.bounds[0] : frames.bounds[-1]].copy()
    starts = frames.bounds - frames.bounds[0]
    patch_frames(
        found, starts[:-1], np.diff(starts), frames.queue_offsets, frames.log_offsets, STORE_MS, frames.crc0
    )  # fmt: skip
    return found.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(96, 700), min_size=1, max_size=12),
    st.sampled_from([1, 300, 1000, 1 << 20]),
    st.sampled_from([1, 97, 1 << 19]),
    st.booleans(),
)
def test_what_lies_in_the_file_is_every_frame_complete(
    loaded: None, file: int, sizes: list[int], copy_bytes: int, write_bytes: int, has_crc: bool
) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, b"-" * (BEFORE + sum(sizes) + 3), 0)
    frames = some_frames(sizes, has_crc=has_crc)
    given_data = frames.data.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_writing, "COPY_BYTES", copy_bytes)
        patch.setattr(durable, "WRITE_BYTES", write_bytes)
        frames.write(file, BEFORE, "segment", frames.buffer_like(np.empty(0, np.uint8)))
    assert os.pread(file, 1 << 20, 0) == b"-" * BEFORE + complete(frames) + b"---"
    assert frames.data.tobytes() == given_data


def test_rows_of_frames_are_written_as_themselves(loaded: None, file: int) -> None:
    frames = some_frames([120, 300, 150, 200])
    part = frames.rows(1, 3)
    part.write(file, 0, "segment", part.buffer_like(np.empty(0, np.uint8)))
    assert os.pread(file, 1 << 20, 0) == complete(frames)[120:570]


def test_a_buffer_is_used_again_if_the_largest_frame_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writing, "COPY_BYTES", 250)
    buffer = some_frames([100, 100, 100]).buffer_like(np.empty(0, np.uint8))
    assert len(buffer) == 250
    assert some_frames([200]).buffer_like(buffer) is buffer
    assert len(some_frames([100, 900]).buffer_like(buffer)) == 900


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EBADF])
def test_what_the_kernel_refuses_is_told(loaded: None, code: int) -> None:
    fd = os.open("/dev/full" if code == errno.ENOSPC else "/dev/null", os.O_WRONLY)
    if code == errno.EBADF:
        os.close(fd)
    frames = some_frames([200, 300])
    with pytest.raises(OSError, match=os.strerror(code)) as told:
        frames.write(fd, 0, "segment", frames.buffer_like(np.empty(0, np.uint8)))
    assert told.value.errno == code
    if code == errno.ENOSPC:
        os.close(fd)


@pytest.mark.parametrize("frame", [(-1, 120), (81, 1 << 40), (200, 100), (0, 95), (-(1 << 62), 1 << 62)])
def test_the_extension_refuses_frames_that_are_none(file: int, frame: tuple[int, int]) -> None:
    """Where they lie, or how long they are: Arrow has checked that of a file, before it comes to this."""
    if not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    frames = some_frames([120, 120])._replace(bounds=np.array([0, *frame]))
    with pytest.raises(IndexError, match=r"frame [01] "):
        frames.write(file, 0, "segment", np.empty(1000, np.uint8))
    whole = some_frames([120, 120])
    with pytest.raises(IndexError, match="frame 0 "):
        whole.write(file, 0, "segment", np.empty(119, np.uint8))
