"""Rows of a store as the messages that consumers see (control plane)."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.client.backend import MessageExt
from rmq_store.format.host import Host
from rmq_store.format.ids import offset_message_id

# A MessageExt while it is made. The constructor of a frozen class sets each field by `object.__setattr__`, which takes
# several times as long as all else that is done for a message here. So it becomes one, frozen, when it has its fields.
_Unfrozen: Any = make_dataclass("_Unfrozen", [field.name for field in fields(MessageExt)], slots=True)


def messages_of(batch: pa.RecordBatch, broker_name: str) -> list[MessageExt]:
    """The rows of a batch of MESSAGE_SCHEMA. `broker_name`: what the cluster calls the store, whatever it was
    called when it was opened.
    """

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
            _milliseconds(batch.column("bornTimestamp")),
            values("bornHost"),
            _milliseconds(batch.column("storeTimestamp")),
            store_hosts,
            map(dict, values("properties")),
        )
    )
    for message in made:
        message.__class__ = MessageExt
    return made


def _milliseconds(times: pa.TimestampArray) -> list[int]:
    microseconds: np.ndarray = times.view(pa.int64()).to_numpy()
    found: list[int] = (microseconds // 1000).tolist()
    return found
