"""Repairs an index whose end is unknown: a broker's after a crash, or one with entries beyond a torn log.

Java deletes the newest file and loses its entries (IndexService#load). Here, because entries are in log order, all
entries before the first invalid one are kept, and the slots are computed again.
"""

from __future__ import annotations

import numpy as np

from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.log.core.checkpoint import load_checkpoint
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.index_file import IndexFile

# Entries looked at to find out whether tags are indexed.
_SAMPLE = 2000


def keep_whole_entries(log: CommitLog) -> int:
    """Truncate the newest file after its last message that is certainly whole. Returns that record's offset; -1 if none
    is left.
    """
    index = log.views.index
    assert index is not None
    while (file := index.newest()) is not None:
        offsets, good = _good_entries(file)
        last = int(offsets[good - 1]) if good else 0
        # The newest message may lack some of its keys: it goes, and is indexed again.
        kept = int(np.searchsorted(offsets[:good], last)) if good else 0
        if kept and _keep(log, file, offsets, kept):
            return int(offsets[kept - 1])
        index.remove_newest()
    return -1


def cut_entries(log: CommitLog, end: int) -> None:
    """Remove the entries of records at or above `end`."""
    index = log.views.index
    while index is not None and (file := index.newest()) is not None and file.header.end_phy_offset >= end:
        offsets, good = _good_entries(file)
        kept = int(np.searchsorted(offsets[:good], end))
        if kept and _keep(log, file, offsets, kept):
            return
        index.remove_newest()


def _good_entries(file: IndexFile) -> tuple[np.ndarray, int]:
    """Log offsets of the entries that the header counts, and how many of them from the first on can be true."""
    entries = file.read_entries(1, min(file.header.index_count, file.entry_max))
    offsets = entries["phy_offset"].astype(np.int64)
    numbers = np.arange(1, len(entries) + 1)
    bad = (entries["key_hash"] < 0) | (entries["previous"] < 0) | (entries["previous"] >= numbers) | (offsets < 0)
    bad[1:] |= offsets[1:] < offsets[:-1]
    return offsets, int(bad.argmax()) if bad.any() else len(entries)


def _keep(log: CommitLog, file: IndexFile, offsets: np.ndarray, count: int) -> bool:
    """Leave the first `count` entries; False if their records cannot be read any more."""
    first, last = int(offsets[0]), int(offsets[count - 1])
    begin = log.store_timestamp(first)
    end = log.store_timestamp(last)
    if end is None:
        return False
    if begin is None:
        begin = file.header.begin_timestamp  # retention took that record; the header was written with it
    header = file.header._replace(
        begin_timestamp=begin, end_timestamp=end, begin_phy_offset=first, end_phy_offset=last,
        index_count=count + 1,
    )  # fmt: skip
    file.cut(header.pack())
    used = count if file.counts_entries else int(np.count_nonzero(file.slots))
    file.write_header(header._replace(hash_slot_count=used).pack())
    return True


def indexes_tags(log: CommitLog) -> bool:
    """True if the broker that wrote this store puts tags into its index.

    The index shows it. Without one, the checkpoint does: brokers that index tags (5.5.0) also write a sixth field
    there.
    """
    found = _tags_in(log)
    return load_checkpoint(log).logics_physical_offset > 0 if found is None else found


def _tags_in(log: CommitLog) -> bool | None:
    index = log.views.index
    file = index.look_at_newest() if index is not None else None
    if file is None:
        return None
    entries = file.read_entries(1, min(file.header.index_count, file.entry_max, _SAMPLE))
    offsets = entries["phy_offset"].astype(np.int64)
    # A message's last entry is the one before an entry of another message; that of a tag comes last.
    for row in np.flatnonzero(offsets[1:] != offsets[:-1]).tolist():
        message = log.message_at(int(offsets[row]))
        if message is not None and message.tags:
            return bool(entries["key_hash"][row] == index_hash(java_hash(f"{message.topic}#T#{message.tags}")))
    return None
