"""Casts one column of a caller's batch to the stored type: exactly, or with an error that names row and value.

Arrow's own casts would turn numbers into text, text into numbers, and a time that is too far away into another time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.properties.property_encoder import refusal

_NS_PER_US = 1000
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def as_type(name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values of column `name` as `wanted`: an integer, text, binary, a timestamp in microseconds or a map of texts.
    Parts of a time below a microsecond are cut off downwards; RocketMQ has milliseconds.

    Raises:
        UsageError: the column is of another kind, or a value does not fit; names column, row and value.
    """
    if column.type == wanted:
        return column
    given = column.type
    if not _is_of_kind(given, wanted):
        raise UsageError(f"column {name!r} is {given}, not {wanted}")
    try:
        if pa.types.is_dictionary(given):
            column = column.cast(given.value_type)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = _microseconds(column)
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        _refuse_beyond(name, column, wanted)
        raise UsageError(f"column {name!r} is {given}, not {wanted}: {error}") from error


def is_text(kind: pa.DataType) -> bool:
    """True if values of this type are UTF-8 text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """True if values of this type are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _is_of_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of type `given` says what one of type `wanted` does. The caller adds the rest."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given):
        return True
    if pa.types.is_map(wanted):
        return pa.types.is_map(given) and all(
            _is_of_kind(mine, theirs)
            for mine, theirs in ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type))
        )
    if pa.types.is_string(wanted):
        return is_text(given)
    if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted):
        return is_bytes(given) or is_text(given)
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(given))
    return bool(given.id == wanted.id)


def _microseconds(column: pa.Array) -> pa.Array:
    """A column of nanoseconds in microseconds; Arrow would cut off towards 1970."""
    numbers = column.view(pa.int64())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) // _NS_PER_US
    mask = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, mask=mask).view(pa.timestamp("us", column.type.tz))


def _refuse_beyond(name: str, column: pa.Array, wanted: pa.DataType) -> None:
    """Raise for the first value that is beyond the range of `wanted`, if that is why it cannot be cast."""
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(column.type):
        unit = column.type.unit
        factor = _PER_SECOND[wanted.unit] // _PER_SECOND[unit]
        numbers, unit_text, what = column.view(pa.int64()), f" {unit} since 1970", "a time in 64-bit microseconds"
        low, high = -((1 << 63) // factor), ((1 << 63) - 1) // factor
    elif pa.types.is_integer(wanted) and pa.types.is_integer(column.type):
        numbers, unit_text, what = column, "", str(wanted)
        low, high = -(1 << wanted.bit_width - 1), (1 << wanted.bit_width - 1) - 1
    else:
        return
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    beyond = (values < low) | (values > high)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise refusal(row, name, f"{values[row]}{unit_text} does not fit {what}")
