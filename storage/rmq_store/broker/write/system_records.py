"""Records of this engine's own system topics: ends of units, and the ledgers of redrives and restores (data plane)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.log.core.commit_log import CommitLog


def system_records(
    log: CommitLog, host: Host, topic: str, queue_id: int, tag: str, bodies: Sequence[bytes], now_ms: int | None = None
) -> pa.RecordBatch:
    """One record of queue `queue_id` for each body, in their order: ENCODED_SCHEMA, ready to be appended to `log`.
    `now_ms` is their born time; None: now.
    """
    count = len(bodies)
    rows = pa.RecordBatch.from_pydict({"topic": [topic] * count, "body": list(bodies), "tags": [tag] * count})
    options = EncodeOptions(
        store_host=host, born_host=host, now_ms=log.clock() if now_ms is None else now_ms,
        crc_property=log.crc_property, index_tags=log.index_tags,
    )  # fmt: skip
    return encode_batch(rows, queue_ids=np.full(count, queue_id, np.int32), options=options)
