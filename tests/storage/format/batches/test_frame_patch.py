"""What the extension fills into frames is what Python fills in. (That this is right: test_frame_encoder.py.)"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.crc_ways import crc_way
from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.bytes import native

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

# From the shortest frames on, over the lengths where another table of zero bytes takes over.
sizes = st.one_of(st.integers(111, 500), st.sampled_from([319, 320, 321, 575, 576, 65_631, 65_632, 70_000]))


@pytest.mark.parametrize("way", range(3))
@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=8), st.integers(0, 1 << 32), st.booleans())
@example([(320, False), (320, True), (576, False), (320, False), (319, True)], 1, True)
def test_the_extension_fills_in_what_python_does(
    way: int, frames: list[tuple[int, bool]], seed: int, has_crc: bool
) -> None:
    """Whatever frames of other sizes, and with other hosts, are among them."""
    chance = np.random.default_rng(seed)
    lengths = np.array([size for size, _ in frames], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = chance.integers(0, 256, int(lengths.sum()), dtype=np.uint8)
    for start, (_, is_ipv6) in zip(starts.tolist(), frames, strict=True):
        data[start + 39] = 0x10 if is_ipv6 else 0
    offsets = chance.integers(0, 1 << 63, (2, len(frames)), dtype=np.int64)
    crc0 = chance.integers(0, 1 << 32, len(frames), dtype=np.uint32) if has_crc else None
    timestamp = int(chance.integers(0, 1 << 62))
    found = data.copy()
    with crc_way(way):
        patch_frames(found, starts, lengths, offsets[0], offsets[1], timestamp, crc0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        patch_frames(data, starts, lengths, offsets[0], offsets[1], timestamp, crc0)
    assert found.tobytes() == data.tobytes()


@pytest.mark.parametrize(("start", "size"), [(-1, 120), (81, 120), (200, 120), (0, 95), (0, 1 << 62), (1 << 62, 120)])
def test_a_frame_outside_of_its_data_or_too_short_is_refused(start: int, size: int) -> None:
    starts, lengths, two = np.array([0, start]), np.array([110, size]), np.zeros(2, np.int64)
    with pytest.raises(IndexError, match="frame 1 "):
        patch_frames(np.zeros(200, np.uint8), starts, lengths, two, two, 0, np.zeros(2, np.uint32))
