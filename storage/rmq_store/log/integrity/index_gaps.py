"""Finds lost index files: messages with keys that no index file covers, between two files or before the first one.

Only messages that this engine wrote are checked: a broker may have run without an index. A lost newest file is found at
open (`rmq_store.log.recovery.starting_point`).
"""

from __future__ import annotations

from rmq_store.errors import CorruptionError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as names
from rmq_store.log.core.commit_log import CommitLog

# Messages that are looked at in a gap: most stores have none without keys.
_LOOK = 64

# A broker makes two ahead, which are empty.
_SEGMENTS_LOOKED_AT = 3

_ROLLBACK = 0xC  # of sysFlag: MessageSysFlag.TRANSACTION_ROLLBACK_TYPE, which nobody indexes


def lost_keys(log: CommitLog, covered: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first [start, end) of the log whose messages have keys and no entries; None if there is none. `covered`: the
    first and the last record of each index file, newest file first.
    """
    known = log.progress.load()
    if known is None or known[0].crc_from is None:
        return None
    behind = max(log.start(), known[0].crc_from)
    for first, last in reversed(covered):
        if behind < first and (lost := _first_with_keys(log, behind, first)) is not None:
            return lost, first
        message = log.message_at(last)
        behind = max(behind, last + message.total_size if message is not None else last)
    return None


def has_no_index(log: CommitLog) -> bool:
    """True if the broker that wrote the store keeps no index (messageIndexEnable or indexFileWriteEnable=false):
    messages with keys and queues exist, but no index file. If the queues are missing as well, the user wants both to be
    rebuilt.
    """
    index = log.views.index
    if index is None or index.names() or not log.views.keys():
        return False
    newest = log.segments.bases()[-_SEGMENTS_LOOKED_AT:]
    return any(_has_keys(log, base) for base in newest)


def _has_keys(log: CommitLog, base: int) -> bool:
    try:
        return _first_with_keys(log, base, base + log.segments.size_bytes) is not None
    except CorruptionError:  # whoever opens the log says what it is
        return False


def _first_with_keys(log: CommitLog, start: int, end: int) -> int | None:
    offset = start
    for _ in range(_LOOK):
        if offset >= end:
            break
        message = log.message_at(offset)
        if message is None:  # the blank at the end of a segment, or damage
            offset = log.segments.base_of(offset) + log.segments.size_bytes
            continue
        if _is_indexed(message):
            return offset
        offset += message.total_size
    return None


def _is_indexed(message: StoredMessage) -> bool:
    has_keys = bool(message.keys) or bool(message.properties.get(names.UNIQUE_KEY))
    return has_keys and message.sys_flag & _ROLLBACK != _ROLLBACK
