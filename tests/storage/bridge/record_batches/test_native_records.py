"""The extension refuses what would lead it out of its buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.kafka_rows import log, rows, table
from rmq_store.bridge.record_batches.record_columns import _columns_of
from rmq_store.format.bytes import native

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

DATA = log(rows(5))
REGION = [61, len(DATA), 5, 0, 4, 0, 0, 0]


def region(*values: int) -> Any:
    return np.array(values, np.int64)


def read_arguments(**changed: Any) -> list[Any]:
    """Of `read_records`, for these five records."""
    totals = np.zeros(6, np.int64)
    assert native.functions.measure_records(DATA, region(*REGION), 0, totals) is None
    count, key_bytes, value_bytes, headers, name_bytes, header_value_bytes = totals.tolist()

    def column(cells: int, size: int) -> Any:
        return np.zeros(cells + 1, np.int32), np.zeros(size, np.uint8), np.zeros((cells + 7) // 8, np.uint8)

    arguments: dict[str, Any] = {
        "data": DATA, "regions": region(*REGION), "from_offset": 0, "offsets": np.zeros(count, np.int64),
        "timestamps": np.zeros(count, np.int64), "types": np.zeros(count, np.uint8), "keys": column(count, key_bytes),
        "values": column(count, value_bytes), "header_offsets": np.zeros(count + 1, np.int32),
        "names": (*column(headers, name_bytes)[:2], None), "header_values": column(headers, header_value_bytes),
    }  # fmt: skip
    assert arguments.keys() >= changed.keys()
    return list((arguments | changed).values())


def test_what_was_measured_is_read() -> None:
    assert len(native.functions.read_records(*read_arguments())) == 3


@pytest.mark.parametrize(
    "values",
    [
        (-1, 61, 0, 0, 0, 0, 0, 0),
        (62, 61, 0, 0, 0, 0, 0, 0),
        (61, len(DATA) + 1, 5, 0, 4, 0, 0, 0),
        (61, len(DATA), 5, -1, 4, 0, 0, 0),
        (61, len(DATA), 5, 0, -1, 0, 0, 0),
        (61, len(DATA), 5, 0, 1 << 31, 0, 0, 0),
        (61, len(DATA), 5, (1 << 63) - 4, 4, 0, 0, 0),
        (61, len(DATA), 5),
    ],
)
def test_a_region_outside_of_the_data_is_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(IndexError):
        native.functions.measure_records(DATA, region(*values), 0, np.zeros(6, np.int64))
    with pytest.raises(IndexError):
        native.functions.read_records(*read_arguments(regions=region(*values)))


SHORT = np.zeros(1, np.uint8)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"data": DATA[:-1]}, IndexError),
        ({"data": bytes(len(DATA))}, IndexError),
        ({"from_offset": 1}, IndexError),
        ({"offsets": np.zeros(4, np.int64)}, ValueError),
        ({"timestamps": np.zeros(6, np.int64)}, ValueError),
        ({"types": np.zeros(1, np.uint8)}, ValueError),
        ({"header_offsets": np.zeros(5, np.int32)}, ValueError),
        ({"keys": (np.zeros(6, np.int32), np.zeros(0, np.uint8), SHORT)}, IndexError),
        ({"keys": (np.zeros(6, np.int32), np.zeros(99, np.uint8), np.zeros(0, np.uint8))}, ValueError),
        ({"values": (np.zeros(7, np.int32), np.zeros(99, np.uint8), SHORT)}, ValueError),
        ({"values": (np.zeros(6, np.int64), np.zeros(99, np.uint8), SHORT)}, TypeError),
        ({"values": (np.zeros(6, np.int32), b"constant", SHORT)}, BufferError),
        ({"names": (np.zeros(0, np.int32), SHORT, None)}, ValueError),
        ({"names": (np.zeros(3, np.int32), np.zeros(99, np.uint8), None)}, ValueError),
        ({"names": ()}, IndexError),
    ],
    ids=str,
)
def test_columns_without_room_are_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        native.functions.read_records(*read_arguments(**changed))


def columns(place: int, value: Any) -> Any:
    found = list(_columns_of(table(rows(5))))
    found[place] = value(found[place]) if isinstance(value, Callable) else value  # type: ignore[arg-type]
    return tuple(found)


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (0, np.zeros(4, np.int64), ValueError),
        (1, (int32(0, 1, 2, 3, 4, 99), b"short", None, 0), IndexError),
        (1, (int32(3, 2, 2, 2, 2, 2), b"short", None, 0), IndexError),
        (1, (int32(-1, 0, 0, 0, 0, 0), b"short", None, 0), IndexError),
        (1, (int32(0, 0, 0, 0, 0, 0), b"short", b"", 0), ValueError),
        (1, (int32(0, 0, 0, 0, 0, 0), b"short", b"\xff", 7), ValueError),
        (1, (int32(0, 0, 0, 0, 0, 0), b"short", b"\xff", -1), ValueError),
        (3, int32(0, 0, 0, 0, 0, 1000), IndexError),
        (3, int32(0, 0, 0, 5, 2, 2), IndexError),
        (3, int32(0, 0), ValueError),
        (4, lambda names: (*names[:2], bytes(100), 0), IndexError),
        (5, lambda values: (values[0][:-1], *values[1:]), ValueError),
    ],
)
def test_columns_that_do_not_fit_each_other_are_refused(place: int, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        native.functions.write_records(columns(place, value), 0, np.zeros(1000, np.uint8))


def test_rows_that_are_not_there_are_refused() -> None:
    for first in (-1, 5, 1 << 40):
        with pytest.raises(IndexError, match="there is no row"):
            native.functions.write_records(_columns_of(table(rows(5))), first, np.zeros(1000, np.uint8))


def test_nothing_is_written_beyond_the_room() -> None:
    space = np.full(200, 0x5A, np.uint8)
    for room in range(150):
        behind, size, _ = native.functions.write_records(_columns_of(table(rows(5))), 0, space[:room])
        assert size <= room if behind else size > room
        assert (space[room:] == 0x5A).all()
