"""Vectors: spec 14.5."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.interrupts import Signal
from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import (
    UniqueIdGenerator,
    offset_message_id,
    offset_message_ids,
    parse_offset_message_id,
    parse_unique_id,
    unique_id_window_ms,
)

MONTH_MS = 30 * 24 * 3600 * 1000
IP = bytes([10, 108, 115, 217])


def generator(**changes: object) -> UniqueIdGenerator:
    return UniqueIdGenerator(**{"ip": IP, "pid": 14771, "loader_hash": 0x18B4AAC2, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        ("10.108.115.217:10911", 0x4010, "0A6C73D900002A9F0000000000004010"),
        ("10.108.115.217:10911", 0x484E, "0A6C73D900002A9F000000000000484E"),
        ("[fe80::1234]:10911", 324, "FE80000000000000000000000000123400002A9F0000000000000144"),
    ],
)
@pytest.mark.statement("F02")
def test_offset_id_is_the_one_that_a_broker_gives(host: str, offset: int, text: str) -> None:
    assert offset_message_id(Host.parse(host), offset) == text
    assert parse_offset_message_id(text) == (Host.parse(host), offset)
    assert parse_offset_message_id(text.lower()) == (Host.parse(host), offset)


@pytest.mark.parametrize("width", [4, 16])
@given(data=st.data())
def test_column_of_offset_ids_equals_single_ones(width: int, data: st.DataObject) -> None:
    row = st.tuples(st.binary(min_size=width, max_size=width), st.integers(0, 65535), st.integers(0, 2**63 - 1))
    rows = [(Host(address, port), offset) for address, port, offset in data.draw(st.lists(row, max_size=5))]
    hosts = np.frombuffer(b"".join(host.pack() for host, _ in rows), np.uint8).reshape(-1, width + 4)
    ids = offset_message_ids(hosts, np.array([offset for _, offset in rows], np.int64))
    assert ids.to_pylist() == [offset_message_id(*row) for row in rows]
    ids.validate(full=True)


@pytest.mark.parametrize(
    "text", ["", "0A6C", "G" * 32, "0" * 33, "0" * 54, "０" * 32, "0" * 16 + "F" * 16, "0" * 32 + "\n"]
)
def test_text_that_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_offset_message_id(text)


@pytest.mark.statement("F09")
def test_unique_id_has_the_parts_that_the_java_client_puts_in() -> None:
    text = "0A6C73D939B318B4AAC20CBA5D920000"
    parts = parse_unique_id(text)
    assert parts == (IP, 14771, 0x18B4AAC2, 213540242, 0)
    assert generator().next_ids(1, 1000 + 213540242, 1000).to_pylist() == [text]
    with pytest.raises(UsageError):
        parse_unique_id(text[:-1])


def test_time_of_a_unique_id_is_never_in_the_future() -> None:
    parts = parse_unique_id("0A6C73D939B318B4AAC20CBA5D920000")
    start = 10 * MONTH_MS
    assert parts.time_ms(start + MONTH_MS - 1, start, start - MONTH_MS) == start + 213540242
    assert parts.time_ms(start + 1000, start, start - MONTH_MS) == start - MONTH_MS + 213540242


@pytest.mark.statement("F11")
@pytest.mark.parametrize(
    ("now", "begin"),
    [
        # 213,540,242 ms are 2 d 11 h 19 min 0.242 s.
        ("2023-11-14 12:00", "2023-11-03 11:18:59.242"),
        ("2023-11-03 11:19:00.243", "2023-11-03 11:18:59.242"),
        ("2023-11-03 11:19:00.242", "2023-10-03 11:18:59.242"),  # not in the past: a month earlier
        ("2023-11-03 00:00", "2023-10-03 11:18:59.242"),
        ("2024-01-01 00:00", "2023-12-03 11:18:59.242"),
        ("2024-03-02 00:00", "2024-02-03 11:18:59.242"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_the_window_of_a_unique_id_begins_a_second_before_it_in_local_time(
    monkeypatch: pytest.MonkeyPatch, zone: str, now: str, begin: str
) -> None:
    """MessageClientIDSetter#getNearlyTimeFromID, and the second that 4.9.8 takes off."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        milliseconds = [round(datetime.fromisoformat(text).timestamp() * 1000) for text in (now, begin)]
        for text in ("0A6C73D939B318B4AAC20CBA5D920000", f"{'00' * 12}0A6C73D939B318B4AAC20CBA5D920000"):
            assert unique_id_window_ms(text, milliseconds[0]) == (milliseconds[1], (1 << 63) - 1)
        assert unique_id_window_ms("no id of ours", milliseconds[0]) == (0, (1 << 63) - 1)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_ipv6_producers_make_ids_of_56_characters() -> None:
    ids = generator(ip=bytes(range(16))).next_ids(2, 5, 0).to_pylist()
    assert [len(text) for text in ids] == [56, 56]
    assert parse_unique_id(ids[1]) == (bytes(range(16)), 14771, 0x18B4AAC2, 5, 1)


def test_a_whole_month_fits_although_its_ms_do_not_fit_an_int32() -> None:
    offset_ms = 31 * 24 * 3600 * 1000 - 1
    (text,) = generator().next_ids(1, offset_ms, 0).to_pylist()
    assert parse_unique_id(text).offset_ms == offset_ms


@given(
    st.lists(
        st.tuples(st.integers(0, 70000), st.integers(-MONTH_MS, 2 * MONTH_MS), st.integers(0, 3)),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.statement("F09")
def test_no_id_comes_twice_whatever_the_clock_does(calls: list[tuple[int, int, int]]) -> None:
    """More than 65536 ids in a ms, a clock that goes back, and the turn of a month (and back) all repeat the ms."""
    ids = generator()
    made = [
        text for count, offset_ms, month in calls
        for text in ids.next_ids(count, month * MONTH_MS + offset_ms, month * MONTH_MS).to_pylist()
    ]  # fmt: skip
    assert len(set(made)) == sum(count for count, _, _ in calls)


class SlowTime(int):
    """A time that lets other threads run while it is being looked at."""

    def __sub__(self, other: int) -> int:
        time.sleep(0.0005)
        return int(self) - other


def test_threads_share_one_generator() -> None:
    ids, made = generator(), []

    def run() -> None:
        for _ in range(20):
            made.extend(ids.next_ids(3, SlowTime(1000), 0).to_pylist())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4 * 20 * 3


def test_a_handler_makes_ids_at_any_place_of_a_reservation_and_none_comes_twice() -> None:
    generator = UniqueIdGenerator(b"\x7f\0\0\1", 1, 2)
    made: list[str] = []

    def make() -> None:
        made.append(generator.next_id(1_000_000 + len(made) // 50, 0))

    for k in range(1, 100):
        with Signal(k, make) as signal:
            make()
        if not signal.came:
            break
    assert k > 5
    assert len(set(made)) == len(made)
