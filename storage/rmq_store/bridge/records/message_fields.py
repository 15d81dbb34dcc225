"""Restores the fields of a RocketMQ message from the headers of its record (data plane; only odd rows one by one).

    rmq.TAGS, rmq.KEYS, rmq.__SHARDINGKEY, rmq.flag     the fields of these names
    rmq.properties                                      JSON [[place, name, value], ...]: properties of the user that
                                                        cannot be headers under their own names
    rmq.<other>                                         for people only
    other headers                                       properties of the user, in their order

Any producer of the Kafka topic can write such headers, too. A row with a header that no mirror writes is not restored:
its headers are kept exactly, like any others, and set no field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field

import numpy as np
import pyarrow as pa

from rmq_store.bridge.records.entries import Entries, Int64, Mask, plain_texts
from rmq_store.bridge.records.merge_columns import Part, Pieces, text_where
from rmq_store.bridge.records.property_names import (
    FLAG_HEADER,
    HEADER_PREFIX,
    PROPERTIES_HEADER,
    RECONSUME_TIMES_HEADER,
    SHOWN_NAMES,
    is_own_name,
    is_restored_name,
    is_rocketmq_name,
    is_storable,
)
from rmq_store.errors import UsageError
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

Pairs = list[tuple[str, str]]

_SIMPLE_HEADERS = frozenset(
    [RECONSUME_TIMES_HEADER.encode(), *((HEADER_PREFIX + name).encode() for name in SHOWN_NAMES)]
)


@dataclass
class _Message:
    """The properties of one message."""

    properties: Pairs = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    flag: int = 0


class Restored:
    """The values of the restored rows: `is_restored` (n,), `flags` (n,), and `parts`: their users' properties."""

    def __init__(self, headers: Entries, kept: Mask, wanted: Mask) -> None:
        """Read the headers `kept` (m,) of the rows `wanted` (n,), as far as a mirror has written them."""
        self._headers = headers
        self._is_simple = _simple_rows(headers, kept, wanted)
        self._rows, self._messages = _read_rows(headers, kept, np.flatnonzero(wanted & ~self._is_simple))
        self.is_restored = self._is_simple.copy()
        self.is_restored[self._rows] = True
        self.flags = np.zeros(headers.row_count, np.int32)
        self.flags[self._rows] = [message.flag for message in self._messages]
        is_users = np.array([not name.startswith(HEADER_PREFIX.encode()) for name in headers.names], np.bool_)
        chosen = np.flatnonzero(kept & self._is_simple[headers.rows] & headers.judged(is_users))
        values = Pieces.of(headers.values).take(chosen)
        self.parts = [Part(headers.rows[chosen], headers.names, headers.codes[chosen], values), self._read_part()]

    def named(self, name: str, others: pa.StringArray) -> pa.StringArray:
        """TAGS, KEYS or the sharding key of all rows; `others` has the values of rows that are not restored."""
        if self._is_simple.any():
            values, _ = self._headers.column(HEADER_PREFIX + name)
            simple = self._is_simple & values.is_valid().to_numpy(zero_copy_only=False)
            values = text_where(values, simple)
            others = pc.if_else(pa.array(self._is_simple), values, others)
        if len(self._rows) == 0:
            return others
        own = pa.array([message.named.get(name) for message in self._messages], pa.string())
        place = np.arange(len(others))
        place[self._rows] = len(others) + np.arange(len(self._rows))
        return pa.concat_arrays([others, own]).take(pa.array(place))

    def _read_part(self) -> Part:
        counts = [len(message.properties) for message in self._messages]
        pairs = [pair for message in self._messages for pair in message.properties]
        coded = pa.array([name for name, _ in pairs], pa.string()).dictionary_encode()
        return Part(
            np.repeat(self._rows, counts),
            [name.encode() for name in coded.dictionary.to_pylist()],
            coded.indices.to_numpy(),
            Pieces.of(pa.array([value for _, value in pairs], pa.string())),
        )


def _simple_rows(headers: Entries, kept: Mask, wanted: Mask) -> Mask:
    """Rows (n,) in whose headers nothing needs a closer look: plain texts, and no flag or special properties."""
    if not wanted.any():
        return wanted
    simple_names = np.array([_is_simple_name(name) for name in headers.names], np.bool_)
    odd = kept & ~(headers.judged(simple_names) & plain_texts(headers.values))
    simple: Mask = wanted & ~headers.rows_with_a_name_twice(kept)
    simple[headers.rows[odd]] = False
    return simple


def _is_simple_name(raw: bytes) -> bool:
    return raw in _SIMPLE_HEADERS or is_restored_name(raw)


def _read_rows(headers: Entries, kept: Mask, rows: Int64) -> tuple[Int64, list[_Message]]:
    """One by one: those of the rows that a mirror has written, and what they say."""
    read: list[int] = []
    messages: list[_Message] = []
    for row in rows.tolist():
        span = slice(int(headers.offsets[row]), int(headers.offsets[row + 1]))
        codes, values = headers.codes[span].tolist(), headers.values[span].to_pylist()
        pairs = [
            (headers.names[code], value)
            for code, value, is_kept in zip(codes, values, kept[span].tolist(), strict=True)
            if is_kept
        ]
        try:
            messages.append(_read(pairs))
        except (UsageError, UnicodeError):
            continue
        read.append(row)
    return np.array(read, np.int64), messages


def _read(headers: Sequence[tuple[bytes, bytes | None]]) -> _Message:
    """UsageError, UnicodeError: no mirror has written them."""
    message = _Message()
    seen: set[bytes] = set()
    special: list[tuple[int, str, str]] = []
    for raw_name, raw_value in headers:
        if raw_value is None or raw_name in seen:
            raise UsageError("a header without a value, or twice")
        seen.add(raw_name)
        name, value = raw_name.decode(), raw_value.decode()
        if name == PROPERTIES_HEADER:
            special = _special(value)
        elif name == FLAG_HEADER:
            message.flag = _flag(value)
        elif name.startswith(HEADER_PREFIX):
            _check_storable(value)
            message.named[name.removeprefix(HEADER_PREFIX)] = value
        else:
            if is_rocketmq_name(name) or is_own_name(name):
                raise UsageError(f"{name!r} is no name of a user's property")
            _check_storable(name, value)
            message.properties.append((name, value))
    for place, name, value in special:
        message.properties.insert(place, (name, value))
    if len({name for name, _ in message.properties}) < len(message.properties):
        raise UsageError("a property twice")
    return message


def _special(text: str) -> list[tuple[int, str, str]]:
    try:
        read = json.loads(text)
        found = [(place, name, value) for place, name, value in read]
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{PROPERTIES_HEADER}: {error}") from error
    for place, name, value in found:
        if not (type(place) is int and isinstance(name, str) and isinstance(value, str)):
            raise UsageError(f"{PROPERTIES_HEADER}: a place, a name and a value are expected")
        _check_storable(name, value)
        if is_rocketmq_name(name) or name in MIRROR_PROPERTIES:
            raise UsageError(f"{PROPERTIES_HEADER}: {name!r} is no name of a user's property")
    return found


def _flag(text: str) -> int:
    try:
        flag = int(text)
    except ValueError as error:
        raise UsageError(f"{FLAG_HEADER}: {error}") from error
    if not -(1 << 31) <= flag < 1 << 31:
        raise UsageError(f"{FLAG_HEADER}: {flag} is no 32-bit integer")
    return flag


def _check_storable(*texts: str) -> None:
    for text in texts:
        if not is_storable(text):
            raise UsageError("empty, or with a separator")
        text.encode()
