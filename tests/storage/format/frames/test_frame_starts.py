"""Whether messages begin at places that somebody else names: in Python and in C, on sound frames and on garbage."""

from __future__ import annotations

import numpy as np
import pytest

from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.frames.frame_starts import message_sizes
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host

HOST = Host.parse("127.0.0.1:10911")
BASE = 1 << 32


@pytest.fixture(params=["python", "extension"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "extension" and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    monkeypatch.setattr(native, "LOADED", request.param == "extension")


def segment(base: int = BASE) -> tuple[bytearray, np.ndarray]:
    """Frames one behind another, and where they begin; the last place is where they end."""
    data, places = bytearray(), [0]
    for number in range(20):
        data += encode_frame(
            topic="Topic", body=b"x" * number, properties=b"", queue_id=0, queue_offset=number,
            commit_log_offset=base + len(data), born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=2,
            store_host=HOST,
        )  # fmt: skip
        places.append(len(data))
    return data, np.array(places, np.int64)


def sizes_of(data: bytearray, positions: np.ndarray, base: int = BASE, stop: int = 1 << 40) -> list[int]:
    return message_sizes(np.frombuffer(data, np.uint8), positions, base, stop).tolist()


def test_sizes_are_those_of_messages_that_begin_there() -> None:
    data, places = segment()
    backwards = places[:-1][::-1].copy()
    assert sizes_of(data, backwards) == np.diff(places)[::-1].tolist()
    assert sizes_of(data, places[:-1] + 1) == [0] * 20
    assert sizes_of(data, np.array([-1, -(1 << 62), len(data), len(data) - FRAME_BYTES_MIN + 1, 1 << 62])) == [0] * 5


def test_a_frame_of_another_place_is_no_message() -> None:
    data, places = segment()
    assert sizes_of(data, places[:1], BASE + 1) == [0]
    assert sizes_of(data, places[:1], BASE - (1 << 32)) == [0]


@pytest.mark.parametrize("place", [*range(0, 8), *range(28, 36)])
def test_size_magic_and_offset_must_agree(place: int) -> None:
    data, places = segment()
    data[place] ^= 0x80
    found = sizes_of(data, places[:2])
    assert found == [0, int(places[2] - places[1])] if place != 3 else found[1] > 0


def test_a_message_must_end_before_the_stop() -> None:
    data, places = segment()
    end = int(places[5])
    assert sizes_of(data, places[4:6], stop=end) == [end - int(places[4]), 0]
    assert sizes_of(data, places[4:6], stop=end - 1) == [0, 0]
    assert sizes_of(data[: end - 1], places[4:5]) == [0]


@pytest.mark.parametrize("size", [-1, 0, FRAME_BYTES_MIN - 1, (1 << 31) - 1])
def test_a_size_that_no_message_has_is_none(size: int) -> None:
    data, places = segment()
    data[:4] = size.to_bytes(4, "big", signed=True)
    assert sizes_of(data, places[:1]) == [0]
