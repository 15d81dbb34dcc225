"""Purposes of units: each unit of work names one, and the newest value is remembered for each purpose and key.

The names are on disk. The bridge has purposes of its own.
"""

from __future__ import annotations

from typing import Final

SINK: Final = "sink"
"""Batches of Spark's stream sink."""

TXN: Final = "txn"
"""Batch writes with txnAppId and txnVersion."""

SEND_BACK: Final = "sendback"
"""Copies of failed messages."""

DELAY: Final = "delay"
"""Progress of a delay level."""

TIMER: Final = "timer"
"""Watermark of a timer queue."""

REDRIVE: Final = "redrive"
"""Dead letters that were redriven; key: the group, value: number of the unit."""

RESTORE: Final = "restore"
"""Dead letters that were restored from an archive; key: store and group, value: number of the unit."""

TRANSACTION: Final = "transaction"
"""Ends and questions of half messages; key: their queue, value: number of the unit. And half messages that were put
back into checking; key: `resumed-` and the queue offset.
"""

EXPIRING: Final = frozenset({SINK, TXN, SEND_BACK})
"""Spark may repeat these commits, for a limited time. Units of the other purposes say how far something was done, and
are never forgotten.
"""
