"""suggestWhichBrokerId: which broker of the name a reader asks next, with slaveReadEnable (PullMessageProcessor.java).

The settings of its group decide: `whichBrokerWhenConsumeSlowly` (1) for a reader that is slow, else `brokerId` (0). A
client that knows no such broker asks the one that it knows.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

_SIZE: Final = struct.Struct(">i")
_LOG_OFFSET: Final = struct.Struct(">q")
# PHYSICALOFFSET of a frame.
_LOG_OFFSET_AT: Final = 28


class GroupSettings(Protocol):
    """The settings of a group that the rule needs."""

    @property
    def broker_id(self) -> int:
        """Of a reader that is not slow."""

    @property
    def which_broker_when_consume_slowly(self) -> int:
        """Of one that is."""


def suggested_broker_id(group: GroupSettings, frames: bytes, log_end: int, slow_bytes: int) -> int:
    """The id for a reader that gets these whole frames. It is slow if the last one begins more than `slow_bytes` before
    the end of the log (DefaultMessageStore#getMessage).
    """
    at = following = 0
    while following < len(frames):
        at = following
        following += _SIZE.unpack_from(frames, at)[0]
    if frames and log_end - _LOG_OFFSET.unpack_from(frames, at + _LOG_OFFSET_AT)[0] > slow_bytes:
        return group.which_broker_when_consume_slowly
    return group.broker_id
