"""Keeps the due times of delayed messages, which only queue entries hold.

The writer of a delayed message computed its due time with its own delays; a broker's may differ from ours. Computed
again from the log, the message could be delivered early, or late. So a scan of the log keeps an entry that fits its
record (`preserved_entries`). Before the queues are built again their files are copied (`copy_schedule`, or `rmq
repair`); afterwards the due times are restored from the copies (`restore_delivery_times`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptionError
from rmq_store.files import durable
from rmq_store.files.segments.copying import copy_start
from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, is_extension_address
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.queue_ext import NO_TIME, read_units
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COPIES = "schedule_copies"

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("skipped", "S28"), ("sys_flag", ">i4")])
_STORE_TIME_AT = 56  # byte of a record
_IPV6_EXTRA = 12  # bytes before it, if the host that it was born on has such an address
_BORN_HOST_V6 = 0x10
_HASH_MAX = (1 << 31) - 1  # of a tag; a time is greater


def due_codes(log: CommitLog, queue_id: int, entries: np.ndarray) -> tuple[Int64, Int64]:
    """For entries of SCHEDULE_TOPIC_XXXX: their due times as stored, and the store times of their messages; ms, (n,)
    each. NO_TIME for a missing record. An address is resolved; it stays if the message has no unit there.
    """
    codes: Int64 = entries["tags_code"].astype(np.int64)
    stored_ms = store_times(log, entries["commit_log_offset"].astype(np.int64))
    rows = np.flatnonzero(is_extension_address(codes))
    if len(rows):
        found, times = read_units(log.root, SCHEDULE_TOPIC, queue_id, codes[rows])
        is_own = (times != NO_TIME) & (times == stored_ms[rows])
        codes[rows] = np.where(is_own, found, codes[rows])
    return codes, stored_ms


def due_times(log: CommitLog, queue_id: int, entries: np.ndarray) -> Int64:
    """The due times of messages of SCHEDULE_TOPIC_XXXX by their entries (dtype ENTRY), (n,) ms. If the unit of an entry
    is missing, the delay of the level decides, as in a broker (ScheduleMessageService#executeOnTimeUp).
    """
    codes: Int64 = entries["tags_code"].astype(np.int64)
    if is_extension_address(codes).any():
        codes, stored_ms = due_codes(log, queue_id, entries)
        delays_ms = log.delay_levels_ms
        delay_ms = delays_ms[min(queue_id + 1, len(delays_ms)) - 1] if delays_ms else 0
        codes = np.where(is_extension_address(codes), stored_ms + delay_ms, codes)
    return codes


def can_be_due(stored_ms: Int64, due_ms: Int64) -> Mask:
    """Those times, (n,) each, that can be delivery times: all delays are whole seconds, at least one."""
    waits_ms = due_ms - np.maximum(stored_ms, 0)
    found: Mask = (stored_ms > 0) & (due_ms > stored_ms) & (waits_ms % 1000 == 0)
    return found


def store_times(log: CommitLog, offsets: Int64) -> Int64:
    """storeTimestamp of the records at offsets of the log (n,), ms; NO_TIME where no record is possible. The records
    are not checked; `is_record_of` does that.
    """
    found = np.full(len(offsets), NO_TIME, np.int64)
    size_bytes = log.segments.size_bytes
    bases = offsets // size_bytes * size_bytes
    for base in np.unique(bases[offsets >= 0]).tolist():
        try:
            data = np.frombuffer(log.segments.open(base).map, np.uint8)
        except FileNotFoundError:
            continue
        rows = np.flatnonzero((bases == base) & (offsets - base <= size_bytes - FRAME_BYTES_MIN))
        places = offsets[rows] - base
        is_v6 = gather_fields(data, places, _HEAD)["sys_flag"] & _BORN_HOST_V6 != 0
        found[rows] = gather_fields(data, places + _STORE_TIME_AT + np.where(is_v6, _IPV6_EXTRA, 0), ">i8")
    return found


def preserved_entries(
    log: CommitLog, key: QueueKey, first: int, entries: np.ndarray, *, has_ext: bool
) -> tuple[np.ndarray, int]:
    """Entries (dtype ENTRY) from queue offset `first` on, as a scan of the log made them, with the values of existing
    entries that the log does not hold: due times, and with `has_ext` addresses of units. Also returns the number of
    delayed messages without an existing due time; they get one by our table.
    """
    is_schedule = key[0] == SCHEDULE_TOPIC
    if not is_schedule and not has_ext:
        return entries, 0
    before = _standing(log, key, first, len(entries))
    same = (before["commit_log_offset"] == entries["commit_log_offset"]) & (
        before["frame_size"] == entries["frame_size"]
    )
    codes: Int64 = before["tags_code"].astype(np.int64)
    stays, lacking = same & has_ext & is_extension_address(codes), 0
    if is_schedule:
        due_ms, stored_ms = due_codes(log, key[1], before)
        codes = codes if has_ext else due_ms
        stays |= same & can_be_due(stored_ms, due_ms)
        lacking = int(np.count_nonzero(~stays & (entries["tags_code"] > _HASH_MAX)))
    if not stays.any():
        return entries, lacking
    kept = entries.astype(ENTRY)
    kept["tags_code"][stays] = codes[stays]
    return kept, lacking


def _standing(log: CommitLog, key: QueueKey, first: int, count: int) -> np.ndarray:
    """The entries that stand at [first, first + count), dtype ENTRY; zeros where no file is."""
    queue, found = log.views.queue(*key), np.zeros(count, ENTRY)
    per_file = queue.run.size_bytes // ENTRY_BYTES
    for base in queue.run.bases():
        low, high = max(first, base // ENTRY_BYTES), min(first + count, base // ENTRY_BYTES + per_file)
        if low < high:
            found[low - first : high - first] = queue.entries(low, high)
    return found


# -- copies -------------------------------------------------------------------------------------------------------


def schedule_files(root: Path, copies: Mapping[Path, Path]) -> dict[str, str]:
    """The `copies` of queue files of the store at `root` that hold due times: {"<queue id>/<20 digits>": path of the
    copy}. A path within `root` is relative to it: the store may be moved before the copies are needed.
    """
    directory = root / "consumequeue" / SCHEDULE_TOPIC
    return {path.relative_to(directory).as_posix(): _place(root.resolve(), place.resolve())
            for path, place in copies.items() if directory in path.parents}  # fmt: skip


def copy_schedule(log: CommitLog) -> dict[str, str]:
    """Copy the files that hold due times, durably; returns the copies as `schedule_files`. The caller holds byte 0 of
    `lock` exclusively. StoreFullError, StoreFailedError.
    """
    drop_copies(log)
    copies = {}
    for queue_id in log.views.queue_ids(SCHEDULE_TOPIC):
        run = log.views.queue(SCHEDULE_TOPIC, queue_id).run
        for base in run.bases():
            name = f"{queue_id}/{base:020d}"
            target = log.own / COPIES / name
            try:
                file = run.open(base)
            except CorruptionError as error:
                _LOG.warning("%s: messages that wait may be due at other times than before: %s", log.root, error)
                continue
            durable.make_directory(target.parent.parent)
            durable.make_directory(target.parent)
            copy_start(file.fd, target, run.size_bytes, run.size_bytes)
            copies[name] = f"{log.own.name}/{COPIES}/{name}"
    return copies


def drop_copies(log: CommitLog) -> None:
    """Remove the copies that `copy_schedule` has made. StoreFailedError."""
    directory = log.own / COPIES
    if os.path.lexists(directory):
        with durable.typed(directory):
            durable.before("unlink", directory)
            shutil.rmtree(directory)


def restore_delivery_times(log: CommitLog, copies: Mapping[str, str]) -> int:
    """Restore the tags codes (due times) of delayed messages from `copies` (as `schedule_files`). Returns their number.

    An entry is restored only if the rest of it is the same, and its code can be a due time. Missing copies are skipped.
    StoreFullError, StoreFailedError.
    """
    return sum(_keep_times(log, name, log.root / place) for name, place in copies.items())


def delays_in_copies(log: CommitLog, copies: Mapping[str, str]) -> dict[int, int]:
    """The delay (ms) of each level, by its newest message in `copies`."""
    found: dict[int, int] = {}
    for name in sorted(copies):
        queue_id, _, digits = name.partition("/")
        entries = _copied(log, log.root / copies[name])
        due_ms, stored_ms = due_codes(log, int(queue_id), entries)
        first = int(digits) // ENTRY_BYTES
        for row in np.flatnonzero(can_be_due(stored_ms, due_ms))[::-1].tolist():
            offset, size, _ = entries[row].tolist()
            if log.is_record_of(SCHEDULE_TOPIC, int(queue_id), offset, size, first + row):
                found[int(queue_id) + 1] = int(due_ms[row] - stored_ms[row])
                break
    return found


def _place(root: Path, place: Path) -> str:
    return str(place.relative_to(root) if root in place.parents else place)


def _copied(log: CommitLog, place: Path) -> np.ndarray:
    """The entries of a copy, dtype ENTRY; none of one that is gone, which is logged."""
    try:
        fd = durable.open_nofollow(place, os.O_RDONLY)
    except FileNotFoundError:
        _LOG.warning("%s: %s is gone: messages that wait may be due at other times than before", log.root, place)
        return np.empty(0, ENTRY)
    try:
        with durable.typed(place):
            data = os.pread(fd, log.geometry.mapped_file_size_consume_queue, 0)
    finally:
        os.close(fd)
    return np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)


def _keep_times(log: CommitLog, name: str, place: Path) -> int:
    queue_id, _, digits = name.partition("/")
    queue, base = log.views.queue(SCHEDULE_TOPIC, int(queue_id)), int(digits)
    if base not in queue.run.bases():
        return 0
    before = _copied(log, place)
    first = base // ENTRY_BYTES
    now = queue.entries(first, first + len(before))
    same = (before["commit_log_offset"] == now["commit_log_offset"]) & (before["frame_size"] == now["frame_size"])
    due_ms, stored_ms = due_codes(log, int(queue_id), before)
    differing = same & (now["frame_size"] > 0) & (before["tags_code"] != now["tags_code"])
    rows = np.flatnonzero(differing & can_be_due(stored_ms, due_ms)).tolist()
    for row in rows:
        queue.put(first + row, before[row : row + 1])
    return len(rows)
