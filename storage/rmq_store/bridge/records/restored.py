"""Headers of a record that came from RocketMQ, as what its message had (row by row).

    rmq.TAGS, rmq.KEYS, rmq.__SHARDINGKEY, rmq.flag     the fields of these names
    rmq.properties                                      JSON [[place, name, value], ...]: properties of the user that
                                                        cannot be headers under their own names
    rmq.<other>                                         to look at only
    other headers                                       properties of the user, in their order

Whoever writes to the Kafka topic can write such headers, too. A row with a header that no mirror writes is not
restored: its headers go through exactly, as any others do, and set nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.records.entries import Entries, Mask
from rmq_store.bridge.records.property_names import (
    FLAG_HEADER,
    HEADER_PREFIX,
    PROPERTIES_HEADER,
    is_own_name,
    is_rocketmq_name,
    is_storable,
)
from rmq_store.bridge.records.weaving import Part, Pieces
from rmq_store.errors import UsageError
from rmq_store.format import properties as names
from rmq_store.format.mirror_properties import MIRROR_PROPERTIES

Pairs = list[tuple[str, str]]


@dataclass
class _Message:
    """What one message had."""

    properties: Pairs = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    flag: int = 0


@dataclass(frozen=True)
class Restored:
    """What `is_restored` (n,) of the rows had, `rows` (k,); `flags` (n,); `part`: their users' properties."""

    is_restored: Mask
    rows: npt.NDArray[np.int64]
    messages: Sequence[_Message]
    flags: npt.NDArray[np.int32]
    part: Part

    def tags(self, others: pa.StringArray) -> pa.StringArray:
        """TAGS of all rows, those `others` of rows that are not restored."""
        return self._named(names.TAGS, others)

    def keys(self, others: pa.StringArray) -> pa.StringArray:
        """As `tags`, KEYS."""
        return self._named(names.KEYS, others)

    def sharding_keys(self, others: pa.StringArray) -> pa.StringArray:
        """As `tags`, the sharding key."""
        return self._named(names.SHARDING_KEY, others)

    def _named(self, name: str, others: pa.StringArray) -> pa.StringArray:
        own = pa.array([message.named.get(name) for message in self.messages], pa.string())
        place = np.arange(len(others))
        place[self.rows] = len(others) + np.arange(len(self.rows))
        return pa.concat_arrays([others, own]).take(pa.array(place))


def restore(headers: Entries, kept: Mask, wanted: Mask) -> Restored:
    """Read the headers `kept` (m,) of the rows `wanted` (n,), as far as a mirror has written them."""
    is_restored, flags = np.zeros(headers.row_count, np.bool_), np.zeros(headers.row_count, np.int32)
    rows: list[int] = []
    messages: list[_Message] = []
    for row in np.flatnonzero(wanted).tolist():
        span = slice(int(headers.offsets[row]), int(headers.offsets[row + 1]))
        codes, values = headers.codes[span].tolist(), headers.values[span].to_pylist()
        try:
            message = _read(
                [
                    (headers.names[code], value)
                    for code, value, is_kept in zip(codes, values, kept[span].tolist(), strict=True)
                    if is_kept
                ]
            )
        except (UsageError, UnicodeError):
            continue
        is_restored[row], flags[row] = True, message.flag
        rows.append(row)
        messages.append(message)
    counts = [len(message.properties) for message in messages]
    pairs = [pair for message in messages for pair in message.properties]
    coded = pa.array([name for name, _ in pairs], pa.string()).dictionary_encode()
    part = Part(
        np.repeat(np.array(rows, np.int64), counts),
        [name.encode() for name in coded.dictionary.to_pylist()],
        coded.indices.to_numpy(),
        Pieces.of(pa.array([value for _, value in pairs], pa.string())),
    )
    return Restored(is_restored, np.array(rows, np.int64), messages, flags, part)


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
