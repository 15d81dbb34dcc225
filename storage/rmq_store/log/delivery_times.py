"""When delayed messages are due, taken over from queue entries that stood there before the queues were built again.

The entry of a message that waits says when it is due. That was computed by the delays of whoever stored it, a broker
perhaps, and these need not be ours: built from the log alone, it would be delivered early, or late.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rmq_store.files import durable
from rmq_store.format.consume_queue import ENTRY, ENTRY_BYTES
from rmq_store.format.names import SCHEDULE_TOPIC
from rmq_store.log.commit_log import CommitLog

_LOG = logging.getLogger(__name__)


def schedule_files(root: Path, copies: Mapping[Path, Path]) -> dict[str, str]:
    """Those of the `copies` of queue files of the store at `root` that tell when messages are due: {"<queue id>/<20
    digits>": where the copy is}, from `root` on if it lies there: the store may be moved before they are needed.
    """
    directory = root / "consumequeue" / SCHEDULE_TOPIC
    return {path.relative_to(directory).as_posix(): _place(root.resolve(), place.resolve())
            for path, place in copies.items() if directory in path.parents}  # fmt: skip


def keep_delivery_times(log: CommitLog, copies: Mapping[str, str]) -> int:
    """Put the tags codes of delayed messages back as they were in `copies` (as `schedule_files`). Returns how many.

    Only where the entry is otherwise the one that was built, and its code can be such a time. Copies that are gone are
    passed over. StoreFullError, StoreFailedError.
    """
    return sum(_keep_times(log, name, log.root / place) for name, place in copies.items())


def _place(root: Path, place: Path) -> str:
    return str(place.relative_to(root) if root in place.parents else place)


def _keep_times(log: CommitLog, name: str, place: Path) -> int:
    queue_id, _, digits = name.partition("/")
    queue, base = log.views.queue(SCHEDULE_TOPIC, int(queue_id)), int(digits)
    if base not in queue.run.bases():
        return 0
    try:
        fd = durable.open_nofollow(place, os.O_RDONLY)
    except FileNotFoundError:
        _LOG.warning("%s: %s is gone: messages that wait may be due at other times than before", log.root, place)
        return 0
    try:
        with durable.typed(place):
            data = os.pread(fd, queue.run.size_bytes, 0)
    finally:
        os.close(fd)
    before = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
    first = base // ENTRY_BYTES
    now = queue.entries(first, first + len(before))
    same = (before["commit_log_offset"] == now["commit_log_offset"]) & (before["frame_size"] == now["frame_size"])
    differing = np.flatnonzero(same & (now["frame_size"] > 0) & (before["tags_code"] != now["tags_code"]))
    rows = [row for row in map(int, differing) if _can_be_due(log, before[row])]
    for row in rows:
        queue.put(first + row, before[row : row + 1])
    return len(rows)


def _can_be_due(log: CommitLog, entry: np.void) -> bool:
    """All delays are whole seconds."""
    stored_ms, due_ms = log.store_timestamp(int(entry["commit_log_offset"])), int(entry["tags_code"])
    return stored_ms is not None and due_ms >= stored_ms and (due_ms - stored_ms) % 1000 == 0
