"""Conditions on rows, checked before a body is read. Data plane.

A condition names the columns that it needs, and answers for a whole batch. NULL does not match, as in SQL's WHERE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rmq.options.options import Lookup
from pyspark_rmq.schema.origin_columns import offset_message_ids

Mask = npt.NDArray[np.bool_]

_UNIQUE_KEY = "UNIQ_KEY"
_KEY_SEPARATOR = " "


class Condition(Protocol):
    """A condition that Spark can send to tasks."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that the condition needs; all of them are stored ones."""

    def holds(self, batch: pa.RecordBatch) -> Mask:
        """Mask, (n,): True for each row of the batch for which the condition is true."""


def where_all_hold(conditions: Sequence[Condition], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows for which all conditions are true."""
    wanted = np.ones(batch.num_rows, np.bool_)
    for condition in conditions:
        wanted &= condition.holds(batch)
    return batch.filter(pa.array(wanted))


@dataclass(frozen=True)
class MatchesSql92:
    """True for the messages whose properties fulfil an SQL92 condition; it makes a dict for each message."""

    condition: str

    @property
    def columns(self) -> Sequence[str]:
        """The properties, with TAGS and KEYS."""
        return ("properties",)

    def holds(self, batch: pa.RecordBatch) -> Mask:
        """As `Condition.holds`."""
        from rmq_store.cluster import compile_selector

        matches = compile_selector(self.condition).matches
        rows = batch.column("properties").to_pylist()
        return np.array([pairs is not None and matches(dict(pairs)) for pairs in rows], np.bool_)


@dataclass(frozen=True)
class MatchesLookup:
    """True for the messages that a lookup asks for: the same answer as the store's `query.rows`."""

    lookup: Lookup

    @property
    def columns(self) -> Sequence[str]:
        """The columns by which messages are looked up."""
        # The second UNIQ_KEY of messages in batches is no property and no msgId.
        return {
            "key": ("keys",),
            "unique key": ("properties", "javaMsgId"),
            "id": ("msgId", "javaMsgId", "storeHost", "commitLogOffset"),
        }[self.lookup.by]

    def holds(self, batch: pa.RecordBatch) -> Mask:
        """As `Condition.holds`."""
        texts = pa.array(self.lookup.texts, pa.string())
        if self.lookup.by == "key":
            pieces = pc.split_pattern(batch.column("keys"), _KEY_SEPARATOR)
            hits = pc.is_in(pieces.flatten(), texts).to_numpy(zero_copy_only=False)
            found = np.zeros(batch.num_rows, np.bool_)
            found[pc.list_parent_indices(pieces).to_numpy()[hits]] = True
            return found
        if self.lookup.by == "unique key":
            unique = pc.map_lookup(batch.column("properties"), pa.scalar(_UNIQUE_KEY), "first")
            last = pc.if_else(unique.is_valid(), batch.column("javaMsgId"), None)  # without one it is an offset id
            return _mask(pc.is_in(unique, texts)) | _mask(pc.is_in(last, texts))
        ids = offset_message_ids(batch.column("storeHost"), batch.column("commitLogOffset"))
        upper = pa.array([text.upper() for text in self.lookup.texts], pa.string())
        either = _mask(pc.is_in(batch.column("msgId"), texts)) | _mask(pc.is_in(batch.column("javaMsgId"), texts))
        return either | _mask(pc.is_in(ids, upper))


@dataclass(frozen=True)
class Comparison:
    """Compares a column with a value that is not None, by `operation`, one of OPERATIONS. `negated`: NOT of that."""

    column: str
    operation: str
    value: Any
    negated: bool = False

    @property
    def columns(self) -> Sequence[str]:
        """The column that is compared."""
        return (self.column,)

    def holds(self, batch: pa.RecordBatch) -> Mask:
        """As `Condition.holds`."""
        values = batch.column(self.column)
        if pa.types.is_integer(values.type):
            values = values.cast(pa.int64())  # a value may be larger than the column's type
        answer = OPERATIONS[self.operation](values, self.value)
        return _mask(pc.invert(answer) if self.negated else answer)


def _in(values: pa.Array, wanted: Sequence[Any]) -> pa.BooleanArray:
    hits = pc.is_in(values, pa.array(wanted, values.type))
    return pc.if_else(pc.is_valid(values), hits, pa.scalar(None, pa.bool_()))


def _compared(compare: Callable[..., pa.BooleanArray]) -> Callable[[pa.Array, Any], pa.BooleanArray]:
    return lambda values, value: compare(values, pa.scalar(value, values.type))


# As Spark's filters of these names: NULL compared with something is NULL, but for the last three.
OPERATIONS: dict[str, Callable[[pa.Array, Any], pa.BooleanArray]] = {
    "EqualTo": _compared(pc.equal),
    "GreaterThan": _compared(pc.greater),
    "GreaterThanOrEqual": _compared(pc.greater_equal),
    "LessThan": _compared(pc.less),
    "LessThanOrEqual": _compared(pc.less_equal),
    "In": _in,
    "StringStartsWith": lambda values, value: pc.starts_with(values, value),
    "StringEndsWith": lambda values, value: pc.ends_with(values, value),
    "StringContains": lambda values, value: pc.match_substring(values, value),
    "EqualNullSafe": lambda values, value: pc.fill_null(_compared(pc.equal)(values, value), False),
    "IsNull": lambda values, value: pc.is_null(values),
    "IsNotNull": lambda values, value: pc.is_valid(values),
}


def _mask(answer: pa.BooleanArray) -> Mask:
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask
