"""Columns of messages straight to entries of a batch body, with content keys (data plane): by the extension, piece by
piece, for usual batches.

The same as `encode_batch`, `content_digests`, `KeyMaker.keys` and `batch_entries` one after the other, which take every
batch. They copy each body twice, and pass over it four times, once it has left the processor's cache.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.batches.batch_bodies import KEY_BYTES, KEY_PROPERTY_BYTES
from rmq_store.format.batches.content_keys import KeyMaker
from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions, RowFields
from rmq_store.format.batches.native_encoder import columns_of
from rmq_store.format.bytes import native

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


class Entries(NamedTuple):
    """n entries one behind another in `body`, and of each its end there (n,), its key (KEY_BYTES * n), and the check of
    its body (n,), as `body_checks`. Without keys both are empty.
    """

    body: bytes
    ends: Int64
    keys: Bytes
    checks: UInt64


class RowEntries:
    """The rows of a batch (n,) as entries that are still to be made. `sizes` (n,): their bytes."""

    def __init__(self, rows: native.Rows, fields: RowFields, sizes: Int64, tail: bytes) -> None:
        self._rows = rows
        self._fields = fields
        self._tail = tail
        self.sizes = sizes

    @classmethod
    def measured(
        cls, given: EncodeInput, topics: pa.DictionaryArray, options: EncodeOptions, tail: bytes,
        entry_bytes_max: int, rest_bytes_max: int,
    ) -> Self | None:
        """The rows of a batch, each with a key of its own before its properties and `tail` behind them.

        None: they are not usual. The extension is not there, bodies are to be compressed, or a row is one that cannot
        be stored, has an empty body, an entry of more than `entry_bytes_max` bytes, or `rest_bytes_max` without body.

        Raises:
            UsageError: as `encode_batch`, for what it looks at first.
        """  # fmt: skip
        if not native.LOADED or options.compress_over_bytes is not None:
            return None
        fields = given.fields(np.zeros(given.row_count, np.int32), options)
        rows = columns_of(given, topics, given.bodies(options.max_message_bytes), fields, options)
        if rows is None:
            return None
        sizes = np.empty(given.row_count, np.int64)
        added_bytes = KEY_PROPERTY_BYTES + len(tail)
        if not native.functions.measure_entries(rows, added_bytes, entry_bytes_max, rest_bytes_max, sizes):
            return None
        return cls(rows, fields, sizes, tail)

    @property
    def sys_flags(self) -> npt.NDArray[np.int32]:
        """(n,): the sysFlag of each row."""
        return self._fields.sys_flags

    def write(self, picked: Int64, maker: KeyMaker, places: Bytes) -> Entries:
        """Make the entries of the rows `picked` (m,), in this order. `places` (PLACE_BYTES * n): as `content_digests`.

        Raises:
            UsageError: as `KeyMaker.keys`.
        """
        count = len(picked)
        ends, checks = np.empty(count, np.int64), np.empty(count, np.uint64)
        keys = np.empty(KEY_BYTES * count, np.uint8)
        body = b""

        def number(slots: UInt64, used: int, ordinals_max: int) -> int:
            nonlocal body
            body, used = native.functions.write_entries_of_rows(
                self._rows, picked, self.sizes, self._fields.flags, self._fields.reconsume_times, places, maker.seed,
                maker.tag, self._tail, slots, used, ordinals_max, ends, keys, checks,
            )  # fmt: skip
            return used

        maker.number(count, number)
        return Entries(body, ends, keys, checks)
