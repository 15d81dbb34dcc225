"""Rows of a store as the messages that consumers see (control plane)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.client.backend import MessageExt
from rmq_store.format.host import Host
from rmq_store.format.ids import offset_message_id


def messages_of(batch: pa.RecordBatch, broker_name: str) -> list[MessageExt]:
    """The rows of a batch of MESSAGE_SCHEMA. `broker_name`: what the cluster calls the store, whatever it was
    called when it was opened.
    """
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in _TIMES}
    for name in _TIMES:
        columns[name] = pc.divide(batch.column(name).cast(pa.int64()), 1000).to_pylist()
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [
        MessageExt(
            topic=row["topic"],
            body=row["body"],
            queue_id=row["queueId"],
            queue_offset=row["queueOffset"],
            commit_log_offset=row["commitLogOffset"],
            msg_id=row["msgId"],
            offset_msg_id=offset_message_id(Host.parse(row["storeHost"]), row["commitLogOffset"]),
            broker_name=broker_name,
            reconsume_times=row["reconsumeTimes"],
            flag=row["flag"],
            sys_flag=row["sysFlag"],
            born_timestamp_ms=row["bornTimestamp"],
            born_host=row["bornHost"],
            store_timestamp_ms=row["storeTimestamp"],
            store_host=row["storeHost"],
            properties=dict(row["properties"]),
        )
        for row in rows
    ]


_TIMES = ("bornTimestamp", "storeTimestamp")
