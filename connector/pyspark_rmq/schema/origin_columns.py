"""Columns that the store does not have by itself: where a message comes from, and why it failed. Data plane.

A message that failed is stored again, in `%RETRY%group` or `%DLQ%group`; its properties say the rest:

    column               from
    topic                RETRY_TOPIC, for rows of a group's own retry or dead-letter topic
    storeTopic           the topic whose queue holds the record
    originTopic          PYRMQ_ORIGIN_TOPIC, else RETRY_TOPIC, else the record's own
    originQueueId        PYRMQ_ORIGIN_QUEUE_ID; the record's own if it never failed; else NULL: nobody kept it
    originQueueOffset    PYRMQ_ORIGIN_QUEUE_OFFSET, in the same way
    originMsgId          ORIGIN_MESSAGE_ID, else the record's own offset id
    errorClass, errorMessage, stackHash, firstFailureTime, lastFailureTime
                         the properties of `rmq_store.failure`, NULL if there are none
    replays              PYRMQ_REPLAYS, else 0
    redriven             what the store knows of the moves of its dead letters; NULL for rows of other topics

queueId, queueOffset and commitLogOffset are always the place of the record itself: that is what is committed and sent
back. Sources: DefaultMQPushConsumerImpl.resetRetryTopic, AbstractSendMessageProcessor.consumerSendMsgBack,
MessageDecoder.createMessageId.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import failure

if TYPE_CHECKING:
    from pyspark_rmq.access.queue_source import Redriven

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"

# Longer numbers do not fit the column; what does not look like a number of ours is none.
_INT32_DIGITS_MAX = 9
_INT64_DIGITS_MAX = 18
# Until the year 9999, which is where Python's times end.
_TIME_MS_MAX = 253_402_300_799_999
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "S2")

_Make = Callable[["_Rows"], pa.Array]


def stored_columns(names: Sequence[str], *, restore_topic: bool) -> list[str]:
    """Return the stored columns from which the columns `names` are made; the same list if that is all of them."""
    needed: dict[str, None] = {}
    for name in names:
        if name == "topic" and restore_topic:
            needed |= dict.fromkeys(("topic", "properties"))
        elif name in _MADE:
            needed |= dict.fromkeys(_MADE[name][0])
        else:
            needed[name] = None
    # A read without columns would not say how many rows there are.
    return list(needed) or ["queueOffset"]


def complete(
    batch: pa.RecordBatch,
    names: Sequence[str],
    *,
    store_topic: str,
    restore_topic: bool,
    redriven: Redriven | None = None,
) -> pa.RecordBatch:
    """Return the columns `names` of rows that were read with `stored_columns(names)` from the topic `store_topic`.
    `redriven`: queue offsets of the dead letters that were redriven; None if that is unknown.
    """
    rows = _Rows(batch, store_topic, redriven)
    arrays = []
    for name in names:
        if name == "topic" and restore_topic:
            arrays.append(rows.topic())
        elif name in _MADE:
            arrays.append(_MADE[name][1](rows))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


class NothingRedriven:
    """The `Redriven` of a queue of which no dead letter was redriven."""

    def contains(self, offsets: np.ndarray) -> np.ndarray:
        """As `queue_source.Redriven.contains`."""
        return np.zeros(len(offsets), bool)


class _Rows:
    """Rows as stored. Properties are looked up in all of them at once."""

    def __init__(self, batch: pa.RecordBatch, store_topic: str, redriven: Redriven | None) -> None:
        self._batch = batch
        self._store_topic = store_topic
        self._redriven = redriven

    def text(self, name: str) -> pa.StringArray:
        """The values of one property; null where there is none."""
        return pc.map_lookup(self._batch.column("properties"), pa.scalar(name), "first")

    def number(self, name: str, digits_max: int) -> pa.Int64Array:
        """The values of one property as int64; null where it is not made of 1 to `digits_max` digits."""
        text = self.text(name)
        good = pc.match_substring_regex(text, f"^[0-9]{{1,{digits_max}}}$")
        return pc.cast(pc.if_else(good, text, pa.scalar(None, pa.string())), pa.int64())

    def time(self, name: str) -> pa.TimestampArray:
        """The values of one property, ms since the epoch, as times."""
        number = self.number(name, 15)
        number = pc.if_else(pc.less_equal(number, _TIME_MS_MAX), number, pa.scalar(None, pa.int64()))
        return pc.multiply(number, 1000).cast(TIMESTAMP)

    def topic(self) -> pa.StringArray:
        """RETRY_TOPIC, else the topic as stored."""
        return pc.coalesce(self.text(RETRY_TOPIC), self._batch.column("topic"))

    def store_topic(self) -> pa.StringArray:
        """The topic of the queue."""
        return pa.repeat(pa.scalar(self._store_topic), self._batch.num_rows)

    def redriven(self) -> pa.BooleanArray:
        """True for each row that was redriven; null if that is unknown."""
        if self._redriven is None:
            return pa.nulls(self._batch.num_rows, pa.bool_())
        return pa.array(self._redriven.contains(self._batch.column("queueOffset").to_numpy()))

    def own_if_first(self, column: str, stored: pa.Array) -> pa.Array:
        """The value of `stored`; the record's own value if it never failed; null for the rest."""
        own = self._batch.column(column)
        never_failed = pc.is_null(self.text(RETRY_TOPIC))
        return pc.coalesce(stored.cast(own.type), pc.if_else(never_failed, own, pa.scalar(None, own.type)))

    def offset_message_id(self) -> pa.StringArray:
        """The offset message id of the record itself."""
        return offset_message_ids(self._batch.column("storeHost"), self._batch.column("commitLogOffset"))


