"""Finds the delay of each level: from settings, or from queue entries of messages that a broker has delayed.

No file of a RocketMQ store holds messageDelayLevel, so in a broker's store only its messages show it. The entry in
SCHEDULE_TOPIC_XXXX holds the due time, the record its store time; the difference is the delay of the level. The newest
message of a level counts, because an operator may change the table. A level without messages gets RocketMQ's delay.
That delay is `assumed`, and no message may be delivered early because of it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import numpy as np

from rmq_store.errors import CorruptionError, NotAStoreError
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.format.views.consume_queue import ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.delay_table import DelayTable
from rmq_store.log.recovery.delivery_times import can_be_due, delays_in_copies, due_codes
from rmq_store.log.recovery.rebuild import Rebuild

_LOG = logging.getLogger(__name__)

# The newest messages of a level that are read: if one is damaged, the one before it shows the delay.
_READ_MAX = 64


def infer_delays(log: CommitLog, assumed_ms: tuple[int, ...]) -> None:
    """Let the log use the delays that its messages show, and `assumed_ms` for the other levels.

    Call it before a recovery, which writes entries with these delays. NotAStoreError: of `Rebuild.load`.
    """
    found = dict(_inferred(log))
    delays_ms = list(assumed_ms)
    for level, delay_ms in sorted(found.items()):
        delays_ms += delays_ms[-1:] * (level - len(delays_ms))  # a level above the table's last counts as that
        delays_ms[level - 1] = delay_ms
    log.delays = DelayTable(tuple(delays_ms), frozenset(found))


def warn_of_assumed(log: CommitLog, assumed_ms: tuple[int, ...]) -> None:
    """Log once for each store and process that the broker's table differs from `assumed_ms`, and that part of it is
    unknown. `rmq doctor` names the levels.
    """
    table = log.delays
    known = {level: table.delays_ms[level - 1] for level in sorted(table.inferred or ())}
    differs = any(level > len(assumed_ms) or delay_ms != assumed_ms[level - 1] for level, delay_ms in known.items())
    if differs and any(table.is_assumed(level) for level in range(1, len(table.delays_ms) + 1)):
        _warn(str(log.root))


@functools.lru_cache(maxsize=64)
def _warn(root: str) -> None:
    _LOG.warning(
        "%s: some levels of its broker's messageDelayLevel are unknown, RocketMQ's delays are used for them; "
        "`rmq doctor` has the levels, `rmq updateBrokerConfig -k messageDelayLevel` sets them", root,
    )  # fmt: skip


def _inferred(log: CommitLog) -> Iterator[tuple[int, int]]:
    """(level, its delay in ms) of the levels whose messages show it."""
    begun = Rebuild.load(log.root)
    for queue_id in sorted(log.views.queue_ids(SCHEDULE_TOPIC)):
        try:
            delay_ms = _delay_of(log, queue_id)
        except (CorruptionError, NotAStoreError, FileNotFoundError):
            continue  # the reader of this queue gets the error
        if delay_ms is not None:
            yield queue_id + 1, delay_ms
    if begun is not None:  # what is in the queues was made from the log; what was there before is in the copies
        try:
            yield from delays_in_copies(log, begun.schedule).items()
        except CorruptionError:
            return  # recovery reads the same segments, and tells


def _delay_of(log: CommitLog, queue_id: int) -> int | None:
    queue = log.views.queue(SCHEDULE_TOPIC, queue_id)
    bases = queue.run.bases()
    last = log.queue_max(SCHEDULE_TOPIC, queue_id, log.files_end()) if bases else 0
    first = max(last - _READ_MAX, bases[0] // ENTRY_BYTES) if last else 0
    entries = queue.entries(first, last)
    due_ms, stored_ms = due_codes(log, queue_id, entries)
    rows = np.flatnonzero(can_be_due(stored_ms, due_ms) & (entries["frame_size"] != PRE_BLANK_SIZE))
    for row in rows[::-1].tolist():
        offset, size, _ = entries[row].tolist()
        if log.is_record_of(SCHEDULE_TOPIC, queue_id, offset, size, first + row):
            return int(due_ms[row] - stored_ms[row])
    return None
