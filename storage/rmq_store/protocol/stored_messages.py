"""Rows of a store as the messages that consumers see (control plane).

A `MessageRows` is the result of a pull. The extension makes objects of rows only on request. So messages that wait for
a listener have no objects, which Python's garbage collector would visit again and again. Without the extension, Python
makes all objects at once, because converting columns costs about as much for a few rows as for many.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.batches.frame_decoder import BatchTooLargeError, decode_frames
from rmq_store.format.bytes import native
from rmq_store.format.frames.compression import PLAIN_BYTES_MAX
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id, offset_message_ids
from rmq_store.lazy.arrow_compute import pc
from rmq_store.protocol.messages import MessageExt, add_properties

_NAMES = [field.name for field in fields(MessageExt)]
# A MessageExt while it is made. The constructor of a frozen class sets each field by `object.__setattr__`, which takes
# several times as long as all else that is done for a message here. So it becomes one, frozen, when it has its fields.
_Unfrozen: Any = make_dataclass("_Unfrozen", _NAMES, slots=True)
_SLOTS = tuple(getattr(MessageExt, name) for name in _NAMES)

_NOTHING: Mapping[str, str] = {}

# To make columns ready takes as long as making so many objects of them in Python.
NATIVE_ROWS_MIN = 64


class MessageRows:
    """The rows of a batch of MESSAGE_SCHEMA. `broker_name`: the cluster's name of the store, whatever name it was
    opened with. `added` are properties that each message gets. `undecoded`: the rows whose bodies are as they lie.

    It holds the columns of all rows as long as it is held itself. A pull bounds their size, and no message refers to
    them.
    """

    def __init__(self, batch: pa.RecordBatch, broker_name: str, added: Mapping[str, str] = _NOTHING) -> None:
        self._added = added
        self._offsets: list[int] = batch.column("queueOffset").to_numpy().tolist()
        self.undecoded = undecoded_rows(batch)
        self._body_ends: list[int] = _places(batch.column("body")).tolist()
        is_worth_it = native.LOADED and batch.num_rows >= NATIVE_ROWS_MIN
        self._columns = _native_columns(batch, broker_name) if is_worth_it else None
        self._made = [] if self._columns else _made(batch, broker_name)

    def __len__(self) -> int:
        return len(self._offsets)

    def queue_offset(self, row: int) -> int:
        """The offset of the message in its queue."""
        return self._offsets[row]

    def body_bytes(self, first: int, behind: int) -> int:
        """Bytes of the bodies of the rows [first, behind)."""
        return self._body_ends[behind] - self._body_ends[first]

    def take(self, first: int, behind: int, added: Mapping[str, str] = _NOTHING) -> list[MessageExt]:
        """Objects for the rows [first, behind), with properties `added`, for the caller: a row is taken once."""
        added = {**self._added, **added}
        if self._columns is None:
            made = self._made[first:behind]
            for message in made:
                add_properties(message, added)
            return made
        columns, properties = self._columns
        return native.functions.make_messages(
            MessageExt, _SLOTS, columns, properties, len(self), first, behind, added
        )


def messages_of(batch: pa.RecordBatch, broker_name: str) -> list[MessageExt]:
    """An object for each row; see `MessageRows`."""
    return MessageRows(batch, broker_name).take(0, batch.num_rows)


def messages_in(frames: bytes, broker_name: str) -> list[MessageExt]:
    """An object for each message of a broker's answer: frames, whatever their offsets in the log are."""
    positions, sizes = frames_of_answer(frames)
    return _messages_at(pa.py_buffer(frames), positions, sizes.astype(np.int32), broker_name)


def _messages_at(
    buffer: pa.Buffer, positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], broker_name: str
) -> list[MessageExt]:
    try:
        batch = decode_frames(
            buffer, positions, sizes, base_offset=None, columns=MESSAGE_SCHEMA.names, broker_name=broker_name,
            raw_body=False, body_limit_bytes=PLAIN_BYTES_MAX,
        )  # fmt: skip
    except BatchTooLargeError:
        half = len(positions) // 2
        parts = (slice(half), slice(half, None))
        return [one for part in parts for one in _messages_at(buffer, positions[part], sizes[part], broker_name)]
    return messages_of(batch, broker_name)


