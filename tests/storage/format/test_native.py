"""The extension, where it was built, says what Python says; and refuses what would lead it out of its buffers."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format import native
from rmq_store.format.crc import slice_crcs

FORMAT_TESTS = Path(__file__).parent
# What the extension has a part in.
REPRESENTATIVE = ("test_crc.py",)

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")


def test_everything_is_there_without_the_extension() -> None:
    """A machine without a C compiler runs the Python that stands beside each call."""
    modules = [FORMAT_TESTS / name for name in REPRESENTATIVE]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules],
        env={**os.environ, "RMQ_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_the_environment_can_switch_the_extension_off() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from rmq_store.format import native; print(native.LOADED)"],
        env={**os.environ, "RMQ_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "False\n"


@needs_native
@given(st.binary(max_size=300), st.integers(0, 1 << 32), st.data())
def test_crcs_are_those_of_zlib(text: bytes, seed: int, data: st.DataObject) -> None:
    """Lengths around 16 and 64 bytes, where other loops take over, and every alignment."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    seed %= 1 << 32
    bounds = np.array([start]), np.array([end])
    found = slice_crcs(np.frombuffer(text, np.uint8), *bounds, np.array([seed], np.uint32))
    assert found.tolist() == [zlib.crc32(text[start:end], seed)]


@needs_native
@pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (0, 9), (9, 9), (-(1 << 63), 8), (0, (1 << 63) - 1)])
def test_a_slice_outside_of_its_data_is_refused(start: int, end: int) -> None:
    with pytest.raises(IndexError, match="slice 1 "):
        slice_crcs(np.zeros(8, np.uint8), np.array([0, start]), np.array([8, end]))


@needs_native
def test_arrays_of_another_kind_are_refused() -> None:
    data, bounds, crcs = np.zeros(8, np.uint8), np.zeros(2, np.int64), np.zeros(2, np.uint32)
    with pytest.raises(TypeError, match="starts: expected aligned items of 8 bytes, got 4"):
        native.functions.slice_crcs(data, bounds.astype(np.int32), bounds, None, crcs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="starts: expected aligned items of 8 bytes"):
        unaligned = np.frombuffer(bytes(17), np.uint8)[1:].view(np.int64)
        native.functions.slice_crcs(data, unaligned, bounds, None, crcs)
    with pytest.raises(ValueError, match="ends: expected 2 items, got 1"):
        native.functions.slice_crcs(data, bounds, bounds[:1], None, crcs)
    with pytest.raises(ValueError, match="read-only"):
        crcs.flags.writeable = False
        native.functions.slice_crcs(data, bounds, bounds, None, crcs)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        native.functions.slice_crcs(data[::2], bounds, bounds, None, np.zeros(2, np.uint32))
