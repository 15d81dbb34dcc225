"""Encode a caller's columns as frames: normalise, route, encode (data plane). It needs no lock and no open store."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.rules.delay import DelayRules
from rmq_store.broker.rules.delay_batch import delay_rows
from rmq_store.broker.rules.input_rows import check_columns, rows_from
from rmq_store.broker.rules.routing import Router
from rmq_store.errors import UsageError
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.batches.input_columns import as_type
from rmq_store.format.bytes.gather import all_are
from rmq_store.format.properties.new_message import ADDED_ON_THE_WAY, IDENTITIES
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator
from rmq_store.format.text.names import validate_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.frame_writer import frame_bounds
from rmq_store.log.core.commit_log import Clock
from rmq_store.log.core.layout import BLANK_BYTES

INPUT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("flag", pa.int32()),
        ("bornTimestamp", pa.timestamp("us", tz="UTC")),
        ("shardingKey", pa.string()),
        ("queueId", pa.int32()),
        ("delayLevel", pa.int32()),
        ("deliverTimestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""Input of `Store.append` and `StagingArea.write`; only `body` and, without a default topic, `topic` are required."""

COPIES_SCHEMA = INPUT_SCHEMA.append(pa.field("reconsumeTimes", pa.int32()))
"""Input of `Store.append_unit` with `keep_unique_key`: copies of messages that failed elsewhere before."""

# Up to here counting is faster than sorting.
_COUNTED_PLACES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded rows (ENCODED_SCHEMA), and the queues that their messages' own topics must have.

    `queue_ids` (n,) int32 are those of the own topics, also for delayed messages. `queues`: the number of queues that
    each topic must have for these rows.
    """

    frames: pa.RecordBatch
    queue_ids: np.ndarray
    queues: dict[str, int]


class MessageEncoder:
    """Encodes batches for one store on behalf of one writer; not thread-safe."""

    def __init__(
        self,
        config: StoreConfig,
        topics: Mapping[str, TopicConfig],
        clock: Clock,
        *,
        default_topic: str | None = None,
        use_queue_id: bool = True,
        compress_over_bytes: int | None = None,
        keep_unique_key: bool = False,
        drop_properties: frozenset[str] = frozenset(),
        in_threads: bool = False,
        born_host: Host | None = None,
    ) -> None:
        if default_topic is not None:
            validate_topic(default_topic)
        self._router = Router(topics, config)
        self._clock = clock
        self._default_topic = default_topic
        self._schema = COPIES_SCHEMA if keep_unique_key else INPUT_SCHEMA
        self._use_queue_id = use_queue_id
        self._segment_bytes = config.mapped_file_size_commit_log
        store_host = Host.parse(config.broker_host)
        self._delay_rules = DelayRules.of(config)
        self._options = EncodeOptions(
            store_host=store_host,
            born_host=born_host or Host(store_host.address, 0),
            now_ms=0,
            crc_property=config.enabled_append_prop_crc,
            index_tags=config.message_index_tags,
            unique_ids=UniqueIdGenerator(store_host.address, os.getpid() & 0xFFFF, random.getrandbits(32)),
            max_message_bytes=config.max_message_size,
            compress_over_bytes=compress_over_bytes,
            drop_properties=drop_properties if keep_unique_key else drop_properties | IDENTITIES | ADDED_ON_THE_WAY,
            in_threads=in_threads,
        )

    def encode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """The frames of `encode_all`."""
        return self.encode_all(batch, first_row=first_row).frames

    def encode_all(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Encoded:
        """Encode a batch whose columns are some of INPUT_SCHEMA's (with `keep_unique_key`, of COPIES_SCHEMA's): same
        rows, same order.

        Rows with a delay level, a delivery time, or properties that request one are encoded for the topic in which they
        wait. `first_row`: number of the batch's first row in the caller's rows, for errors.

        Raises:
            UsageError: unknown column or wrong type, missing topic or body, a message that breaks a rule; names row
            and column.
        """
        with rows_from(first_row):
            return self._encode(normalise(batch, self._default_topic, self._schema))

    def _encode(self, batch: pa.RecordBatch) -> Encoded:
        topics = _by_name(batch.column("topic"))
        batch = batch.set_column(batch.schema.get_field_index("topic"), "topic", topics)
        names = batch.schema.names
        queue_ids = self._router.route(
            topics,
            batch.column("shardingKey") if "shardingKey" in names else None,
            batch.column("queueId") if self._use_queue_id and "queueId" in names else None,
        )
        now = self._clock()
        options = replace(self._options, now_ms=now)
        queues = _queues(topics, queue_ids)
        delayed = delay_rows(batch, queue_ids, now, self._delay_rules, options.drop_properties)
        if delayed is None:
            frames = encode_batch(batch, queue_ids=queue_ids, options=options)
        else:
            frames = delayed.complete(encode_batch(delayed.batch, queue_ids=delayed.queue_ids, options=options))
        sizes = np.diff(frame_bounds(frames))
        if int(sizes.max(initial=0)) + BLANK_BYTES > self._segment_bytes:
            row = int(sizes.argmax())
            raise UsageError(
                f"row {row}: a record of {sizes[row]} bytes does not fit a segment of {self._segment_bytes} bytes"
            )
        return Encoded(frames, queue_ids, queues)


def _by_name(topics: pa.Array) -> pa.DictionaryArray:
    """Topics, none of them null, as a dictionary. A quick test finds the common case that all are the same."""
    if pa.types.is_string(topics.type) and len(topics) and all_are(topics, topics[0].as_buffer().to_pybytes()):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(topics), np.int32)), topics[:1])
    return topics.dictionary_encode()


def _queues(topics: pa.DictionaryArray, queue_ids: np.ndarray) -> dict[str, int]:
    """For each topic its greatest queue id, plus 1."""
    span = int(queue_ids.max(initial=0)) + 1
    places = topics.indices.to_numpy().astype(np.int64) * span + queue_ids
    is_small = len(topics.dictionary) * span <= _COUNTED_PLACES_MAX
    used = np.flatnonzero(np.bincount(places)) if is_small else np.unique(places)
    ends = np.zeros(len(topics.dictionary), np.int64)
    ends[used // span] = used % span + 1  # they ascend: the last queue of each topic is what stays
    return dict(zip(topics.dictionary.to_pylist(), ends.tolist(), strict=True))


def normalise(
    batch: pa.RecordBatch, default_topic: str | None = None, schema: pa.Schema = INPUT_SCHEMA
) -> pa.RecordBatch:
    """Cast columns to the types of `schema`; `default_topic` replaces the topic column, by a dictionary array.

    Raises:
        UsageError: as `MessageEncoder.encode`.
    """
    check_columns(batch, schema)
    arrays, fields = [], []
    for field in schema:
        if field.name == "topic" and default_topic is not None:
            column = pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), pa.array([default_topic]))
            arrays.append(column)
            fields.append(pa.field(field.name, column.type))
            continue
        elif field.name in batch.schema.names:
            column = batch.column(field.name)
        else:
            continue
        column = as_type(field.name, column, field.type)
        arrays.append(column)
        fields.append(field)
    given = {field.name for field in fields}
    if "body" not in given:
        raise UsageError("there is no column 'body'")
    if "topic" not in given:
        raise UsageError("there is no column 'topic', and no topic was given")
    topics = arrays[[field.name for field in fields].index("topic")]
    if topics.null_count:
        row = topics.is_null().index(True).as_py()
        raise UsageError(f"row {row}: column 'topic' is null")
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
