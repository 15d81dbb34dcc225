"""The time of its birth in each row's body, and a producer that sends such messages: for what waits until it is read.

`python -m bench.births STORE TOPIC ROWS_PER_SECOND` sends until its standard input is closed.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BODY_BYTES = 100


def bodies(born_ns: np.ndarray) -> pa.BinaryArray:
    """One body of BODY_BYTES for each time, (n,) int64, ns since the epoch."""
    import numpy as np
    import pyarrow as pa

    data = np.zeros((len(born_ns), BODY_BYTES), np.uint8)
    data[:, :8] = born_ns.astype(">i8")[:, None].view(np.uint8)
    offsets = np.arange(0, data.size + 1, BODY_BYTES, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(born_ns), [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
    )


def body(born_ns: int) -> bytes:
    """The same for one."""
    return born_ns.to_bytes(8, "big").ljust(BODY_BYTES, b"\0")


def ages_ms(rows: Iterable[bytes], now_ns: int) -> list[float]:
    """How long ago the bodies were born."""
    return [(now_ns - int.from_bytes(row[:8], "big")) / 1e6 for row in rows]


def produce(store_path: Path, topic: str, rows_per_second: int) -> None:
    """Send one message at a time, at its time; what is late is sent at once, and its time of birth is when it is."""
    from rmq_store import Message, Store

    interval_ns = 1_000_000_000 // rows_per_second
    with Store.open(store_path) as store:
        due_ns = time.time_ns()
        while True:
            wait_s = max(0.0, (due_ns - time.time_ns()) / 1e9)
            if select.select([sys.stdin], [], [], wait_s)[0]:
                return
            store.send(Message(topic, body(time.time_ns()), tags="TagA", keys="ORD-1"))
            due_ns += interval_ns


if __name__ == "__main__":
    produce(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