def _made(batch: pa.RecordBatch, broker_name: str) -> list[MessageExt]:
    """An object for each row, by Python alone."""

    def values(name: str) -> list[Any]:
        column: list[Any] = batch.column(name).to_pylist()
        return column

    offsets, store_hosts = values("commitLogOffset"), values("storeHost")
    parsed = {host: Host.parse(host) for host in set(store_hosts)}
    # One call of a constructor for each row and nothing else: positions are those of MessageExt's fields.
    made: list[Any] = list(
        map(
            _Unfrozen,
            values("topic"),
            values("body"),
            values("queueId"),
            values("queueOffset"),
            offsets,
            values("msgId"),
            [offset_message_id(parsed[host], offset) for host, offset in zip(store_hosts, offsets, strict=True)],
            repeat(broker_name),
            values("reconsumeTimes"),
            values("flag"),
            values("sysFlag"),
            _milliseconds(batch.column("bornTimestamp")).tolist(),
            values("bornHost"),
            _milliseconds(batch.column("storeTimestamp")).tolist(),
            store_hosts,
            map(dict, values("properties")),
        )
    )
    for message in made:
        message.__class__ = MessageExt
    return made


def _native_columns(batch: pa.RecordBatch, broker_name: str) -> tuple[Any, Any] | None:
    """The columns as `make_messages` takes them, in the order of MessageExt's fields; then the properties. None:
    refused, hosts have addresses of both kinds.
    """
    (
        topics, queue_ids, queue_offsets, msg_ids, bodies, _, _, properties, reconsume_times, flags, sys_flags,
        born_times, born_hosts, store_times, store_hosts, commit_log_offsets, _,
    ) = batch.columns  # fmt: skip
    offsets, shared_hosts = _numbers(commit_log_offsets), _shared(store_hosts)
    packed = [Host.parse(host).pack() for host in shared_hosts[1]]
    if len({len(host) for host in packed}) != 1:
        return None
    hosts = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), -1)[shared_hosts[0]]
    columns = (
        _shared(topics),
        _pieces(bodies, is_text=False),
        _numbers(queue_ids),
        _numbers(queue_offsets),
        offsets,
        _pieces(msg_ids, is_text=True),
        _pieces(offset_message_ids(hosts, offsets), is_text=True),
        (np.zeros(batch.num_rows, np.int32), [broker_name]),
        _numbers(reconsume_times),
        _numbers(flags),
        _numbers(sys_flags),
        _milliseconds(born_times),
        _shared(born_hosts),
        _milliseconds(store_times),
        shared_hosts,
    )
    entries = _places(properties)
    first, count = int(entries[0]), int(entries[-1] - entries[0])
    names = _shared(properties.keys.slice(first, count))
    values = _pieces(properties.items.slice(first, count), is_text=True)
    return columns, (entries - entries[0], names, values)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(column.to_numpy(), np.int64)


def _places(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where the values of n rows begin and end in what they are pieces of, (n + 1,)."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _pieces(column: pa.Array, *, is_text: bool) -> tuple[npt.NDArray[np.int32], Any, bool]:
    return _places(column), column.buffers()[2] or b"", is_text


def _shared(column: pa.StringArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Of texts of which there are few, one object each, and which of them each row has. Interned: properties are
    looked up by such names.
    """
    coded = pc.dictionary_encode(column)
    return coded.indices.to_numpy(), [sys.intern(text) for text in coded.dictionary.to_pylist()]


def _milliseconds(times: pa.TimestampArray) -> npt.NDArray[np.int64]:
    microseconds: npt.NDArray[np.int64] = times.view(pa.int64()).to_numpy()
    return microseconds // 1000


def undecoded_rows(batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
    """The rows of a batch of MESSAGE_SCHEMA whose bodies could not be inflated, and are as they lie; ascending."""
    return np.flatnonzero(batch.column("sysFlag").to_numpy() & int(SysFlag.COMPRESSED))


def body_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of the bodies of a batch of MESSAGE_SCHEMA."""
    return int(pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0)
