"""The input of an encoder (data plane): the columns of a batch and the values that all its messages share. Columns are
found by name and cast to one type each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.batches.input_columns import as_type, is_bytes, is_text
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.compression import CompressionKind
from rmq_store.format.frames.frame_check import HOSTS_V6_MASK
from rmq_store.format.properties.property_encoder import NAMED_COLUMNS, checked_text, refusal
from rmq_store.format.tables.schema import ENCODED_SCHEMA, PROPERTIES_TYPE
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator
from rmq_store.format.text.names import validate_topic
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

_MICROSECONDS_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Values that all messages of a batch share.

    `now_ms` is the born time of rows without one. `crc_property` reserves the 20 bytes of the CRC property. With
    `unique_ids`, rows without a UNIQ_KEY among their kept properties get one. Bodies of at least `compress_over_bytes`
    are compressed, unless they are compressed already or would not get shorter; None: never. Properties named in
    `drop_properties` are left out. `index_tags`: tags get index entries, as in brokers from 5.4.0 on. `in_threads`: use
    all processors; for a caller that has them to itself.
    """

    store_host: Host
    born_host: Host
    now_ms: int
    crc_property: bool
    unique_ids: UniqueIdGenerator | None = None
    max_message_bytes: int = 4 * 1024 * 1024
    compress_over_bytes: int | None = None
    compress_kind: CompressionKind = "zlib"
    drop_properties: frozenset[str] = frozenset()
    index_tags: bool = True
    in_threads: bool = False


@dataclass(frozen=True, slots=True)
class RowFields:
    """Fixed fields of n frames, each (n,). `sys_flags` hold the address family of the hosts."""

    queue_ids: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int32]
    sys_flags: npt.NDArray[np.int32]
    born_timestamps: npt.NDArray[np.int64]
    reconsume_times: npt.NDArray[np.int32]


class EncodeInput:
    """Typed access to the columns of `batch`. UsageError, naming the row, for a value that cannot be stored."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.row_count: int = batch.num_rows
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))

    def topics(self) -> pa.DictionaryArray:
        """(n,) dictionary<int32, string> without nulls, all names valid."""
        column = self._required("topic")
        if column.null_count:
            raise refusal(_first_null(column), "topic", "a message needs a topic")
        if not _has_different_values(column):
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            column = self._text("topic", column).dictionary_encode()
        topics = column
        for code, name in enumerate(checked_text(topics.dictionary, "topic").to_pylist()):
            try:
                validate_topic(name)
            except UsageError as error:
                raise refusal(topics.indices.index(code).as_py(), "topic", str(error)) from None
        return topics

    def bodies(self, bytes_max: int) -> pa.LargeBinaryArray:
        """(n,) large_binary without nulls, none longer than `bytes_max`."""
        column = self._required("body")
        if column.null_count:
            raise refusal(_first_null(column), "body", "a message needs a body; it may be empty")
        if not (is_text(column.type) or is_bytes(column.type)):
            raise UsageError(f"column 'body': expected binary, got {column.type}")
        bodies = as_type("body", column, pa.large_binary())
        refuse_over(np.diff(value_bytes(bodies)[0]), bytes_max, "body", "bytes")
        return bodies

    def texts(self) -> dict[str, pa.StringArray]:
        """Those of NAMED_COLUMNS that the batch has, as string. They are not checked yet for valid UTF-8."""
        return {name: self._text(name, self._columns[name]) for name in NAMED_COLUMNS if name in self._columns}

    def properties(self) -> pa.MapArray | None:
        """The map column, or None if the batch has none."""
        column = self._columns.get("properties")
        if column is None or pa.types.is_null(column.type):
            return None
        return as_type("properties", column, PROPERTIES_TYPE)

    def fields(self, queue_ids: npt.NDArray[np.int32], options: EncodeOptions) -> RowFields:
        """The fixed fields of the rows' frames."""
        sys_flags = self._integers("sysFlag") & np.int32(~HOSTS_V6_MASK)
        sys_flags |= np.int32(options.born_host.is_ipv6 << 4 | options.store_host.is_ipv6 << 5)
        return RowFields(
            np.ascontiguousarray(queue_ids, np.int32), self._integers("flag"), sys_flags,
            self._born_timestamps(options.now_ms), self._integers("reconsumeTimes"),
        )  # fmt: skip

    def _integers(self, name: str) -> npt.NDArray[np.int32]:
        """(n,) int32, 0 for null and without the column."""
        column = self._columns.get(name)
        if column is None:
            return np.zeros(self.row_count, np.int32)
        numbers: npt.NDArray[np.int32] = as_type(name, column, pa.int32()).fill_null(0).to_numpy()
        return numbers

    def _born_timestamps(self, now_ms: int) -> npt.NDArray[np.int64]:
        """(n,) ms since the epoch, `now_ms` for null and without the column; finer parts are cut off downwards."""
        column = self._columns.get("bornTimestamp")
        if column is None or column.null_count == self.row_count:
            return np.full(self.row_count, now_ms, np.int64)
        if not pa.types.is_timestamp(column.type):
            raise UsageError(f"column 'bornTimestamp': expected a timestamp, got {column.type}")
        times_us = as_type("bornTimestamp", column, pa.timestamp("us", column.type.tz)).view(pa.int64())
        times_ms: npt.NDArray[np.int64] = times_us.fill_null(0).to_numpy() // _MICROSECONDS_PER_MS
        if column.null_count:
            times_ms[column.is_null().to_numpy(zero_copy_only=False)] = now_ms
        return times_ms

    def _text(self, name: str, column: pa.Array) -> pa.StringArray:
        # Arrow would also write numbers out; what text a number becomes is for the caller to say.
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise UsageError(f"column {name!r}: expected a string, got {column.type}")
        return as_type(name, column, pa.string())

    def _required(self, name: str) -> pa.Array:
        if name not in self._columns:
            raise UsageError(f"the batch has no column {name!r}; it has {', '.join(self._columns) or 'none'}")
        return self._columns[name]


def refuse_over(values: npt.NDArray[np.int64], maximum: int, column: str, unit: str) -> None:
    """Raise for the first row whose value is over `maximum`."""
    over = values > maximum
    if bool(over.any()):
        row = int(over.argmax())
        raise refusal(row, column, f"{int(values[row])} {unit}, more than {maximum}")


def _has_different_values(column: pa.Array) -> bool:
    """Whether a column is what `dictionary_encode` makes of strings: others may hold a value twice, or unused ones."""
    if column.type != ENCODED_SCHEMA.field("topic").type or column.dictionary.null_count:
        return False
    count = len(column.dictionary)
    if count == 1:
        return len(column) > 0
    is_used = np.bincount(column.indices.to_numpy(), minlength=count) > 0
    return bool(is_used.all()) and len(column.dictionary.unique()) == count


def _first_null(column: pa.Array) -> int:
    row: int = pc.index(column.is_null(), True).as_py()
    return row
