"""Changing some properties of many strings: row by row what a walk over the pieces does, every other byte kept."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import crc_property
from rmq_store.format.properties.property_changes import set_properties, without_crc
from rmq_store.format.properties.property_string import parse_properties

NAMES = ["DELAY", "REAL_TOPIC", "KEYS", "K", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "é"]
CRC = crc_property(123)
pieces = st.lists(
    st.one_of(
        st.builds(
            "{}\x01{}".format,
            st.sampled_from([*NAMES, "KEYSX", "REAL_TOPIA"]),
            st.sampled_from(["", "v", "\x01w", "€"]),
        ),
        st.sampled_from(["", "KEYS", "DELAY", "\x01", "\x01x", "junk"]),
    ),
    max_size=5,
)
strings = st.builds(
    # The versions that left out the last separator knew no CRC property.
    lambda parts, is_ended, has_crc: ("\x02".join(parts) + "\x02" * is_ended).encode() + CRC * (has_crc and is_ended),
    pieces,
    st.booleans(),
    st.booleans(),
)
values = st.none() | st.sampled_from(["v", "long value", "ü", "=1;2"])


def changed(raw: bytes, changes: Mapping[str, str | None]) -> bytes:
    """One string, piece by piece."""
    if raw.endswith(CRC):
        raw = raw[: -len(CRC)]
    ended = raw.endswith(b"\x02")
    found = raw.split(b"\x02")
    if ended or not raw:
        found.pop()
    left = [piece + b"\x02" for piece in found]
    if left and not ended:
        left[-1] = left[-1][:-1]
    done = set()
    kept = []
    for piece in left:
        name = next((name for name in changes if piece.startswith(name.encode() + b"\x01")), None)
        if name is None:
            kept.append(piece)
        elif name not in done:
            done.add(name)
            value = changes[name]
            kept.append(b"" if value is None else f"{name}\x01{value}\x02".encode())
    tail = [f"{name}\x01{value}\x02".encode() for name, value in changes.items() if value and name not in done]
    front = b"".join(kept)
    if tail and not ended and left and kept and kept[-1] is left[-1]:
        front += b"\x02"
    return front + b"".join(tail)


@given(st.lists(strings, max_size=6), st.data())
def test_rows_change_as_each_would_alone(raw: list[bytes], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    for_all = {name: data.draw(values) for name in names}
    per_row = {name: [data.draw(values) for _ in raw] for name in names if data.draw(st.booleans())}
    changes = {
        name: pa.array(per_row[name], pa.string()) if name in per_row else value for name, value in for_all.items()
    }
    skipped = data.draw(st.integers(0, len(raw)))
    kind = data.draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    given_strings = pa.array([b"KEYS\x01before\x02"] * skipped + raw, kind)[skipped:]
    result = set_properties(given_strings, changes)
    result.validate(full=True)
    assert result.type == pa.large_binary()
    for row, (before, after) in enumerate(zip(raw, result.to_pylist(), strict=True)):
        wanted = {name: per_row[name][row] if name in per_row else value for name, value in for_all.items()}
        assert after == changed(before, wanted)
        # Whatever else it is: who reads it finds the new values, and no others are lost.
        expected = {name: value for name, value in parse_properties(before).items() if name not in wanted}
        assert parse_properties(after) == {**expected, **{name: value for name, value in wanted.items() if value}}


def test_a_value_takes_the_place_of_the_old_one_and_further_ones_go() -> None:
    strings = pa.array([b"A\x01a\x02DELAY\x013\x02B\x01b\x02DELAY\x014\x02"])
    assert set_properties(strings, {"DELAY": "5"}).to_pylist() == [b"A\x01a\x02DELAY\x015\x02B\x01b\x02"]


@given(st.lists(strings, max_size=6))
def test_the_crc_property_at_the_end_goes(raw: list[bytes]) -> None:
    expected = [text[: -len(CRC)] if text.endswith(CRC) else text for text in raw]
    for kind in (pa.binary(), pa.large_binary()):
        found = without_crc(pa.array(raw, kind))
        assert (found.type, found.to_pylist()) == (kind, expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", ""), ("a", "\x01"), ("a", "\x02"),
     ("a", pa.array(["v", ""])), ("a", pa.array(["v", "\x01"])), ("a", pa.array([None, "x\x02"]))],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(name: str, value: str | pa.StringArray) -> None:
    with pytest.raises(UsageError, match=r"propert|'a'"):
        set_properties(pa.array([b"", b""]), {name: value})
