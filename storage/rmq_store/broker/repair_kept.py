"""Damage that was kept and is none any more, because somebody put the file back (`rmq repair`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rmq_store.broker.backup_files import log_of
from rmq_store.broker.config import StoreConfig
from rmq_store.broker.repair_finding import Finding
from rmq_store.broker.repair_settings import is_ours
from rmq_store.broker.repair_trash import Trash
from rmq_store.errors import CorruptionError
from rmq_store.log import scan
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.kept import BadRange, Kept

KEPT_FILE = "pyrmq/kept.json"


def find_whole_again(root: Path, trash: Trash, config: StoreConfig, unreadable: set[str]) -> Finding | None:
    """The kept ranges in which every byte belongs to a whole frame again, if there are any. A segment in `unreadable`
    is not looked at: to touch it through a map would kill us.
    """
    kept = Kept.load(root / "pyrmq")
    with closing(log_of(root, config, writable=False)) as log:
        known = log.progress.load() if is_ours(root) else None
        log.crc_from = known[0].crc_from if known else None
        whole = [bad for bad in kept.ranges if bad.file not in unreadable and _is_whole(log, bad)]
    if not whole:
        return None
    still = tuple(bad for bad in kept.ranges if bad not in whole)

    def drop() -> None:
        trash.copy(root / KEPT_FILE)
        Kept(still, kept.queues if still else {}).save(root / "pyrmq")

    places = ", ".join(f"{bad.start} to {bad.end}" for bad in whole)
    problem = f"bytes {places} of the log are kept as damaged, but hold whole records again"
    action = "they are no longer kept, and their messages can be read again"
    return Finding("own files", KEPT_FILE, problem, action, drop)


def _is_whole(log: CommitLog, bad: BadRange) -> bool:
    end, stopped = bad.start, "nothing was found"
    try:
        for stretch in scan.walk(log, bad.start, bad.end):
            end, stopped = stretch.end, stretch.stopped
    except (CorruptionError, FileNotFoundError):  # a file of a wrong size: it has a finding of its own
        return False
    return end == bad.end and not stopped