def offset_message_ids(store_hosts: pa.StringArray, commit_log_offsets: pa.Int64Array) -> pa.StringArray:
    """Offset message ids, (n,): store host and commit-log offset, in hex."""
    hosts = store_hosts.dictionary_encode()
    prefixes = pa.array([_host_hex(host) for host in hosts.dictionary.to_pylist()], pa.string())
    offsets = commit_log_offsets.to_numpy().astype(">i8").view(np.uint8).reshape(-1, 8)
    digits = _HEX[offsets].view("S16").ravel()
    return pc.binary_join_element_wise(prefixes.take(hosts.indices), pa.array(digits).cast(pa.string()), "")


def _host_hex(host: str) -> str:
    """`1.2.3.4:10911` or `[fe80::1]:10911` as in an offset message id: address, then the port as int32.

    No checksum covers the host: of a damaged record the port may be any int32, also a negative one.
    """
    address, _, port = host.rpartition(":")
    family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
    return (socket.inet_pton(family, address.strip("[]")) + int(port).to_bytes(4, "big", signed=True)).hex().upper()


# column -> (what is read for it, how it is made)
_MADE: Final[Mapping[str, tuple[tuple[str, ...], _Make]]] = {
    "storeTopic": (("queueOffset",), _Rows.store_topic),
    "originTopic": (
        ("topic", "properties"),
        lambda rows: pc.coalesce(rows.text(failure.ORIGIN_TOPIC), rows.topic()),
    ),
    "originQueueId": (
        ("queueId", "properties"),
        lambda rows: rows.own_if_first("queueId", rows.number(failure.ORIGIN_QUEUE_ID, _INT32_DIGITS_MAX)),
    ),
    "originQueueOffset": (
        ("queueOffset", "properties"),
        lambda rows: rows.own_if_first("queueOffset", rows.number(failure.ORIGIN_QUEUE_OFFSET, _INT64_DIGITS_MAX)),
    ),
    "originMsgId": (
        ("properties", "storeHost", "commitLogOffset"),
        lambda rows: pc.coalesce(rows.text(ORIGIN_MESSAGE_ID), rows.offset_message_id()),
    ),
    "errorClass": (("properties",), lambda rows: rows.text(failure.ERROR_CLASS)),
    "errorMessage": (("properties",), lambda rows: rows.text(failure.ERROR_MESSAGE)),
    "stackHash": (("properties",), lambda rows: rows.text(failure.STACK_HASH)),
    "firstFailureTime": (("properties",), lambda rows: rows.time(failure.FIRST_FAILURE_MS)),
    "lastFailureTime": (("properties",), lambda rows: rows.time(failure.LAST_FAILURE_MS)),
    "replays": (
        ("properties",),
        lambda rows: pc.fill_null(rows.number(failure.REPLAYS, _INT32_DIGITS_MAX), 0).cast(pa.int32()),
    ),
    "redriven": (("queueOffset",), _Rows.redriven),
}
