"""suggestWhichBrokerId: which broker of the name a reader asks next (PullMessageProcessor.java).

With slaveReadEnable the settings of its group decide: `whichBrokerWhenConsumeSlowly` (1) if the last message of the
answer lies further behind the end of the log than 40 % of the machine's memory (DefaultMessageStore#getMessage), else
`brokerId` (0). Without it, the master. A client that knows no such broker asks the one that it knows.
"""

from __future__ import annotations

import struct
from typing import Final

from rmq_store.broker.rules.hot_queue import hot_bytes
from rmq_store.protocol.bodies.routes import MASTER_ID
from rmq_store.server.processors.served_store import ServedStore

_SIZE: Final = struct.Struct(">i")
_LOG_OFFSET: Final = struct.Struct(">q")
# PHYSICALOFFSET of a frame.
_LOG_OFFSET_AT: Final = 28


class BrokerSuggestion:
    """Of a server with `slave_reads` (slaveReadEnable). `slow_bytes`: who is further behind is slow."""

    def __init__(self, served: ServedStore, *, slave_reads: bool, slow_bytes: int | None = None) -> None:
        self._served = served
        self._slave_reads = slave_reads
        self._slow_bytes = hot_bytes() if slow_bytes is None else slow_bytes

    def of(self, group: str, frames: bytes) -> int:
        """The id of the broker, for a reader of this group that gets these whole frames."""
        if not self._slave_reads:
            return MASTER_ID
        settings = self._served.known_group(group)
        if settings is None:
            return MASTER_ID
        return settings.which_broker_when_consume_slowly if self._is_slow(frames) else settings.broker_id

    def _is_slow(self, frames: bytes) -> bool:
        at = following = 0
        while following < len(frames):
            at = following
            following += _SIZE.unpack_from(frames, at)[0]
        if not frames:
            return False
        (log_offset,) = _LOG_OFFSET.unpack_from(frames, at + _LOG_OFFSET_AT)
        return bool(self._served.store.log_range()[1] - log_offset > self._slow_bytes)
