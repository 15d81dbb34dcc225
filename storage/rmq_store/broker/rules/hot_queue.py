"""Decides if a queue is hot: a broker lets a new group begin at offset 0 of a queue whose messages are all in memory.

Source: 4.x DefaultMessageStore.checkInDiskByConsumeOffset(0), negated, as ConsumerManageProcessor asks it;
MessageStoreConfig.accessMessageInMemoryMaxRatio.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

HOT_MEMORY_PERCENT: Final = 40


class Queues(Protocol):
    """The values that the rule needs, of a store or its queues."""

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int, /) -> int:
        """Commit-log offset of the message before `queue_offset`."""

    def log_range(self) -> tuple[int, int]:
        """The commit log, [start, end)."""


def starts_at_first_message(queues: Queues, topic: str, queue_id: int, max_offset: int) -> bool:
    """Whether a new group begins at the first message: True for an empty queue (`max_offset` 0), and if all that was
    stored since its first message fits into 40 % of the machine's memory. Call it only for a queue whose first message
    still exists.
    """
    if max_offset <= 0:
        return True
    first_message = queues.commit_log_offset_before(topic, queue_id, 1)
    return queues.log_range()[1] - first_message <= hot_bytes()


def hot_bytes() -> int:
    """So many bytes at the end of a log probably are still in memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * HOT_MEMORY_PERCENT // 100
